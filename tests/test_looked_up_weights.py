"""Quantized weights that are unpacked through a table before each product; and tables that hold
something else."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from tests.make_traces import TraceMaker
from tests.test_idle import found, status
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.facts.host import Host
from tracer.analyzers.intervals import Longs
from tracer.analyzers.names.operator_names import VIEWS

pytestmark = pytest.mark.usefixtures("one_thread")
RULE = "fallback.quantized_matmul"
IN, OUT, TOKENS = 256, 384, 128
X, WEIGHT = torch.randn(TOKENS, IN), torch.randn(OUT, IN)
TABLE, SCALES = torch.randn(16), torch.rand(OUT, 1)
PACKED = torch.randint(0, 255, (OUT, IN // 2), dtype=torch.uint8)
CODES = torch.randint(0, 16, (OUT, IN), dtype=torch.uint8)
WORDS, IDS = torch.randn(100, IN), torch.randint(0, 100, (TOKENS,))
Way = Callable[[], torch.Tensor]


def product(weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(X, weight)


# --- weights


def two_codes_a_byte() -> torch.Tensor:
    codes = torch.stack([PACKED >> 4, PACKED & 15], -1).reshape(OUT, IN)
    return product(TABLE[codes.long()] * SCALES)


def halves_by_themselves() -> torch.Tensor:
    halves = [TABLE[(PACKED >> 4).long()], TABLE[(PACKED & 15).long()]]
    return product(torch.stack(halves, -1).view(OUT, IN))


def multiplied_by_the_transpose() -> torch.Tensor:
    codes = torch.stack([PACKED >> 4, PACKED & 15], -1).view(OUT, -1).long()
    return X @ (TABLE[codes] * SCALES).view(OUT, IN).T


def a_code_a_byte() -> torch.Tensor:
    return product(torch.randn(256)[CODES.long()])


def in_half_precision() -> torch.Tensor:
    """The input is cast between the lookup and the product."""
    return functional.linear(X.bfloat16(), TABLE.bfloat16()[CODES.long()])


def by_selection() -> torch.Tensor:
    return product(TABLE.index_select(0, CODES.flatten().int()).view(OUT, IN))


def taken() -> torch.Tensor:
    return product(torch.take(TABLE, CODES.long()))


def a_table_for_each_row() -> torch.Tensor:
    return product(torch.randn(OUT, 16).gather(1, CODES.long()))


def vectors() -> torch.Tensor:
    codes = torch.randint(0, 64, (OUT, IN // 8))
    return product(torch.randn(64, 8)[codes].reshape(OUT, IN) * SCALES)


def vectors_embedded() -> torch.Tensor:
    codes = torch.randint(0, 64, (OUT, IN // 8))
    return product(functional.embedding(codes, torch.randn(64, 8)).view(OUT, IN))


# --- no weights


def an_embedding() -> torch.Tensor:
    return functional.linear(functional.embedding(IDS, WORDS), WEIGHT)


def an_embedding_by_index() -> torch.Tensor:
    return functional.linear(WORDS[IDS], WEIGHT)


def letters_side_by_side() -> torch.Tensor:
    """As many tokens as outputs: the inputs are as many numbers as the weights."""
    ids = torch.randint(0, 30, (OUT, IN // 8))
    return functional.linear(functional.embedding(ids, torch.randn(30, 8)).view(OUT, IN), WEIGHT)


def pages_of_a_cache() -> torch.Tensor:
    pages = torch.randn(20, 4, 16, 8)[torch.randint(0, 20, (2, 6))]
    key = pages.permute(0, 2, 1, 3, 4).reshape(2, 4, -1, 8)
    return torch.randn(2, 4, 1, 8) @ key.transpose(-1, -2)


def slots_of_a_cache() -> torch.Tensor:
    key = torch.randn(64, 8)[torch.randint(0, 64, (96,))]
    return torch.randn(5, 8) @ key.T


def reordered_beams() -> torch.Tensor:
    key = torch.randn(4, 4, 16, 8).index_select(0, torch.tensor([0, 0, 2, 3]))
    return torch.randn(4, 4, 1, 8) @ key.transpose(-1, -2)


def chosen_experts() -> torch.Tensor:
    chosen = torch.randn(4, OUT, IN)[torch.tensor([0, 2])]
    return torch.bmm(chosen, X.T.expand(2, -1, -1))


def sorted_tokens() -> torch.Tensor:
    return functional.linear(X[torch.argsort(torch.rand(TOKENS))], WEIGHT)


def a_position_bias() -> torch.Tensor:
    """As many numbers as the keys that follow."""
    away = torch.arange(16)[:, None] - torch.arange(16)[None] + 15
    bias, query = torch.randn(31, 4)[away].permute(2, 0, 1), torch.randn(2, 4, 16, 8)
    return torch.softmax(query @ query.transpose(-1, -2) + bias, -1) @ query


def adapters_of_requests() -> torch.Tensor:
    return torch.bmm(X[:, None], torch.randn(5, IN, 4)[torch.randint(0, 5, (TOKENS,))])


def a_schedule_of_noise() -> torch.Tensor:
    amount = torch.rand(1000)[torch.randint(0, 1000, (TOKENS,))].view(-1, 1)
    return functional.linear(X * amount, WEIGHT)


def an_activation_by_table() -> torch.Tensor:
    return functional.linear(TABLE[torch.randint(0, 16, (TOKENS, IN))], WEIGHT)


def pruned_rows() -> torch.Tensor:
    return product(WEIGHT[torch.arange(0, OUT, 2)])


def scales_of_groups() -> torch.Tensor:
    """Alone they are no weights: the wide ones are multiplied."""
    return product(torch.rand(4, IN)[torch.arange(OUT) // (OUT // 4)] * WEIGHT)


LOOKED_UP: list[Way] = [
    two_codes_a_byte, halves_by_themselves, multiplied_by_the_transpose, a_code_a_byte,
    in_half_precision, by_selection, taken, a_table_for_each_row, vectors, vectors_embedded,
]  # fmt: skip
CLEAN: list[Way] = [
    an_embedding, an_embedding_by_index, letters_side_by_side, pages_of_a_cache, slots_of_a_cache,
    reordered_beams, chosen_experts, sorted_tokens, a_position_bias, adapters_of_requests,
    a_schedule_of_noise, an_activation_by_table, pruned_rows, scales_of_groups,
]  # fmt: skip


def analysis_of(way: Way) -> Analysis:
    with torch.no_grad(), trace(detail="full") as t:
        for _ in range(2):
            way()
    return t.analysis


@pytest.mark.parametrize("way", LOOKED_UP, ids=lambda way: way.__name__)
def test_weights_that_are_looked_up(way: Way) -> None:
    (finding,) = found(analysis_of(way), RULE)
    assert finding.count == 2
    assert "looked up in a table" in finding.title
    assert finding.gain_ns == finding.cost_ns
    assert finding.cost_ns


def test_a_view_may_take_longer_than_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is work by itself on a CPU, and computes nothing all the same."""
    mostly_itself = Host._mostly_itself

    def views_too(host: Host, operators: NDArray[np.bool_], around: Longs) -> NDArray[np.bool_]:
        views = host.trace.named(lambda name: name.removeprefix("aten::") in VIEWS)[host.rows]
        return mostly_itself(host, operators, around) | views

    monkeypatch.setattr(Host, "_mostly_itself", views_too)
    for way in LOOKED_UP:
        assert len(found(analysis_of(way), RULE)) == 1, way


