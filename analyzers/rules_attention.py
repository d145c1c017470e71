"""Rules fallback.attention and attention.backend: the slow attention that nobody was told about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis import BUCKETS, Analysis, RuleResult
from tracer.analyzers.attention_paths import (
    MATH,
    AttentionCall,
    Signature,
    fused_backends,
    refusals,
    signature_of,
    slow_rows,
)
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.analyzers.pipeline import Context
from tracer.analyzers.places import Places, folded
from tracer.findings import Check, Finding, Where

_ITEM_BYTES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}


def judge_attention(context: Context, analysis: Analysis) -> RuleResult:
    """Attention that ran unfused, and fused attention that is not the fastest."""
    if not analysis.accounted:
        rules = ("fallback.attention", "attention.backend")
        reason = analysis.breakdown_reason
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in rules))
    calls, _ = slow_rows(context.work)
    findings = _fallbacks(context, analysis, calls) + _second_best(context, analysis)
    checks = tuple(verdict(rule, findings) for rule in ("fallback.attention", "attention.backend"))
    return RuleResult(tuple(findings), checks)


def _fallbacks(context: Context, analysis: Analysis, calls: list[AttentionCall]) -> list[Finding]:
    places = Places(context.work)
    groups: dict[tuple[str, Where], list[AttentionCall]] = {}
    for call in calls:
        where = places.of_work(int(call.rows[0]))
        groups.setdefault((call.backend, where), []).append(call)
    return [
        _fallback(context, analysis, backend, where, members)
        for (backend, where), members in groups.items()
    ]


def _fallback(
    context: Context, analysis: Analysis, backend: str, where: Where, calls: list[AttentionCall]
) -> Finding:
    rows = np.concatenate([call.rows for call in calls])
    cost = int(analysis.work["charged_ns"].to_numpy()[rows].sum())
    signature = next(
        (s for call in calls if (s := signature_of(context.work, call.operator))), None
    )
    reasons = refusals(signature) if signature else []
    steps = np.unique(context.plan.work_step[rows])
    detail = {
        "backend": backend,
        "expected": "a fused kernel (flash, cuDNN, memory-efficient)",
        "reasons": reasons,
        "kernels": int(rows.size),
        "attention_ratio": _share_of_attention(analysis, cost),
        "score_bytes": _score_bytes(signature),
    }
    return Finding(
        rule="fallback.attention",
        severity=severity_of(cost, analysis),
        title=_title(backend, len(calls), reasons),
        count=len(calls),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(int(step) for step in steps if step != NONE),
        where=where,
        detail=detail,
        advice=_advice(backend, cost, reasons, signature),
        gain_ns=None,
        events=tuple(_longest(context, rows)),
    )


def _longest(context: Context, rows: Longs) -> list[int]:
    """Events of these pieces of work, the longest first, at most a hundred."""
    trace, events = context.work.trace, context.work.event[rows]
    order = np.argsort(trace.start_ns[events] - trace.end_ns[events], kind="stable")
    longest: list[int] = events[order][:100].tolist()
    return longest


def _share_of_attention(analysis: Analysis, cost: int) -> float | None:
    attention = [code for code, (group, _) in enumerate(BUCKETS) if group == "attention"]
    mine = analysis.charges["bucket"].isin(attention)
    total = int(analysis.charges["ns"][mine].sum())
    return cost / total if total else None


def _score_bytes(signature: Signature | None) -> int | None:
    if signature is None or signature.dtype not in _ITEM_BYTES:
        return None
    return signature.score_elements * _ITEM_BYTES[signature.dtype]


def _title(backend: str, count: int, reasons: list[str]) -> str:
    why = f": {'; '.join(reasons)}" if reasons else ""
    if backend == MATH:
        return f"attention runs PyTorch's math path, {count} calls{why}"
    return f"attention is computed by separate kernels (product, softmax, product), {count} calls"


def _advice(backend: str, cost: int, reasons: list[str], signature: Signature | None) -> str:
    took = f"It takes {milliseconds(cost)} in this recording. "
    if backend != MATH:
        return took + (
            "Use scaled_dot_product_attention: attn_implementation='sdpa' in transformers, and do "
            "not ask for attention weights (output_attentions=False)."
        )
    hints = []
    if any("dtype" in reason for reason in reasons):
        hints.append("run attention in bf16 or fp16")
    if any("head size" in reason for reason in reasons):
        hints.append("split heads or choose a kernel that takes this head size")
    if any("heads" in reason and "query" in reason for reason in reasons):
        hints.append("expand keys and values to the query heads before the call")
    if any("mask" in reason for reason in reasons):
        hints.append("drop the mask (is_causal=True, or packed sequences)")
    text = "; ".join(hints) or "see which backend refuses with torch.nn.attention.sdpa_kernel"
    more = _score_bytes(signature)
    scores = f" The score matrix takes {more / 2**20:.0f} MiB a call." if more else ""
    return took + text[0].upper() + text[1:] + "." + scores


def _second_best(context: Context, analysis: Analysis) -> list[Finding]:
    """The memory-efficient kernel ran: fused, and slower than flash or cuDNN would be."""
    if analysis.cpu_only:
        return []
    events = fused_backends(context.work).get("efficient")
    if events is None:
        return []
    signature = next((s for e in events.tolist() if (s := signature_of(context.work, e))), None)
    reasons = refusals(signature) if signature else []
    rows = np.flatnonzero(take(_inside(context, events), context.work.site) != NONE)
    cost = int(analysis.work["charged_ns"].to_numpy()[rows].sum())
    where = Places(context.work).of(int(events[0]))
    why = f": {'; '.join(reasons)}" if reasons else ""
    return [
        Finding(
            rule="attention.backend",
            severity="info",
            title=f"attention runs the memory-efficient kernel, not flash or cuDNN{why}",
            count=int(events.size),
            cost_ns=cost,
            ratio=ratio_of(cost, analysis),
            where=replace(where, module=folded(where.module) if where.module else None),
            detail={"backend": "efficient", "reasons": reasons},
            advice="It is fused; only where attention dominates is another backend worth a try.",
            events=tuple(events.tolist()[:100]),
        )
    ]


def _inside(context: Context, events: Longs) -> Longs:
    """For each event which of these host rows lies around it; -1 for none."""
    mask = np.zeros(len(context.work.trace.events), dtype=bool)
    mask[events] = True
    return context.work.host.nearest(mask)
