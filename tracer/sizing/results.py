"""What a plan says: the choice that was made, and figures with their formulas.

`tracer plan --json` prints these dataclasses as they stand. Names end in their unit (`_bytes`,
`_ns`, `_tokens`, `_per_second`, `_per_byte`); null: not known, or not limited.

    schema      "tracer.plan/1", and tracer (version)
    model       name, model_type, basis (formula, transformers, …), parameters, notes, …
    precision   of the weights in the figures below
    weights     {fp32, bf16, fp8, int8, nf4}: bytes
    kv_cache    bytes_per_token and what else a sequence keeps, by_length
    training    [{regime: full|lora|qlora, …_bytes, total_bytes}] on one GPU
    devices     [{gpu, inference: {fits, kv_tokens, sequences, …}, decode: [{limit, fits}],
                prefill, ridge_…, training: [{regime, fits, gpus_sharded}], splits}]
    splits      [{tensor, pipeline, weights_bytes_per_gpu, collectives: [{op, count, …}]}]
    formulas    {path of a figure: formula}, with --explain
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.sizing.figures import Figure
from tracer.sizing.gpus import Gpu
from tracer.sizing.limits import DecodeLimit, PrefillLimit
from tracer.sizing.memory import CACHE_BYTES, FIXED_OVERHEAD_BYTES, PRECISIONS, Precision
from tracer.sizing.parallel import Split
from tracer.sizing.training import Regime, TrainingChoice, TrainingMemory


@dataclass(frozen=True)
class Choice:
    """What was asked: precisions, load, and how much of a GPU may be used."""

    weights: str = "bf16"
    cache: str = "bf16"
    utilization: float = 0.9
    context: int = 4096
    batch: int = 1
    prompt: int = 2048
    source_tokens: int = 0
    fixed_overhead_bytes: int = FIXED_OVERHEAD_BYTES
    training: TrainingChoice = field(default_factory=TrainingChoice)

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.weights]

    @property
    def cache_bytes(self) -> float:
        return CACHE_BYTES[self.cache]


@dataclass(frozen=True)
class ModelFacts:
    """Who the model is; `basis` says where its parameters were counted."""

    name: str
    model_type: str
    architecture: str | None
    basis: str
    parameters: int
    active_parameters: int
    parameters_by_role: dict[str, int]
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    vocabulary: int | None
    longest_tokens: int | None
    tied_embeddings: bool
    experts: int | None
    experts_per_token: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CacheLayers:
    """Layers that keep the same; `window_tokens` null: all of the context."""

    kind: str
    layers: int
    window_tokens: int | None


@dataclass(frozen=True)
class CacheAtLength:
    """One sequence of this length; the second figure as transformers' dynamic cache keeps it."""

    tokens: int
    bytes: int
    transformers_bytes: int


@dataclass(frozen=True)
class CacheFacts:
    """What a sequence keeps."""

    dtype: str
    bytes_per_token: Figure
    bytes_per_token_beyond_windows: Figure
    bytes_per_source_token: Figure
    state_bytes_per_sequence: Figure
    layers: tuple[CacheLayers, ...]
    by_length: tuple[CacheAtLength, ...]


@dataclass(frozen=True)
class Sequences:
    """How many sequences of this length fit; null: memory does not limit them."""

    tokens: int
    sequences: int


@dataclass(frozen=True)
class Inference:
    """What fits on one GPU."""

    fits: bool
    usable_bytes: Figure
    weights_bytes: Figure
    overhead_bytes: Figure
    kv_room_bytes: Figure
    kv_tokens: Figure | None
    longest_context_tokens: int | None
    sequences: tuple[Sequences, ...]


@dataclass(frozen=True)
class TrainingFit:
    """Whether a regime fits one GPU, and over how many it fits sharded."""

    regime: Regime
    fits: bool
    total_bytes: int
    gpus_sharded: int | None


@dataclass(frozen=True)
class SplitFit:
    """A split on GPUs of this kind. The floor is that of the memory alone: no transfer in it."""

    tensor: int
    pipeline: int
    fits: bool
    kv_tokens: Figure | None
    decode_floor_ns: Figure | None


@dataclass(frozen=True)
class DecodePoint:
    """The limit of a decode step, and whether that batch fits one GPU with its context."""

    limit: DecodeLimit
    fits: bool


@dataclass(frozen=True)
class DevicePlan:
    """Everything about one GPU."""

    gpu: Gpu
    inference: Inference
    decode: tuple[DecodePoint, ...]
    decode_floor_without_input_embedding_ns: Figure | None
    decode_floor_at_measured_copy_ns: Figure | None
    prefill: PrefillLimit | None
    ridge_bf16_flops_per_byte: Figure | None
    ridge_fp8_flops_per_byte: Figure | None
    ridge_batch: Figure | None
    training: tuple[TrainingFit, ...]
    splits: tuple[SplitFit, ...]


@dataclass(frozen=True)
class Plan:
    """The answer to one `tracer plan`."""

    model: ModelFacts
    precision: str
    weights: dict[str, Figure]
    kv_cache: CacheFacts | None
    training: tuple[TrainingMemory, ...]
    devices: tuple[DevicePlan, ...]
    splits: tuple[Split, ...]
