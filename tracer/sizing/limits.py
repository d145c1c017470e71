"""How fast a step can be at best: bytes over bandwidth, floating-point operations over peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracer.sizing.figures import Figure, number
from tracer.sizing.gpus import Gpu
from tracer.sizing.memory import Precision, bytes_of, cache_bytes
from tracer.sizing.shape import ModelShape, Weights

NS = 1_000_000_000
Bound = Literal["memory", "compute"]


@dataclass(frozen=True)
class DecodeLimit:
    """The floor of one decode step of a batch at a context length."""

    batch: int
    context_tokens: int
    weights_read_bytes: Figure
    kv_read_bytes: Figure
    flops: Figure
    floor_ns: Figure
    tokens_per_second: Figure
    bound: Bound


@dataclass(frozen=True)
class PrefillLimit:
    """The floor of the prefill of one prompt."""

    prompt_tokens: int
    flops: Figure
    floor_ns: Figure
    tokens_per_second: Figure
    bound: Bound


def _running(shape: ModelShape) -> list[Weights]:
    """The weights that a decode step runs: no encoder, no vision or audio tower."""
    return [part for part in shape.weights if part.role not in ("encoder", "tower")]


def weights_read(shape: ModelShape, precision: Precision, batch: int) -> Figure:
    """What a step reads of the weights: all, but of routed experts those that the batch hits."""
    running = _running(shape)
    experts = [part for part in running if part.role == "experts"]
    everything = bytes_of(running, precision)
    if shape.routing is None or not experts:
        return Figure(everything, f"all weights of the decoder: {number(everything)} bytes")
    routed = bytes_of(experts, precision)
    ratio = shape.routing.hit_ratio(batch)
    value = everything - routed + int(routed * ratio)
    formula = (
        f"{number(everything - routed)} + {number(routed)} of experts x "
        f"(1 - (1 - {shape.routing.active}/{shape.routing.experts})^{batch}) = {ratio:.4f}"
    )
    return Figure(value, formula)


def gathered_bytes(shape: ModelShape, precision: Precision) -> int:
    """The part of `weights_read` that is an input table, of which only single rows are read."""
    return int(shape.gathered_parameters * precision.rest_bytes)


def matmul_parameters(shape: ModelShape) -> int:
    """Parameters that one decoded token is multiplied with."""
    experts = shape.count("experts")
    active = 0
    if shape.routing is not None:
        active = experts * shape.routing.active // shape.routing.experts
    running = sum(part.parameters for part in _running(shape))
    return running - experts + active - shape.gathered_parameters


def attention_flops(shape: ModelShape, tokens: int, context: int) -> int:
    """Scores and weighted values of `tokens` new tokens at the end of `context`, causal."""
    total = 0
    for cache in shape.caches:
        if cache.kind in ("full", "latent", "window"):
            total += 4 * shape.query_width * cache.layers * _pairs(tokens, context, cache.window)
    return total


def _pairs(tokens: int, context: int, window: int | None) -> int:
    """How many keys the new tokens see, all together."""
    first = context - tokens
    if window is None:
        return tokens * first + tokens * (tokens + 1) // 2
    growing = max(0, min(tokens, window - first))
    seen = growing * first + growing * (growing + 1) // 2
    return seen + (tokens - growing) * window


def decode_limit(
    shape: ModelShape,
    gpu: Gpu,
    precision: Precision,
    *,
    batch: int,
    context: int,
    cache_dtype_bytes: float,
    source_tokens: int = 0,
) -> DecodeLimit | None:
    """The floor of a decode step; None where the GPU's rates are not known."""
    bandwidth, peak = gpu.bandwidth_bytes_per_s, gpu.peak(precision.name)
    if bandwidth is None:
        return None
    read = weights_read(shape, precision, batch)
    one = cache_bytes(shape, context, cache_dtype_bytes, source_tokens=source_tokens)
    cache = Figure(batch * one, f"{batch} x {number(one)} bytes at {number(context)} tokens")
    parameters = matmul_parameters(shape)
    attention = attention_flops(shape, 1, max(context, 1))
    flops = Figure(
        batch * (2 * parameters + attention),
        f"{batch} x (2 x {number(parameters)} parameters + {number(attention)} in attention)",
    )
    floor, bound = _slower(int(read.value) + int(cache.value), int(flops.value), bandwidth, peak)
    return DecodeLimit(
        batch=batch,
        context_tokens=context,
        weights_read_bytes=read,
        kv_read_bytes=cache,
        flops=flops,
        floor_ns=floor,
        tokens_per_second=_rate(batch, floor),
        bound=bound,
    )


