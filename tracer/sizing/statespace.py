"""State-space models, and hybrids that mix their layers with attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from tracer.sizing.config import Config
from tracer.sizing.decoders import decoder_shape, output_head
from tracer.sizing.layers import (
    Sizes,
    feed_forward,
    head_cache,
    read_sizes,
    routed_feed_forward,
    routed_layers,
    routing_of,
    self_attention,
    shared_width,
)
from tracer.sizing.shape import Cache, ModelShape, Weights, linear, table, times, vector
from tracer.sizing.traits import Experts, Traits


@dataclass(frozen=True)
class Mixer:
    """One state-space layer: its weights, and the numbers that it keeps for a sequence: the last
    inputs of its convolution, and a state that stays in fp32."""

    weights: list[Weights]
    conv_values: int
    state_values: int

    def cache(self, layers: int, heads: int) -> tuple[Cache, ...]:
        state = Cache(
            "state",
            layers,
            state_values=self.conv_values,
            state_fp32_values=self.state_values,
            heads=heads,
        )
        return (state,) if layers else ()


def mamba_mixer(
    hidden: int, inner: int, state: int, kernel: int, rank: int, *, bias: bool, conv_bias: bool
) -> Mixer:
    """Mamba 1: a state of `state` numbers for each inner channel."""
    weights = [
        *linear("mixer.in", "mixer", hidden, 2 * inner, bias=bias),
        *vector("mixer.conv", "mixer", inner * kernel),
        *vector("mixer.conv.bias", "mixer", inner if conv_bias else 0),
        *linear("mixer.x", "mixer", inner, rank + 2 * state),
        *linear("mixer.dt", "mixer", rank, inner, bias=True),
        *vector("mixer.A_log", "mixer", inner * state),
        *vector("mixer.D", "mixer", inner),
        *linear("mixer.out", "mixer", inner, hidden, bias=bias),
    ]
    return Mixer(weights, inner * kernel, inner * state)


def mamba2_mixer(
    hidden: int,
    inner: int,
    heads: int,
    groups: int,
    state: int,
    kernel: int,
    *,
    bias: bool,
    conv_bias: bool,
    out_bias: bool | None = None,
    norm: bool = True,
) -> Mixer:
    """Mamba 2: a state matrix a head, B and C shared by groups of heads."""
    channels = inner + 2 * groups * state
    weights = [
        *linear("mixer.in", "mixer", hidden, inner + channels + heads, bias=bias),
        *vector("mixer.conv", "mixer", channels * kernel),
        *vector("mixer.conv.bias", "mixer", channels if conv_bias else 0),
        *vector("mixer.scalars", "mixer", heads, 3),  # dt_bias, A_log, D
        *vector("mixer.norm", "norm", inner if norm else 0),
        *linear("mixer.out", "mixer", inner, hidden, bias=bias if out_bias is None else out_bias),
    ]
    return Mixer(weights, channels * kernel, inner * state)


def delta_mixer(config: Config, hidden: int) -> Mixer:
    """Gated delta rule (Qwen3-Next, Qwen3.5): a key x value matrix a head."""
    key_head = config.integer("linear_key_head_dim")
    value_head = config.integer("linear_value_head_dim")
    heads = config.integer("linear_num_value_heads")
    keys = config.integer("linear_num_key_heads") * key_head
    values = heads * value_head
    kernel = config.integer("linear_conv_kernel_dim")
    channels = 2 * keys + values
    weights = [
        *linear("mixer.in", "mixer", hidden, channels + values + 2 * heads),
        *vector("mixer.conv", "mixer", channels * kernel),
        *vector("mixer.scalars", "mixer", heads, 2),  # dt_bias, A_log
        *vector("mixer.norm", "norm", value_head),
        *linear("mixer.out", "mixer", values, hidden),
    ]
    return Mixer(weights, channels * kernel, heads * key_head * value_head)


def _rank(config: Config, name: str, hidden: int) -> int:
    value = config.get(name, default="auto")
    return ceil(hidden / 16) if value == "auto" else int(value)


def _pure(config: Config, mixer: Mixer, heads: int) -> ModelShape:
    """A stack of nothing but mixers: norm, mixer, and so on."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    vocabulary = config.integer("vocab_size")
    tied = config.flag("tie_word_embeddings", True)
    sizes = Sizes(hidden, layers, heads, heads, 0, 0, vocabulary, None)
    weights = times([*mixer.weights, *vector("norm", "norm", hidden)], layers)
    weights += vector("norm", "norm", hidden) + table("embedding", vocabulary, hidden)
    weights += output_head(config, sizes, tied=tied, bias=False)
    caches = mixer.cache(layers, heads)
    shape = decoder_shape(
        config, sizes, weights, caches, gated=False, ffn_width=0, reduces_a_layer=1
    )
    return replace(shape, heads=None, kv_heads=None)


