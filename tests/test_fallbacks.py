"""Fallbacks judged by what ran: the recordings with known answers, and cases by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of
from tests.test_idle import found, status
from tracer.analysis import Analysis
from tracer.analyzers import analyze

ATTENTION = "[[2, 8, 64, 64], [2, 8, 64, 64], [2, 8, 64, 64]"


def fallbacks(analysis: Analysis) -> list[tuple[str, str]]:
    """Rule and cause or backend of every fallback above info."""
    return [
        (f.rule, str(f.detail.get("backend") or f.detail.get("cause") or ""))
        for f in analysis.findings
        if f.rule.startswith("fallback.") and f.severity != "info"
    ]


def test_recordings_with_a_planted_fallback(shared: Path) -> None:
    answers = json.loads((shared / "h200" / "expected.json").read_text())["fallbacks"]
    for name, answer in answers.items():
        analysis = analysis_of(shared / "h200" / f"{name}.json.gz")
        wanted = [
            (rule["rule"], rule.get("backend") or rule.get("cause") or "")
            for rule in answer["rules"]
        ]
        assert fallbacks(analysis) == wanted, name
        notes = {f.rule for f in analysis.findings if f.rule == "attention.backend"}
        assert notes <= set(answer["may"]), name


@pytest.mark.parametrize(("name", "count"), [("qlora_nf4_train", 2), ("qlora_nf4_decode", 0)])
def test_dequantization_is_found_where_it_ran(shared: Path, name: str, count: int) -> None:
    analysis = analysis_of(shared / "h200" / f"{name}.json.gz")
    findings = found(analysis, "fallback.quantized_matmul")
    assert len(findings) == count
    blocks = {(f.where.module or "").rpartition(".")[2] for f in findings}
    assert blocks == ({"self_attn", "mlp"} if count else set())
    assert all(f.detail["training"] and f.severity == "info" for f in findings)


def attention_step(maker: TraceMaker, inner: str, types: str, causal: str = "True") -> None:
    maker.annotation("ProfilerStep#0", 0, 1000)
    outer = maker.operator("aten::scaled_dot_product_attention", 10, 200)
    values = f'["", "", "", "", "0.", "{causal}", "", "True"]'
    maker.side(
        "shapes",
        outer,
        input_shapes=ATTENTION + ", [], [], [], [], []]",
        input_types=types,
        concrete_inputs=values,
    )
    maker.operator(inner, 12, 190)
    fused = ("flash_fwd_kernel<x>",) * 3
    for row, name in enumerate(("gemm_a", "softmax_b", "gemm_c") if "math" in inner else fused):
        at = 20 + 50 * row
        maker.launch(name, start=at, run=(at + 10, at + 200), operator="aten::bmm")


def test_the_math_path_is_named_with_its_reasons() -> None:
    maker = TraceMaker()
    types = '["float", "float", "float"]'
    attention_step(maker, "aten::_scaled_dot_product_attention_math", types)
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert finding.detail["backend"] == "math"
    assert finding.detail["reasons"] == ["dtype float32"]
    assert finding.detail["score_bytes"] == 2 * 8 * 64 * 64 * 4
    assert finding.severity == "critical"


def test_a_version_that_fuses_the_same_call_gives_no_finding() -> None:
    maker = TraceMaker()
    types = '["float", "float", "float"]'
    attention_step(maker, "aten::_scaled_dot_product_flash_attention", types)
    analysis = analyze(maker.build())
    assert fallbacks(analysis) == []
    assert status(analysis, "fallback.attention") == "clear"


def chain(maker: TraceMaker, at: float, between: tuple[tuple[str, str], ...] = ()) -> float:
    """Product, softmax, product, with other work before the second product."""
    names = (("gemm_qk", "aten::bmm"), ("softmax_warp_forward<float>", "aten::_softmax"))
    for name, operator in (*names, *between, ("gemm_pv", "aten::bmm")):
        maker.launch(name, start=at, run=(at + 5, at + 40), operator=operator)
        at += 40
    return at


def test_attention_written_by_hand_is_counted_by_layer() -> None:
    """Case 09."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    at = 10.0
    for _ in range(4):
        at = chain(maker, at)
    findings = found(analyze(maker.build()), "fallback.attention")
    assert [(f.detail["backend"], f.count) for f in findings] == [("unfused", 4)]


def test_a_router_is_no_attention() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    chain(maker, 10, (("void at::native::sbtopk::gatherTopK<float>", "aten::topk"),))
    assert not found(analyze(maker.build()), "fallback.attention")


