"""What changed between two jobs of several ranks: the one result that text and JSON read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tracer.diff_analysis import DiffAnalysis, FindingChange, Measure
from tracer.rank_analysis import RankAnalysis, RankResult


@dataclass(frozen=True)
class JobPhase:
    """The step of the slowest rank on either side: what a job takes. slowest: that rank in A, and
    in B. phase None: the whole recordings, where no steps were found."""

    phase: str | None
    step: Measure
    slowest: tuple[int, int]


@dataclass(frozen=True)
class RankChange:
    """A rank that both jobs have. steps: the median step of each phase that both sides have."""

    before: RankResult
    after: RankResult
    steps: Mapping[str | None, Measure]

    @property
    def rank(self) -> int:
        """Its number."""
        return self.before.summary.rank


@dataclass(frozen=True)
class JobChange:
    """What changed in a job and on each rank. only_before, only_after: ranks of one side alone.
    findings: those across ranks. led: the rank that tells most, and why it does: the others wait
    for it in A or B, or it is the slowest."""

    before: RankAnalysis
    after: RankAnalysis
    phases: tuple[JobPhase, ...]
    ranks: tuple[RankChange, ...]
    only_before: tuple[int, ...]
    only_after: tuple[int, ...]
    findings: tuple[FindingChange, ...]
    led: int
    why: Literal["late", "slowest"]


@dataclass(frozen=True)
class JobDiff:
    """Two jobs compared, and in full the recordings of the rank that tells most. before, after:
    where the jobs were found."""

    before: str
    after: str
    change: JobChange
    detail: DiffAnalysis

    @property
    def damaged(self) -> bool:
        """Whether a recording was damaged or cut, or a rank is missing."""
        jobs = self.change.before, self.change.after
        missing = any(job.integrity_status == "partial" for job in jobs)
        return missing or self.detail.before.damaged or self.detail.after.damaged

    @property
    def comparable(self) -> bool:
        """Whether the jobs have the same ranks, and nothing else stands against the comparison."""
        alone = self.change.only_before or self.change.only_after
        return not alone and self.detail.comparable
