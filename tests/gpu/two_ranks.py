"""Two ranks on two devices: tensor-parallel decode and prefill, a graph, a late rank, DDP, FSDP2,
compiled code, symmetric memory.

Run under torchrun with the directory to save into and the programs to run, or none for all. Rank 0
prints, one JSON line a program, what a stopwatch without the tracer saw, what the tracer and the
profiler cost, and the step that the report calls unprofiled. TRACER_RANKS_DEVICE=cpu is a dry run.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile

from tracer import trace
from tracer.analysis import Observer
from tracer.collectors.steps.calibration import FIRST_STEPS, WAITING_STEPS

CPU = os.environ.get("TRACER_RANKS_DEVICE") == "cpu"  # gloo and a tiny model
DEVICE = "cpu" if CPU else "cuda"
LAYERS, TRAINED_LAYERS = 12, 6
WIDTH, HEADS, LENGTH, BATCH = (64, 4, 16, 8) if CPU else (4096, 32, 4096, 256)
STEPS, SAVED_STEPS, LATE_STEPS, PROFILED_STEPS = 12, 6, 12, 5
RUNS = 4
# A host may change its speed for seconds at a time: what a host's speed decides takes many rounds.
ROUNDS, FEW_ROUNDS = int(os.environ.get("TRACER_RANKS_ROUNDS", "12")), 3
LATE_S = 0.02
TIMEOUT = timedelta(seconds=60)
ACTIVITIES = [ProfilerActivity.CPU] if CPU else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
Step = Callable[[], object]
Reduce = Callable[[torch.Tensor], torch.Tensor]


# --- the models ---------------------------------------------------------------------------------


def all_reduced(values: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks, in place."""
    dist.all_reduce(values)
    return values


class Attention(nn.Module):
    """The half of the heads that this rank holds; one all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(WIDTH, 3 * WIDTH // 2, bias=False)
        self.o_proj = nn.Linear(WIDTH // 2, WIDTH, bias=False)
        self.reduce: Reduce = all_reduced

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv_proj(x).view(batch, length, 3, HEADS // 2, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return self.reduce(out)


class FeedForward(nn.Module):
    """The half of the columns that this rank holds; one all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.reduce: Reduce = all_reduced

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(nn.functional.silu(self.up_proj(x)))
        return self.reduce(out)


class Layer(nn.Module):
    """Pre-norm, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), FeedForward()
        self.post_attention_layernorm = nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Model(nn.Module):
    """A stack of layers; the late rank sleeps between two of them."""

    late = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            if self.late and i == LAYERS // 2:
                time.sleep(LATE_S)  # line: late
            x = layer(x)
        return x


def parallel_model() -> Model:
    """This rank's half of the weights."""
    with torch.device(DEVICE):
        return Model().eval()


def trained_model() -> nn.Sequential:
    """Plain feed-forward layers, the same on both ranks."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return nn.Sequential(*(mlp() for _ in range(TRAINED_LAYERS)))


def mlp() -> nn.Module:
    """A plain feed-forward layer of the training programs."""
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH, bias=False),
        nn.GELU(),
        nn.Linear(2 * WIDTH, WIDTH, bias=False),
    )


def tokens(length: int = 1) -> torch.Tensor:
    """The input of the tensor-parallel programs."""
    return torch.ones(1, length, WIDTH, device=DEVICE)


# --- the measurements ---------------------------------------------------------------------------


def wait() -> None:
    """Until the device has done everything."""
    if not CPU:
        torch.cuda.synchronize()


class Free(NamedTuple):
    """A free run: milliseconds of each step, from the beginning of one to that of the next, what
    processors worked a step, in all threads, and how long the host took meanwhile for what is
    always the same."""

    steps_ms: list[float]
    processor_ms: float
    pace_ms: float

    @property
    def step_ms(self) -> float:
        """The median: a host may be held up in some."""
        return statistics.median(self.steps_ms)


def free_run(step: Step, steps: int = STEPS) -> Free:
    """So many steps behind the first ones, with nothing but a barrier before all."""
    dist.barrier()
    wait()
    before_ms = pace_ms()
    moments, begun_s = [], 0.0
    for number in range(FIRST_STEPS + steps):
        if number == FIRST_STEPS:
            begun_s = time.process_time()
        moments.append(moment())
        step()
    worked_s = time.process_time() - begun_s
    moments.append(moment())
    wait()
    times = [float(begun.elapsed_time(ended)) for begun, ended in pairwise(moments)]
    return Free(times[FIRST_STEPS:], worked_s / steps * 1e3, (before_ms + pace_ms()) / 2)


def pace_ms() -> float:
    """What a host that changes its speed takes now for a loop of no operators."""
    begun_s, counts = time.perf_counter(), dict.fromkeys(range(64), 0)
    for number in range(20_000):
        counts[number % 64] += number
    return (time.perf_counter() - begun_s) * 1e3


class Moment:
    """When a host without a device came by; as a CUDA event tells it."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, other: Moment) -> float:
        return (other.at_s - self.at_s) * 1e3


