"""From what the user has, a config, a live model or a few numbers, to a shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracer.errors import InputError, UsageError
from tracer.sizing.config import Config
from tracer.sizing.families import shape_by_formula
from tracer.sizing.layers import Sizes, feed_forward, self_attention
from tracer.sizing.memory import DTYPES, PRECISIONS
from tracer.sizing.parameters import shape_by_transformers, shape_of_model
from tracer.sizing.shape import Cache, ModelShape, Routing, Weights, table, times
from tracer.sizing.traits import Traits


def shape_of(source: Config | Any, *, basis: str = "auto") -> ModelShape:
    """The shape of a config or of a live model. `basis`: formula, transformers, or auto, which
    asks transformers only where the formulas do not know the whole of the structure."""
    if not isinstance(source, Config):
        return shape_of_model(source)
    by_formula = shape_by_formula(source) if basis != "transformers" else None
    if by_formula is not None and (basis == "formula" or not source.wraps):
        return by_formula
    if basis == "formula":
        raise InputError(
            f"no formula for `{source.model_type}` ({source.architecture}); leave out --basis, "
            "or give --params, --layers and the other sizes",
            rule="plan.config",
        )
    counted = shape_by_transformers(source)
    if isinstance(counted, ModelShape):
        return counted
    if by_formula is not None:
        return by_formula.noted(
            f"the language model alone: what wraps it was not counted ({counted})"
        )
    raise InputError(
        f"`{source.model_type}` is not among the model types counted by formula, and transformers "
        f"could not count it: {counted}; give --params, --layers and the other sizes",
        rule="plan.config",
    )


def confirmed(shape: ModelShape, config: Config) -> ModelShape:
    """The same shape, with what transformers counts for it beside the formula."""
    counted = shape_by_transformers(config)
    if isinstance(counted, str):
        return shape.noted(f"not confirmed by transformers: {counted}")
    if counted.parameters == shape.parameters:
        return shape.noted(f"confirmed by {counted.basis}")
    return counted.noted(f"the formula gives {shape.parameters:,} parameters")


def published_precision(config: Config) -> str:
    """The precision that a checkpoint with this config has."""
    text = config.text
    quantization = text.inner("quantization_config").values or (
        config.inner("quantization_config").values
    )
    method = str(quantization.get("quant_method") or "")
    if quantization.get("load_in_4bit"):
        return "nf4"
    if quantization.get("load_in_8bit"):
        return "int8"
    named = {"fp8": "fp8", "mxfp4": "mxfp4", "gptq": "int4", "awq": "int4"}
    if method in named:
        return "int8" if quantization.get("bits") == 8 else named[method]
    told = str(text.get("dtype", "torch_dtype", default="bf16")).removeprefix("torch.")
    return DTYPES.get(told, told if told in PRECISIONS else "bf16")


@dataclass(frozen=True)
class Numbers:
    """A model told by its numbers; None: not told."""

    parameters: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None
    vocabulary: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    active_parameters: int | None = None


def shape_from_numbers(numbers: Numbers) -> ModelShape:
    """A shape without a config: Llama's layer where all sizes are told, else what follows from
    those that are."""
    if numbers.parameters is None:
        return _llama_like(numbers)
    head = numbers.head_dim
    if head is None and numbers.hidden and numbers.heads:
        head = numbers.hidden // numbers.heads
    kv_heads = numbers.kv_heads or numbers.heads
    caches: tuple[Cache, ...] = ()
    if numbers.layers and kv_heads and head:
        detail = f"2 x {kv_heads} KV heads x {head}"
        each = 2 * kv_heads * head
        caches = (Cache("full", numbers.layers, each, heads=kv_heads, detail=detail),)
    shape = ModelShape(
        model_type="numbers",
        weights=_told_weights(numbers),
        caches=caches,
        basis="the numbers given",
        layers=numbers.layers,
        hidden=numbers.hidden,
        heads=numbers.heads,
        kv_heads=kv_heads,
        query_width=(numbers.heads or 0) * (head or 0),
        ffn_width=numbers.intermediate or 4 * (numbers.hidden or 0),
        vocabulary=numbers.vocabulary,
        routing=_told_routing(numbers),
        cache_known=bool(caches),
    )
    if not caches:
        return shape.noted("cache not known: give --layers, --kv-heads and --head-dim")
    return shape


_ROUNDING = 0.02


def _told_weights(numbers: Numbers) -> tuple[Weights, ...]:
    """Embedding and head, routed experts and projections where their sizes are told; what is
    left of the parameters as one piece."""
    parameters = numbers.parameters or 0
    ends: list[Weights] = []
    if numbers.vocabulary and numbers.hidden:
        ends = table("embedding", numbers.vocabulary, numbers.hidden)
        ends += [Weights("lm_head", "lm_head", numbers.vocabulary, numbers.hidden)]
    experts = _expert_parameters(numbers)
    if experts:
        ends.append(Weights("experts", "experts", 1, experts))
    left = parameters - sum(part.parameters for part in ends)
    if left <= 0:
        raise UsageError(f"--params {parameters:,}: fewer than embedding, head and experts take")
    for gated in (True, False):
        known = _told_projections(numbers, gated=gated)
        rest = left - sum(part.parameters for part in known)
        if known and rest >= -_ROUNDING * parameters:  # below zero: --params was rounded down
            return (*ends, *known, Weights("rest", "other", 1, rest, matrix=False))
    return (*ends, Weights("layers", "ffn", 1, left))


def _told_projections(numbers: Numbers, *, gated: bool) -> list[Weights]:
    """Attention and feed-forward of a dense model, if all their sizes are told."""
    layers, hidden, heads = numbers.layers, numbers.hidden, numbers.heads
    if not (layers and hidden and heads and numbers.intermediate) or numbers.experts:
        return []
    head = numbers.head_dim or hidden // heads
    sizes = Sizes(
        hidden, layers, heads, numbers.kv_heads or heads, head, numbers.intermediate, 0, None
    )
    layer = self_attention(Config({}), Traits(), sizes)
    layer += feed_forward("mlp", hidden, numbers.intermediate, gated=gated)
    return times(layer, layers)


def _expert_parameters(numbers: Numbers) -> int:
    """Solve active = parameters - experts + experts x (active experts / experts)."""
    routing = _told_routing(numbers)
    if routing is None or not numbers.active_parameters or not numbers.parameters:
        return 0
    resting = numbers.parameters - numbers.active_parameters
    return round(resting / (1 - routing.active / routing.experts))


def _told_routing(numbers: Numbers) -> Routing | None:
    experts, active = numbers.experts, numbers.experts_per_token
    if experts is None and active is None:
        return None
    if not experts or not active or active >= experts or not numbers.active_parameters:
        raise UsageError("--experts needs --experts-per-token below it, and --active-params")
    return Routing(experts, active)


def _llama_like(numbers: Numbers) -> ModelShape:
    needed = {
        "--layers": numbers.layers,
        "--hidden": numbers.hidden,
        "--heads": numbers.heads,
        "--intermediate": numbers.intermediate,
        "--vocab": numbers.vocabulary,
    }
    missing = [option for option, value in needed.items() if value is None]
    if missing:
        raise UsageError(f"give a config.json, or --params, or also {', '.join(missing)}")
    values = {
        "model_type": "llama",
        "num_hidden_layers": numbers.layers,
        "hidden_size": numbers.hidden,
        "num_attention_heads": numbers.heads,
        "num_key_value_heads": numbers.kv_heads or numbers.heads,
        "head_dim": numbers.head_dim,
        "intermediate_size": numbers.intermediate,
        "vocab_size": numbers.vocabulary,
        "max_position_embeddings": "not told",
    }
    shape = shape_by_formula(Config(values))
    if shape is None:
        raise UsageError("these numbers do not make a model")
    return shape.noted("counted as a Llama with these sizes and an untied head")
