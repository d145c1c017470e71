"""What A's report promised for the case that a finding goes, beside what B measures."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.diff_analysis import DiffAnalysis, FindingChange, Measure, PhaseChange
from tracer.exporters.costs import NOTABLE_BETWEEN_RATIO, Cost, cost_of
from tracer.exporters.diff_levels import Bucket, between_of, buckets_of
from tracer.exporters.traced import turn_ns
from tracer.exporters.what_if import is_change, row_of

# A finding whose cost fell by more than this share is what changed.
_MOST_RATIO = 0.5
# All else changed by so much of a promise: the step does not tell whether it was kept.
_ELSE_RATIO = 0.5
# What the idle of a cause, or the time of a group, is made longer by.
PLACES = {
    "fallback.attention": "attention",
    "fallback.moe": "ffn",
    "sync.hidden": "sync",
    "sync.explicit": "sync",
    "sync.allocator": "allocator",
    "gap.launch_bound": "launch",
    "gap.host": "host",
    "gap.input": "input",
    "gap.gc": "gc",
    "gap.compile": "compile",
    "warmup.first_use": "compile",
    "transfer.repeated_weights": "transfer",
    "comm.exposed": "communication",
    "comm.same_stream": "communication",
    "fallback.communication": "communication",
}
# A part of training steps, which work of several groups makes longer.
_PARTS = {"training.recompute": "recompute"}


@dataclass(frozen=True)
class Prediction:
    """What A's report promised for the case that a finding goes, and what B measures. Both gains
    are of the median step of `phase` (from start to start, where `turn`). about: the part of the
    step that the finding makes longer, where one is known. among: how many findings with such a
    promise are gone from the step; what is measured is the gain of all."""

    phase: str
    turn: bool
    before_ns: int
    predicted_ns: int
    measured_ns: int
    scatter_ns: int
    basis: str
    about: Bucket | None = None
    among: int = 1

    @property
    def predicted_gain_ns(self) -> int:
        return self.before_ns - self.predicted_ns

    @property
    def measured_gain_ns(self) -> int:
        return self.before_ns - self.measured_ns

    @property
    def all_else_ns(self) -> int | None:
        """By how much the step changed besides what the finding is about."""
        return None if self.about is None else -self.measured_gain_ns - self.about.change_ns

    @property
    def else_changed(self) -> bool:
        """Whether the step changed for other reasons too."""
        rest = self.all_else_ns
        if rest is None:
            rest = self.predicted_gain_ns - self.measured_gain_ns
        return abs(rest) > max(_ELSE_RATIO * self.predicted_gain_ns, self.scatter_ns)


def prediction_of(diff: DiffAnalysis, change: FindingChange) -> Prediction | None:
    """The promise for a finding that is gone but for little, where it was one for a step that is
    compared, and that step changed by more than its scatter."""
    if change.before is None or not change.before.gain_ns or not _went(diff, change):
        return None
    cost = cost_of(diff.before, change.before)
    row = row_of(diff.before, cost)
    compared = _compared(diff, cost)
    if row["step_ns"] is None or compared is None or not is_change(row):
        return None
    phase, measure, turn = compared
    if measure.within_scatter is not False:
        return None
    return Prediction(
        phase=phase.phase or "",
        turn=turn,
        before_ns=int(row["step_ns"]) + int(row["gain_ns"]),
        predicted_ns=int(row["step_ns"]),
        measured_ns=measure.after_ns,
        scatter_ns=measure.scatter_ns or 0,
        basis=str(row["basis"]),
        about=_about(phase, cost, turn),
    )


def _went(diff: DiffAnalysis, change: FindingChange) -> bool:
    """Whether it is gone, or most of what it cost a step."""
    if change.before is None or change.after is None:
        return change.status == "gone"
    costs = cost_of(diff.before, change.before), cost_of(diff.after, change.after)
    ours, theirs = (cost.cost_ns if cost.of_steps else None for cost in costs)
    return ours is not None and theirs is not None and theirs < (1 - _MOST_RATIO) * ours


def _compared(diff: DiffAnalysis, cost: Cost) -> tuple[PhaseChange, Measure, bool] | None:
    """The step that the promise is about: from start to start, where it lies between steps."""
    for change in diff.phases:
        phase = next(iter(cost.phases), "")
        if change.phase is None or len(cost.phases) != 1 or phase != change.phase_before:
            continue
        apart = cost.between_ratio > NOTABLE_BETWEEN_RATIO
        if apart and change.turn is not None and turn_ns(diff.before, phase) is not None:
            return change, change.turn, True
        return change, change.step, False
    return None


def _about(change: PhaseChange, cost: Cost, turn: bool) -> Bucket | None:
    """The part of the step that the finding makes longer."""
    if turn and cost.between_ratio > _MOST_RATIO:
        return between_of(change)
    if cost.finding.rule in _PARTS:
        name = _PARTS[cost.finding.rule]
        part = next((p for p in change.parts if p.name == name), None)
        return None if part is None else Bucket(name, "", part.before_ns, part.after_ns)
    place = PLACES.get(cost.finding.rule)
    return next((b for b in buckets_of(change) if (b.part or b.group) == place), None)
