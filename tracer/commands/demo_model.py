"""A small Llama-shaped model with random weights, for `tracer demo`: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class DemoShape:
    """Sizes of the model."""

    hidden: int = 512
    layers: int = 4
    heads: int = 8
    key_value_heads: int = 4
    intermediate: int = 1408
    vocabulary: int = 8192

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """Root mean square norm with a weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions and a growing cache."""

    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        self.shape = shape
        narrow = shape.key_value_heads * shape.head_size
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, narrow, bias=False)
        self.v_proj = nn.Linear(shape.hidden, narrow, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(
        self, x: Tensor, rotation: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query = rotate(self._heads(self.q_proj(x)), rotation)
        key = rotate(self._heads(self.k_proj(x)), rotation)
        value = self._heads(self.v_proj(x))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=past is None, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), (key, value)

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.shape.head_size).transpose(1, 2)


class MLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return hidden


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual."""

    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden)
        self.mlp = MLP(shape)

    def forward(
        self, x: Tensor, rotation: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, cache = self.self_attn(self.input_layernorm(x), rotation, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class DemoModel(nn.Module):
    """Token ids and a cache in, logits of the last token and the longer cache out."""

    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        before = cache[0][0].shape[2] if cache else 0
        rotation = rotary_angles(before, tokens.shape[1], self.shape.head_size, tokens.device)
        x: Tensor = self.embed_tokens(tokens)
        grown: Cache = []
        for index, layer in enumerate(self.layers):
            x, entry = layer(x, rotation, cache[index] if cache else None)
            grown.append(entry)
        logits: Tensor = self.lm_head(self.norm(x[:, -1:]))
        return logits, grown


def rotary_angles(first: int, count: int, size: int, device: torch.device) -> Tensor:
    """Angles of the rotary embedding for `count` positions from `first` on."""
    rates = 10000.0 ** -(torch.arange(0, size, 2, device=device) / size)
    positions = torch.arange(first, first + count, device=device)
    return torch.outer(positions, rates)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair of channels by its angle."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def make_demo_model(device: torch.device) -> DemoModel:
    """The model on a device: bfloat16 and larger on a GPU, float32 and small on the CPU."""
    shape = DemoShape()
    if device.type == "cuda":
        shape = DemoShape(hidden=2048, layers=16, heads=32, key_value_heads=8, intermediate=8192)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = DemoModel(shape)
    return model.to(dtype).eval()


@torch.inference_mode()
def generate(model: DemoModel, prompt: Tensor, new_tokens: int) -> Tensor:
    """Greedy decoding: one prefill of the prompt, then `new_tokens` decode steps."""
    logits, cache = model(prompt)
    tokens = [logits.argmax(-1)]
    for _ in range(new_tokens):
        logits, cache = model(tokens[-1], cache)
        tokens.append(logits.argmax(-1))
    return torch.cat(tokens, 1)
