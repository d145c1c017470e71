"""Splitting a model over GPUs: what each holds, and what they send each other in a forward."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from tracer.sizing.figures import Figure, number
from tracer.sizing.memory import Precision, bytes_of
from tracer.sizing.shape import ModelShape, Weights

Operation = Literal["all_reduce", "all_gather", "send_recv"]


@dataclass(frozen=True)
class Collective:
    """One kind of transfer: `count` a forward, each of `bytes_each` with so many tokens."""

    op: Operation
    where: str
    count: Figure
    decode_bytes_each: Figure
    prefill_bytes_each: Figure
    decode_wire_bytes_per_gpu: Figure
    prefill_wire_bytes_per_gpu: Figure


@dataclass(frozen=True)
class Split:
    """A model over tensor x pipeline GPUs. `obstacle` says why it cannot be, if so."""

    tensor: int
    pipeline: int
    gpus: int
    obstacle: str | None
    weights_bytes_per_gpu: Figure
    kv_bytes_per_token_per_gpu: Figure
    collectives: tuple[Collective, ...]


_SHARDED = frozenset({"attention", "ffn", "experts", "mixer", "encoder", "lm_head"})
_KEY_VALUE = re.compile(r"\.(k|v)$|[kv]_proj\.weight$")
_REPLICATED = re.compile(r"[qk]v?_a(_proj\w*)?(\.weight)?$")  # latent bottlenecks


def share_of(part: Weights, shape: ModelShape, tensor: int) -> float:
    """The share of these weights that each of `tensor` GPUs holds."""
    if part.role == "embedding":
        return 1 / tensor if shape.tied else 1.0
    if part.role not in _SHARDED or (not part.matrix and part.role != "lm_head"):
        return 1.0
    if _REPLICATED.search(part.name):
        return 1.0
    if _KEY_VALUE.search(part.name):
        return 1 / min(tensor, max(1, shape.kv_heads or tensor))
    return 1 / tensor


def _rank_bytes(shape: ModelShape, precision: Precision, tensor: int, pipeline: int) -> int:
    """Bytes on the fullest GPU: its share of its stage's layers, and one end of the model."""
    ends, layers = 0.0, 0.0
    head = 0.0
    for part in shape.weights:
        held = bytes_of([part], precision) * share_of(part, shape, tensor)
        if part.role == "embedding":
            ends += held
        elif part.role == "lm_head":
            head += held
        else:
            layers += held
    if pipeline == 1:
        return int(layers + ends + head)
    count = shape.layers or 1
    stage = ceil(count / pipeline) / count
    last = ends if shape.tied else head  # a tied table is on the first and the last stage
    return int(layers * stage + max(ends, last))


def _kv_bytes(shape: ModelShape, dtype_bytes: float, tensor: int, pipeline: int) -> int:
    total = 0.0
    for cache in shape.caches:
        if cache.kind in ("full", "window", "latent"):
            layers = ceil(cache.layers / pipeline)
            total += layers * cache.token_values / min(tensor, cache.heads)
    return int(total * dtype_bytes)


def _obstacle(shape: ModelShape, tensor: int, pipeline: int) -> str | None:
    if shape.heads and shape.heads % tensor:
        return f"{shape.heads} attention heads do not divide by {tensor}"
    if shape.layers is None:
        return "the number of layers is not known"
    if pipeline > shape.layers:
        return f"{shape.layers} layers do not make {pipeline} stages"
    return None


def reduces(shape: ModelShape) -> Figure:
    """All-reduces of a forward: after each attention or mixer and each feed-forward."""
    layers = shape.layers or 0
    value = layers * shape.reduces_a_layer
    formula = f"{layers} layers x {shape.reduces_a_layer}"
    if shape.tied:  # the shared table is cut by vocabulary, so its rows must be summed
        return Figure(value + 1, f"{formula} + 1 for the embedding")
    return Figure(value, formula)


def plan_split(
    shape: ModelShape,
    precision: Precision,
    *,
    tensor: int,
    pipeline: int,
    cache_dtype_bytes: float,
    batch: int,
    prompt: int,
) -> Split:
    """What each GPU holds and sends, 16-bit activations, for a decode step and for a prefill."""
    held = _rank_bytes(shape, precision, tensor, pipeline)
    kv = _kv_bytes(shape, cache_dtype_bytes, tensor, pipeline)
    return Split(
        tensor=tensor,
        pipeline=pipeline,
        gpus=tensor * pipeline,
        obstacle=_obstacle(shape, tensor, pipeline),
        weights_bytes_per_gpu=Figure(
            held,
            f"matrices / {tensor}, layers / {pipeline}; norms, routers and an untied embedding "
            "whole; the fullest GPU",
        ),
        kv_bytes_per_token_per_gpu=Figure(
            kv, f"layers / {pipeline}, KV heads / {tensor} (at least one each)"
        ),
        collectives=tuple(_collectives(shape, tensor, pipeline, batch, prompt)),
    )


def _collectives(
    shape: ModelShape, tensor: int, pipeline: int, batch: int, prompt: int
) -> Iterable[Collective]:
    hidden, vocabulary = shape.hidden or 0, shape.vocabulary or 0
    if tensor > 1:
        ring = 2 * (tensor - 1) / tensor
        yield _collective(
            "all_reduce", "after attention and feed-forward", reduces(shape), hidden,
            (batch, prompt), (ring, f"2 x ({tensor} - 1)/{tensor}"),
        )  # fmt: skip
        if vocabulary:
            yield _collective(
                "all_gather", "logits", Figure(1, "one, for the last tokens"), vocabulary,
                (batch, 1), ((tensor - 1) / tensor, f"({tensor} - 1)/{tensor}"),
            )  # fmt: skip
    if pipeline > 1:
        yield _collective(
            "send_recv", "between stages", Figure(pipeline - 1, f"{pipeline} stages - 1"), hidden,
            (batch, prompt), (1.0, "1"),
        )  # fmt: skip


def _collective(
    op: Operation,
    where: str,
    count: Figure,
    width: int,
    tokens: tuple[int, int],
    wire: tuple[float, str],
) -> Collective:
    def each(rows: int) -> Figure:
        return Figure(rows * width * 2, f"{number(rows)} tokens x {number(width)} x 2 bytes")

    def wired(rows: int) -> Figure:
        sent = int(count.value) * rows * width * 2 * wire[0]
        return Figure(
            int(sent), f"{number(count.value)} x {number(rows * width * 2)} bytes x {wire[1]}"
        )

    decode, prefill = tokens
    return Collective(op, where, count, each(decode), each(prefill), wired(decode), wired(prefill))
