"""Fallbacks live: the programs of samples/fallbacks on a CPU, each with its clean twin, and what
the recorder leaves behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.fallback_samples import FOLDER, SAMPLES, Sample, check, recording_of
from tests.live_models import decoder, quiet
from tests.test_idle import found, status
from tracer import cli, trace
from tracer.analysis import BUCKETS, Analysis
from tracer.collectors import attention_facts
from tracer.collectors.attention_facts import AttentionCalls, describe_call, refusals
from tracer.collectors.logs.fallback_logs import FallbackLogs
from tracer.events import SIDE_TABLES
from tracer.findings import Finding

ON_CPU = [sample for sample in SAMPLES if not sample.gpu]
IDS = [sample.name for sample in ON_CPU]


@pytest.fixture(autouse=True)
def nothing_compiled(one_thread: None) -> None:
    """Small work on a machine that is shared, and nothing compiled by tests before."""
    forget_compilations()


def forget_compilations() -> None:
    """As if nothing had been compiled in this process."""
    if "torch._dynamo.utils" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("sample", ON_CPU, ids=IDS)
def test_a_program_that_takes_a_slower_way(sample: Sample) -> None:
    with quiet():
        analysis = recording_of(sample.name, clean=False).analysis
    check(sample, analysis, clean=False)


@pytest.mark.parametrize("sample", ON_CPU, ids=IDS)
def test_its_clean_twin(sample: Sample) -> None:
    with quiet():
        analysis = recording_of(sample.name, clean=True).analysis
    check(sample, analysis, clean=True)


def test_a_program_for_a_gpu_says_so_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for sample in SAMPLES:
        if sample.gpu:
            with pytest.raises(SystemExit, match="happens on a GPU alone") as ended:
                recording_of(sample.name, clean=False)
            assert "\n" not in str(ended.value)


# --- the attention of a call


def attention(*, heads: int = 4, key_heads: int = 4, size: int = 16, **options: Any) -> Analysis:
    """Three steps of one attention on the CPU."""
    query = torch.randn(2, heads, 64, size)
    key = torch.randn(2, key_heads, 64, size)
    with torch.no_grad(), trace() as t:
        for _ in range(3):
            with t.step():
                functional.scaled_dot_product_attention(query, key, key, **options)  # the call
    return t.analysis


def line_of(marker: str) -> int:
    """The line of this file that ends with a marker."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, text in enumerate(file, 1) if text.rstrip().endswith(f"# {marker}"))


def test_the_math_path_with_its_reason_and_line() -> None:
    (finding,) = found(attention(dropout_p=0.1), "fallback.attention")
    assert finding.detail["backend"] == "math"
    assert finding.detail["reasons"] == ["dropout 0.1"]
    assert finding.detail["refused"] == {"flash": ["dropout 0.1"]}
    assert (finding.where.file, finding.where.line) == (__file__, line_of("the call"))
    assert (finding.count, finding.steps) == (3, (0, 1, 2))
    assert finding.detail["gain_basis"].startswith("measured")
    assert 0 < (finding.gain_ns or 0) < (finding.cost_ns or 0)


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 24, "key_heads": 12, "enable_gqa": True},  # case 06
        {"heads": 8, "key_heads": 2, "size": 512, "enable_gqa": True},  # case 07
        {"attn_mask": torch.ones(64, 64, dtype=torch.bool)},  # case 08
    ],
)
def test_what_a_cpu_runs_fused_is_no_finding(options: dict[str, Any]) -> None:
    """Cases 06 to 08: the same calls, where this framework fuses them."""
    analysis = attention(**options)
    ran_math = any("attention_math" in name for name in analysis.trace.names)
    assert bool(found(analysis, "fallback.attention")) is ran_math
    assert not ran_math
    assert status(analysis, "fallback.attention") == "clear"
    assert not found(analysis, "attention.backend")


def test_a_fused_kernel_that_the_program_switched_off() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        (finding,) = found(attention(), "fallback.attention")
    assert any("switched off" in reason for reason in finding.detail["reasons"])


