"""A thousand ranks: the right straggler, the right clocks, time by ranks and by cores, memory.

Simulates a training job of tensor-parallel groups of 8 and data-parallel groups across them, 8 GPUs
a host. Each host has a clock of its own, seconds apart and drifting; one rank is late. Each rank is
written as a small file of the PyTorch profiler. Printed, for 1 and 2 workers and a growing number
of ranks: seconds, seconds of all processors (on a busy machine the first say little), the rank that
was named, the largest error of a clock beside the residual. Then the memory of the driver for
recordings four times as long, and what is said of a missing, a doubled and a truncated rank.

    python -m benchmarks.bench_ranks [ranks]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.exporters.ranks_text import render_ranks
from tracer.rank_analysis import RankAnalysis
from tracer.ranks.local import LocalEngine
from tracer.ranks.run import analyse_ranks

BASE_NS = 1_700_000_000_000_000_000
PAIR, HOST = 8, 8
LAYERS = 4
WIRE_US, SUM_US, COMPUTE_US = 40.0, 300.0, 60.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """A simulated job: when each rank entered and left each collective, true microseconds."""

    ranks: int
    late: int
    enters: Floats  # rank x call
    ends: Floats
    data_parallel: NDArray[np.bool_]  # of each call
    offset_us: Floats  # of the clock of each rank
    drift: Floats


def simulate(ranks: int, steps: int, late: int, seed: int = 7) -> Job:
    """Ranks compute, sum within their tensor-parallel group, and once a step across the groups."""
    rng = np.random.default_rng(seed)
    now = rng.uniform(0, 50, ranks)
    enters, ends, across = [], [], []
    for step in range(steps):
        for layer in range(LAYERS + 1):
            now = now + COMPUTE_US * rng.uniform(0.97, 1.03, ranks)
            now[late] += 900.0 if layer == 0 else 30.0
            last = layer == LAYERS
            groups = now.reshape(-1, PAIR) if not last else now.reshape(-1, PAIR).T
            end = groups.max(axis=1, keepdims=True) + (SUM_US if last else WIRE_US)
            left = np.broadcast_to(end, groups.shape) + rng.uniform(-0.4, 0.4, groups.shape)
            enters.append(now)
            now = (left.T if last else left).reshape(-1)
            ends.append(now)
            across.append(last)
        now = now + 100.0 + 10.0 * (step % 3)
    hosts = -(-ranks // HOST)
    offset = np.repeat(rng.uniform(-5e6, 5e6, hosts), HOST)[:ranks]
    drift = np.repeat(rng.uniform(-50e-6, 50e-6, hosts), HOST)[:ranks]
    return Job(ranks, late, np.stack(enters, 1), np.stack(ends, 1), np.array(across), offset, drift)


def write_job(job: Job, folder: Path) -> None:
    """A file a rank."""
    folder.mkdir(parents=True)
    for rank in range(job.ranks):
        (folder / f"rank{rank}.json").write_text(json.dumps(rank_document(job, rank)))


def rank_document(job: Job, rank: int) -> dict[str, Any]:
    """The recording of one rank, by its own clock."""
    first = rank // PAIR * PAIR
    tensor = list(range(first, first + PAIR))
    data = list(range(rank % PAIR, job.ranks, PAIR))
    groups = [
        {"pg_name": f"tp{rank // PAIR}", "pg_desc": "mesh_tp", "pg_size": PAIR, "ranks": tensor},
        {"pg_name": f"dp{rank % PAIR}", "pg_desc": "mesh_dp", "pg_size": len(data), "ranks": data},
    ]
    events: list[dict[str, Any]] = []
    free = job.enters[rank, 0] - COMPUTE_US
    for call in range(job.enters.shape[1]):
        group = groups[int(job.data_parallel[call])]
        begin, end = float(job.enters[rank, call]), float(job.ends[rank, call])
        _add(events, "gemm", "aten::mm", free, begin - 2, 7, {})
        named = {
            "Collective name": "allreduce",
            "Process Group Name": group["pg_name"],
            "Process Group Ranks": json.dumps(group["ranks"][:32]),
            "Group size": group["pg_size"],
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "BFloat16",
        }
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        _add(events, name, "c10d::allreduce_", begin, end, 20, named)
        free = end
    for event in events:
        event["ts"] += float(job.offset_us[rank]) + event["ts"] * float(job.drift[rank])
    info = {"backend": "nccl", "rank": rank, "world_size": job.ranks, "pg_config": groups}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
    }


def _add(
    events: list[dict[str, Any]],
    kernel: str,
    operator: str,
    begin: float,
    end: float,
    stream: int,
    named: dict[str, Any],
) -> None:
    """A kernel with the call that launched it and the operator around."""
    number = len(events) + 1
    host = {"ph": "X", "pid": 1, "tid": 1}
    links = {"External id": number, "correlation": number}
    launch = begin - 6.0
    events += [
        {**host, "cat": "cpu_op", "name": operator, "ts": launch - 1, "dur": 4.0}
        | {"args": {"External id": number}},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch, "dur": 2.0}
        | {"args": links},
        {"ph": "X", "pid": 0, "tid": stream, "cat": "kernel", "name": kernel, "ts": begin}
        | {"dur": max(end - begin, 0.5)}
        | {"args": {**links, "device": 0, "stream": stream, **named}},
    ]


# --- measurements --------------------------------------------------------------------------------


def measured(folder: Path, workers: int) -> tuple[RankAnalysis, float, float]:
    """What is found, the seconds it took, and those of all processors together."""
    begin, used = time.perf_counter(), processor_seconds()
    with closing(LocalEngine(workers)) as engine:
        analysis = analyse_ranks([str(folder)], engine).analysis
    return analysis, time.perf_counter() - begin, processor_seconds() - used


def processor_seconds() -> float:
    """What this process and its ended children have used."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def clock_error_ns(job: Job, analysis: RankAnalysis) -> float:
    """The largest distance of a found clock from the true one, over the whole recording."""
    assert analysis.alignment is not None
    clocks = analysis.alignment.clocks
    worst = 0.0
    moments = np.linspace(job.enters.min(), job.ends.max(), 5)
    for rank, clock in clocks.items():
        own = moments + job.offset_us[rank] + moments * job.drift[rank]
        zero = moments + job.offset_us[0] + moments * job.drift[0]
        times = BASE_NS + np.rint(own * 1000).astype(np.int64)
        found = clock.aligned(times) - (BASE_NS + np.rint(zero * 1000).astype(np.int64))
        worst = max(worst, float(np.abs(found).max()))
    return worst


