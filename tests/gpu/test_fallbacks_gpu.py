"""Fallbacks on a real device, each with its clean twin (cases 06 to 10 and 31)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

if torch.cuda.is_available():
    from tests.fallback_samples import SAMPLES, Sample, check, ran_math, recording_of
    from tests.test_fallbacks import fallbacks
    from tests.test_idle import found
    from tracer import trace
    from tracer.analysis import Analysis


def traced(call: Callable[[], Any], steps: int = 3) -> Analysis:
    """The analysis of a call in steps, warmed up, with shapes."""
    with torch.no_grad():
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        with trace(detail="full") as t:
            for _ in range(steps):
                with t.step():
                    call()
    for finding in t.analysis.findings:
        if finding.rule.startswith(("fallback", "attention", "device", "transfer")):
            print(finding.rule, finding.severity, finding.count, finding.title, finding.detail)
    return t.analysis


def attention(
    dtype: Any, heads: int, key_heads: int, length: int, size: int, **options: Any
) -> Callable[[], Any]:
    q = torch.randn(4, heads, length, size, device="cuda", dtype=dtype)
    k, v = (torch.randn(4, key_heads, length, size, device="cuda", dtype=dtype) for _ in range(2))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


# Set to a folder, it keeps the recordings of the programs in samples/fallbacks there.
KEEP = os.environ.get("TRACER_KEEP_RECORDINGS")


@pytest.mark.parametrize("clean", [False, True], ids=["slow", "clean"])
@pytest.mark.parametrize("name", [s.name for s in SAMPLES] if torch.cuda.is_available() else [])
def test_programs_and_their_clean_twins(name: str, clean: bool) -> None:
    sample: Sample = next(s for s in SAMPLES if s.name == name)
    before = torch.get_float32_matmul_precision()
    try:
        recording = recording_of(name, clean=clean)
    finally:
        torch.set_float32_matmul_precision(before)
    for finding in recording.analysis.findings:
        print(finding.rule, finding.severity, finding.title, finding.where, finding.detail)
    if KEEP:
        recording.save(Path(KEEP) / f"{name}{'_clean' if clean else ''}")
    check(sample, recording.analysis, clean=clean)


def test_the_framework_says_why() -> None:
    """Cases 06 and 07 with detail "modules": no shapes are recorded, and torch itself answers."""
    for size, dtype in ((64, torch.float32), (512, torch.bfloat16)):
        call = attention(dtype, 24, 12, 256, size, enable_gqa=True)
        with torch.no_grad(), trace() as t:
            for _ in range(2):
                with t.step():
                    call()
        calls = t.trace.table("attention_calls")
        assert len(calls) == 2
        if ran_math(t.analysis):
            (finding,) = found(t.analysis, "fallback.attention")
            assert finding.detail["refused_by"] == "torch"
            assert set(finding.detail["refused"]) == {"flash", "efficient", "cudnn"}
            assert all(finding.detail["refused"].values())
            assert finding.where.file == __file__


def test_asking_why_does_not_wait() -> None:
    """The questions run nothing on the device, and block on nothing."""
    from tracer.collectors.attention_facts import refusals

    query = torch.randn(2, 8, 128, 64, device="cuda")
    call = {"query": query, "key": query, "value": query, "attn_mask": None}
    asked = torch.cuda.memory_stats()["allocation.all.allocated"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        refused = refusals(call)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert "flash" in refused
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == asked


def test_grouped_queries_in_fp32() -> None:
    """Case 06 a: judged by what ran."""
    analysis = traced(attention(torch.float32, 24, 12, 1024, 64, enable_gqa=True))
    assert (("fallback.attention", "math") in fallbacks(analysis)) is ran_math(analysis)
    if ran_math(analysis):
        (finding,) = found(analysis, "fallback.attention")
        assert "dtype float32" in finding.detail["reasons"]


def test_grouped_queries_in_bf16() -> None:
    """Case 06 b."""
    analysis = traced(attention(torch.bfloat16, 24, 12, 1024, 64, enable_gqa=True))
    assert (("fallback.attention", "math") in fallbacks(analysis)) is ran_math(analysis)


def test_a_head_size_above_the_limit() -> None:
    """Case 07 a."""
    analysis = traced(attention(torch.bfloat16, 8, 2, 1024, 512, enable_gqa=True))
    if ran_math(analysis):
        (finding,) = found(analysis, "fallback.attention")
        assert "head size 512 is above 256" in finding.detail["reasons"]
        assert finding.detail["score_bytes"] == 4 * 8 * 1024 * 1024 * 2
    else:
        assert fallbacks(analysis) == []


def test_a_padding_mask_is_a_note() -> None:
    """Case 08 and its control."""
    mask = torch.ones(4, 1, 1, 4096, device="cuda", dtype=torch.bool)
    masked = traced(attention(torch.bfloat16, 8, 8, 4096, 64, attn_mask=mask))
    assert fallbacks(masked) == []
    causal = traced(attention(torch.bfloat16, 8, 8, 4096, 64, is_causal=True))
    assert fallbacks(causal) == []
    assert not found(causal, "attention.backend")


def test_attention_written_by_hand() -> None:
    """Case 09, four layers, and its clean twin."""
    q = torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16)

    def by_hand() -> torch.Tensor:
        x = q
        for _ in range(4):
            scores = (x @ x.transpose(-1, -2) / 8).softmax(-1)
            x = scores @ x
        return x

    def fused() -> torch.Tensor:
        x = q
        for _ in range(4):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return x

    assert ("fallback.attention", "unfused") in fallbacks(traced(by_hand))
    assert not found(traced(fused), "fallback.attention")


def test_products_in_fp32_and_tf32() -> None:
    a = torch.randn(2048, 2048, device="cuda")
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        assert ("fallback.matmul", "fp32") in fallbacks(traced(lambda: a @ a))
        torch.backends.cuda.matmul.allow_tf32 = True
        assert fallbacks(traced(lambda: a @ a)) == []
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_products_in_bf16_aligned_and_not() -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    odd = torch.randn(4095, 4095, device="cuda", dtype=torch.bfloat16)
    assert fallbacks(traced(lambda: a @ a)) == []
    assert ("fallback.matmul", "misaligned") in fallbacks(traced(lambda: odd @ odd))


def test_weights_widened_before_each_product() -> None:
    """Case 10, trace form, in plain torch."""
    weight = torch.randint(-127, 127, (4096, 4096), device="cuda", dtype=torch.int8)
    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    widened = traced(lambda: x @ (weight.to(torch.bfloat16) * 0.01).T)
    assert ("fallback.quantized_matmul", "") in fallbacks(widened)
    plain = weight.to(torch.bfloat16)
    assert fallbacks(traced(lambda: x @ plain.T)) == []


def test_four_bit_weights() -> None:
    """Case 10 with bitsandbytes, where it is installed."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    linear = bitsandbytes.nn.Linear4bit(
        4096, 4096, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
    ).to("cuda")
    one = torch.randn(1, 1, 4096, device="cuda", dtype=torch.bfloat16)
    many = torch.randn(1, 256, 4096, device="cuda", dtype=torch.bfloat16)
    assert not found(traced(lambda: linear(one)), "fallback.quantized_matmul")
    analysis = traced(lambda: linear(many))
    names = " ".join(analysis.trace.names)
    dequantized = "kDequantizeBlockwise" in names or "dequantize" in names
    assert bool(found(analysis, "fallback.quantized_matmul")) is dequantized