def build_mamba(config: Config) -> ModelShape:
    """Mamba and Falcon Mamba."""
    hidden = config.integer("hidden_size")
    inner = int(config.get("expand", default=2) * hidden)
    mixer = mamba_mixer(
        hidden,
        inner,
        config.integer("state_size"),
        config.integer("conv_kernel"),
        _rank(config, "time_step_rank", hidden),
        bias=config.flag("use_bias", False),
        conv_bias=config.flag("use_conv_bias", True),
    )
    return _pure(config, mixer, 1)


def build_mamba2(config: Config) -> ModelShape:
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads")
    mixer = mamba2_mixer(
        hidden,
        int(config.get("expand", default=2) * hidden),
        heads,
        config.integer("n_groups"),
        config.integer("state_size"),
        config.integer("conv_kernel"),
        bias=config.flag("use_bias", False),
        conv_bias=config.flag("use_conv_bias", True),
    )
    return _pure(config, mixer, heads)


def _hybrid(
    config: Config,
    sizes: Sizes,
    weights: list[Weights],
    caches: tuple[Cache, ...],
    experts: Experts | None,
    routed: int,
) -> ModelShape:
    """Close a hybrid: embedding, last norm, head."""
    tied = config.flag("tie_word_embeddings", False)
    weights += table("embedding", sizes.vocabulary, sizes.hidden)
    weights += vector("norm", "norm", sizes.hidden)
    weights += output_head(config, sizes, tied=tied, bias=False)
    width = sizes.ffn
    if experts is not None and routed:
        width = config.integer(*experts.width) * routing_of(config).active
        width += shared_width(config, experts)
    return decoder_shape(
        config,
        sizes,
        weights,
        tuple(cache for cache in caches if cache.layers),
        gated=True,
        ffn_width=width,
        routing=routing_of(config) if routed else None,
    )


def build_jamba(config: Config) -> ModelShape:
    """Jamba: one layer in eight attends, every second feed-forward is routed."""
    sizes = read_sizes(config)
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset")
    attending = sum(1 for layer in range(sizes.layers) if layer % period == offset)
    routed = _jamba_routed(config, sizes.layers)
    state, rank = config.integer("mamba_d_state"), _rank(config, "mamba_dt_rank", sizes.hidden)
    mixer = mamba_mixer(
        sizes.hidden,
        int(config.get("mamba_expand", default=2) * sizes.hidden),
        state,
        config.integer("mamba_d_conv"),
        rank,
        bias=config.flag("mamba_proj_bias", False),
        conv_bias=config.flag("mamba_conv_bias", True),
    )
    mixing = [*mixer.weights, *vector("mixer.norm", "norm", rank + 2 * state)]
    experts = Experts(width=("intermediate_size",))
    weights = [
        *times(mixing, sizes.layers - attending),
        *times(self_attention(config, Traits(), sizes), attending),
        *times(feed_forward("mlp", sizes.hidden, sizes.ffn, gated=True), sizes.layers - routed),
        *times(vector("norm", "norm", sizes.hidden, 2), sizes.layers),
    ]
    if routed:
        weights += times(routed_feed_forward(config, experts, sizes.hidden), routed)
    caches = (*mixer.cache(sizes.layers - attending, 1), head_cache(sizes, attending))
    return _hybrid(config, sizes, weights, caches, experts, routed)


def _jamba_routed(config: Config, layers: int) -> int:
    if config.integer("num_experts", "num_local_experts") < 2:
        return 0
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset")
    return sum(1 for layer in range(layers) if layer % period == offset)


def _mamba2_of(
    config: Config, sizes: Sizes, *, out_bias: bool | None = None, norm: bool = True
) -> Mixer:
    """The Mamba 2 layer of the hybrids that name its sizes `mamba_…`."""
    inner = config.integer("mamba_d_ssm", default=0)
    return mamba2_mixer(
        sizes.hidden,
        inner or int(config.get("mamba_expand", default=2) * sizes.hidden),
        config.integer("mamba_n_heads"),
        config.integer("mamba_n_groups"),
        config.integer("mamba_d_state"),
        config.integer("mamba_d_conv"),
        bias=config.flag("mamba_proj_bias", False),
        conv_bias=config.flag("mamba_conv_bias", True),
        out_bias=out_bias,
        norm=norm,
    )


_HYBRID_TRAITS = Traits("attention_bias", "attention_bias", "mlp_bias")


