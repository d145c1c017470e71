"""What each part of the level `modules` costs the program, one part after the other.

    python -m benchmarks.bench_parts [--device cuda|cpu] [--seconds 60] [--steps 30]
                                     [--width 64] [--layers 32]

An eager decode of a Llama with random weights: on a GPU of the shape of the 8B one, on a CPU so
narrow that the host has nearly all the work. Each line has all parts of the lines above it; the
last is `trace()` itself. Rounds of all of them in changing order, so that the machine drifts under
all alike, and none always follows the same other; a fresh recording each. Printed are, of all steps
together, the fastest tenth, quarter and half, as us and as ratios to `torch.profiler`: what a busy
host adds falls on the slower ones. Of each step the host's time is taken, which a GPU works behind,
on a CPU the processor time of its thread.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext

import torch

from benchmarks.bench_overhead import VARIANTS, Loop, Variant, make_model, one_step
from tracer import trace
from tracer.collectors.attention_facts import AttentionCalls
from tracer.collectors.modules.module_ranges import ModuleRanges
from tracer.collectors.stack_samples import StackSamples
from tracer.collectors.torch_profiler import SWITCHES, ProfilerSession, gpu_is_usable
from tracer.collectors.wait_lines import WaitLines

Part = Callable[["Recording"], None]
# Steps of a recording in which modules get their names and calls of a model are all looked at.
LEFT_OUT = 5


class Recording:
    """Parts of a capture, each started by itself and ended with the others, the last first."""

    steps_announced = False

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open_calls = 0
        self._attention: AttentionCalls | None = None

    def root_begins(self) -> None:
        self._open_calls += 1

    def root_rests(self) -> None:
        if self._attention is not None:
            self._attention.rest()

    def root_ends(self, now_ns: int) -> None:
        self._open_calls -= 1
        if self._attention is not None:
            self._attention.wake()

    def add_profiler(self) -> None:
        session = ProfilerSession(SWITCHES["modules"], gpu=gpu_is_usable())
        session.start()
        self._stack.callback(session.stop)

    def add_roots(self) -> None:
        self._add_calls(ranges=False)

    def add_ranges(self) -> None:
        self._add_calls(ranges=True)

    def _add_calls(self, *, ranges: bool) -> None:
        calls = ModuleRanges(self, _raise, ranges=ranges)
        calls.start()
        calls.record_ranges(True)
        self._stack.callback(calls.close)

    def add_attention(self) -> None:
        self._attention = AttentionCalls()
        self._add(self._attention)

    def add_waits(self) -> None:
        self._add(WaitLines())

    def add_samples(self) -> None:
        self._add(StackSamples(in_call=lambda: self._open_calls > 0))

    def _add(self, source: AttentionCalls | WaitLines | StackSamples) -> None:
        source.start()
        self._stack.callback(source.close)


def _raise(what: str, error: Exception) -> None:
    raise error


# The calls of roots are listed by the same patch that writes the ranges.
CUMULATIVE: Mapping[str, tuple[Part, ...]] = {
    "its settings of ours": (Recording.add_profiler,),
    "+ calls of roots": (Recording.add_profiler, Recording.add_roots),
    "+ ranges": (ranged := (Recording.add_profiler, Recording.add_ranges)),
    "+ notes of attention": (noted := (*ranged, Recording.add_attention)),
    "+ lines of waits": (waits := (*noted, Recording.add_waits)),
    "+ samples": (*waits, Recording.add_samples),
}


def _recording(parts: tuple[Part, ...]) -> Variant:
    @contextmanager
    def recording() -> Iterator[None]:
        with ExitStack() as stack:
            made = Recording(stack)
            for part in parts:
                part(made)
            yield

    return recording


def variants() -> dict[str, Variant]:
    """What is measured, in the order in which it is printed."""
    return {
        "none": nullcontext,
        "torch.profiler": VARIANTS["torch.profiler"],
        **{label: _recording(parts) for label, parts in CUMULATIVE.items()},
        "trace()": lambda: trace(),
    }


def step_seconds(step: Loop, variant: Variant, steps: int, device: str) -> list[float]:
    """What each of so many steps takes the host, behind those in which a recording knows least."""
    clock = time.perf_counter if device == "cuda" else time.thread_time
    gc.collect()
    taken: list[float] = []
    with variant():
        for number in range(LEFT_OUT + steps):
            begin = clock()
            step()
            if number >= LEFT_OUT:
                taken.append(clock() - begin)
        if device == "cuda":
            torch.cuda.synchronize()
    return taken


def main() -> None:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="begin no round after these")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=64, help="of the model on the CPU")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="default: the GPU if there is one"
    )
    args = parser.parse_args()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    step = one_step(
        make_model(4096 if device == "cuda" else args.width, args.layers, device), device
    )
    measured = variants()
    for variant in measured.values():  # the first profile of a process is slow
        step_seconds(step, variant, 1, device)
    times: dict[str, list[float]] = {label: [] for label in measured}
    end, rounds, order = time.monotonic() + args.seconds, 0, random.Random(0)
    while time.monotonic() < end:
        for label in order.sample(list(measured), len(measured)):
            times[label] += step_seconds(step, measured[label], args.steps, device)
        rounds += 1
    print(f"{rounds} rounds of {args.steps} steps")
    print_parts(times)


def print_parts(times: dict[str, list[float]]) -> None:
    """A line for each part; `times`: seconds of every step."""
    print(f"{'':24}  {'us: tenth':>9} {'quarter':>8} {'half':>8}   of torch.profiler")
    base = fastest(times["torch.profiler"])
    for label, seconds in times.items():
        own = fastest(seconds)
        ratios = " ".join(f"{one / other:.3f}" for one, other in zip(own, base, strict=True))
        tenth, quarter, half = (value * 1e6 for value in own)
        print(f"{label:24}  {tenth:9.0f} {quarter:8.0f} {half:8.0f}   {ratios}", flush=True)


def fastest(seconds: list[float]) -> tuple[float, float, float]:
    """What a tenth, a quarter and half of them are below."""
    marks = statistics.quantiles(seconds, n=20, method="inclusive")
    return marks[1], marks[4], marks[9]


if __name__ == "__main__":
    main()
