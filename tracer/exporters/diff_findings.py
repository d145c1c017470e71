"""What the findings of two recordings cost before and after, and whether a predicted gain came."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.analysis import Analysis
from tracer.diff_analysis import DiffAnalysis, FindingChange
from tracer.exporters.costs import Cost, cost_of
from tracer.exporters.diff_promises import Prediction, prediction_of
from tracer.findings import Finding
from tracer.job_diff import JobChange
from tracer.rank_analysis import RankAnalysis, RankResult

_MOSTLY_RATIO = 0.5
_BETWEEN = "loop.between"  # in a report told of the whole loop


@dataclass(frozen=True)
class CostChange:
    """A finding with what it costs a step in either recording; in all where `each_step` is False.
    None: not known. A finding that is not there costs 0."""

    change: FindingChange
    before_ns: float | None
    after_ns: float | None
    each_step: bool
    prediction: Prediction | None
    between: bool = False  # most of it lies between the steps

    @property
    def change_ns(self) -> float | None:
        if self.before_ns is None or self.after_ns is None:
            return None
        return self.after_ns - self.before_ns


def cost_changes(diff: DiffAnalysis) -> list[CostChange]:
    """The findings of both recordings: gone and new ones first, the largest change first."""
    promised = {id(change): prediction_of(diff, change) for change in diff.findings}
    rows = [_cost_change(diff, change, promised) for change in diff.findings]
    return sorted(rows, key=_order)


def rank_cost_changes(change: JobChange) -> list[CostChange]:
    """The findings across the ranks of both jobs, ordered alike; their cost is that of a step where
    the rank that has it has steps on both sides."""
    each = all(rank.summary.steps for job in (change.before, change.after) for rank in job.ranks)
    rows = [
        CostChange(
            found,
            _rank_cost(change.before, found.before, found.unseen, each),
            _rank_cost(change.after, found.after, found.unseen, each),
            each,
            None,
        )
        for found in change.findings
    ]
    return sorted(rows, key=_order)


def _rank_cost(
    job: RankAnalysis, finding: Finding | None, unseen: str, each_step: bool
) -> float | None:
    if finding is None:
        return None if unseen else 0.0
    if finding.cost_ns is None or not each_step:
        return finding.cost_ns
    steps = {rank.summary.rank: rank.summary.steps for rank in job.ranks}
    return finding.cost_ns / steps.get(finding.detail.get("rank", -1), max(steps.values()))


def wait_ns(rank: RankResult) -> float | None:
    """How long a rank waits for others a step, but for the call in which they entered the window;
    in all where it has no steps. None: not known."""
    if rank.wait_ns is None:
        return None
    return max(rank.wait_ns - rank.entry_wait_ns, 0) / max(rank.summary.steps, 1)


def _order(row: CostChange) -> tuple[bool, float]:
    return row.change.status not in ("gone", "new"), -abs(row.change_ns or 0)


def _cost_change(
    diff: DiffAnalysis, change: FindingChange, promised: dict[int, Prediction | None]
) -> CostChange:
    costs = _cost(diff.before, change.before), _cost(diff.after, change.after)
    each = all(cost is None or cost.of_steps > 0 for cost in costs)
    sides = zip((diff.before, diff.after), costs, strict=True)
    ours, theirs = (
        _missing(change, analysis, each) if cost is None else _ns(cost, each)
        for analysis, cost in sides
    )
    prediction = promised.get(id(change))
    if prediction is not None:
        same = [p for p in promised.values() if p and p.phase == prediction.phase]
        prediction = replace(prediction, among=len(same))
    between = any(cost is not None and cost.between_ratio > _MOSTLY_RATIO for cost in costs)
    return CostChange(change, ours, theirs, each, prediction, between)


def _missing(change: FindingChange, analysis: Analysis, each_step: bool) -> float | None:
    """What it costs on the side that does not name it."""
    if change.unseen or (change.below and change.other_ns is None):
        return None
    # What lies between steps is a mean of those that another follows.
    count = max(len(analysis.steps) - 1, 1) if each_step else 1
    return (change.other_ns or 0) / count


def _cost(analysis: Analysis, finding: Finding | None) -> Cost | None:
    """Its cost a step; what runs between the steps comes with each that it follows."""
    if finding is None:
        return None
    cost = cost_of(analysis, finding)
    return replace(cost, of_steps=len(finding.steps)) if finding.rule == _BETWEEN else cost


def _ns(cost: Cost, each_step: bool) -> float | None:
    return cost.cost_ns if each_step else cost.finding.cost_ns
