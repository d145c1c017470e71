"""What the findings of two recordings cost before and after, and whether a predicted gain came."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.analysis import Analysis
from tracer.diff_analysis import DiffAnalysis, FindingChange, Measure
from tracer.exporters.costs import NOTABLE_BETWEEN_RATIO, Cost, cost_of
from tracer.exporters.traced import turn_ns
from tracer.exporters.what_if import is_change, row_of
from tracer.findings import Finding

_MOSTLY_RATIO = 0.5


@dataclass(frozen=True)
class Prediction:
    """What A's report promised for the case that a finding goes, and what B measures. Both gains
    are of the median step of `phase` (from start to start, where `turn`). among: how many findings
    with such a promise are gone from it; what is measured is the gain of all, and of all else that
    changed."""

    phase: str
    turn: bool
    before_ns: int
    predicted_ns: int
    measured_ns: int
    basis: str
    among: int = 1

    @property
    def predicted_gain_ns(self) -> int:
        return self.before_ns - self.predicted_ns

    @property
    def measured_gain_ns(self) -> int:
        return self.before_ns - self.measured_ns


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
    gone = [change for change in diff.findings if change.status == "gone"]
    promised = {id(change): _prediction(diff, change) for change in gone}
    rows = [_cost_change(diff, change, promised) for change in diff.findings]
    return sorted(rows, key=_order)


def _order(row: CostChange) -> tuple[bool, float]:
    return row.change.status not in ("gone", "new"), -abs(row.change_ns or 0)


def _cost_change(
    diff: DiffAnalysis, change: FindingChange, promised: dict[int, Prediction | None]
) -> CostChange:
    costs = _cost(diff.before, change.before), _cost(diff.after, change.after)
    each = all(cost is None or cost.of_steps > 0 for cost in costs)
    missing = None if change.unseen else 0.0
    ours, theirs = (missing if cost is None else _ns(cost, each) for cost in costs)
    prediction = promised.get(id(change))
    if prediction is not None:
        same = [p for p in promised.values() if p and p.phase == prediction.phase]
        prediction = replace(prediction, among=len(same))
    between = any(cost is not None and cost.between_ratio > _MOSTLY_RATIO for cost in costs)
    return CostChange(change, ours, theirs, each, prediction, between)


def _cost(analysis: Analysis, finding: Finding | None) -> Cost | None:
    return None if finding is None else cost_of(analysis, finding)


def _ns(cost: Cost, each_step: bool) -> float | None:
    return cost.cost_ns if each_step else cost.finding.cost_ns


def _prediction(diff: DiffAnalysis, change: FindingChange) -> Prediction | None:
    """The promise for a finding that is gone, where it was one for a step that is compared."""
    if change.before is None or not change.before.gain_ns:
        return None
    cost = cost_of(diff.before, change.before)
    row = row_of(diff.before, cost)
    compared = _compared(diff, cost)
    if row["step_ns"] is None or compared is None or not is_change(row):
        return None
    phase, measure, turn = compared
    before_ns = int(row["step_ns"]) + int(row["gain_ns"])
    return Prediction(
        phase, turn, before_ns, int(row["step_ns"]), measure.after_ns, str(row["basis"])
    )


def _compared(diff: DiffAnalysis, cost: Cost) -> tuple[str, Measure, bool] | None:
    """The step that the promise is about: from start to start, where it lies between steps."""
    for change in diff.phases:
        phase = next(iter(cost.phases), "")
        if change.phase is None or len(cost.phases) != 1 or phase != change.phase_before:
            continue
        apart = cost.between_ratio > NOTABLE_BETWEEN_RATIO
        if apart and change.turn is not None and turn_ns(diff.before, phase) is not None:
            return change.phase, change.turn, True
        return change.phase, change.step, False
    return None
