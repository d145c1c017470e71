"""The order of nodes of a replay that ran on several streams: on each stream they run in the order
of capture, so what is open is how the streams interleave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import Longs

Scores = NDArray[np.float64]


def merge_streams(scores: Scores, stream: Longs) -> Longs:
    """For each node of the capture the row of the replay that fits best. `scores[node, row]` says
    how well they fit; rows are in order of start, and keep it on each stream."""
    lanes = [np.flatnonzero(stream == number) for number in np.unique(stream)]
    if len(lanes) == 2:
        return _merge_two(scores, lanes[0], lanes[1])
    return _merge_greedily(scores, lanes)


def _merge_two(scores: Scores, one: Longs, two: Longs) -> Longs:
    """The best of all interleavings; among equals the one nearest to the order of start."""
    from_one = _interleavings(scores, one, two)
    order = np.empty(one.size + two.size, dtype=np.int64)
    taken = one.size
    for node in range(order.size - 1, -1, -1):
        if from_one[node, taken]:
            taken -= 1
            order[node] = one[taken]
        else:
            order[node] = two[node - taken]
    return order


def _interleavings(scores: Scores, one: Longs, two: Longs) -> NDArray[np.bool_]:
    """For each node, and each number of rows that the first stream gave until then, whether that
    stream gave the node in the best interleaving."""
    size = one.size + two.size
    best = np.full(one.size + 1, -np.inf)
    best[0] = 0.0
    from_one = np.zeros((size, one.size + 1), dtype=bool)
    counts = np.arange(one.size + 1)
    for node in range(size):
        left = node - counts  # rows the second stream gave before this node
        take_two = np.where(
            (left >= 0) & (left < two.size),
            best + scores[node, two[np.clip(left, 0, two.size - 1)]],
            -np.inf,
        )
        take_one = np.concatenate([[-np.inf], best[:-1] + scores[node, one]])
        # A row that started later than the other stream's next one comes last among equals.
        other = two[np.clip(left, 0, two.size - 1)]
        mine = np.concatenate([[0], one])
        tie = (take_one == take_two) & (mine > other)
        from_one[node] = (take_one > take_two) | tie
        best = np.maximum(take_one, take_two)
    return from_one


def _merge_greedily(scores: Scores, lanes: list[Longs]) -> Longs:
    """At each node the stream whose next row fits best, the earliest among equals."""
    at = [0] * len(lanes)
    order = []
    for node in range(sum(lane.size for lane in lanes)):
        heads = [
            (lane[place], number)
            for number, (lane, place) in enumerate(zip(lanes, at, strict=True))
            if place < lane.size
        ]
        row, number = max(heads, key=lambda head: (scores[node, head[0]], -head[0]))
        order.append(int(row))
        at[number] += 1
    return np.array(order, dtype=np.int64)
