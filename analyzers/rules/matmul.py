"""Rule fallback.matmul: slow matrix products, by what ran."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.device_kind import nvidia_generation, vendor_of
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.names.framework_words import quoted
from tracer.analyzers.rules.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.analyzers.rules.slow_products import (
    CAUSES,
    TF32_GENERATION,
    causes_of,
    estimate,
    grouped_by_place,
    low_rank,
    products_of,
)
from tracer.findings import Check, Finding, Severity, Where

RULE = "fallback.matmul"
# Products below these shares of the busy time and of the window are no finding at all.
_TINY_OF_BUSY, _TINY_OF_WINDOW = 0.005, 0.001


def judge_matmul(context: Context, analysis: Analysis) -> RuleResult:
    """Each slow product has the first cause that fits; one finding for each cause and place."""
    reason = _unjudged(context, analysis)
    if reason:
        return RuleResult(checks=(Check(RULE, "not_checked", reason),))
    causes = causes_of(context)
    findings, notes = quoted(
        context.work.trace,
        RULE,
        [
            finding
            for code, cause in enumerate(CAUSES)
            for finding in _by_place(context, analysis, cause, np.flatnonzero(causes == code))
        ],
    )
    return RuleResult(findings, (_check(context, findings),), notes)


def _unjudged(context: Context, analysis: Analysis) -> str:
    """Why nothing can be said of products; "" when something can."""
    if not analysis.accounted:
        return analysis.breakdown_reason
    if analysis.cpu_only:
        return "no device was recorded"
    if vendor_of(context.work.trace) == "amd":
        return "the names of AMD's kernels do not tell slow products from fast ones"
    return ""


def _check(context: Context, findings: tuple[Finding, ...]) -> Check:
    check = verdict(RULE, findings)
    if check.status == "clear" and nvidia_generation(context.work.trace) is None:
        return Check(RULE, "partial", "the device's architecture is not recorded")
    return check


def _by_place(context: Context, analysis: Analysis, cause: str, rows: Longs) -> list[Finding]:
    charged = analysis.work["charged_ns"].to_numpy()
    least = max(
        _TINY_OF_BUSY * (analysis.window.busy_ns or 0),
        _TINY_OF_WINDOW * analysis.window.capacity_ns,
    )
    if not rows.size or int(charged[rows].sum()) < least:
        return []
    places = grouped_by_place(context, rows)
    large = {w: mine for w, mine in places.items() if int(charged[mine].sum()) >= least}
    rest = [mine for where, mine in places.items() if where not in large]
    scattered = np.concatenate(rest) if rest else rows[:0]
    if int(charged[scattered].sum()) >= least:
        large[Where()] = scattered
    return [_finding(context, analysis, cause, where, members) for where, members in large.items()]


_TITLES = {
    "fp32": "run in fp32 outside the tensor cores",
    "misaligned": "run a kernel for misaligned operands",
    "old-architecture": "run a kernel of an older architecture",
}
_EXPECTED = {
    "fp32": "a tensor-core kernel (TF32 or bf16)",
    "misaligned": "a kernel for operands aligned to 16 bytes",
    "old-architecture": "a kernel built for this device",
}
_ADVICE = {
    "fp32": (
        "Run this part in bf16 (autocast, or the model's dtype), or allow TF32: "
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'."
    ),
    "misaligned": (
        "Pad the inner and outer sizes to multiples of 8 elements (vocabulary, hidden size), and "
        "keep operands contiguous."
    ),
    "old-architecture": (
        "Update cuBLAS or PyTorch, or change shapes and layout: the library found no kernel of "
        "this architecture for them."
    ),
}
_WITHOUT_TF32 = "This GPU has no TF32: only fp16 (autocast) runs on its tensor cores."
_OF_ADAPTERS = (
    "Low-rank products such as those of LoRA adapters: give the adapter the model's dtype "
    "(autocast_adapter_dtype=False in peft), or allow TF32: "
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'."
)


def _finding(
    context: Context, analysis: Analysis, cause: str, where: Where, rows: Longs
) -> Finding:
    cost = int(analysis.work["charged_ns"].to_numpy()[rows].sum())
    gain = estimate(context, analysis, cause, rows)
    forward = rows[context.work.forward[rows] == NONE]
    rank = low_rank(products_of(context.work, forward))
    steps = np.unique(context.plan.work_step[rows])
    return Finding(
        rule=RULE,
        severity=_severity(
            context, analysis, cause, cost if gain.gain_ns is None else gain.gain_ns
        ),
        title=f"matrix products{f' of rank {rank}' if rank else ''} {_TITLES[cause]}",
        count=int(rows.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(int(step) for step in steps if step != NONE),
        where=where,
        detail={
            **_detail(context, analysis, cause, rows),
            "rank": rank,
            "gain_basis": gain.basis,
        },
        advice=f"They take {milliseconds(cost)}. {_advice(context, cause, rank)}",
        gain_ns=gain.gain_ns,
        events=tuple(_longest(context, rows)),
    )


def _severity(context: Context, analysis: Analysis, cause: str, at_stake_ns: int) -> Severity:
    """By what a change would give back, where that is known; info where only the type of the
    numbers could change it."""
    return "info" if _without_tf32(context, cause) else severity_of(at_stake_ns, analysis)


def _without_tf32(context: Context, cause: str) -> bool:
    major = nvidia_generation(context.work.trace)
    return cause == "fp32" and major is not None and major < TF32_GENERATION


def _advice(context: Context, cause: str, rank: int | None) -> str:
    if _without_tf32(context, cause):
        return _WITHOUT_TF32
    return _OF_ADAPTERS if rank and cause == "fp32" else _ADVICE[cause]


def _detail(context: Context, analysis: Analysis, cause: str, rows: Longs) -> dict[str, Any]:
    work = context.work
    arguments = Arguments(work.trace)
    names = dict.fromkeys(work.names[code].short for code in work.name_code[rows])
    gradients = rows[work.forward[rows] != NONE]
    charged = analysis.work["charged_ns"].to_numpy()
    known = analysis.facts.get("fp32_products") if cause == "fp32" else None
    return {
        "cause": cause,
        "kernels": list(names)[:5],
        "expected": _EXPECTED[cause],
        "shapes": arguments.distinct(arguments.rows(work.operator[rows]).tolist())[:5],
        "backward_ns": int(charged[gradients].sum()),
        **({"fp32_products": known} if known else {}),
    }


def _longest(context: Context, rows: Longs) -> list[int]:
    """Events of these products, the longest first, at most a hundred."""
    trace, events = context.work.trace, context.work.event[rows]
    order = np.argsort(trace.start_ns[events] - trace.end_ns[events], kind="stable")
    longest: list[int] = events[order][:100].tolist()
    return longest
