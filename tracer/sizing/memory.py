"""Bytes: weights in a precision, the cache of a sequence, working memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer.sizing.figures import Figure, number
from tracer.sizing.shape import Cache, ModelShape, Weights


@dataclass(frozen=True)
class Precision:
    """How weights are stored: a matrix inside a layer, and what is left in 16 bit."""

    name: str
    matrix_bytes: float
    rest_bytes: float
    row_bytes: float = 0.0  # a scale for each output row
    experts_only: bool = False


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("fp32", 4, 4),
        Precision("bf16", 2, 2),
        Precision("fp16", 2, 2),
        Precision("fp8", 1, 2),
        Precision("int8", 1, 2, row_bytes=4),
        # A 16-bit scale and a 4-bit zero point for each group of 128.
        Precision("int4", 0.5 + 2.5 / 128, 2),
        # A scale a block of 64, itself stored in 8 bit with one fp32 for 256 of them.
        Precision("nf4", 0.5 + 1 / 64 + 4 / (64 * 256), 2),
        Precision("mxfp4", 0.5 + 1 / 32, 2, experts_only=True),
    )
}
QUANTIZED_ROLES = frozenset({"attention", "ffn", "experts", "mixer", "encoder"})
# The dtype names of configs and of torch.
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8"}
CACHE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def is_quantized(part: Weights, precision: Precision) -> bool:
    """Whether a precision below 16 bit applies to these weights."""
    if precision.experts_only:
        return part.role == "experts" and part.matrix
    return part.matrix and part.role in QUANTIZED_ROLES


def bytes_of(parts: Sequence[Weights], precision: Precision) -> int:
    """Bytes of some weights in a precision."""
    total = 0.0
    for part in parts:
        if is_quantized(part, precision):
            rows = part.rows * part.count
            total += part.parameters * precision.matrix_bytes + rows * precision.row_bytes
        else:
            total += part.parameters * precision.rest_bytes
    return int(total)


def weights_bytes(shape: ModelShape, precision: Precision) -> Figure:
    """All weights, with what the precision leaves in 16 bit."""
    value = bytes_of(shape.weights, precision)
    if precision.matrix_bytes == precision.rest_bytes:
        formula = f"{number(shape.parameters)} parameters x {number(precision.rest_bytes)} bytes"
        return Figure(value, formula)
    inside = sum(part.parameters for part in shape.weights if is_quantized(part, precision))
    where = "experts" if precision.experts_only else "linear layers"
    scales = f" + {number(precision.row_bytes)} bytes a row" if precision.row_bytes else ""
    return Figure(
        value,
        f"{number(inside)} in {where} x {number(precision.matrix_bytes)} bytes{scales} + "
        f"{number(shape.parameters - inside)} others x {number(precision.rest_bytes)} bytes",
    )


def cache_bytes(
    shape: ModelShape, tokens: int, dtype_bytes: float, *, source_tokens: int = 0
) -> int:
    """What one sequence keeps: `tokens` of its own, `source_tokens` of an encoder's output."""
    return sum(
        cache.bytes(source_tokens if cache.kind == "cross" else tokens, dtype_bytes)
        for cache in shape.caches
    )


def transformers_cache_bytes(
    shape: ModelShape, tokens: int, dtype_bytes: float, *, source_tokens: int = 0
) -> int:
    """The same as the dynamic cache of transformers holds it."""
    return sum(
        cache.transformers_bytes(source_tokens if cache.kind == "cross" else tokens, dtype_bytes)
        for cache in shape.caches
    )


def _growing(shape: ModelShape) -> list[Cache]:
    return [cache for cache in shape.caches if cache.kind in ("full", "window", "latent")]


def token_bytes(shape: ModelShape, dtype_bytes: float) -> Figure:
    """What one more token of context adds, while windows have room."""
    caches = _growing(shape)
    value = int(sum(cache.growth_values for cache in caches) * dtype_bytes)
    return Figure(value, _cache_formula(caches, dtype_bytes))


