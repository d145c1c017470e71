"""Fallbacks judged by what ran: the recordings with known answers, and cases by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.make_traces import MAIN_THREAD, TraceMaker
from tests.recordings import analysis_of, kineto_files
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


# What is slow in recordings made for another purpose: vocabularies of odd sizes, which leave the
# head's operands misaligned, and adapters in fp32.
KNOWN = {
    "bare_bert_prefill": [("fallback.matmul", "misaligned")],
    "bare_gpt2_prefill": [("fallback.matmul", "misaligned")],
    "train_lora_4layer": [("fallback.matmul", "fp32")],
    "qlora_nf4_train": [("fallback.matmul", "fp32")],
}


UNPLANTED = (
    "fallback.attention",
    "fallback.moe",
    "attention.backend",
    "device.cpu_tensor",
    "transfer.repeated_weights",
)


def test_clean_recordings_stay_clean(shared: Path) -> None:
    for path in kineto_files("h200", "h200x2"):
        name = path.name.removesuffix(".json.gz")
        if name.startswith(("fallback_", "long_")):
            continue
        analysis = analysis_of(path)
        assert fallbacks(analysis) == KNOWN.get(name, []), name
        unplanted = UNPLANTED if name in KNOWN else (*UNPLANTED, "fallback.matmul")
        assert not [f for f in analysis.findings if f.rule in unplanted], name


def test_nothing_is_said_of_products_on_amd(shared: Path) -> None:
    for path in kineto_files("traces"):
        if "mi300x" in path.name or "mi210" in path.name:
            analysis = analysis_of(path)
            assert status(analysis, "fallback.matmul") == "not_checked", path.name
            assert fallbacks(analysis) == [], path.name


@pytest.mark.parametrize(("name", "count"), [("qlora_nf4_train", 2), ("qlora_nf4_decode", 0)])
def test_dequantization_is_found_where_it_ran(shared: Path, name: str, count: int) -> None:
    analysis = analysis_of(shared / "h200" / f"{name}.json.gz")
    findings = found(analysis, "fallback.quantized_matmul")
    assert len(findings) == count
    blocks = {(f.where.module or "").rpartition(".")[2] for f in findings}
    assert blocks == ({"self_attn", "mlp"} if count else set())
    assert all(f.detail["training"] and f.severity == "info" for f in findings)


@pytest.mark.parametrize(
    ("kernel", "found_there"),
    [
        ("void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int)", False),
        ("void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4>(int4 const*)", False),
        ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT", True),
    ],
)
def test_scales_widened_before_a_fused_kernel_are_no_finding(
    kernel: str, found_there: bool
) -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    maker.launch("kDequantizeBlockwise<float, 512, 64, 8, 0>", start=5, run=(10, 110))
    maker.launch(kernel, start=20, run=(110, 500))
    findings = found(analyze(maker.build()), "fallback.quantized_matmul")
    assert [(f.count, f.cost_ns, f.gain_ns) for f in findings] == (
        [(1, 100_000, 100_000)] if found_there else []
    )


def test_an_operator_that_says_it_dequantizes() -> None:
    """Whatever the kernel in it is called; on a CPU its own code counts, not its leaves alone."""
    for device in (True, False):
        maker = TraceMaker()
        maker.annotation("ProfilerStep#0", 0, 1000)
        maker.operator("library::dequantize_4bit", 4, 200)
        if device:
            maker.launch("elementwise_kernel<x>", start=5, run=(10, 110), operator="aten::mul")
            maker.launch("nvjet_sm90_tst_x", start=300, run=(310, 500), operator="aten::mm")
        else:
            maker.operator("aten::empty", 5, 10)
            maker.operator("aten::mm", 300, 200)
        (finding,) = found(analyze(maker.build()), "fallback.quantized_matmul")
        assert finding.cost_ns == (100_000 if device else 200_000)


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


def one_attention(
    inner: str,
    shapes: list[list[int]],
    kernels: tuple[str, ...],
    *,
    types: str = "c10::BFloat16",
    device: str = "NVIDIA H200",
    grouped: str = "False",
) -> TraceMaker:
    """One call with its recorded arguments, and what it launched: 100 us each."""
    maker = TraceMaker()
    maker.side("devices", device=0, name=device, major=9, minor=0)
    maker.annotation("ProfilerStep#0", 0, 1000)
    outer = maker.operator("aten::scaled_dot_product_attention", 10, 500)
    maker.side(
        "shapes",
        outer,
        input_shapes=json.dumps([*shapes, [], [], [], []]),
        input_types=json.dumps([types] * 3),
        concrete_inputs=json.dumps(["", "", "", "", "0.", "False", "", grouped]),
    )
    maker.operator(inner, 12, 490)
    for row, name in enumerate(kernels):
        at = 20 + 110 * row
        maker.launch(name, start=at, run=(at + 10, at + 110), operator="aten::bmm")
    return maker


def test_a_large_head_from_shapes_alone() -> None:
    """Case 07 without a live process: the head size, the grouped heads, the score matrix."""
    shapes = [[4, 8, 1024, 512], [4, 2, 1024, 512], [4, 2, 1024, 512], []]
    inner = "aten::_scaled_dot_product_attention_math"
    maker = one_attention(inner, shapes, ("gemm_a", "softmax_b", "gemm_c"), grouped="True")
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert finding.detail["reasons"] == [
        "head size 512 is above 256",
        "8 query heads, 2 key heads (enable_gqa)",
    ]
    assert finding.detail["refused"] == {
        "flash": ["head size 512 is above 256"],
        "efficient": ["8 query heads, 2 key heads (enable_gqa)"],
        "cudnn": ["head size 512 is above 256"],
    }
    assert finding.detail["score_bytes"] == 4 * 8 * 1024 * 1024 * 2


def test_the_gain_of_fused_attention_is_an_estimate_with_its_basis() -> None:
    shapes = [[4, 8, 1024, 64]] * 3 + [[]]
    inner = "aten::_scaled_dot_product_attention_math"
    maker = one_attention(inner, shapes, ("gemm_a", "softmax_b", "gemm_c"))
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    fused = 4 * 4 * 8 * 1024 * 1024 * 64 / (0.35 * 989e12)
    assert finding.cost_ns == 300_000
    assert finding.gain_ns == 300_000 - round(fused * 1e9)
    assert finding.detail["gain_basis"].startswith("estimate from the recorded shapes")


def test_without_shapes_the_gain_is_what_the_passes_took() -> None:
    maker = one_attention(
        "aten::_scaled_dot_product_attention_math", [], ("gemm_a", "softmax_b", "gemm_c")
    )
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert (finding.cost_ns, finding.gain_ns) == (300_000, 100_000)
    assert finding.detail["gain_basis"].startswith("measured")


def note_call(
    maker: TraceMaker, at: float, refused: dict[str, list[str]], dtype: str = "float32"
) -> None:
    """What the recorder notes right before an attention."""
    arguments = {
        "query": [2, 8, 64, 64], "key": [2, 8, 64, 64], "value": [2, 8, 64, 64],
        "dtype": dtype, "device": "cuda", "mask": None, "mask_learns": False, "dropout": 0.0,
        "causal": False, "grouped": True, "strided": False, "switched_off": [],
    }  # fmt: skip
    maker.side(
        "attention_calls",
        time_ns=round(at * 1000),
        thread=1,
        arguments=json.dumps(arguments),
        refused=json.dumps(refused),
        file="model.py",
        line=7,
        function="attend",
    )


def test_reasons_as_the_framework_gives_them() -> None:
    """Case 06: by backend, in the framework's words, with the line of the call."""
    inner = "aten::_scaled_dot_product_attention_math"
    maker = one_attention(inner, [], ("gemm_a", "softmax_b", "gemm_c"))
    said = {"flash": ["Expected dtype Half or BFloat16."], "efficient": ["Heads differ."]}
    note_call(maker, 9.9, said)
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert (finding.detail["refused"], finding.detail["refused_by"]) == (said, "torch")
    assert finding.detail["reasons"] == [
        "dtype float32",
        "flash: Expected dtype Half or BFloat16.",
        "memory-efficient: Heads differ.",
    ]
    where = finding.where
    assert (where.file, where.line, where.function) == ("model.py", 7, "attend")


