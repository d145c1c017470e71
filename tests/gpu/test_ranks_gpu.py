"""Two ranks on two devices: traced live, compared, and held against a stopwatch without us.

TRACER_KEEP names a directory for the recordings. TRACER_RANKS_DEVICE=cpu is a dry run of the
programs over gloo: what only a device can show is left out there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank_samples import compared
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.store import load_run

CPU = os.environ.get("TRACER_RANKS_DEVICE") == "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2 and not CPU, reason="needs two CUDA devices"),
]
needs_devices = pytest.mark.skipif(CPU, reason="a dry run without devices")

HERE = Path(__file__).parent
TIMEOUT_S = 240
# What could end a job of its own is launched alone; the first finds the devices as they are.
LAUNCHES = (
    ("decode", "graph", "prefill", "late", "ddp", "fsdp"),
    ("compiled", "replayed"),
    ("symmetric",),
)
PARALLEL = ["decode", "prefill", "late", "compiled"]  # tensor parallel, also without a device
ON_DEVICES = [pytest.param(name, marks=needs_devices) for name in ("graph", "replayed")]
MAY_LACK = pytest.param("symmetric", marks=needs_devices)


def torchrun(script: str, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Two processes, one a device."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    try:
        return subprocess.run(
            [*launch, str(HERE / script), *args],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, **settings},
            check=False,
        )
    except subprocess.TimeoutExpired as end:
        said = end.stdout.decode() if isinstance(end.stdout, bytes) else ""
        return subprocess.CompletedProcess(script, 1, said, f"no end within {TIMEOUT_S} s")


@dataclass(frozen=True)
class Saved:
    """Where the recordings are, what each program said of itself, and how the launches ended."""

    folder: Path
    said: dict[str, Any]
    ends: dict[str, str]

    def figures(self, program: str) -> Any:
        """What the stopwatches of a program said; its error is the test's."""
        found = self.said.get(program)
        assert found is not None, f"{program} said nothing: {self.ends.get(program)}"
        assert "error" not in found, found
        return found

    def analyses(self, program: str) -> list[Analysis]:
        """Both ranks."""
        return [analyze(load_run(path)) for path in sorted((self.folder / program).iterdir())]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Every program run once."""
    folder = Path(os.environ.get("TRACER_KEEP") or tmp_path_factory.mktemp("ranks"))
    said: dict[str, Any] = {}
    ends: dict[str, str] = {}
    for programs in LAUNCHES:
        outcome = torchrun("two_ranks.py", str(folder), *programs)
        ends |= dict.fromkeys(programs, outcome.stderr[-3000:])
        for line in outcome.stdout.splitlines():
            if line.startswith('{"program"'):
                print(line, flush=True)
                values = json.loads(line)
                if "error" not in said.get(values["program"], {}):
                    said[values["program"]] = values
    return Saved(folder, said, ends)


def owners(analysis: Analysis) -> Counter[tuple[str, str]]:
    """How many collectives of each operation each module has."""
    paths = analysis.modules["path"].astype(str).tolist()
    calls = analysis.collectives[analysis.collectives["step"] >= 0]
    rows = zip(calls["op"].astype(str), calls["module"].tolist(), strict=True)
    return Counter((op, paths[module] if module >= 0 else "") for op, module in rows)


def in_layers(found: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """The same by the part of the layer that holds each module."""
    parts: Counter[tuple[str, str]] = Counter()
    for (op, path), count in found.items():
        parts[op, ".".join(path.split(".")[:3])] += count
    return parts


@pytest.mark.parametrize("program", [*PARALLEL, *ON_DEVICES, MAY_LACK])
def test_two_all_reduces_a_layer_in_their_modules(saved: Saved, program: str) -> None:
    figures = saved.figures(program)
    layers, steps = figures["layers"], figures["steps"]
    parts = [f"layers.{i}.{part}" for i in range(layers) for part in ("self_attn", "mlp")]
    for analysis in saved.analyses(program):
        assert len(analysis.steps) == steps
        calls = analysis.collectives
        calls = calls[calls["op"] == "all_reduce"]  # compiled code on a host waits by an operator
        calls = calls[calls["step"] >= 0]  # a capture is warmed up before
        per_step = Counter(calls["step"].tolist())
        print(program, "all-reduces a step", dict(per_step))
        assert per_step == dict.fromkeys(range(steps), 2 * layers)
        found = in_layers(owners(analysis))
        summed = {key: count for key, count in found.items() if key[0] == "all_reduce"}
        assert summed == {("all_reduce", part): steps for part in parts}


@needs_devices
@pytest.mark.parametrize("program", ["graph", "replayed"])
def test_replays_were_recorded(saved: Saved, program: str) -> None:
    saved.figures(program)
    for analysis in saved.analyses(program):
        names = analysis.trace.events["name"].astype(str).to_numpy()
        calls = analysis.collectives[analysis.collectives["step"] >= 0]
        launches = analysis.work["launch"].iloc[calls["work"].tolist()]
        assert all("GraphLaunch" in names[row] for row in launches.tolist())


def test_gradients_of_ddp(saved: Saved) -> None:
    figures = saved.figures("ddp")
    for analysis in saved.analyses("ddp"):
        print("ddp", dict(owners(analysis)))
        calls = analysis.collectives
        assert set(calls["op"].astype(str)) == {"all_reduce"}
        assert set(directions(analysis)) == {"backward"}
        if not CPU:  # gloo does not say how much it sends
            assert calls["bytes"].sum() == figures["steps"] * figures["parameter_bytes"]


def test_gathers_and_scatters_of_fsdp(saved: Saved) -> None:
    """Each layer is gathered forward and backward, and its gradients are scattered."""
    figures = saved.figures("fsdp")
    steps, size = figures["steps"], figures["parameter_bytes"]
    scatter = "all_reduce" if CPU else "reduce_scatter"  # what gloo makes of it
    for analysis in saved.analyses("fsdp"):
        found = owners(analysis)
        print("fsdp", dict(found), dict(directions(analysis)))
        layers = sorted(path for op, path in found if op == "all_gather")
        assert [found["all_gather", path] for path in layers] == [2 * steps] * len(layers)
        assert layers == [str(i) for i in range(6)]
        assert sum(found[key] for key in found if key[0] == scatter) == steps * len(layers)
        if not CPU:  # gloo does not say how much it sends, nor scatters under its own name
            assert [found[scatter, path] for path in layers] == [steps] * len(layers)
            moved = analysis.collectives.groupby("op", observed=True)["bytes"].sum()
            assert moved["all_gather"] == 2 * steps * size
            assert moved["reduce_scatter"] == steps * size


def directions(analysis: Analysis) -> Counter[str]:
    """Collectives of the forward and of the backward pass."""
    work = analysis.work["direction"].astype(str)
    return Counter(work.iloc[analysis.collectives["work"].tolist()])


@needs_devices
def test_bandwidth_is_that_of_the_all_reduce_alone(saved: Saved) -> None:
    alone = saved.figures("prefill")["bus_bandwidth_GBps"]
    for rank in compared(saved.folder / "prefill").ranks:
        (kind,) = rank.kinds
        found = (kind.busbw_bytes_per_s or 0.0) / 1e9
        print("bus bandwidth", found, "GB/s, alone", alone)
        assert found == pytest.approx(alone, rel=0.05)


def test_the_late_rank(saved: Saved) -> None:
    saved.figures("late")
    findings = compared(saved.folder / "late").findings
    (found,) = [finding for finding in findings if finding.rule == "comm.straggler"]
    print(found.title, found.where)
    assert found.detail["rank"] == 1
    assert found.detail["cause"] == "overhead.host"
    assert str(found.where.file).endswith("two_ranks.py")
    assert found.where.line == line_of("two_ranks.py", "# line: late")


def line_of(script: str, mark: str) -> int:
    """The number of the line that bears this mark."""
    lines = (HERE / script).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if mark in line]
    return number


@pytest.mark.parametrize("program", ["decode", "prefill", "ddp", "fsdp", "compiled", *ON_DEVICES])
def test_the_step_without_the_profiler_is_told(saved: Saved, program: str) -> None:
    """How near it comes to the stopwatch is printed."""
    figures = saved.figures(program)
    for word in ("stopwatch_ms", "unprofiled_ms", "deviation_ratio"):
        print(program, word, round(figures[word], 4))
    for way in ("profiler", "kernels", "modules"):
        print(program, way, "takes", round(figures[f"{way}_ratio"], 3), "of the time without")


@needs_devices
def test_the_hang(tmp_path: Path) -> None:
    """Rank 1 left out the all-reduce of step 7."""
    place = str(tmp_path / "dump_rank_")
    outcome = torchrun(
        "hung_ranks.py",
        TORCH_FR_BUFFER_SIZE="2000",
        TORCH_NCCL_TRACE_BUFFER_SIZE="2000",
        TORCH_NCCL_DUMP_ON_TIMEOUT="1",
        TORCH_FR_DUMP_TEMP_FILE=place,
        TORCH_NCCL_DEBUG_INFO_TEMP_FILE=place,
    )
    assert sorted(tmp_path.iterdir()), outcome.stderr[-2000:]
    findings = compared(tmp_path).findings
    (found,) = [finding for finding in findings if finding.rule == "comm.hang"]
    print(found.title, found.where, found.detail)
    assert (found.detail["rank"], found.detail["waiting"]) == (1, [0])
    assert str(found.where.file).endswith("hung_ranks.py")
    assert found.where.line == line_of("hung_ranks.py", "# line: all-reduce")
