"""`trace(otlp=…)` and `t.export_otlp`: live runs on the CPU."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.otlp_receiver import HttpReceiver, SilentServer
from tests.otlp_samples import attributes_of
from tracer import trace
from tracer.errors import UsageError
from tracer.exporters.otlp.context import job_of
from tracer.live.progress import call_steps

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpReceiver]:
    """A receiver that the environment names."""
    with HttpReceiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.delenv("TRACEPARENT", raising=False)
        yield made


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def work(model: nn.Module, steps: int = 2) -> torch.Tensor:
    with torch.no_grad():
        for _ in range(steps):
            out: torch.Tensor = model(torch.ones(1, 8))
    return out


def test_a_finished_run_is_exported(receiver: HttpReceiver, model: nn.Module) -> None:
    with trace() as t:
        work(model)
    report = t.export_otlp()
    assert report.complete and receiver.received == report.produced > 3
    run = next(s for s in receiver.spans if attributes_of(s)["tracer.level"] == "run")
    resource = attributes_of(receiver.requests[0].resource_spans[0].resource)
    assert resource["process.pid"] == os.getpid() and resource["host.name"]
    assert attributes_of(run)["tracer.source.kind"] == "live"
    again = t.export_otlp(receiver.endpoint)
    assert again.trace_ids == report.trace_ids
    assert {s.span_id for s in receiver.spans} == {
        s.span_id for s in receiver.spans[: report.produced]
    }


def test_a_saved_run_has_the_ids_of_the_live_one(
    receiver: HttpReceiver, model: nn.Module, tmp_path: Path
) -> None:
    from tracer.analyzers import analyze
    from tracer.exporters.otlp import export_otlp
    from tracer.sources import open_source

    with trace() as t:
        work(model)
    t.save(tmp_path / "run")
    live = t.export_otlp()
    ids = {s.span_id for s in receiver.spans}
    later = export_otlp(analyze(open_source(tmp_path / "run")))
    assert later.trace_ids == live.trace_ids
    assert {s.span_id for s in receiver.spans} == ids


def test_the_block_ends_before_the_export(receiver: HttpReceiver, model: nn.Module) -> None:
    with trace(otlp=True) as t:
        wanted = work(model)
    assert t.delivery is not None
    report = t.delivery.wait(60)
    assert report is not None and report.complete and receiver.received == report.produced
    assert torch.equal(wanted, work(model))


def test_an_exception_of_the_program_is_its_own(receiver: HttpReceiver, model: nn.Module) -> None:
    with pytest.raises(ZeroDivisionError), trace(otlp=True) as t:
        work(model)
        raise ZeroDivisionError
    assert t.delivery is not None
    report = t.delivery.wait(60)
    assert report is not None and report.complete


def test_a_run_in_an_active_span_is_its_child_even_when_exported_later(
    receiver: HttpReceiver, model: nn.Module
) -> None:
    sdk: Any = import_module("opentelemetry.sdk.trace")
    tracer = sdk.TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("request") as span, trace() as t:
        work(model)
    report = t.export_otlp()
    context = span.get_span_context()
    assert report.trace_ids == (f"{context.trace_id:032x}",)
    run = next(s for s in receiver.spans if attributes_of(s)["tracer.level"] == "run")
    assert run.parent_span_id == context.span_id.to_bytes(8, "big")


def test_light_sends_metrics_while_it_runs(receiver: HttpReceiver, model: nn.Module) -> None:
    done = threading.Event()
    with trace(detail="light", otlp={"interval": 0.02, "endpoint": receiver.endpoint}) as t:
        for _ in range(500):
            with t.step("decode", phase="decode"):
                work(model, 1)
            if len(receiver.metrics) >= 2:
                break
            done.wait(0.02)
        in_time = len(receiver.metrics)
    assert in_time >= 2
    assert t.delivery is not None
    t.delivery.wait(60)
    points = [
        point
        for request in receiver.metrics
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "tracer.step.duration"
        for point in metric.histogram.data_points
    ]
    assert [attributes_of(point) for point in points[:1]] == [{"tracer.phase": "decode"}]
    counts = [point.count for point in points]
    assert counts == sorted(counts) and counts[0] > 0


def test_calls_are_steps_where_none_are_announced() -> None:
    import numpy as np

    calls = np.array(
        [
            [0, 50, 2, 7, 0, 0, 1],
            [60, 70, 2, 1, 1, 0, 1],
            [80, 95, 2, 7, 0, 1, 1],
            [100, 101, -1, -1, -1, -1, -1],
        ]
    )
    assert call_steps(calls) == [("prefill", 50), ("decode", 10), ("", 15), ("", 1)]


@pytest.mark.gpu
def test_a_run_on_a_gpu_names_it_and_keeps_its_kernels(receiver: HttpReceiver) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    with trace() as t, torch.no_grad():
        for _ in range(4):
            with t.step():
                model(torch.ones(8, 256, device="cuda")).cpu()
    report = t.export_otlp(detail="kernels")
    assert report.complete and receiver.received == report.produced
    resource = attributes_of(receiver.requests[0].resource_spans[0].resource)
    assert resource["hw.name"] == torch.cuda.get_device_name()
    assert resource["hw.id"].startswith("GPU-")
    kernels = [a for s in receiver.spans if (a := attributes_of(s))["tracer.level"] == "kernel"]
    assert len(kernels) == len(t.analysis.work)
    assert {k["tracer.device"] for k in kernels} == {torch.cuda.current_device()}
    charged = sum(k["tracer.charged_ns"] for k in kernels)
    assert charged == t.analysis.window.busy_ns


def test_a_wrong_argument_is_told_before_anything_is_traced() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        trace(otlp={"nonsense": 1})


PROGRAM = """
import sys, torch
from tracer import trace
model = torch.nn.Linear(4, 4)
with trace(otlp={"endpoint": sys.argv[1], "protocol": "http/protobuf", "keep": sys.argv[2]}):
    model(torch.ones(1, 4))
