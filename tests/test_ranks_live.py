"""Two processes under torchrun, one of them planted late: saved into one directory, compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rank_samples import compared, moved, straggler
from tracer.analyzers import analyze
from tracer.store import load_run, save_run

SECOND = 1_000_000_000
TIMEOUT_S = 240

PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from tracer import trace

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, late = dist.get_rank(), int(sys.argv[2])
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
values = torch.ones(64)

def step():
    if rank == late:
        time.sleep(0.03)
    layer(torch.randn(16, 64)).sum().backward()
    dist.all_reduce(values)

step()
dist.barrier()
with trace(metrics=False) as t:
    for _ in range(8):
        with t.step("train"):
            step()
t.save(sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


HANGING = """
import sys, time
import torch, torch.distributed as dist
from tracer import trace

torch.set_num_threads(1)
dist.init_process_group("gloo")
values = torch.ones(64)

def reduce_all():
    dist.all_reduce(values)  # the line

with trace(metrics=False, detail="light", watchdog={"seconds": 1.5, "directory": sys.argv[1]}) as t:
    for number in range(6):
        with t.step("train"):
            if number == 5 and dist.get_rank() == 1:
                time.sleep(8)
            reduce_all()
dist.barrier()
dist.destroy_process_group()
"""

WHOLE = """
import sys
import torch, torch.distributed as dist
from tracer import trace

torch.set_num_threads(1)
with trace(metrics=False) as t:
    dist.init_process_group("gloo")
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(3):
        layer(torch.randn(16, 64)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
t.save(sys.argv[1])
"""


BUFFERS = """
import sys
import torch, torch.distributed as dist
from tracer import trace

torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))]
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*layers), broadcast_buffers=sys.argv[2] == "1"
)

def step():
    model(torch.randn(16, 64)).sum().backward()

step()
dist.barrier()
with trace(metrics=False) as t:
    for _ in range(6):
        with t.step("train"):
            step()
t.save(sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(folder: Path, late: int, program: str = PROGRAM) -> Path:
    """Two gloo ranks on the loopback interface, on a port that is free."""
    script = folder / "program.py"
    script.write_text(program)
    saved = folder / "saved"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "100"}
    outcome = subprocess.run(
        [*launch, str(script), str(saved), str(late)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **settings},
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return saved


@pytest.mark.slow
@pytest.mark.parametrize("broadcast", [1, 0])
def test_broadcasts_of_buffers_are_told_as_what_they_are(tmp_path: Path, broadcast: int) -> None:
    saved = run_ranks(tmp_path, broadcast, BUFFERS)
    for rank in ("rank0", "rank1"):
        analysis = analyze(load_run(saved / rank))
        told = [f for f in analysis.findings if "packing_ns" in f.detail]
        assert len(told) == broadcast
        for finding in told:
            # In each step one of statistics, and one of how many batches were counted.
            assert 6 <= finding.count <= 2 * 6
            assert finding.detail["statistics"] == ["BatchNorm1d"]
            assert 0 < (finding.gain_ns or 0) < analysis.window.wall_ns


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_the_planted_rank_is_named(tmp_path: Path, late: int) -> None:
    saved = run_ranks(tmp_path, late)
    assert sorted(path.name for path in saved.iterdir()) == ["rank0", "rank1"]
    analysis = compared(saved)
    found = straggler(analysis)
    assert found is not None
    assert found[0] == late
    (finding,) = analysis.findings
    assert finding.detail["cause"] == "overhead.host"
    blocks = finding.detail["before"]["blocks"]
    assert 25e6 < blocks[0]["ns"] < 60e6
    assert analysis.ranks[1 - late].wait_ns is not None
    assert (analysis.ranks[1 - late].wait_ns or 0) > 5 * 0.025 * SECOND

    # The same with a clock that is two seconds ahead and too fast.
    save_run(moved(load_run(saved / "rank1"), 2 * SECOND, 20e-6), saved / "rank1")
    shifted = compared(saved)
    again = straggler(shifted)
    assert again is not None
    assert again[0] == late
    assert shifted.alignment is not None
    residual = shifted.alignment.residual_ns or 0
    assert shifted.alignment.clocks[1].offset_ns == pytest.approx(2 * SECOND, abs=residual + 1e6)


@pytest.mark.slow
def test_the_watchdog_shows_who_does_not_come(tmp_path: Path) -> None:
    saved = run_ranks(tmp_path, 1, HANGING)
    names = {path.name for path in saved.iterdir()}
    dumps = {f"flight_recorder_rank_{rank}" for rank in (0, 1)}
    assert names == dumps | {f"stacks_rank_{rank}.txt" for rank in (0, 1)}
    (finding,) = compared(saved).findings
    assert finding.rule == "comm.hang"
    assert (finding.detail["rank"], finding.detail["waiting"]) == (1, [0])
    assert (finding.where.file or "").endswith("program.py")
    line = HANGING.splitlines().index("    dist.all_reduce(values)  # the line") + 1
    assert finding.where.line == line
    assert "reduce_all" in (saved / "stacks_rank_0.txt").read_text()


@pytest.mark.slow
def test_a_group_that_is_destroyed_inside_the_trace_keeps_its_name(tmp_path: Path) -> None:
    analysis = compared(run_ranks(tmp_path, 0, WHOLE))
    (group,) = analysis.groups
    assert (group.name, group.members) == ("0", (0, 1))


TRACED = """
import torch, torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for _ in range(3):
    layer(torch.randn(16, 64)).sum().backward()
dist.destroy_process_group()
"""


def traced_ranks(folder: Path, *options: str) -> str:
    """What two ranks of an unchanged program print under `tracer run`."""
    (folder / "program.py").write_text(TRACED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    outcome = subprocess.run(
        [*launch, "-m", "tracer", "run", *options, "program.py"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return outcome.stderr


@pytest.mark.slow
def test_a_printed_report_says_which_rank_it_is_of_and_what_compares_them(tmp_path: Path) -> None:
    said = traced_ranks(tmp_path, "--out", "saved").splitlines()
    for rank in (0, 1):
        last = f"tracer: rank {rank} of 2; compare all ranks: tracer ranks {tmp_path / 'saved'}"
        assert sum(line.startswith(f"Rank {rank} of 2: ") for line in said) == 1
        assert said.count(last) == 1


@pytest.mark.slow
def test_each_rank_writes_a_report_of_its_own(tmp_path: Path) -> None:
    said = traced_ranks(tmp_path, "--report", "report.json").splitlines()
    assert not (tmp_path / "report.json").exists()
    for rank in (0, 1):
        written = tmp_path / f"report.rank{rank}.json"
        assert json.loads(written.read_text())["source"]["rank"] == rank
        assert f"tracer: report written to {written}" in said
        assert any(line.startswith(f"tracer: rank {rank} of 2; to compare") for line in said)
