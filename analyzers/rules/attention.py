"""Rule fallback.attention: the slow attention that nobody was told about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracer.analysis import BUCKET_CODE, BUCKETS, Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.evidence.attribution import HOW_CODE
from tracer.analyzers.facts.places import Places
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.framework_words import quoted
from tracer.analyzers.rules.attention_arguments import AttentionCalls, refused_backends
from tracer.analyzers.rules.attention_gain import Gain, Judged, Slow, gain_of, signature_of
from tracer.analyzers.rules.attention_notes import BACKENDS, NOTE, second_best
from tracer.analyzers.rules.attention_paths import MATH, AttentionCall, backends_by_site, slow_rows
from tracer.analyzers.rules.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.findings import Check, Finding, Where

RULE = "fallback.attention"
_NO_SDPA = "offers no sdpa"
_FAST_PATH = "the inference fast path of nn.MultiheadAttention computes them so here"
_CAPPED = "scores are capped (tanh), which scaled_dot_product_attention does not do"
_NONE_SEEN = "no argument speaks against a fused kernel: the program may have switched them off"
_NONE_KNOWN = "no argument is known to speak against a fused kernel, and the program allows them"
_MOST_SITES = 8
_EXPERTS = [BUCKET_CODE["ffn", part] for part in ("router", "experts")]


def judge_attention(context: Context, analysis: Analysis) -> RuleResult:
    """Attention that ran unfused, and fused attention that is not the fastest."""
    if not analysis.accounted:
        reason = analysis.breakdown_reason
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in (RULE, NOTE)))
    judged = Judged(context, analysis, AttentionCalls(context.work))
    calls = _of_attention(context, context.work.once(slow_rows)[0])
    findings, notes = quoted(context.work.trace, RULE, _fallbacks(judged, calls))
    findings += tuple(second_best(judged))
    ran = _ran(context)
    checks = tuple(verdict(rule, findings, ran) for rule in (RULE, NOTE))
    return RuleResult(findings, checks, notes)


def _of_attention(context: Context, calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Without the chains of a gate and the experts that it weighs: product, softmax, product."""
    attribution = context.attribution
    by_module = attribution.how == HOW_CODE["module"]
    experts = by_module & np.isin(attribution.bucket, _EXPERTS)
    return [c for c in calls if c.backend == MATH or not experts[c.rows].any()]


def _ran(context: Context) -> str:
    """Which backend ran where, for the checks: a clean answer names what it is about."""
    sites = [
        f"{BACKENDS.get(backend, backend)} ran {_times(count)}{f' in {place}' if place else ''}"
        for backend, places in context.work.once(backends_by_site).items()
        for place, count in places.items()
    ]
    more = f" and {len(sites) - _MOST_SITES} more" if len(sites) > _MOST_SITES else ""
    return "; ".join(sites[:_MOST_SITES]) + more


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _fallbacks(judged: Judged, calls: Sequence[AttentionCall]) -> list[Finding]:
    """One finding for each backend and place."""
    places = judged.context.work.once(Places)
    groups: dict[tuple[str, Where], list[AttentionCall]] = {}
    for call in calls:
        groups.setdefault((call.backend, _place(judged, places, call)), []).append(call)
    return [
        _fallback(judged, _slow(judged, backend, where, found))
        for (backend, where), found in groups.items()
    ]


def _place(judged: Judged, places: Places, call: AttentionCall) -> Where:
    where = places.of_work(int(call.rows[0]))
    line = None if where.file else judged.arguments.line(call.operator)
    if line is None:
        return where
    return replace(where, file=line.file, line=line.line, function=line.function)


def _slow(judged: Judged, backend: str, where: Where, calls: list[AttentionCall]) -> Slow:
    known = (signature_of(judged, call) for call in calls)
    return Slow(backend, where, calls, next(filter(None, known), None))


def _fallback(judged: Judged, slow: Slow) -> Finding:
    rows = slow.rows
    cost, gain, why = judged.charged(rows), gain_of(judged, slow), _why(judged, slow)
    steps = np.unique(judged.context.plan.work_step[rows])
    return Finding(
        rule=RULE,
        severity=severity_of(cost, judged.analysis),
        title=_title(slow, why),
        count=len(slow.calls),
        cost_ns=cost,
        ratio=ratio_of(cost, judged.analysis),
        steps=tuple(int(step) for step in steps if step != NONE),
        where=slow.where,
        detail=_detail(judged, slow, cost, gain, why),
        advice=_advice(slow, cost, why),
        gain_ns=gain.ns,
        events=tuple(_longest(judged, rows)),
    )


