"""Decoder-only transformers: a family is Llama's layer with its own traits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracer.sizing.config import Config
from tracer.sizing.layers import (
    LONGEST,
    Sizes,
    attention_caches,
    feed_forward,
    latent_attention,
    read_sizes,
    routed_feed_forward,
    routed_layers,
    routing_of,
    self_attention,
    shared_width,
    told,
)
from tracer.sizing.shape import Cache, ModelShape, Routing, Weights, linear, table, times, vector
from tracer.sizing.traits import BIASED, TRAITS, Traits


def build_decoder(config: Config) -> ModelShape:
    """Any family of `TRAITS`."""
    traits, sizes = TRAITS[config.model_type], read_sizes(config)
    parallel = told(config, traits.parallel)
    attend = latent_attention if traits.latent else self_attention
    layer = attend(config, traits, sizes)
    norms = traits.parallel_norms if parallel else traits.norms
    layer += _norms(traits, sizes.hidden, norms)
    routed = routed_layers(config, traits.experts, sizes.layers) if traits.experts else 0
    mlp_bias = told(config, traits.mlp_bias)
    dense_width = config.integer("intermediate_size_mlp", default=sizes.ffn)
    dense = feed_forward("mlp", sizes.hidden, dense_width, gated=traits.gated, bias=mlp_bias)
    weights = [*times(layer, sizes.layers), *times(dense, sizes.layers - routed)]
    if traits.experts and routed:
        one = routed_feed_forward(config, traits.experts, sizes.hidden, bias=mlp_bias)
        weights += times(one, routed)
    weights += _norms(traits, sizes.hidden, 1)
    weights += _input_tables(config, traits, sizes)
    tied = config.flag("tie_word_embeddings", False)
    weights += output_head(config, sizes, tied=tied, bias=told(config, traits.head_bias))
    return decoder_shape(
        config,
        sizes,
        weights,
        attention_caches(config, traits, sizes),
        gated=traits.gated,
        ffn_width=_ffn_width(config, traits, sizes, routed),
        routing=routing_of(config) if routed else None,
        reduces_a_layer=1 if parallel else 2,
    )


def _norms(traits: Traits, hidden: int, count: int) -> list[Weights]:
    if not traits.norm_weight:
        return []
    return vector("norm", "norm", hidden, count * (2 if traits.norm_bias else 1))


def _input_tables(config: Config, traits: Traits, sizes: Sizes) -> list[Weights]:
    parts = table("embedding", sizes.vocabulary, sizes.hidden)
    if traits.positions:
        rows = config.integer(traits.positions, *LONGEST) + traits.position_offset
        parts += table("positions", rows, sizes.hidden)
    return parts


def has_head(config: Config) -> bool:
    """Whether the named class ends in a vocabulary; a bare `…Model` does not."""
    name = config.architecture
    return name is None or not name.endswith("Model") or name.endswith("LMHeadModel")


def output_head(config: Config, sizes: Sizes, *, tied: bool, bias: bool) -> list[Weights]:
    if not has_head(config):
        return []
    extra = vector("lm_head.bias", "lm_head", sizes.vocabulary) if bias else []
    if tied:
        return extra
    return linear("lm_head", "lm_head", sizes.hidden, sizes.vocabulary) + extra


def _ffn_width(config: Config, traits: Traits, sizes: Sizes, routed: int) -> int:
    if not routed or traits.experts is None:
        return sizes.ffn
    width = config.integer(*traits.experts.width)
    return width * routing_of(config).active + shared_width(config, traits.experts)


def decoder_shape(
    config: Config,
    sizes: Sizes,
    weights: Sequence[Weights],
    caches: tuple[Cache, ...],
    *,
    gated: bool,
    ffn_width: int,
    routing: Routing | None = None,
    reduces_a_layer: int = 2,
) -> ModelShape:
    """A decoder's shape from its weights and caches."""
    return ModelShape(
        model_type=config.model_type,
        architecture=config.architecture,
        weights=tuple(weights),
        caches=caches,
        basis="formula",
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        query_width=_query_width(config, sizes),
        ffn_width=ffn_width,
        gated=gated,
        vocabulary=sizes.vocabulary,
        longest=sizes.longest,
        tied=config.flag("tie_word_embeddings", False) and has_head(config),
        routing=routing,
        reduces_a_layer=reduces_a_layer,
    )