def named_ranks(analysis: RankAnalysis) -> list[int]:
    """Ranks that are named as late."""
    return [f.detail["rank"] for f in analysis.findings if f.rule == "comm.straggler"]


def scaling(ranks: int, folder: Path) -> None:
    """Time by ranks and workers; the answer each time."""
    counts = [count for count in (ranks // 8, ranks // 4, ranks // 2, ranks) if count >= 2 * PAIR]
    print("ranks workers  seconds  ms/rank  cpu s  late  named  clock error/residual")
    for count in counts:
        job = simulate(count, steps=6, late=count // 3)
        write_job(job, folder / str(count))
        for workers in (1, 2):
            analysis, seconds, used = measured(folder / str(count), workers)
            assert analysis.alignment is not None
            error, residual = clock_error_ns(job, analysis), analysis.alignment.residual_ns
            print(
                f"{count:5} {workers:7} {seconds:8.1f} {1000 * seconds / count:8.1f} {used:6.1f}  "
                f"{job.late:4} {named_ranks(analysis)!s:>6}  {error / 1000:.2f}/"
                f"{(residual or 0) / 1000:.2f} us",
                flush=True,
            )


def damage(folder: Path) -> None:
    """What is said of a missing, a doubled and a truncated rank."""
    job = simulate(64, steps=6, late=21)
    write_job(job, folder)
    (folder / "rank9.json").unlink()
    shutil.copy(folder / "rank33.json", folder / "rank33.copy.json")
    text = (folder / "rank50.json").read_text()
    (folder / "rank50.json").write_text(text[: len(text) // 2])
    analysis, _, _ = measured(folder, 1)
    print(f"\n64 ranks, 9 missing, 33 doubled, 50 cut: named {named_ranks(analysis)}")
    for line in render_ranks(analysis, width=160).split("INTEGRITY", 1)[1].splitlines():
        print("   ", line)


def memory(folder: Path) -> None:
    """Peak memory of the driver for short and for long recordings, in processes of their own."""
    print()
    for steps in (6, 24):
        place = folder / f"steps{steps}"
        write_job(simulate(64, steps=steps, late=21), place)
        size = sum(path.stat().st_size for path in place.iterdir())
        done = subprocess.run(
            [sys.executable, __file__, "--measure", str(place)],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"64 ranks of {size / 64e3:.0f} kB: driver peaks at {done.stdout.strip()} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("ranks", nargs="?", type=int, default=1024)
    parser.add_argument("--measure", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measured(Path(args.measure), 2)
        print(round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    with tempfile.TemporaryDirectory(prefix="bench-ranks-") as folder:
        scaling(args.ranks, Path(folder) / "scale")
        damage(Path(folder) / "damage")
        memory(Path(folder) / "memory")


if __name__ == "__main__":
    main()