def moment() -> Any:
    """Now, on the device's clock where there is one."""
    if CPU:
        return Moment()
    kind: Any = torch.cuda.Event
    event = kind(enable_timing=True)
    event.record()
    return event


def costs(step: Step, rounds: int) -> dict[str, Any]:
    """The same steps bare, under the profiler and under the tracer, in turn and in changing order,
    some runs each."""
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "none": nullcontext,
        "profiler": partial(profile, activities=ACTIVITIES),
        "modules": trace,
        "kernels": partial(trace, detail="kernels"),
    }
    seen: dict[str, list[list[Free]]] = {name: [] for name in ways}
    rested: list[float] = []
    for _ in range(rounds):
        for name, way in ways.items():
            dist.barrier()
            with way() as made:
                seen[name].append([free_run(step) for _ in range(RUNS)])
            if name == "modules":
                rested.append(share_that_rested(made))
        ways = dict(reversed(ways.items()))
    figures: dict[str, Any] = {"step_ms": {name: usual_ms(runs) for name, runs in seen.items()}}
    figures["rested"] = statistics.mean(rested)
    for name in ("profiler", "kernels", "modules"):
        figures |= runs_beside(name, seen[name], seen["none"])
    return figures | runs_beside("of_profiler", seen["modules"], seen["profiler"])


def share_that_rested(made: Any) -> float:
    """Of the calls of the model, those whose ranges of modules are told by others."""
    rests = made._capture.recorded.ranges.looks.table()["rests"]
    return float(rests.mean()) if len(rests) else 0.0


def usual_ms(rounds: list[list[Free]]) -> float:
    """The step of the usual round."""
    return statistics.median(min(run.step_ms for run in runs) for runs in rounds)


def runs_beside(
    name: str, ones: list[list[Free]], others: list[list[Free]]
) -> dict[str, float | list[float]]:
    """How two ways compare: in the usual round, each with its best run; by the steps that nothing
    held up, the fastest tenth of all; by the work of the processors; and by the median of all runs,
    each against the host's pace while it ran."""

    def steps(rounds: list[list[Free]]) -> list[float]:
        return [min(run.step_ms for run in runs) for runs in rounds]

    def every(rounds: list[list[Free]]) -> list[float]:
        return [step_ms for runs in rounds for run in runs for step_ms in run.steps_ms]

    def worked(rounds: list[list[Free]]) -> list[float]:
        return [min(run.processor_ms for run in runs) for runs in rounds]

    def paced(rounds: list[list[Free]]) -> float:
        return statistics.median(run.step_ms / run.pace_ms for runs in rounds for run in runs)

    return {
        **beside(name, steps(ones), steps(others)),
        f"{name}_paced_ratio": paced(ones) / paced(others),
        f"{name}_undisturbed_ratio": fastest(every(ones)) / fastest(every(others)),
        f"{name}_processor_ratio": fastest(worked(ones)) / fastest(worked(others)),
    }


def beside(name: str, ones: list[float], others: list[float]) -> dict[str, float | list[float]]:
    """The ratio of the usual round, and its quartiles."""
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {f"{name}_ratio": middle, f"{name}_quartiles": [low, high]}


def fastest(values: list[float]) -> float:
    """The value that a tenth of all are below."""
    return statistics.quantiles(values, n=10, method="inclusive")[0]


