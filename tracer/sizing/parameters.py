"""Counting the parameters of a model that exists: a live one, or one built on the meta device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracer.environment.ask import ask_python
from tracer.errors import InputError
from tracer.sizing.config import Config
from tracer.sizing.families import has_head, shape_by_formula
from tracer.sizing.layers import Sizes, head_cache, latent_cache, read_sizes, routing_of
from tracer.sizing.shape import Cache, CacheKind, ModelShape, Role, Weights

# In this order: the first that matches the dotted name decides.
_ROLES: tuple[tuple[Role, str], ...] = (
    ("tower", r"vision|visual|audio|image|multi_?modal|mm_proj|speech"),
    ("norm", r"norm|\bln_|layer_?norm"),
    ("experts", r"(?<!shared_)experts\."),
    ("lm_head", r"lm_head|embed_out|proj_out|cls\.predictions|^output\."),
    ("embedding", r"embed|\bwte\b|\bwpe\b|^(model\.)?shared\.weight"),
    ("router", r"router|\bgate\.(weight|bias|wg|e_score)|shared_expert_gate"),
    ("mixer", r"mamba|mixer|linear_attn|ssm|rg_lru|conv"),
    ("attention", r"attn|attention|q_proj|k_proj|v_proj|indexer|query_key_value"),
    ("ffn", r"mlp|ffn|feed_?forward|\bfc\d|shared_expert|dense"),
)
_MATRICES = frozenset({"attention", "ffn", "experts", "mixer", "encoder"})


def role_of(name: str, *, encoder_decoder: bool = False) -> Role:
    """What a parameter is, from its dotted name."""
    if encoder_decoder and re.search(r"(^|\.)encoder\.", name) and "embed_tokens" not in name:
        return "encoder"
    for role, pattern in _ROLES:
        if re.search(pattern, name):
            return role
    return "other"


def weights_from_parameters(
    parameters: Iterable[tuple[str, Sequence[int]]], *, encoder_decoder: bool = False
) -> tuple[Weights, ...]:
    """The weights of a model from its named parameters, equal ones of several layers together."""
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for name, size in parameters:
        counts[re.sub(r"\.\d+(?=\.|$)", ".*", name), tuple(size)] += 1
    return tuple(
        _weights(name, size, count, encoder_decoder) for (name, size), count in counts.items()
    )


def _weights(name: str, size: tuple[int, ...], count: int, encoder_decoder: bool) -> Weights:
    role = role_of(name, encoder_decoder=encoder_decoder)
    columns = size[-1] if size else 1
    total = 1
    for length in size:
        total *= length
    rows = total // columns if columns else 0
    matrix = role in _MATRICES and len(size) > 1 and "conv" not in name
    return Weights(name, role, rows, columns, count, matrix)


def shape_from_weights(config: Config, weights: tuple[Weights, ...], basis: str) -> ModelShape:
    """A shape whose weights were counted; what else it needs comes from the formulas of its
    family, or for an unknown one from the keys that most configs share."""
    known = shape_by_formula(config)
    if known is not None and not (config.wraps and known.encoder_layers):
        return replace(known, weights=weights, basis=basis)
    head = any(part.role == "lm_head" and part.rows > 1 for part in weights)
    shape = ModelShape(
        model_type=config.model_type,
        architecture=config.architecture,
        weights=weights,
        caches=(),
        basis=basis,
        tied=not head and has_head(config),
        cache_known=False,
    )
    try:
        return _with_sizes(shape, config.text)
    except InputError:
        return shape.noted("the config does not name its heads: the cache was not counted")


def _with_sizes(shape: ModelShape, config: Config) -> ModelShape:
    sizes = read_sizes(config)
    routed = shape.count("experts") > 0
    routing = routing_of(config) if routed else None
    width = config.get("moe_intermediate_size") if routed else None
    return replace(
        generic_caches(shape, config, sizes),
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        query_width=sizes.query,
        ffn_width=int(width or sizes.ffn) * (routing.active if routing else 1),
        vocabulary=sizes.vocabulary,
        longest=sizes.longest,
        routing=routing,
    )


def generic_caches(shape: ModelShape, config: Config, sizes: Sizes) -> ModelShape:
    """Caches by the keys that most configs share: latent ranks, layer types, windows."""
    window = config.get("sliding_window", "attention_chunk_size")
    if not config.flag("use_sliding_window", True):
        window = None
    alike = "full_attention" if window is None else "sliding_attention"
    kinds = [str(kind) for kind in config.items("layer_types") or [alike] * sizes.layers]
    if config.get("kv_lora_rank") is not None:
        indexer = config.get("index_head_dim") is not None
        cache = latent_cache(config, sizes.layers, indexer=indexer)
        return replace(shape, caches=(cache,), cache_known=True)
    sliding = sum(1 for kind in kinds if kind in ("sliding_attention", "chunked_attention"))
    full = sum(1 for kind in kinds if kind in ("full_attention", "attention", "hybrid"))
    caches = (head_cache(sizes, full), head_cache(sizes, sliding, int(window or 0) or None))
    known = replace(shape, caches=tuple(c for c in caches if c.layers), cache_known=True)
    others = len(kinds) - sliding - full
    if others:
        return known.noted(f"the state of {others} layers that do not attend was not counted")
    return known


def shape_of_model(model: Any) -> ModelShape:
    """The shape of a live model: its parameters as they are, its caches from `model.config`."""
    config = Config(dict(model.config.to_dict()), getattr(model.config, "_name_or_path", None))
    config = Config({"architectures": [type(model).__name__], **_named(config.values)}, config.name)
    encoder_decoder = bool(config.get("is_encoder_decoder", default=False))
    named = ((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())
    weights = weights_from_parameters(named, encoder_decoder=encoder_decoder)
    return shape_from_weights(config, weights, "the model object")


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "architectures" or value}


def shape_by_transformers(config: Config, *, timeout_s: float = 120.0) -> ModelShape | str:
    """The shape counted by transformers on the meta device, in a process of its own; or why not."""
    answer = ask_python(
        "tracer.sizing.meta_count",
        dict(config.values),
        timeout_s=timeout_s,
    )
    if not answer.replies:
        return answer.ending or "no answer"
    told = answer.replies[-1]
    if "error" in told:
        return str(told["error"])
    named = [(str(name), size) for name, size in told["parameters"]]
    encoder_decoder = bool(config.get("is_encoder_decoder", default=False))
    weights = weights_from_parameters(named, encoder_decoder=encoder_decoder)
    resolved = Config({**config.values, **_resolved(told)}, config.name)
    basis = f"transformers {told['transformers']} on the meta device ({told['class']})"
    shape = shape_from_weights(resolved, weights, basis)
    if shape_by_formula(resolved) is not None or not isinstance(told["cache"], list):
        return shape
    return replace(shape, caches=caches_as_kept(told["cache"]), cache_known=True, notes=())


def caches_as_kept(layers: Sequence[Mapping[str, int | None]]) -> tuple[Cache, ...]:
    """Caches from what each layer kept of a few tokens, equal layers together."""
    counts = Counter(tuple(sorted(layer.items())) for layer in layers)
    caches: list[Cache] = []
    for items, count in counts.items():
        told = {name: value or 0 for name, value in items}
        if told["token_values"]:
            window, heads, values = told["window"] or None, told["heads"], told["token_values"]
            kind: CacheKind = "full" if window is None else "window"
            caches.append(Cache(kind, count, values, window, heads=heads))
        if told["state_values"] or told["state_fp32_values"]:
            caches.append(
                Cache(
                    "state",
                    count,
                    state_values=told["state_values"],
                    state_fp32_values=told["state_fp32_values"],
                )
            )
    return tuple(caches)


def _resolved(told: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's config as transformers completed it, in place of the nested one."""
    text = told.get("text_config")
    return {**text, "text_config": text} if isinstance(text, dict) else {}
