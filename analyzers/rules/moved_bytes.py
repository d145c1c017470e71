"""What products and attention calls must at least read, write and compute, call by call.

Bytes: each operand and the result once. Flops: two for each multiplication and addition; of a
causal attention the half that is not masked. Both are lower bounds of what a kernel does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.attention_arguments import ITEM_BYTES, AttentionCalls, Signature
from tracer.analyzers.rules.estimates import Product, product_of
from tracer.analyzers.rules.weight_products import call_around, tokens_of

SHAPES, WEIGHTS, NOTES = "recorded shapes", "weights and tokens of each call", "shapes of each call"
# What a product reads an item of each operand with, by the recorded type.
_ITEMS = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "signed char": 1,
    "unsigned char": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_PRECISIONS = {
    "c10::Half": "bf16", "c10::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}  # fmt: skip
_SHORT = ("bfloat16", "float16")
# With how many bytes a kernel of a precision reads an item of single-precision weights, and whose
# rate it has.
_ITEMS_READ = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
_RATES = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "tf32": "tf32"}
# A result of 8-bit products is written in 16 bit.
_SHORTEST_RESULT = 2
_CORE = BUCKET_CODE["attention", "core"]
_LM_HEAD = BUCKET_CODE["other", "lm_head"]
# Parts whose products read all weights of the block's linear layers.
_LINEAR = (
    BUCKET_CODE["attention", "projection"],
    BUCKET_CODE["ffn", "projection"],
    _LM_HEAD,
)
_ATTENTION = "scaled_dot_product"


class Size(NamedTuple):
    """What one call must move and compute. precision: bf16, fp8, tf32, "" for one whose peak rate
    is not known."""

    bytes: int
    flops: int
    precision: str


@dataclass(frozen=True)
class Moved:
    """Calls of one source. Row of work of each call that stands for it (its longest), and all rows
    of the calls with the place of the call that each belongs to."""

    source: str
    longest: Longs
    sizes: Sequence[Size]
    rows: Longs
    call: Longs


def moved_by(context: Context) -> list[Moved]:
    """All calls whose sizes are known, by what told the sizes."""
    products = _multiplying(context)
    by_shapes = _by_shapes(context, products)
    rest = np.setdiff1d(products, by_shapes.rows)
    found = [by_shapes, _by_weights(context, rest), _attention(context)]
    return [moved for moved in found if moved.sizes]


def _multiplying(context: Context) -> Longs:
    """Work rows of matrix products outside attention cores, and what belongs to them."""
    gemm = np.array([name.category == "gemm" for name in context.work.names], dtype=bool)
    # Attention is looked at call by call; the angles of a rotary embedding are outer products.
    outside = ~np.isin(context.attribution.bucket, (_CORE, BUCKET_CODE["attention", "rope"]))
    rows: Longs = np.flatnonzero(gemm[context.work.name_code] & outside)
    return rows


@dataclass(frozen=True)
class _Groups:
    """Work rows by the call that they belong to, the longest of each call first."""

    rows: Longs
    call: Longs
    longest: Longs

    @staticmethod
    def of(work: Work, rows: Longs, *keys: Longs) -> _Groups:
        """Rows that share their keys are one call; replays of a graph are calls of their own."""
        replay = np.where(work.replayed[rows], work.launch[rows], NONE)
        stacked = np.stack([key.astype(np.int64) for key in (*keys, replay)], axis=1)
        call = np.unique(stacked, axis=0, return_inverse=True)[1].reshape(-1)
        lengths = work.trace.events["duration_ns"].to_numpy()[work.event[rows]]
        order = np.lexsort((-lengths.astype(np.int64), call))
        first = np.flatnonzero(np.diff(call[order], prepend=NONE))
        return _Groups(rows[order], call[order], rows[order][first])

    def known(self, source: str, sizes: Sequence[Size | None]) -> Moved:
        """Those calls whose size is known."""
        have = np.array([size is not None for size in sizes], dtype=bool)
        place = np.cumsum(have) - 1
        mine = have[self.call] if have.size else have
        told = [size for size in sizes if size is not None]
        return Moved(source, self.longest[have], told, self.rows[mine], place[self.call[mine]])


def _by_shapes(context: Context, rows: Longs) -> Moved:
    work = context.work
    arguments, operators = Arguments(work.trace), work.operator[rows]
    groups = _Groups.of(work, rows, operators)
    operators = work.operator[groups.longest]
    at = np.where(operators == NONE, NONE, arguments.rows(operators))
    names = take(work.trace.name_codes.astype(np.int64), operators)
    tf32 = np.array([name.precision == "tf32" for name in work.names], dtype=bool)
    fast = tf32[work.name_code[groups.longest]]
    keys = zip(arguments.likeness(at).tolist(), names.tolist(), fast.tolist(), strict=True)
    known: dict[tuple[int, int, bool], Size | None] = {}
    sizes = []
    for row, key in zip(at.tolist(), keys, strict=True):
        if row != NONE and key not in known:
            known[key] = _size_of(arguments, row, work.trace.names[key[1]], tf32=key[2])
        sizes.append(known.get(key) if row != NONE else None)
    return groups.known(SHAPES, sizes)


def _size_of(arguments: Arguments, row: int, operator: str, *, tf32: bool) -> Size | None:
    product, types = product_of(operator, arguments.shapes(row)), arguments.types(row)
    kind = next((name for name in types if name in _ITEMS), "")
    if product is None or not kind:
        return None
    precision = "tf32" if tf32 and kind == "float" else _PRECISIONS.get(kind, "")
    return Size(_bytes(product, _ITEMS[kind]), product.flops, precision)


def _bytes(product: Product, item: int) -> int:
    read = (product.m + product.n) * product.k * item
    return product.batch * (read + product.m * product.n * max(item, _SHORTEST_RESULT))


def _by_weights(context: Context, rows: Longs) -> Moved:
    """Products of modules whose weights were listed, where shapes are not recorded: all of a
    forward call together, and of a backward one each, since each reads or writes all weights."""
    work, bucket = context.work, context.attribution.bucket
    rows = rows[np.isin(bucket[rows], _LINEAR) & (work.module[rows] != NONE)]
    backward = np.where(work.forward[rows] == NONE, NONE, work.operator[rows])
    calls = _module_calls(work, rows)
    groups = _Groups.of(work, rows, work.module[rows], calls, backward, bucket[rows])
    weights = _Weights.read(context, frozenset(work.module[rows].tolist()))
    stands = groups.longest
    asked = _asked(work, stands)
    sequences, tokens = tokens_of(work, np.maximum(asked, 0))
    # A head is needed for the last token of each sequence alone.
    count = np.where(bucket[stands] == _LM_HEAD, sequences, sequences * tokens)
    count = np.where((asked == NONE) | (tokens <= 0), 0, count)
    modules, names = work.module[stands].tolist(), work.name_code[stands].tolist()
    each = zip(modules, count.tolist(), names, strict=True)
    sizes = [weights.size(m, n, work.names[name].precision) for m, n, name in each]
    return groups.known(WEIGHTS, sizes)


def _module_calls(work: Work, rows: Longs) -> Longs:
    """What tells calls of one module apart: its ranges, or where it writes none, as in compiled
    code, the calls of the model."""
    ranges = work.module_event[rows]
    around = call_around(work, np.maximum(_asked(work, rows), 0))
    return np.where(ranges == NONE, NONE - 1 - around, ranges)


def _asked(work: Work, rows: Longs) -> Longs:
    """A host event in the call of the model that each row is of."""
    unranged = work.replayed[rows] | (work.module_event[rows] == NONE)
    return np.where(unranged, work.launch[rows], work.module_event[rows])


@dataclass(frozen=True)
class _Weights:
    """Bytes, parameters and type of the linear layers that a module's own range stands for, or its
    name in compiled code."""

    bytes: Longs
    parameters: Longs
    types: Sequence[str]

    @staticmethod
    def read(context: Context, named: frozenset[int]) -> _Weights:
        """`named`: modules that work was found to be of."""
        tree = context.work.tree
        table = context.work.trace.table("model_modules")
        sizes = zip(table["parameter_bytes"], table["parameters"], table["dtype"], strict=True)
        of_path = dict(zip(table["path"].astype(str), sizes, strict=True))
        bytes_ = np.zeros(len(tree.paths), dtype=np.int64)
        parameters, types = bytes_.copy(), [""] * len(tree.paths)
        for row, path in enumerate(tree.paths):
            if context.roles.own[row] not in ("linear", "lm_head") or path not in of_path:
                continue
            size, count, dtype = of_path[path]
            seen = (a for a in tree.ancestors(row) if a in named or tree.first_event[a] != NONE)
            owner = next(seen, NONE)
            if owner != NONE and size > 0:
                bytes_[owner] += int(size)
                parameters[owner] += int(count)
                types[owner] = str(dtype)
        return _Weights(bytes_, parameters, types)

    def size(self, module: int, tokens: int, precision: str) -> Size | None:
        """What one call with so many tokens moves in a kernel of this precision; None where
        weights, tokens or, of weights that are cast first, the precision are not known."""
        if tokens <= 0 or self.bytes[module] <= 0:
            return None
        bytes_, kind = int(self.bytes[module]), self.types[module]
        parameters = int(self.parameters[module])
        if kind == "float32":  # under autocast a copy in 16 bit is read
            if precision not in _ITEMS_READ:
                return None
            bytes_ = parameters * _ITEMS_READ[precision]
        rate = "bf16" if kind in _SHORT else _RATES.get(precision, "")
        return Size(bytes_, 2 * parameters * tokens, rate)


def _attention(context: Context) -> Moved:
    """Forward calls of scaled_dot_product_attention."""
    work = context.work
    around = work.host.outermost(work.trace.named(lambda name: _ATTENTION in name, "operator"))
    rows = np.flatnonzero((context.attribution.bucket == _CORE) & (work.forward == NONE))
    asked = _call_of(work, around, rows)
    rows = rows[asked != NONE]
    groups = _Groups.of(work, rows, asked[asked != NONE])
    signatures = AttentionCalls(work).signatures(_call_of(work, around, groups.longest))
    return groups.known(NOTES, [_attention_size(signature) for signature in signatures])


def _call_of(work: Work, around: Longs, rows: Longs) -> Longs:
    site: NDArray[np.int64] = np.where(
        work.site[rows] == NONE, work.operator[rows], work.site[rows]
    )
    return take(around, site)


def _attention_size(call: Signature | None) -> Size | None:
    item = ITEM_BYTES.get(call.dtype) if call is not None else None
    if call is None or item is None or not call.query or not call.key:
        return None
    *outer, queries, size = call.query
    heads, keys = int(np.prod(outer, dtype=np.int64)), int(np.prod(call.key[:-1], dtype=np.int64))
    moved = item * (heads * queries + keys) * (size + call.value_size)
    flops = 2 * heads * queries * call.key[-2] * (size + call.value_size)
    # Where a mask was given, half may be masked: the bound is the half.
    half = queries > 1 and (call.causal or call.masked)
    return Size(moved, flops // 2 if half else flops, "bf16" if item == 2 else "")
