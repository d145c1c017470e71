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
