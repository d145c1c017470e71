"""Rule fallback.moe: experts run one after another, each with its own small products."""

from __future__ import annotations

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.intervals import NONE, Longs, covered, take, union
from tracer.analyzers.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.analyzers.pipeline import Context
from tracer.analyzers.places import Places
from tracer.findings import Check, Finding, Where

# What a loop over experts does for each: gather its tokens, multiply, add them back.
_ADD_BACK = ("aten::index_add_", "aten::index_add", "aten::scatter_add_")
# From so many experts in one call of a block on, a loop is a loop.
_EXPERTS = 3


def judge_moe(context: Context, analysis: Analysis) -> RuleResult:
    """Loops over experts, from the operators that add each expert's tokens back."""
    rule = "fallback.moe"
    if not analysis.accounted:
        return RuleResult(checks=(Check(rule, "not_checked", analysis.breakdown_reason),))
    host = context.work.host
    if not host.of_kind("operator").any():
        return RuleResult(checks=(Check(rule, "not_checked", "no operators are recorded"),))
    groups: dict[Where, list[Longs]] = {}
    places = Places(context.work)
    for loop in _loops(context):
        where = places.of(int(loop[0]))
        groups.setdefault(Where(where.file, where.line, where.function), []).append(loop)
    findings = [_finding(context, analysis, where, loops) for where, loops in groups.items()]
    return RuleResult(tuple(findings), (verdict(rule, findings),))


def _loops(context: Context) -> list[Longs]:
    """Operators that add back, one after another with a product in between, by block call."""
    trace, host = context.work.trace, context.work.host
    adds = trace.names_matching(lambda name: name in _ADD_BACK)[trace.name_codes]
    rows = np.flatnonzero(adds & host.of_kind("operator"))
    rows = rows[take(host.backward_node, rows) == NONE]
    block = _block_call(context, rows)
    products = _products(context)
    out = []
    for one in np.unique(block[block != NONE]).tolist():
        mine = rows[block == one]
        between = np.diff(np.searchsorted(products, trace.start_ns[mine]))
        if mine.size >= _EXPERTS and bool((between >= 1).all()):
            out.append(mine)
    return out


def _block_call(context: Context, rows: Longs) -> Longs:
    """The module range around the module that adds back, else the step: what one loop lies in."""
    work = context.work
    if work.tree.paths:
        return take(work.tree.range_event, rows)
    starts = np.array([step.start_ns for step in context.plan.host])
    return np.searchsorted(starts, work.trace.start_ns[rows], side="right").astype(np.int64)


def _products(context: Context) -> Longs:
    trace, host = context.work.trace, context.work.host
    named = trace.names_matching(lambda n: n in ("aten::mm", "aten::addmm", "aten::bmm"))
    starts: Longs = trace.start_ns[named[trace.name_codes] & host.of_kind("operator")]
    return starts


def _finding(context: Context, analysis: Analysis, where: Where, loops: list[Longs]) -> Finding:
    trace = context.work.trace
    experts = int(np.median([loop.size for loop in loops]))
    spans = [(int(trace.start_ns[loop[0]]), int(trace.end_ns[loop[-1]])) for loop in loops]
    idle = _idle_within(context, spans)
    return Finding(
        rule="fallback.moe",
        severity=severity_of(idle, analysis),
        title=f"experts run one after another: {experts} in a block, {len(loops)} blocks",
        count=len(loops),
        cost_ns=idle,
        ratio=ratio_of(idle, analysis),
        where=where,
        detail={
            "cause": "expert-loop",
            "experts": experts,
            "host_ns": sum(end - start for start, end in spans),
            "expected": "one grouped product over all experts",
        },
        advice=(
            f"The device idles {milliseconds(idle)} in these loops. Use a grouped or fused expert "
            "kernel (transformers' experts implementation 'grouped_mm', vLLM, SGLang, MegaBlocks)."
        ),
        events=tuple(int(loop[0]) for loop in loops[:100]),
    )


def _idle_within(context: Context, spans: list[tuple[int, int]]) -> int:
    gaps = context.gaps
    starts = np.array([start for start, _ in spans], dtype=np.int64)
    ends = np.array([end for _, end in spans], dtype=np.int64)
    return int(covered(gaps.start_ns, gaps.end_ns, *union(starts, ends)).sum())
