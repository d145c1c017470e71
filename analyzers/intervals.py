"""Arithmetic of time intervals on numpy columns: nesting, unions, overlaps, shares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Times are 64 bits; row numbers may be 32.
Longs = NDArray[np.signedinteger[Any]]
NONE = -1


@dataclass(frozen=True)
class Forest:
    """Who contains whom: `parent` and `depth` of each row, -1 and 0 for a root."""

    parent: Longs
    depth: NDArray[np.int32]

    @cached_property
    def levels(self) -> list[Longs]:
        """Rows by depth, the roots first."""
        order = np.argsort(self.depth, kind="stable")
        bounds = np.cumsum(np.bincount(self.depth))
        return [level.astype(np.int64) for level in np.split(order, bounds[:-1])]

    def nearest(self, wanted: NDArray[np.bool_]) -> Longs:
        """For each row the innermost of itself and its ancestors that is wanted; -1 if none."""
        found = np.where(wanted, np.arange(wanted.size), NONE)
        for level in self.levels[1:]:
            rows = level[found[level] == NONE]
            found[rows] = found[self.parent[rows]]
        return found

    def outermost(self, wanted: NDArray[np.bool_]) -> Longs:
        """For each row the outermost of itself and its ancestors that is wanted; -1 if none."""
        found = np.where(wanted, np.arange(wanted.size), NONE)
        for level in self.levels[1:]:
            above = found[self.parent[level]]
            found[level] = np.where(above != NONE, above, found[level])
        return found

    @cached_property
    def has_child(self) -> NDArray[np.bool_]:
        marked = np.zeros(self.parent.size, dtype=bool)
        marked[self.parent[self.parent >= 0]] = True
        return marked


def nest(start: Longs, end: Longs, thread: NDArray[np.int32]) -> Forest:
    """Nest rows that are ordered by start, the longer first, each within its thread.

    Touching rows are neighbours; a row of no length lies inside what begins with it.
    """
    parent = np.full(start.size, NONE, dtype=np.int32)
    depth = np.zeros(start.size, dtype=np.int32)
    order = np.argsort(thread, kind="stable")
    bounds = np.flatnonzero(np.diff(thread[order])) + 1
    for rows in np.split(order, bounds):
        if rows.size:
            parent[rows], depth[rows] = _nest_thread(rows, start[rows], end[rows])
    return Forest(parent, depth)


def _nest_thread(
    rows: NDArray[np.intp], start: Longs, end: Longs
) -> tuple[Longs, NDArray[np.int32]]:
    """Depth is how many began before and have not ended; the parent is the last one less deep."""
    position = np.arange(start.size, dtype=np.int64)
    # Doubled times leave room to put an end before a start at the same time, but not before the
    # start of the row itself.
    ends = np.sort(np.where(end > start, 2 * end - 1, 2 * end))
    depth = position - np.searchsorted(ends, 2 * start, side="left")
    order = np.argsort(depth, kind="stable")
    keys = depth[order] * start.size + position[order]
    at = np.searchsorted(keys, (depth - 1) * start.size + position) - 1
    local = np.where(depth > 0, order[np.maximum(at, 0)], NONE)
    inside = (local == NONE) | (end[local] > start) | ((end[local] == start) & (end == start))
    if not bool(inside.all()):
        local, depth = _nest_by_stack(start, end)
    return np.where(local == NONE, NONE, rows[local]), depth.astype(np.int32)


def _nest_by_stack(start: Longs, end: Longs) -> tuple[Longs, Longs]:
    """The same one row at a time, for threads whose rows overlap without nesting."""
    parent, depth = np.full(start.size, NONE, dtype=np.int64), np.zeros(start.size, dtype=np.int64)
    finish = np.where(end > start, 2 * end - 1, 2 * end).tolist()
    stack: list[tuple[int, int]] = []
    for row, begin in enumerate(start.tolist()):
        while stack and stack[-1][0] < 2 * begin:
            stack.pop()
        if stack:
            parent[row], depth[row] = stack[-1][1], len(stack)
        stack.append((finish[row], row))
    return parent, depth


def union(start: Longs, end: Longs) -> tuple[Longs, Longs]:
    """Starts and ends of the merged intervals, in order; rows of no length vanish."""
    keep = end > start
    start, end = start[keep], end[keep]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not start.size:
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def total(start: Longs, end: Longs) -> int:
    """Length of the union."""
    starts, ends = union(start, end)
    return int((ends - starts).sum())


def covered(start: Longs, end: Longs, by_start: Longs, by_end: Longs) -> Longs:
    """For each interval how much of it the (merged, ordered) intervals `by` cover."""
    if not by_start.size:
        return np.zeros(start.size, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(by_end - by_start)])

    def up_to(time: Longs) -> Longs:
        at = np.searchsorted(by_start, time, side="right")
        reached: Longs = before[at] - np.where(
            at > 0, np.maximum(by_end[np.maximum(at - 1, 0)] - time, 0), 0
        )
        return reached

    return up_to(end) - up_to(start)


def lookup(keys: Longs, wanted: Longs) -> Longs:
    """Position in `keys` of the last row with each wanted key; -1 where there is none."""
    if not keys.size:
        return np.full(wanted.size, NONE, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.searchsorted(ordered, wanted, side="right") - 1
    hit = (at >= 0) & (ordered[np.maximum(at, 0)] == wanted) & (wanted >= 0)
    return np.where(hit, order[np.maximum(at, 0)], NONE)


def take(values: Longs, at: Longs) -> Longs:
    """`values[at]`, and -1 where `at` is -1; `values` may be empty."""
    if not values.size:
        return np.full(at.shape, NONE, dtype=values.dtype)
    # -1 is a valid index too: gather all, then put the misses right.
    taken: Longs = values[at]
    taken[at == NONE] = NONE
    return taken


def merged_times(*runs: Longs) -> Longs:
    """The distinct times of several ordered runs, in order. A stable sort merges runs in nearly
    linear time where numpy's own `unique` would sort from scratch."""
    times = np.sort(np.concatenate(runs), kind="stable")
    if not times.size:
        return times
    distinct: Longs = times[np.concatenate([[True], times[1:] != times[:-1]])]
    return distinct
