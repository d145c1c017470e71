"""Two ranks on two devices: traced live, compared, and held against a stopwatch without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

HERE = Path(__file__).parent
LAYERS, STEPS = 12, 12


def torchrun(script: str, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Two processes, one a device."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*launch, str(HERE / script), *args],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **settings},
        check=False,
    )


def command(*args: str) -> str:
    """What a command of ours prints."""
    outcome = subprocess.run(
        [sys.executable, "-m", "tracer", *args], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The recordings of every program, and what their stopwatches said."""
    folder = Path(os.environ.get("TRACER_KEEP") or tmp_path_factory.mktemp("ranks"))
    outcome = torchrun("two_ranks.py", str(folder))
    print(outcome.stdout)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    lines = [json.loads(x) for x in outcome.stdout.splitlines() if x.startswith("{")]
    seen = {x["program"]: x["step_ms"] for x in lines if "program" in x}
    (seen["bus"],) = (x["bus_bandwidth_GBps"] for x in lines if "bus_bandwidth_GBps" in x)
    return folder, seen


def compared(folder: Path, program: str) -> Any:
    print(command("ranks", str(folder / program)))
    return json.loads(command("ranks", "--json", str(folder / program)))


def report(folder: Path, program: str) -> Any:
    (first, _) = sorted((folder / program).iterdir())
    return json.loads(command("report", "--json", str(first)))


@pytest.mark.parametrize("program", ["decode", "prefill", "graph", "late", "ddp"])
def test_what_is_reported(saved: tuple[Path, dict[str, Any]], program: str) -> None:
    folder, seen = saved
    one = report(folder, program)
    walls = sorted(step["wall_ns"] for step in one["steps"])
    print(program, "step", walls[len(walls) // 2] / 1e6, "stopwatch and costs", seen[program])
    together = one["breakdown"]["communication"]
    print(together)
    if program != "ddp":
        assert together["kernels"] == 2 * LAYERS * STEPS
    assert compared(folder, program)


def test_the_late_rank(saved: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = saved
    (found,) = [f for f in compared(folder, "late")["findings"] if f["rule"] == "comm.straggler"]
    print(found["title"], found["where"], found["detail"]["cause"])
    assert found["detail"]["rank"] == 1


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
    text = command("ranks", str(tmp_path))
    print(text)
    assert "rank 1" in text
    assert "hung_ranks.py" in text