@pytest.mark.parametrize("way", CLEAN, ids=lambda way: way.__name__)
def test_a_table_that_holds_no_weights(way: Way) -> None:
    assert status(analysis_of(way), RULE) == "clear"


# --- on a GPU views launch nothing, and lie between on the host alone


@pytest.mark.parametrize("product_name", ["aten::linear", "aten::matmul"])
def test_a_product_that_is_taken_as_a_whole(product_name: str) -> None:
    """On a CPU, where what calls the product takes longer than it does."""
    weight = [OUT, IN] if product_name == "aten::linear" else [IN, OUT]
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 2000)
    kinds = ["float", "long int"]
    launched = (
        ("aten::embedding", [[64, 8], [OUT, IN // 8]], kinds, 20),
        (product_name, [[2, TOKENS, IN], weight], ["float"] * 2, 400),
    )
    for place, (name, shapes, types, took) in enumerate(launched):
        operator = maker.operator(name, 500 * place + 10, took)
        maker.side(
            "shapes",
            operator,
            input_shapes=json.dumps(shapes),
            input_types=json.dumps(types),
            concrete_inputs="[]",
        )
    assert [f.cost_ns for f in found(analyze(maker.build()), RULE)] == [20_000]


def on_a_gpu(*, between: str = "", codes: str = "unsigned char") -> Analysis:
    """Codes unpacked, looked up, scaled and multiplied: 10, 20, 30 and 400 us."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 2000)
    sizes = [[OUT, IN], [OUT, 1]]
    launched = (
        ("aten::bitwise_and", [[OUT, IN // 2], []], [codes, "Scalar"], 10),
        ("aten::index", [[16], []], ["c10::BFloat16", ""], 20),
        ("aten::mul", sizes, ["c10::BFloat16"] * 2, 30),
        (between, sizes[:1], ["c10::BFloat16"], 5),
        ("aten::mm", [[TOKENS, IN], [IN, OUT]], ["c10::BFloat16"] * 2, 400),
    )
    for place, (name, shapes, types, took) in enumerate(launched):
        if not name:
            continue
        at = 500.0 * place / 5 + 10
        operator = maker.operator(name, at, 80)
        maker.side(
            "shapes",
            operator,
            input_shapes=json.dumps(shapes),
            input_types=json.dumps(types),
            concrete_inputs="[]",
        )
        kernel = "sm90_gemm" if name == "aten::mm" else "elementwise_kernel<x>"
        maker.launch(kernel, start=at + 5, run=(at + 10, at + 10 + took))
    return analyze(maker.build())


def test_what_unpacks_and_scales_is_of_the_cost() -> None:
    (finding,) = found(on_a_gpu(), RULE)
    assert (finding.count, finding.cost_ns, finding.gain_ns) == (1, 60_000, 60_000)
    assert finding.detail["matmul_ns"] == 400_000


def test_numbers_that_come_before_the_codes_are_not() -> None:
    (finding,) = found(on_a_gpu(codes="c10::BFloat16"), RULE)
    assert finding.cost_ns == 50_000


@pytest.mark.parametrize("between", ["aten::gelu", "aten::_softmax", "aten::native_layer_norm"])
def test_what_is_changed_otherwise_before_the_product_is_no_weight(between: str) -> None:
    assert not found(on_a_gpu(between=between), RULE)


def test_views_and_copies_may_lie_between() -> None:
    assert [f.cost_ns for f in found(on_a_gpu(between="aten::copy_"), RULE)] == [65_000]