print("done", flush=True)
sys.exit(7)
"""


@pytest.mark.slow
def test_a_program_that_ends_at_once_still_delivers(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        ended = run_program(receiver.endpoint + "/v1/traces", tmp_path / "left.otlp")
    assert (ended.returncode, ended.stdout) == (7, "done\n")
    assert receiver.received > 0 and not (tmp_path / "left.otlp").exists()


@pytest.mark.slow
def test_a_program_that_ends_keeps_what_a_silent_collector_did_not_take(tmp_path: Path) -> None:
    with SilentServer() as server:
        ended = run_program(f"http://127.0.0.1:{server.port}/v1/traces", tmp_path / "left.otlp")
    assert (ended.returncode, ended.stdout) == (7, "done\n")
    assert (tmp_path / "left.otlp").is_file() and "not delivered" in ended.stderr


def run_program(endpoint: str, keep: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, endpoint, str(keep)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "KINETO_LOG_LEVEL": "99"},
    )


def test_ranks_of_a_job_find_the_same_name_for_it() -> None:
    torchrun = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "abc", "RANK": "0"}
    assert job_of(torchrun) == job_of({**torchrun, "RANK": "1"}) == "torchelastic/abc/0"
    slurm = {"WORLD_SIZE": "8", "SLURM_JOB_ID": "5", "TORCHELASTIC_RUN_ID": "none"}
    assert job_of(slurm) == "slurm/5//0"
    one_machine = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    assert (job_of(one_machine) or "").startswith(f"process/{os.getppid()}/")
    assert job_of({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "abc"}) is None
    assert job_of({}) is None


RANK = """
import json, os, sys, torch
import torch.distributed as dist
from tracer import trace
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
with trace() as t:
    for _ in range(2):
        dist.all_reduce(model(torch.ones(1, 4)).detach())
report = t.export_otlp()
print(json.dumps([dist.get_rank(), report.trace_ids, report.complete]), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_that_export_on_their_own_are_one_trace(
    receiver: HttpReceiver, tmp_path: Path
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=240, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said = sorted(json.loads(line) for line in ended.stdout.splitlines() if line.startswith("["))
    assert [(rank, complete) for rank, _, complete in said] == [(0, True), (1, True)], ended.stderr
    assert said[0][1] == said[1][1]
    runs = [a for s in receiver.spans if (a := attributes_of(s))["tracer.level"] == "run"]
    assert sorted(run["tracer.rank"] for run in runs) == [0, 1]


def test_the_walk_of_the_samples(
    receiver: HttpReceiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is below the request that the sample's service makes; the rows are the spans."""
    walk = runpy.run_path(str(ROOT / "samples" / "jaeger" / "walk.py"))
    recording = walk["traced_request"](receiver.endpoint)
    report = recording.export_otlp(receiver.endpoint, protocol="http/protobuf")
    listed = list(walk["rows"](recording.analysis))
    assert report.complete and len(listed) == report.produced + 1
    run = next(s for s in receiver.spans if attributes_of(s).get("tracer.level") == "run")
    assert run.trace_id.hex() == report.trace_ids[0] and run.parent_span_id
    capsys.readouterr()
