"""Waits planted into a loop on a real device, traced live with detail="modules"."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

if torch.cuda.is_available():
    from tests.gpu import programs
    from tests.test_idle import found
    from tracer import trace
    from tracer.collectors.wait_lines import WaitLines

STEPS = 8
NAMES = (
    "item", "boolean", "nonzero", "masked", "repeated", "to_host", "from_pageable", "constant",
    "pinned", "where", "sized_repeat",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    made = programs.make_model()
    programs.run_steps(made, 4)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_wait_its_cause_and_its_line(model: torch.nn.Module, name: str) -> None:
    """Cases 01 to 03."""
    hook, cause = programs.WAITS[name]
    programs.run_steps(model, 2, hook)
    with trace() as t:
        programs.run_steps(model, STEPS, hook)
    waits = found(t.analysis, "sync.hidden")
    if not cause:
        assert [w for w in waits if w.severity != "info"] == []
        return
    (wait,) = waits
    assert wait.detail["cause"] == cause
    # The last one may end the recording: nothing waits for the device after it.
    assert wait.count in (STEPS - 1, STEPS)
    assert (wait.where.file, wait.where.line) == (programs.__file__, programs.line_of(name))
    print(f"{name}: {wait.title}; {wait.where.file}:{wait.where.line}; idle {wait.cost_ns} ns")


def test_an_explicit_wait_is_the_users(model: torch.nn.Module) -> None:
    """Case 05 C."""
    with trace(detail="full") as t:
        programs.run_steps(model, STEPS, programs.explicit)
    waits = found(t.analysis, "sync.explicit")
    assert sum(w.count for w in waits if w.where.function == "explicit") >= STEPS - 1


def test_memory_pressure_is_told_from_a_release(model: torch.nn.Module) -> None:
    """Case 04, the variant: the program gives the cache back in each step."""
    with trace(detail="full") as t:
        for _ in range(4):
            programs.run_steps(model, 1)
            torch.cuda.empty_cache()
    causes = {f.detail["cause"] for f in found(t.analysis, "sync.allocator")}
    assert "cache-release" in causes


def test_a_collection_is_named(model: torch.nn.Module) -> None:
    """Case 29, and its control."""

    def collect(y: torch.Tensor) -> None:
        gc.collect()

    for hook, expected in ((collect, True), (None, False)):
        gc.disable()
        with trace() as t:
            programs.run_steps(model, 4, hook)
        gc.enable()
        assert bool(found(t.analysis, "gap.gc")) is expected


def test_host_work_between_steps_starves_the_device(model: torch.nn.Module) -> None:
    def work(y: torch.Tensor) -> None:
        torch.cuda.synchronize()
        end = time.perf_counter() + 0.004
        while time.perf_counter() < end:
            pass

    with trace(detail="full") as t:
        programs.run_steps(model, STEPS, work)
    (host,) = [f for f in found(t.analysis, "gap.host") if f.where.function == "work"]
    assert (host.cost_ns or 0) / STEPS == pytest.approx(4e6, rel=0.25)


def test_a_loader_that_prepares_data_in_the_main_thread(model: torch.nn.Module) -> None:
    """Case 27 a."""

    def tokenize(items: list[int]) -> torch.Tensor:
        time.sleep(0.01)
        return torch.tensor(items)

    data: Any = list(range(16))
    loader: Any = torch.utils.data.DataLoader(data, batch_size=2, collate_fn=tokenize)
    with trace(detail="full") as t:
        for _ in loader:
            programs.run_steps(model, 1)
    findings = found(t.analysis, "gap.input")
    assert sum(f.cost_ns or 0 for f in findings) >= 0.8 * 7 * 10e6
    assert "tokenize" in {f.where.function for f in findings}


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_a_compiled_function_is_first_use() -> None:
    """Case 28 a and b: the first call and a new shape compile; they are set apart."""
    compiled = torch.compile(lambda x: torch.nn.functional.gelu(x @ x.T) * 2, dynamic=False)
    sizes = [256, 256, 256, 512, 256, 256, 256, 256]
    with trace() as t, torch.no_grad():
        for size in sizes:
            with t.step():
                compiled(torch.ones(size, 256, device="cuda"))
    warm = [i for i, w in enumerate(t.analysis.steps["warmup"]) if w]
    assert warm == [0, 3]
    assert found(t.analysis, "warmup.first_use")


def seconds_traced(model: torch.nn.Module, hook: programs.Hook) -> float:
    """Seconds of a loop inside a capture, whose start and end do not count."""
    gc.collect()
    with trace(detail="modules"):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        programs.run_steps(model, 30, hook)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


@pytest.mark.parametrize("name", ["item", "nonzero", "to_host", "from_pageable"])
def test_lines_cost_little(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prints the ratio of the same capture with and without the lookup of lines, in turn."""
    model, (hook, _) = programs.make_model(layers=12), programs.WAITS[name]
    programs.run_steps(model, 4, hook)
    listen = WaitLines.start
    spent: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(12):
        for lookup in (True, False) if round_ % 2 else (False, True):
            monkeypatch.setattr(WaitLines, "start", listen if lookup else lambda lines: None)
            spent[lookup].append(seconds_traced(model, hook))
    ratios = [a / b for a, b in zip(spent[True], spent[False], strict=True)]
    print(
        f"lines of waits, {name}: median ratio {statistics.median(ratios):.3f}, of the fastest "
        f"rounds {min(spent[True]) / min(spent[False]):.3f}, "
        f"{min(spent[False]) / 30 * 1e3:.2f} ms a step"
    )
