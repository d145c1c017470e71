"""Rules fallback.matmul and fallback.quantized_matmul: slow matrix products, by what ran."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.attention_paths import slow_rows
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.analyzers.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.analyzers.kernel_names import KernelName
from tracer.analyzers.pipeline import Context
from tracer.analyzers.places import Places, folded
from tracer.findings import Check, Finding, Where

# Matrix products below this share of the busy time are no finding at all.
_TINY = 0.005
_NARROW = re.compile(r"signed char|unsigned char|[Ff]loat8|c10::Float8|int8|uint8|Byte|Char")
_WIDE = re.compile(r"BFloat16|Half|float$|double$")
# A dequantization belongs to a product launched at most so many kernels later.
_REACH = 4


def judge_matmul(context: Context, analysis: Analysis) -> RuleResult:
    """fallback.matmul: each slow product has the first cause that fits."""
    major = _capability(context)
    if not analysis.accounted or analysis.cpu_only:
        reason = analysis.breakdown_reason or "no device was recorded"
        return RuleResult(checks=(Check("fallback.matmul", "not_checked", reason),))
    _, in_attention = slow_rows(context.work)
    causes = _causes(context, major, in_attention)
    findings = [
        finding
        for cause in ("fp32", "misaligned", "old-architecture")
        for finding in _by_place(context, analysis, cause, np.flatnonzero(causes == cause))
    ]
    known = "" if major is not None else "the device's architecture is not recorded"
    check = verdict("fallback.matmul", findings, known)
    if known and check.status == "clear":
        check = Check("fallback.matmul", "partial", known)
    return RuleResult(tuple(findings), (check,))


def _capability(context: Context) -> int | None:
    """Compute capability (major) of the recorded NVIDIA devices; None when not recorded."""
    majors: NDArray[np.int32] = context.work.trace.table("devices")["major"].to_numpy()
    majors = majors[majors > 0]
    return int(majors.max()) if majors.size else None


def _causes(
    context: Context, major: int | None, excluded: NDArray[np.bool_]
) -> NDArray[np.object_]:
    work = context.work
    by_name = np.array([_cause_of(name, major) for name in work.names], dtype=object)
    causes = by_name[work.name_code]
    convolves = work.trace.names_matching(lambda name: "conv" in name.lower())
    in_convolution = convolves[work.trace.name_codes[np.maximum(work.operator, 0)]]
    causes[excluded | ~work.is_kernel | (in_convolution & (work.operator != NONE))] = ""
    return causes


def _cause_of(name: KernelName, major: int | None) -> str:
    if name.category != "gemm" or name.token in ("SPLITK", "CONV"):
        return ""
    flags = name.flags
    if "simt_fp32" in flags and "gemv" not in flags:
        return "fp32" if major is None or major >= 7 else ""
    if name.precision == "tf32":
        return ""
    if "misaligned" in flags:
        return "misaligned"
    built = re.fullmatch(r"sm(\d+)\d[a-z]?", name.architecture)
    old = major is not None and major >= 9 and built is not None and int(built[1]) < 9
    return "old-architecture" if old else ""


def _by_place(context: Context, analysis: Analysis, cause: str, rows: Longs) -> list[Finding]:
    charged = analysis.work["charged_ns"].to_numpy()
    busy = analysis.window.busy_ns or 0
    if not rows.size or int(charged[rows].sum()) < _TINY * busy:
        return []
    return [
        _slow_product(context, analysis, cause, where, members)
        for where, members in grouped_by_place(context, rows).items()
        if int(charged[members].sum()) >= _TINY * busy
    ]


def grouped_by_place(context: Context, rows: Longs) -> dict[Where, Longs]:
    """Work rows by the line that launched them, else by the block they count in, layers folded."""
    places = Places(context.work)
    groups: dict[Where, list[int]] = {}
    for row in rows.tolist():
        where = replace(places.of_work(row), module=_block(context, row))
        # Without a line the block is the place, whichever operator of it this is.
        where = where if where.file or where.module is None else Where(module=where.module)
        groups.setdefault(where, []).append(row)
    return {where: np.array(found, dtype=np.int64) for where, found in groups.items()}


_TITLES = {
    "fp32": "matrix products run in fp32 outside the tensor cores",
    "misaligned": "matrix products run a kernel for misaligned operands",
    "old-architecture": "matrix products run a kernel of an older architecture",
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


def _slow_product(
    context: Context, analysis: Analysis, cause: str, where: Where, rows: Longs
) -> Finding:
    cost = int(analysis.work["charged_ns"].to_numpy()[rows].sum())
    names = dict.fromkeys(context.work.names[c].short for c in context.work.name_code[rows])
    steps = np.unique(context.plan.work_step[rows])
    return Finding(
        rule="fallback.matmul",
        severity=severity_of(cost, analysis),
        title=_TITLES[cause],
        count=int(rows.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(int(step) for step in steps if step != NONE),
        where=where,
        detail={
            "cause": cause,
            "kernels": list(names)[:5],
            "expected": _EXPECTED[cause],
            "shapes": _shapes(context, rows),
        },
        advice=f"They take {milliseconds(cost)}. {_ADVICE[cause]}",
        events=tuple(context.work.event[rows][:100].tolist()),
    )


def _shapes(context: Context, rows: Longs) -> list[str]:
    """Distinct operand shapes of these products, where recorded."""
    table = context.work.trace.table("shapes")
    at = lookup(table["event"].to_numpy(), context.work.operator[rows])
    texts = table["input_shapes"].astype(str).tolist()
    return list(dict.fromkeys(texts[i] for i in at.tolist() if i != NONE))[:5]


# --- dequantize, then a product in half precision ----------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """Work that widens weights, and the product that follows it."""

    widening: int
    product: int


def judge_quantized(context: Context, analysis: Analysis) -> RuleResult:
    """fallback.quantized_matmul: weights are widened to half precision before each product."""
    rule = "fallback.quantized_matmul"
    if not analysis.accounted or analysis.cpu_only:
        reason = analysis.breakdown_reason or "no device was recorded"
        return RuleResult(checks=(Check(rule, "not_checked", reason),))
    groups: dict[Where, list[_Pair]] = {}
    for pair in _pairs(context):
        groups.setdefault(Where(module=_block(context, pair.widening)), []).append(pair)
    findings = [_quantized(context, analysis, where, found) for where, found in groups.items()]
    return RuleResult(tuple(findings), (verdict(rule, findings),))


def _block(context: Context, row: int) -> str | None:
    """The attention or FFN block that owns a piece of work, else its module; layers folded."""
    module = int(context.work.module[row])
    if module == NONE:
        return None
    block = context.roles.block[module]
    return folded(context.work.tree.paths[block if block != NONE else module])


def _pairs(context: Context) -> list[_Pair]:
    work = context.work
    starts = work.trace.start_ns[work.event]
    order = np.argsort(starts, kind="stable")
    widening = _widening(context)
    product = np.array([n.category == "gemm" for n in work.names], dtype=bool)[work.name_code]
    pairs = []
    for place in np.flatnonzero(widening[order]).tolist():
        following = order[place + 1 : place + 1 + _REACH]
        hits = following[product[following]]
        if hits.size and _together(context, int(order[place]), int(hits[0])):
            pairs.append(_Pair(int(order[place]), int(hits[0])))
    return pairs


def _together(context: Context, first: int, second: int) -> bool:
    """In one module where modules are known, else in one step."""
    module = context.work.module
    if module[first] != NONE and module[second] != NONE:
        return bool(module[first] == module[second])
    return bool(context.plan.work_step[first] == context.plan.work_step[second])


def _widening(context: Context) -> NDArray[np.bool_]:
    """Dequantization kernels by name, and copies from an 8-bit type to a wide one by the types of
    their operator."""
    work = context.work
    by_name = np.array([n.category == "dequantize" for n in work.names], dtype=bool)
    return by_name[work.name_code] | _narrow_copies(context)


def _narrow_copies(context: Context) -> NDArray[np.bool_]:
    work = context.work
    table = work.trace.table("shapes")
    events = table["event"].to_numpy()
    copies = work.trace.names_matching(lambda name: name == "aten::copy_")
    types = table["input_types"].astype(str).tolist()
    narrow = [
        bool(copies[work.trace.name_codes[event]]) and _widens(text)
        for event, text in zip(events.tolist(), types, strict=True)
    ]
    at = lookup(events, work.operator)
    found: NDArray[np.bool_] = take(np.array(narrow, dtype=np.int64), at) == 1
    return found & work.is_kernel


def _widens(text: str) -> bool:
    try:
        types = json.loads(text)
    except ValueError:
        return False
    if not isinstance(types, list) or len(types) < 2:
        return False
    return bool(_WIDE.search(str(types[0]))) and bool(_NARROW.search(str(types[1])))


def _quantized(context: Context, analysis: Analysis, where: Where, pairs: list[_Pair]) -> Finding:
    charged = analysis.work["charged_ns"].to_numpy()
    rows = np.array([pair.widening for pair in pairs], dtype=np.int64)
    products = np.unique([pair.product for pair in pairs])
    cost, after = int(charged[rows].sum()), int(charged[products].sum())
    steps = np.unique(context.plan.work_step[rows])
    learning = bool((context.attribution.direction > 1).any())
    title = "quantized weights are widened to half precision before each product"
    advice = f"Widening takes {milliseconds(cost)}, the products {milliseconds(after)}. " + (
        "That is how 4-bit training works; a larger batch amortizes it."
        if learning
        else "Use a kernel that multiplies the packed weights (Marlin, Machete, torchao, "
        "bitsandbytes at batch 1), or keep half-precision weights if memory allows."
    )
    return Finding(
        rule="fallback.quantized_matmul",
        severity="info" if learning else severity_of(cost, analysis),
        title=f"{title}{', as 4-bit training does' if learning else ''}",
        count=len(pairs),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(int(step) for step in steps if step != NONE),
        where=where,
        detail={
            "dequantize_ns": cost,
            "matmul_ns": after,
            "training": learning,
            "kernels": list(
                dict.fromkeys(context.work.names[c].short for c in context.work.name_code[rows])
            )[:5],
            "expected": "a fused kernel over packed weights",
        },
        advice=advice,
        gain_ns=None if learning else cost,
        events=tuple(context.work.event[rows][:100].tolist()),
    )
