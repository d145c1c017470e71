"""Rule fallback.quantized_matmul: weights are widened to half precision before each product."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.framework_words import quoted
from tracer.analyzers.rules.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.analyzers.rules.slow_products import block_of
from tracer.findings import Check, Finding, Where

RULE = "fallback.quantized_matmul"
_NARROW = re.compile(r"signed char|unsigned char|[Ff]loat8|c10::Float8|int8|uint8|Byte|Char")
_WIDE = re.compile(r"BFloat16|Half|float$|double$")
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
_DEQUANTIZES = re.compile(r"dequant", re.I)
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear")
# A dequantization belongs to a product launched at most so many kernels later.
_REACH = 4
_PACKED = ("int4", "fp4")
_BASIS = "measured: the widening, which a fused kernel does not make"


@dataclass(frozen=True)
class _Pair:
    """Work that widens weights, and the product that follows it."""

    widening: int
    product: int


def judge_quantized(context: Context, analysis: Analysis) -> RuleResult:
    """Widening and product in pairs; one finding for each block."""
    if not analysis.accounted:
        return RuleResult(checks=(Check(RULE, "not_checked", analysis.breakdown_reason),))
    groups: dict[Where, list[_Pair]] = {}
    for pair in _pairs(context):
        groups.setdefault(Where(module=block_of(context, pair.widening)), []).append(pair)
    findings, notes = quoted(
        context.work.trace,
        RULE,
        [_finding(context, analysis, where, found) for where, found in groups.items()],
    )
    return RuleResult(findings, (_check(context, analysis, findings),), notes)


def _check(context: Context, analysis: Analysis, findings: tuple[Finding, ...]) -> Check:
    check = verdict(RULE, findings)
    if check.status != "clear" or len(context.work.trace.table("shapes")):
        return check
    if analysis.facts.get("narrow_weights") is False:
        return Check(RULE, "clear", "no module that was called holds weights of 8 bits or fewer")
    said = "types of operands are not recorded; kernels were looked at by name"
    return Check(RULE, "partial", said)


def _pairs(context: Context) -> list[_Pair]:
    work = context.work
    order = np.argsort(work.trace.start_ns[work.event], kind="stable")
    widening, product = _widening(work), _is_product(work)
    pairs = []
    for place in np.flatnonzero(widening[order]).tolist():
        following = order[place + 1 : place + 1 + _REACH]
        hits = following[product[following]]
        if hits.size and _together(context, int(order[place]), int(hits[0])):
            pairs.append(_Pair(int(order[place]), int(hits[0])))
    return pairs


def _is_product(work: Work) -> NDArray[np.bool_]:
    if work.cpu_only:
        named = work.trace.names_matching(lambda name: name in _PRODUCTS)
        by_operator: NDArray[np.bool_] = named[work.trace.name_codes[work.event]]
        return by_operator
    # A kernel that multiplies packed weights is what should run: scales are widened before it too.
    by_kernel = [name.category == "gemm" and name.precision not in _PACKED for name in work.names]
    found: NDArray[np.bool_] = np.array(by_kernel, dtype=bool)[work.name_code]
    return found


def _together(context: Context, first: int, second: int) -> bool:
    """In one module where modules are known, else in one step."""
    module = context.work.module
    if module[first] != NONE and module[second] != NONE:
        return bool(module[first] == module[second])
    return bool(context.plan.work_step[first] == context.plan.work_step[second])


def _widening(work: Work) -> NDArray[np.bool_]:
    """Dequantization by the name of the kernel or of an operator around it, and copies from an
    8-bit type to a wide one by the types of their operator."""
    by_name = np.array([name.category == "dequantize" for name in work.names], dtype=bool)
    inside = take(_dequantizing(work), work.operator) != NONE
    found: NDArray[np.bool_] = by_name[work.name_code] | inside | _narrow_copies(work)
    return found & work.is_kernel


def _dequantizing(work: Work) -> Longs:
    """For each event the outermost operator around it that says that it dequantizes."""
    return work.host.outermost(work.trace.named(_DEQUANTIZES.search, "operator"))


def _narrow_copies(work: Work) -> NDArray[np.bool_]:
    named = work.trace.names_matching(lambda name: name in _COPIES)
    copies = named[work.trace.name_codes[np.maximum(work.operator, 0)]] & (work.operator != NONE)
    found = np.zeros(work.event.size, dtype=bool)
    arguments = Arguments(work.trace)
    rows = np.flatnonzero(copies)
    found[rows] = arguments.passing(_widens, arguments.rows(work.operator[rows]))
    return found


def _widens(types: tuple[str, ...]) -> bool:
    """Whether a copy goes from a narrow type to a wide one: `copy_(target, source)`."""
    if len(types) < 2:
        return False
    return bool(_WIDE.search(types[0])) and bool(_NARROW.search(types[1]))


def _finding(context: Context, analysis: Analysis, where: Where, pairs: list[_Pair]) -> Finding:
    charged = analysis.work["charged_ns"].to_numpy()
    rows: Longs = np.array([pair.widening for pair in pairs], dtype=np.int64)
    products = np.unique([pair.product for pair in pairs])
    cost, after = _widening_ns(context.work, charged, rows), int(charged[products].sum())
    steps = np.unique(context.plan.work_step[rows])
    learning = bool((context.attribution.direction > 1).any())
    title = "quantized weights are widened to half precision before each product"
    return Finding(
        rule=RULE,
        severity="info" if learning else severity_of(cost, analysis),
        title=f"{title}{', as 4-bit training does' if learning else ''}",
        count=int(products.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(int(step) for step in steps if step != NONE),
        where=where,
        detail={
            "dequantize_ns": cost,
            "matmul_ns": after,
            "widenings": len(pairs),
            "training": learning,
            "kernels": _names(context.work, rows),
            "expected": "a fused kernel over packed weights",
            "gain_basis": None if learning else _BASIS,
        },
        advice=_advice(cost, after, learning),
        gain_ns=None if learning else cost,
        events=tuple(context.work.event[rows][:100].tolist()),
    )


def _widening_ns(work: Work, charged: Longs, rows: Longs) -> int:
    """Time of the widening. Without a device an operator's own code is none of its leaves."""
    if not work.cpu_only:
        return int(charged[rows].sum())
    around = take(_dequantizing(work), work.operator[rows])
    whole = np.unique(around[around != NONE])
    spans = work.trace.end_ns[whole] - work.trace.start_ns[whole]
    return int(charged[rows[around == NONE]].sum()) + int(spans.sum())


def _advice(cost: int, after: int, learning: bool) -> str:
    took = f"Widening takes {milliseconds(cost)}, the products {milliseconds(after)}. "
    if learning:
        return took + "That is how 4-bit training works; a larger batch amortizes it."
    return took + (
        "Use a kernel that multiplies the packed weights (Marlin, Machete, torchao, "
        "bitsandbytes at batch 1), or keep half-precision weights if memory allows."
    )


def _names(work: Work, rows: Longs) -> list[str]:
    if work.cpu_only:
        around = take(_dequantizing(work), work.operator[rows])
        events = np.where(around == NONE, work.event[rows], around)
        names = (work.trace.names[code] for code in work.trace.name_codes[events])
    else:
        names = (work.names[code].short for code in work.name_code[rows])
    return list(dict.fromkeys(names))[:5]
