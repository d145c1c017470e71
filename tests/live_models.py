"""Tiny models with random weights for the tests of live capture."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 64


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Without the messages of transformers about tiny configurations."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}
_DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**_SHAPE, "num_key_value_heads": 2}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
    ),
    "gemma": (
        "GemmaConfig",
        "GemmaForCausalLM",
        {**_SHAPE, "num_key_value_heads": 2, "head_dim": 8},
    ),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**_SHAPE, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **_SHAPE,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _SHAPE),
}
DECODERS = tuple(_DECODERS)


def decoder(name: str) -> Any:
    """A causal language model of that architecture, in evaluation mode."""
    config, model, shape = _DECODERS[name]
    return _make(config, model, shape)


def encoder_decoder() -> Any:
    """A T5."""
    shape = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}
    return _make(
        "T5Config",
        "T5ForConditionalGeneration",
        {**shape, "vocab_size": VOCABULARY, "decoder_start_token_id": 0},
    )


def encoder() -> Any:
    """A BERT."""
    return _make("BertConfig", "BertModel", _SHAPE)


def classifier() -> Any:
    """A BERT that tells classes apart."""
    return _make("BertConfig", "BertForSequenceClassification", _SHAPE)


def reward() -> Any:
    """A decoder that gives a score instead of tokens."""
    shape = {**_SHAPE, "num_key_value_heads": 2, "pad_token_id": 0, "num_labels": 1}
    return _make("LlamaConfig", "LlamaForSequenceClassification", shape)


def _make(config: str, model: str, shape: dict[str, Any]) -> Any:
    with quiet():
        torch.manual_seed(0)
        made = getattr(transformers, model)(getattr(transformers, config)(**shape)).eval()
        if hasattr(made, "generation_config") and made.generation_config is not None:
            made.generation_config.pad_token_id = 0
            made.generation_config.eos_token_id = None
    return made


def prompt(batch: int = 2, tokens: int = 5) -> torch.Tensor:
    """Token ids of a prompt."""
    return torch.randint(3, VOCABULARY, (batch, tokens))


class Block(nn.Module):
    """A layer of a model of our own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        out: torch.Tensor = x + self.mlp(x)
        return out


class SelfAttention(nn.Module):
    """Attention of one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        out: torch.Tensor = self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        return out


class OwnModel(nn.Module):
    """A language model of our own: its cache is a list of the hidden states so far."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        x = self.embedding(ids)
        if cache is not None:
            cache.append(x)
            x = torch.cat(cache, dim=1)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x[:, -1:])
        return out