def _cache_formula(caches: Sequence[Cache], dtype_bytes: float) -> str:
    if not caches:
        return "no layer keeps anything for each token"
    terms = [
        f"{cache.layers} layers x {cache.detail or number(cache.token_values)}" for cache in caches
    ]
    joined = terms[0] if len(terms) == 1 else "(" + " + ".join(terms) + ")"
    return f"{joined} x {number(dtype_bytes)} bytes"


def far_token_bytes(shape: ModelShape, dtype_bytes: float) -> Figure:
    """What one more token adds when every window is full."""
    caches = [cache for cache in _growing(shape) if cache.window is None]
    value = int(sum(cache.growth_values for cache in caches) * dtype_bytes)
    return Figure(value, _cache_formula(caches, dtype_bytes))


def state_bytes(shape: ModelShape, dtype_bytes: float) -> Figure:
    """What a sequence keeps whatever its length."""
    caches = [cache for cache in shape.caches if cache.kind == "state"]
    value = sum(cache.bytes(0, dtype_bytes) for cache in caches)
    formula = " + ".join(
        f"{cache.layers} layers x ({number(cache.state_values)} x {number(dtype_bytes)} bytes "
        f"+ {number(cache.state_fp32_values)} x 4 bytes)"
        for cache in caches
    )
    return Figure(value, formula or "no layer keeps a state")


def source_token_bytes(shape: ModelShape, dtype_bytes: float) -> Figure:
    """What each token of the encoder's input keeps in cross-attention."""
    caches = [cache for cache in shape.caches if cache.kind == "cross"]
    value = int(sum(cache.growth_values for cache in caches) * dtype_bytes)
    return Figure(value, _cache_formula(caches, dtype_bytes))


def longest_context(
    shape: ModelShape, room_bytes: float, dtype_bytes: float, *, source_tokens: int = 0
) -> int | None:
    """How many tokens one sequence can reach in this room; None: no limit from memory."""

    def fits(tokens: int) -> bool:
        return cache_bytes(shape, tokens, dtype_bytes, source_tokens=source_tokens) <= room_bytes

    if not fits(0):
        return 0
    high = 1 << 40
    if fits(high):
        return None
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# What a process takes beside its tensors: the CUDA context and loaded kernels (about 0.5 GB), and
# workspaces of cuBLAS and cuDNN with the pool of captured graphs (about 0.4 GB).
FIXED_OVERHEAD_BYTES = 900_000_000
# The chunk that serving engines put through the model at once, and the sequences they sample for.
CHUNK_TOKENS = 2048
SAMPLED_SEQUENCES = 256


def working_bytes(shape: ModelShape, chunk_tokens: int, sequences: int) -> Figure:
    """The largest intermediate results of a forward: residual stream, the widest layer, and the
    logits with their probabilities in fp32."""
    hidden = shape.hidden or 0
    widest = max((3 if shape.gated else 2) * shape.ffn_width, 3 * shape.query_width, 4 * hidden)
    vocabulary = shape.vocabulary or 0
    layer = chunk_tokens * (2 * hidden + widest) * 2
    logits = sequences * vocabulary * 8
    return Figure(
        layer + logits,
        f"{number(chunk_tokens)} tokens x (2 x {number(hidden)} + {number(widest)}) x 2 bytes + "
        f"{number(sequences)} sequences x {number(vocabulary)} x 8 bytes",
    )


def overhead_bytes(
    shape: ModelShape,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    sequences: int = SAMPLED_SEQUENCES,
    fixed_bytes: int = FIXED_OVERHEAD_BYTES,
) -> Figure:
    """What an inference process needs beside weights and cache."""
    working = working_bytes(shape, chunk_tokens, sequences)
    return Figure(
        fixed_bytes + int(working.value),
        f"{number(fixed_bytes)} for context, kernels and workspaces + {working.formula}",
    )