def test_eager_attention_of_a_model_counts_its_layers() -> None:
    """Case 09: the chains, all of them attention, the layers they lie in, and who asked."""
    with quiet():
        model = decoder("llama")
        model.set_attn_implementation("eager")
    ids = torch.randint(64, (2, 32))
    with torch.no_grad(), trace() as t:
        for _ in range(2):
            model(input_ids=ids)
    (finding,) = found(t.analysis, "fallback.attention")
    assert (finding.detail["backend"], finding.detail["layers"], finding.count) == ("unfused", 2, 4)
    assert finding.detail["reasons"] == ["attn_implementation is 'eager', asked for: eager"]
    assert finding.where.module == "model.layers.*.self_attn"
    work = t.analysis.work
    chained = work[work["event"].isin(finding.events)]
    assert len(chained)
    assert {BUCKETS[bucket][0] for bucket in chained["bucket"]} == {"attention"}


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_whether_weights_are_narrow_is_known_without_shapes(kind: str) -> None:
    def checked(dtype: torch.dtype) -> str:
        layer = torch.nn.Linear(8, 8)
        scales = torch.ones(8, dtype=dtype)
        if kind == "buffer":
            layer.register_buffer("scales", scales)
        else:
            layer.scales = torch.nn.Parameter(scales, requires_grad=False)
        with torch.no_grad(), trace() as t:
            layer(torch.randn(2, 8))
        return status(t.analysis, "fallback.quantized_matmul")

    assert checked(torch.float32) == "clear"
    assert checked(torch.int8) == "partial"


def finding_of(step: Callable[[], Any]) -> Finding:
    """What is found of attention in two steps."""
    with torch.no_grad(), trace() as t:
        for _ in range(2):
            step()
    (finding,) = found(t.analysis, "fallback.attention")
    return finding


def test_nested_tensors_are_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are called a prototype
        parts = [torch.randn(length, 4, 16) for length in (30, 20)]
        query = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
        finding = finding_of(lambda: functional.scaled_dot_product_attention(query, query, query))
    assert finding.detail["reasons"] == ["nested tensors"]
    assert finding.where.file == __file__
    assert finding.detail["score_bytes"] is None


def test_capped_scores_need_another_way_than_sdpa() -> None:
    query = torch.randn(2, 4, 64, 16)

    def step() -> torch.Tensor:
        scores = 30 * torch.tanh(query @ query.transpose(-1, -2) / 30)
        return scores.softmax(-1) @ query

    finding = finding_of(step)
    assert "capped" in finding.detail["reasons"][0]
    assert "flex_attention" in finding.advice


def test_the_fast_path_of_a_module_asks_for_no_weights() -> None:
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval()
    x = torch.randn(2, 32, 64)
    finding = finding_of(lambda: layer(x, x, x, need_weights=False))
    assert "fast path" in finding.detail["reasons"][0]
    assert "set_fastpath_enabled(False)" in finding.advice


def test_a_mask_that_learns_is_told_from_one_that_does_not() -> None:
    query = torch.randn(2, 4, 64, 16)
    masks = [torch.zeros(64, 64), torch.zeros(64, 64, requires_grad=True)]
    with trace() as t:
        for mask in masks:
            functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    (finding,) = found(t.analysis, "fallback.attention")
    assert (finding.count, finding.detail["reasons"]) == (1, ["the mask needs a gradient"])


