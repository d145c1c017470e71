"""Clocks of ranks, aligned on the ends of the collectives that they share.

All members of a collective leave it together, however late some entered it. What still differs
after the best shift (and drift) of each clock is the residual: nothing smaller is ever claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import Longs
from tracer.analyzers.ranks.match import Calls, JoinedLane, sampled_calls, usual_kinds
from tracer.rank_analysis import Alignment, Clock, RankSummary, RowStore

# Operations that no member leaves before all have entered. Others end apart by what they send.
MEETING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Ends of one collective differ systematically by up to this share of its time on the wire: 4.3 of
# 75 us in one direction on two GPUs of one host.
_SKEW = 1 / 16
# A clock that differs by fewer residuals than this is taken as the same clock.
_SAME = 3.0
# From this many calls on a drift is looked for.
_ENOUGH_FOR_DRIFT = 12
_QUANTILE = 95
_COARSE_NS, _FINE_NS = 1000, 100  # of times in whole microseconds, and of others


@dataclass(frozen=True)
class _Edge:
    """Two ranks that share collectives: the clock of `rank` beside that of `anchor`."""

    anchor: int
    rank: int
    clock: Clock
    spread_ns: float
    loose_ns: float  # how far ends may differ where no operation is one that all leave together


@dataclass(frozen=True)
class Sample:
    """Calls of one lane that alignment looks at, and which of them all members leave together."""

    lane: JoinedLane
    calls: Calls
    meeting: NDArray[np.bool_]


def sample_lanes(
    lanes: Sequence[JoinedLane], summaries: Mapping[int, RankSummary], store: RowStore
) -> list[Sample]:
    """Calls from both ends of each lane."""
    samples: list[Sample] = []
    for lane in lanes:
        calls = sampled_calls(lane, store)
        if calls is not None:
            ops, _ = usual_kinds(calls, [summaries[rank].kinds for rank in calls.ranks])
            samples.append(Sample(lane, calls, np.array([op in MEETING for op in ops], dtype=bool)))
    return samples


def align(summaries: Mapping[int, RankSummary], samples: Sequence[Sample]) -> Alignment | None:
    """The clocks of all ranks beside that of the lowest; None when no ranks share a collective."""
    edges = [edge for sample in samples for edge in _edges(sample)]
    if not edges:
        return None
    clocks, references, loose_ns = _joined_clocks(sorted(summaries), edges)
    _, firm, _ = _joined_clocks(sorted(summaries), [e for e in edges if not e.loose_ns])
    floor = _COARSE_NS if any(s.coarse for s in summaries.values()) else _FINE_NS
    meeting = any(not edge.loose_ns for edge in edges)
    deviations = _deviations(samples, clocks, meeting)
    wire = _median_wire(samples, meeting)
    residual = max(_quantile(deviations) + round(_SKEW * wire), loose_ns, floor)
    unix = all(summaries[rank].clock == "unix" for rank in clocks)
    if unix and _are_one(clocks, residual):
        clocks, firm = dict.fromkeys(clocks, Clock()), references
        deviations = _deviations(samples, clocks, meeting)
        residual = max(_quantile(deviations), loose_ns, floor)
    count = sum(int(sample.calls.present.any(axis=0).sum()) for sample in samples)
    what = "collectives" if meeting else "sends and receives, or broadcasts"
    how = "clocks agree: none was moved" if _none_moved(clocks) else "clocks moved"
    usual = _usual_reference(references)
    apart = tuple(rank for rank in sorted(summaries) if references.get(rank) != usual)
    by_rank = {rank: max(_quantile({rank: deviations.get(rank, [])}), floor) for rank in clocks}
    basis = f"ends of {count} shared {what} looked at; {how}"
    return Alignment(clocks, references, residual, by_rank, basis, apart, firm)


def _usual_reference(references: Mapping[int, int]) -> int:
    """The rank beside whose clock most clocks stand."""
    values = list(references.values())
    return max(sorted(set(values)), key=values.count)


def _none_moved(clocks: Mapping[int, Clock]) -> bool:
    return all(clock == Clock() for clock in clocks.values())


def _are_one(clocks: Mapping[int, Clock], residual_ns: int) -> bool:
    """Whether the clocks differ by no more than the ends themselves may."""
    offsets = [abs(clock.offset_ns) for clock in clocks.values()]
    return max(offsets, default=0) <= _SAME * residual_ns and not any(
        clock.drift for clock in clocks.values()
    )


# --- between two ranks ---------------------------------------------------------------------------


def _edges(sample: Sample) -> list[_Edge]:
    """The first rank of a lane with each other one."""
    loose = not bool(sample.meeting.any())
    loose_ns = max(_median_wire([sample], meeting=False), 1.0) if loose else 0.0
    end, present = sample.calls.take("end_ns"), sample.calls.present
    if not loose:
        end, present = end[:, sample.meeting], present[:, sample.meeting]
    anchor = int(present.sum(axis=1).argmax())
    edges: list[_Edge] = []
    for place, rank in enumerate(sample.calls.ranks):
        both = present[anchor] & present[place]
        if place == anchor or not both.any():
            continue
        clock, spread = _fit_clock(end[anchor][both], end[place][both])
        edges.append(_Edge(sample.calls.ranks[anchor], rank, clock, spread, loose_ns))
    return edges


def _fit_clock(reference: Longs, own: Longs) -> tuple[Clock, float]:
    """Shift and drift of one clock beside another, by when both saw the same moments."""
    middle = int(own[own.size // 2])
    difference = own - reference
    base = int(np.median(difference))
    rest = (difference - base).astype(np.float64)
    spread = _deviation(rest)
    if own.size < _ENOUGH_FOR_DRIFT:
        return Clock(base, 0.0, middle), spread
    elapsed = (own - middle).astype(np.float64)
    slope, level = _line(elapsed, rest)
    straight = _deviation(rest - slope * elapsed - level)
    moves = abs(slope) * float(elapsed[-1] - elapsed[0])
    if moves > 2 * straight and straight < 0.8 * spread:
        return Clock(base + round(level), slope, middle), straight
    return Clock(base, 0.0, middle), spread


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """A straight line through points of which some lie far off."""
    keep: NDArray[np.bool_] = np.ones(x.size, dtype=bool)
    slope, level = 0.0, float(np.median(y))
    for _ in range(3):
        spread = x[keep] - x[keep].mean()
        whole = float((spread**2).sum())
        slope = float((spread * (y[keep] - y[keep].mean())).sum()) / whole if whole else 0.0
        level = float(np.median(y - slope * x))
        rest = np.abs(y - slope * x - level)
        keep = rest <= max(5 * float(np.median(rest)), 1.0)
    return slope, level


def _deviation(values: NDArray[np.float64]) -> float:
    return float(np.percentile(np.abs(values - np.median(values)), _QUANTILE))


# --- among all -----------------------------------------------------------------------------------


def _joined_clocks(
    ranks: Sequence[int], edges: Sequence[_Edge]
) -> tuple[dict[int, Clock], dict[int, int], int]:
    """The clock of each rank beside that of the lowest rank it can be joined to, over the closest
    edges; which rank that is; and how uncertain it is where an edge has no operation that all leave
    together. A rank without an edge has none."""
    tree: dict[int, list[tuple[int, Clock]]] = {rank: [] for rank in ranks}
    root_of = {rank: rank for rank in ranks}
    uncertain = 0.0
    for edge in sorted(edges, key=lambda e: (e.loose_ns, e.spread_ns, e.anchor, e.rank)):
        one, other = _root(root_of, edge.anchor), _root(root_of, edge.rank)
        if one != other:
            root_of[other] = one
            uncertain = max(uncertain, edge.loose_ns and edge.loose_ns + edge.spread_ns)
            tree[edge.anchor].append((edge.rank, edge.clock))
            tree[edge.rank].append((edge.anchor, _reversed(edge.clock)))
    clocks: dict[int, Clock] = {}
    references: dict[int, int] = {}
    for start in ranks:
        if start not in clocks and tree[start]:
            reached = _spread_clocks(start, tree)
            clocks |= reached
            references |= dict.fromkeys(reached, start)
    return clocks, references, round(uncertain)


def _spread_clocks(start: int, tree: Mapping[int, list[tuple[int, Clock]]]) -> dict[int, Clock]:
    """The clocks of all ranks that can be reached from one, beside its own."""
    clocks = {start: Clock()}
    waiting = [start]
    while waiting:
        known = waiting.pop()
        for rank, clock in tree[known]:
            if rank not in clocks:
                clocks[rank] = _chained(clock, clocks[known])
                waiting.append(rank)
    return clocks


def _root(root_of: dict[int, int], rank: int) -> int:
    while root_of[rank] != rank:
        root_of[rank] = root_of[root_of[rank]]
        rank = root_of[rank]
    return rank


def _reversed(clock: Clock) -> Clock:
    """The clock of the other rank beside this one."""
    return Clock(-clock.offset_ns, -clock.drift / (1 - clock.drift), clock.at_ns - clock.offset_ns)


def _chained(clock: Clock, through: Clock) -> Clock:
    """A clock beside another that is itself beside the reference."""
    there = clock.at_ns - clock.offset_ns
    shift = through.offset_ns + round(through.drift * (there - through.at_ns))
    return Clock(clock.offset_ns + shift, clock.drift + through.drift, clock.at_ns)


def _deviations(
    samples: Sequence[Sample], clocks: Mapping[int, Clock], meeting: bool
) -> dict[int, list[Longs]]:
    """For each rank how far its ends lie from the usual end of each call."""
    out: dict[int, list[Longs]] = {}
    for sample in samples:
        ranks = [rank for rank in sample.calls.ranks if rank in clocks]
        if len(ranks) < 2:
            continue
        places = [sample.calls.ranks.index(rank) for rank in ranks]
        end, present = sample.calls.take("end_ns")[places], sample.calls.present[places]
        if meeting:
            end, present = end[:, sample.meeting], present[:, sample.meeting]
        moved = np.stack([clocks[rank].aligned(end[i]) for i, rank in enumerate(ranks)])
        usual = _usual(moved, present)
        for i, rank in enumerate(ranks):
            counted = present[i] & (present.sum(axis=0) > 1)
            if len(ranks) == 2 and i == 0:
                continue  # of two, the second's distance from the first says it all
            out.setdefault(rank, []).append(np.abs(moved[i] - usual)[counted])
    return out


def _usual(moved: Longs, present: NDArray[np.bool_]) -> Longs:
    """The middle end of each call; of two ranks, the first's."""
    if moved.shape[0] == 2:
        return np.where(present[0], moved[0], moved[1])
    ordered = np.sort(np.where(present, moved, np.iinfo(np.int64).max), axis=0)
    middle = np.maximum(present.sum(axis=0) - 1, 0) // 2
    found: Longs = np.take_along_axis(ordered, middle[None, :], axis=0)[0]
    return found


def _quantile(deviations: Mapping[int, Sequence[Longs]]) -> int:
    parts = [part for of_rank in deviations.values() for part in of_rank if part.size]
    if not parts:
        return 0
    return int(np.ceil(np.percentile(np.concatenate(parts), _QUANTILE)))


def _median_wire(samples: Sequence[Sample], meeting: bool) -> float:
    """The usual time on the wire: the shortest duration of each call."""
    shortest: list[Longs] = []
    for sample in samples:
        length = sample.calls.take("end_ns") - sample.calls.take("start_ns")
        length = np.where(sample.calls.present, length, np.iinfo(np.int64).max)
        least = length.min(axis=0)
        shortest.append(least[sample.meeting] if meeting else least)
    if not shortest:
        return 0.0
    together = np.concatenate(shortest)
    together = together[together < np.iinfo(np.int64).max]
    return float(np.median(together)) if together.size else 0.0