def _query_width(config: Config, sizes: Sizes) -> int:
    """Numbers a token multiplies against each key and each value, on average of the two."""
    if config.get("kv_lora_rank") is None:
        return sizes.query
    key = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
    return sizes.heads * (key + config.integer("v_head_dim")) // 2


def build_bloom(config: Config) -> ModelShape:
    """BLOOM: biases everywhere, and a norm on the embedding; positions are in the attention."""
    sizes = read_sizes(config)
    layer = self_attention(config, BIASED, sizes) + _norms(BIASED, sizes.hidden, 2)
    layer += feed_forward("mlp", sizes.hidden, 4 * sizes.hidden, gated=False, bias=True)
    weights = times(layer, sizes.layers) + _norms(BIASED, sizes.hidden, 2)
    weights += _input_tables(config, BIASED, sizes)
    tied = config.flag("tie_word_embeddings", True)
    weights += output_head(config, sizes, tied=tied, bias=False)
    return decoder_shape(
        config,
        sizes,
        weights,
        attention_caches(config, BIASED, sizes),
        gated=False,
        ffn_width=4 * sizes.hidden,
    )


def build_opt(config: Config) -> ModelShape:
    """OPT: learned positions, and for one size a narrower embedding with projections."""
    sizes = read_sizes(config)
    bias = config.flag("enable_bias", True)
    affine = config.flag("layer_norm_elementwise_affine", True)
    traits = Traits(bias, bias, bias, gated=False, norm_bias=True, norm_weight=affine)
    inner = config.integer("word_embed_proj_dim", default=sizes.hidden)
    layer = self_attention(config, traits, sizes) + _norms(traits, sizes.hidden, 2)
    layer += feed_forward("mlp", sizes.hidden, sizes.ffn, gated=False, bias=bias)
    weights = times(layer, sizes.layers)
    if config.flag("do_layer_norm_before", True) and not config.flag(
        "_remove_final_layer_norm", False
    ):
        weights += _norms(traits, sizes.hidden, 1)
    weights += table("embedding", sizes.vocabulary, inner)
    weights += table("positions", (sizes.longest or 0) + 2, sizes.hidden)
    if inner != sizes.hidden:
        weights += linear("project_in", "other", inner, sizes.hidden)
        weights += linear("project_out", "other", sizes.hidden, inner)
    if has_head(config) and not config.flag("tie_word_embeddings", True):
        weights += linear("lm_head", "lm_head", inner, sizes.vocabulary)
    caches = attention_caches(config, traits, sizes)
    return decoder_shape(config, sizes, weights, caches, gated=False, ffn_width=sizes.ffn)


def build_falcon(config: Config) -> ModelShape:
    """Falcon: one key-value head (7B), groups of them (40B, 180B), or one for each query head."""
    sizes = read_sizes(config)
    grouped = config.flag("new_decoder_architecture", False)
    if not grouped:
        kv_heads = 1 if config.flag("multi_query", True) else sizes.heads
        sizes = replace(sizes, kv_heads=kv_heads)
    bias = config.flag("bias", False)
    traits = Traits(bias, bias, bias, gated=False, norm_bias=True)
    caches = attention_caches(config, traits, sizes)
    if grouped:  # transformers copies each key-value head to its group before it keeps it
        copied = 2 * sizes.query
        caches = tuple(replace(cache, transformers_token_values=copied) for cache in caches)
    parallel = config.flag("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", default=2 if grouped else 1)
    width = config.integer("ffn_hidden_size", default=4 * sizes.hidden)
    layer = self_attention(config, traits, sizes)
    layer += _norms(traits, sizes.hidden, (2 if norms == 2 else 1) if parallel else 2)
    layer += feed_forward("mlp", sizes.hidden, width, gated=False, bias=bias)
    weights = times(layer, sizes.layers) + _norms(traits, sizes.hidden, 1)
    weights += _input_tables(config, traits, sizes)
    tied = config.flag("tie_word_embeddings", True)
    weights += output_head(config, sizes, tied=tied, bias=False)
    return decoder_shape(
        config,
        sizes,
        weights,
        caches,
        gated=False,
        ffn_width=width,
        reduces_a_layer=1 if parallel else 2,
    )
