"""Two ranks on two devices: traced live, compared, and held against a stopwatch without us.

TRACER_KEEP names a directory for the recordings. TRACER_RANKS_DEVICE=cpu is a dry run of the
programs over gloo: what only a device can show is left out there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank_samples import compared
from tests.two_rank_checks import (
    all_in_replays,
    all_reduces_of_layers,
    gathers_and_scatters,
    sums_of_gradients,
)
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.store import load_run

CPU = os.environ.get("TRACER_RANKS_DEVICE") == "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2 and not CPU, reason="needs two CUDA devices"),
]
needs_devices = pytest.mark.skipif(CPU, reason="a dry run without devices")

HERE = Path(__file__).parent
TIMEOUT_S = 300
# What could end a job of its own is launched alone; the first finds the devices as they are.
LAUNCHES = (
    ("decode", "graph", "prefill", "late"),
    ("ddp", "fsdp"),
    ("compiled", "replayed"),
    ("symmetric",),
)
PARALLEL = ["decode", "prefill", "late", "compiled"]  # tensor parallel, also without a device
WATCHED = ["decode", "prefill", "ddp", "fsdp", "compiled"]
ON_DEVICES = [pytest.param(name, marks=needs_devices) for name in ("graph", "replayed")]
SAID = {
    "of_stopwatch": "the step told without the profiler, of the stopwatch's",
    "profiler": "torch.profiler, of none",
    "kernels": "kernels, of none",
    "modules": "modules, of none",
    "of_profiler": "modules, of torch.profiler",
}
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


@pytest.mark.parametrize("program", [*PARALLEL, *ON_DEVICES, MAY_LACK])
def test_two_all_reduces_a_layer_in_their_modules(saved: Saved, program: str) -> None:
    figures = saved.figures(program)
    all_reduces_of_layers(saved.analyses(program), figures["layers"], figures["steps"])


@needs_devices
@pytest.mark.parametrize("program", ["graph", "replayed"])
def test_replays_were_recorded(saved: Saved, program: str) -> None:
    saved.figures(program)
    all_in_replays(saved.analyses(program))


def test_gradients_of_ddp(saved: Saved) -> None:
    figures = saved.figures("ddp")
    sums_of_gradients(saved.analyses("ddp"), None if CPU else sent_bytes(figures))


def test_gathers_and_scatters_of_fsdp(saved: Saved) -> None:
    figures = saved.figures("fsdp")
    if CPU:  # gloo has no scatter of its own, and does not say how much it sends
        gathers_and_scatters(saved.analyses("fsdp"), figures["steps"], None, "all_reduce")
    else:
        gathers_and_scatters(saved.analyses("fsdp"), figures["steps"], sent_bytes(figures))


def sent_bytes(figures: Any) -> int:
    """What the collectives of all steps carry when each parameter travels once a step."""
    return int(figures["steps"] * figures["parameter_bytes"])


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


@needs_devices
@pytest.mark.parametrize(
    "program", ["decode", "graph", "prefill", "ddp", "fsdp", "compiled", "replayed", "symmetric"]
)
def test_no_other_program_has_a_late_rank(saved: Saved, program: str) -> None:
    """A host that is slower for so short a time is told, and blamed for nothing."""
    saved.figures(program)
    analysis = compared(saved.folder / program)
    print(program, ranks_verdict(analysis))
    assert [found.title for found in analysis.findings if found.severity != "info"] == []


def line_of(script: str, mark: str) -> int:
    """The number of the line that bears this mark."""
    lines = (HERE / script).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if mark in line]
    return number


@pytest.mark.parametrize("program", [*WATCHED, *ON_DEVICES, MAY_LACK])
def test_the_step_without_the_profiler_is_told(saved: Saved, program: str) -> None:
    """How near it comes to the stopwatch is printed, and what the tracer costs."""
    figures = saved.figures(program)
    print(program, figures["stopwatch_ms"], "ms by a stopwatch,", figures["unprofiled_ms"], "told")
    print(f"{program}: {figures['rested']:.0%} of the calls of the model rested")
    for name, words in SAID.items():
        print(f"{program}: {words} {told(figures, name)}")


def told(figures: Any, name: str) -> str:
    """A ratio: of the usual round, its quartiles, and what a busy host hardly changes."""
    low, high = figures[f"{name}_quartiles"]
    text = f"{figures[f'{name}_ratio']:.3f} ({low:.3f}-{high:.3f})"
    steadier = {
        "undisturbed": "of undisturbed steps",
        "processor": "of processor time",
        "paced": "at the host's pace",
    }
    for key, words in steadier.items():
        if (ratio := figures.get(f"{name}_{key}_ratio")) is not None:
            text += f", {ratio:.3f} {words}"
    return text


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
