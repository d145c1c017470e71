"""Small instances of public architectures, and random ones of every family."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

_WIDTH, _HEADS, _WINDOW = 64, 4, 8
_TINY: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 6),
    **dict.fromkeys(("num_layers", "decoder_layers"), 3),
    **dict.fromkeys(("num_decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("state_size", "mamba_d_state", "linear_key_head_dim"), 8),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 6),
    **dict.fromkeys(("head_dim", "d_kv"), 16),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "vocab_size": 199,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "word_embed_proj_dim": 32,
    "max_source_positions": 20,
    "num_mel_bins": 8,
    "intermediate_size_mlp": 80,
    "n_groups": 2,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
}
_HEAD_KEYS = (
    "num_attention_heads",
    "n_head",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_TOKEN_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def tiny_config(values: dict[str, Any]) -> dict[str, Any]:
    """The same architecture, small enough for a CPU; windows of eight tokens."""
    tiny = {key: _TINY.get(key, value) if value else value for key, value in values.items()}
    tiny |= {key: _HEADS for key in _HEAD_KEYS if key in tiny}
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in tiny:
            grouped = values[key] < values.get("num_attention_heads", 0)
            tiny[key] = min(values[key], 2) if grouped else _HEADS
    tiny |= {key: _WINDOW for key in ("sliding_window", "attention_chunk_size") if tiny.get(key)}
    if "layer_types" in tiny:
        tiny["layer_types"] = tiny["layer_types"][: tiny["num_hidden_layers"]]
    if tiny["model_type"] == "mamba2":
        tiny["num_heads"] = 8
    if tiny["model_type"] == "mamba":
        tiny.pop("intermediate_size")  # it follows from `expand`
    return tiny | dict.fromkeys(_TOKEN_KEYS, 0)


_SWITCHES = (
    "attention_bias",
    "mlp_bias",
    "use_bias",
    "use_qkv_bias",
    "qkv_bias",
    "qk_layernorm",
    "use_qk_norm",
    "tie_word_embeddings",
    "use_parallel_residual",
    "parallel_attn",
    "multi_query",
    "new_decoder_architecture",
    "bias",
    "enable_bias",
    "do_layer_norm_before",
    "lm_head_bias",
    "attention_out_bias",
    "mamba_conv_bias",
    "mamba_proj_bias",
    "use_conv_bias",
    "projectors_bias",
    "mamba_rms_norm",
    "layer_norm_elementwise_affine",
)
_WIDTH_KEYS = (
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "d_ff",
    "decoder_ffn_dim",
    "encoder_ffn_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "intermediate_size_mlp",
)


def random_config(model_type: str, dice: Random) -> dict[str, Any]:
    """A random small config of a family; only keys that its class has."""
    import transformers

    config_class = transformers.CONFIG_MAPPING[model_type]
    known = {field.name for field in dataclasses.fields(config_class)}
    values = _random_sizes(dice)
    values |= {key: dice.random() < 0.5 for key in _SWITCHES if dice.random() < 0.5}
    if "kv_lora_rank" in known:
        values |= {"num_key_value_heads": values["num_attention_heads"], "head_dim": 8}
        values["q_lora_rank"] = dice.choice([None, 20]) if model_type != "deepseek_v32" else 20
    values |= _fitted(model_type, values, dice)
    kept = {key: value for key, value in values.items() if key in known}
    return {"model_type": model_type, **kept}


def _random_sizes(dice: Random) -> dict[str, Any]:
    heads, head = dice.choice([4, 8]), dice.choice([8, 16])
    width, layers = heads * head, dice.choice([3, 4, 6, 7])
    return {
        **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), width),
        **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "encoder_layers"), layers),
        **dict.fromkeys(("num_decoder_layers", "decoder_layers"), dice.choice([2, 5])),
        **dict.fromkeys(_HEAD_KEYS, heads),
        **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), dice.choice([1, 2, 4])),
        **dict.fromkeys(("head_dim", "d_kv"), head),
        **dict.fromkeys(_WIDTH_KEYS, dice.choice([48, 80, 96])),
        **dict.fromkeys(
            ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
            dice.choice([4, 8]),
        ),
        **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
        **dict.fromkeys(_TOKEN_KEYS, 0),
        **dict.fromkeys(("n_group", "topk_group"), 1),
        "vocab_size": dice.choice([101, 200]),
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "first_k_dense_replace": dice.choice([0, 1, 2]),
        "n_shared_experts": dice.choice([1, 2]),
        "moe_num_shared_experts": dice.choice([1, 2]),
        "decoder_sparse_step": dice.choice([1, 2]),
        "mlp_only_layers": dice.choice([[], [1]]),
        "interleave_moe_layer_step": dice.choice([1, 2]),
        "moe_layer_interval": dice.choice([1, 2]),
        "moe_layer_end_index": dice.choice([-1, 2]),
        "sliding_window": 16,
        "feed_forward_proj": dice.choice(["relu", "gated-gelu"]),
        "max_source_positions": 20,
        "num_mel_bins": 8,
    }


def _fitted(model_type: str, values: dict[str, Any], dice: Random) -> dict[str, Any]:
    """Sizes that must agree with each other in the families with mixers."""
    if model_type in ("bamba", "falcon_h1", "granitemoehybrid"):
        inner = dice.choice([64, 128]) if model_type == "falcon_h1" else 128
        layers = values["num_hidden_layers"]
        return {
            "hidden_size": 64,
            "head_dim": 64 // values["num_attention_heads"],
            "mamba_n_heads": 8,
            "mamba_d_head": inner // 8,
            "mamba_d_ssm": inner,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "attn_layer_indices": [1],
            "layer_types": [dice.choice(["mamba", "attention"]) for _ in range(layers)],
        }
    fitted: dict[str, dict[str, Any]] = {
        "mamba": {"state_size": 8, "expand": dice.choice([1, 2])},
        "falcon_mamba": {"state_size": 8, "time_step_rank": 5},
        "mamba2": {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "expand": 2},
        "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 8},
        "qwen3_next": _DELTA,
        "qwen3_5_text": _DELTA,
        "qwen3_5_moe_text": _DELTA,
    }
    return fitted.get(model_type, {})


_DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