def unprofiled(name: str, step: Step, rounds: int) -> dict[str, Any]:
    """The step that the report calls unprofiled, beside a stopwatch right before and after it, on
    as many steps: the longer a run, the further the host is ahead of the device."""
    watched, said, profiled = [], [], []
    watch = partial(free_run, step, WAITING_STEPS - FIRST_STEPS)
    for _ in range(rounds):
        before = watch()
        observer, reason = calibrated(name, step)
        if observer is None:
            return {"stopwatch_ms": before.step_ms, "no_observer": reason}
        watched.append((before.step_ms + watch().step_ms) / 2)
        said.append(observer.unprofiled_step_ns / 1e6)
        profiled.append(observer.profiled_step_ns / 1e6)
    return {
        "stopwatch_ms": statistics.median(watched),
        "unprofiled_ms": statistics.median(said),
        "profiled_ms": statistics.median(profiled),
    } | beside("of_stopwatch", said, watched)


def calibrated(name: str, step: Step) -> tuple[Observer | None, str]:
    """What the report says of the profiler's own cost, or why it says nothing."""
    with trace(calibrate=True) as t:
        # Started a trace late, one rank would find the steps of the other issued already, and be
        # held up by none of them.
        dist.barrier()
        wait()
        for _ in range(WAITING_STEPS + PROFILED_STEPS):
            with t.step(name):
                step()
        wait()
    return t.analysis.observer, str(t.analysis.observer_reason or "")


def save(name: str, make: Callable[[], Step], out: Path, steps: int = SAVED_STEPS) -> None:
    """A short recording. `make`: gives the step, in the trace."""
    dist.barrier()
    with trace() as t:
        step = make()
        for _ in range(steps):
            with t.step(name):
                step()
        wait()
    t.save(out / name)
    dist.barrier()


