"""Two ranks on two devices: tensor-parallel decode and prefill, a late rank, DDP, a graph.

Run under torchrun with the directory to save into. Rank 0 prints, one JSON line a program, what a
stopwatch without the tracer saw and what the tracer and the profiler cost.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from tracer import trace

LAYERS, WIDTH, HEADS, STEPS, ROUNDS = 12, 4096, 32, 12, 5
LATE_S = 0.02
ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
Step = Callable[[], object]


class Attention(torch.nn.Module):
    """The half of the heads that this rank holds; one all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = torch.nn.Linear(WIDTH, 3 * WIDTH // 2, bias=False)
        self.o_proj = torch.nn.Linear(WIDTH // 2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv_proj(x).view(batch, length, 3, HEADS // 2, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        dist.all_reduce(out)
        return out


class FeedForward(torch.nn.Module):
    """The half of the columns that this rank holds; one all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(torch.nn.functional.silu(self.up_proj(x)))
        dist.all_reduce(out)
        return out


class Layer(torch.nn.Module):
    """Pre-norm, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = torch.nn.RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), FeedForward()
        self.post_attention_layernorm = torch.nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Model(torch.nn.Module):
    """A stack of layers; the late rank sleeps between two of them."""

    late = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            if self.late and i == LAYERS // 2:
                time.sleep(LATE_S)  # line: late
            x = layer(x)
        return x


def timed(step: Step) -> float:
    """Seconds a step over a free run, a barrier before and a wait after."""
    dist.barrier()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS


def measured(name: str, step: Step, out: Path) -> None:
    """The same steps bare, under the profiler, under the tracer, in turn; the last one is saved."""
    for _ in range(3):
        step()
    times: dict[str, list[float]] = {"none": [], "profiler": [], "kernels": [], "modules": []}
    for _ in range(ROUNDS):
        times["none"].append(timed(step))
        with profile(activities=ACTIVITIES):
            times["profiler"].append(timed(step))
        with trace(detail="kernels"):
            times["kernels"].append(timed(step))
        with trace() as t:
            times["modules"].append(timed(step))
    dist.barrier()
    with trace() as t:
        for _ in range(STEPS):
            with t.step(name):
                step()
    t.save(out / name)
    if dist.get_rank() == 0:
        cost = {k: statistics.median(v) * 1e3 for k, v in times.items()}
        print(json.dumps({"program": name, "step_ms": cost}), flush=True)


def bus_bandwidth(size: int) -> float:
    """GB/s on the bus of an all-reduce of two ranks: bytes over seconds, as 2 (n - 1) / n is 1."""
    values = torch.ones(size // 2, device="cuda", dtype=torch.bfloat16)
    event: Any = torch.cuda.Event
    marks = [event(enable_timing=True) for _ in range(41)]
    for mark in marks:
        dist.all_reduce(values)
        mark.record()
    torch.cuda.synchronize()
    steps = [a.elapsed_time(b) for a, b in pairwise(marks)]
    return size / float(statistics.median(steps[10:])) / 1e6


def graphed(model: Model, x: torch.Tensor) -> Step:
    """The model captured into a CUDA graph, its collectives inside."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def train_step(model: torch.nn.Module, x: torch.Tensor) -> Step:
    """Forward, backward with gradient buckets reduced, optimizer."""
    layer = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).float().pow(2).mean().backward()
        optimizer.step()

    return step


def main() -> None:
    out, local = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    rank = dist.get_rank()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model, plain = Model().eval(), torch.nn.Sequential(*(mlp() for _ in range(6)))
        one, many = torch.ones(1, 1, WIDTH), torch.ones(1, 2048, WIDTH)
        batch = torch.ones(256, WIDTH)
    with torch.inference_mode():
        measured("decode", lambda: model(one), out)
        measured("prefill", lambda: model(many), out)
        bandwidth = bus_bandwidth(2048 * WIDTH * 2)
        if rank == 0:
            print(json.dumps({"bus_bandwidth_GBps": bandwidth}), flush=True)
        measured("graph", graphed(model, one), out)
        model.late = rank == 1
        measured("late", lambda: model(one), out)
    measured("ddp", train_step(plain, batch), out)
    dist.destroy_process_group()


def mlp() -> torch.nn.Module:
    """A plain feed-forward layer of the training program."""
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)
    )


if __name__ == "__main__":
    main()
