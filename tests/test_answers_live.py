"""Whether the answer is the planted one, of programs that run here: models nobody named well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer import trace
from tracer.analysis import BUCKETS

WIDTH, HEADS = 32, 4


class OneBlock(nn.Module):
    """Attention and FFN written side by side, with names that tell nothing of it."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.a, self.b = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c, self.d = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.a(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = self._core(*parts).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.b(mixed)
        out: Tensor = x + self.d(F.gelu(self.c(self.between(x))))
        return out

    def _core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.fused:
            mixed: Tensor = F.scaled_dot_product_attention(query, key, value)
            return mixed
        weights = torch.softmax(query @ key.transpose(-1, -2) / 3, -1)
        product: Tensor = weights @ value
        return product


class NamedBlock(OneBlock):
    """The same with the FFN as a container that no name gives away."""

    def __init__(self, fused: bool) -> None:
        super().__init__(fused)
        del self.c, self.d
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.a(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.b(self._core(*parts).transpose(1, 2).reshape(batch, length, WIDTH))
        out: Tensor = x + self.net(self.between(x))
        return out


class Model(nn.Module):
    def __init__(self, block: type[OneBlock], fused: bool) -> None:
        super().__init__()
        self.tok = nn.Embedding(50, WIDTH)
        self.stack = nn.ModuleList(block(fused) for _ in range(2))
        self.out = nn.Linear(WIDTH, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens)
        for block in self.stack:
            x = block(x)
        logits: Tensor = self.out(x)
        return logits


def parts_of(model: nn.Module, *inputs: Tensor, steps: int = 2) -> dict[str, set[str]]:
    """Operator -> the buckets in which its calls count."""
    with torch.no_grad(), trace() as t:
        for _ in range(steps):
            model(*inputs)
    found: dict[str, set[str]] = {}
    kernels = t.analysis.kernels
    for name, bucket in zip(kernels["name"], kernels["bucket"], strict=True):
        found.setdefault(str(name), set()).add(".".join(BUCKETS[bucket]))
    return found


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("block", [OneBlock, NamedBlock])
def test_attention_and_ffn_written_side_by_side(block: type[OneBlock], fused: bool) -> None:
    parts = parts_of(Model(block, fused), torch.randint(0, 50, (2, 16)))
    assert parts["aten::addmm"] == {"attention.projection", "ffn.projection", "other.lm_head"}
    assert parts["aten::gelu"] == {"ffn.activation"}
    if not fused:
        assert parts["aten::bmm"] == parts["aten::_softmax"] == {"attention.core"}


class Misnamed(nn.Module):
    """`attn` is convolutions, `mlp` is attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3))
        self.mlp = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, image: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attn(image), self.mlp(x, x, x, need_weights=False)[0]


def test_what_a_module_does_counts_more_than_its_name() -> None:
    parts = parts_of(Misnamed().eval(), torch.randn(1, 3, 16, 16), torch.randn(2, 8, WIDTH))
    convolutions = {name for name in parts if "conv" in name}
    assert convolutions
    assert all(parts[name] == {"other.unattributed"} for name in convolutions)
    assert parts["aten::bmm"] == {"attention.core"}