def measured(
    name: str,
    step: Step,
    out: Path,
    *,
    make: Callable[[], Step] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """The recording of a step, and what it takes with and without us."""
    for _ in range(3):
        step()
    # Two stopwatches of the same steps differ as much as a stopwatch and us: a median of many.
    figures = {**costs(step, rounds), **unprofiled(name, step, 2 * rounds)}
    save(name, make or (lambda: step), out)
    return {**figures, "steps": SAVED_STEPS}


def captured(step: Step) -> Step:
    """A step in a CUDA graph, its collectives inside."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        step()
    wait()
    graph = torch.cuda.CUDAGraph()
    # The watchdog of NCCL asks for events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph.replay


def bus_bandwidth(size: int, calls: int = 20) -> float:
    """GB/s on the bus of an all-reduce of two ranks: bytes over seconds, as 2 (n - 1) / n is 1.
    The best of some replays of a CUDA graph, so that the host's time to launch is no part of it."""
    values = torch.ones(size // 2, device=DEVICE, dtype=torch.bfloat16)
    replay = captured(lambda: [dist.all_reduce(values) for _ in range(calls)])
    event: Any = torch.cuda.Event
    times: list[float] = []
    for _ in range(40):
        dist.barrier()
        wait()
        dist.all_reduce(values)  # the ranks begin the others together
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        wait()
        times.append(begin.elapsed_time(end) / calls)
    return size / min(times) / 1e6


# --- the programs -------------------------------------------------------------------------------


@torch.inference_mode()
def decode(out: Path) -> dict[str, Any]:
    """One token at a time."""
    model, x = parallel_model(), tokens()
    return measured("decode", lambda: model(x), out)


@torch.inference_mode()
def prefill(out: Path) -> dict[str, Any]:
    """A prompt, and an all-reduce of its size alone."""
    model, x = parallel_model(), tokens(LENGTH)
    figures = measured("prefill", lambda: model(x), out, rounds=FEW_ROUNDS)
    if not CPU:
        figures["bus_bandwidth_GBps"] = bus_bandwidth(LENGTH * WIDTH * 2)
    return figures


@torch.inference_mode()
def graph(out: Path) -> dict[str, Any]:
    """Decode as a CUDA graph, captured in the recording that is saved."""
    model, x = parallel_model(), tokens()
    make = partial(captured, lambda: model(x))
    return measured("graph", make(), out, make=make, rounds=FEW_ROUNDS)


@torch.inference_mode()
def late(out: Path) -> dict[str, Any]:
    """Decode with rank 1 asleep for a while in each step."""
    model, x = parallel_model(), tokens()
    model.late = dist.get_rank() == 1
    for _ in range(3):
        model(x)
    save("late", lambda: lambda: model(x), out, LATE_STEPS)
    return {"steps": LATE_STEPS}


def train_step(model: nn.Module) -> Step:
    """Forward, backward with gradients reduced, optimizer."""
    x = torch.ones(BATCH, WIDTH, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().pow(2).mean().backward()
        optimizer.step()

    return step


def parameter_bytes(model: nn.Module) -> int:
    """Size of all parameters."""
    return sum(values.numel() * values.element_size() for values in model.parameters())


def ddp(out: Path) -> dict[str, Any]:
    """Gradients reduced in buckets."""
    model = trained_model()
    size = parameter_bytes(model)
    step = train_step(nn.parallel.DistributedDataParallel(model))
    return {**measured("ddp", step, out), "parameter_bytes": size}


def fsdp(out: Path) -> dict[str, Any]:
    """Every layer sharded: gathered forward and backward, its gradients scattered."""
    model = trained_model()
    size = parameter_bytes(model)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return {**measured("fsdp", train_step(model), out), "parameter_bytes": size}


@torch.inference_mode()
def compiled(out: Path) -> dict[str, Any]:
    """Decode compiled whole."""
    model, x = parallel_model(), tokens()
    code = torch.compile(model, fullgraph=True)
    return measured("compiled", lambda: code(x), out)


@torch.inference_mode()
def replayed(out: Path) -> dict[str, Any]:
    """Decode compiled into a CUDA graph."""
    model, x = parallel_model(), tokens()
    code = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    return measured("replayed", lambda: code(x), out, rounds=FEW_ROUNDS)


@torch.inference_mode()
def symmetric(out: Path) -> dict[str, Any]:
    """Decode with its sums read from the other device's memory: one shot in attention, two shots in
    the FFN. Never with multicast."""
    import torch.distributed._symmetric_memory as symmetric_memory

    if os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") != "1":
        raise RuntimeError("TORCH_SYMM_MEM_DISABLE_MULTICAST is not 1")
    group = dist.group.WORLD
    assert group is not None
    buffer = symmetric_memory.empty(1, 1, WIDTH, dtype=torch.bfloat16, device=torch.device(DEVICE))
    symmetric_memory.rendezvous(buffer, group)
    ops: Any = torch.ops.symm_mem

    def one_shot(values: torch.Tensor) -> torch.Tensor:
        buffer.copy_(values)
        summed: torch.Tensor = ops.one_shot_all_reduce(buffer, "sum", group.group_name)
        return summed

    def two_shot(values: torch.Tensor) -> torch.Tensor:
        buffer.copy_(values)
        ops.two_shot_all_reduce_(buffer, "sum", group.group_name)
        return values.copy_(buffer)

    model, x = parallel_model(), tokens()
    layers: Any = model.layers
    for layer in layers:
        layer.self_attn.reduce, layer.mlp.reduce = one_shot, two_shot
    return measured("symmetric", lambda: model(x), out)


PROGRAMS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "decode": decode,
    "graph": graph,
    "prefill": prefill,
    "late": late,
    "ddp": ddp,
    "fsdp": fsdp,
    "compiled": compiled,
    "replayed": replayed,
    "symmetric": symmetric,
}


def say(values: dict[str, Any]) -> None:
    """One line at once: both ranks write to the same pipe."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def run(name: str, out: Path) -> None:
    """One program. One that fails on both ranks leaves the others; on one, the timeout ends all."""
    begun = time.perf_counter()
    try:
        figures = PROGRAMS[name](out)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:2000]
        say({"program": name, "rank": dist.get_rank(), "error": said})
        return
    if dist.get_rank() == 0:
        took_s = time.perf_counter() - begun
        say({"program": name, **figures, "layers": LAYERS, "took_s": round(took_s, 1)})


def main() -> None:
    out, local = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])
    if CPU:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=TIMEOUT)
    else:
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local), timeout=TIMEOUT)
    torch.set_default_dtype(torch.bfloat16)
    for name in sys.argv[2:] or PROGRAMS:
        run(name, out)
    torch._dynamo.reset()  # graphs that live on keep the group from ending
    gc.collect()
    wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
