"""Waiting apart from sending, for each collective and rank.

The last to enter a collective never waits in it: its duration is the time on the wire. What the
others spent beyond that, they waited. Differences within the residual of the alignment are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.ranks.match import Calls, JoinedLane, all_calls
from tracer.rank_analysis import Alignment, RankSummary, RowStore

# The ranks entered a window apart when they waited so many times longer in its first call than in
# the calls after it.
_APART = 3.0
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Arrivals:
    """Calls of a lane with who came when. Arrays have a row a rank and a column a call, or a value
    a call. compared: two or more aligned ranks have it. last: place of the last rank, -1 where it
    was last by no more than the residual; margin_ns: how long all others had been there."""

    calls: Calls
    compared: NDArray[np.bool_]
    wait_ns: Longs
    wire_ns: Longs
    last: Longs
    margin_ns: Longs
    late_ns: Longs  # of each rank: after the middle rank of the call
    entered: NDArray[np.bool_]  # the first call of a window, which ranks enter as they begin
    all_stayed: NDArray[np.bool_]  # nobody had left before the last one came

    def lost_ns(self, place: int) -> Longs:
        """What a rank that computes and sends with the same cores waited in each call, as far as it
        had nothing to compute beside it; -1 as in wait_ns."""
        lost: Longs = np.minimum(self.wait_ns[place], self.calls.take("exposed_ns")[place])
        return lost

    def exposed_of_others(self, place: int) -> Longs:
        """In each call for how long another rank than this, at most, had nothing to compute."""
        others = self.calls.present.copy()
        others[place] = False
        exposed: Longs = np.where(others, self.calls.take("exposed_ns"), 0).max(axis=0)
        return exposed

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Calls that count as evidence for a late rank."""
        return self.compared & ~self.entered


def arrivals(
    lane: JoinedLane, store: RowStore, alignment: Alignment, first: bool
) -> Iterator[Arrivals]:
    """The calls of a lane, a piece at a time. `first`: its first call begins the window. Where a
    rank is in several at once, it waits once."""
    residuals = {
        rank: max(alignment.residual_ns or 0, alignment.residuals_ns.get(rank, 0))
        for rank in lane.ranks
    }
    begins = first
    reach = np.full(len(lane.ranks), _NEVER, dtype=np.int64)
    for calls in all_calls(lane, store):
        found = compare(calls, alignment, residuals, begins)
        if found.entered.any():
            begins = False
            if not _entered_apart(found):
                found = compare(calls, alignment, residuals, begins)
        yield replace(found, wait_ns=_waited_once(found, reach))


def _waited_once(found: Arrivals, reach: Longs) -> Longs:
    """What each rank waited in each call and had not waited already in one beside it, as in buckets
    of gradients that the threads of a library send together. `reach`: until when each rank is known
    to have waited, moved on."""
    once, start = found.wait_ns.copy(), found.calls.take("start_ns")
    for place, waits in enumerate(found.wait_ns):
        rows = np.flatnonzero(waits > 0)
        rows = rows[np.argsort(start[place][rows], kind="stable")]
        begin, end = start[place][rows], (start[place] + waits)[rows]
        before = np.maximum.accumulate(np.concatenate([reach[place : place + 1], end]))
        once[place][rows] = (end - np.maximum(begin, before[:-1])).clip(0)
        reach[place] = before[-1]
    return once


def _entered_apart(found: Arrivals) -> bool:
    """Whether the call that began the window was waited in far longer than those after it."""
    longest = np.where(found.compared, found.wait_ns.max(axis=0), NONE)
    later = longest[found.compared & ~found.entered]
    return later.size == 0 or int(longest[found.entered].max()) > _APART * float(np.median(later))


