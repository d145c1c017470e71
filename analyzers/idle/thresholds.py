"""The usual times of one recording, nanoseconds: what is long is told by them."""

from __future__ import annotations

import numpy as np

from tracer.analyzers.context import Context
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import Longs, take

# Far longer than the usual is from this many times of it on.
FAR_LONGER = 20
# From this many samples on a median is taken.
_ENOUGH = 8
# No launch takes longer to reach an idle device than this many launch calls take the host; what
# seems longer waited for work that was not recorded.
_CALLS_A_LATENCY = 20


def most_latency(work: Work) -> int:
    """What no launch takes to reach an idle device."""
    launches, trace = work.launches, work.trace
    rows = np.flatnonzero(launches.launching & ~launches.graph)
    cost = trace.end_ns[rows] - trace.start_ns[rows]
    return _CALLS_A_LATENCY * int(np.median(cost)) if cost.size else 0


def usual_latency(work: Work, late: Longs) -> int:
    """From a launch to its work on an idle device, by how long the work of late launches took."""
    usual = int(np.median(late)) if late.size >= _ENOUGH else _least_delay(work)
    return min(usual, most_latency(work))


def _least_delay(work: Work) -> int:
    """With few late launches: the shortest time from any launch to its work."""
    linked = take(work.launches.graph.astype(np.int64), work.launch) == 0
    starts = work.trace.start_ns
    delay = starts[work.event[linked]] - starts[work.launch[linked]]
    return int(delay[delay > 0].min()) if (delay > 0).any() else 0


def usual_pace(context: Context) -> int:
    """95th percentile of the time from one launch to the next on a thread and in a step, without a
    wait in between, where it is not far above the usual; 0 when there are none."""
    times = _between_launches(context)
    if not times.size:
        return 0
    usual, slow = np.percentile(times, (50, 95))
    return int(min(slow, FAR_LONGER * usual))


def _between_launches(context: Context) -> Longs:
    work, trace = context.work, context.work.trace
    rows = np.flatnonzero(work.launches.launching)
    thread = trace.events["thread"].to_numpy()[rows]
    order = np.argsort(thread, kind="stable")
    rows, thread = rows[order], thread[order]
    waits = np.sort(trace.start_ns[work.calls.blocking])
    before, after = trace.end_ns[rows[:-1]], trace.start_ns[rows[1:]]
    waited = np.searchsorted(waits, before) != np.searchsorted(waits, after)
    usable = (thread[1:] == thread[:-1]) & ~waited & (after >= before)
    begins = [step.start_ns for step in context.plan.found_steps]
    usable &= np.searchsorted(begins, before, "right") == np.searchsorted(begins, after, "right")
    times: Longs = (after - before)[usable]
    return times


def usual_step(context: Context) -> float:
    """Median wall time of the steps."""
    wall = context.plan.end_ns - context.plan.start_ns
    return float(np.median(wall)) if wall.size else 0.0
