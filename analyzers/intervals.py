"""Arithmetic of time intervals on numpy columns: nesting, unions, overlaps, shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Times are 64 bits; row numbers may be 32.
Longs = NDArray[np.signedinteger[Any]]
NONE = -1


Rows = NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Forest:
    """Who contains whom: `parent` and `depth` of each row, -1 and 0 for a root. What a row contains
    stands right behind it."""

    parent: Rows
    depth: Longs

    @cached_property
    def stop(self) -> Rows:
        """The first row behind each one and all that it contains."""
        stop = np.full(self.parent.size, self.parent.size, dtype=np.int32)
        for level in _levels(self.depth):
            stop[level[:-1]] = level[1:]
            inside = level[self.parent[level] != NONE]
            stop[inside] = np.minimum(stop[inside], stop[self.parent[inside]])
        return stop

    def around(self, rows: Longs, wanted: NDArray[np.bool_]) -> Rows:
        """The innermost wanted row around each of these, itself not counted; -1 if none."""
        found = self.parent[rows]
        left = np.flatnonzero(_misses(found, wanted))
        while left.size:
            found[left] = self.parent[found[left]]
            left = left[_misses(found[left], wanted)]
        return found

    def nearest(self, wanted: NDArray[np.bool_]) -> Rows:
        """For each row the innermost of itself and its ancestors that is wanted; -1 if none."""
        rows = np.flatnonzero(wanted)
        return self._spread(rows, self.around(rows, wanted))

    def outermost(self, wanted: NDArray[np.bool_]) -> Rows:
        """For each row the outermost of itself and its ancestors that is wanted; -1 if none."""
        rows = np.flatnonzero(wanted)
        reach = np.maximum.accumulate(self.stop[rows])
        rows = rows[np.append(True, rows[1:] >= reach[:-1])] if rows.size else rows
        return self._spread(rows, np.full(rows.size, NONE, dtype=np.int32))

    def _spread(self, rows: Longs, around: Rows) -> Rows:
        """Each of these rows over itself and what it contains; from its end on what is `around`."""
        size = self.parent.size
        begins = np.zeros(size + 1, dtype=bool)
        value = np.full(size + 1, NONE, dtype=np.int32)
        # Of several that end at one place the outermost says what follows, unless a row begins.
        stop = self.stop[rows][::-1]
        value[stop], begins[stop] = around[::-1], True
        value[rows], begins[rows] = rows, True
        found = value[:size]
        for part in blocks(size):
            if part.start and not begins[part.start]:
                found[part.start] = found[part.start - 1]
            begins[part.start] = True
            at = np.flatnonzero(begins[part])
            found[part] = np.repeat(found[part][at], np.diff(at, append=part.stop - part.start))
        return found

    @cached_property
    def has_child(self) -> NDArray[np.bool_]:
        marked = np.zeros(self.parent.size, dtype=bool)
        marked[self.parent[self.parent >= 0]] = True
        return marked


def _misses(found: Rows, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    missing: NDArray[np.bool_] = (found != NONE) & ~wanted[found]
    return missing


def nest(start: Longs, end: Longs, thread: NDArray[np.int32]) -> Forest:
    """Nest rows that are ordered by thread, then by start, the longer first, each within its
    thread.

    The parent is the last row before that has not ended. Touching rows are neighbours; a row of no
    length lies inside what begins with it.
    """
    # Doubled times leave room to put an end before a start at the same time, but not before the
    # start of the row itself.
    begin, finish = 2 * start, np.where(end > start, 2 * end - 1, 2 * end)
    parent = np.arange(-1, start.size - 1, dtype=np.int32)
    first = np.append(True, thread[1:] != thread[:-1])[: start.size]
    parent[first] = NONE
    left = np.flatnonzero((finish[:-1] < begin[1:]) & ~first[1:]).astype(np.int32) + 1
    at, begin = parent[left], begin[left]
    while left.size:
        # What ended before the row before began has ended, too: on to the one that holds it.
        at = parent.take(at)
        parent[left] = at
        ended = np.flatnonzero((finish.take(at) < begin) & (at != NONE))
        left, at, begin = left.take(ended), at.take(ended), begin.take(ended)
    return Forest(parent, _depths(parent))


def _depths(parent: Rows) -> Longs:
    """How many rows lie around each one, counted in steps that double."""
    depth: Rows = (parent != NONE).astype(np.int32)
    above = parent.copy()
    left = np.flatnonzero(above != NONE)
    while left.size:
        holder = above.take(left)
        depth[left], above[left] = depth.take(left) + depth.take(holder), above.take(holder)
        left = left[above.take(left) != NONE]
    # Numbers of 16 bits take half the memory, and are sorted by counting them.
    return depth.astype(np.int16) if depth.max(initial=0) <= np.iinfo(np.int16).max else depth


def _levels(depth: Longs) -> list[Rows]:
    """Rows by depth, the roots first."""
    order = np.argsort(depth, kind="stable").astype(np.int32)
    return np.split(order, np.cumsum(np.bincount(depth))[:-1])


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


def nowhere(size: int) -> Rows:
    """-1 for so many rows, which take no memory and cannot be written."""
    return np.broadcast_to(np.int32(NONE), size)


def lean(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask that is kept. Most of what is asked for does not occur in a recording, and one that
    marks nothing need not take memory; it cannot be written then."""
    return mask if mask.any() else np.broadcast_to(np.False_, mask.size)


