"""Decode of an 8B-shaped model on a GPU: eager, as a CUDA graph, compiled layer by layer.

    python -m benchmarks.bench_graph_decode [--layers 32] [--steps 8] [--replays 20]

First, the step that the report calls unprofiled beside a stopwatch around the same loop without us;
wanted is 3 %. Then the graph under us and under Triton's Proton, each with the capture inside:
what a replay costs while recorded, how much of its time lands in a scope, and how long it takes
from the end to the report. Proton runs in a process of its own: both need the device's counters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.gpu.decoding import LLAMA_8B, Shape, Step, capture, make_step, warm_up
from tracer import trace
from tracer.analysis import Analysis
from tracer.collectors.steps.calibration import WAITING_STEPS

WANTED = 0.03
SCOPES = {"self_attn": "attention", "mlp": "ffn"}


def seconds_a_step(step: Callable[[], Any], steps: int) -> float:
    """The stopwatch: one wait at each end."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps


# --- the unprofiled step ------------------------------------------------------------------------


def compare_unprofiled(name: str, step: Callable[[], Any], steps: int, rounds: int) -> bool:
    """The report's unprofiled step beside the stopwatch, before and after it, in turn: the median
    of the ratios, as the machine drifts."""
    seen = [one_round(name, step, steps) for _ in range(rounds)]
    off = statistics.median(said / watch for said, watch, _ in seen) - 1
    verdict = "ok" if abs(off) <= WANTED else "OFF"
    said, watch, profiled = (statistics.median(column) for column in zip(*seen, strict=True))
    low, _, high = statistics.quantiles([said / watch - 1 for said, watch, _ in seen], n=4)
    print(
        f"  {name:9} stopwatch {watch:8.3f} ms  report {said:8.3f} ms  {off:+.1%} "
        f"({low:+.1%} to {high:+.1%}) {verdict}  profiled {profiled:.3f} ms"
    )
    return verdict == "ok"


def one_round(name: str, step: Callable[[], Any], steps: int) -> tuple[float, float, float]:
    """Milliseconds: the step that the report calls unprofiled, the stopwatch's, the profiled."""
    before = seconds_a_step(step, steps)
    with trace(calibrate=True) as t:
        for _ in range(WAITING_STEPS + 3):
            with t.step(name):
                step()
        torch.cuda.synchronize()
    for _ in range(3):  # the interpreter forgot through our patches
        step()
    after = seconds_a_step(step, steps)
    observer = t.analysis.observer
    assert observer is not None, t.analysis.observer_reason
    said, profiled = observer.unprofiled_step_ns / 1e6, observer.profiled_step_ns / 1e6
    return said, (before + after) / 2 * 1e3, profiled


def unprofiled_steps(step: Step, steps: int, rounds: int) -> bool:
    """Eager, graph, compiled."""
    print("unprofiled step: report against stopwatch")
    warm_up(step, 3)
    good = [compare_unprofiled("eager", step, steps, rounds)]
    graph = capture(step)
    graph.replay()
    good.append(compare_unprofiled("graph", graph.replay, steps, rounds))
    layers: Any = step.model.layers
    for layer in layers:
        layer.compile()
    for _ in range(3):
        step()
    good.append(compare_unprofiled("compiled", step, steps, rounds))
    return all(good)


# --- beside Proton ------------------------------------------------------------------------------


def record_ours(step: Step, replays: int) -> dict[str, float]:
    """A capture and its replays under `trace()`."""
    warm_up(step, 3)
    plain = capture(step)
    plain.replay()
    without = seconds_a_step(plain.replay, replays)
    with trace() as t:
        graph = capture(step)
        graph.replay()
        with_us = seconds_a_step(graph.replay, replays)
        begin = time.perf_counter()
    text = str(t.report)
    took = time.perf_counter() - begin
    assert text
    return {
        "without_ms": without * 1e3,
        "with_ms": with_us * 1e3,
        "share": _share_told(t.analysis),
        "report_s": took,
    }


