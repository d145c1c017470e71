"""What a recording without a device says of its idle time: in which of it code was compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analyzers.facts.host import Host
from tracer.analyzers.gaps import CAUSE_CODE, Gaps
from tracer.analyzers.intervals import Longs, union


def explain_compiling(gaps: Gaps, host: Host) -> Gaps:
    """The same gaps, cut where compiling begins and ends."""
    start, end = compile_times(host)
    if not start.size or not gaps.start_ns.size:
        return gaps
    edges = np.unique(np.concatenate([start, end]))
    first = np.searchsorted(edges, gaps.start_ns, side="right")
    last = np.searchsorted(edges, gaps.end_ns, side="left")
    pieces = np.maximum(last - first, 0) + 1
    source = np.repeat(np.arange(pieces.size), pieces)
    place = np.arange(source.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    inner = edges[np.minimum(first[source] + place, edges.size - 1)]
    ends = np.where(place == pieces[source] - 1, gaps.end_ns[source], inner)
    starts = np.where(place == 0, gaps.start_ns[source], np.concatenate([[0], ends[:-1]]))
    at = np.searchsorted(start, starts, side="right") - 1
    compiling = (at >= 0) & (starts < end[np.maximum(at, 0)])
    cause = np.where(compiling, CAUSE_CODE["compile"], gaps.cause[source]).astype(np.int8)
    return replace(
        gaps,
        device=gaps.device[source],
        start_ns=starts,
        end_ns=ends,
        step=gaps.step[source],
        before=gaps.before[source],
        after=gaps.after[source],
        cause=cause,
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