def compare(
    calls: Calls, alignment: Alignment, residuals: Mapping[int, int], begins: bool
) -> Arrivals:
    """Who waited how long in these calls."""
    known = np.array([rank in alignment.clocks for rank in calls.ranks], dtype=bool)
    present = calls.present & known[:, None]
    start = _aligned(calls, alignment, "start_ns")
    length = calls.take("end_ns") - calls.take("start_ns")
    residual = np.array([residuals[rank] for rank in calls.ranks], dtype=np.int64)[:, None]
    compared = present.sum(axis=0) > 1
    entry = np.where(present, start, _NEVER)
    last = entry.argmax(axis=0)
    latest = entry.max(axis=0)
    behind = latest[None, :] - start
    # Ranks that came within the residual of the last one are as late as it is.
    tied = present & (behind <= residual)
    wire = np.where(tied, length, np.iinfo(np.int64).max).min(axis=0)
    # Who had left before the last one came did not wait for it, as the root of a broadcast may.
    stayed = start + length > latest[None, :]
    waits = present & ~tied & stayed & (length > wire[None, :]) & compared[None, :]
    wait = np.where(waits, length - wire[None, :], 0)
    margin = latest - _second(entry, last)
    alone = compared & (margin > residual[last, 0])
    return Arrivals(
        calls,
        compared,
        np.where(present & compared, wait, NONE),
        np.where(present & compared, length - wait, NONE),
        np.where(alone, last, NONE),
        np.where(alone, margin, 0),
        np.where(present, start - _middle(entry, present), 0),
        _first_compared(compared, begins),
        (stayed | ~present).all(axis=0),
    )


def _aligned(calls: Calls, alignment: Alignment, name: str) -> Longs:
    times = calls.take(name)
    rows = [
        alignment.clocks[rank].aligned(times[place]) if rank in alignment.clocks else times[place]
        for place, rank in enumerate(calls.ranks)
    ]
    return np.stack(rows)


def _second(entry: Longs, last: Longs) -> Longs:
    """When all but the last had entered."""
    others = entry.copy()
    others[last, np.arange(last.size)] = _NEVER
    second: Longs = others.max(axis=0)
    return np.where(second == _NEVER, entry.max(axis=0), second)


def _middle(entry: Longs, present: NDArray[np.bool_]) -> Longs:
    """When the middle rank of each call entered, the earlier of two."""
    count = present.sum(axis=0)
    absent = entry.shape[0] - count
    place = np.minimum(absent + np.maximum(count - 1, 0) // 2, entry.shape[0] - 1)
    found: Longs = np.take_along_axis(np.sort(entry, axis=0), place[None, :], axis=0)[0]
    return found


def _first_compared(compared: NDArray[np.bool_], begins: bool) -> NDArray[np.bool_]:
    entered = np.zeros(compared.size, dtype=bool)
    if begins and compared.any():
        entered[int(compared.argmax())] = True
    return entered


def begins_window(
    lanes: Sequence[JoinedLane], summaries: Mapping[int, RankSummary], store: RowStore
) -> dict[str, bool]:
    """Whether the first call of each lane is where its ranks first meet in the window: no lane that
    holds all of them has a call that ended before."""
    first = {lane.key: _first_start(lane, store) for lane in lanes}
    by_rank: dict[int, list[JoinedLane]] = {}
    for lane in lanes:
        for rank in lane.ranks:
            by_rank.setdefault(rank, []).append(lane)
    answers: dict[str, bool] = {}
    for lane in lanes:
        ranks = set(lane.ranks)
        anchor = min(ranks, default=NONE)
        wider = [
            other
            for other in by_rank.get(anchor, [])
            if other.key != lane.key and ranks.issubset(other.ranks)
        ]
        mine = first[lane.key].get(anchor, 0)
        answers[lane.key] = not any(_ended_before(o, first[o.key], anchor, mine) for o in wider)
    return answers


def _first_start(lane: JoinedLane, store: RowStore) -> dict[int, int]:
    anchor = min(lane.ranks, default=NONE)
    starts: dict[int, int] = {}
    for rank in {anchor, *lane.ranks} - {NONE}:
        own = lane.lanes[rank]
        if own.count:
            starts[rank] = int(store.rows(rank, own.first, own.first + 1)["start_ns"][0])
    return starts


def _ended_before(lane: JoinedLane, first: Mapping[int, int], anchor: int, time: int) -> bool:
    return anchor in first and first[anchor] < time and lane.lanes[anchor].count > 0
