"""Layers that hold their linear layers themselves, compiled: as in the same layers run eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tracer import trace
from tracer.analysis import BUCKETS, Analysis
from tracer.collectors.compiling.generated_ranges import GeneratedRanges

pytestmark = pytest.mark.usefixtures("one_thread", "quietly")
WIDTH, HEADS = 32, 4


class Layer(nn.Module):
    """Attention and FFN side by side, under names that tell nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.a, self.b = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c, self.d = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.a(self.n1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.b(mixed.transpose(1, 2).reshape(batch, length, width))
        y: torch.Tensor = x + self.d(functional.gelu(self.c(self.n2(x))))
        return y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.ModuleList(Layer() for _ in range(2))
        self.end = nn.Linear(WIDTH, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.stack:
            x = layer(x)
        y: torch.Tensor = self.end(x)
        return y


def two_steps() -> Analysis:
    """Two training steps of compiled code."""
    torch._dynamo.reset()
    model = Model()
    code = torch.compile(model)
    with trace() as t:
        for _ in range(2):
            code(torch.randn(2, 16, WIDTH)).sum().backward()
    torch._dynamo.reset()
    return t.analysis


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return two_steps()


def check_roles(analysis: Analysis) -> None:
    modules = analysis.modules.set_index("path")["role"].astype(str)
    roles = {name: modules[f"stack.1.{name}"] for name in "abcd"}
    assert roles == {"a": "attention", "b": "attention", "c": "ffn", "d": "ffn"}
    assert modules["end"] == "lm_head"


def test_linear_layers_have_the_roles_that_their_order_gives(analysis: Analysis) -> None:
    check_roles(analysis)


def test_norms_whose_kernels_left_no_row_still_part_the_linear_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order in which the graph calls them tells as much."""
    monkeypatch.setattr(GeneratedRanges, "wrap", lambda _self, _graph: None)
    analysis = two_steps()
    assert not analysis.trace.named(lambda name: name.startswith("cpp_fused"), "operator").any()
    check_roles(analysis)
    products = analysis.kernels[analysis.kernels["name"].astype(str) == "aten::addmm"]
    found = {BUCKETS[bucket] for bucket in products["bucket"]}
    assert {("attention", "projection"), ("ffn", "projection")} <= found


def test_a_fused_activation_is_the_ffns(analysis: Analysis) -> None:
    kernels = analysis.kernels
    names = kernels["name"].astype(str)
    fused = kernels[names.str.contains("gelu") & ~names.str.contains("norm")]
    found = {BUCKETS[bucket] for bucket in fused["bucket"]}
    # The compiler does not say of every kernel of the backward pass which lines it was made from.
    assert {("ffn", "activation")} <= found <= {("ffn", "activation"), ("other", "unattributed")}
