"""What a recording without a device says of its idle time: in which of it code was compiled, and
where a loader or the collector of garbage begins and ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analyzers.facts.host import Host
from tracer.analyzers.facts.work import Work
from tracer.analyzers.gaps import CAUSE_CODE, Gaps
from tracer.analyzers.intervals import Longs, union


def explain_alone(gaps: Gaps, work: Work) -> Gaps:
    """The same gaps, cut where another cause begins or ends."""
    start, end = compile_times(work.host)
    edges = np.unique(np.concatenate([start, end, *_others(work)]))
    if not edges.size or not gaps.start_ns.size:
        return gaps
    cut = _cut(gaps, edges)
    at = np.searchsorted(start, cut.start_ns, side="right") - 1
    compiling = at >= 0
    compiling[compiling] = cut.start_ns[compiling] < end[at[compiling]]
    cut.cause[compiling] = CAUSE_CODE["compile"]
    return cut


def _others(work: Work) -> tuple[Longs, Longs, Longs, Longs]:
    """Where fetches and collections begin and end; functions named after input are found in the
    pauses themselves."""
    collections = work.trace.table("collections")
    fetches = work.calls.input & ~work.trace.of_kind("frame")
    fetched = union(work.trace.start_ns[fetches], work.trace.end_ns[fetches])
    collected = union(collections["start_ns"].to_numpy(), collections["end_ns"].to_numpy())
    return *fetched, *collected


def _cut(gaps: Gaps, edges: Longs) -> Gaps:
    """The same gaps in pieces that end at these moments."""
    first = np.searchsorted(edges, gaps.start_ns, side="right")
    last = np.searchsorted(edges, gaps.end_ns, side="left")
    pieces = np.maximum(last - first, 0) + 1
    source = np.repeat(np.arange(pieces.size), pieces)
    place = np.arange(source.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    inner = edges[np.minimum(first[source] + place, edges.size - 1)]
    ends = np.where(place == pieces[source] - 1, gaps.end_ns[source], inner)
    return replace(
        gaps,
        device=gaps.device[source],
        start_ns=np.where(place == 0, gaps.start_ns[source], np.concatenate([[0], ends[:-1]])),
        end_ns=ends,
        step=gaps.step[source],
        before=gaps.before[source],
        after=gaps.after[source],
        cause=gaps.cause[source],
        gap=gaps.gap[source],
        event=gaps.event[source],
        unrecorded=gaps.unrecorded[source],
    )


def compile_times(host: Host) -> tuple[Longs, Longs]:
    """When code was compiled: ranges of the recording, and what the compiler itself reported."""
    trace = host.trace
    rows = np.flatnonzero(host.compiling)
    table = trace.table("compile_events")
    return union(
        np.concatenate([trace.start_ns[rows], table["start_ns"].to_numpy()]),
        np.concatenate([trace.end_ns[rows], table["end_ns"].to_numpy()]),
    )
