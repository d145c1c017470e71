"""Attention whose softmax is written out as exponents, sum and division; and all that has those
parts and is no attention."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.make_traces import TraceMaker
from tests.test_idle import found, status
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze

pytestmark = pytest.mark.usefixtures("one_thread")
RULE = "fallback.attention"
# Large enough that a product takes longer than what calls it.
HEADS, LENGTH, SIZE, EXPERTS = 4, 128, 32, 4
QUERY, KEY, VALUE = (torch.randn(2, HEADS, LENGTH, SIZE) for _ in range(3))
X, WORDS, GATE = torch.randn(2, LENGTH, SIZE), torch.randn(64, SIZE), torch.randn(EXPERTS, SIZE)
UP, DOWN = torch.randn(EXPERTS, SIZE, 32), torch.randn(EXPERTS, 32, SIZE)
MASK = torch.triu(torch.full((LENGTH, LENGTH), -1e9), 1)
Way = Callable[[], torch.Tensor]


def scores() -> torch.Tensor:
    return QUERY @ KEY.transpose(-1, -2) / math.sqrt(SIZE)


def powers(logits: torch.Tensor) -> torch.Tensor:
    return torch.exp(logits - logits.amax(-1, keepdim=True))


def total(weights: torch.Tensor) -> torch.Tensor:
    return weights.sum(-1, keepdim=True)


def divided(weights: torch.Tensor) -> torch.Tensor:
    return weights / total(weights)


def normalized(logits: torch.Tensor) -> torch.Tensor:
    return divided(powers(logits))


# --- attention


def without_the_largest() -> torch.Tensor:
    return divided(scores().exp()) @ VALUE


def less_the_largest() -> torch.Tensor:
    return normalized(scores()) @ VALUE


def masked_with_dropout() -> torch.Tensor:
    logits = torch.einsum("bhqd,bhkd->bhqk", QUERY, KEY).masked_fill(MASK < 0, -1e9)
    weights = torch.exp(logits - logits.max(-1, keepdim=True).values)
    weights = functional.dropout(weights / weights.sum(-1, keepdim=True), 0.1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, VALUE)


def in_place() -> torch.Tensor:
    weights = scores().add_(MASK)
    weights.sub_(weights.amax(-1, keepdim=True)).exp_()
    return weights.div_(total(weights)) @ VALUE


def divided_at_the_end() -> torch.Tensor:
    weights = powers(scores())
    divisor = total(weights)
    return (weights @ VALUE) / divisor


def summed_at_the_end() -> torch.Tensor:
    weights = powers(scores())
    return (weights @ VALUE) / (total(weights) + 1e-6)


def less_the_logarithm() -> torch.Tensor:
    logits = scores()
    return torch.exp(logits - logits.logsumexp(-1, keepdim=True)) @ VALUE


def by_a_reciprocal() -> torch.Tensor:
    weights = powers(scores())
    return (weights * (1 / total(weights))) @ VALUE


def powers_of_two() -> torch.Tensor:
    logits = scores() * math.log2(math.e)
    return divided(torch.exp2(logits - logits.amax(-1, keepdim=True))) @ VALUE


def mask_after_the_exponents() -> torch.Tensor:
    weights = powers(scores()) * (MASK >= 0)
    return (weights / (total(weights) + 1e-9)).bfloat16() @ VALUE.bfloat16()


def powers_of_e() -> torch.Tensor:
    logits = scores()
    weights: torch.Tensor = math.e ** (logits - logits.amax(-1, keepdim=True))
    return divided(weights) @ VALUE


def by_a_vector() -> torch.Tensor:
    """One query against the keys of one head."""
    logits = torch.mv(KEY[0, 0], QUERY[0, 0, 0])
    return torch.mv(VALUE[0, 0].T, torch.softmax(logits / math.sqrt(SIZE), 0))


def written_by_a_vector() -> torch.Tensor:
    weights = (KEY[0, 0] @ QUERY[0, 0, 0] / math.sqrt(SIZE)).exp()
    return VALUE[0, 0].T @ (weights / weights.sum())


def in_blocks() -> torch.Tensor:
    """The online softmax over blocks of keys."""
    largest, divisor = torch.full((2, HEADS, LENGTH, 1), -1e9), torch.zeros(2, HEADS, LENGTH, 1)
    out = torch.zeros_like(QUERY)
    for start in range(0, LENGTH, 32):
        keys, values = KEY[:, :, start : start + 32], VALUE[:, :, start : start + 32]
        logits = QUERY @ keys.transpose(-1, -2) / math.sqrt(SIZE)
        larger = torch.maximum(largest, logits.amax(-1, keepdim=True))
        weights, shrunk = torch.exp(logits - larger), torch.exp(largest - larger)
        divisor, out = divisor * shrunk + total(weights), out * shrunk + weights @ values
        largest = larger
    return out / divisor


def with_a_sink() -> torch.Tensor:
    weights = scores().exp()
    return weights / (total(weights) + torch.exp(torch.ones(1))) @ VALUE


# --- no attention


def batched(y: torch.Tensor) -> torch.Tensor:
    """A product as that of the next layer could be."""
    return torch.bmm(y, y.transpose(1, 2))


def head() -> torch.Tensor:
    return torch.einsum("bsd,vd->bsv", X, WORDS)


def experts() -> torch.Tensor:
    tokens = X.reshape(1, -1, SIZE).expand(EXPERTS, -1, -1)
    return torch.bmm(torch.bmm(tokens, UP).relu(), DOWN)


def a_gathered_weight() -> torch.Tensor:
    chosen = normalized(head()).gather(-1, torch.zeros(2, LENGTH, 1, dtype=torch.long))
    return batched(X * chosen)


def loss_over_the_vocabulary() -> torch.Tensor:
    chosen = normalized(head()).gather(-1, torch.zeros(2, LENGTH, 1, dtype=torch.long))
    loss = -chosen.log().mean()
    return loss * batched(X)


def contrastive_loss() -> torch.Tensor:
    weights = batched(X).exp()
    ratio = weights.diagonal(dim1=1, dim2=2) / weights.sum(-1)
    loss = -ratio.log().mean()
    return loss * batched(X)


def sampled_by_draw() -> torch.Tensor:
    token = torch.multinomial(normalized(head())[:, -1], 1)
    return batched(functional.embedding(token, WORDS))


def sampled_by_rank() -> torch.Tensor:
    ranked = normalized(head()[:, -1]).sort(-1).values.cumsum(-1)
    return batched(WORDS[(ranked > 0.5).long().argmax(-1, keepdim=True)])


def sampled_by_noise() -> torch.Tensor:
    weights = normalized(head()[:, -1])
    noise = torch.empty_like(weights).exponential_(1)
    return batched(WORDS[(weights / noise).argmax(-1, keepdim=True)])


def router() -> torch.Tensor:
    weights, _ = normalized(torch.einsum("bsd,ed->bse", X, GATE)).topk(2)
    return experts() * (weights / total(weights)).mean()


def router_of_the_chosen() -> torch.Tensor:
    logits, _ = torch.einsum("bsd,ed->bse", X, GATE).topk(2)
    return normalized(logits).mean() * experts()


def gate_by_a_linear_layer() -> torch.Tensor:
    return normalized(X @ GATE.T).mean() * experts()


def balanced_streams() -> torch.Tensor:
    mix = torch.einsum("bsd,ed->bse", X, torch.randn(16, SIZE)).view(2, LENGTH, 4, 4).exp()
    for _ in range(3):
        mix = mix / mix.sum(-1, keepdim=True)
        mix = mix / mix.sum(-2, keepdim=True)
    return mix @ torch.randn(2, LENGTH, 4, SIZE)


def linear_attention() -> torch.Tensor:
    query, key = QUERY.exp(), KEY.exp()
    state = key.transpose(-1, -2) @ VALUE
    return (query @ state) / total(query * key.sum(-2, keepdim=True))


def random_features() -> torch.Tensor:
    two = torch.tensor(2.0)  # of a plain number a division makes a tensor first, or it may

    def features(x: torch.Tensor) -> torch.Tensor:
        logits = x @ torch.randn(2, HEADS, SIZE, SIZE)
        return torch.exp(logits - (x**2).sum(-1, keepdim=True) / two) + 1e-4

    query, key = features(QUERY), features(KEY)
    inverse = 1 / torch.einsum("bhnd,bhd->bhn", query, key.sum(-2))
    return query @ (key.transpose(-1, -2) @ VALUE) * inverse.unsqueeze(-1)


def matrix_memory() -> torch.Tensor:
    """The parallel form of an mLSTM: exponents of gates, and a sum that is none of theirs."""
    gates = torch.randn(2, HEADS, LENGTH, LENGTH)
    largest = gates.amax(-1, keepdim=True)
    weights = scores() * torch.exp(gates - largest)
    return weights / torch.maximum(total(weights).abs(), torch.exp(-largest)) @ VALUE


def decayed() -> torch.Tensor:
    """A state-space layer in its quadratic form."""
    steps = torch.randn(2, HEADS, LENGTH).cumsum(-1)
    decay = torch.exp(steps[..., None] - steps[..., None, :]).tril()
    return (scores() * decay) @ VALUE


def retained() -> torch.Tensor:
    weights = scores() * torch.randn(HEADS, LENGTH, LENGTH)
    return weights / total(weights).abs().clamp(min=1) @ VALUE


def normed_scores() -> torch.Tensor:
    logits = scores()
    return logits / logits.pow(2).sum(-1, keepdim=True).sqrt() @ VALUE


def router_by_a_vector() -> torch.Tensor:
    weights, chosen = torch.softmax(torch.mv(GATE, X[0, 0]), 0).topk(2)
    return torch.mv(DOWN[chosen[0]], torch.mv(UP[chosen[0]].T, X[0, 0])) * weights[0]


def pooled() -> torch.Tensor:
    weights = powers(X @ torch.randn(SIZE, 1))
    return (weights / weights.sum(1, keepdim=True)).transpose(1, 2) @ X


def fused() -> torch.Tensor:
    return functional.scaled_dot_product_attention(QUERY, KEY, VALUE)


WRITTEN: list[Way] = [
    without_the_largest, less_the_largest, masked_with_dropout, in_place, divided_at_the_end,
    summed_at_the_end, less_the_logarithm, by_a_reciprocal, powers_of_two,
    mask_after_the_exponents, with_a_sink, powers_of_e, by_a_vector, written_by_a_vector, in_blocks,
]  # fmt: skip
CLEAN: list[Way] = [
    a_gathered_weight, loss_over_the_vocabulary, contrastive_loss, sampled_by_draw,
    sampled_by_rank, sampled_by_noise, router, router_of_the_chosen, gate_by_a_linear_layer,
    balanced_streams, linear_attention, random_features, matrix_memory, decayed, retained, pooled,
    fused, normed_scores, router_by_a_vector,
]  # fmt: skip


def analysis_of(way: Way) -> Analysis:
    with torch.no_grad(), trace() as t:
        for _ in range(3):
            way()
    return t.analysis


@pytest.mark.parametrize("way", WRITTEN, ids=lambda way: way.__name__)
def test_attention_whose_softmax_is_written_out(way: Way) -> None:
    (finding,) = found(analysis_of(way), RULE)
    assert (finding.detail["backend"], finding.count) == ("unfused", 3)
    assert 0 < (finding.gain_ns or 0) < (finding.cost_ns or 0)


@pytest.mark.parametrize("way", CLEAN, ids=lambda way: way.__name__)
def test_what_has_the_same_parts_and_is_none(way: Way) -> None:
    analysis = analysis_of(way)
    assert not found(analysis, RULE)
    assert status(analysis, RULE) == "clear"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (p(x) for p in (self.query, self.key, self.value))
        out: torch.Tensor = normalized(query @ key.transpose(-1, -2)) @ value
        return out


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(UP), nn.Parameter(DOWN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(x.expand(EXPERTS, -1, -1), self.up).relu(), self.down)


class Mixture(nn.Module):
    """Each expert takes each token: the gate's softmax is followed by products of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Parameter(GATE), Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, SIZE)
        weights = normalized(torch.einsum("td,ed->te", tokens, self.gate))
        out: torch.Tensor = (self.experts(tokens[None]) * weights.T[..., None]).sum(0)
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE) for _ in range(2))
        self.attention, self.mixture = Attention(), Mixture()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        out: torch.Tensor = x + self.mixture(self.norms[1](x))
        return out


