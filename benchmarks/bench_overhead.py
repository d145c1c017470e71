"""What each level of detail costs the program while it runs, beside `torch.profiler`.

    python -m benchmarks.bench_overhead [--rounds 15] [--steps 8] [--width 512] [--layers 8]
                                        [--only light modules] [--device cuda]

`--width 64 --layers 32 --only light modules` shows what a call of a module costs: there is hardly
any work in each.

First the parts of the level `modules` are turned on and off for blocks of steps while one profiler
runs. Then rounds of all variants in turn, so that the machine drifts under all of them alike, each
the best of a few runs; printed are the medians of the ratios within a round. On a CPU processor
time is compared, on a GPU wall time with one wait at the ends: an eager decode of an 8B-shaped
model (random weights) and the replay of a CUDA graph of it. `off` is the loop alone, after traces
have come and gone.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tracer import trace
from tracer.collectors.torch_profiler import State
from tracer.live.capture import Capture

RUNS = 3
Loop = Callable[[], None]
Variant = Callable[[], AbstractContextManager[Any]]


def _profiler(**switches: bool) -> Variant:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)

    @contextmanager
    def recording() -> Iterator[None]:
        # Started and stopped outside the measured loop, as ours is.
        with profile(activities=activities, **switches):
            yield

    return recording


VARIANTS: dict[str, Variant] = {
    "none": nullcontext,
    "off": nullcontext,
    "light": lambda: trace(detail="light"),
    "kernels": lambda: trace(detail="kernels"),
    "torch.profiler": _profiler(),
    "modules": lambda: trace(detail="modules"),
    "torch.profiler, all switches": _profiler(
        record_shapes=True, with_stack=True, profile_memory=True
    ),
    "full": lambda: trace(detail="full"),
}
# Level -> what it is compared with, and the ratio that is wanted.
WANTED: dict[str, tuple[str, float]] = {
    "off": ("none", 1.0),
    "light": ("none", 1.005),
    "kernels": ("none", 1.06),
    "modules": ("torch.profiler", 1.05),
    "full": ("torch.profiler, all switches", 1.05),
}


def make_model(width: int, layers: int, device: str) -> Any:
    """A Llama with random weights, of the shape of the 8B one at width 4096."""
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM

    transformers.logging.set_verbosity_error()
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=int(3.5 * width),
        num_hidden_layers=layers,
        num_attention_heads=max(width // 128, 4),
        num_key_value_heads=max(width // 512, 2),
        vocab_size=128256 if device == "cuda" else 1024,
        eos_token_id=None,
    )
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def decode_loop(model: Any, steps: int, device: str) -> Loop:
    """A decode loop as people write it."""
    prompt = torch.randint(3, 1000, (1, 16), device=device)

    def loop() -> None:
        with torch.no_grad():
            cache = model(prompt, use_cache=True).past_key_values
            for _ in range(steps):
                model(prompt[:, :1], past_key_values=cache, use_cache=True)

    return loop


def one_step(model: Any, device: str) -> Loop:
    """A step of decode without a cache."""
    token = torch.ones((1, 1), dtype=torch.long, device=device)

    def step() -> None:
        with torch.no_grad():
            model(token, use_cache=False)

    return step


def graph_loop(model: Any, steps: int) -> Loop:
    """Replays of one captured forward pass."""
    tokens = torch.ones((1, 1), dtype=torch.long, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        model(tokens, use_cache=False)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(tokens, use_cache=False)

    def loop() -> None:
        for _ in range(steps):
            graph.replay()

    return loop


def measure(loop: Loop, variant: Variant, device: str) -> float:
    """Seconds of the loop while the variant is active: the best of some runs, after one that pays
    for first use, so that what else the machine does is left out."""
    gc.collect()
    with variant():
        loop()
        return min(seconds(loop, device) for _ in range(RUNS))


def seconds(loop: Loop, device: str) -> float:
    """Wall time on a GPU, with one wait at the ends; else processor time."""
    if device == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        loop()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    loop()
    return time.process_time() - start


# What the level `modules` adds to the profiler, each to be turned on and off while it runs.
PARTS: dict[str, Callable[[Capture, bool], None]] = {
    "modules": lambda c, on: c._state_changed(State.RECORDING if on else State.WAITING),
    "its ranges alone": lambda c, on: c._ranges.record_ranges(on) if c._ranges else None,
    "its stack samples alone": lambda c, on: c._sample_stacks(on),
    "its lines of waits and attention alone": lambda c, on: c._pause(not on),
}


def within_one_capture(name: str, step: Loop, device: str, blocks: int) -> None:
    """Blocks of steps with and without the parts, under one profiler: a drift of the machine that
    is slower than some steps falls out of the ratio."""
    print(f"\n{name}, in turn under one profiler: {blocks} pairs of blocks of {len(COUNTED)} steps")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.perf_counter if device == "cuda" else time.process_time
    for part, turn in PARTS.items():
        gc.collect()
        seen: list[list[float]] = [[], []]
        with trace(detail="modules") as t:
            capture = t._capture
            assert capture is not None
            PARTS["modules"](capture, False)
            for block in range(2 * blocks):
                on = block % 2 == 1
                turn(capture, on)
                seen[on].append(block_seconds(step, wait, clock))
            PARTS["modules"](capture, True)
        ratios = [b / a for a, b in zip(*seen, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {part:40} {middle:.3f} ({low:.3f}-{high:.3f}) of the profiler alone")
    sys.stdout.flush()


# Of the steps of a block: the first ones pay for what the interpreter forgot with the switch.
COUNTED = range(3, 9)


def block_seconds(step: Loop, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    begin = 0.0
    for number in range(COUNTED.stop):
        if number == COUNTED.start:
            wait()
            begin = clock()
        step()
    wait()
    return clock() - begin


def chosen(only: list[str]) -> list[str]:
    """The variants asked for, and what they are compared with, in the order of all."""
    wanted = {"none", *only, *(WANTED[label][0] for label in only if label in WANTED)}
    return [label for label in VARIANTS if not only or label in wanted]


def compare(name: str, loop: Loop, rounds: int, device: str, labels: list[str]) -> None:
    """Print the ratios of these variants on one loop."""
    for label in labels:  # the first profile of a process is slow
        measure(loop, VARIANTS[label], device)
    times: dict[str, list[float]] = {label: [] for label in labels}
    for index in range(rounds):
        for label in labels[index % len(labels) :] + labels[: index % len(labels)]:
            times[label].append(measure(loop, VARIANTS[label], device))
    print(f"\n{name}: {rounds} rounds, median of the ratios (quartiles; ratio of the fastest)")
    print(f"  {'':30}  {'to none':29}  to its reference")
    for label in labels:
        print(f"  {label:30}  {ratio_text(times, label, 'none'):29}  {reference(times, label)}")
    sys.stdout.flush()


def reference(times: dict[str, list[float]], label: str) -> str:
    if label not in WANTED:
        return ""
    base, wanted = WANTED[label]
    return f"{ratio_text(times, label, base)} of {base}, wanted at most {wanted}"


def ratio_text(times: dict[str, list[float]], label: str, base: str) -> str:
    ratios = [ours / theirs for ours, theirs in zip(times[label], times[base], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    fastest = min(times[label]) / min(times[base])
    return f"{middle:.3f} ({low:.3f}-{high:.3f}; {fastest:.3f})"


def main() -> None:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="of the model on the CPU")
    parser.add_argument("--layers", type=int, default=8, help="of the model on the CPU")
    parser.add_argument("--only", nargs="+", default=[], choices=list(VARIANTS), metavar="LEVEL")
    parser.add_argument("--blocks", type=int, default=20, help="pairs, under one profiler")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="one of them; else each there is")
    args = parser.parse_args()
    labels = chosen(args.only)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    if args.device != "cuda":
        name = f"CPU, decode of a Llama of width {args.width} with {args.layers} layers, 1 thread"
        model = make_model(args.width, args.layers, "cpu")
        within_one_capture(name, one_step(model, "cpu"), "cpu", args.blocks)
        compare(name, decode_loop(model, args.steps, "cpu"), args.rounds, "cpu", labels)
    if not torch.cuda.is_available():
        print("\nno GPU here: the eager 8B decode and the graph replay were not measured")
        return
    if args.device != "cpu":
        compare_on_gpu(args.steps, args.rounds, args.blocks, labels)


def compare_on_gpu(steps: int, rounds: int, blocks: int, labels: list[str]) -> None:
    """An 8B-shaped model: eager, and replayed as a CUDA graph."""
    few = make_model(4096, 8, "cuda")
    name = "GPU, eager decode of 8 layers of an 8B-shaped model"
    within_one_capture(name, one_step(few, "cuda"), "cuda", blocks)
    model = make_model(4096, 32, "cuda")
    name = "GPU, eager decode of an 8B-shaped model"
    compare(name, decode_loop(model, steps, "cuda"), rounds, "cuda", labels)
    name = "GPU, replay of a CUDA graph of it"
    compare(name, graph_loop(model, steps), rounds, "cuda", labels)


if __name__ == "__main__":
    main()