def take(values: Longs, at: Longs) -> Longs:
    """`values[at]`, and -1 where `at` is -1; `values` may be empty."""
    if not values.size:
        return np.full(at.shape, NONE, dtype=values.dtype)
    # -1 is a valid index too: gather all, then put the misses right.
    taken: Longs = values[at]
    taken[at == NONE] = NONE
    return taken


def blocks(size: int) -> Iterator[slice]:
    """All rows of a table, a few at a time: what is made of them on the way then stays small."""
    return (slice(begin, min(begin + _BLOCK, size)) for begin in range(0, size, _BLOCK))


_BLOCK = 1 << 16


def packed(values: NDArray[Scalar], keep: NDArray[np.bool_]) -> NDArray[Scalar]:
    """The kept values, moved to the front of the memory in which they stand."""
    count = 0
    for rows in blocks(keep.size):
        kept = values[rows][keep[rows]]
        values[count : count + kept.size] = kept
        count += kept.size
    return values[:count]


def places_between(first: Longs, last: Longs) -> tuple[Rows, Rows]:
    """The places from each first up to its last, itself not counted, and whose each one is."""
    counts = last - first
    of = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
    before = (first - np.cumsum(counts) + counts).astype(np.int32)
    return np.arange(of.size, dtype=np.int32) + before[of], of


def distinct(*columns: NDArray[Any]) -> tuple[Longs, Longs]:
    """The distinct tuples of some columns in order, each by the first row that has it, and for each
    row which of them it has. One number for a tuple sorts far sooner than the tuple."""
    key: NDArray[np.int64] = np.zeros(columns[0].size, dtype=np.int64)
    width = 1
    for column in columns:
        values = column.astype(np.int64)
        low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
        if width * (high - low + 1) > _MOST_KEYS:
            key, values = (np.unique(v, return_inverse=True)[1] for v in (key, values))
            low, high, width = 0, int(values.max()), int(key.max()) + 1
        key, width = key * (high - low + 1) + (values - low), width * (high - low + 1)
    if width > _SPARSE * key.size:
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        return first, of
    row_of = np.full(width, NONE, dtype=np.int64)
    row_of[key[::-1]] = np.arange(key.size - 1, -1, -1)  # the last write wins: the first row
    held = row_of != NONE
    return row_of[held], (np.cumsum(held) - 1)[key]


# So many numbers for each row are a table sooner than they are sorted.
_SPARSE = 4
_MOST_KEYS = 2**62


def merged_times(*runs: Longs) -> Longs:
    """The distinct times of several ordered runs, in order. A stable sort merges runs in nearly
    linear time where numpy's own `unique` would sort from scratch."""
    times = np.sort(np.concatenate(runs), kind="stable")
    if not times.size:
        return times
    distinct: Longs = times[np.concatenate([[True], times[1:] != times[:-1]])]
    return distinct
