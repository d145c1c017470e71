"""Which collective of one rank is which of another: lanes joined by key, calls by order.

Calls of a lane are matched by their recorded sequence number; where none was recorded, the k-th
with the k-th, moved by what makes operations and ends agree when a rank recorded more or fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs
from tracer.rank_analysis import ROW, Lane, RankSummary, Rows, RowStore

# Calls that are looked at together: at most so many, and so many over all ranks.
CHUNK, CHUNK_ROWS = 1024, 1 << 18
# Rows at each end of a lane that alignment looks at.
SAMPLE = 256
# A rank may have recorded so many calls more before the others began.
_MOST_SHIFT = 12
# Operations of the same calls agree in at least this share.
_AGREEING = 0.9
# Calls of one group end within this share of the time between two calls, or within this time.
_TOGETHER, _TOGETHER_NS = 0.05, 20_000
# With fewer calls than this no shift can be told by their ends.
_FEW = 8
# A shift is better when ends then agree so many times more closely; below the floor all are equal.
_CLOSER, _FLOOR_NS = 4.0, 500.0


@dataclass(frozen=True)
class JoinedLane:
    """A lane on all ranks that have it. shift: what to add to a position of the first rank's to get
    that of a rank; ranks without a match are in `strangers`."""

    key: str
    lanes: Mapping[int, Lane]
    shift: Mapping[int, int] = field(default_factory=dict)
    strangers: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The ranks that are matched, in order."""
        return sorted(rank for rank in self.lanes if rank not in self.strangers)

    @property
    def numbered(self) -> bool:
        """Whether all ranks recorded sequence numbers."""
        return all(lane.numbered for lane in self.lanes.values())

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the group, as recorded; of the lane where nothing was."""
        return next((lane.members for lane in self.lanes.values() if lane.members), ()) or tuple(
            self.ranks
        )


@dataclass(frozen=True)
class Calls:
    """Some calls of a lane on all its ranks: one row a rank, one column a call; -1 where a rank
    does not have it. `row`: which row of the rank it is."""

    ranks: list[int]
    row: Longs
    values: Rows

    def take(self, name: str) -> Longs:
        """One field."""
        taken: Longs = self.values[name].astype(np.int64)
        return taken

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each rank has each call."""
        found: NDArray[np.bool_] = self.row != NONE
        return found


def join_lanes(summaries: Mapping[int, RankSummary], store: RowStore) -> list[JoinedLane]:
    """The lanes that two or more ranks have, each rank's calls matched to the others'."""
    found: dict[str, dict[int, Lane]] = {}
    for rank in sorted(summaries):
        for lane in summaries[rank].lanes:
            found.setdefault(lane.key, {})[rank] = lane
    joined: list[JoinedLane] = []
    for key, lanes in found.items():
        if _can_meet(key, lanes):
            joined += (
                _split(key, lanes, store) if key.startswith("||") else [_matched(key, lanes, store)]
            )
    return joined


def _can_meet(key: str, lanes: Mapping[int, Lane]) -> bool:
    """Sends and receives without a peer are told apart only between two ranks."""
    if key.endswith("send_recv "):
        return len(lanes) == 2 and all(len(lane.members) in (0, 2) for lane in lanes.values())
    return len(lanes) > 1


def _matched(key: str, lanes: Mapping[int, Lane], store: RowStore) -> JoinedLane:
    """A lane of a known group."""
    if all(lane.numbered for lane in lanes.values()):
        return JoinedLane(key, lanes, dict.fromkeys(lanes, 0))
    fits = _fits(lanes, store)
    shifts = {rank: fit.shift for rank, fit in fits.items() if fit is not None}
    return JoinedLane(key, lanes, shifts, tuple(rank for rank in lanes if rank not in shifts))


def _split(key: str, lanes: Mapping[int, Lane], store: RowStore) -> list[JoinedLane]:
    """A lane of no known group: ranks whose calls end together are one group."""
    parts: list[JoinedLane] = []
    left = dict(lanes)
    while len(left) > 1:
        fits = _fits(left, store)
        shifts = {rank: f.shift for rank, f in fits.items() if f is not None and f.together}
        if len(shifts) > 1:
            name = key if not parts else f"{key} #{len(parts) + 1}"
            parts.append(JoinedLane(name, {rank: left[rank] for rank in shifts}, shifts))
        left = {rank: lane for rank, lane in left.items() if rank not in shifts}
    return parts


