"""Idle of the devices: the gaps, and what caused each.

This file finds the gaps. Their causes come from `explain`, which gives each piece a part of
overhead; what no evidence explains stays `unexplained`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import PARTS
from tracer.analyzers.accounting import Lanes, Slices
from tracer.analyzers.intervals import NONE, Longs, Rows

CAUSES = PARTS["overhead"]
CAUSE_CODE = {cause: code for code, cause in enumerate(CAUSES)}
LAUNCH, SYNC, HOST = (CAUSE_CODE[c] for c in ("launch", "sync", "host"))
INPUT, ALLOCATOR, COMPILE = (CAUSE_CODE[c] for c in ("input", "allocator", "compile"))
GC, GRAPH, DEVICE = (CAUSE_CODE[c] for c in ("gc", "graph_launch", "device"))
PROFILER, UNEXPLAINED = (CAUSE_CODE[c] for c in ("profiler", "unexplained"))
# In these the host does something else than issuing work or waiting for it.
PAUSES = (HOST, INPUT, ALLOCATOR, COMPILE, GC)


@dataclass(frozen=True)
class Gaps:
    """Pieces of idle in order of device and time. before, after: rows of the work around the
    whole gap, -1 at the edges; gap: number of the whole gap; event: the host row that caused it;
    unrecorded: the device may have been busy with what has no rows."""

    device: NDArray[np.int32]
    start_ns: Longs
    end_ns: Longs
    step: Rows
    before: Rows
    after: Rows
    cause: NDArray[np.int8]  # code into CAUSES
    gap: Rows
    event: Rows
    unrecorded: NDArray[np.bool_]
    pace_ns: int = 0  # the usual time from one launch to the next; 0 when not learned


def find_gaps(slices: Slices, lanes: Lanes, cpu_only: bool) -> Gaps:
    """The idle slices, each with the work before and after the gap it is part of."""
    idle = np.flatnonzero(slices.work == NONE)
    device, start, end = slices.device[idle], slices.start_ns[idle], slices.end_ns[idle]
    joined = np.zeros(idle.size, dtype=bool)
    joined[1:] = (start[1:] == end[:-1]) & (device[1:] == device[:-1])
    gap = np.cumsum(~joined, dtype=np.int32) - 1
    first = np.flatnonzero(~joined)
    last = np.concatenate([first[1:] - 1, [idle.size - 1]]) if idle.size else first
    before, after = _neighbours(device[first], start[first], end[last], lanes)
    cause = HOST if cpu_only else UNEXPLAINED
    return Gaps(
        device,
        start,
        end,
        slices.step[idle],
        before[gap] if idle.size else gap,
        after[gap] if idle.size else gap,
        np.full(idle.size, cause, dtype=np.int8),
        gap,
        np.full(idle.size, NONE, dtype=np.int32),
        np.zeros(idle.size, dtype=bool),
    )


def _neighbours(
    device: NDArray[np.int32], start: Longs, end: Longs, lanes: Lanes
) -> tuple[Rows, Rows]:
    before = np.full(start.size, NONE, dtype=np.int32)
    after = np.full(start.size, NONE, dtype=np.int32)
    for one in np.unique(device).tolist():
        here = np.flatnonzero(device == one)
        rows = np.flatnonzero(lanes.device == one)
        if not rows.size:  # a host that ran no operator
            continue
        by_end = rows[np.argsort(lanes.end_ns[rows], kind="stable")]
        at = np.searchsorted(lanes.end_ns[by_end], start[here], side="right") - 1
        before[here] = np.where(at >= 0, by_end[np.maximum(at, 0)], NONE)
        by_start = rows[np.argsort(lanes.start_ns[rows], kind="stable")]
        at = np.searchsorted(lanes.start_ns[by_start], end[here])
        known = at < by_start.size
        after[here[known]] = by_start[at[known]]
    return before, after
