"""Compiled code traced live on a CPU: Inductor's kernels land in the modules that they serve, and
nothing is compiled otherwise than without a trace."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.live_models import OwnModel, prompt, quiet
from tracer import trace
from tracer.analysis import BUCKETS, Analysis
from tracer.collectors.compiling import compile_events, compiler_interfaces
from tracer.recorder import Recording

pytestmark = pytest.mark.slow
WORDS = {
    "rsqrt": "other",
    "silu": "ffn",
    "cos": "attention",
    "neg": "attention",
    "transpose": "attention",
}


@pytest.fixture(scope="module", autouse=True)
def _workers() -> None:
    """The compiler's own threads, which outlive everything, are there before any test."""
    from torch._inductor.async_compile import AsyncCompile

    compiled = torch.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    list(AsyncCompile.pool().map(abs, range(8)))


@pytest.fixture(autouse=True)
def _compiler(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Generator[None]:
    monkeypatch.setattr(compile_events, "_known", {})
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        use_cache=False,
    )
    with quiet():
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model.eval()


IDS = torch.arange(96).reshape(1, 96)


def steps(forward: Callable[[Any], Any], times: int = 3) -> Recording:
    with torch.no_grad(), trace() as t:
        for _ in range(times):
            forward(IDS)
    return t


def groups(analysis: Analysis, *words: str) -> list[tuple[str, str, int]]:
    """Kernel, group and time of the work of the last step whose name holds one of the words. The
    time is the shorter of the last two steps: a busy machine holds up either."""
    last, before = (_of_step(analysis, len(analysis.steps) - back, words) for back in (1, 2))
    shorter = (
        zip(last, before, strict=True) if len(last) == len(before) else zip(last, last, strict=True)
    )
    return [(name, group, min(ns, other)) for (name, group, ns), (_, _, other) in shorter]


def _of_step(analysis: Analysis, step: int, words: tuple[str, ...]) -> list[tuple[str, str, int]]:
    work = analysis.work[analysis.work["step"] == step]
    events = analysis.trace.events["name"].astype(str).to_numpy()
    rows = zip(work["event"], work["bucket"], work["charged_ns"], strict=True)
    named = [(events[event], BUCKETS[bucket][0], int(ns)) for event, bucket, ns in rows]
    return [row for row in named if any(word in row[0] for word in words)]


def truth(eager: Analysis, compiled: Analysis) -> list[tuple[str, str, int]]:
    """Wanted group, found group and time of each kernel of compiled code: products and attention
    are called in the order of the eager run, and the fused operators tell of the others."""
    heavy = ("aten::mm", "aten::_scaled_dot_product_flash_attention_for_cpu")
    wanted = [group for _, group, _ in groups(eager, *heavy)]
    found = groups(compiled, *heavy)
    assert len(wanted) == len(found)
    out = [(want, group, ns) for want, (_, group, ns) in zip(wanted, found, strict=True)]
    for name, group, ns in groups(compiled, "cpp_fused"):
        out.append((next((WORDS[word] for word in WORDS if word in name), name), group, ns))
    return out


def right_ratio(rows: list[tuple[str, str, int]]) -> float:
    return sum(ns for want, found, ns in rows if want == found) / sum(ns for *_, ns in rows)


@pytest.mark.parametrize("before", [False, True], ids=["compiled in the trace", "before it"])
def test_kernels_of_a_compiled_model_land_in_the_groups_of_the_eager_run(before: bool) -> None:
    model = llama()
    eager = steps(model).analysis
    compiled = torch.compile(model)
    if before:
        with torch.no_grad():
            compiled(IDS)
    analysis = steps(compiled).analysis
    rows = truth(eager, analysis)
    assert len([row for row in rows if row]) >= 4 * 8 + 1
    assert right_ratio(rows) >= 0.95
    how = Counter(analysis.work["how"].astype(str))
    assert how["compiled"] > 0
    basis = analysis.trace.table("compiled_graphs")["basis"].tolist()
    assert basis == (["parameters"] if before else ["provenance"])
    assert analysis.modules["self_device_ns"].sum() <= analysis.work["charged_ns"].sum()
    assert bool(analysis.steps["warmup"].iloc[0]) is not before


def test_kernels_of_compiled_code_are_known_beside_python_frames() -> None:
    """Detail `full`: the frames of the generated code stand between the region and its calls, and
    no module wrote a range."""
    compiled = torch.compile(OwnModel())
    with torch.no_grad():
        with trace():
            compiled(prompt())
        with trace(detail="full") as t:
            compiled(prompt())
    work = t.analysis.work
    names = t.trace.events["name"].astype(str).to_numpy()[work["event"]]
    products = names == "aten::addmm"
    assert products.sum() == 2 * 4
    assert set(work["how"].astype(str)[products]) == {"compiled"}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(x))) + x
        return out


def test_generated_kernels_are_seen_where_the_compiler_has_forgotten_their_modules() -> None:
    """As it does at once where its caches are switched off."""
    from torch._inductor.codecache import PyCodeCache

    compiled = torch.compile(Small())
    with torch.no_grad():
        compiled(torch.ones(2, 8))
        PyCodeCache.cache_clear()
        with trace() as t:
            compiled(torch.ones(2, 8))
    assert t.trace.named(lambda name: name.startswith("cpp_fused"), "operator").sum() == 2


