"""What a step would take after a change: the gains of the findings, the largest first."""

from __future__ import annotations

from typing import Any

from tracer.analysis import Analysis
from tracer.exporters.change import instruction
from tracer.exporters.costs import NOTABLE_BETWEEN_RATIO, Cost, ranked_costs
from tracer.exporters.spread import find_spread
from tracer.exporters.traced import turn_ns


def what_if(analysis: Analysis) -> list[dict[str, Any]]:
    """A row for each finding whose gain is known and whose change is no new recording: `change`,
    what to do; `step_ns`, the median step of its phase after it (from start to start, where it is
    about what lies between the steps), and `gain_ns` of that step (of the
    window, and `step_ns` None, where the finding belongs to no single phase); `gain_ratio` of that
    step or window; `basis`, how the gain was found. Gains do not add up."""
    costs = [cost for cost in ranked_costs(analysis) if (cost.finding.gain_ns or 0) > 0]
    costs.sort(key=lambda cost: -(cost.finding.gain_ns or 0))
    rows = [row_of(analysis, cost) for cost in costs]
    return [row for row in rows if is_change(row)]


def is_change(row: dict[str, Any]) -> bool:
    """Whether the row is about a change of the program, and no new recording."""
    return not str(row["change"]).startswith("Record again")


def row_of(analysis: Analysis, cost: Cost) -> dict[str, Any]:
    """The row of one finding."""
    finding, step_ns = cost.finding, _median_step(analysis, cost)
    known = {
        "change": instruction(finding.advice) if finding.advice else finding.title,
        "rule": finding.rule,
        "basis": str(finding.detail.get("gain_basis") or "the cost of the finding"),
    }
    if step_ns is None:
        gain, whole = finding.gain_ns or 0, analysis.window.capacity_ns
        return {**known, "phase": None, "step_ns": None, **_gain(gain, whole)}
    (phase,) = cost.phases
    gain = round(cost.gain_ns or 0)
    if gain > step_ns:
        gain = min(round(gain * _of_the_median(analysis, phase)), step_ns)
    return {**known, "phase": phase or None, "step_ns": step_ns - gain, **_gain(gain, step_ns)}


def _of_the_median(analysis: Analysis, phase: str) -> float:
    """What share of a mean over steps the median step has: a mean above all that this one takes
    is larger in longer steps."""
    spread = find_spread(analysis, phase)
    return 1.0 if spread is None else min(1.0, spread.median_ns / float(spread.walls.mean()))


def _gain(gain_ns: int, whole_ns: int) -> dict[str, Any]:
    return {"gain_ns": gain_ns, "gain_ratio": gain_ns / whole_ns if whole_ns else None}


def _median_step(analysis: Analysis, cost: Cost) -> int | None:
    """Of the one phase that the finding is about, on one device: its times are a stopwatch's. Of
    what lies between steps that are calls, from start to start."""
    if len(cost.phases) != 1 or not cost.of_steps or analysis.window.devices > 1:
        return None
    apart = cost.between_ratio > NOTABLE_BETWEEN_RATIO
    turn = turn_ns(analysis, next(iter(cost.phases))) if apart else None
    if turn is not None:
        return turn
    steps = analysis.steps
    alike = steps[steps["phase"].isin(cost.phases)]
    steady = alike[~alike["warmup"]]
    return round(float((steady if len(steady) else alike)["wall_ns"].median()))