def test_what_is_noted_to_be_allowed_is_not_said_to_be_switched_off() -> None:
    inner = "aten::_scaled_dot_product_attention_math"
    maker = one_attention(inner, [], ("gemm_a", "softmax_b", "gemm_c"))
    note_call(maker, 9.9, {}, dtype="bfloat16")
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert "the program allows them" in finding.detail["reasons"][0]
    assert "enable_flash_sdp" not in finding.advice


def test_a_note_belongs_to_the_next_attention_alone() -> None:
    inner = "aten::_scaled_dot_product_attention_math"
    maker = one_attention(inner, [], ("gemm_a", "softmax_b", "gemm_c"))
    maker.operator("aten::scaled_dot_product_attention", 5, 4)
    note_call(maker, 4, {"flash": ["no"]})
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert finding.where.file is None
    assert "refused" not in finding.detail


@pytest.mark.parametrize(
    ("inner", "length", "masked", "noted"),
    [
        ("aten::_scaled_dot_product_efficient_attention", 4096, True, ["efficient"]),
        ("aten::_scaled_dot_product_cudnn_attention", 4096, True, ["cudnn"]),
        ("aten::_scaled_dot_product_cudnn_attention", 1, True, []),
        ("aten::_scaled_dot_product_cudnn_attention", 4096, False, []),
        ("aten::_scaled_dot_product_flash_attention", 4096, False, []),
    ],
)
def test_a_mask_is_a_note(inner: str, length: int, masked: bool, noted: list[str]) -> None:
    """Case 08 and its control."""
    shapes = [[4, 8, length, 64], [4, 8, 4096, 64], [4, 8, 4096, 64]]
    shapes.append([4, 1, length, 4096] if masked else [])
    analysis = analyze(one_attention(inner, shapes, ("fmha_kernel",)).build())
    notes = found(analysis, "attention.backend")
    assert [f.detail["backend"] for f in notes] == noted
    assert all(f.severity == "info" and "a mask is given" in f.title for f in notes)
    assert fallbacks(analysis) == []