def build_bamba(config: Config) -> ModelShape:
    """Bamba: Mamba 2 layers, a few that attend, a feed-forward in each."""
    sizes = read_sizes(config)
    attending = len(config.items("attn_layer_indices") or ())
    mixer = _mamba2_of(config, sizes)
    bias = config.flag("mlp_bias", False)
    weights = [
        *times(mixer.weights, sizes.layers - attending),
        *times(self_attention(config, _HYBRID_TRAITS, sizes), attending),
        *times(feed_forward("mlp", sizes.hidden, sizes.ffn, gated=True, bias=bias), sizes.layers),
        *times(vector("norm", "norm", sizes.hidden, 2), sizes.layers),
    ]
    heads = config.integer("mamba_n_heads")
    mixing = mixer.cache(sizes.layers - attending, heads)
    caches = (*mixing, head_cache(sizes, attending))
    return _hybrid(config, sizes, weights, caches, None, 0)


def build_falcon_h1(config: Config) -> ModelShape:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    sizes = read_sizes(config)
    mixer = _mamba2_of(
        config,
        sizes,
        out_bias=config.flag("projectors_bias", False),
        norm=config.flag("mamba_rms_norm", False),
    )
    bias = config.flag("mlp_bias", False)
    weights = [
        *mixer.weights,
        *self_attention(config, _HYBRID_TRAITS, sizes),
        *feed_forward("mlp", sizes.hidden, sizes.ffn, gated=True, bias=bias),
        *vector("norm", "norm", sizes.hidden, 2),
    ]
    caches = (
        *mixer.cache(sizes.layers, config.integer("mamba_n_heads")),
        head_cache(sizes, sizes.layers),
    )
    return _hybrid(config, sizes, times(weights, sizes.layers), caches, None, 0)


def build_granite_hybrid(config: Config) -> ModelShape:
    """Granite 4: Mamba 2 and attention by `layer_types`, routed experts beside a shared one."""
    sizes = read_sizes(config)
    kinds = config.items("layer_types") or config.items("layers_block_type") or []
    attending = sum(1 for kind in kinds if kind in ("attention", "full_attention"))
    mixer = _mamba2_of(config, sizes)
    experts = Experts(width=("intermediate_size",), shared=("shared_intermediate_size",))
    routed = sizes.layers if config.integer("num_local_experts", default=0) else 0
    shared = shared_width(config, experts)
    feed = (
        routed_feed_forward(config, experts, sizes.hidden)
        if routed
        else feed_forward("shared", sizes.hidden, shared, gated=True)
    )
    weights = [
        *times(mixer.weights, sizes.layers - attending),
        *times(
            self_attention(config, Traits("attention_bias", "attention_bias"), sizes), attending
        ),
        *times([*feed, *vector("norm", "norm", sizes.hidden, 2)], sizes.layers),
    ]
    heads = config.integer("mamba_n_heads")
    mixing = mixer.cache(sizes.layers - attending, heads)
    caches = (*mixing, head_cache(sizes, attending))
    return _hybrid(config, sizes, weights, caches, experts, routed)


def build_qwen3_next(config: Config) -> ModelShape:
    """Qwen3-Next and Qwen3.5: three gated delta layers, then one that attends with a gate."""
    sizes = read_sizes(config)
    attending = _qwen_attending(config, sizes.layers)
    mixer = delta_mixer(config, sizes.hidden)
    traits = Traits("attention_bias", "attention_bias", qk_norm="head")
    attend = self_attention(config, traits, sizes)
    bias = config.flag("attention_bias", False)
    gate = linear("attention.gate", "attention", sizes.hidden, sizes.query, bias=bias)
    experts = Experts(
        layers="sparse_step", shared=("shared_expert_intermediate_size",), shared_gate=True
    )
    has_experts = config.get("num_experts", "num_local_experts") is not None
    routed = routed_layers(config, experts, sizes.layers) if has_experts else 0
    weights = [
        *times(mixer.weights, sizes.layers - attending),
        *times([*attend, *gate], attending),
        *times(feed_forward("mlp", sizes.hidden, sizes.ffn, gated=True), sizes.layers - routed),
        *times(vector("norm", "norm", sizes.hidden, 2), sizes.layers),
    ]
    if routed:
        weights += times(routed_feed_forward(config, experts, sizes.hidden), routed)
    heads = config.integer("linear_num_value_heads")
    mixing = mixer.cache(sizes.layers - attending, heads)
    caches = (*mixing, head_cache(sizes, attending))
    return _hybrid(config, sizes, weights, caches, experts, routed)


def _qwen_attending(config: Config, layers: int) -> int:
    kinds = config.items("layer_types")
    if kinds is not None:
        return kinds[:layers].count("full_attention")
    return layers // config.integer("full_attention_interval", default=4)


STATE_SPACE: dict[str, Callable[[Config], ModelShape]] = {
    "mamba": build_mamba,
    "falcon_mamba": build_mamba,
    "mamba2": build_mamba2,
    "jamba": build_jamba,
    "bamba": build_bamba,
    "falcon_h1": build_falcon_h1,
    "granitemoehybrid": build_granite_hybrid,
    "qwen3_next": build_qwen3_next,
    "qwen3_5_text": build_qwen3_next,
    "qwen3_5_moe_text": build_qwen3_next,
}