def _detail(judged: Judged, slow: Slow, cost: int, gain: Gain, why: list[str]) -> dict[str, Any]:
    signature = slow.signature
    return {
        "backend": slow.backend,
        "expected": _expected(slow, on_cpu=judged.context.work.cpu_only),
        "reasons": why,
        **_refused(slow),
        "layers": _layers(judged, slow),
        "kernels": int(slow.rows.size),
        "attention_ratio": _share_of_attention(judged.analysis, cost),
        "score_bytes": signature.score_bytes if signature else None,
        "gain_basis": gain.basis,
    }


def _refused(slow: Slow) -> dict[str, Any]:
    """Backend -> what speaks against it, and who says so: torch itself, or its arguments."""
    if slow.backend != MATH or slow.signature is None:
        return {}
    framework = slow.signature.framework
    refused = framework or refused_backends(slow.signature)
    if not refused:
        return {}
    return {
        "refused": {name: list(reasons) for name, reasons in refused.items()},
        "refused_by": "torch" if framework else "arguments",
    }


def _why(judged: Judged, slow: Slow) -> list[str]:
    """Reasons, the most telling first."""
    if slow.backend != MATH:
        return _why_by_hand(judged, slow)
    if slow.signature is None:
        return _why_without_arguments(judged, slow)
    said = [
        f"{BACKENDS[backend]}: {text}"
        for backend, texts in slow.signature.framework.items()
        for text in texts
    ]
    silent = _NONE_SEEN if slow.signature.switched_off is None else _NONE_KNOWN
    return list(dict.fromkeys(slow.reasons + said)) or [silent]


def _why_without_arguments(judged: Judged, slow: Slow) -> list[str]:
    """What the operators inside the call give away, where its arguments are not recorded."""
    work = judged.context.work
    named = work.trace.named(lambda name: "dropout" in name, "operator")
    inside = set(work.host.outer_operator[np.flatnonzero(named)].tolist())
    drops = any(call.operator in inside for call in slow.calls)
    return (
        ["dropout is applied: no fused kernel for CPUs has it"] if work.cpu_only and drops else []
    )


def _why_by_hand(judged: Judged, slow: Slow) -> list[str]:
    work, facts = judged.context.work, judged.analysis.facts
    module = int(work.module[slow.calls[0].rows[0]])
    operators = _operators_around(work, slow.calls[0])
    if "aten::_native_multi_head_attention" in operators:
        return [_FAST_PATH]
    if "aten::tanh" in operators:
        return [_CAPPED, *_asked_for(facts)]
    if module != NONE and work.tree.types[module] == "MultiheadAttention":
        return ["nn.MultiheadAttention returns weights unless need_weights=False"]
    return _asked_for(facts)


def _asked_for(facts: Mapping[str, Any]) -> list[str]:
    if facts.get("attention_implementation") != "eager":
        return []
    asked = facts.get("attention_requested")
    return [f"attn_implementation is 'eager'{f', asked for: {asked}' if asked else ''}"]


def _operators_around(work: Work, call: AttentionCall) -> set[str]:
    """Names of the operators that hold the work of a call, and of those fused in its kernels."""
    kernels = np.unique(work.name_code[call.rows]).tolist()
    found = {f"aten::{fused}" for code in kernels for fused in work.names[code].fused_ops}
    rows = work.operator[call.rows]
    while (rows := np.unique(rows[rows != NONE])).size:
        found.update(work.trace.names[code] for code in work.trace.name_codes[rows].tolist())
        rows = take(work.host.operator, take(work.host.parent, rows))
    return found


def _layers(judged: Judged, slow: Slow) -> int | None:
    """Distinct modules that hold these calls; None where modules are not recorded."""
    modules = judged.context.work.module[[int(call.rows[0]) for call in slow.calls]]
    return int(np.unique(modules[modules != NONE]).size) or None