def test_what_ran_is_named_where_nothing_is_wrong() -> None:
    """Case 07 b: the fused kernel that ran, and where."""
    shapes = [[4, 8, 1024, 128]] * 3 + [[]]
    maker = one_attention("aten::_scaled_dot_product_flash_attention", shapes, ("flash_fwd<x>",))
    maker.module("layers.3.attn", "Attention", 5, 600)
    analysis = analyze(maker.build())
    assert analysis.facts["attention_ran"] == {"flash": {"layers.*.attn": 1}}
    (check,) = [c for c in analysis.checks if c.rule == "fallback.attention"]
    assert (check.status, check.reason) == ("clear", "flash ran once in layers.*.attn")


def test_before_flash_existed_the_efficient_kernel_is_the_best() -> None:
    inner = "aten::_scaled_dot_product_efficient_attention"
    shapes = [[4, 8, 512, 64]] * 3 + [[]]
    maker = one_attention(inner, shapes, ("fmha_kernel",), device="Tesla T4")
    maker.side_rows["devices"][0]["major"] = 7
    assert not found(analyze(maker.build()), "attention.backend")


def test_the_gradient_of_unfused_attention_belongs_to_it() -> None:
    maker = TraceMaker()
    maker.side("devices", device=0, name="NVIDIA H200", major=9, minor=0)
    maker.annotation("ProfilerStep#0", 0, 4000)
    for number, at in enumerate((10, 110, 210)):
        name = ("aten::bmm", "aten::_softmax", "aten::bmm")[number]
        forward = maker.operator(name, at, 90)
        maker.side("sequences", forward, sequence=number, forward_thread=0)
        kernel = ("gemm", "softmax_warp_forward<float>", "gemm")[number]
        maker.launch(kernel, start=at + 5, run=(at + 10, at + 90))
        back = maker.operator(
            f"autograd::engine::evaluate_function: Node{number}", 3000 - 2 * at, 150
        )
        maker.side("sequences", back, sequence=number, forward_thread=1)
        start = 3000 - 2 * at + 5
        maker.launch("ampere_sgemm_128x64_tn", start=start, run=(start + 5, start + 105))
    analysis = analyze(maker.build())
    (finding,) = found(analysis, "fallback.attention")
    assert finding.cost_ns == 3 * 80_000 + 3 * 100_000
    assert not found(analysis, "fallback.matmul")  # one cause, one finding


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


def test_a_sampler_between_two_steps_is_no_attention() -> None:
    """The head's product, the softmax of the sampler, the next step's embedding and projection."""
    maker = TraceMaker()
    maker.side("devices", device=0, name="NVIDIA H200", major=9, minor=0)
    names = (
        "nvjet_sm90_tst_head",
        "softmax_warp_forward<float>",
        "void at::native::vectorized_gather_kernel<16, long>",
        "nvjet_sm90_tst_qkv",
    )
    for step in range(3):
        maker.annotation(f"ProfilerStep#{step}", 1000 * step, 1000)
        for row, name in enumerate(names):
            at = 1000 * step + 100 * row + 10
            maker.launch(name, start=at, run=(at + 5, at + 95))
    assert not found(analyze(maker.build()), "fallback.attention")


