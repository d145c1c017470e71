"""Nesting, unions and coverage against plain reference code."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs, covered, distinct, lookup, nest, total, union


def random_nested(seed: int, size: int) -> tuple[Longs, Longs]:
    """Properly nested intervals with touching neighbours and rows of no length."""
    random = np.random.default_rng(seed)
    rows: list[tuple[int, int]] = []

    def fill(begin: int, end: int, depth: int) -> None:
        cuts = sorted(random.integers(begin, end + 1, 6).tolist())
        for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
            rows.append((start, stop))
            if depth and stop - start > 3:
                fill(start, stop, depth - 1)

    while len(rows) < size:
        begin = max((stop for _, stop in rows), default=0)
        fill(begin, begin + 1000, 4)
    rows.sort(key=lambda r: (r[0], -r[1]))
    return np.array([r[0] for r in rows]), np.array([r[1] for r in rows])


def on_threads(seed: int) -> tuple[Longs, Longs, NDArray[np.int32]]:
    """The same on three threads, thread by thread."""
    start, end = random_nested(seed, 300)
    thread = np.random.default_rng(seed).integers(0, 3, start.size).astype(np.int32)
    order = np.argsort(thread, kind="stable")
    return start[order], end[order], thread[order]


def climbs(parent: list[int]) -> list[list[int]]:
    """Each row and what lies around it, innermost first."""
    chains: list[list[int]] = []
    for row, above in enumerate(parent):
        chains.append([row, *(chains[above] if above >= 0 else [])])
    return chains


def nested_by_stack(start: Longs, end: Longs) -> tuple[list[int], list[int]]:
    """Parent and depth of the rows of one thread, one row at a time."""
    parent, depth = [NONE] * start.size, [0] * start.size
    finish = np.where(end > start, 2 * end - 1, 2 * end).tolist()
    stack: list[tuple[int, int]] = []
    for row, begin in enumerate(start.tolist()):
        while stack and stack[-1][0] < 2 * begin:
            stack.pop()
        if stack:
            parent[row], depth[row] = stack[-1][1], len(stack)
        stack.append((finish[row], row))
    return parent, depth


@pytest.mark.parametrize("seed", range(8))
def test_nesting_agrees_with_a_stack(seed: int) -> None:
    start, end, thread = on_threads(seed)
    forest = nest(start, end, thread)
    for one in range(3):
        rows = np.flatnonzero(thread == one)
        parent, depth = nested_by_stack(start[rows], end[rows])
        assert [rows[p] if p != NONE else NONE for p in parent] == forest.parent[rows].tolist()
        assert depth == forest.depth[rows].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_what_lies_around_agrees_with_a_climb(seed: int) -> None:
    forest = nest(*on_threads(seed))
    wanted = np.random.default_rng(seed).random(forest.parent.size) < seed / 8
    chains = [[row for row in chain if wanted[row]] for chain in climbs(forest.parent.tolist())]
    assert forest.nearest(wanted).tolist() == [chain[0] if chain else -1 for chain in chains]
    assert forest.outermost(wanted).tolist() == [chain[-1] if chain else -1 for chain in chains]


@pytest.mark.parametrize("seed", range(8))
def test_what_a_row_contains_stands_right_behind_it(seed: int) -> None:
    forest = nest(*on_threads(seed))
    holders = climbs(forest.parent.tolist())
    for row, stop in enumerate(forest.stop.tolist()):
        inside = [other for other, chain in enumerate(holders) if row in chain]
        assert inside == list(range(row, stop))


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_overlap_lie_in_the_last_that_has_not_ended(seed: int) -> None:
    random = np.random.default_rng(seed)
    start, length = random.integers(0, 400, 200), random.integers(0, 60, 200)
    order = np.lexsort((-length, start))
    start, end = start[order], (start + length)[order]
    forest = nest(start, end, np.zeros(start.size, dtype=np.int32))
    assert (forest.parent.tolist(), forest.depth.tolist()) == nested_by_stack(start, end)


@pytest.mark.parametrize("far", [1, 2**40, 2**62])
def test_distinct_tuples_are_those_of_numpy(far: int) -> None:
    random = np.random.default_rng(far % 7)
    columns = [random.integers(-1, 3, 50), far * random.integers(-1, 2, 50), np.arange(50) % 4]
    first, of = distinct(*columns)
    rows, places = np.unique(np.stack(columns), axis=1, return_inverse=True)
    assert [[int(c[row]) for c in columns] for row in first] == rows.T.tolist()
    assert of.tolist() == places.reshape(-1).tolist()


def test_nearest_and_outermost_of_the_wanted() -> None:
    start, end = np.array([0, 1, 2, 3, 50]), np.array([40, 30, 20, 10, 60])
    forest = nest(start, end, np.zeros(5, dtype=np.int32))
    wanted = np.array([True, True, False, False, False])
    assert forest.nearest(wanted).tolist() == [0, 1, 1, 1, -1]
    assert forest.outermost(wanted).tolist() == [0, 0, 0, 0, -1]
    assert forest.has_child.tolist() == [True, True, True, False, False]


def test_union_merges_touching_and_drops_empty() -> None:
    start, end = np.array([5, 0, 10, 30, 40]), np.array([8, 5, 20, 30, 50])
    merged = union(start, end)
    assert [column.tolist() for column in merged] == [[0, 10, 40], [8, 20, 50]]
    assert total(start, end) == 28


def test_covered_measures_the_part_under_others() -> None:
    busy = union(np.array([0, 20]), np.array([10, 30]))
    part = covered(np.array([0, 5, 12, 25]), np.array([40, 25, 18, 26]), *busy)
    assert part.tolist() == [20, 10, 0, 1]


def test_lookup_takes_the_last_row_of_a_key() -> None:
    keys = np.array([7, 3, 7, -1])
    assert lookup(keys, np.array([7, 3, 5, -1])).tolist() == [2, 1, -1, -1]
    assert lookup(np.zeros(0, dtype=np.int64), np.array([1])).tolist() == [-1]
