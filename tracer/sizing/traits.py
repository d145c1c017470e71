"""How each decoder family departs from Llama's layer: one line of data a family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Flag = bool | str  # a string names the config key that decides
QkNorm = Literal["none", "head", "full", "each"]  # one for all heads, one over all, one a head
Windows = Literal["none", "all", "late", "early_odd", "pattern"]
RoutedLayers = Literal["all", "late", "sparse_step", "interleaved", "range"]


@dataclass(frozen=True)
class Experts:
    """A routed feed-forward: the keys that size it, and which layers have it."""

    width: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    layers: RoutedLayers = "all"
    dense_first: int = 0  # layers before the first routed one, where the config does not say
    shared: tuple[str, ...] = ()  # keys of the shared expert's width
    shared_count: str | None = None  # key of the number of shared experts, each `width` wide
    shared_gate: bool = False
    bias: bool = False  # of router and experts
    router_extra: int = 0  # numbers an expert that the router keeps besides


@dataclass(frozen=True)
class Traits:
    """How the layers of a family differ from Llama's."""

    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    norm_weight: bool = True
    qk_norm: QkNorm = "none"
    qk_norm_key: str | None = None
    qk_norm_bias: bool = False
    positions: str | None = None
    position_offset: int = 0
    head_bias: Flag = False
    parallel: Flag = False  # attention and feed-forward read the same input: one norm, one reduce
    parallel_norms: int = 1
    sinks: bool = False
    latent: bool = False
    indexer: bool = False
    windows: Windows = "none"
    pattern: int = 0
    experts: Experts | None = None


BIASED = Traits(qkv_bias=True, out_bias=True, mlp_bias=True, gated=False, norm_bias=True)
_ATTENTION_BIAS = Traits(qkv_bias="attention_bias", out_bias="attention_bias")
_DEEPSEEK = Experts(layers="late", shared_count="n_shared_experts")