def test_products_of_two_blocks_are_no_attention() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    maker.module("net.pool.gate", "Gate", 0, 100)
    maker.launch("gemm", start=10, run=(20, 90), operator="aten::bmm")
    maker.launch("softmax_warp_forward<x>", start=60, run=(95, 99), operator="aten::_softmax")
    maker.module("other.mix.heads", "Mix", 200, 200)
    maker.launch("gemm", start=210, run=(220, 390), operator="aten::bmm")
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


def one_product(
    kernel: str,
    shapes: list[list[int]],
    *,
    device: str = "NVIDIA H200",
    major: int = 9,
    call: str = "cudaLaunchKernel",
) -> TraceMaker:
    """One product of a millisecond, its shapes recorded."""
    maker = TraceMaker()
    maker.side("devices", device=0, name=device, major=major, minor=0)
    maker.annotation("ProfilerStep#0", 0, 2000)
    operator = maker.operator("aten::mm", 8, 20)
    maker.side(
        "shapes", operator, input_shapes=json.dumps(shapes), input_types="[]", concrete_inputs="[]"
    )
    maker.launch(kernel, start=10, run=(20, 1020), call=call)
    return maker


SGEMM = "ampere_sgemm_128x64_tn"
LARGE = [[2048, 4096], [4096, 4096]]


def test_the_gain_of_a_product_is_an_estimate_with_its_basis() -> None:
    (finding,) = found(analyze(one_product(SGEMM, LARGE).build()), "fallback.matmul")
    tf32 = 2 * 2048 * 4096 * 4096 / (0.7 * 989e12 / 2)
    assert finding.gain_ns == 1_000_000 - round(tf32 * 1e9)
    assert "estimate" in finding.detail["gain_basis"]
    assert "H200" in finding.detail["gain_basis"]


def test_a_compiled_softmax_of_capped_scores_is_a_chain() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    softmax = "triton_per_fused__softmax_div_mul_tanh_3"
    for place, (kernel, operator) in enumerate(
        (("sm90_gemm", "aten::bmm"), (softmax, softmax), ("sm90_gemm", "aten::bmm"))
    ):
        begin = 100 * place + 20
        maker.launch(kernel, start=begin - 10, run=(begin, begin + 90), operator=operator)
    (finding,) = found(analyze(maker.build()), "fallback.attention")
    assert "capped" in finding.detail["reasons"][0]


def product_of_a_module(*, backward: bool = False) -> TraceMaker:
    """The product of `LARGE` in a linear layer, or its two gradients, without shapes."""
    maker = TraceMaker()
    maker.side("devices", device=0, name="NVIDIA H200", major=9, minor=0)
    maker.annotation("ProfilerStep#0", 0, 9000)
    maker.side("model_modules", path="up", type="Linear", parameters=4096 * 4096)
    call = {"start_ns": 0, "end_ns": 50_000, "thread": MAIN_THREAD, "batch": 2, "tokens": 1024}
    maker.side("root_calls", root="", type="Net", **call)
    maker.module("up", "Linear", 5, 40)
    asked = maker.operator("aten::mm", 8, 20)
    maker.launch(SGEMM if not backward else "sm90_gemm", start=10, run=(20, 1020))
    if backward:
        maker.side("sequences", asked, sequence=4, forward_thread=0)
        node = maker.operator("MmBackward0", 2000, 100)
        maker.side("sequences", node, sequence=4, forward_thread=1)
        for number in range(2):
            begin = 2500 + 1000 * number
            maker.launch(
                SGEMM, start=2010 + 40 * number, run=(begin, begin + 1000), operator="aten::mm"
            )
    return maker


@pytest.mark.parametrize("backward", [False, True])
def test_without_shapes_a_live_run_knows_weights_and_tokens(backward: bool) -> None:
    (finding,) = found(analyze(product_of_a_module(backward=backward).build()), "fallback.matmul")
    tf32 = 2 * 2048 * 4096 * 4096 / (0.7 * 989e12 / 2)
    products = 2 if backward else 1
    assert finding.gain_ns == pytest.approx(products * (1_000_000 - tf32 * 1e9), abs=2)
    assert "weights and the tokens" in finding.detail["gain_basis"]


