"""Rules gap.compile and warmup.first_use on a recording of the CPU alone: time in which code is
compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import Longs
from tracer.analyzers.rules.compilations import again_ns, compilation, compiled_in
from tracer.analyzers.rules.judging import longest_first, verdict
from tracer.findings import Finding, Where

# A compilation is named from this share of the window on.
_NAMED_SHARE = 0.005
_RULES = ("gap.compile", "warmup.first_use")


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
    gaps = context.gaps
    return compiled_in(context.work.trace, int(gaps.start_ns[row]), int(gaps.end_ns[row]))


def _finding(context: Context, analysis: Analysis, where: Where, rows: Longs) -> Finding:
    gaps = context.gaps
    length = gaps.end_ns[rows] - gaps.start_ns[rows]
    cost = int(length.sum())
    steps = context.plan.touched(gaps.step[rows], gaps.start_ns[rows])
    again = again_ns(context.work.trace, where, gaps.start_ns[rows], gaps.end_ns[rows])
    found = compilation(analysis, "compile", where, cost, steps, again=again)
    return replace(found, pauses=longest_first(rows, length))
