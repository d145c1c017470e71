"""Which rank the others wait for: claims from who came last, made only where they are steady.

A rank is late in a lane when it came last, by more than the residual, in most of the calls that
count, more often than chance, and in most steps; or when it begins each step late by much, or when
most of the long waits are for it, step after step. The call in which the ranks entered the window
never counts, nor does what a rank waited for others itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.ranks.evidence import LaneEvidence
from tracer.analyzers.ranks.late import LateCalls
from tracer.analyzers.rules.judging import WARNING_RATIO

# So unlikely must it be by chance that one of equal ranks comes last so often.
_CHANCE = 0.01
# All of so few calls are enough as well.
_ALL_OF = 3
# From so many tries on the distribution is as good as normal.
_MANY = 2000
# So many margins are compared by length at most: more are enough by their number.
_MOST_SIGNED = 64
# A rank begins its steps late: each time by this share of the step, or so often by chance no more.
_BEGINS_LATE, _BEGINS_LATE_STEADILY = 0.10, 0.01
# Of the calls that make up this share of all waiting, a late rank is last in most, in this share of
# the steps; what they cost is this share of the time, or this where so few, or two, are no proof.
_LARGE_WAITS, _OF_THE_STEPS = 0.5, 0.5
_WORTH, _WORTH_IF_FEW, _WORTH_IF_TWO = 0.02, 0.10, 0.25
# Ranks late together, such as those of a slow host, are late in this share of the calls.
_TOGETHER = 0.75


@dataclass(frozen=True)
class Claim:
    """A late rank in one lane. last of compared: how often it came last; total_ns: how long all
    others had waited for it alone; lost_ns: as far as they had nothing to compute meanwhile, None:
    not looked at; together: ranks as late as it is. how: calls (of all), steps (of
    their first calls), waits (of the calls that were waited in longest), together.
    """

    rank: int
    key: str
    last: int
    compared: int
    total_ns: int
    how: str
    steps: tuple[int, ...]
    together: tuple[int, ...] = ()
    least_ns: int = 0  # the shortest of the long waits
    lost_ns: int | None = None


def find_claims(
    evidence: Iterable[LaneEvidence], walls_ns: Mapping[int, int], step_ns: Mapping[int, int]
) -> list[Claim]:
    """Late ranks, the costliest first. `walls_ns`: the window of each rank less what it waited in
    the call that began it; `step_ns`: the usual step of each rank."""
    claims: list[Claim] = []
    for lane in evidence:
        wall = float(np.median([walls_ns[rank] for rank in lane.ranks]))
        step = float(np.median([step_ns.get(rank, 0) for rank in lane.ranks]))
        found = [*_steady(lane), *_beginners(lane, step), *_awaited(lane, wall)]
        found = [claim for claim in found if claim.total_ns >= WARNING_RATIO * wall]
        claims += found or _late_together(lane, wall)
    return sorted(claims, key=lambda claim: (-claim.total_ns, claim.rank))


def _steady(lane: LaneEvidence) -> list[Claim]:
    """Ranks last in most calls."""
    claims = []
    for place, rank in enumerate(lane.ranks):
        last, held = int(lane.last[place]), int(lane.held[place])
        if 2 * last <= held or not _beyond_chance(last, held, len(lane.ranks)):
            continue
        steps, most = _steps_of(lane, place)
        if most:
            total = int(lane.margin_ns[place])
            claims.append(Claim(rank, lane.key, last, held, total, "calls", steps))
    return claims


def _beyond_chance(times: int, tries: int, ranks: int) -> bool:
    """Whether one of so many equal ranks would come last so often only by a rare chance."""
    if times == tries and tries >= _ALL_OF:
        return True
    return binomial_tail(times, tries, 1.0 / ranks) <= _CHANCE


def binomial_tail(times: int, tries: int, chance: float) -> float:
    """The probability of at least so many hits."""
    if times <= 0:
        return 1.0
    if not 0.0 < chance < 1.0:
        return 1.0 if chance >= 1.0 else 0.0
    if tries > _MANY:
        spread = math.sqrt(tries * chance * (1 - chance))
        return 0.5 * math.erfc((times - 0.5 - tries * chance) / (spread * math.sqrt(2)))
    hits = np.arange(times, tries + 1)
    logs = [
        math.lgamma(tries + 1) - math.lgamma(hit + 1) - math.lgamma(tries - hit + 1)
        for hit in hits.tolist()
    ]
    powers = np.array(logs) + hits * math.log(chance) + (tries - hits) * math.log1p(-chance)
    return float(min(np.exp(powers).sum(), 1.0))


def _is_rare(mine: NDArray[np.bool_], margin: Longs, ranks: int) -> bool:
    """Whether one of equal ranks would be last in these calls, by so much, only by a rare chance.
    Of two ranks the margins count as well: once late by little is no doubt."""
    if binomial_tail(int(mine.sum()), mine.size, 1.0 / ranks) <= _CHANCE:
        return True
    return ranks == 2 and signed_rank_tail(mine, margin) <= _CHANCE


def signed_rank_tail(mine: NDArray[np.bool_], margin: Longs) -> float:
    """The probability that the margins of the other rank would have so small a sum of ranks, by
    length, if each margin were either rank's with the same chance: Wilcoxon's signed-rank test
    (Biometrics Bulletin 1, 1945), exact."""
    if mine.size > _MOST_SIGNED:
        return 1.0
    order = np.argsort(margin, kind="stable")
    against = int((np.flatnonzero(~mine[order]) + 1).sum())
    ways = np.zeros(mine.size * (mine.size + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, mine.size + 1):
        ways[rank:] += ways[:-rank].copy()
    return float(ways[: against + 1].sum() / 2.0**mine.size)


def _steps_of(lane: LaneEvidence, place: int) -> tuple[tuple[int, ...], bool]:
    """Steps in which this rank came last, and whether it did in most calls of most steps."""
    calls = _summed(lane.calls_in, 1)
    won = _summed([rows[[0, 2]][:, rows[1] == place] for rows in lane.steps], 1)
    steps = tuple(sorted(won))
    if len(calls) < 2:
        return steps, True
    most = sum(2 * won.get(step, 0) > count for step, count in calls.items())
    return steps, 2 * most > len(calls)


def _summed(parts: Sequence[Longs], column: int) -> dict[int, int]:
    """Sums of a column by the first."""
    sums: dict[int, int] = {}
    for rows in parts:
        for step, value in zip(rows[0].tolist(), rows[column].tolist(), strict=True):
            sums[step] = sums.get(step, 0) + value
    return sums


def _beginners(lane: LaneEvidence, step_ns: float) -> list[Claim]:
    """Ranks that are last, by much, in the first call of the steps."""
    if not lane.beginnings or not step_ns:
        return []
    step, place, margin = np.concatenate(lane.beginnings, axis=1)
    if step.size < 2:
        return []
    claims = []
    for one in np.unique(place[place != NONE]).tolist():
        mine = place == one
        usual = float(np.median(margin[mine]))
        always = bool(mine.all()) and usual >= _BEGINS_LATE * step_ns
        often = _is_rare(mine, margin, len(lane.ranks))
        steadily = often and 2 * mine.sum() > step.size
        if always or (steadily and usual >= _BEGINS_LATE_STEADILY * step_ns):
            total = int(margin[mine].sum())
            claims.append(
                Claim(
                    lane.ranks[one],
                    lane.key,
                    int(mine.sum()),
                    int(step.size),
                    total,
                    "steps",
                    tuple(sorted(set(step[mine].tolist()))),
                )
            )
    return claims


def _awaited(lane: LaneEvidence, wall_ns: float) -> list[Claim]:
    """A rank that most of the long waits are for, though most calls find nobody late: it stops for
    a while in each step and keeps up in between."""
    margin, place, step = lane.longest
    half = int(np.searchsorted(np.cumsum(margin), _LARGE_WAITS * int(lane.margin_ns.sum())))
    long = int((2 * margin >= margin[min(half, margin.size - 1)]).sum()) if margin.size else 0
    margin, place, step = margin[:long], place[:long], step[:long]
    claims = []
    for one in np.unique(place).tolist():
        mine = place == one
        last, tries, total = int(mine.sum()), int(place.size), int(margin[mine].sum())
        proof = _is_rare(mine, margin, len(lane.ranks))
        few = last == tries and tries > 1
        least = _WORTH if proof else _WORTH_IF_FEW if tries >= _ALL_OF else _WORTH_IF_TWO
        worth = total >= least * wall_ns
        steps = tuple(sorted(set(step[mine].tolist()) - {NONE}))
        known = len(_summed(lane.calls_in, 1))
        spread = known < 2 or len(steps) >= _OF_THE_STEPS * known
        if 2 * last > tries and (proof or few) and worth and spread:
            claims.append(
                Claim(
                    lane.ranks[one],
                    lane.key,
                    last,
                    tries,
                    total,
                    "waits",
                    steps,
                    least_ns=int(margin[-1]),
                )
            )
    return claims


def _late_together(lane: LaneEvidence, wall_ns: float) -> list[Claim]:
    """Several ranks that come late together, none of them always last."""
    if len(lane.ranks) < 4 or not lane.counted or lane.behind_ns < WARNING_RATIO * wall_ns:
        return []
    often = (lane.late >= _TOGETHER * lane.held) & (lane.held > 0)
    likely = [
        binomial_tail(int(late), int(held), 0.5) <= _CHANCE
        for late, held in zip(lane.late.tolist(), lane.held.tolist(), strict=True)
    ]
    places = np.flatnonzero(often & np.array(likely, dtype=bool))
    if places.size < 2 or 2 * places.size > len(lane.ranks):
        return []
    first = int(places[np.argmax(lane.late[places])])
    ranks = tuple(lane.ranks[place] for place in places.tolist())
    steps = tuple(sorted(_summed(lane.calls_in, 1)))
    return [
        Claim(
            lane.ranks[first],
            lane.key,
            int(lane.late[first]),
            int(lane.held[first]),
            lane.behind_ns,
            "together",
            steps,
            ranks,
        )
    ]


def confirm(claim: Claim, calls: LateCalls, residual_ns: int, ranks: int) -> Claim | None:
    """The claim with the rank's own lateness alone; None when others made it late."""
    if claim.how == "together":
        return claim
    own = calls.own_margins()
    mine = (calls.rows["lane"] == calls.keys.index(claim.key)) & calls.rows["counted"]
    if claim.how == "steps":
        mine &= np.isin(calls.rows["step"], claim.steps)
    late = mine & (own > residual_ns) & (own >= claim.least_ns)
    kept = int(own[late].sum())
    if 2 * kept < claim.total_ns:
        return None
    lost = calls.lost_ns(late, own)
    if claim.how == "steps":
        return replace(claim, total_ns=min(kept, claim.total_ns), lost_ns=lost)
    last = int(late.sum())
    few = claim.how == "waits" and last == claim.last
    if 2 * last <= claim.compared or not (few or _beyond_chance(last, claim.compared, ranks)):
        return None
    steps = tuple(sorted(set(calls.rows["step"][late].tolist()) - {NONE}))
    return replace(claim, last=last, total_ns=kept, steps=steps, lost_ns=lost)
