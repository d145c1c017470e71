"""The weights of one layer, and what its attention keeps for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracer.sizing.config import Config
from tracer.sizing.shape import Cache, Routing, Weights, linear, vector
from tracer.sizing.traits import Experts, Flag, RoutedLayers, Traits


def told(config: Config, flag: Flag) -> bool:
    return config.flag(flag, False) if isinstance(flag, str) else flag


@dataclass(frozen=True)
class Sizes:
    """The numbers every decoder has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocabulary: int
    longest: int | None

    @property
    def query(self) -> int:
        return self.heads * self.head

    @property
    def key_value(self) -> int:
        return self.kv_heads * self.head


HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def read_sizes(config: Config) -> Sizes:
    """Width, depth and heads, by whatever name the family gives them."""
    hidden = config.integer(*HIDDEN)
    heads = config.integer(*HEADS)
    kv_heads = config.integer("num_key_value_heads", "num_kv_heads", default=heads)
    if config.flag("multi_query", False) and config.model_type == "gpt_bigcode":
        kv_heads = 1
    longest = config.get(*LONGEST)
    listed = config.items("layers_block_type") or config.items("layer_types")
    return Sizes(
        hidden=hidden,
        layers=config.integer(*LAYERS, default=len(listed) if listed else None),
        heads=heads,
        kv_heads=kv_heads,
        head=config.integer("head_dim", default=hidden // heads),
        ffn=config.integer("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
        vocabulary=config.integer("vocab_size"),
        longest=longest if isinstance(longest, int) else None,
    )


def self_attention(config: Config, traits: Traits, sizes: Sizes) -> list[Weights]:
    """Projections of one layer, and its q/k norms and sinks."""
    bias = told(config, traits.qkv_bias)
    parts = [
        *linear("attention.q", "attention", sizes.hidden, sizes.query, bias=bias),
        *linear("attention.k", "attention", sizes.hidden, sizes.key_value, bias=bias),
        *linear("attention.v", "attention", sizes.hidden, sizes.key_value, bias=bias),
        *linear(
            "attention.out",
            "attention",
            sizes.query,
            sizes.hidden,
            bias=told(config, traits.out_bias),
        ),
    ]
    if traits.sinks:
        parts += vector("attention.sinks", "attention", sizes.heads)
    return parts + _qk_norms(config, traits, sizes)


def _qk_norms(config: Config, traits: Traits, sizes: Sizes) -> list[Weights]:
    if traits.qk_norm == "none":
        return []
    if traits.qk_norm_key is not None and not config.flag(traits.qk_norm_key, False):
        return []
    one_a_head = traits.qk_norm == "head"
    query = sizes.head if one_a_head else sizes.query
    key = sizes.head if one_a_head else sizes.key_value
    both = 2 if traits.qk_norm_bias else 1
    return [
        *vector("attention.q_norm", "norm", query, both),
        *vector("attention.k_norm", "norm", key, both),
    ]


def latent_attention(config: Config, traits: Traits, sizes: Sizes) -> list[Weights]:
    """Multi-head latent attention: queries, keys and values through low-rank bottlenecks."""
    bias = told(config, traits.qkv_bias)
    latent = config.integer("kv_lora_rank")
    rope = config.integer("qk_rope_head_dim")
    nope = config.integer("qk_nope_head_dim")
    value = config.integer("v_head_dim")
    query = sizes.heads * (nope + rope)
    rank = config.get("q_lora_rank")
    parts: list[Weights] = []
    if rank is None:
        parts += linear("attention.q", "attention", sizes.hidden, query)
    else:
        parts += linear("attention.q_a", "attention", sizes.hidden, int(rank), bias=bias)
        parts += vector("attention.q_a_norm", "norm", int(rank))
        parts += linear("attention.q_b", "attention", int(rank), query)
    parts += linear("attention.kv_a", "attention", sizes.hidden, latent + rope, bias=bias)
    parts += vector("attention.kv_a_norm", "norm", latent)
    parts += linear("attention.kv_b", "attention", latent, sizes.heads * (nope + value))
    parts += linear("attention.out", "attention", sizes.heads * value, sizes.hidden, bias=bias)
    return parts + (_indexer(config, sizes, int(rank or 0)) if traits.indexer else [])


def _indexer(config: Config, sizes: Sizes, rank: int) -> list[Weights]:
    """The light scorer that picks the tokens a sparse attention reads."""
    width = config.integer("index_head_dim")
    heads = config.integer("index_n_heads")
    return [
        *linear("indexer.q", "attention", rank, heads * width),
        *linear("indexer.k", "attention", sizes.hidden, width),
        *vector("indexer.k_norm", "norm", width, 2),
        *linear("indexer.weights", "attention", sizes.hidden, heads),
    ]


def feed_forward(
    name: str, hidden: int, width: int, *, gated: bool, bias: bool = False
) -> list[Weights]:
    """A dense feed-forward: up, gate if it has one, and down."""
    ups = ("up", "gate") if gated else ("up",)
    parts = [part for up in ups for part in linear(f"{name}.{up}", "ffn", hidden, width, bias=bias)]
    return parts + linear(f"{name}.down", "ffn", width, hidden, bias=bias)


def routing_of(config: Config) -> Routing:
    """How many experts there are and how many a token visits."""
    experts = config.integer(
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
    )
    active = config.integer("num_experts_per_tok", "moe_k", "num_experts_per_token", default=1)
    return Routing(experts, active)


def routed_feed_forward(
    config: Config, experts: Experts, hidden: int, *, bias: bool = False
) -> list[Weights]:
    """Router, experts and shared experts of one layer."""
    routing = routing_of(config)
    width = config.integer(*experts.width)
    parts = linear("router", "router", hidden, routing.experts, bias=experts.bias)
    parts += vector("router.correction", "router", routing.experts * experts.router_extra)
    parts += [
        *linear("experts.gate_up", "experts", hidden, 2 * width, count=routing.experts),
        *linear("experts.down", "experts", width, hidden, count=routing.experts),
    ]
    if experts.bias:
        parts += vector("experts.gate_up.bias", "experts", 2 * width, routing.experts)
        parts += vector("experts.down.bias", "experts", hidden, routing.experts)
    shared = shared_width(config, experts)
    if shared:
        parts += feed_forward("shared_expert", hidden, shared, gated=True, bias=bias)
        if experts.shared_gate:
            parts += linear("shared_expert_gate", "router", hidden, 1)
    return parts


def shared_width(config: Config, experts: Experts) -> int:
    if experts.shared:
        return config.integer(*experts.shared, default=0)
    if experts.shared_count:
        return config.integer(*experts.width) * config.integer(experts.shared_count, default=0)
    return 0


def routed_layers(config: Config, experts: Experts, layers: int) -> int:
    """How many layers have experts."""
    named = config.items("mlp_layer_types")
    if named is not None and experts.layers == "late":
        return named[:layers].count("sparse")
    rule: dict[RoutedLayers, Callable[[], int]] = {
        "all": lambda: layers,
        "late": lambda: max(
            0, layers - config.integer("first_k_dense_replace", default=experts.dense_first)
        ),
        "sparse_step": lambda: _sparse_step(config, layers),
        "interleaved": lambda: _interleaved(config, layers),
        "range": lambda: _in_range(config, layers),
    }
    return rule[experts.layers]()


def _sparse_step(config: Config, layers: int) -> int:
    step = config.integer("decoder_sparse_step", default=1)
    dense = set(config.items("mlp_only_layers") or ())
    if routing_of(config).experts == 0:
        return 0
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _interleaved(config: Config, layers: int) -> int:
    named = config.items("moe_layers")
    if named is not None:
        return len([layer for layer in named if layer < layers])
    step = config.integer("interleave_moe_layer_step", default=1)
    return len(range(step - 1, layers, step))


def _in_range(config: Config, layers: int) -> int:
    start = config.integer("moe_layer_start_index", default=0)
    end = config.integer("moe_layer_end_index", default=-1)
    last = layers - 1 if end == -1 else end
    step = config.integer("moe_layer_interval", default=1)
    return sum(1 for layer in range(layers) if (layer + 1) % step == 0 and start <= layer <= last)


def windowed_layers(config: Config, traits: Traits, layers: int) -> tuple[int, int | None]:
    """How many layers attend within a window, and how wide it is."""
    window = config.get("sliding_window", "attention_chunk_size")
    if window is None or traits.windows == "none":
        return 0, None
    if config.flag("use_bidirectional_attention", False):
        window = int(window) // 2 + 1
    named = config.items("layer_types")
    if named is not None:
        kinds = ("sliding_attention", "chunked_attention")
        return sum(1 for kind in named[:layers] if kind in kinds), int(window)
    return len(_windowed(config, traits, layers)), int(window)


def _windowed(config: Config, traits: Traits, layers: int) -> Sequence[int]:
    if traits.windows == "pattern":
        return _pattern(config, traits, layers)
    if "use_sliding_window" in config.values and not config.flag("use_sliding_window", False):
        return ()
    first = config.integer("max_window_layers", default=layers)
    if traits.windows == "late":
        return range(min(first, layers), layers)
    if traits.windows == "early_odd":
        return range(0, min(first, layers), 2)
    return range(layers)


def _pattern(config: Config, traits: Traits, layers: int) -> Sequence[int]:
    no_rope = config.items("no_rope_layers")
    if no_rope:
        return [layer for layer, uses_rope in enumerate(no_rope[:layers]) if uses_rope]
    named = config.get("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(named, str):  # a letter a layer, such as LLLG
        named = len(named)
    period = int(named or traits.pattern)
    return [layer for layer in range(layers) if (layer + 1) % period]


def attention_caches(config: Config, traits: Traits, sizes: Sizes) -> tuple[Cache, ...]:
    """What the attention layers keep for each token."""
    if traits.latent:
        return (latent_cache(config, sizes.layers, indexer=traits.indexer),)
    windowed, window = windowed_layers(config, traits, sizes.layers)
    caches = (
        head_cache(sizes, sizes.layers - windowed),
        head_cache(sizes, windowed, window),
    )
    return tuple(cache for cache in caches if cache.layers)


def head_cache(sizes: Sizes, layers: int, window: int | None = None) -> Cache:
    """Keys and values of every KV head, of all tokens or of the last `window`."""
    return Cache(
        "full" if window is None else "window",
        layers,
        2 * sizes.key_value,
        window,
        heads=sizes.kv_heads,
        detail=f"2 x {sizes.kv_heads} KV heads x {sizes.head}",
    )


def latent_cache(config: Config, layers: int, *, indexer: bool) -> Cache:
    """The compressed key-value of latent attention, shared by all heads."""
    latent, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim", default=0)
    extra = config.integer("index_head_dim") if indexer else 0
    detail = f"({latent} latent + {rope} rotary{f' + {extra} indexer' if extra else ''})"
    return Cache("latent", layers, latent + rope + extra, detail=detail)
