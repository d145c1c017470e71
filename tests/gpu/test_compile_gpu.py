"""Compiled code on a CUDA device: Triton kernels and products in the modules that they serve."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from tests.gpu.decoding import Shape, Step, make_step
from tracer import trace
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers.names.kernel_table import describe
from tracer.collectors.compiling import compile_events
from tracer.findings import Finding
from tracer.live import graph_memory
from tracer.recorder import Recording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]
SHAPE = Shape(layers=4)
# Words in the names of fused kernels that leave one group only, the surest first.
TELLING = (
    (re.compile("rsqrt"), "other"),
    (re.compile("silu"), "ffn"),
    (re.compile("cos|sin|index_copy|scaled_dot|neg|repeat|softmax"), "attention"),
)


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(compile_events, "_known", {})
    monkeypatch.setattr(inductor_config, "compile_threads", 1)  # no threads that outlive a test
    graph_memory.forget()
    torch._dynamo.reset()
    counters.clear()
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def step() -> Step:
    made = make_step(SHAPE, batch=4)
    made()
    return made


Row = tuple[str, str, int]  # kernel, group, nanoseconds


def record(run: Callable[[], Any], times: int = 3) -> Recording:
    with trace() as t:
        for _ in range(times):
            run()
            torch.cuda.synchronize()
    return t


def last_step(analysis: Analysis) -> list[Row]:
    """The kernels of the last step in order of start."""
    work = analysis.work[analysis.work["step"] == len(analysis.steps) - 1]
    names = analysis.trace.events["name"].astype(str).to_numpy()
    starts = analysis.trace.start_ns[work["event"].to_numpy()]
    rows = zip(starts, work["event"], work["bucket"], work["charged_ns"], strict=True)
    return [(names[e], BUCKETS[b][0], int(ns)) for _, e, b, ns in sorted(rows)]


def is_product(name: str) -> bool:
    return describe(name).token == "GEMM"


def right_ratio(eager: list[Row], compiled: list[Row]) -> float:
    """Share of the time of compiled code in the group of the eager run: products by their order,
    fused kernels by the operators in their names, anything else by its own name."""
    products = [group for name, group, _ in eager if is_product(name)]
    found = [row for row in compiled if is_product(row[0])]
    by_name = {name: group for name, group, _ in eager}
    pairs = []
    if len(products) == len(found):
        pairs += [(want, row) for want, row in zip(products, found, strict=True)]
    for row in compiled:
        if is_product(row[0]):
            continue
        telling = (group for words, group in TELLING if words.search(row[0]))
        wanted = next(telling, None) if row[0].startswith("triton") else by_name.get(row[0])
        if wanted is not None:
            pairs.append((wanted, row))
    total = sum(ns for _, (_, _, ns) in pairs)
    assert total >= 0.8 * sum(ns for *_, ns in compiled), "the truth does not cover the step"
    return sum(ns for want, (_, group, ns) in pairs if want == group) / total


def test_kernels_land_in_the_groups_of_the_eager_run(step: Step) -> None:
    eager = last_step(record(step).analysis)
    compiled = replace(step, forward=torch.compile(step.model, fullgraph=True))
    first = record(compiled).analysis
    assert right_ratio(eager, last_step(first)) >= 0.95
    assert first.trace.table("compiled_graphs")["basis"].tolist() == ["provenance"]
    assert bool(first.steps["warmup"].iloc[0])
    compile_events._known.clear()
    later = record(compiled).analysis  # compiled before this trace began
    assert right_ratio(eager, last_step(later)) >= 0.95
    assert Counter(later.work["how"].astype(str))["compiled"] > 0


@pytest.mark.parametrize("before", [False, True], ids=["in the trace", "before it"])
def test_replays_of_reduce_overhead(step: Step, before: bool) -> None:
    eager = last_step(record(step).analysis)
    model = torch.compile(step.model, mode="reduce-overhead", fullgraph=True)
    compiled = replace(step, forward=model)
    if before:
        for _ in range(4):
            compiled()
    analysis = record(compiled, times=6).analysis
    names = set(analysis.trace.names)
    if not any("GraphLaunch" in name for name in names):
        reasons = [f.title for f in analysis.findings if f.rule == "fallback.compile"]
        assert reasons, "no CUDA graph was replayed, and nothing says why"
        return
    assert right_ratio(eager, last_step(analysis)) >= 0.95


def test_max_autotune() -> None:
    step = make_step(Shape(layers=1, width=512, inner=1024, heads=4), batch=4)
    eager = last_step(record(step).analysis)
    mode = "max-autotune-no-cudagraphs"
    compiled = replace(step, forward=torch.compile(step.model, mode=mode))
    analysis = record(compiled).analysis
    assert right_ratio(eager, last_step(analysis)) >= 0.95


def test_the_compiler_does_the_same_with_and_without_a_trace() -> None:
    def counted(traced: bool) -> dict[str, dict[str, int]]:
        torch._dynamo.reset()
        counters.clear()
        step = make_step(Shape(layers=1, width=256, inner=512, heads=4))
        compiled = replace(step, forward=torch.compile(step.model, fullgraph=True))
        if traced:
            record(compiled)
        else:
            for _ in range(3):
                compiled()
        return {name: dict(counters[name]) for name in ("frames", "stats", "graph_break")}

    plain, traced = counted(False), counted(True)
    assert traced == plain


def counted_skips(run: Callable[[], Any]) -> tuple[int, list[Finding]]:
    """How often the compiler skipped CUDA graphs, and what the report says of it."""
    analysis = record(run).analysis
    skips = [f for f in analysis.findings if f.detail.get("cause") == "cudagraph-skip"]
    return counters["inductor"]["cudagraph_skips"], skips


def test_skipped_cuda_graphs_have_their_reason() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sin() * 2

    compiled, x = torch.compile(forward, mode="reduce-overhead"), torch.ones(64, device="cuda")
    skips, found = counted_skips(lambda: compiled(x))
    assert skips
    assert found
    assert "mutated" in found[0].detail["reason"]


def test_work_on_the_cpu_splits_the_graph_or_skips_it() -> None:
    """Newer compilers replay the parts around it: then nothing is to be said."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() + y.cos().to(x.device)

    compiled = torch.compile(forward, mode="reduce-overhead")
    x, y = torch.ones(64, device="cuda"), torch.ones(64)
    skips, found = counted_skips(lambda: compiled(x, y))
    assert bool(found) is bool(skips)