@pytest.mark.parametrize("detail", ["modules", "full"])
def test_a_gate_of_dense_experts_is_told_by_its_module_or_its_shapes(detail: Any) -> None:
    model = nn.Sequential(OrderedDict(layers=nn.Sequential(Block(), Block())))
    with torch.no_grad(), trace(model, detail=detail) as t:
        model(X)
    places = {(f.where.module, f.count) for f in found(t.analysis, RULE)}
    assert places == {("layers.*.attention", 2)}


# --- on a GPU a sum may clear its memory first, and a product is finished by a second kernel

Launched = tuple[str, str]
PRODUCT: Launched = ("sm90_gemm", "aten::bmm")
EXP: Launched = ("vectorized_elementwise_kernel<exp_kernel_cuda>", "aten::exp")
SUM: Launched = ("reduce_kernel<sum_functor>", "aten::sum")
DIV: Launched = ("vectorized_elementwise_kernel<DivFunctor<float>>", "aten::div")
OTHER: Launched = ("vectorized_elementwise_kernel<MulFunctor<float>>", "aten::mul")
COPY: Launched = ("unrolled_elementwise_kernel<direct_copy_kernel_cuda>", "aten::copy_")
LINEAR: Launched = ("sm90_gemm", "aten::mm")


def on_a_gpu(*launched: Launched, inside: Launched | None = None) -> Analysis:
    """Kernels of 90 us, each of an operator of its own; `inside` is launched by the one before."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 2000)
    for place, (kernel, operator) in enumerate(launched):
        at = 100.0 * place + 10
        maker.operator(operator, at, 80)
        maker.launch(kernel, start=at + 5, run=(at + 10, at + 50))
        if inside is not None and operator == inside[1]:
            maker.launch(inside[0], start=at + 20, run=(at + 50, at + 90))
    return analyze(maker.build())


@pytest.mark.parametrize(
    ("launched", "kernels"),
    [
        ((PRODUCT, OTHER, EXP, SUM, DIV, PRODUCT), 6),
        ((PRODUCT, EXP, SUM, PRODUCT, DIV), 5),
        ((PRODUCT, EXP, PRODUCT, SUM, DIV), 5),
        ((PRODUCT, EXP, PRODUCT, SUM, COPY, DIV), 6),
        ((PRODUCT, EXP, SUM, DIV, LINEAR), 0),
        ((LINEAR, EXP, SUM, DIV, PRODUCT), 0),
        ((PRODUCT, LINEAR, EXP, SUM, DIV, PRODUCT), 0),
        ((PRODUCT, EXP, SUM, PRODUCT, OTHER, DIV), 0),
        ((PRODUCT, EXP, SUM, DIV, SUM, DIV, PRODUCT), 0),
        ((PRODUCT, SUM, DIV, EXP, PRODUCT), 0),
    ],
)
def test_kernels_of_a_gpu(launched: tuple[Launched, ...], kernels: int) -> None:
    findings = found(on_a_gpu(*launched), RULE)
    assert [f.detail["kernels"] for f in findings] == ([kernels] if kernels else [])


@pytest.mark.parametrize(
    "inside", [("Memset (Device)", "aten::sum"), ("splitKreduce_kernel<32>", "aten::bmm")]
)
def test_a_second_kernel_of_one_operator_is_in_no_way(inside: Launched) -> None:
    for launched in ((PRODUCT, EXP, SUM, DIV, PRODUCT), (PRODUCT, EXP, SUM, PRODUCT, DIV)):
        (finding,) = found(on_a_gpu(*launched, inside=inside), RULE)
        more = sum(operator == inside[1] for _, operator in launched)
        assert finding.detail["kernels"] == len(launched) + more


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (["triton_per_fused_amax_div_exp_mul_sub_sum_2"], True),
        (["triton_red_fused_amax_exp_sub_sum_1", "triton_poi_fused_div_exp_sub_2"], True),
        (["triton_per_fused_exp_logsumexp_mul_sub_2"], True),
        (["triton_per_fused_amax_div_exp_log_mul_sub_sum_2"], False),
        (["triton_per_fused_exp_mul_sub_2"], False),
    ],
)
def test_a_softmax_that_a_compiler_fused_from_its_parts(names: list[str], is_one: bool) -> None:
    kernels = [(name, name) for name in names]
    findings = found(on_a_gpu(PRODUCT, *kernels, PRODUCT), RULE)
    assert bool(findings) is is_one
