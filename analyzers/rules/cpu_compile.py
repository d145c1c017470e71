"""Rules gap.compile and warmup.first_use on a recording of the CPU alone: time in which code is
compiled."""

from __future__ import annotations

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.judging import counted, milliseconds, ratio_of, severity_of, verdict
from tracer.findings import Finding, Where

# A compilation is named from this share of the window on.
_NAMED_SHARE = 0.005
_RULES = ("gap.compile", "warmup.first_use")
_AGAIN = (
    "It compiles again in most steps: keep shapes fixed or mark them dynamic "
    "(torch._dynamo.mark_dynamic), and look at the recompile reasons (TORCH_LOGS=recompiles)."
)
_ONCE = "Paid once: run a warm-up step before measuring or serving."


def judge_cpu_compiling(context: Context, analysis: Analysis) -> RuleResult:
    """What was compiled while no operator ran, one finding a function."""
    if not analysis.cpu_only:
        return RuleResult()
    rows = np.flatnonzero(context.gaps.cause == CAUSE_CODE["compile"])
    groups: dict[Where, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(_compiled_in(context, row), []).append(row)
    found = [_finding(context, analysis, where, np.array(r)) for where, r in groups.items()]
    kept = [f for f in found if (f.ratio or 0.0) >= _NAMED_SHARE]
    kept.sort(key=lambda finding: -(finding.cost_ns or 0))
    reason = "no device here: compiling on the host"
    return RuleResult(tuple(kept), tuple(verdict(rule, kept, reason) for rule in _RULES))


def _compiled_in(context: Context, row: int) -> Where:
    """The function whose compilation covers most of a pause, where the compiler told it."""
    table = context.work.trace.table("compile_events")
    start, end = int(context.gaps.start_ns[row]), int(context.gaps.end_ns[row])
    overlap = np.minimum(table["end_ns"].to_numpy(), end) - np.maximum(
        table["start_ns"].to_numpy(), start
    )
    named = (table["function"].astype(str) != "").to_numpy() & (overlap > 0)
    if not named.any():
        return Where()
    chosen = table.iloc[int(np.where(named, overlap, -1).argmax())]
    line = int(chosen["line"])
    return Where(str(chosen["file"]) or None, line if line > 0 else None, str(chosen["function"]))


def _finding(context: Context, analysis: Analysis, where: Where, rows: Longs) -> Finding:
    gaps = context.gaps
    cost = int((gaps.end_ns[rows] - gaps.start_ns[rows]).sum())
    steps = tuple(int(step) for step in np.unique(gaps.step[rows]) if step != NONE)
    returns = len(steps) > 1 and len(steps) > len(analysis.steps) / 2
    what = f"compiling {where.function}" if where.function else "compiling"
    return Finding(
        rule="gap.compile" if returns else "warmup.first_use",
        severity=severity_of(cost, analysis) if returns else "info",
        title=f"{what} takes {milliseconds(cost)}, in {len(steps)} of "
        f"{counted(len(analysis.steps), 'step')}",
        count=max(len(steps), 1),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=where,
        detail={"kind": "compile", "operator": None, "each_ns": cost // max(len(steps), 1)},
        advice=_AGAIN if returns else _ONCE,
        gain_ns=cost if returns else None,
    )