def dense(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


FULL = (2, 4, 64, 16)
# Shapes of query, key and value, other arguments, and the one reason with its advice.
REFUSED: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any], str, str]] = {
    "mask of three": (
        (FULL, FULL, FULL),
        {"attn_mask": dense(4, 64, 64)},
        "the mask has 3 dimensions, not 2 or 4",
        "mask[None]",
    ),
    "one batch": (
        (FULL, (1, 4, 64, 16), (1, 4, 64, 16)),
        {},
        "batch of 2 queries, 1 keys, 1 values",
        "to one batch",
    ),
    "heads of values": (
        (FULL, (2, 2, 64, 16), FULL),
        {"enable_gqa": True},
        "2 key heads, 4 value heads",
        "the same heads",
    ),
    "heads": (
        (FULL, (2, 1, 64, 16), (2, 1, 64, 16)),
        {},
        "4 query heads, 1 key heads (grouped without enable_gqa)",
        "Expand keys",
    ),
    "size": (
        (FULL, FULL, (2, 4, 64, 8)),
        {},
        "head size 16 of queries, 8 of values",
        "this head size",
    ),
    "dropout": ((FULL, FULL, FULL), {"dropout_p": 0.1}, "dropout 0.1", "dropout_p=0.0"),
    "three": (
        ((4, 64, 16),) * 3,
        {"attn_mask": dense(4, 64, 64)},
        "3 dimensions, not batch x heads x length x size",
        "Pass batch x heads",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_the_fused_kernel_of_a_cpu_refuses(case: str) -> None:
    shapes, others, reason, advice = REFUSED[case]
    query, key, value = (dense(*shape) for shape in shapes)
    finding = finding_of(
        lambda: functional.scaled_dot_product_attention(query, key, value, **others)
    )
    assert (finding.detail["backend"], finding.detail["reasons"]) == ("math", [reason])
    assert advice in finding.advice
    assert "enable_flash_sdp" not in finding.advice


@pytest.mark.parametrize("outer", [(), (1, 1), (2, 1), (1, 4), (2, 4)])
def test_masks_that_the_fused_kernel_takes(outer: tuple[int, ...]) -> None:
    query, mask = dense(*FULL), dense(*outer, 64, 64)
    with torch.no_grad(), trace() as t:
        functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    assert status(t.analysis, "fallback.attention") == "clear"


def test_a_mask_of_three_dimensions_is_told_from_the_same_of_four() -> None:
    query, mask = dense(*FULL), dense(4, 64, 64)
    with torch.no_grad(), trace() as t:
        for given in (mask[None], mask):
            functional.scaled_dot_product_attention(query, query, query, attn_mask=given)
    (finding,) = found(t.analysis, "fallback.attention")
    assert (finding.count, finding.detail["reasons"]) == (1, [REFUSED["mask of three"][2]])


class Narrow(torch.nn.Module):
    """A linear layer with weights of 8 bits, widened in one of several ways; or its input is."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.packed = torch.randint(-127, 127, (96, 64), dtype=torch.int8)
        self.wide, self.scale = torch.rand(96, 64), torch.rand(96, 1)

    def weight(self) -> torch.Tensor:
        if self.way == "cast, then scaled":
            return (self.packed.float() - 3) * self.scale
        if self.way == "multiplied as it is":
            return self.packed * self.scale
        return self.wide.to(torch.float8_e5m2).float() if self.way == "a float" else self.wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x * 9).to(torch.int8).float() if self.way == "input" else x
        return functional.linear(x, self.weight())


@pytest.mark.parametrize("way", ["cast, then scaled", "multiplied as it is", "a float"])
def test_weights_widened_by_hand(way: str) -> None:
    layer, x = Narrow(way), torch.randn(32, 64)
    with torch.no_grad(), trace(detail="full") as t:
        for _ in range(2):
            layer(x)
    assert [f.count for f in found(t.analysis, "fallback.quantized_matmul")] == [2]


def test_an_input_of_8_bits_is_no_quantized_weight() -> None:
    layer, x = Narrow("input"), torch.randn(32, 64)
    with torch.no_grad(), trace(detail="full") as t:
        layer(x)
    assert status(t.analysis, "fallback.quantized_matmul") == "clear"


# --- what the recorder leaves behind


def test_attention_is_as_it_was_after_a_trace() -> None:
    original = functional.scaled_dot_product_attention
    taken: list[Any] = []
    with pytest.raises(ValueError, match="mine"), trace():
        taken.append(functional.scaled_dot_product_attention)
        raise ValueError("mine")
    assert functional.scaled_dot_product_attention is original
    assert taken[0] is not original
    query = torch.randn(1, 1, 4, 8)
    assert torch.equal(taken[0](query, query, query), original(query, query, query))


def test_a_call_keeps_its_result_and_its_error() -> None:
    query = torch.randn(1, 2, 4, 8)
    wanted = functional.scaled_dot_product_attention(query, query, value=query, is_causal=True)
    calls = AttentionCalls()
    calls.start()
    try:
        got = functional.scaled_dot_product_attention(query, query, value=query, is_causal=True)
        with pytest.raises(TypeError, match="scaled_dot_product_attention"):
            functional.scaled_dot_product_attention(query)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="scaled_dot_product_attention"):
            functional.scaled_dot_product_attention(query, query)  # type: ignore[call-arg]
    finally:
        calls.close()
    assert torch.equal(got, wanted)
    assert len(calls.table()) == 1
    assert calls.failure is None


def test_scripts_and_graphs_see_the_builtin() -> None:
    class Net(torch.nn.Module):
        def forward(self, query: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, query, query)

    query = torch.randn(1, 2, 4, 8)
    original = functional.scaled_dot_product_attention
    jit: Any = torch.jit
    calls = AttentionCalls()
    calls.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions call scripts outdated
            scripted = jit.script(Net())
            traced = jit.trace(Net(), (query,), check_trace=False)
        graph = torch.fx.symbolic_trace(Net()).graph
    finally:
        calls.close()
    for made in (scripted, traced):
        assert torch.equal(made(query), original(query, query, query))
    assert calls.failure is None
    assert not len(calls.table())
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [original]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiler_finds_no_patch(fullgraph: bool) -> None:
    import torch._dynamo

    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    def attend(query: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, query, query) + 1

    query = torch.randn(1, 2, 4, 8)
    compiled = torch.compile(attend, backend=backend, fullgraph=fullgraph)
    try:
        with trace():
            compiled(query)
        compiled(query)
        with trace() as t:
            compiled(query)
        assert len(graphs) == 1
        assert not len(t.trace.table("attention_calls"))  # it would have compiled again
    finally:
        forget_compilations()


def test_calls_are_noted_beside_compiled_code_that_makes_none() -> None:
    compiled = torch.compile(lambda x: functional.gelu(x) * 2, backend="eager")
    query = torch.randn(1, 2, 4, 8)
    try:
        compiled(query)
        before = dict(torch._dynamo.utils.counters["stats"])
        with trace() as t:
            functional.scaled_dot_product_attention(compiled(query), query, query)
        assert len(t.trace.table("attention_calls")) == 1
        assert dict(torch._dynamo.utils.counters["stats"]) == before
    finally:
        forget_compilations()


def test_a_loop_of_new_lengths_is_one_set_of_arguments() -> None:
    calls = AttentionCalls()
    calls.start()
    try:
        for length in range(8, 40):
            key = torch.randn(1, 2, length, 8)
            functional.scaled_dot_product_attention(torch.randn(1, 2, 1, 8), key, key)
    finally:
        calls.close()
    table = calls.table()
    assert len(table) == 32
    assert table["arguments"].nunique() == 1
    assert calls.failure is None


def test_equal_calls_of_two_functions_keep_their_own() -> None:
    """Even where both call at the same place in their code, in threads and in turn."""
    query = torch.randn(1, 2, 4, 8)

    def first() -> None:
        functional.scaled_dot_product_attention(query, query, query)

    def second() -> None:
        functional.scaled_dot_product_attention(query, query, query)

    def both(times: int) -> None:
        for _ in range(times):
            first()
            second()

    calls = AttentionCalls()
    calls.start()
    try:
        threads = [threading.Thread(target=both, args=(50,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        both(1)
        for thread in threads:
            thread.join()
    finally:
        calls.close()
    table = calls.table().sort_values(["thread", "time_ns"], kind="stable")
    assert table["function"].tolist() == ["first", "second"] * 201
    assert sorted(table["thread"].value_counts()) == [2, 100, 100, 100, 100]
    assert calls.failure is None


def test_the_framework_is_asked_once_for_what_it_takes_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers for tensors on a GPU alone; how often it is asked shows here as well."""
    asked: list[tuple[int, ...]] = []

    def counted(call: Mapping[str, Any]) -> dict[str, list[str]]:
        asked.append(tuple(call["query"].shape))
        return refusals(call)

    monkeypatch.setattr(attention_facts, "_has_choice", lambda query: True)
    monkeypatch.setattr(attention_facts, "refusals", counted)
    calls = AttentionCalls()
    calls.start()
    try:
        for batch, length in ((1, 4), (1, 16), (2, 16), (2, 9)):
            query = torch.randn(batch, 2, length, 8)
            functional.scaled_dot_product_attention(query, query, query)
            functional.scaled_dot_product_attention(query, query, query)
            for grown in range(length + 1, length + 9):
                key = torch.randn(batch, 2, grown, 8)
                functional.scaled_dot_product_attention(query[:, :, :1], key, key)
        assert asked == [(1, 2, 4, 8), (1, 2, 1, 8)]
        functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
        functional.scaled_dot_product_attention(query[..., :4], query[..., :4], query[..., :4])
        functional.scaled_dot_product_attention(query[0], query[0], query[0])
    finally:
        calls.close()
    assert asked[2:] == [(2, 2, 9, 8), (2, 2, 9, 4), (2, 9, 8)]
    assert calls.failure is None


def test_words_on_standard_error_are_told_from_those_of_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    own = b"[W1129 16:34:11.226 sdp_utils_cpp.h:418] Warning: %s. (function check)\n"
    told: list[list[str]] = []
    with attention_facts._error_output() as warned:
        for words in (b"Too wide", b"No mask"):
            os.write(2, own % words + b"of others\n")
            told.append(warned())
    assert told == [["Too wide. (function check)"], ["No mask. (function check)"]]
    assert capfd.readouterr().err == "of others\n" * 2


def test_the_type_of_a_call_is_that_of_autocast() -> None:
    query = torch.randn(1, 2, 4, 8)
    call = {"query": query, "key": query, "value": query}
    assert describe_call(call)["dtype"] == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert describe_call(call)["dtype"] == "bfloat16"


# --- the words of the frameworks


def messages(logs: FallbackLogs) -> list[tuple[str, int]]:
    """Messages and how often each came."""
    table = logs.table()
    return list(zip(table["message"].astype(str), table["count"].tolist(), strict=True))


class _Framework(logging.Logger):
    """A logger like that of a serving engine, which nobody else knows."""


def test_log_lines_about_slower_ways_are_seen_and_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = _Framework("sglang.moe")  # without a handler: logging prints by its last resort
    logs = FallbackLogs()
    logs.start()
    try:
        for _ in range(2):
            logger.warning("Using default MoE config. Performance might be sub-optimal! %s", "x")
        logger.info("falling back, but nobody needs to know")
        _Framework("mine").warning("falling back to something of the program")
    finally:
        logs.close()
    assert messages(logs) == [("Using default MoE config. Performance might be sub-optimal! x", 2)]
    assert capsys.readouterr().err.count("Using default MoE config") == 2


def test_warnings_of_the_frameworks_are_seen_and_shown() -> None:
    inside = "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:1.)"
    logs = FallbackLogs()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        logs.start()
        warnings.warn(inside, stacklevel=1)
        warnings.warn("the program's own: falling back", stacklevel=1)
        warnings.warn_explicit("use y instead of x", FutureWarning, "/x/torch/nn/a.py", 1)
        logs.close()
    assert messages(logs) == [("Flash attention kernel not used because:", 1)]
    assert len(shown) == 3


def test_listening_ends_with_the_trace() -> None:
    factory, show = logging.getLogRecordFactory(), warnings.showwarning
    with trace():
        assert logging.getLogRecordFactory() is not factory
    assert logging.getLogRecordFactory() is factory
    assert warnings.showwarning is show


def test_words_without_a_finding_become_a_note() -> None:
    logger = _Framework("transformers.models")
    logger.addHandler(logging.NullHandler())
    with trace() as t:
        logger.warning("`sdpa` attention does not support this; falling back to eager \x1b[31m")
        torch.ones(2)
    notes = [n for n in t.analysis.notes if n.rule == "trace.framework_said"]
    assert [n.count for n in notes] == [1]
    assert "falling back to eager" in notes[0].message
    assert "\x1b" not in str(t.report)


# --- reports and gates


def test_the_line_of_a_live_report() -> None:
    with quiet():
        model = decoder("gpt2")
    with torch.no_grad(), trace() as t:
        model(input_ids=torch.randint(64, (1, 8)))
    text = " ".join(str(t.report).split())
    assert "attention sdpa (asked for: sdpa or nothing), ran flash · offered here: flash" in text
    assert "math · weights float32" in text
    assert "offered here" in t.report.html()
    assert t.report["facts"]["attention_backends"]


def test_what_was_asked_for_as_far_as_the_result_tells() -> None:
    from tracer.collectors.run_facts import attention_requested

    with quiet():
        model = decoder("llama")
    assert attention_requested([model]) == "sdpa or nothing"
    model.set_attn_implementation("eager")
    assert attention_requested([model]) == "eager"
    model._supports_sdpa = False
    assert attention_requested([model]) == "eager or nothing (the model offers no sdpa)"
    assert attention_requested([torch.nn.Linear(2, 2)]) is None


def test_a_gate_on_every_fallback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording_of("attention_math", clean=False).save(tmp_path / "slow")
    recording_of("attention_math", clean=True).save(tmp_path / "clean")
    gate = ["--json", "--fail-on", "fallback.*"]
    assert cli.main(["report", str(tmp_path / "slow"), *gate]) == 1
    shown = capsys.readouterr()
    assert "--fail-on: found fallback.attention" in shown.err
    report = json.loads(shown.out)
    slow = [f for f in report["findings"] if f["rule"] == "fallback.attention"]
    assert [f["detail"]["backend"] for f in slow] == ["math"]
    assert cli.main(["report", str(tmp_path / "clean"), *gate]) == 0
    assert set(SIDE_TABLES) >= {"attention_calls", "warnings"}


@pytest.mark.slow
def test_a_program_prints_its_report() -> None:
    command = [sys.executable, str(FOLDER / "experts_in_a_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "fallback.moe" in done.stdout