def _share_told(analysis: Analysis) -> float:
    """Share of the replayed time that its capture explains."""
    names = analysis.trace.events["name"].astype(str).to_numpy()
    work = analysis.work
    replayed = [row >= 0 and "GraphLaunch" in names[row] for row in work["launch"].tolist()]
    mine = work[replayed]
    told = mine["charged_ns"][mine["how"] == "graph"].sum()
    return float(told / max(mine["charged_ns"].sum(), 1))


def record_proton(step: Step, replays: int) -> dict[str, float]:
    """The same under Proton, with scopes set by hand around attention and FFN."""
    import triton.profiler as proton

    warm_up(step, 3)
    plain = capture(step)
    plain.replay()
    without = seconds_a_step(plain.replay, replays)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proton"
        proton.start(str(path), context="shadow")
        with scoped(step.model, proton):
            graph = capture(step)
        with proton.scope("replay"):
            graph.replay()
            with_it = seconds_a_step(graph.replay, replays)
        begin = time.perf_counter()
        proton.finalize()
        took = time.perf_counter() - begin
        tree = json.loads(path.with_suffix(".hatchet").read_text())
    return {
        "without_ms": without * 1e3,
        "with_ms": with_it * 1e3,
        "share": _share_scoped(tree),
        "report_s": took,
    }


@contextlib.contextmanager
def scoped(model: torch.nn.Module, proton: Any) -> Iterator[None]:
    """Scopes around attention and FFN of every layer."""
    originals = []
    for name, module in model.named_modules():
        scope = SCOPES.get(name.rpartition(".")[2])
        if scope is not None:
            originals.append((module, module.forward))
            module.forward = _in_scope(module.forward, scope, proton)
    try:
        yield
    finally:
        for module, forward in originals:
            module.forward = forward


def _in_scope(forward: Callable[..., Any], scope: str, proton: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with proton.scope(scope):
            return forward(*args, **kwargs)

    return call


def _share_scoped(tree: Any) -> float:
    """Of the time below `replay`, that below one of the scopes."""
    roots = [node for node in tree if isinstance(node, dict) and "children" in node]
    total = scoped_ns = 0.0
    stack = [(node, False, False) for node in roots]
    while stack:
        node, replayed, inside = stack.pop()
        name = str(node.get("frame", {}).get("name", ""))
        replayed, inside = replayed or name == "replay", inside or name in SCOPES.values()
        spent = float(node.get("metrics", {}).get("time (ns)", 0)) if replayed else 0.0
        if not node.get("children"):
            total += spent
            scoped_ns += spent if inside else 0.0
        stack += [(child, replayed, inside) for child in node.get("children", [])]
    return scoped_ns / total if total else 0.0


def in_own_process(arguments: argparse.Namespace) -> dict[str, float] | None:
    """Proton's figures; None, with a word, where it does not run here."""
    command = [sys.executable, "-m", __spec__.name, "--proton"]
    command.append(f"--layers={arguments.layers}")
    command.append(f"--replays={arguments.replays}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"  Proton did not run: {said}")
        return None
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def print_side_by_side(figures: dict[str, dict[str, float] | None]) -> None:
    print("graph decode, captured while recorded")
    for name, found in figures.items():
        if found is not None:
            ratio = found["with_ms"] / found["without_ms"]
            print(
                f"  {name:7} {found['with_ms']:8.3f} ms a replay against "
                f"{found['without_ms']:.3f} without ({ratio:.3f})  in a scope "
                f"{found['share']:.1%}  end to report {found['report_s']:.2f} s"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=LLAMA_8B.layers)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9, help="of the unprofiled step")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--proton", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    warnings.simplefilter("ignore")
    shape: Shape = replace(LLAMA_8B, layers=arguments.layers)
    if arguments.proton:
        print(json.dumps(record_proton(make_step(shape), arguments.replays)))
        return 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, {shape.layers} layers")
    proton = in_own_process(arguments)
    step = make_step(shape)
    print_side_by_side({"ours": record_ours(step, arguments.replays), "Proton": proton})
    good = unprofiled_steps(step, arguments.steps, arguments.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