def compiled_counters(traced: bool) -> tuple[dict[str, dict[str, int]], torch.Tensor]:
    """Counters of the compiler after two shapes, and the last result."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    compiled = torch.compile(Small(), fullgraph=True)

    def run() -> torch.Tensor:
        results: list[torch.Tensor] = [compiled(torch.ones(n, 8)) for n in (2, 2, 3, 4)]
        return results[-1]

    with torch.no_grad():
        if traced:
            with trace():
                result = run()
        else:
            result = run()
    kept = ("frames", "stats", "graph_break", "unimplemented", "recompiles")
    return {name: dict(counters[name]) for name in kept}, result


def test_the_compiler_does_the_same_with_and_without_a_trace() -> None:
    plain, expected = compiled_counters(traced=False)
    traced, found = compiled_counters(traced=True)
    assert traced == plain
    assert plain["stats"]["unique_graphs"] == 2
    assert torch.equal(found, expected)


def test_nothing_of_the_compiler_stays_changed() -> None:
    from torch._dynamo.output_graph import OutputGraph
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.output_code import CompiledFxGraph

    def state() -> list[Any]:
        methods = [vars(CompiledFxGraph)[n] for n in ("__init__", "post_compile", "__call__")]
        kernels = [
            value
            for module in PyCodeCache.modules
            for name, value in vars(module).items()
            if name.startswith("cpp_fused")
        ]
        assert all(type(kernel).__name__ != "_RangedKernel" for kernel in kernels)
        log = logging.getLogger("torch.__trace")
        ours = [h for h in log.handlers if type(h).__module__.startswith("tracer")]
        level = config.trace.provenance_tracking_level
        return [*methods, OutputGraph.call_user_compiler, ours, level]

    before = state()
    compiled = torch.compile(Small())
    with torch.no_grad(), trace() as t:
        compiled(torch.ones(2, 8))
        assert config.trace.provenance_tracking_level == 1
    assert state() == before
    assert len(t.trace.table("compiled_calls")) > 0


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        out: torch.Tensor = self.second(x)
        return out


def test_a_graph_break_has_its_reason_and_its_line() -> None:
    compiled = torch.compile(Breaking(), backend="aot_eager")
    with torch.no_grad(), trace() as t:
        compiled(torch.ones(2, 8))
    found = [f for f in t.analysis.findings if f.rule == "fallback.compile"]
    assert [f.detail["cause"] for f in found] == ["graph-break"]
    line = Breaking.forward.__code__.co_firstlineno + 2
    assert (found[0].where.file, found[0].where.line) == (__file__, line)
    assert found[0].where.function == "forward"


def test_layers_compiled_one_by_one_keep_their_own_names() -> None:
    model = OwnModel()
    for layer in model.layers:
        layer.compile()
    with torch.no_grad(), trace() as t:
        for _ in range(2):
            model(prompt())
    modules = t.analysis.modules.set_index("path")
    times = [modules["device_ns"][f"layers.{n}.{part}"] for n in (0, 1) for part in PARTS]
    assert all(ns > 0 for ns in times)


PARTS = ("attention", "mlp")


def test_interfaces_of_the_compiler_are_listed_for_the_doctor() -> None:
    listed = compiler_interfaces.private_interfaces()
    assert {interface.name for interface in listed} >= {
        "torch._dynamo.output_graph.OutputGraph.call_user_compiler",
        "torch._inductor.output_code.CompiledFxGraph.compiled_fn_runner",
    }
    assert all(interface.found and interface.fallback for interface in listed)


def test_a_backward_is_compiled_for_the_function_of_its_forward() -> None:
    forward = torch.compile(nn.Sequential(OwnModel()), dynamic=False, backend="aot_eager")
    with trace() as t:
        for size in (2, 3):
            forward(prompt(size)).sum().backward()
    events = t.analysis.trace.table("compile_events")
    told = [tuple(map(str, row)) for row in events[["kind", "compile_id"]].to_numpy()]
    kinds = ("compile", "backward", "recompile", "backward")
    assert told == list(zip(kinds, ("0/0", "0/0", "0/1", "0/1"), strict=True))
    assert events["function"].nunique() == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, in what it compiles
def test_breaks_of_earlier_compilations_are_told_beside_their_backwards() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            torch._dynamo.graph_break()
            return x * 2

    forward = torch.compile(Broken(4, 4), backend="aot_eager")
    forward(torch.ones(2, 4)).sum().backward()
    with trace() as t:
        forward(torch.ones(2, 4)).sum().backward()
    found = [f for f in t.analysis.findings if f.rule == "fallback.compile"]
    assert [f.detail["cause"] for f in found] == ["graph-break"]


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def limit_of(recording: Recording) -> tuple[str | None, str | None, tuple[int, ...]]:
    (found,) = (
        finding
        for finding in recording.analysis.findings
        if finding.detail.get("cause") == "recompile-limit"
    )
    assert found.detail["limit"] == "recompile_limit (3)"
    assert "size mismatch at index 0" in found.detail["reason"]
    return Path(found.where.file or "").name, found.where.function, found.steps


def test_steps_behind_the_recompile_limit_are_told() -> None:
    with torch._dynamo.config.patch(recompile_limit=3):
        forward = torch.compile(Doubled(), dynamic=False, backend="eager")
        with trace() as t:
            for size in range(2, 8):
                forward(torch.ones(size))
        assert limit_of(t) == ("test_compiled.py", "forward", (3, 4, 5))
        with trace() as later:
            for size in (3, 9):
                forward(torch.ones(size))
        assert limit_of(later) == ("test_compiled.py", "forward", (1,))
