"""How much of a stretch of time is covered by something, asked for many stretches at once.

The sums are made once; after that an answer costs a binary search for each edge, whatever the
number of intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import Longs, union

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coverage:
    """Disjoint intervals in order. `before_ns[i]`: their length up to the start of interval i."""

    start_ns: Longs
    end_ns: Longs
    before_ns: Longs

    @property
    def total_ns(self) -> int:
        return int(self.before_ns[-1])

    def up_to(self, times: Longs) -> Longs:
        """Covered time before each of these moments."""
        if not self.start_ns.size:
            return np.zeros(times.size, dtype=np.int64)
        at = np.searchsorted(self.start_ns, times, side="right")
        last_end = self.end_ns[np.maximum(at - 1, 0)]
        beyond = np.where(at > 0, np.maximum(last_end - times, 0), 0)
        covered: Longs = self.before_ns[at] - beyond
        return covered

    def within(self, edges: Longs) -> Longs:
        """Covered time between each two neighbouring edges."""
        return np.diff(self.up_to(edges))


def coverage_of(start_ns: Longs, end_ns: Longs) -> Coverage:
    """The union of intervals, in any order."""
    starts, ends = union(np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64))
    return Coverage(starts, ends, np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64))


def cell_edges(start_ns: int, span_ns: int, cells: int) -> Longs:
    """The borders of so many cells over a stretch of time; they lie on whole nanoseconds."""
    steps = np.arange(cells + 1, dtype=np.int64)
    return start_ns + steps * span_ns // max(cells, 1)


def ratios(covered: Longs, edges: Longs) -> Floats:
    """Covered time as shares of the cells' time; cells of no length are empty."""
    lengths = np.diff(edges)
    shares: Floats = np.divide(covered, lengths, out=np.zeros(lengths.size), where=lengths > 0)
    return shares


def dominant(coverages: Sequence[Coverage], edges: Longs) -> tuple[NDArray[np.int64], Longs]:
    """For each cell which coverage has most of it (-1: none), and how much in all."""
    if not coverages:
        none = np.zeros(edges.size - 1, dtype=np.int64)
        return none - 1, none
    times = np.stack([coverage.within(edges) for coverage in coverages])
    largest = times.argmax(axis=0)
    return np.where(times.max(axis=0) > 0, largest, -1), times.sum(axis=0)