TRAITS: dict[str, Traits] = {
    "llama": Traits("attention_bias", "attention_bias", "mlp_bias"),
    "granite": Traits("attention_bias", "attention_bias", "mlp_bias"),
    "smollm3": Traits("attention_bias", "attention_bias", "mlp_bias", windows="late"),
    "arcee": Traits("attention_bias", "attention_bias", "mlp_bias", gated=False),
    "seed_oss": Traits("attention_bias", "attention_out_bias", "mlp_bias"),
    "ernie4_5": Traits("use_bias", "use_bias", "use_bias"),
    "mistral": Traits(windows="all"),
    "ministral": Traits(windows="all"),
    "phi3": Traits(windows="all"),
    "qwen2": Traits(qkv_bias=True, windows="late"),
    "qwen3": Traits("attention_bias", "attention_bias", qk_norm="head", windows="late"),
    "hunyuan_v1_dense": Traits("attention_bias", "attention_bias", qk_norm="head"),
    "gemma": _ATTENTION_BIAS,
    "gemma2": Traits("attention_bias", "attention_bias", norms=4, windows="pattern", pattern=2),
    "gemma3_text": Traits(
        "attention_bias",
        "attention_bias",
        norms=4,
        qk_norm="head",
        windows="pattern",
        pattern=6,
    ),
    "glm": Traits("attention_bias"),
    "glm4": Traits("attention_bias", norms=4),
    "olmo": Traits("attention_bias", "attention_bias", norm_weight=False),
    "olmo2": Traits("attention_bias", "attention_bias", qk_norm="full"),
    "olmo3": Traits(
        "attention_bias", "attention_bias", qk_norm="full", windows="pattern", pattern=4
    ),
    "exaone4": Traits(qk_norm="head", windows="pattern", pattern=4),
    "cohere": Traits(
        "attention_bias",
        "attention_bias",
        parallel=True,
        qk_norm="each",
        qk_norm_key="use_qk_norm",
    ),
    "cohere2": Traits(
        "attention_bias", "attention_bias", parallel=True, windows="pattern", pattern=4
    ),
    "stablelm": Traits(
        "use_qkv_bias",
        norm_bias=True,
        parallel="use_parallel_residual",
        qk_norm="each",
        qk_norm_key="qk_layernorm",
    ),
    "starcoder2": Traits(
        "use_bias", "use_bias", "use_bias", gated=False, norm_bias=True, windows="all"
    ),
    "nemotron": Traits("attention_bias", "attention_bias", "mlp_bias", gated=False, norm_bias=True),
    "phi": Traits(
        True,
        True,
        True,
        gated=False,
        norm_bias=True,
        parallel=True,
        head_bias=True,
        qk_norm="head",
        qk_norm_key="qk_layernorm",
        qk_norm_bias=True,
    ),
    "persimmon": Traits(
        True,
        True,
        True,
        gated=False,
        norm_bias=True,
        qk_norm="head",
        qk_norm_key="qk_layernorm",
        qk_norm_bias=True,
    ),
    "gpt2": Traits(True, True, True, gated=False, norm_bias=True, positions="n_positions"),
    "gpt_bigcode": Traits(True, True, True, gated=False, norm_bias=True, positions="n_positions"),
    "gpt_neox": Traits(
        "attention_bias",
        "attention_bias",
        True,
        gated=False,
        norm_bias=True,
        parallel="use_parallel_residual",
        parallel_norms=2,
    ),
    "gptj": Traits(mlp_bias=True, gated=False, norm_bias=True, parallel=True, head_bias=True),
    "codegen": Traits(mlp_bias=True, gated=False, norm_bias=True, parallel=True, head_bias=True),
    "mixtral": Traits(windows="all", experts=Experts(width=("intermediate_size",))),
    "phimoe": Traits(
        "attention_bias",
        "attention_bias",
        norm_bias=True,
        head_bias="lm_head_bias",
        windows="all",
        experts=Experts(width=("intermediate_size",)),
    ),
    "olmoe": Traits(
        "attention_bias",
        "attention_bias",
        qk_norm="full",
        experts=Experts(width=("intermediate_size",)),
    ),
    "granitemoe": Traits(
        "attention_bias", "attention_bias", experts=Experts(width=("intermediate_size",))
    ),
    "granitemoeshared": Traits(
        "attention_bias",
        "attention_bias",
        experts=Experts(width=("intermediate_size",), shared=("shared_intermediate_size",)),
    ),
    "qwen2_moe": Traits(
        "qkv_bias",
        windows="early_odd",
        experts=Experts(
            layers="sparse_step", shared=("shared_expert_intermediate_size",), shared_gate=True
        ),
    ),
    "qwen3_moe": Traits(
        "attention_bias",
        "attention_bias",
        qk_norm="head",
        windows="all",
        experts=Experts(layers="sparse_step"),
    ),
    "minimax_m2": Traits(qk_norm="full", experts=Experts(width=("intermediate_size",))),
    "gpt_oss": Traits(
        "attention_bias",
        "attention_bias",
        sinks=True,
        windows="pattern",
        pattern=2,
        experts=Experts(width=("intermediate_size",), bias=True),
    ),
    "glm4_moe": Traits(
        "attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", experts=_DEEPSEEK
    ),
    "ernie4_5_moe": Traits(
        "use_bias",
        "use_bias",
        "use_bias",
        head_bias="use_bias",
        experts=Experts(layers="range", shared_count="moe_num_shared_experts", router_extra=1),
    ),
    "llama4_text": Traits(
        "attention_bias",
        "attention_bias",
        windows="pattern",
        pattern=4,
        experts=Experts(
            width=("intermediate_size",), layers="interleaved", shared=("intermediate_size",)
        ),
    ),
    "minicpm3": Traits("attention_bias", "attention_bias", "mlp_bias", latent=True),
    "deepseek_v2": Traits(
        "attention_bias", "attention_bias", "mlp_bias", latent=True, experts=_DEEPSEEK
    ),
    "deepseek_v3": Traits("attention_bias", "attention_bias", latent=True, experts=_DEEPSEEK),
    "glm4_moe_lite": Traits(
        "attention_bias",
        "attention_bias",
        latent=True,
        experts=Experts(layers="late", dense_first=1, shared_count="n_shared_experts"),
    ),
    "deepseek_v32": Traits(
        "attention_bias", "attention_bias", latent=True, indexer=True, experts=_DEEPSEEK
    ),
}
# Kimi K2 is DeepSeek V3 under its own name, which transformers does not know.
TRAITS["kimi_k2"] = TRAITS["deepseek_v3"]