@dataclass(frozen=True)
class _Fit:
    """How the calls of a rank lie beside the reference's. together: ends differ by little beside
    the time from one call to the next."""

    shift: int
    spread_ns: float
    together: bool


def _fits(lanes: Mapping[int, Lane], store: RowStore) -> dict[int, _Fit | None]:
    """The best fit of each rank to the first one with the usual number of calls."""
    reference = _reference(lanes)
    pattern = _sample_rows(store, reference, lanes[reference])
    fits: dict[int, _Fit | None] = {reference: _Fit(0, 0.0, True)}
    for rank, lane in lanes.items():
        if rank != reference:
            difference = lane.count - lanes[reference].count
            fits[rank] = _best_fit(pattern, _sample_rows(store, rank, lane), difference)
    return fits


def _reference(lanes: Mapping[int, Lane]) -> int:
    counts = [lane.count for lane in lanes.values()]
    usual = max(set(counts), key=lambda count: (counts.count(count), count))
    return next(rank for rank, lane in lanes.items() if lane.count == usual)


def _sample_rows(store: RowStore, rank: int, lane: Lane) -> Rows:
    return store.rows(rank, lane.first, lane.first + min(lane.count, 2 * SAMPLE))


def _best_fit(reference: Rows, rows: Rows, difference: int) -> _Fit | None:
    """The fit under the best shift; None when the operations are others under any."""
    fits = [fit for s in _shifts(reference, rows, difference) if (fit := _fit(reference, rows, s))]
    if not fits:
        return None
    kept = next((fit for fit in fits if fit.shift == 0), None)
    # As many calls on both sides that end together are the same calls, however regular they are.
    if kept is not None and kept.together and not difference:
        return kept
    best = min(fits, key=lambda fit: (max(fit.spread_ns, _FLOOR_NS), abs(fit.shift)))
    near = kept is not None and kept.spread_ns <= _CLOSER * max(best.spread_ns, _FLOOR_NS)
    return kept if near else best


def _shifts(reference: Rows, rows: Rows, difference: int) -> list[int]:
    """Shifts worth a look: a few calls that only one side recorded, at either end."""
    if min(reference.size, rows.size) < _FEW:
        return sorted({0, difference}) if difference else [0]
    near = range(
        min(0, max(difference, -_MOST_SHIFT)) - 1, max(0, min(difference, _MOST_SHIFT)) + 2
    )
    return sorted({0, difference, *near, *_by_clock(reference, rows)})


def _by_clock(reference: Rows, rows: Rows) -> list[int]:
    """The shift under which the first ends coincide, where the clocks agree."""
    if not rows.size or not reference.size:
        return []
    ahead = int(np.abs(reference["end_ns"] - rows["end_ns"][0]).argmin())
    behind = int(np.abs(rows["end_ns"] - reference["end_ns"][0]).argmin())
    return [-ahead, behind]


def _fit(reference: Rows, rows: Rows, shift: int) -> _Fit | None:
    """How the ends lie under this shift; None when the operations are others."""
    one, other = _overlap(reference, rows, shift)
    enough = one.size >= min(reference.size, rows.size, _FEW) / 2
    if not enough or np.mean(one["like"] == other["like"]) < _AGREEING:
        return None
    if one.size < 3:
        return _Fit(shift, 0.0 if shift == 0 else np.inf, True)
    spread = _spread(other["end_ns"] - one["end_ns"], one["end_ns"])
    pace = float(np.median(np.diff(one["end_ns"])))
    return _Fit(shift, spread, spread <= max(_TOGETHER * pace, _TOGETHER_NS))


def _overlap(reference: Rows, rows: Rows, shift: int) -> tuple[Rows, Rows]:
    begin, end = max(0, -shift), min(reference.size, rows.size - shift)
    if end <= begin:
        return reference[:0], rows[:0]
    return reference[begin:end], rows[begin + shift : end + shift]


def _spread(difference: Longs, time: Longs) -> float:
    """The median distance of differences from a line through them."""
    moved = (difference - np.median(difference)).astype(np.float64)
    elapsed = (time - time[0]).astype(np.float64)
    if difference.size > 8 and elapsed[-1] > 0:
        half = difference.size // 2
        rise = np.median(moved[half:]) - np.median(moved[:half])
        run = np.median(elapsed[half:]) - np.median(elapsed[:half])
        moved = moved - (rise / run if run > 0 else 0.0) * elapsed
    return float(np.median(np.abs(moved - np.median(moved))))