def test_without_the_tokens_of_the_call_there_is_no_estimate() -> None:
    maker = product_of_a_module()
    maker.side_rows["root_calls"][0]["tokens"] = -1
    (finding,) = found(analyze(maker.build()), "fallback.matmul")
    assert finding.gain_ns is None


def test_an_unknown_device_gives_no_estimate() -> None:
    trace = one_product(SGEMM, LARGE, device="NVIDIA Q9").build()
    (finding,) = found(analyze(trace), "fallback.matmul")
    assert finding.gain_ns is None
    assert finding.detail["gain_basis"].startswith("not estimated")


def test_products_without_an_inner_size_are_no_finding() -> None:
    """The angles of a rotary embedding: an outer product, which no tensor core could speed up."""
    maker = one_product(SGEMM, [[64, 1], [1, 4096]])
    assert not found(analyze(maker.build()), "fallback.matmul")


def test_a_rotary_table_is_no_finding_whatever_it_takes() -> None:
    maker = TraceMaker()
    maker.side("devices", device=0, name="NVIDIA H200", major=9, minor=0)
    maker.annotation("ProfilerStep#0", 0, 2000)
    maker.module("model.rotary_emb", "LlamaRotaryEmbedding", 5, 100)
    maker.launch(SGEMM, start=10, run=(20, 1020), operator="aten::bmm")
    assert not found(analyze(maker.build()), "fallback.matmul")


def test_a_gpu_without_tf32_is_told_and_no_more() -> None:
    maker = one_product("volta_sgemm_128x64_tn", LARGE, device="Tesla V100", major=7)
    (finding,) = found(analyze(maker.build()), "fallback.matmul")
    assert finding.severity == "info"
    assert "no TF32" in finding.advice


@pytest.mark.parametrize("device", ["AMD Instinct MI300X", ""])
@pytest.mark.parametrize(
    "kernel",
    ["Cijk_Ailk_Bljk_SB_MT64x64x8_align1_sm80_xmma", "ampere_sgemm_128x64_tn", "cutlass_80_align1"],
)
def test_no_rule_of_nvidia_fires_on_amd(device: str, kernel: str) -> None:
    """gfx9 counts its generations by itself, and old recordings leave the name out."""
    maker = one_product(kernel, LARGE, device=device, call="hipModuleLaunchKernel")
    analysis = analyze(maker.build())
    assert not found(analysis, "fallback.matmul")
    assert status(analysis, "fallback.matmul") == "not_checked"


def adapter_step(maker: TraceMaker, batch: int, rank: int) -> None:
    """Forward and backward of one low-rank pair, in fp32."""
    maker.annotation("ProfilerStep#0", 0, 4000)
    pairs = ([[batch, 4096], [4096, rank]], [[batch, rank], [rank, 4096]])
    for number, shapes in enumerate(pairs):
        at = 100 * number + 10
        operator = maker.operator("aten::mm", at, 80)
        maker.side("sequences", operator, sequence=number, forward_thread=0)
        values = json.dumps(shapes)
        maker.side("shapes", operator, input_shapes=values, input_types="[]", concrete_inputs="[]")
        maker.launch(SGEMM, start=at + 5, run=(at + 10, at + 90))
        start = 1000 + 200 * number
        node = maker.operator("autograd::engine::evaluate_function: MmBackward0", start, 150)
        maker.side("sequences", node, sequence=number, forward_thread=1)
        maker.launch(SGEMM, start=start + 5, run=(start + 10, start + 110), operator="aten::mm")


def test_adapters_in_fp32_are_one_finding_with_their_gradients() -> None:
    maker = TraceMaker()
    maker.side("devices", device=0, name="NVIDIA H200", major=9, minor=0)
    adapter_step(maker, batch=1024, rank=16)
    (finding,) = found(analyze(maker.build()), "fallback.matmul")
    assert finding.title.startswith("matrix products of rank 16 run in fp32")
    assert (finding.count, finding.cost_ns) == (4, 360_000)
    assert finding.detail["backward_ns"] == 200_000
    assert "adapter" in finding.advice


def test_a_small_batch_is_no_low_rank() -> None:
    maker = TraceMaker()
    maker.side("devices", device=0, name="NVIDIA H200", major=9, minor=0)
    adapter_step(maker, batch=16, rank=4096)
    (finding,) = found(analyze(maker.build()), "fallback.matmul")
    assert finding.detail["rank"] is None


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