def test_weights_that_travel_in_each_forward() -> None:
    """Case 31: two of four layers stay on the host and are moved in by a hook."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)))
    layers = layers.to(torch.bfloat16)
    for index in (0, 1):
        layers[index].to("cuda")

    def move_in(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        module.weight.data = module.weight.data.to("cuda")

    def move_out(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        module.weight.data = module.weight.data.to("cpu")

    handles = []
    for index in (2, 3):
        handles.append(layers[index].register_forward_pre_hook(move_in))
        handles.append(layers[index].register_forward_hook(move_out))
    x = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    offloaded = traced(lambda: layers(x), steps=6)
    for handle in handles:
        handle.remove()
    layers.to("cuda")
    resident = traced(lambda: layers(x), steps=6)
    findings = found(offloaded, "transfer.repeated_weights")
    assert sum(f.detail["bytes_per_step"] for f in findings) == 2 * 4096 * 4096 * 2
    assert not found(resident, "transfer.repeated_weights")


def test_a_module_left_on_the_cpu() -> None:
    body = torch.nn.Linear(2048, 2048).to("cuda")
    head = torch.nn.Linear(2048, 32000)
    x = torch.randn(4, 2048, device="cuda")
    analysis = traced(lambda: head(body(x).cpu()))
    assert found(analysis, "device.cpu_tensor")
    head.to("cuda")
    assert not found(traced(lambda: head(body(x))), "device.cpu_tensor")
