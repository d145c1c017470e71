"""Live capture on a CUDA device."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import schedule

from tests.gpu.programs import make_model
from tests.live_models import decoder, prompt, quiet
from tracer import trace
from tracer.collectors.device_identity import find_handle
from tracer.collectors.nvml import DeviceMetrics, TorchDevices
from tracer.events import Trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    made = make_model(layers=2)
    run(made, 2)
    return made


@pytest.fixture(autouse=True)
def _settled() -> Generator[None]:
    torch.cuda.synchronize()
    with quiet():
        yield
    torch.cuda.synchronize()


def run(model: torch.nn.Module, times: int = 3) -> None:
    x = torch.zeros(1, 64, 1024, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        for _ in range(times):
            model(x)


def device_rows(recorded: Trace) -> int:
    return int(recorded.device_rows.size)


def rules(recorded: Trace) -> list[str]:
    return [note.rule for note in recorded.notes if note.rule.startswith("capture.")]


@pytest.mark.parametrize("detail", ["kernels", "modules", "full"])
def test_kernels_are_recorded_and_belong_to_steps(model: torch.nn.Module, detail: Any) -> None:
    with trace(detail=detail) as t:
        run(model)
    assert device_rows(t.trace) > 0
    assert rules(t.trace) == []
    assert len(t.analysis.steps) == 3
    work = t.analysis.work
    assert (work["step"] >= 0).mean() > 0.9
    assert bool(t.trace.rows("operator").size) == (detail != "kernels")


def test_every_kernel_of_a_model_lies_in_a_module(model: torch.nn.Module) -> None:
    with trace() as t:
        run(model)
    work = t.analysis.work
    charged = work["charged_ns"]
    assert charged[work["module"] >= 0].sum() >= 0.99 * charged.sum()


def test_the_device_side_works_again_and_again(model: torch.nn.Module) -> None:
    rows = []
    for _ in range(4):
        with trace() as t:
            run(model, 1)
        rows.append(device_rows(t.trace))
    assert min(rows) > 0
    assert len(set(rows)) == 1


def test_a_schedule_records_its_steps(model: torch.nn.Module) -> None:
    with trace(schedule=schedule(wait=1, warmup=1, active=3)) as t:
        for _ in range(8):
            run(model, 1)
            t.step()
    assert len(t.analysis.steps) == 3
    assert device_rows(t.trace) > 0
    assert len(t.trace.table("unprofiled_steps")) == 1  # the one that waits


def test_light_times_steps_on_the_device(model: torch.nn.Module) -> None:
    x = torch.randn(4096, 4096, device="cuda")

    class Heavy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(x)

        def forward(self, times: int) -> torch.Tensor:
            out: torch.Tensor = self.weight
            for _ in range(times):
                out = out @ self.weight
            return out

    heavy = Heavy().requires_grad_(False)
    heavy(4)
    torch.cuda.synchronize()
    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    with trace(detail="light") as t:
        begin.record()
        for times in (4, 8, 16):
            heavy(times)
        end.record()
    rows = t.trace.events[t.trace.events["kind"] == "device_annotation"]
    lengths = rows["duration_ns"].to_numpy()
    assert len(lengths) == 3
    assert np.all(np.diff(lengths) > 0)
    assert lengths.sum() == pytest.approx(begin.elapsed_time(end) * 1e6, rel=0.05)
    assert list(rows["external_id"]) == [0, 1, 2]
    host = t.trace.table("root_calls")
    assert np.all(rows["start_ns"].to_numpy() >= host["start_ns"].to_numpy() - 200_000)


def test_out_of_memory_leaves_unchanged_and_the_next_trace_works(model: torch.nn.Module) -> None:
    with pytest.raises(torch.OutOfMemoryError) as raised, trace() as t:
        run(model)
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert raised.value.__context__ is None
    assert rules(t.trace) == ["capture.interrupted"]
    assert device_rows(t.trace) > 0
    with trace() as again:
        run(model, 1)
    assert device_rows(again.trace) > 0


def test_work_of_a_second_thread_is_recorded(model: torch.nn.Module) -> None:
    with trace() as t:
        thread = threading.Thread(target=run, args=(model,))
        thread.start()
        thread.join()
    assert device_rows(t.trace) > 0
    assert t.trace.rows("module").size > 0
    assert len(t.analysis.steps) == 3


def test_a_call_while_a_graph_is_captured_is_no_step(model: torch.nn.Module) -> None:
    x = torch.zeros(1, 64, 1024, dtype=torch.bfloat16, device="cuda")
    cuda: Any = torch.cuda
    with torch.no_grad(), torch.cuda.stream(cuda.Stream()):
        model(x)
    torch.cuda.synchronize()
    for detail in ("modules", "light"):
        graph = torch.cuda.CUDAGraph()
        with trace(detail=detail) as t:
            with torch.no_grad(), torch.cuda.graph(graph):
                model(x)
            for _ in range(3):
                graph.replay()
        assert len(t.trace.table("root_calls")) == 0
        assert "capture.failed" not in rules(t.trace)
        if detail == "modules":
            assert t.trace.rows("module").size > 0


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_is_one_prefill_and_the_rest_decode(cache: str) -> None:
    """With a static cache transformers compiles the decode call on a GPU: it still counts."""
    model, ids = decoder("llama").cuda(), prompt(2, 5).cuda()
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": cache}
    model.generate(ids, **options)
    with trace() as t:
        model.generate(ids, **options)
    calls = t.trace.table("root_calls")
    assert list(calls["batch"]) == [2] * 4
    assert list(calls["tokens"]) == [5, 1, 1, 1]
    # Those that capture a graph on their way are steps, too: warm-up.
    phases = Counter(step["phase"] for step in t.report["steps"])
    assert phases == {"prefill": 1, "decode": 3}


def test_facts_of_the_device(model: torch.nn.Module) -> None:
    with trace() as t:
        run(model)
    facts = t.trace.meta.facts
    assert facts["gpus"][0] == torch.cuda.get_device_name(0)
    assert {"torch", "cuda", "cudnn", "driver"} <= set(facts["versions"])
    assert facts["allocator"][0]["num_ooms"] == 0
    assert facts["allocator"][0]["peak_allocated_bytes"] > 0


def test_counters_are_those_of_the_device_in_use(model: torch.nn.Module) -> None:
    metrics = DeviceMetrics()
    run(model, 1)
    metrics.open()
    (identity,) = TorchDevices().used_devices()
    handle = find_handle(identity, metrics._installed, metrics._by_uuid)
    assert handle is not None
    with trace() as t:
        for _ in range(20):
            run(model, 5)
            torch.cuda.synchronize()
            time.sleep(0.03)
    table = t.trace.table("metrics")
    assert set(table["device"]) == {identity.number}
    assert "memory_used_bytes" in set(table["metric"])
    assert (table["value"][table["metric"] == "memory_used_bytes"] > 0).all()


def gpu_child() -> None:
    (torch.ones(8, device="cuda") + 1).sum().item()


def test_gpu_work_of_a_child_is_said_to_be_there() -> None:
    context = multiprocessing.get_context("spawn")
    with trace() as t:
        child = context.Process(target=gpu_child)
        child.start()
        child.join()
    assert child.exitcode == 0
    note = next(n for n in t.trace.notes if n.rule == "capture.no_gpu_work_here")
    assert note.detail["pids"] == [child.pid]


PROGRAM = """
import os
import torch
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()).cuda()
x = torch.randn(64, 512, device="cuda")
with torch.no_grad():
    for _ in range(5):
        model(x)
torch.cuda.synchronize()
"""
FUNCTIONS = """
import torch
x = torch.randn(512, 512, device="cuda")
for _ in range(5):
    x = x @ x / 512
torch.cuda.synchronize()
"""
FORKING = """
import os
import torch
pid = os.fork()
if pid == 0:
    (torch.ones(4, device="cuda") + 1).sum().item()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def run_traced(folder: Path, code: str) -> int:
    (folder / "program.py").write_text(code)
    command = [sys.executable, "-m", "tracer", "run", "--out", "run", "program.py"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode


@pytest.mark.parametrize("code", [PROGRAM, FUNCTIONS], ids=["modules", "functions"])
def test_a_program_on_the_gpu_is_recorded_from_outside(tmp_path: Path, code: str) -> None:
    from tracer.store import load_run

    assert run_traced(tmp_path, code) == 0
    assert device_rows(load_run(tmp_path / "run")) > 0


def test_a_program_that_forks_before_it_uses_the_gpu_can_still_do_so(tmp_path: Path) -> None:
    assert run_traced(tmp_path, FORKING) == 0
