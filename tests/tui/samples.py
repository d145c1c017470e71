"""Recordings for the explorer's tests: small, of every kind, and with the names nobody wants."""

from __future__ import annotations

from dataclasses import replace

from tests.make_traces import TraceMaker
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.events import Note, Trace
from tracer.findings import Check, Finding, Where

SOURCE = "tests/tui/sample_model.py"
LAYERS = 2
# Markup, escapes, a tab, wide, right-to-left and control characters; and four hundred of them.
NASTY = (
    "[red]not red[/red]",
    "\x1b[31mescape\x1b[0m",
    "tab\there",
    "注意力核函数",
    "\u05e9\u05dc\u05d5\u05dd kernel",
    "\u202ereversed\u202c",
    "nul\x00bell\x07",
    "k" * 400,
)


def decode_trace(steps: int = 4, names: tuple[str, ...] = ()) -> Trace:
    """Decode steps of two layers, one slow operator in each; `names` go to the first kernels."""
    maker = TraceMaker(base_ns=1_700_000_000_000_000_000)
    for step in range(steps):
        _decode_step(maker, step, step * 1200.0, names)
    maker.side("devices", None, device=0, name="NVIDIA H200", memory_bytes=150 << 30,
               sm_count=132, major=9, minor=0)  # fmt: skip
    maker.side("model_modules", path="model", type="LlamaModel", file=SOURCE, line=10)
    return maker.build(path="runs/decode.json", framework="torch 2.13.0", source_kind="kineto")


def _decode_step(maker: TraceMaker, step: int, at: float, names: tuple[str, ...]) -> None:
    maker.annotation(f"ProfilerStep#{step}", at, 1100)
    maker.module("model", "LlamaModel", at + 10, 1050)
    for layer in range(LAYERS):
        begin = at + 20 + layer * 500
        path = f"model.layers.{layer}"
        maker.module(path, "LlamaDecoderLayer", begin, 480)
        maker.module(f"{path}.self_attn", "LlamaAttention", begin + 2, 300)
        frame = maker.host("frame", f"{SOURCE}(4): attention", begin + 3, 290)
        maker.side("frames", frame, frame=1, parent=-1, module=-1)
        _kernel(maker, names[0] if names else "flash_fwd_splitkv_kernel", begin + 20, 30,
                "aten::_scaled_dot_product_flash_attention", 200 if layer == 0 else 8)  # fmt: skip
        _kernel(
            maker, names[1] if len(names) > 1 else "nvjet_attn_gemm", begin + 260, 12, "aten::mm"
        )
        maker.module(f"{path}.mlp", "LlamaMLP", begin + 310, 160)
        for number in range(3):
            name = names[2 + number] if len(names) > 2 + number else f"nvjet_mlp_gemm_{number}"
            _kernel(maker, name, begin + 320 + 40 * number, 25, "aten::mm")
    for number, name in enumerate(names[5:]):
        _kernel(maker, name, at + 1040 + 10 * number, 4, "aten::add")


def _kernel(
    maker: TraceMaker, name: str, at: float, length: float, operator: str, host_us: float = 8
) -> None:
    """An operator that takes `host_us` before it launches a kernel."""
    maker.operator(operator, at - 2, host_us + 8)
    run = (at + host_us + 5, at + host_us + 5 + length)
    maker.launch(name, start=at + host_us, run=run)


def decode_findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Findings that do not depend on the rules of the day."""
    slow = [
        row
        for row in analysis.trace.rows("operator").tolist()
        if analysis.trace.end_ns[row] - analysis.trace.start_ns[row] > 200_000
    ]
    where = Where(SOURCE, 6, "attention", "model.layers.0.self_attn", None)
    steps = tuple(range(len(analysis.steps)))
    return (
        Finding("gap.compile", "critical", "a plan is built for each new length", len(slow),
                cost_ns=200_000 * len(slow), ratio=0.17, steps=steps, where=where,
                detail={"kind": "library-plan", "operator_ns": 208_000},
                advice="Use a cache of fixed length: nothing is planned again.",
                gain_ns=200_000 * len(slow), events=tuple(slow)),
        Finding("gap.gc", "warning", "garbage collection inside a step", 1, cost_ns=90_000,
                ratio=0.02, steps=(1,), advice="Freeze the collector."),
        Finding("attention.backend", "info", "flash, chosen by SDPA", 8),
    )  # fmt: skip


CHECKS = (
    Check("gap.compile", "found"),
    Check("sync.hidden", "clear", "lines not recorded"),
    Check("gap.launch_bound", "partial", "the host's calls are cut"),
    Check("device.throttled", "not_checked", "no device counters were sampled"),
)


def decode_analysis(steps: int = 4, names: tuple[str, ...] = ()) -> Analysis:
    """The sample with its own findings and checks."""
    analysis = analyze(decode_trace(steps, names))
    return replace(analysis, findings=decode_findings(analysis), checks=CHECKS)


def sparse_trace() -> Trace:
    """A stream that works two percent of the time, in kernels of very different lengths."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100_000)
    lengths = [1, 700, 3, 40, 2, 900, 5, 60, 250, 39]
    for number, length in enumerate(lengths):
        begin = 500 + number * 9_900
        maker.launch(
            f"k{number}", start=begin - 10, run=(begin, begin + length), operator="aten::mm"
        )
    return maker.build()


def cpu_trace() -> Trace:
    """Operators alone."""
    maker = TraceMaker()
    for step in range(3):
        maker.annotation(f"ProfilerStep#{step}", step * 100, 90)
        maker.operator("aten::linear", step * 100 + 5, 40)
        maker.operator("aten::relu", step * 100 + 50, 20)
    return maker.build(path="cpu.json")


def launches_only_trace() -> Trace:
    """Launches without any device row: nothing can be said of the device."""
    maker = TraceMaker()
    for number in range(5):
        maker.host("runtime", "cudaLaunchKernel", number * 10, 3, correlation=number + 1)
    return maker.build(path="lost.json")


def one_kernel_trace() -> Trace:
    """Nothing but one kernel."""
    maker = TraceMaker()
    maker.device_row("lonely_kernel", 10, 5)
    return maker.build(path="one.json")


def partial_trace() -> Trace:
    """A recording whose end is missing."""
    cut = Note("trace.truncated", "120 events read, then the file ends", 120, partial=True)
    return decode_trace(2).with_notes(cut)


def rank_trace(rank: int, ranks: int = 8) -> Trace:
    """One rank of many: a collective in each of three steps, longer on later ranks."""
    maker = TraceMaker()
    for step in range(3):
        at = step * 200.0
        maker.annotation(f"ProfilerStep#{step}", at, 190)
        maker.launch("gemm_kernel", start=at + 5, run=(at + 10, at + 60), operator="aten::mm")
        end = at + 70 + 10 * rank
        event = maker.launch(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start=at + 30, run=(at + 65, end)
        )
        size = {"in_elements": 1 << 20, "out_elements": 1 << 20, "dtype": "BFloat16"}
        names = {"op": "allreduce", "group": "0", "group_size": ranks, "sequence": step}
        maker.side("collectives", event, **names, **size)
    return maker.build(path=f"rank{rank}.json", rank=rank, world_size=ranks)