def test_what_a_compiler_tries_is_no_operator_left_on_the_cpu() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 2000)
    maker.launch("gemm", start=5, run=(10, 100), operator="aten::mm")
    maker.module("net", "Net", 110, 800)
    maker.operator("CompiledFunctionBackward", 115, 790)
    maker.operator("entire_backward_compile", 120, 700)
    maker.operator("aten::mm", 200, 400)
    maker.launch("gemm", start=1000, run=(1010, 2000), operator="aten::mm")
    assert not found(analyze(maker.build()), "device.cpu_tensor")


def test_preparing_the_input_is_no_operator_left_on_the_cpu() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    maker.operator("aten::index_select", 5, 300)
    maker.launch("gemm", start=400, run=(410, 1000), operator="aten::mm")
    assert not found(analyze(maker.build()), "device.cpu_tensor")


def test_another_thread_prepares_data() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    maker.launch("gemm", start=5, run=(10, 1000), operator="aten::mm")
    maker.operator("aten::index_select", 100, 800, tid=99)
    assert not found(analyze(maker.build()), "device.cpu_tensor")


def test_what_the_root_moves_before_it_computes_is_input() -> None:
    maker = TraceMaker()
    for step in range(5):
        at = 50_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 50_000)
        maker.module("net", "DistributedDataParallel", at + 10, 40_000)
        maker.copy("host_to_device", 8 << 20, start=at + 20, run=(at + 30, at + 500))
        maker.module("net.layer", "Linear", at + 600, 30_000)
        maker.launch("gemm", start=at + 630, run=(at + 700, at + 50_000), operator="aten::mm")
    assert not found(analyze(maker.build()), "transfer.repeated_weights")


def experts_said(*, ran: bool) -> Analysis:
    """A framework that has no tuned configuration, and what ran."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1000)
    experts = ("fused_moe_kernel", "vllm::outplace_fused_experts")
    name, operator = experts if ran else ("nvjet_sm90_tst_x", "aten::mm")
    maker.launch(name, start=5, run=(10, 900), operator=operator)
    message = "Using default MoE config. Performance might be sub-optimal! [red]\x1b[31m"
    maker.side("warnings", time_ns=1, source="vllm.fused_moe", message=message, count=3)
    return analyze(maker.build())


def test_an_untuned_expert_kernel_in_the_words_of_the_framework() -> None:
    (finding,) = found(experts_said(ran=True), "fallback.moe")
    assert (finding.detail["cause"], finding.severity) == ("default-config", "warning")
    assert (finding.count, finding.cost_ns, finding.gain_ns) == (1, 890_000, None)
    (line,) = finding.detail["log"]
    assert line["count"] == 3
    assert line["message"].startswith("Using default MoE config.")


def test_words_about_experts_that_did_not_run_are_a_note() -> None:
    analysis = experts_said(ran=False)
    assert not found(analysis, "fallback.moe")
    (note,) = [n for n in analysis.notes if n.rule == "trace.framework_said"]
    assert note.message.startswith('vllm.fused_moe said: "Using default MoE config.')


def test_words_beside_the_finding_they_speak_of() -> None:
    maker = one_product(SGEMM, LARGE)
    message = "TensorFloat32 tensor cores for float32 matrix multiplication available but disabled"
    maker.side("warnings", time_ns=1, source="torch._inductor", message=message, count=1)
    analysis = analyze(maker.build())
    (finding,) = found(analysis, "fallback.matmul")
    assert [line["message"] for line in finding.detail["log"]] == [message]
    assert not [n for n in analysis.notes if n.rule == "trace.framework_said"]


def test_assignments_by_index_are_a_loop_where_each_round_finds_its_tokens() -> None:
    for finds in (True, False):
        maker = TraceMaker()
        maker.annotation("ProfilerStep#0", 0, 3000)
        maker.module("layers.0.mlp", "Moe", 5, 2000)
        for expert in range(4):
            at = 10.0 + 300 * expert
            if finds:
                maker.operator("aten::nonzero", at, 20)
            maker.launch("gemm", start=at + 100, run=(at + 110, at + 120), operator="aten::mm")
            maker.launch(
                "put", start=at + 200, run=(at + 210, at + 220), operator="aten::index_put_"
            )
        assert bool(found(analyze(maker.build()), "fallback.moe")) is finds


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
