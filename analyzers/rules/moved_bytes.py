"""What products and attention calls must at least read, write and compute, call by call.

Bytes: each operand and the result once. Flops: two for each multiplication and addition; of a
causal attention the half that is not masked. Both are lower bounds of what a kernel does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis import BUCKET_CODE, BUCKETS
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.attention_arguments import ITEM_BYTES, AttentionCalls, Signature
from tracer.analyzers.rules.estimates import Product, product_of
from tracer.analyzers.rules.weight_products import tokens_of

SHAPES, WEIGHTS, NOTES = "recorded shapes", "weights and tokens of each call", "shapes of each call"
# What a product reads an item of each operand with, by the recorded type.
_ITEMS = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "signed char": 1,
    "unsigned char": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_PRECISIONS = {"c10::Half": "bf16", "c10::BFloat16": "bf16"}
_FP8 = "c10::Float8"
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


@dataclass(frozen=True)
class Moved:
    """One call. rows: its work; precision: bf16, fp8, tf32, "" for one whose peak is not known;
    source: what told the sizes."""

    rows: Longs
    bucket: int
    bytes: int
    flops: int
    precision: str
    source: str


def moved_by(context: Context) -> list[Moved]:
    """All calls whose sizes are known."""
    products = _multiplying(context)
    by_shapes = list(_by_shapes(context, products))
    told = np.zeros(context.work.event.size, dtype=bool)
    for moved in by_shapes:
        told[moved.rows] = True
    by_weights = _by_weights(context, products[~told[products]])
    return [*by_shapes, *by_weights, *_attention(context)]


def _multiplying(context: Context) -> Longs:
    """Work rows of matrix products outside attention cores, and what belongs to them."""
    gemm = np.array([name.category == "gemm" for name in context.work.names], dtype=bool)
    # Attention is looked at call by call; the angles of a rotary embedding are outer products.
    outside = ~np.isin(context.attribution.bucket, (_CORE, BUCKET_CODE["attention", "rope"]))
    rows: Longs = np.flatnonzero(gemm[context.work.name_code] & outside)
    return rows


def _by_shapes(context: Context, rows: Longs) -> Iterator[Moved]:
    work = context.work
    arguments = Arguments(work.trace)
    replay = np.where(work.replayed[rows], work.launch[rows], NONE)
    for (operator, _), mine in _grouped(rows, work.operator[rows], replay):
        row = arguments.row(operator) if operator != NONE else NONE
        if row == NONE:
            continue
        name = work.trace.names[work.trace.name_codes[operator]]
        product, types = product_of(name, arguments.shapes(row)), arguments.types(row)
        kind = next((t for t in types if t in _ITEMS), "")
        if product is not None and kind:
            precision = _precision(context, mine, kind)
            yield Moved(
                mine,
                _bucket(context, mine),
                _bytes(product, kind),
                product.flops,
                precision,
                SHAPES,
            )


def _bytes(product: Product, kind: str) -> int:
    item, batch = _ITEMS[kind], product.batch
    read = batch * (product.m + product.n) * product.k * item
    return read + batch * product.m * product.n * max(item, _SHORTEST_RESULT)


def _precision(context: Context, rows: Longs, kind: str) -> str:
    if kind.startswith(_FP8):
        return "fp8"
    names = [context.work.names[code] for code in context.work.name_code[rows].tolist()]
    tf32 = kind == "float" and any(name.precision == "tf32" for name in names)
    return "tf32" if tf32 else _PRECISIONS.get(kind, "")


def _bucket(context: Context, rows: Longs) -> int:
    """That of the longest piece."""
    lengths = context.work.trace.events["duration_ns"].to_numpy()[context.work.event[rows]]
    return int(context.attribution.bucket[rows[int(lengths.argmax())]])


def _by_weights(context: Context, rows: Longs) -> Iterator[Moved]:
    """Forward products of modules whose weights were listed, where shapes are not recorded."""
    work = context.work
    wanted = np.isin(context.attribution.bucket[rows], _LINEAR) & (work.forward[rows] == NONE)
    rows = rows[wanted & (work.module[rows] != NONE)]
    weights = _Weights.read(context)
    if not rows.size or weights is None:
        return
    replay = np.where(work.replayed[rows], work.launch[rows], NONE)
    keys = work.module[rows], work.module_event[rows], replay, context.attribution.bucket[rows]
    for (module, call, launch, bucket), mine in _grouped(rows, *keys):
        bytes_, parameters, precision = weights.of(module)
        at = np.array([launch if launch != NONE else max(call, 0)], dtype=np.int64)
        sequences, tokens = tokens_of(work, at)
        if bytes_ <= 0 or tokens[0] <= 0:
            continue
        # A head is needed for the last token of each sequence alone.
        count = int(sequences[0]) if bucket == _LM_HEAD else int(sequences[0] * tokens[0])
        yield Moved(mine, bucket, bytes_, 2 * parameters * count, precision, WEIGHTS)


@dataclass(frozen=True)
class _Weights:
    """Bytes and parameters of the linear layers that a module's own range stands for."""

    bytes: Longs
    parameters: Longs
    precisions: Sequence[str]

    @staticmethod
    def read(context: Context) -> _Weights | None:
        tree = context.work.tree
        table = context.work.trace.table("model_modules")
        if not len(table):
            return None
        sizes = zip(table["parameter_bytes"], table["parameters"], table["dtype"], strict=True)
        of_path = dict(zip(table["path"].astype(str), sizes, strict=True))
        bytes_ = np.zeros(len(tree.paths), dtype=np.int64)
        parameters, precisions = bytes_.copy(), [""] * len(tree.paths)
        for row, path in enumerate(tree.paths):
            if context.roles.own[row] not in ("linear", "lm_head") or path not in of_path:
                continue
            size, count, dtype = of_path[path]
            owner = next((a for a in tree.ancestors(row) if tree.first_event[a] != NONE), NONE)
            if owner != NONE and size > 0:
                bytes_[owner] += int(size)
                parameters[owner] += int(count)
                precisions[owner] = "bf16" if str(dtype) in ("bfloat16", "float16") else ""
        return _Weights(bytes_, parameters, precisions)

    def of(self, module: int) -> tuple[int, int, str]:
        return int(self.bytes[module]), int(self.parameters[module]), self.precisions[module]


