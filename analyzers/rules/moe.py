"""Rule fallback.moe: experts that run one after another, or with an untuned kernel."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.intervals import NONE, Longs, covered, take, union
from tracer.analyzers.names.framework_words import quoted, said
from tracer.analyzers.rules.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.findings import Check, Finding, Where

RULE = "fallback.moe"
# What a loop over experts does for each: find its tokens, multiply, add them back.
_ADD_BACK = ("aten::index_add_", "aten::index_add", "aten::scatter_add_")
# Assignments by index add back too, where each round finds its tokens by their values.
_ASSIGN = ("aten::index_put_", "aten::_index_put_impl_")
_FIND = ("aten::nonzero", "aten::_local_scalar_dense")
_CHOOSE = "aten::topk"
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
# From so many experts in one call of a block on, a loop is a loop.
_EXPERTS = 3
_UNTUNED = re.compile(r"default (MoE )?config", re.I)
_EXPERT_PARTS = (BUCKET_CODE["ffn", "experts"], BUCKET_CODE["ffn", "router"])


def judge_moe(context: Context, analysis: Analysis) -> RuleResult:
    """Loops over experts, from the operators that add each expert's tokens back; and kernels that
    the framework itself called untuned."""
    if not analysis.accounted:
        return RuleResult(checks=(Check(RULE, "not_checked", analysis.breakdown_reason),))
    found = _expert_loops(context, analysis) + _untuned(context, analysis)
    findings, notes = quoted(context.work.trace, RULE, found)
    check = verdict(RULE, findings)
    if check.status == "clear" and not context.work.host.of_kind("operator").any():
        check = Check(RULE, "not_checked", "no operators are recorded")
    return RuleResult(findings, (check,), notes)


# --- loops


def _expert_loops(context: Context, analysis: Analysis) -> list[Finding]:
    groups: dict[Where, list[Longs]] = {}
    places = context.work.once(Places)
    for loop in _loops(context):
        where = places.of(int(loop[0]))
        module = folded(where.module) if where.module else None
        where = Where(where.file, where.line, where.function, module)
        groups.setdefault(where, []).append(loop)
    return [_loop_finding(context, analysis, where, loops) for where, loops in groups.items()]


def _loops(context: Context) -> list[Longs]:
    """Operators that add back, one after another with a product in between, by block call."""
    trace = context.work.trace
    products = trace.start_ns[_forward(context, _PRODUCTS)]
    finds = trace.start_ns[_forward(context, _FIND)]
    out = []
    for names, between in ((_ADD_BACK, (products,)), (_ASSIGN, (products, finds))):
        rows = _outermost(context, names)
        block = _block_call(context, rows)
        for one in np.unique(block[block != NONE]).tolist():
            mine = rows[block == one]
            if mine.size >= _EXPERTS and _alternates(trace.start_ns[mine], between):
                out.append(mine)
    return out


def _alternates(rounds: Longs, between: tuple[Longs, ...]) -> bool:
    """Whether each of these stands at least once between every two rounds."""
    return all(bool((np.diff(np.searchsorted(times, rounds)) >= 1).all()) for times in between)


def _named(context: Context, names: tuple[str, ...]) -> NDArray[np.bool_]:
    ran = ~context.work.host.compiling
    found: NDArray[np.bool_] = ran & context.work.trace.named(
        lambda name: name in names, "operator"
    )
    return found


def _forward(context: Context, names: tuple[str, ...]) -> Longs:
    rows = np.flatnonzero(_named(context, names))
    forward: Longs = rows[take(context.work.host.backward_node, rows) == NONE]
    return forward


def _outermost(context: Context, names: tuple[str, ...]) -> Longs:
    rows = _forward(context, names)
    outer: Longs = np.unique(context.work.host.outermost(_named(context, names))[rows])
    return outer


def _block_call(context: Context, rows: Longs) -> Longs:
    """What one loop lies in: the module range around the module that adds back; without modules
    the time from one choice of experts to the next, in a step."""
    work = context.work
    if work.tree.paths:
        return take(work.tree.range_event, rows)
    starts = [step.start_ns for step in context.plan.host]
    starts += work.trace.start_ns[_forward(context, (_CHOOSE,))].tolist()
    bounds = np.array(sorted(starts), dtype=np.int64)
    return np.searchsorted(bounds, work.trace.start_ns[rows], side="right").astype(np.int64)


def _loop_finding(
    context: Context, analysis: Analysis, where: Where, loops: list[Longs]
) -> Finding:
    trace = context.work.trace
    experts = int(np.median([loop.size for loop in loops]))
    starts = np.array([trace.start_ns[loop[0]] for loop in loops], dtype=np.int64)
    ends = np.array([trace.end_ns[loop[-1]] for loop in loops], dtype=np.int64)
    cost = _beside_products(context, starts, ends)
    return Finding(
        rule=RULE,
        severity=severity_of(cost, analysis),
        title=f"experts run one after another: {experts} in each of {len(loops)} calls",
        count=len(loops),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=_steps_of(context, starts),
        where=where,
        detail={
            "cause": "expert-loop",
            "experts": experts,
            "host_ns": int((ends - starts).sum()),
            "waits": _count_within(trace.start_ns[_forward(context, _FIND)], starts, ends),
            "expected": "one grouped product over all experts",
            "gain_basis": "estimate: what the loop costs beside its products, but for one round",
        },
        advice=_loop_advice(context, cost),
        gain_ns=cost * (experts - 1) // experts,
        events=tuple(int(loop[0]) for loop in loops[:100]),
    )


def _loop_advice(context: Context, cost: int) -> str:
    lost = "The loops spend" if context.work.cpu_only else "The device idles"
    beside = " beside their products" if context.work.cpu_only else " in these loops"
    return (
        f"{lost} {milliseconds(cost)}{beside}. Use a grouped or fused expert kernel (transformers' "
        "experts_implementation='grouped_mm', vLLM, SGLang, MegaBlocks)."
    )


def _beside_products(context: Context, starts: Longs, ends: Longs) -> int:
    """Idle of the device within these times; without a device what is no product."""
    spans = union(starts, ends)
    if not context.work.cpu_only:
        return int(covered(context.gaps.start_ns, context.gaps.end_ns, *spans).sum())
    trace = context.work.trace
    rows = _forward(context, _PRODUCTS)
    inside = int(covered(trace.start_ns[rows], trace.end_ns[rows], *spans).sum())
    return int((spans[1] - spans[0]).sum()) - inside


def _count_within(times: Longs, starts: Longs, ends: Longs) -> int:
    first, last = np.searchsorted(times, starts), np.searchsorted(times, ends)
    return int((last - first).sum())


def _steps_of(context: Context, times: Longs) -> tuple[int, ...]:
    starts = np.array([step.start_ns for step in context.plan.host])
    at = np.searchsorted(starts, times, side="right") - 1
    return tuple(int(step) for step in np.unique(at) if step >= 0)


# --- untuned kernels


def _untuned(context: Context, analysis: Analysis) -> list[Finding]:
    """The framework said that it found no tuned configuration, and experts ran."""
    log = [line for line in said(context.work.trace, RULE) if _UNTUNED.search(line["message"])]
    rows = np.flatnonzero(np.isin(context.attribution.bucket, _EXPERT_PARTS))
    charged = analysis.work["charged_ns"].to_numpy()
    cost = int(charged[rows].sum())
    if not log or not cost:
        return []
    steps = np.unique(context.plan.work_step[rows])
    return [
        Finding(
            rule=RULE,
            severity="info" if severity_of(cost, analysis) == "info" else "warning",
            title="expert kernels run a default configuration, not one tuned for this device",
            count=int(rows.size),
            cost_ns=cost,
            ratio=ratio_of(cost, analysis),
            steps=tuple(int(step) for step in steps if step != NONE),
            detail=_untuned_detail(context, rows),
            advice=(
                f"Expert kernels take {milliseconds(cost)}. Tune them for this device and these "
                "sizes (vLLM: benchmarks/kernels/benchmark_moe.py --tune; SGLang: "
                "benchmark/kernels/fused_moe_triton) and keep the file that it writes."
            ),
            events=tuple(context.work.event[rows][:100].tolist()),
        )
    ]


def _untuned_detail(context: Context, rows: Longs) -> dict[str, Any]:
    names = dict.fromkeys(context.work.names[code].short for code in context.work.name_code[rows])
    return {
        "cause": "default-config",
        "kernels": list(names)[:5],
        "expected": "the same kernels with a tuned configuration",
        "gain_basis": "not estimated: how much tuning gives back is not in a recording",
    }
