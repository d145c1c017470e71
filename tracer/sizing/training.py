"""Bytes of a training step: weights, gradients, optimizer, activations."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from tracer.sizing.figures import Figure, number
from tracer.sizing.memory import FIXED_OVERHEAD_BYTES, PRECISIONS, weights_bytes
from tracer.sizing.shape import ModelShape

Regime = Literal["full", "lora", "qlora"]
# State a parameter: AdamW keeps two moments in fp32; the 8-bit one a byte each and block scales;
# Adafactor a row and a column, which is next to nothing.
OPTIMIZER_BYTES: dict[str, float] = {
    "adamw": 8.0,
    "adamw8bit": 2.0 + 8 / 256,
    "sgd": 0.0,
    "sgd-momentum": 4.0,
    "adafactor": 0.02,
}
LoraTargets = Literal["all-linear", "attention"]


@dataclass(frozen=True)
class TrainingChoice:
    """How a step is run."""

    optimizer: str = "adamw"
    master_weights: bool = True  # fp32 weights and moments beside bf16 ones
    lora_rank: int = 16
    lora_targets: LoraTargets = "all-linear"
    batch: int = 1
    sequence: int = 2048
    checkpointing: bool = True


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one regime; the sum is `total_bytes`."""

    regime: Regime
    trainable_parameters: Figure
    weights_bytes: Figure
    gradients_bytes: Figure
    optimizer_bytes: Figure
    activations_bytes: Figure
    activations_without_checkpointing_bytes: Figure
    overhead_bytes: Figure
    total_bytes: Figure


def lora_parameters(shape: ModelShape, rank: int, targets: LoraTargets) -> Figure:
    """Adapters of this rank on each projection of every layer (experts and head left alone)."""
    roles = ("attention", "mixer") if targets == "attention" else ("attention", "mixer", "ffn")
    parts = [part for part in shape.weights if part.matrix and part.role in roles]
    sides = sum((part.rows + part.columns) * part.count for part in parts)
    layers = sum(part.count for part in parts)
    return Figure(
        rank * sides,
        f"rank {rank} x {number(sides)} (inputs + outputs of {number(layers)} projections)",
    )


def can_adapt(shape: ModelShape) -> bool:
    """Whether the projections are known one by one, so that adapters can be counted."""
    return any(part.matrix and part.role in ("attention", "mixer") for part in shape.weights)


def layer_activation_bytes(shape: ModelShape) -> Figure:
    """What one layer keeps of a token for its backward, attention not materialised, in bf16:
    each norm an fp32 copy, its cast and its output; q, k, v and the attention's output; the
    feed-forward's two inputs, its activation and their product (or one input and activation)."""
    hidden, query = shape.hidden or 0, shape.query_width
    heads = shape.heads or 1
    key_value = query * (shape.kv_heads or heads) // heads
    per_width = 8 if shape.gated else 4
    value = 16 * hidden + 2 * (2 * query + 2 * key_value) + per_width * shape.ffn_width
    return Figure(
        value,
        f"16 x {number(hidden)} + 4 x ({number(query)} + {number(key_value)}) + "
        f"{per_width} x {number(shape.ffn_width)} bytes",
    )


def activations(shape: ModelShape, choice: TrainingChoice, *, checkpointing: bool) -> Figure:
    """Activations of a step (an estimate), with the logits and their gradient."""
    tokens = choice.batch * choice.sequence
    layers = (shape.layers or 0) + shape.encoder_layers
    hidden, vocabulary = shape.hidden or 0, shape.vocabulary or 0
    layer = layer_activation_bytes(shape)
    logits = tokens * vocabulary * 10
    tail = f"logits {number(tokens)} tokens x {number(vocabulary)} x 10 bytes"
    if not checkpointing:
        value = tokens * layers * int(layer.value) + logits
        return Figure(
            value, f"{number(tokens)} tokens x {layers} layers x ({layer.formula}) + {tail}"
        )
    value = tokens * (layers * hidden * 2 + int(layer.value)) + logits
    return Figure(
        value,
        f"{number(tokens)} tokens x ({layers} layer inputs x {number(hidden)} x 2 bytes + one "
        f"layer recomputed: {layer.formula}) + {tail}",
    )


def training_memory(shape: ModelShape, regime: Regime, choice: TrainingChoice) -> TrainingMemory:
    """Everything one regime holds at its peak on one GPU."""
    base = weights_bytes(shape, PRECISIONS["nf4" if regime == "qlora" else "bf16"])
    if regime == "full":
        trainable = Figure(shape.parameters, "every parameter")
        weights, gradients = _full_weights(base, shape.parameters, choice)
    else:
        trainable = lora_parameters(shape, choice.lora_rank, choice.lora_targets)
        adapters = int(trainable.value)
        weights = Figure(
            int(base.value) + 4 * adapters, f"{base.formula} + {number(adapters)} adapters x 4"
        )
        gradients = Figure(4 * adapters, f"{number(adapters)} adapters x 4 bytes")
    optimizer = _optimizer(int(trainable.value), choice, full=regime == "full")
    kept = activations(shape, choice, checkpointing=choice.checkpointing)
    overhead = Figure(FIXED_OVERHEAD_BYTES, "context, kernels and workspaces")
    parts = (weights, gradients, optimizer, kept, overhead)
    total = sum(int(part.value) for part in parts)
    return TrainingMemory(
        regime=regime,
        trainable_parameters=trainable,
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=kept,
        activations_without_checkpointing_bytes=activations(shape, choice, checkpointing=False),
        overhead_bytes=overhead,
        total_bytes=Figure(total, " + ".join(number(part.value) for part in parts)),
    )


def _full_weights(base: Figure, parameters: int, choice: TrainingChoice) -> tuple[Figure, Figure]:
    gradients = Figure(2 * parameters, f"{number(parameters)} parameters x 2 bytes")
    if not choice.master_weights:
        return base, gradients
    master = f"{base.formula} + {number(parameters)} x 4 bytes (fp32 master)"
    return Figure(int(base.value) + 4 * parameters, master), gradients


def _optimizer(trainable: int, choice: TrainingChoice, *, full: bool) -> Figure:
    each = OPTIMIZER_BYTES[choice.optimizer]
    if full and not choice.master_weights:
        each /= 2  # the moments take the precision of the weights
    return Figure(int(trainable * each), f"{number(trainable)} parameters x {number(each)} bytes")


def gpus_when_sharded(memory: TrainingMemory, room_bytes: float) -> int | None:
    """How many GPUs hold a step when weights, gradients and optimizer are sharded over them
    (FSDP, ZeRO-3), each with its own activations; None if those alone do not fit."""
    shared = sum(
        int(part.value)
        for part in (memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes)
    )
    own = int(memory.activations_bytes.value) + int(memory.overhead_bytes.value)
    left = room_bytes - own
    return None if left <= 0 else ceil(shared / left)
