"""What each part of the level `modules` costs the program, one part after the other.

    python -m benchmarks.bench_parts [--device cuda|cpu] [--rounds 15] [--steps 16]
                                     [--width 64] [--layers 32]

An eager decode of a Llama with random weights: on a GPU of the shape of the 8B one, on a CPU so
narrow that the host has nearly all the work. Each line has all parts of the lines above it; the
last is `trace()` itself. Rounds of all of them in turn, so that the machine drifts under all alike;
printed are the median time of a step, and of all rounds the medians of what the part adds and of
the ratio to `torch.profiler`. On a CPU processor time is compared, of all threads.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext

import torch

from benchmarks.bench_overhead import (
    VARIANTS,
    Variant,
    decode_loop,
    make_model,
    measure,
    ratio_text,
)
from tracer import trace
from tracer.collectors.attention_facts import AttentionCalls
from tracer.collectors.modules.module_ranges import ModuleRanges
from tracer.collectors.stack_samples import StackSamples
from tracer.collectors.torch_profiler import SWITCHES, ProfilerSession, gpu_is_usable
from tracer.collectors.wait_lines import WaitLines

Part = Callable[["Recording"], None]


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


def main() -> None:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--width", type=int, default=64, help="of the model on the CPU")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="default: the GPU if there is one"
    )
    args = parser.parse_args()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    model = make_model(4096 if device == "cuda" else args.width, args.layers, device)
    loop = decode_loop(model, args.steps, device)
    measured = variants()
    for variant in measured.values():  # the first profile of a process is slow
        measure(loop, variant, device)
    times: dict[str, list[float]] = {label: [] for label in measured}
    labels = list(measured)
    for index in range(args.rounds):
        turn = index % len(labels)
        for label in labels[turn:] + labels[:turn]:
            times[label].append(measure(loop, measured[label], device))
    print_parts(times, args.steps + 1)


def print_parts(times: dict[str, list[float]], steps: int) -> None:
    """A line for each part; `times`: seconds of a loop of so many steps, a round each."""
    print(f"{'':24}  {'us a step':>9}  {'adds':>6}  of torch.profiler (quartiles; of the fastest)")
    before: list[float] = []
    for label, seconds in times.items():
        step_us = statistics.median(seconds) / steps * 1e6
        added = [now - then for now, then in zip(seconds, before, strict=bool(before))]
        adds = f"{statistics.median(added) / steps * 1e6:+.0f}" if added else ""
        ratio = ratio_text(times, label, "torch.profiler")
        print(f"{label:24}  {step_us:9.0f}  {adds:>6}  {ratio}", flush=True)
        before = seconds


if __name__ == "__main__":
    main()
