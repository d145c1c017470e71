"""From the driver to the report of a step: walk the whole stack once, on a GPU or a CPU.

    pip install transformers peft
    python samples/stack_walk.py                 # a 1B Llama with random weights on a GPU
    python samples/stack_walk.py --size tiny     # the same in seconds, on any machine

Nothing is downloaded: weights and tokens are random.
"""

from __future__ import annotations

import argparse
import inspect
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tracer import trace
from tracer.environment.diagnosis import examine
from tracer.sizing.gpus import Gpu, match_gpu
from tracer.sizing.limits import decode_limit
from tracer.sizing.measure import measure_device
from tracer.sizing.memory import PRECISIONS, token_bytes, weights_bytes
from tracer.sizing.shape import ModelShape
from tracer.sizing.sources import shape_of
from tracer.sizing.training import TrainingChoice, training_memory

SIZES: dict[str, dict[str, int]] = {
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
    },
}
PROMPT, SEQUENCE = 128, 256


@dataclass
class Timed:
    """What one step took and how much memory it reached."""

    milliseconds: float = 0.0
    peak_bytes: int = 0


def main(argv: list[str] | None = None) -> int:
    """Walk; each section prints what it found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=tuple(SIZES), help="default: 1b on a GPU, else tiny")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: the GPU if there is one"
    )
    args = parser.parse_args(argv)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    size = args.size or ("1b" if device.type == "cuda" else "tiny")
    walk_environment()
    model = make_model(size, device)
    shape = walk_arithmetic(model)
    measured = walk_matmul(device)
    walk_decode(model, shape, measured)
    walk_lora(model, shape)
    return 0


def section(title: str) -> None:
    print(f"\n== {title}")


def walk_environment() -> None:
    section("1. Is the environment sound?")
    diagnosis = examine()
    for row in (*diagnosis.with_status("error"), *diagnosis.with_status("warning")):
        print(f"{row.status}: {row.subject}: {row.found}\n  -> {row.remedy}")
    counts = ", ".join(f"{diagnosis.count(s)} {s}" for s in ("ok", "warning", "error"))
    print(f"{counts} (the whole table: tracer doctor)")


def make_model(size: str, device: torch.device) -> Any:
    """A Llama with random weights in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SIZES[size], max_position_embeddings=4096)
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def walk_arithmetic(model: Any) -> ModelShape:
    section("2. The memory arithmetic")
    shape = shape_of(model)
    weights, cache = weights_bytes(shape, PRECISIONS["bf16"]), token_bytes(shape, 2)
    print(f"parameters   {shape.parameters:,}")
    print(f"weights      {weights.value:,} bytes = {weights.formula}")
    print(f"KV a token   {cache.value:,} bytes = {cache.formula}")
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"held         {held:,} bytes by the parameters of the model")
    return shape


def walk_matmul(device: torch.device) -> Gpu:
    section("3. A matmul and a copy against the peak")
    if device.type == "cuda" or not torch.cuda.is_available():
        measured = measure_device()
    else:
        measured = Gpu("here", None, None, kind="CPU")
    copy, flops = measured.bandwidth_bytes_per_s, measured.bf16_flops_per_s
    if copy is None or flops is None:
        print("not measured: the GPU here is not the device of this walk")
        return measured
    print(f"{measured.name}: {measured.basis}")
    print(f"copy {copy / 1e9:,.0f} GB/s, bf16 matmul {flops / 1e12:,.2f} TFLOP/s")
    known = match_gpu(measured.name)
    if known is not None and known.bf16_flops_per_s and known.bandwidth_bytes_per_s:
        matmul_ratio, copy_ratio = (
            flops / known.bf16_flops_per_s,
            copy / known.bandwidth_bytes_per_s,
        )
        print(f"of the datasheet: matmul {matmul_ratio:.0%}, copy {copy_ratio:.0%}")
    return measured


def walk_decode(model: Any, shape: ModelShape, measured: Gpu) -> None:
    section("4. One decode step")
    print(f"attention implementation: {model.config._attn_implementation}")
    step = decode_step(model)
    step()  # first-use work of the libraries stays out
    timed = Timed()
    with timing(timed, model.device):
        step()
    print(f"{timed.milliseconds:.2f} ms, peak memory {timed.peak_bytes / 1e9:.2f} GB")
    limit = decode_limit(
        shape, measured, PRECISIONS["bf16"], batch=1, context=PROMPT, cache_dtype_bytes=2
    )
    if limit is not None:
        floor_ms = limit.floor_ns.value / 1e6
        print(
            f"floor {floor_ms:.2f} ms: the step reaches {floor_ms / timed.milliseconds:.0%} of it"
        )
    with trace() as recording, recording.step("decode"):
        step()
    print(f"\n{recording.report}")


def decode_step(model: Any) -> Callable[[], None]:
    """A function that decodes one more token after a prompt."""
    vocabulary = model.config.vocab_size
    prompt = torch.randint(0, vocabulary, (1, PROMPT), device=model.device)
    with torch.no_grad():
        cache = kept(model(prompt, use_cache=True))
    token = torch.randint(0, vocabulary, (1, 1), device=model.device)
    name = "cache" if takes(model, "cache") else "past_key_values"

    def step() -> None:
        with torch.no_grad():
            model(token, use_cache=True, **{name: cache})

    return step


def takes(model: Any, argument: str) -> bool:
    """Whether this transformers names its cache so."""
    return argument in inspect.signature(model.forward).parameters


def kept(output: Any) -> Any:
    cache = getattr(output, "cache", None)
    return cache if cache is not None else output.past_key_values


def walk_lora(model: Any, shape: ModelShape) -> None:
    section("5. One LoRA training step")
    step, trained = lora_step(model)
    choice = TrainingChoice(sequence=SEQUENCE, checkpointing=False)
    expected = training_memory(shape, "lora", choice)
    print(f"trainable {trained:,} parameters; the arithmetic says ", end="")
    print(f"{expected.trainable_parameters.value:,} and {expected.total_bytes.value / 1e9:.2f} GB")
    step()
    timed = Timed()
    with timing(timed, model.device):
        step()
    print(f"{timed.milliseconds:.1f} ms, peak memory {timed.peak_bytes / 1e9:.2f} GB")
    with trace() as recording, recording.step("train"):
        step()
    print(f"\n{recording.report}")


def lora_step(model: Any) -> tuple[Callable[[], None], int]:
    """A function that trains adapters for one step, and how many parameters they have."""
    from peft import LoraConfig, get_peft_model

    adapted: Any = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")).train()
    adapters = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4)
    size = (1, SEQUENCE)
    tokens = torch.randint(0, model.config.vocab_size, size, device=model.device)

    def step() -> None:
        adapted(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, sum(p.numel() for p in adapters)


@contextmanager
def timing(timed: Timed, device: torch.device) -> Iterator[None]:
    """Time a block by CUDA events or the clock, with the peak of memory in it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        cuda: Any = torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        end.synchronize()
        timed.milliseconds = start.elapsed_time(end)
        timed.peak_bytes = torch.cuda.max_memory_allocated(device)
        return
    begun = time.perf_counter()
    yield
    timed.milliseconds = (time.perf_counter() - begun) * 1e3
    timed.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
