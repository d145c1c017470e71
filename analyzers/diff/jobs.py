"""Two jobs side by side: what their slowest ranks take, and each rank with the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from tracer.analyzers.diff.findings import unlooked
from tracer.analyzers.diff.scatter import measure
from tracer.analyzers.diff.steps import pair_names, told_phase
from tracer.analyzers.intervals import Longs
from tracer.diff_analysis import FindingChange, Measure
from tracer.findings import Finding
from tracer.job_diff import JobChange, JobPhase, RankChange
from tracer.rank_analysis import RankAnalysis, RankResult

_STRAGGLER = "comm.straggler"
_Ranks = Mapping[int, RankResult]


def compare_jobs(before: RankAnalysis, after: RankAnalysis) -> JobChange | None:
    """What changed from one job to the other; None where no rank is on both sides."""
    ours, theirs = _by_number(before), _by_number(after)
    common = [rank for rank in ours if rank in theirs]
    if not common:
        return None
    pairs = pair_names(_phases(ours), _phases(theirs))
    whole = not _phases(ours) or not _phases(theirs)
    phases = [_whole_phase(ours, theirs)] if whole else [_phase(ours, theirs, p) for p in pairs]
    led, why = _leading(before, after, phases, common)
    return JobChange(
        before=before,
        after=after,
        phases=tuple(phase for phase in phases if phase is not None),
        ranks=tuple(_rank(ours[rank], theirs[rank], pairs, whole) for rank in common),
        only_before=tuple(rank for rank in ours if rank not in theirs),
        only_after=tuple(rank for rank in theirs if rank not in ours),
        findings=_match(before, after),
        led=led,
        why=why,
    )


def _by_number(job: RankAnalysis) -> dict[int, RankResult]:
    return {rank.summary.rank: rank for rank in job.ranks}


# --- steps ---------------------------------------------------------------------------------------


def _phases(ranks: _Ranks) -> list[str]:
    """The phases of the steps of all ranks, the longest first."""
    sums: dict[str, int] = {}
    for rank in ranks.values():
        for phase, walls in rank.summary.phase_walls.items():
            sums[phase] = sums.get(phase, 0) + int(walls.sum())
    return sorted(sums, key=lambda phase: -sums[phase])


def _phase(ours: _Ranks, theirs: _Ranks, names: tuple[str, str]) -> JobPhase:
    """A phase as its slowest ranks take it: the others wait for them sooner or later."""
    slowest = _slowest(ours, names[0]), _slowest(theirs, names[1])
    walls = _walls(ours[slowest[0]], names[0]), _walls(theirs[slowest[1]], names[1])
    return JobPhase(told_phase(names), measure(*walls), slowest)


def _slowest(ranks: _Ranks, phase: str) -> int:
    medians = {
        number: float(np.median(_walls(rank, phase)))
        for number, rank in ranks.items()
        if phase in rank.summary.phase_walls
    }
    return max(medians, key=lambda number: medians[number])


def _walls(rank: RankResult, phase: str) -> Longs:
    return rank.summary.phase_walls[phase]


def _whole_phase(ours: _Ranks, theirs: _Ranks) -> JobPhase | None:
    """The whole recordings, where steps were not found on both sides."""
    slowest = [max(side, key=lambda number: _wall(side[number])) for side in (ours, theirs)]
    walls = _wall(ours[slowest[0]]), _wall(theirs[slowest[1]])
    if not all(walls):
        return None
    return JobPhase(None, _whole(*walls), (slowest[0], slowest[1]))


def _wall(rank: RankResult) -> int:
    return rank.summary.wall_ns


def _whole(before_ns: int, after_ns: int) -> Measure:
    return Measure(before_ns, after_ns, None, "whole recordings")


def _rank(
    before: RankResult, after: RankResult, pairs: Sequence[tuple[str, str]], whole: bool
) -> RankChange:
    if whole:
        return RankChange(before, after, {None: _whole(_wall(before), _wall(after))})
    known = [
        names
        for names in pairs
        if names[0] in before.summary.phase_walls and names[1] in after.summary.phase_walls
    ]
    steps: dict[str | None, Measure] = {
        told_phase(names): measure(_walls(before, names[0]), _walls(after, names[1]))
        for names in known
    }
    return RankChange(before, after, steps)


# --- late ranks ----------------------------------------------------------------------------------


def _leading(
    before: RankAnalysis,
    after: RankAnalysis,
    phases: Sequence[JobPhase | None],
    common: Sequence[int],
) -> tuple[int, Literal["late", "slowest"]]:
    """The rank whose recordings tell most: the others wait for it, so that theirs tell of waiting;
    else the slowest one."""
    late = [f for f in (*before.findings, *after.findings) if _rank_of(f) in common]
    late = [finding for finding in late if finding.rule == _STRAGGLER]
    late.sort(key=lambda finding: (finding.severity == "info", -(finding.cost_ns or 0)))
    for finding in late:
        return int(finding.detail["rank"]), "late"
    slowest = [rank for phase in phases[:1] if phase is not None for rank in phase.slowest[::-1]]
    return next((rank for rank in slowest if rank in common), common[0]), "slowest"


def _rank_of(finding: Finding) -> int | None:
    rank = finding.detail.get("rank")
    return rank if isinstance(rank, int) else None


def _match(before: RankAnalysis, after: RankAnalysis) -> tuple[FindingChange, ...]:
    """The findings across ranks of both sides: those of one rule and rank are the same."""
    left = list(after.findings)
    pairs: list[FindingChange] = []
    for ours in before.findings:
        theirs = next((f for f in left if _same(ours, f)), None)
        if theirs is None:
            pairs.append(FindingChange(ours, None, *unlooked(after.checks, ours.rule)))
        else:
            left = [finding for finding in left if finding is not theirs]
            pairs.append(FindingChange(ours, theirs))
    return (
        *pairs,
        *(FindingChange(None, f, *unlooked(before.checks, f.rule)) for f in left),
    )


def _same(one: Finding, other: Finding) -> bool:
    return (one.rule, _rank_of(one)) == (other.rule, _rank_of(other))