def _attention(context: Context) -> Iterator[Moved]:
    """Forward calls of scaled_dot_product_attention."""
    work = context.work
    around = work.host.outermost(work.trace.named(lambda name: _ATTENTION in name, "operator"))
    core = (context.attribution.bucket == _CORE) & (work.forward == NONE)
    rows = np.flatnonzero(core)
    asked = take(around, np.where(work.site[rows] == NONE, work.operator[rows], work.site[rows]))
    rows, asked = rows[asked != NONE], asked[asked != NONE]
    calls = AttentionCalls(work)
    replay = np.where(work.replayed[rows], work.launch[rows], NONE)
    for (operator, _), mine in _grouped(rows, asked, replay):
        signature = calls.signature(operator)
        item = ITEM_BYTES.get(signature.dtype) if signature is not None else None
        if signature is None or item is None or not signature.query or not signature.key:
            continue
        precision = "bf16" if item == 2 else ""
        sizes = _attention_bytes(signature, item), _attention_flops(signature)
        yield Moved(mine, _CORE, *sizes, precision, NOTES)


def _attention_bytes(call: Signature, item: int) -> int:
    *outer, queries, size = call.query
    heads = int(np.prod(outer, dtype=np.int64))
    keys = int(np.prod(call.key[:-1], dtype=np.int64))
    return item * (heads * queries + keys) * (size + call.value_size)


def _attention_flops(call: Signature) -> int:
    """Where a mask was given, half may be masked: the bound is the half."""
    *outer, queries, size = call.query
    heads, keys = int(np.prod(outer, dtype=np.int64)), call.key[-2]
    whole = 2 * heads * queries * keys * (size + call.value_size)
    return whole // 2 if queries > 1 and (call.causal or call.masked) else whole


def _grouped(rows: Longs, *keys: Longs) -> Iterator[tuple[tuple[int, ...], Longs]]:
    """Rows that share their keys, in order of the first."""
    if not rows.size:
        return
    stacked = np.stack([key.astype(np.int64) for key in keys], axis=1)
    distinct, of = np.unique(stacked, axis=0, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    bounds = np.flatnonzero(np.diff(of.reshape(-1)[order])) + 1
    for key, part in zip(distinct.tolist(), np.split(rows[order], bounds), strict=True):
        yield tuple(key), part


def part_name(bucket: int) -> str:
    """`ffn.projection`."""
    return ".".join(BUCKETS[bucket])
