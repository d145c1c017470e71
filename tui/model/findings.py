"""Findings and checks as rows, and one finding with its evidence, source and advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.style import Style

from tracer.analysis import Analysis
from tracer.exporters.absent import all_checks
from tracer.exporters.costs import Cost, gain_text, ranked_costs
from tracer.exporters.format import UNKNOWN, counted, duration_text, percent_text
from tracer.exporters.names import inert, where_text
from tracer.findings import SEVERITIES, Check
from tracer.tui.look import Look
from tracer.tui.model.lines import BOLD, Target
from tracer.tui.model.places import FindingNumber
from tracer.tui.model.signs import SEVERITY_MARKS
from tracer.tui.model.table import Column, Table

_PLAIN = Style()


@dataclass(frozen=True)
class RankedFinding:
    """A finding with its number in the analysis and its cost a step."""

    number: int
    cost: Cost


def ranked_findings(analysis: Analysis) -> list[RankedFinding]:
    """The findings, the costliest first."""
    numbers = {id(finding): number for number, finding in enumerate(analysis.findings)}
    return [RankedFinding(numbers[id(c.finding)], c) for c in ranked_costs(analysis)]


def findings_table(look: Look, ranked: Sequence[RankedFinding], analysis: Analysis) -> Table:
    """A row for each finding; Enter opens it."""
    costs = [item.cost for item in ranked]
    found = [cost.finding for cost in costs]
    marks = [SEVERITY_MARKS[finding.severity] for finding in found]
    columns = (
        Column("severity", "", marks, _severities(costs), "left", styles=_styles(costs)),
        Column("rule", "", [look.name(f.rule) for f in found], None, "left"),
        Column("title", "", [look.name(f.title) for f in found], None, "left", flexible=True,
               prose=True, least=34),
        Column("cost", "a step", [cost_text(cost) for cost in costs], _times(costs)),
        Column("share", "share", [percent_text(f.ratio) for f in found], _ratios(costs), rank=2),
        Column("gain", "gain", [gain_text(cost) for cost in costs], _gains(costs)),
        Column("steps", "steps", [steps_text(cost) for cost in costs], rank=3),
        Column("where", "where", [short_place(look, cost) for cost in costs], None, "left", rank=4),
    )  # fmt: skip
    return Table(
        columns,
        [f"{f.rule} {f.title} {where_text(f.where)}" for f in found],
        lambda row: Target("finding", FindingNumber(ranked[row].number)),
        empty=no_findings(analysis),
    )


def no_findings(analysis: Analysis) -> str:
    """What stands where no finding is: how much could be looked at."""
    checks = all_checks(analysis)
    open_checks = sum(check.status in ("not_checked", "partial") for check in checks)
    return f"none; {counted(open_checks, 'check')} could not be made in full"


def cost_text(cost: Cost) -> str:
    """Cost as the mean of the steps it touches; of the window where it touches none."""
    return duration_text(cost.cost_ns) + ("" if cost.of_steps or cost.cost_ns is None else " *")


def steps_text(cost: Cost) -> str:
    """`60/60`: steps it was seen in, of how many of their kind."""
    return f"{len(cost.finding.steps)}/{cost.of_steps}" if cost.of_steps else UNKNOWN


def short_place(look: Look, cost: Cost) -> str:
    """`llama.py:241`, or the module, or the operator."""
    where = cost.finding.where
    if where.file is not None:
        name = where.file.replace("\\", "/").rpartition("/")[2]
        text = f"{name}:{where.line}" if where.line is not None else name
    else:
        text = where.module or where.operator or where.function or UNKNOWN
    short = look.name(text)
    return short if len(short) <= 28 else short[:12] + look.sign("…", "~") + short[-15:]


def _severities(costs: Sequence[Cost]) -> NDArray[np.int64]:
    return np.array([-SEVERITIES.index(c.finding.severity) for c in costs], dtype=np.int64)


def _times(costs: Sequence[Cost]) -> NDArray[np.int64]:
    return np.array([c.finding.cost_ns or 0 for c in costs], dtype=np.int64)


def _gains(costs: Sequence[Cost]) -> NDArray[np.int64]:
    return np.array([c.finding.gain_ns or 0 for c in costs], dtype=np.int64)


def _ratios(costs: Sequence[Cost]) -> NDArray[np.float64]:
    return np.array([c.finding.ratio or 0 for c in costs], dtype=np.float64)


def _styles(costs: Sequence[Cost]) -> list[Style]:
    return [_PLAIN if c.finding.severity == "info" else BOLD for c in costs]


def checks_table(look: Look, checks: Sequence[Check]) -> Table:
    """A row for each check: what came of it, and why it was not made."""
    order = {"found": 0, "partial": 1, "not_checked": 2, "clear": 3}
    signs = {"found": "!", "partial": "~", "not_checked": "?", "clear": "ok"}
    states = [signs[check.status] for check in checks]
    columns = (
        Column(
            "status",
            "",
            states,
            np.array([order[check.status] for check in checks], dtype=np.int64),
            "left",
        ),
        Column("rule", "check", [look.name(check.rule) for check in checks], None, "left"),
        Column(
            "reason",
            "reason",
            [look.name(check.reason) or _reason(check) for check in checks],
            None,
            "left",
            flexible=True,
            prose=True,
        ),
    )
    return Table(columns, [f"{check.rule} {check.reason}" for check in checks])


def _reason(check: Check) -> str:
    return {"clear": "looked, nothing found", "found": "see the findings"}.get(check.status, "-")


def checks_sentence(analysis: Analysis) -> str:
    """`34 of 41 made: 5 found, 26 clear, 3 partial.` and why the others were not."""
    checks = all_checks(analysis)
    count = Counter(check.status for check in checks)
    made = len(checks) - count["not_checked"]
    text = f"{made} of {len(checks)} made: {count['found']} found, {count['clear']} clear, "
    text += f"{count['partial']} partial."
    reasons = Counter(c.reason or "no reason given" for c in checks if c.status == "not_checked")
    if reasons:
        listed = (f"{inert(reason)} ({count})" for reason, count in reasons.most_common(3))
        text += " Not made: " + "; ".join(listed)
    return text
