"""Matrix products that ran a slow kernel: which, why, and what a fast one would take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, Analysis
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.device_kind import nvidia_generation
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, distinct, take
from tracer.analyzers.names.kernel_table import KernelName
from tracer.analyzers.rules.attention_paths import slow_rows
from tracer.analyzers.rules.estimates import (
    SHORTEST_NS,
    DeviceLimits,
    Product,
    device_limits,
    product_basis,
    product_ns,
    product_of,
)
from tracer.analyzers.rules.weight_products import products_by_call
from tracer.findings import Where

# What an estimate rests on, in words.
WEIGHTS = "each module's weights and the tokens of the call"
_ROTARY = BUCKET_CODE["attention", "rope"]
CAUSES = ("fp32", "misaligned", "old-architecture")
# TF32 and bf16 came with the eighth generation. The seventh multiplies fp32 as well as it can.
TF32_GENERATION = 8
# An inner or outer size below this leaves nothing for tensor cores to do: an outer product, the
# angles of a rotary embedding.
_THIN = 8
# A product with such a small side and others so much larger is one of low rank.
_RANK, _RANK_FACTOR = 256, 4


def causes_of(context: Context) -> NDArray[np.int8]:
    """For each piece of work the first of CAUSES that fits; -1 for what is no slow product.

    Products of a slow attention belong to it; the angles of a rotary embedding, and what is over
    as soon as any product could be, are not slow."""
    work = context.work
    major = nvidia_generation(work.trace)
    _, in_attention = work.once(slow_rows)
    codes = {cause: code for code, cause in enumerate(CAUSES)}
    by_name = [codes.get(_cause_of(name, major), NONE) for name in work.names]
    causes = np.array(by_name, dtype=np.int8)[work.name_code]
    convolves = work.trace.names_matching(lambda name: "conv" in name.lower())
    in_convolution = convolves[work.trace.name_codes[np.maximum(work.operator, 0)]]
    causes[in_attention | ~work.is_kernel | (in_convolution & (work.operator != NONE))] = NONE
    causes[context.attribution.bucket == _ROTARY] = NONE
    causes[work.trace.events["duration_ns"].to_numpy()[work.event] < SHORTEST_NS] = NONE
    causes[_thin(work, np.flatnonzero(causes != NONE))] = NONE
    return causes


def _cause_of(name: KernelName, major: int | None) -> str:
    if name.category != "gemm" or name.token in ("SPLITK", "CONV"):
        return ""
    if name.simt_fp32 and not name.gemv:
        # Without a device its kernels tell: one built for a generation runs on none before it.
        return "fp32" if (major or _built_for(name)) >= 7 else ""
    if name.precision == "tf32":
        return ""
    if name.misaligned:
        return "misaligned"
    old = major is not None and major >= 9 and 0 < _built_for(name) < 9
    return "old-architecture" if old else ""


def _built_for(name: KernelName) -> int:
    """The generation a kernel was built for; 0 where its name does not tell."""
    built = re.fullmatch(r"sm(\d+)\d[a-z]?", name.architecture)
    return int(built[1]) if built else 0


def _thin(work: Work, rows: Longs) -> Longs:
    products = products_of(work, rows)
    thin = [p is not None and p.smallest < _THIN for p in products]
    return rows[np.array(thin, dtype=bool)] if rows.size else rows


def products_of(work: Work, rows: Longs) -> list[Product | None]:
    """What each piece of work multiplies, where shapes are recorded."""
    arguments, trace = Arguments(work.trace), work.trace
    operators = work.operator[rows]
    at = arguments.rows(operators)
    return [
        None
        if row == NONE
        else product_of(trace.names[trace.name_codes[operator]], arguments.shapes(row))
        for operator, row in zip(operators.tolist(), at.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class Estimate:
    """What the fast path would give back; None where the recording does not allow a number."""

    gain_ns: int | None
    basis: str


def estimate(context: Context, analysis: Analysis, cause: str, rows: Longs) -> Estimate:
    """Time of these products beyond what a good kernel would take for their shapes; where those are
    not recorded, for the weights of their modules and the tokens of the model's call."""
    limits = device_limits(context.work.trace)
    if limits is None:
        return Estimate(None, "not estimated: the limits of this device are not known")
    charged, precision = analysis.work["charged_ns"].to_numpy(), _precision(cause)
    fast, source = _by_shapes(context.work, rows, precision, limits), "the recorded shapes"
    if fast is None:
        fast, source = _by_weights(context.work, rows, precision, limits), WEIGHTS
    if fast is None:
        return Estimate(None, "not estimated: shapes were not recorded")
    gain = sum(max(int(charged[mine].sum()) - ns, 0) for mine, ns in fast)
    return Estimate(gain, _basis(cause, limits, source))


