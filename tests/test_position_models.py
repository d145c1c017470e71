"""The layer pattern on many architectures: their launches by emulation, their answers by module."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.emulated import emulate
from tests.live_models import quiet
from tests.stripped import device_alone
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze

# Every name that configurations use for the size of a small model.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner"), 128),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size"), 128),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "kv_lora_rank", "v_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "patch_size"), 8),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "image_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "pad_token_id": 0,
}
DECODERS = [
    *("llama", "gemma2", "qwen2_moe", "qwen3", "mixtral", "deepseek_v3", "phi3", "gpt_neox"),
    *("gptj", "gpt2", "opt", "falcon", "olmo2", "cohere", "stablelm", "granite", "gpt_oss"),
    *("qwen3_next", "mamba", "minimax", "nemotron_h", "jetmoe", "openai-gpt"),
    *("deepseek_v4", "hy_v4"),
]
UNFUSED = ["llama", "gpt2", "gemma2", "falcon", "deepseek_v3", "gpt_oss"]
# Of emulated kernel time; the rest are sums that a module's owner counts as its own.
LEAST = {"nemotron_h": 0.98, "granite": 0.98, "minimax": 0.97, "cohere": 0.99, "gptj": 0.99}
LEAST |= {"hy_v4": 0.99}  # of four layers what opens the first is no small part
ENCODERS = ["distilbert", "modernbert", "vit", "bart", "marian", "whisper", "bert", "mpnet", "t5"]


def small(kind: str, attention: str = "sdpa") -> Any:
    """A model of that type with few and narrow layers."""
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {kind}")
    known = transformers.AutoConfig.for_model(kind)
    shape: dict[str, Any] = {n: value for n, value in _SMALL.items() if hasattr(known, n)}
    if isinstance(getattr(known, "image_size", None), (list, tuple)):
        shape["image_size"] = [_SMALL["image_size"]] * 2
    if hasattr(known, "kv_lora_rank") or kind == "falcon":
        shape = {**shape, "num_key_value_heads": 4}
        del shape["head_dim"]  # follows from other sizes
    config = type(known)(**shape)
    factories = (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModel,
    )
    for factory in factories:
        for chosen in (attention, "eager"):
            try:
                made = factory.from_config(config, dtype=torch.bfloat16, attn_implementation=chosen)
            except ValueError:
                continue
            return made.eval()
    raise AssertionError(f"no model of type {kind}")


def agreement(found: Analysis, known: Analysis) -> float:
    """Share of kernel time in which the place and the module say the same group."""
    duration = known.trace.events["duration_ns"].to_numpy()[known.work["event"]]
    told = known.work["how"].isin(["module", "operator"]).to_numpy()
    same = [
        _block(BUCKETS[a]) == _block(BUCKETS[b])
        for a, b in zip(known.work["bucket"], found.work["bucket"], strict=True)
    ]
    return float(duration[told & same].sum() / duration[told].sum())


def _block(bucket: tuple[str, str]) -> str:
    return bucket[0] if bucket[0] in ("attention", "ffn") else "other"


def emulated(model: Any, inputs: dict[str, Any], folder: Path) -> float:
    """Agreement over two passes of a model."""
    trace = emulate(model, lambda: [model(**inputs) for _ in range(2)], folder)
    return agreement(analyze(device_alone(trace)), analyze(trace))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "attention"),
    [*((kind, "sdpa") for kind in DECODERS), *((kind, "eager") for kind in UNFUSED)],
)
def test_decoders(kind: str, attention: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small(kind, attention)
        inputs = {"input_ids": torch.randint(3, 128, (2, 12))}
        found = emulated(model, inputs, tmp_path)
    assert found >= LEAST.get(kind, 0.995)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small(kind)
        inputs = {"input_ids": torch.randint(3, 128, (2, 12))}
        if model.main_input_name == "pixel_values":
            inputs = {"pixel_values": torch.randn(2, 3, 32, 32, dtype=torch.bfloat16)}
        if kind == "t5":  # others make these of the input
            inputs["decoder_input_ids"] = inputs["input_ids"]
        found = emulated(model, inputs, tmp_path)
    assert found >= 0.995