def products(maker: TraceMaker, name: str, microseconds: float = 100, major: int = 9) -> None:
    maker.side("devices", device=0, name="GPU", major=major, minor=0)
    maker.annotation("ProfilerStep#0", 0, 2000)
    maker.launch("nvjet_sm90_tst_x", start=5, run=(10, 900), operator="aten::mm")
    maker.launch(name, start=910, run=(920, 920 + microseconds), operator="aten::mm")


@pytest.mark.parametrize(
    ("kernel", "cause"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_ffma_aligna4", "fp32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("cutlass_80_tensorop_f16_s16816gemm_f16_128x64_nn_align2", "misaligned"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "old-architecture"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1", None),
        ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT", None),
        ("void gemvNSP_kernel<__nv_bfloat16, float, float>", None),
    ],
)
def test_slow_products_by_their_kernel(kernel: str, cause: str | None) -> None:
    maker = TraceMaker()
    products(maker, kernel)
    findings = found(analyze(maker.build()), "fallback.matmul")
    assert [f.detail["cause"] for f in findings] == ([cause] if cause else [])


def test_one_tiny_product_is_no_finding() -> None:
    maker = TraceMaker()
    products(maker, "ampere_sgemm_32x32_sliced1x4_nn", microseconds=2)
    assert not found(analyze(maker.build()), "fallback.matmul")


def test_on_an_older_device_its_own_kernels_are_fine() -> None:
    maker = TraceMaker()
    products(maker, "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", major=8)
    assert not found(analyze(maker.build()), "fallback.matmul")


def test_weights_that_travel_in_each_step() -> None:
    """Case 31: the same 128 MiB in each of 10 steps, inside the layer's forward."""
    maker = TraceMaker()
    for step in range(10):
        at = 50_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 50_000)
        maker.copy("host_to_device", 4096, start=at + 1, run=(at + 3, at + 5))
        maker.module("layers.0", "Linear", at + 100, 49_000)
        maker.copy("host_to_device", 128 << 20, start=at + 110, run=(at + 120, at + 20_000))
        maker.launch("gemm", start=at + 130, run=(at + 20_000, at + 50_000), operator="aten::mm")
    analysis = analyze(maker.build())
    (finding,) = found(analysis, "transfer.repeated_weights")
    assert finding.detail["bytes_per_step"] == 128 << 20
    assert finding.steps == tuple(range(10))
    assert finding.where.module == "layers.*"
    assert finding.cost_ns == 10 * 19_880_000


def test_a_copy_at_load_is_no_finding() -> None:
    maker = TraceMaker()
    for step in range(5):
        at = 50_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 50_000)
        maker.launch("gemm", start=at + 30, run=(at + 20_000, at + 50_000), operator="aten::mm")
        if step == 0:
            maker.copy("host_to_device", 128 << 20, start=at + 110, run=(at + 120, at + 20_000))
    assert not found(analyze(maker.build()), "transfer.repeated_weights")


def test_a_batch_of_input_is_no_weight() -> None:
    maker = TraceMaker()
    for step in range(5):
        at = 50_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 50_000)
        maker.copy("host_to_device", 8 << 20, start=at + 1, run=(at + 3, at + 500))
        maker.module("net", "Net", at + 600, 40_000)
        maker.launch("gemm", start=at + 630, run=(at + 700, at + 50_000), operator="aten::mm")
    assert not found(analyze(maker.build()), "transfer.repeated_weights")


def test_an_operator_left_on_the_cpu() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    maker.launch("gemm", start=5, run=(10, 100), operator="aten::mm")
    maker.module("lm_head", "Linear", 110, 410)
    maker.operator("aten::linear", 112, 400)
    maker.operator("aten::addmm", 115, 390)
    maker.launch("gemm", start=600, run=(610, 1000), operator="aten::mm")
    (finding,) = found(analyze(maker.build()), "device.cpu_tensor")
    assert (finding.count, finding.cost_ns) == (1, 400_000)
    assert (finding.where.operator, finding.where.module) == ("aten::linear", "lm_head")


def test_a_loop_over_experts() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 3000)
    at = 10.0
    for layer in range(2):
        maker.module(f"layers.{layer}.mlp", "Moe", at, 1000)
        for _ in range(4):
            for name, operator in (("gemm", "aten::mm"), ("index_add", "aten::index_add_")):
                maker.launch(name, start=at + 5, run=(at + 10, at + 20), operator=operator)
                at += 100
        at += 300
    (finding,) = found(analyze(maker.build()), "fallback.moe")
    assert (finding.count, finding.detail["experts"]) == (2, 4)
    assert (finding.cost_ns or 0) > 0