def _longest(judged: Judged, rows: Longs) -> list[int]:
    """Events of these pieces of work, the longest first, at most a hundred."""
    trace, events = judged.context.work.trace, judged.context.work.event[rows]
    order = np.argsort(trace.start_ns[events] - trace.end_ns[events], kind="stable")
    longest: list[int] = events[order][:100].tolist()
    return longest


def _share_of_attention(analysis: Analysis, cost: int) -> float | None:
    attention = [code for code, (group, _) in enumerate(BUCKETS) if group == "attention"]
    mine = analysis.charges["bucket"].isin(attention)
    total = int(analysis.charges["ns"][mine].sum())
    return cost / total if total else None


def _expected(slow: Slow, *, on_cpu: bool) -> str:
    signature = slow.signature
    if on_cpu:
        return "the fused kernel for CPUs (flash)"
    if slow.backend != MATH or signature is None:
        return "a fused kernel (flash, cuDNN, memory-efficient)"
    refused = refused_backends(signature)
    left = [name for backend, name in BACKENDS.items() if backend not in refused]
    if left:
        return f"a fused kernel: {', '.join(left)} take these arguments"
    return "a fused kernel (flash, cuDNN, memory-efficient), after the change below"


def _title(slow: Slow, why: list[str]) -> str:
    calls = "1 call" if len(slow.calls) == 1 else f"{len(slow.calls)} calls"
    # What torch says of each backend follows in the details.
    first = slow.reasons or why[:1]
    reasons = f": {'; '.join(first)}" if first else ""
    if slow.backend == MATH:
        return f"attention runs PyTorch's math path, {calls}{reasons}"
    return (
        f"attention is computed by separate kernels (product, softmax, product), {calls}{reasons}"
    )


_HINTS = (
    ("dtype", "run attention in bf16 or fp16"),
    ("head size", "split heads or choose a kernel that takes this head size"),
    ("query heads", "expand keys and values to the query heads before the call"),
    ("mask has 3", "give the mask 4 dimensions: mask[None], batch x heads x queries x keys"),
    ("mask is given", "drop the mask (is_causal=True, or packed sequences)"),
    ("dropout", "set dropout_p=0.0 (evaluation mode)"),
    ("batch of", "expand queries, keys and values to one batch before the call"),
    ("value heads", "give keys and values the same heads"),
    ("not batch x", "pass batch x heads x length x size"),
    ("switched", "leave fused kernels on (look for sdpa_kernel and enable_flash_sdp)"),
    ("contiguous", "make the head size the contiguous dimension"),
    ("nested", "pad the sequences, or attend to one after another"),
    ("gradient", "give a mask without requires_grad"),
)


_WAY_OF_CAPPED = (
    "flex_attention caps scores in a score_mod, and flash_attention_2 by its softcap: "
    "attn_implementation of transformers takes either."
)
_WAY_OF_FAST_PATH = (
    "Pass need_weights=False; where that is done, torch.backends.mha.set_fastpath_enabled(False) "
    "lets it call scaled_dot_product_attention."
)
_WAY_WITHOUT_SDPA = (
    "This model has no sdpa: try attn_implementation='flash_attention_2' or 'flex_attention' "
    "where it takes them, or a newer version of it."
)
_WAYS = ((_CAPPED, _WAY_OF_CAPPED), (_FAST_PATH, _WAY_OF_FAST_PATH), (_NO_SDPA, _WAY_WITHOUT_SDPA))


def _advice(slow: Slow, cost: int, why: list[str]) -> str:
    took = f"It takes {milliseconds(cost)} in this recording. "
    for reason, way in _WAYS:
        if any(reason in one for one in why):
            return took + way
    if slow.backend != MATH:
        return took + (
            "Use scaled_dot_product_attention: attn_implementation='sdpa' in transformers, "
            "need_weights=False in nn.MultiheadAttention, and do not ask for attention weights "
            "(output_attentions=False)."
        )
    hints = [hint for word, hint in _HINTS if any(word in reason for reason in why)]
    text = "; ".join(hints) or "see which backend refuses with torch.nn.attention.sdpa_kernel"
    more = slow.signature.score_bytes if slow.signature else None
    large = more is not None and more >= 2**20
    scores = f" The score matrix takes {(more or 0) / 2**20:.0f} MiB a call." if large else ""
    return took + text[0].upper() + text[1:] + "." + scores