_Fast = list[tuple[Longs, int]]


def _by_shapes(work: Work, rows: Longs, precision: str, limits: DeviceLimits) -> _Fast | None:
    """Rows of each product and what a good kernel takes; None where a shape is missing."""
    asked: dict[int, tuple[Product, list[int]]] = {}
    for row, product in zip(rows.tolist(), products_of(work, rows), strict=True):
        if product is None:
            return None
        asked.setdefault(int(work.operator[row]), (product, []))[1].append(row)
    return [
        (np.array(mine, dtype=np.int64), product_ns(product, precision, limits))
        for product, mine in asked.values()
    ]


def _by_weights(work: Work, rows: Longs, precision: str, limits: DeviceLimits) -> _Fast | None:
    groups = products_by_call(work, rows)
    if groups is None:
        return None
    return [(group.rows, group.fast_ns(precision, limits)) for group in groups]


def _precision(cause: str) -> str:
    """An fp32 product can become one of TF32 by a switch; the others are 16 bit already."""
    return "tf32" if cause == "fp32" else "bf16"


def _basis(cause: str, limits: DeviceLimits, source: str) -> str:
    return product_basis(limits, source) + (" in TF32" if cause == "fp32" else "")


def low_rank(products: Iterable[Product | None]) -> int | None:
    """The rank of the adapters that these forward products belong to: down to it, and up again.
    None where they are no such pairs; a small batch makes the other side small."""
    down: Counter[int] = Counter()
    up: Counter[int] = Counter()
    for product in filter(None, products):
        if _is_rank(product.n, product.k, product.m):
            down[product.n] += 1
        elif _is_rank(product.k, product.n, product.m):
            up[product.k] += 1
    rank, count = max(((r, min(down[r], up[r])) for r in down), key=lambda x: x[1], default=(0, 0))
    return rank if count else None


def _is_rank(size: int, wide: int, tokens: int) -> bool:
    return size <= _RANK and wide >= _RANK_FACTOR * size and tokens >= size


def block_of(context: Context, row: int) -> str | None:
    """The attention or FFN block that owns a piece of work, else its module; layers folded."""
    module = int(context.work.module[row])
    if module == NONE:
        return None
    block, tree = context.roles.block[module], context.work.tree
    owner = block if block != NONE else module
    return folded(tree.paths[owner] or tree.types[owner])


def grouped_by_place(context: Context, rows: Longs) -> dict[Where, Longs]:
    """Work rows by the line that asked for them, else by the block they count in, layers folded.
    Gradients stand where their forward does: the cause is there."""
    places = context.work.once(Places)
    groups: dict[Where, list[Longs]] = {}
    for alike in _alike(context, places, rows):
        groups.setdefault(_place(context, places, int(alike[0])), []).append(alike)
    return {where: np.sort(np.concatenate(found)) for where, found in groups.items()}


def _place(context: Context, places: Places, row: int) -> Where:
    asked = int(context.work.forward[row])
    where = places.of_work(row) if asked == NONE else places.of(asked)
    where = replace(where, module=block_of(context, row))
    # Without a line the block is the place, whichever operator of it this is.
    return where if where.file or where.module is None else Where(module=where.module)


def _alike(context: Context, places: Places, rows: Longs) -> list[Longs]:
    """Rows that certainly have one place, together: of one module and one operator's name where no
    lines are recorded."""
    work = context.work
    asked = np.where(work.forward[rows] == NONE, work.site[rows], work.forward[rows])
    operator = take(work.host.outer_operator, asked)
    if places.has_frames or len(work.trace.table("host_sites")) or (operator == NONE).any():
        return list(rows.reshape(-1, 1))
    _, group = distinct(work.module[rows], work.trace.name_codes[operator])
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order])) + 1
    return np.split(rows[order], bounds)
