"""A model and a decode loop of one's own in plain PyTorch, traced in three lines.

    python samples/decode_loop.py                    # the report on stdout
    python samples/decode_loop.py --out runs/loop    # kept for `tracer report runs/loop`

Nothing is downloaded: the weights are random.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from tracer import trace

Cache = list[tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Causal attention with a cache of keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        batch, tokens, width = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if layer < len(cache):
            key = torch.cat((cache[layer][0], key), dim=2)
            value = torch.cat((cache[layer][1], value), dim=2)
            cache[layer] = key, value
        else:
            cache.append((key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=tokens > 1)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return result


class Layer(nn.Module):
    """Attention and a feed-forward block, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cache, layer)
        result: Tensor = x + self.ffn(self.ffn_norm(x))
        return result


class Model(nn.Module):
    """Token ids and a cache in, logits of the last token out."""

    def __init__(
        self, width: int = 256, layers: int = 4, heads: int = 4, words: int = 1024
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number)
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits


@torch.no_grad()
def decode(model: Model, prompt: Tensor, new_tokens: int) -> Tensor:
    """The prompt and what greedy decoding adds to it."""
    cache: Cache = []
    tokens, out = prompt, prompt
    for _ in range(new_tokens):
        tokens = model(tokens, cache).argmax(-1, keepdim=True)
        out = torch.cat((out, tokens), dim=1)
    return out


def main() -> None:
    """Trace one generation and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--out")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device).eval()
    prompt = torch.randint(1024, (2, 64), device=device)
    decode(model, prompt, 2)  # what libraries do once stays out of the recording
    with trace(out=args.out) as t:
        decode(model, prompt, args.tokens)
    print(t.report)


if __name__ == "__main__":
    main()
