"""A decode step of a Llama-shaped model with a static cache, plain enough to be captured in a CUDA
graph and compiled whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. `parallel`: attention and FFN of a layer read the same input, and the FFN
    runs on a stream of its own."""

    layers: int = 4
    width: int = 1024
    inner: int = 2816
    heads: int = 8
    kv_heads: int = 2
    vocabulary: int = 4096
    cache: int = 512
    parallel: bool = False

    @property
    def head(self) -> int:
        return self.width // self.heads


LLAMA_8B = Shape(32, 4096, 14336, 32, 8, 128256, 1024)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Attention(nn.Module):
    k_cache: torch.Tensor
    v_cache: torch.Tensor

    def __init__(self, shape: Shape, batch: int) -> None:
        super().__init__()
        self.shape = shape
        width, kv = shape.width, shape.kv_heads * shape.head
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        cache = torch.zeros(batch, shape.kv_heads, shape.cache, shape.head)
        self.register_buffer("k_cache", cache, persistent=False)
        self.register_buffer("v_cache", cache.clone(), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor, rope: Any, mask: Any) -> Any:
        batch = x.shape[0]
        heads = self.shape.heads // self.shape.kv_heads
        q = self.q_proj(x).view(batch, 1, self.shape.heads, self.shape.head).transpose(1, 2)
        k = self.k_proj(x).view(batch, 1, self.shape.kv_heads, self.shape.head).transpose(1, 2)
        v = self.v_proj(x).view(batch, 1, self.shape.kv_heads, self.shape.head).transpose(1, 2)
        q, k = rotated(q, *rope), rotated(k, *rope)
        self.k_cache.index_copy_(2, position, k)
        self.v_cache.index_copy_(2, position, v)
        keys = self.k_cache.repeat_interleave(heads, dim=1)
        values = self.v_cache.repeat_interleave(heads, dim=1)
        mixed = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, 1, self.shape.width))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape, batch: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width)
        self.self_attn = Attention(shape, batch)
        self.post_attention_layernorm = RMSNorm(shape.width)
        self.mlp = MLP(shape)
        self.side: Any = None  # the stream of the FFN, where it has one

    def forward(self, x: torch.Tensor, position: torch.Tensor, rope: Any, mask: Any) -> Any:
        normed = self.input_layernorm(x)
        if self.side is None:
            x = x + self.self_attn(normed, position, rope, mask)
            return x + self.mlp(self.post_attention_layernorm(x))
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            fed = self.mlp(normed)
        attended = self.self_attn(normed, position, rope, mask)
        here.wait_stream(self.side)
        return x + attended + fed


class Decoder(nn.Module):
    """Token ids of shape [batch, 1] and a position in the cache -> logits."""

    inverse: torch.Tensor
    places: torch.Tensor

    def __init__(self, shape: Shape, batch: int = 1) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(DecoderLayer(shape, batch) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        half = torch.arange(0, shape.head, 2, dtype=torch.float32)
        self.register_buffer("inverse", 1.0 / 10000 ** (half / shape.head), persistent=False)
        self.register_buffer("places", torch.arange(shape.cache), persistent=False)

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        angles = torch.cat((position.float() * self.inverse,) * 2)
        rope = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = (self.places <= position)[None, None, None, :]
        for layer in self.layers:
            x = layer(x, position, rope, mask)
        logits: torch.Tensor = self.lm_head(self.norm(x))
        return logits


@dataclass
class Step:
    """A model with the memory that its step reads and writes, so that it can be captured."""

    model: nn.Module
    ids: torch.Tensor
    position: torch.Tensor
    forward: Callable[..., torch.Tensor]

    def __call__(self) -> torch.Tensor:
        with torch.no_grad():
            return self.forward(self.ids, self.position)


def make_step(shape: Shape, batch: int = 1, device: str = "cuda") -> Step:
    """A decode step of a model with random weights in bf16."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Decoder(shape, batch).eval()
    finally:
        torch.set_default_dtype(default)
    if shape.parallel:
        side = new_stream()
        for layer in model.layers:
            layer.__dict__["side"] = side
    ids = torch.full((batch, 1), 7, dtype=torch.int64, device=device)
    position = torch.full((1,), shape.cache // 2, dtype=torch.int64, device=device)
    return Step(model, ids, position, model)


def new_stream() -> Any:
    """A stream beside the current one."""
    make: Any = torch.cuda.Stream
    return make()


def warm_up(step: Step, times: int = 2) -> None:
    """Run a step as a capture needs it: on another stream, before."""
    stream = new_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(stream)


def capture(step: Step) -> torch.cuda.CUDAGraph:
    """The step in a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
