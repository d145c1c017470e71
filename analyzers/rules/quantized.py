"""Rule fallback.quantized_matmul: weights are widened to half precision before each product."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.framework_words import quoted
from tracer.analyzers.rules.estimates import second_operand
from tracer.analyzers.rules.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.analyzers.rules.looked_up import Lookups
from tracer.analyzers.rules.slow_products import block_of
from tracer.analyzers.rules.widened import widened_elements
from tracer.findings import Check, Finding, Where

RULE = "fallback.quantized_matmul"
_DEQUANTIZES = re.compile(r"dequant", re.I)
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear")
# A dequantization belongs to a product launched at most so many kernels later.
_REACH = 4
# With types recorded the product is known by its weights: scales and views may lie between.
_FAR_REACH = 24
_PACKED = ("int4", "fp4")
_BASIS = "measured: the widening, which a fused kernel does not make"


@dataclass(frozen=True)
class _Pair:
    """Work that widens weights, and the product that follows it. beside: what unpacks and scales
    weights that are looked up in a table."""

    widening: int
    product: int
    beside: tuple[int, ...] = ()
    looked_up: bool = False


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
    """Widening by name and the product that follows closely; widening by type and the product that
    takes as many weights, wherever it follows in the module."""
    work = context.work
    order = np.argsort(work.trace.start_ns[work.event], kind="stable")
    named, product, elements = _widening(work), _is_product(work), widened_elements(work)
    widening = (named | (elements > 0)) & work.is_kernel
    weights = _weights_taken(work, np.flatnonzero(product)) if elements.any() else elements
    pairs = []
    for place in np.flatnonzero(widening[order]).tolist():
        row = int(order[place])
        following = order[place + 1 : place + 1 + (_REACH if named[row] else _FAR_REACH)]
        following = following[product[following]][: 1 if named[row] else None]
        fits = _fitting(int(elements[row]), weights[following])
        hits = [hit for hit in following[fits].tolist() if _together(context, row, hit)]
        pairs += [_Pair(row, hit) for hit in hits[:1]]
    return pairs + _looked_up(context, order[~named[order]])


def _looked_up(context: Context, order: Longs) -> list[_Pair]:
    """Weights that stand in a table, by their codes. Without types nothing tells of one."""
    if not len(context.work.trace.table("shapes")):
        return []
    return [
        _Pair(one.row, one.product, one.beside, looked_up=True)
        for one in Lookups(context.work, order).found()
        if _together(context, one.row, one.product)
    ]


def _fitting(elements: int, weights: Longs) -> NDArray[np.bool_]:
    """Products by so many weights, and those of which it is not known. Inputs that arrive in 8 bits
    are widened too, as pictures are."""
    fits: NDArray[np.bool_] = (weights == 0) | (weights == elements) | (elements == 0)
    return fits


def _weights_taken(work: Work, rows: Longs) -> Longs:
    """How many numbers the second operand of each product holds; 0 where it is not known."""
    arguments, out = Arguments(work.trace), np.zeros(work.event.size, dtype=np.int64)
    at = arguments.rows(work.operator[rows])
    codes = work.trace.name_codes[work.operator[rows]]
    out[rows] = [
        0 if row == NONE else prod(second_operand(work.trace.names[code], arguments.shapes(row)))
        for row, code in zip(at.tolist(), codes.tolist(), strict=True)
    ]
    return out


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
    """Dequantization by the name of the kernel or of an operator around it."""
    by_name = np.array([name.category == "dequantize" for name in work.names], dtype=bool)
    inside = take(_dequantizing(work), work.operator) != NONE
    found: NDArray[np.bool_] = by_name[work.name_code] | inside
    return found


def _dequantizing(work: Work) -> Longs:
    """For each event the outermost operator around it that says that it dequantizes."""
    return work.host.outermost(work.trace.named(_DEQUANTIZES.search, "operator"))


def _finding(context: Context, analysis: Analysis, where: Where, pairs: list[_Pair]) -> Finding:
    charged = analysis.work["charged_ns"].to_numpy()
    rows: Longs = np.array([pair.widening for pair in pairs], dtype=np.int64)
    products = np.unique([pair.product for pair in pairs])
    beside = [row for pair in pairs for row in pair.beside]
    makes = np.unique([*rows.tolist(), *beside])
    cost, after = _widening_ns(context.work, charged, makes), int(charged[products].sum())
    steps = np.unique(context.plan.work_step[rows])
    learning = bool((context.attribution.direction > 1).any())
    table = all(pair.looked_up for pair in pairs)
    how = "looked up in a table" if table else "widened to half precision"
    title = f"quantized weights are {how} before each product"
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
