"""Groups against the truth of the recordings, and the ladder of evidence by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of, score, truth_of
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze


def parts(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Group, part and evidence of each work row, in order."""
    rows = zip(analysis.work["bucket"], analysis.work["how"], strict=True)
    return [(*BUCKETS[bucket], str(how)) for bucket, how in rows]


def test_every_kernel_of_the_decode_recording_has_the_group_of_the_truth(shared: Path) -> None:
    name = "decode_llama8b_modules"
    right, total, wrong = score(analysis_of(shared / "h200" / f"{name}.json.gz"), truth_of(name))
    assert total > 0
    assert wrong == []
    assert right == total


@pytest.mark.parametrize("part", ["core", "loss", "optimizer"])
def test_training_without_ranges_is_told_apart_by_operators(shared: Path, part: str) -> None:
    analysis = analysis_of(shared / "h200" / "train_lora_4layer.json.gz")
    directions = {
        direction
        for (_, found, how), direction in zip(
            parts(analysis), analysis.work["direction"].astype(str), strict=True
        )
        if found == part and how == "operator"
    }
    assert directions == ({"optimizer"} if part == "optimizer" else {"forward", "backward"})


def test_backward_time_lands_in_the_module_of_its_forward(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "qlora_nf4_train.json.gz")
    work = analysis.work
    backward = work[work["direction"] == "backward"]
    named = backward["charged_ns"][backward["module"] >= 0].sum()
    assert named / backward["charged_ns"].sum() >= 0.99


def test_a_users_own_names_are_understood_from_what_ran() -> None:
    """No word says attention: the module in which the attention operator ran is it, and what has
    linear layers beside it in the layer is the FFN."""
    maker = TraceMaker()
    time = 0
    for layer in range(2):
        base = f"stack.{layer}"
        maker.module(base, "Piece", time, 100)
        maker.module(f"{base}.mix", "Mix", time + 1, 40)
        for place, name in enumerate(("a", "b")):
            maker.module(f"{base}.mix.{name}", "Linear", time + 2 + 15 * place, 8)
            at = time + 4 + 15 * place
            maker.launch("nvjet_x", start=at, run=(at + 1, at + 2), operator="aten::mm")
        maker.launch(
            "some_kernel",
            start=time + 12,
            run=(time + 13, time + 14),
            operator="aten::_scaled_dot_product_flash_attention",
        )
        maker.module(f"{base}.think", "Think", time + 50, 40)
        maker.module(f"{base}.think.up", "Linear", time + 51, 10)
        at = time + 54
        maker.launch("nvjet_y", start=at, run=(at + 1, at + 2), operator="aten::mm")
        maker.launch("add", start=time + 95, run=(time + 96, time + 97), operator="aten::add")
        time += 100
    maker.module("out", "Linear", time, 20)
    maker.launch("nvjet_z", start=time + 5, run=(time + 6, time + 8), operator="aten::mm")
    layer_parts = [
        ("attention", "projection", "module"),
        ("attention", "core", "module"),
        ("attention", "projection", "module"),
        ("ffn", "projection", "module"),
        ("other", "residual", "module"),
    ]
    assert parts(analyze(maker.build())) == [*layer_parts * 2, ("other", "lm_head", "module")]


def routed(maker: TraceMaker, products: int) -> None:
    """A linear layer of so many kernels in one operator, a softmax, and the choice of experts."""
    maker.module("layers.0", "DecoderLayer", 0, 100)
    maker.module("layers.0.mlp", "SparseMoe", 1, 90)
    maker.module("layers.0.mlp.gate", "TopkRouter", 2, 60)
    maker.operator("aten::mm", 3, 20)
    for place in range(products):
        at = 4 + 5 * place
        maker.launch(f"sm80_xmma_gemm_f32f32_{place}", start=at, run=(at + 1, at + 2))
    for place, (kernel, operator) in enumerate(
        (("cunn_SoftMaxForward<float>", "aten::_softmax"), ("gatherTopK<float>", "aten::topk"))
    ):
        at = 30 + 10 * place
        maker.launch(kernel, start=at, run=(at + 1, at + 2), operator=operator)


@pytest.mark.parametrize("products", [1, 2, 3])
def test_a_router_whose_product_takes_several_kernels_is_no_attention(products: int) -> None:
    maker = TraceMaker()
    routed(maker, products)
    found = {(group, part) for group, part, _ in parts(analyze(maker.build()))}
    assert found == {("ffn", "router")}


def test_what_mixes_residual_streams_is_part_of_no_block() -> None:
    maker = TraceMaker()
    maker.module("layers.0", "DecoderLayer", 0, 100)
    maker.module("layers.0.attn_hc", "HyperConnection", 1, 20)
    maker.launch("nvjet_x", start=3, run=(4, 5), operator="aten::mm")
    maker.module("layers.0.self_attn", "Attention", 30, 20)
    maker.launch("nvjet_y", start=33, run=(34, 35), operator="aten::mm")
    maker.launch("nvjet_z", start=63, run=(64, 65), operator="aten::bmm")
    assert [part for _, part, _ in parts(analyze(maker.build()))] == [
        "residual",
        "projection",
        "residual",
    ]


def test_a_name_never_seen_costs_nothing_but_unattributed() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 10)
    maker.launch("zqx_frobnicate_17", start=1, run=(2, 5), operator="mylib::frobnicate")
    assert parts(analyze(maker.build())) == [("other", "unattributed", "none")]