# --- reading -------------------------------------------------------------------------------------


def all_calls(lane: JoinedLane, store: RowStore) -> Iterator[Calls]:
    """The calls of a lane in order, a piece at a time."""
    bounds = _bounds(lane, store)
    chunk = max(16, min(CHUNK, CHUNK_ROWS // max(len(lane.ranks), 1)))
    if bounds is None:
        return
    for begin in range(bounds[0], bounds[1], chunk):
        yield read_calls(lane, store, begin, min(begin + chunk, bounds[1]))


def sampled_calls(lane: JoinedLane, store: RowStore) -> Calls | None:
    """Calls from the beginning and the end of a lane."""
    bounds = _bounds(lane, store)
    if bounds is None:
        return None
    begin, end = bounds
    if end - begin <= 2 * SAMPLE:
        return read_calls(lane, store, begin, end)
    head = read_calls(lane, store, begin, begin + SAMPLE)
    tail = read_calls(lane, store, end - SAMPLE, end)
    return Calls(
        head.ranks,
        np.concatenate([head.row, tail.row], axis=1),
        np.concatenate([head.values, tail.values], axis=1),
    )


def _bounds(lane: JoinedLane, store: RowStore) -> tuple[int, int] | None:
    """The first ordinal and the one after the last, over all ranks."""
    ends: list[tuple[int, int]] = []
    for rank in lane.ranks:
        own = lane.lanes[rank]
        if not own.count:
            continue
        first, last = 0, own.count - 1
        if lane.numbered:
            first = int(store.rows(rank, own.first, own.first + 1)["ordinal"][0])
            last = int(
                store.rows(rank, own.first + own.count - 1, own.first + own.count)["ordinal"][0]
            )
        ends.append((first - lane.shift[rank], last + 1 - lane.shift[rank]))
    if len(ends) < 2:
        return None
    return min(first for first, _ in ends), max(last for _, last in ends)


def read_calls(lane: JoinedLane, store: RowStore, begin: int, end: int) -> Calls:
    """The calls with ordinals from begin to end, counted as the reference does."""
    ranks = lane.ranks
    values = np.zeros((len(ranks), end - begin), dtype=ROW)
    row = np.full((len(ranks), end - begin), NONE, dtype=np.int64)
    for place, rank in enumerate(ranks):
        own = lane.lanes[rank]
        first, rows = _span(own, lane, store, rank, begin, end)
        if rows.size:
            at = rows["ordinal"] - lane.shift[rank] - begin
            values[place, at] = rows
            row[place, at] = np.arange(first, first + rows.size)
    return Calls(ranks, row, values)


def _span(
    own: Lane, lane: JoinedLane, store: RowStore, rank: int, begin: int, end: int
) -> tuple[int, Rows]:
    """The rows of a rank with these ordinals, and the place of the first."""
    if lane.numbered:
        low = _lower_bound(own, store, rank, begin)
        high = min(low + end - begin, own.count)
    else:
        shift = lane.shift[rank]
        low = min(max(begin + shift, 0), own.count)
        high = min(max(end + shift, low), own.count)
    rows = store.rows(rank, own.first + low, own.first + high)
    if lane.numbered:
        rows = rows[rows["ordinal"] < end]
    return own.first + low, rows


def _lower_bound(own: Lane, store: RowStore, rank: int, ordinal: int) -> int:
    """The first row of a numbered lane whose number is not below this one."""
    guess = ordinal - _number(own, store, rank, 0)
    if 0 <= guess < own.count and _number(own, store, rank, guess) == ordinal:
        return guess
    low, high = 0, own.count
    while low < high:
        middle = (low + high) // 2
        if _number(own, store, rank, middle) < ordinal:
            low = middle + 1
        else:
            high = middle
    return low


def _number(own: Lane, store: RowStore, rank: int, place: int) -> int:
    row = own.first + place
    return int(store.rows(rank, row, row + 1)["ordinal"][0])


def usual_kinds(
    calls: Calls, kinds: Sequence[tuple[tuple[str, str], ...]]
) -> tuple[list[str], list[str]]:
    """The operation and group of each call, by the first rank that has it."""
    first = calls.present.argmax(axis=0)
    codes = calls.values["kind"][first, np.arange(first.size)]
    pairs = [kinds[place][code] for place, code in zip(first.tolist(), codes.tolist(), strict=True)]
    return [op for op, _ in pairs], [group for _, group in pairs]
