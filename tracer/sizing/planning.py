"""The plan of a model: what it holds, on which GPU it fits, how fast it can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.sizing.figures import Figure, number
from tracer.sizing.gpus import Gpu
from tracer.sizing.limits import (
    DecodeLimit,
    decode_limit,
    gathered_bytes,
    prefill_limit,
    ridge,
    ridge_batch,
    weights_read,
)
from tracer.sizing.memory import (
    PRECISIONS,
    cache_bytes,
    far_token_bytes,
    longest_context,
    overhead_bytes,
    source_token_bytes,
    state_bytes,
    token_bytes,
    transformers_cache_bytes,
    weights_bytes,
)
from tracer.sizing.parallel import Split, plan_split
from tracer.sizing.results import (
    CacheAtLength,
    CacheFacts,
    CacheLayers,
    Choice,
    DecodePoint,
    DevicePlan,
    Inference,
    ModelFacts,
    Plan,
    Sequences,
    SplitFit,
    TrainingFit,
)
from tracer.sizing.shape import ModelShape
from tracer.sizing.training import (
    Regime,
    TrainingMemory,
    can_adapt,
    gpus_when_sharded,
    training_memory,
)

REGIMES: tuple[Regime, ...] = ("full", "lora", "qlora")
BATCHES = (8, 64)
LENGTHS = (2_048, 8_192, 32_768, 131_072)
SHOWN_PRECISIONS = ("fp32", "bf16", "fp8", "int8", "nf4")


def make_plan(
    shape: ModelShape,
    gpus: Sequence[Gpu],
    choice: Choice,
    *,
    name: str | None = None,
    splits: Iterable[tuple[int, int]] = (),
    regimes: Sequence[Regime] = REGIMES,
) -> Plan:
    """Put all of it together for these GPUs and these splits (tensor, pipeline)."""
    shown = dict.fromkeys((*SHOWN_PRECISIONS, choice.weights))
    training = tuple(
        training_memory(shape, regime, choice.training)
        for regime in regimes
        if shape.layers is not None
        and shape.hidden is not None
        and (regime == "full" or can_adapt(shape))
    )
    planned = tuple(_split(shape, choice, tensor, pipeline) for tensor, pipeline in splits)
    return Plan(
        model=_facts(shape, name),
        precision=choice.weights,
        weights={key: weights_bytes(shape, PRECISIONS[key]) for key in shown},
        kv_cache=_cache_facts(shape, choice) if shape.cache_known else None,
        training=training,
        devices=tuple(_device_plan(shape, gpu, choice, training, planned) for gpu in gpus),
        splits=planned,
    )


def _split(shape: ModelShape, choice: Choice, tensor: int, pipeline: int) -> Split:
    return plan_split(
        shape,
        choice.precision,
        tensor=tensor,
        pipeline=pipeline,
        cache_dtype_bytes=choice.cache_bytes,
        batch=choice.batch,
        prompt=choice.prompt,
    )


def _facts(shape: ModelShape, name: str | None) -> ModelFacts:
    roles: dict[str, int] = {}
    for part in shape.weights:
        roles[part.role] = roles.get(part.role, 0) + part.parameters
    return ModelFacts(
        name=name or shape.model_type,
        model_type=shape.model_type,
        architecture=shape.architecture,
        basis=shape.basis,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        parameters_by_role=roles,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        vocabulary=shape.vocabulary,
        longest_tokens=shape.longest,
        tied_embeddings=shape.tied,
        experts=shape.routing.experts if shape.routing else None,
        experts_per_token=shape.routing.active if shape.routing else None,
        notes=shape.notes,
    )


def _cache_facts(shape: ModelShape, choice: Choice) -> CacheFacts:
    each = choice.cache_bytes
    source = choice.source_tokens
    lengths = sorted({*_lengths(shape), choice.context})
    return CacheFacts(
        dtype=choice.cache,
        bytes_per_token=token_bytes(shape, each),
        bytes_per_token_beyond_windows=far_token_bytes(shape, each),
        bytes_per_source_token=source_token_bytes(shape, each),
        state_bytes_per_sequence=state_bytes(shape, each),
        layers=tuple(CacheLayers(c.kind, c.layers, c.window) for c in shape.caches),
        by_length=tuple(
            CacheAtLength(
                tokens,
                cache_bytes(shape, tokens, each, source_tokens=source),
                transformers_cache_bytes(shape, tokens, each, source_tokens=source),
            )
            for tokens in lengths
        ),
    )


def _inference(shape: ModelShape, gpu: Gpu, choice: Choice) -> Inference | None:
    if gpu.memory_bytes is None:
        return None
    weights = weights_bytes(shape, choice.precision)
    overhead = overhead_bytes(shape, fixed_bytes=choice.fixed_overhead_bytes)
    usable = Figure(
        int(gpu.memory_bytes * choice.utilization),
        f"{number(gpu.memory_bytes)} bytes x {choice.utilization}",
    )
    room = int(usable.value) - int(weights.value) - int(overhead.value)
    formula = f"{number(usable.value)} - {number(weights.value)} - {number(overhead.value)}"
    one = cache_bytes(shape, choice.context, choice.cache_bytes, source_tokens=choice.source_tokens)
    longest = _longest(shape, room, choice)
    return Inference(
        fits=room >= 0 and room >= choice.batch * one,
        usable_bytes=usable,
        weights_bytes=weights,
        overhead_bytes=overhead,
        kv_room_bytes=Figure(max(0, room), formula),
        kv_tokens=_kv_tokens(shape, max(0, room), choice),
        longest_context_tokens=longest,
        sequences=tuple(_sequences(shape, max(0, room), choice)),
    )


def _longest(shape: ModelShape, room: int, choice: Choice) -> int | None:
    """The longest single sequence, by memory and by what the model was made for."""
    if room < 0:
        return 0
    if not shape.cache_known:
        return None
    by_memory = longest_context(shape, room, choice.cache_bytes, source_tokens=choice.source_tokens)
    known = [limit for limit in (by_memory, shape.longest) if limit is not None]
    return min(known) if known else None


def _kv_tokens(shape: ModelShape, room: int, choice: Choice) -> Figure | None:
    """How many tokens the cache holds, whatever sequences they belong to; None where a token has
    no price of its own (windows, states)."""
    each = token_bytes(shape, choice.cache_bytes)
    if not shape.cache_known or not each.value:
        return None
    if not only_full(shape):
        return None
    return Figure(room // int(each.value), f"{number(room)} bytes / {number(each.value)}")


def _lengths(shape: ModelShape) -> list[int]:
    """Usual lengths up to the longest that the model was made for."""
    longest = shape.longest
    if longest is None:
        return list(LENGTHS)
    return [*(tokens for tokens in LENGTHS if tokens < longest), min(longest, LENGTHS[-1])]


def only_full(shape: ModelShape) -> bool:
    """Whether each token of a sequence costs the same."""
    return all(cache.kind in ("full", "latent") for cache in shape.caches)


def _sequences(shape: ModelShape, room: int, choice: Choice) -> Iterable[Sequences]:
    if not shape.cache_known:
        return
    for tokens in _lengths(shape):
        one = cache_bytes(shape, tokens, choice.cache_bytes, source_tokens=choice.source_tokens)
        if one:
            yield Sequences(tokens, room // one)


def _device_plan(
    shape: ModelShape,
    gpu: Gpu,
    choice: Choice,
    training: Sequence[TrainingMemory],
    splits: Sequence[Split],
) -> DevicePlan:
    inference = _inference(shape, gpu, choice) or _unknown_inference(shape, choice)
    first = _decode(shape, gpu, choice, 1, 0)
    return DevicePlan(
        gpu=gpu,
        inference=inference,
        decode=tuple(_decode_points(shape, gpu, choice, inference)),
        decode_floor_without_input_embedding_ns=_without_embedding(shape, gpu, choice, first),
        decode_floor_at_measured_copy_ns=_at_copy(gpu, first),
        prefill=prefill_limit(shape, gpu, choice.precision, prompt=choice.prompt),
        ridge_bf16_flops_per_byte=ridge(gpu, "bf16"),
        ridge_fp8_flops_per_byte=ridge(gpu, "fp8"),
        ridge_batch=ridge_batch(shape, gpu, choice.precision),
        training=tuple(_training_fit(memory, gpu, choice) for memory in training),
        splits=tuple(_split_fit(shape, gpu, choice, split, inference) for split in splits),
    )


def _decode_points(
    shape: ModelShape, gpu: Gpu, choice: Choice, inference: Inference
) -> Iterable[DecodePoint]:
    """The weights alone, then growing batches at the context that was asked for."""
    if not generates(shape):
        return
    batches = sorted({1, choice.batch, *BATCHES})
    points = [(1, 0)]
    if shape.cache_known:
        points += [(batch, choice.context) for batch in batches]
    for batch, context in points:
        limit = _decode(shape, gpu, choice, batch, context)
        if limit is not None:
            room = int(inference.kv_room_bytes.value)
            weights_fit = inference.longest_context_tokens != 0
            yield DecodePoint(limit, weights_fit and int(limit.kv_read_bytes.value) <= room)


def generates(shape: ModelShape) -> bool:
    """Whether the model decodes token by token; an encoder alone does not."""
    return bool(shape.caches) or not shape.cache_known


def _split_fit(
    shape: ModelShape, gpu: Gpu, choice: Choice, split: Split, inference: Inference
) -> SplitFit:
    usable, each = int(inference.usable_bytes.value), int(split.kv_bytes_per_token_per_gpu.value)
    held = int(split.weights_bytes_per_gpu.value) + int(inference.overhead_bytes.value)
    room = usable - held
    share = cache_bytes(shape, choice.context, choice.cache_bytes) / split.gpus
    tokens = None
    if each and room >= 0 and only_full(shape):
        tokens = Figure(
            room // each, f"({number(usable)} - {number(held)} bytes) / {number(each)} a GPU"
        )
    fits = split.obstacle is None and room >= choice.batch * share
    return SplitFit(
        split.tensor, split.pipeline, fits, tokens, _split_floor(shape, gpu, choice, split)
    )


def _split_floor(shape: ModelShape, gpu: Gpu, choice: Choice, split: Split) -> Figure | None:
    """Stages run one after the other, so only the tensor-parallel part makes a step shorter."""
    if gpu.bandwidth_bytes_per_s is None:
        return None
    read = int(weights_read(shape, choice.precision, 1).value)
    rate = gpu.bandwidth_bytes_per_s
    return Figure(
        round(read / split.tensor / rate * 1e9),
        f"{number(read)} bytes / {split.tensor} / {number(rate / 1e9)} GB/s",
    )


def _unknown_inference(shape: ModelShape, choice: Choice) -> Inference:
    nothing = Figure(0, "the memory of this GPU is not known")
    return Inference(
        fits=False,
        usable_bytes=nothing,
        weights_bytes=weights_bytes(shape, choice.precision),
        overhead_bytes=overhead_bytes(shape, fixed_bytes=choice.fixed_overhead_bytes),
        kv_room_bytes=nothing,
        kv_tokens=None,
        longest_context_tokens=None,
        sequences=(),
    )


def _decode(
    shape: ModelShape, gpu: Gpu, choice: Choice, batch: int, context: int
) -> DecodeLimit | None:
    return decode_limit(
        shape,
        gpu,
        choice.precision,
        batch=batch,
        context=context,
        cache_dtype_bytes=choice.cache_bytes,
        source_tokens=choice.source_tokens,
    )


def _without_embedding(
    shape: ModelShape, gpu: Gpu, choice: Choice, first: DecodeLimit | None
) -> Figure | None:
    """The floor at batch 1 when of the input embedding only its row is read."""
    if first is None or gpu.bandwidth_bytes_per_s is None:
        return None
    gathered = gathered_bytes(shape, choice.precision)
    whole = int(first.weights_read_bytes.value) + int(first.kv_read_bytes.value)
    return Figure(
        round((whole - gathered) / gpu.bandwidth_bytes_per_s * 1e9),
        f"({number(whole)} - {number(gathered)} bytes) / "
        f"{number(gpu.bandwidth_bytes_per_s / 1e9)} GB/s",
    )


def _at_copy(gpu: Gpu, first: DecodeLimit | None) -> Figure | None:
    """The first floor again, at the bandwidth that a copy was measured to reach."""
    rate = gpu.measured_copy_bytes_per_s
    if rate is None or first is None:
        return None
    read = int(first.weights_read_bytes.value) + int(first.kv_read_bytes.value)
    return Figure(round(read / rate * 1e9), f"{number(read)} bytes / {number(rate / 1e9)} GB/s")


def _training_fit(memory: TrainingMemory, gpu: Gpu, choice: Choice) -> TrainingFit:
    room = (gpu.memory_bytes or 0) * choice.utilization
    total = int(memory.total_bytes.value)
    return TrainingFit(memory.regime, total <= room, total, gpus_when_sharded(memory, room))
