"""How near a step comes to the limits of its device: bytes, flops, floors, what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.make_traces import TraceMaker
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.collectors.kineto.trace import read_kineto
from tracer.exporters.html import to_html
from tracer.exporters.sentence import verdict
from tracer.exporters.text import render_text
from tracer.store import load_run

RANKS = Path(__file__).parent / "recordings" / "ranks"
H200: dict[str, Any] = {"device": 0, "name": "NVIDIA H200", "major": 9, "minor": 0}
BANDWIDTH, PEAK = 4.8e12, 989e12
GEMM = "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"
TF32 = "cutlass_80_tensorop_s1688gemm_tf32_256x128_nn_align4"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4> >(int)"
BF16 = "c10::BFloat16"


def shaped(
    maker: TraceMaker, operator: str, shapes: list[list[int]], at: float, **more: Any
) -> int:
    """An operator with recorded shapes."""
    event = maker.operator(operator, at, more.pop("length", 8))
    types = [more.pop("kind", BF16)] * len(shapes)
    maker.side(
        "shapes", event, input_shapes=json.dumps(shapes), input_types=json.dumps(types), **more
    )
    return event


def product(
    run_us: float, kind: str = BF16, device: dict[str, Any] = H200, tokens: int = 64
) -> Analysis:
    """A step with one product, tokens x 4096 by 4096 x 8192, that takes `run_us`."""
    maker = TraceMaker()
    maker.side("devices", **device)
    maker.annotation("ProfilerStep#1", 0, 900)
    shaped(maker, "aten::mm", [[tokens, 4096], [4096, 8192]], 10, kind=kind)
    maker.launch(GEMM, start=12, run=(20, 20 + run_us))
    return analyze(maker.build())


def part(analysis: Analysis, name: str | None) -> dict[str, Any]:
    return dict(next(row for row in analysis.roofline if row["part"] == name))


def test_a_product_reads_its_operands_and_writes_its_result() -> None:
    found = part(product(100), "other.unattributed")
    assert found["bytes"] == 2 * (64 * 4096 + 4096 * 8192 + 64 * 8192)
    assert found["flops"] == 2 * 64 * 4096 * 8192
    assert found["floor_ns"] == round(found["bytes"] / BANDWIDTH * 1e9)
    assert found["measured_ns"] == 100_000
    assert found["reached_ratio"] == pytest.approx(found["floor_ns"] / 100_000)
    assert found["bound"] == "memory"
    assert "H200" in found["basis"] and "recorded shapes" in found["basis"]


def test_a_large_product_is_bound_by_the_tensor_cores() -> None:
    maker = TraceMaker()
    maker.side("devices", **H200)
    maker.annotation("ProfilerStep#1", 0, 900)
    shaped(maker, "aten::mm", [[8192, 8192], [8192, 8192]], 10)
    maker.launch(GEMM, start=12, run=(20, 1520))
    found = part(analyze(maker.build()), "other.unattributed")
    assert found["bound"] == "compute"
    assert found["floor_ns"] == round(2 * 8192**3 / PEAK * 1e9)


def test_single_precision_has_no_peak_in_the_table() -> None:
    """Of few tokens memory is the limit all the same; of many it may be either."""
    found = part(product(100, kind="float", tokens=4), "other.unattributed")
    assert found["bytes"] == 4 * (4 * 4096 + 4096 * 8192 + 4 * 8192)
    assert found["bound"] == "memory"
    many = product(100, kind="float", tokens=64)
    assert (many.roofline, status(many)) == ((), "not_checked")
    assert reason(many) == "for the precision of its products no peak rate is known"


def test_low_reach_is_told_and_good_reach_is_not() -> None:
    low = product(100)
    (finding,) = [f for f in low.findings if f.rule == "roofline.headroom"]
    assert finding.severity == "info"
    assert "reaches 14% of the memory bandwidth: 0.1 ms a step, 0.0143 ms" in finding.title
    assert (finding.cost_ns, finding.gain_ns) == (None, None)
    good = product(20)
    assert not any(f.rule == "roofline.headroom" for f in good.findings)
    assert status(good) == "clear"


def status(analysis: Analysis) -> str:
    return next(c.status for c in analysis.checks if c.rule == "roofline.headroom")


def reason(analysis: Analysis) -> str:
    return next(c.reason for c in analysis.checks if c.rule == "roofline.headroom")


def test_what_is_not_known_is_said() -> None:
    unknown = product(100, device={**H200, "name": "Unheard GPU"})
    assert (unknown.roofline, status(unknown)) == ((), "not_checked")
    assert reason(unknown) == "the limits of this device are not known"
    maker = TraceMaker()
    maker.side("devices", **H200)
    maker.launch(GEMM, start=12, run=(20, 40), operator="aten::mm")
    assert "record_shapes" in reason(analyze(maker.build()))
    cpu = TraceMaker()
    cpu.operator("aten::mm", 0, 10)
    assert reason(analyze(cpu.build())) == "the limits of this processor are not known"


def test_a_step_has_a_floor_when_most_of_its_work_is_known() -> None:
    assert part(product(100), None)["measured_ns"] == 900_000
    maker = TraceMaker()
    maker.side("devices", **H200)
    maker.annotation("ProfilerStep#1", 0, 900)
    shaped(maker, "aten::mm", [[64, 4096], [4096, 8192]], 10)
    maker.launch(GEMM, start=12, run=(20, 120))
    maker.launch("unheard_kernel", start=30, run=(120, 620))
    analysis = analyze(maker.build())
    assert [row["part"] for row in analysis.roofline] == ["other.unattributed"]
    assert analysis.roofline[0]["known_ratio"] == pytest.approx(1 / 6)
    assert "other.unattributed (17 % of it)" in render_text(analysis, width=100, ascii=False)


@pytest.mark.parametrize(("free", "rows"), [(30, 2), (80_000, 1)])
def test_a_step_has_no_floor_beside_time_in_which_other_work_may_have_run(
    free: float, rows: int
) -> None:
    maker = TraceMaker()
    maker.side("devices", **H200)
    maker.annotation("ProfilerStep#1", 0, 900)
    for row in range(20):
        shaped(maker, "aten::mm", [[64, 4096], [4096, 8192]], 10 + 20 * row)
        run = free + 100 * row, free + 100 * (row + 1)
        maker.launch(GEMM, start=12 + 20 * row, run=run)
    assert len(analyze(maker.build()).roofline) == rows


def test_attention_is_half_when_it_is_causal() -> None:
    maker = TraceMaker()
    maker.side("devices", **H200)
    maker.annotation("ProfilerStep#1", 0, 900)
    shapes = [[2, 16, 512, 64], [2, 4, 512, 64], [2, 4, 512, 64], [], [], []]
    values = json.dumps(["", "", "", "", "0.", "True"])
    name = "aten::scaled_dot_product_attention"
    shaped(maker, name, shapes, 10, concrete_inputs=values)
    maker.launch(FLASH, start=12, run=(20, 60))
    found = part(analyze(maker.build()), "attention.core")
    assert found["flops"] == 4 * 2 * 16 * 512 * 512 * 64 // 2
    assert found["bytes"] == 2 * 64 * 2 * (2 * 16 * 512 + 2 * 4 * 512)


def layered(tokens: int, run_us: float = 20) -> Analysis:
    """A live run: ranges around the blocks alone, weights of every module, tokens of each call."""
    maker = TraceMaker()
    maker.side("devices", **H200)
    linear: dict[str, Any] = {
        "dtype": "bfloat16",
        "parameters": 4096 * 4096,
        "parameter_bytes": 2 * 4096 * 4096,
    }
    for path, kind, weights in (
        ("", "Model", {}),
        ("layers.0", "Layer", {}),
        ("layers.0.self_attn", "Attention", {}),
        ("layers.0.mlp", "MLP", {}),
        ("layers.0.mlp.up", "Linear", linear),
        ("layers.0.mlp.down", "Linear", linear),
    ):
        maker.side("model_modules", path=path, type=kind, **weights)
    for step in range(2):
        at = 1000 * step
        maker.module("", "Model", at, 900)
        call: dict[str, Any] = {
            "batch": 2,
            "tokens": tokens,
            "cached": int(tokens == 1),
            "thread": 1,
        }
        times = {"start_ns": 1000 * at, "end_ns": 1000 * (at + 900)}
        maker.side("root_calls", root="", type="Model", call="forward", **times, **call)
        maker.module("layers.0.self_attn", "Attention", at + 2, 6)
        maker.launch(FLASH, start=at + 4, run=(at + 12, at + 14))
        maker.module("layers.0.mlp", "MLP", at + 10, 300)
        for place in range(2):
            start, begin = at + 20 + 4 * place, at + 25 + (run_us + 5) * place
            maker.launch(GEMM, start=start, run=(begin, begin + run_us), operator="aten::mm")
    return analyze(maker.build())


def test_weights_of_a_block_are_read_once_in_each_of_its_calls() -> None:
    found = part(layered(tokens=1), "ffn.projection")
    assert found["bytes"] == 2 * 2 * 4096 * 4096
    assert found["flops"] == 2 * 2 * 4096 * 4096 * 2  # two sequences
    assert found["measured_ns"] == 40_000
    assert "weights and tokens" in found["basis"]


def test_more_tokens_bring_more_flops_and_the_same_weights() -> None:
    one, many = (part(layered(tokens=count), "ffn.projection") for count in (1, 512))
    assert many["bytes"] == one["bytes"]
    assert many["flops"] == 512 * one["flops"]
    assert many["bound"] == "compute"


def trained(dtype: str, item: int, kernel: str) -> Analysis:
    """A live training step: an FFN forward, and of its two layers each product of the backward."""
    maker = TraceMaker()
    maker.side("devices", **H200)
    size = 4096 * 4096
    linear: dict[str, Any] = {
        "dtype": dtype, "parameters": size, "parameter_bytes": item * size
    }  # fmt: skip
    for path, kind, weights in (
        ("", "Model", {}),
        ("layers.0.self_attn", "Attention", {}),
        ("layers.0.mlp", "MLP", {}),
        ("layers.0.mlp.up", "Linear", linear),
        ("layers.0.mlp.down", "Linear", linear),
    ):
        maker.side("model_modules", path=path, type=kind, **weights)
    call: dict[str, Any] = {"batch": 4, "tokens": 512, "trains": 1, "thread": 1, "graded": 1}
    maker.side(
        "root_calls", root="", type="Model", call="forward", start_ns=0, end_ns=90_000, **call
    )
    maker.annotation("ProfilerStep#1", 0, 1900)
    maker.module("", "Model", 0, 90)
    maker.module("layers.0.self_attn", "Attention", 2, 6)
    maker.launch(FLASH, start=4, run=(12, 14))
    for place, name in enumerate(("up", "down")):
        at = 20 + 30 * place
        maker.module(f"layers.0.mlp.{name}", "Linear", at, 20)
        operator = maker.operator("aten::addmm", at + 1, 15)
        maker.side("sequences", operator, sequence=place + 1, forward_thread=0)
        maker.launch(kernel, start=at + 2, run=(100 + 200 * place, 300 + 200 * place))
        at = 200 - 80 * place
        for name in ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"):
            node = maker.operator(name, at, 70)
            maker.side("sequences", node, sequence=place + 1, forward_thread=1)
            at += 1
        for side in range(2):
            begin = 500 + 400 * place + 200 * side
            start = at + 5 + 30 * side
            maker.launch(kernel, start=start, run=(begin, begin + 200), operator="aten::mm")
    return analyze(maker.build())


def test_each_product_of_a_backward_has_the_work_of_the_forward() -> None:
    found = part(trained("bfloat16", 2, GEMM), "ffn.projection")
    assert found["flops"] == 6 * 2 * 4096 * 4096 * 4 * 512
    assert found["bytes"] == 6 * 2 * 4096 * 4096
    assert (found["bound"], found["known_ratio"]) == ("compute", 1)
    assert found["measured_ns"] == 6 * 200_000


def test_of_single_precision_weights_a_copy_is_read_where_the_kernel_is_shorter() -> None:
    half = part(trained("float32", 4, GEMM), "ffn.projection")
    assert (half["bytes"], half["bound"]) == (6 * 2 * 4096 * 4096, "compute")
    assert half["floor_ns"] == part(trained("bfloat16", 2, GEMM), "ffn.projection")["floor_ns"]
    fast = part(trained("float32", 4, TF32), "ffn.projection")
    assert fast["bytes"] == 6 * 4 * 4096 * 4096
    assert fast["floor_ns"] == pytest.approx(2 * half["floor_ns"])
    assert trained("float32", 4, "ampere_sgemm_128x64_tn").roofline == ()
    assert trained("float32", 4, "gemm_of_somebody").roofline == ()


def test_the_answer_says_how_much_of_the_limit_is_reached() -> None:
    said = verdict(layered(tokens=1, run_us=420))
    assert "Only 1.7 % of the memory bandwidth is reached. Small kernels do not fill" in said
    assert "quantized weights pay most" not in said


def test_a_decode_step_of_eight_billion_parameters_reads_them_all(shared: Path) -> None:
    analysis = analyze(read_kineto(shared / "h200" / "decode8b_b1_c4096.json.gz"))
    weights = sum(
        part(analysis, name)["bytes"]
        for name in ("ffn.projection", "attention.projection", "other.lm_head")
    )
    # 8.03e9 parameters in two bytes, without the table of embeddings (128256 x 4096).
    assert weights == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.005)
    whole = part(analysis, None)
    assert whole["floor_ns"] == pytest.approx((weights + 0.539e9) / BANDWIDTH * 1e9, rel=0.01)
    assert all(row["reached_ratio"] < 1 for row in analysis.roofline)
    assert "SPEED LIMIT" in render_text(analysis, width=100, ascii=False)


@pytest.mark.parametrize("program", ["decode", "compiled", "replayed"])
def test_weights_are_read_once_a_step_compiled_and_replayed_too(program: str) -> None:
    """Compiled code writes no ranges: there the modules that its kernels are of tell the weights,
    and the calls of the model the tokens."""
    trace = load_run(RANKS / program / "rank0")
    table, analysis = trace.table("model_modules"), analyze(trace)
    size = table["parameter_bytes"].to_numpy()
    for part_name, word in (("ffn.projection", ".mlp."), ("attention.projection", ".self_attn.")):
        inside = table["path"].astype(str).str.contains(word, regex=False).to_numpy()
        found = part(analysis, part_name)
        assert found["bytes"] == size[inside].sum() > 0
        assert found["known_ratio"] == 1
        assert 0.5 < found["reached_ratio"] < 1
    # The rest of the step's time on the device is a wait for the other rank.
    assert part(analysis, None)["bytes"] >= size.sum() * 0.99


def test_floors_of_a_prefill_stay_below_what_was_measured(shared: Path) -> None:
    analysis = analyze(read_kineto(shared / "h200" / "prefill8b_2048.json.gz"))
    reached = {row["part"]: row["reached_ratio"] for row in analysis.roofline}
    assert 0.7 < reached["ffn.projection"] < 0.85
    assert all(0 < ratio < 1 for ratio in reached.values())
    assert "78 % of the rate of the tensor cores is reached" in verdict(analysis)


def test_a_page_shows_the_limits() -> None:
    page = to_html(product(100))
    assert "<h2>Speed limit</h2>" in page
    assert "whole step" in page
