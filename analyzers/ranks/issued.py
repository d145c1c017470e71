"""When each collective was issued, on a clock that stands still while its host is held up.

A host that runs ahead shows how fast it is; one that waits does not. What is left when waiting is
taken out can be compared between ranks: who is late and takes no longer than the others is not slow
but behind, and they would wait for it all the same.
"""

from __future__ import annotations

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.facts.calls import is_synchronize
from tracer.analyzers.intervals import NONE, Longs, covered, places_between, union
from tracer.events import Trace

# A call that takes so many times a quick launch waits for something. Most launches may, so a quick
# one is of the quickest, and takes at most so long.
_FAR_LONGER, _QUICK, _MOST_LAUNCH_NS = 4, 1, 20_000


def issued_ns(analysis: Analysis) -> Longs:
    """For each collective when its host issued it, less what it had been held up before; -1 where
    its launch was not recorded."""
    launch = analysis.work["launch"].to_numpy()[analysis.collectives["work"].to_numpy()]
    known = launch != NONE
    if not known.any():
        return np.full(launch.size, NONE, dtype=np.int64)
    start = analysis.trace.start_ns[np.maximum(launch, 0)]
    since = np.full(start.size, analysis.window.start_ns, dtype=np.int64)
    held = covered(since, np.maximum(start, since), *_held(analysis))
    return np.where(known, start - held, NONE)


def _held(analysis: Analysis) -> tuple[Longs, Longs]:
    """When the host was held up: in calls that wait for the device or copy; in calls that took far
    longer than a launch, and where it was silent, as long as its device was in a collective."""
    trace, threads = analysis.trace, _issuing_threads(analysis)
    runtime = _of_threads(trace, trace.rows("runtime"), threads)
    waits = runtime[np.isin(trace.name_codes[runtime], _waiting_names(trace))]
    silent = _silent_until(analysis, _of_threads(trace, trace.rows("operator"), threads), runtime)
    full = _with_full_queues(analysis, runtime)
    starts = np.concatenate([trace.start_ns[waits], silent[0], full[0]])
    return union(starts, np.concatenate([trace.end_ns[waits], silent[1], full[1]]))


def _with_full_queues(analysis: Analysis, runtime: Longs) -> tuple[Longs, Longs]:
    """What calls took beyond a launch while the device was in a collective: a stream holds about a
    thousand launches, and then each waits until another has run."""
    trace = analysis.trace
    launches = np.unique(analysis.work["launch"].to_numpy())
    launches = launches[launches != NONE]
    took = trace.end_ns[runtime] - trace.start_ns[runtime]
    quick = np.percentile(trace.end_ns[launches] - trace.start_ns[launches], _QUICK)
    usual = min(int(quick), _MOST_LAUNCH_NS)
    long = runtime[took > _FAR_LONGER * usual]
    calls = union(trace.start_ns[long] + usual, trace.end_ns[long])
    collectives = union(*(analysis.collectives[name].to_numpy() for name in ("start_ns", "end_ns")))
    first = np.searchsorted(collectives[1], calls[0], side="right")
    last = np.searchsorted(collectives[0], calls[1], side="left")
    place, call = places_between(first, last)
    starts: Longs = np.maximum(collectives[0][place], calls[0][call])
    ends: Longs = np.minimum(collectives[1][place], calls[1][call])
    return starts, ends


def _issuing_threads(analysis: Analysis) -> Longs:
    launches = analysis.work["launch"].to_numpy()
    threads = analysis.trace.events["thread"].to_numpy()[launches[launches != NONE]]
    issuing: Longs = np.unique(threads).astype(np.int64)
    return issuing


def _of_threads(trace: Trace, rows: Longs, threads: Longs) -> Longs:
    mine: Longs = rows[np.isin(trace.events["thread"].to_numpy()[rows], threads)]
    return mine


def _waiting_names(trace: Trace) -> list[int]:
    names = enumerate(trace.names)
    return [code for code, name in names if is_synchronize(name) or "Memcpy" in name]


def _silent_until(analysis: Analysis, operators: Longs, runtime: Longs) -> tuple[Longs, Longs]:
    """Of each collective the last part, in which the host did nothing that was recorded: it may
    have waited for the end in a way that leaves no call."""
    trace = analysis.trace
    rows = np.concatenate([operators, runtime])
    begun, ended = union(trace.start_ns[rows], trace.end_ns[rows])
    start, end = (analysis.collectives[name].to_numpy() for name in ("start_ns", "end_ns"))
    if not begun.size:
        return start[:0], end[:0]
    before = np.searchsorted(begun, end, side="right") - 1
    since = np.where(before == NONE, start, ended[np.maximum(before, 0)])
    since = np.maximum(since, start)
    silent = since < end
    return since[silent], end[silent]