def _rate(tokens: int, floor: Figure) -> Figure:
    per_second = tokens * NS / floor.value if floor.value else 0.0
    return Figure(round(per_second, 1), f"{number(tokens)} tokens / {number(floor.value)} ns")


def _slower(
    read_bytes: int, flops: int, bandwidth: float, peak: float | None
) -> tuple[Figure, Bound]:
    memory_ns = read_bytes / bandwidth * NS
    memory = Figure(
        round(memory_ns), f"{number(read_bytes)} bytes / {number(bandwidth / 1e9)} GB/s"
    )
    if peak is None or flops / peak * NS <= memory_ns:
        return memory, "memory"
    compute = f"{number(flops)} FLOPs / {number(peak / 1e12)} TFLOP/s"
    return Figure(round(flops / peak * NS), compute), "compute"


def prefill_limit(
    shape: ModelShape, gpu: Gpu, precision: Precision, *, prompt: int
) -> PrefillLimit | None:
    """The floor of one prompt's prefill; None where the GPU's rates are not known."""
    bandwidth, peak = gpu.bandwidth_bytes_per_s, gpu.peak(precision.name)
    if bandwidth is None or peak is None:
        return None
    flops = prefill_flops(shape, prompt)
    read = int(weights_read(shape, precision, prompt).value)
    floor, bound = _slower(read, int(flops.value), bandwidth, peak)
    return PrefillLimit(prompt, flops, floor, _rate(prompt, floor), bound)


def prefill_flops(shape: ModelShape, prompt: int) -> Figure:
    """Matrix multiplications of every prompt token, the head once, causal attention."""
    encoder = shape.count("encoder")
    if encoder:
        return Figure(
            2 * encoder * prompt, f"2 x {number(encoder)} encoder parameters x {number(prompt)}"
        )
    head = (shape.vocabulary or 0) * (shape.hidden or 0) if shape.tied else shape.count("lm_head")
    layers = matmul_parameters(shape) - head
    attention = attention_flops(shape, prompt, prompt)
    return Figure(
        2 * layers * prompt + 2 * head + attention,
        f"2 x {number(layers)} x {number(prompt)} tokens + 2 x {number(head)} in the head + "
        f"{number(attention)} in attention",
    )


def ridge(gpu: Gpu, precision: str) -> Figure | None:
    """FLOPs a byte at which bandwidth and peak take the same time."""
    peak, bandwidth = gpu.peak(precision), gpu.bandwidth_bytes_per_s
    if peak is None or bandwidth is None or (precision == "fp8" and gpu.fp8_flops_per_s is None):
        return None
    formula = f"{number(peak / 1e12)} TFLOP/s / {number(bandwidth / 1e9)} GB/s"
    return Figure(round(peak / bandwidth, 1), formula)


def ridge_batch(shape: ModelShape, gpu: Gpu, precision: Precision) -> Figure | None:
    """The batch from which a decode step without cache is bound by compute."""
    peak, bandwidth = gpu.peak(precision.name), gpu.bandwidth_bytes_per_s
    parameters = matmul_parameters(shape)
    if peak is None or bandwidth is None or not parameters:
        return None
    gathered = gathered_bytes(shape, precision)

    def compute_bound(batch: int) -> bool:
        read = int(weights_read(shape, precision, batch).value) - gathered
        return 2 * parameters * batch / peak >= read / bandwidth

    low, high = 0, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute_bound(middle) else (middle, high)
    return Figure(
        high,
        f"the smallest batch with 2 x {number(parameters)} x batch / {number(peak / 1e12)} TFLOP/s "
        f">= weights read / {number(bandwidth / 1e9)} GB/s",
    )
