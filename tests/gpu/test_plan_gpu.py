"""`tracer plan` and `tracer doctor` against what a GPU measures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tracer.commands import plan as plan_command
from tracer.environment.diagnosis import Diagnosis, examine
from tracer.sizing.gpus import Gpu, match_gpu
from tracer.sizing.limits import decode_limit
from tracer.sizing.measure import measure_device
from tracer.sizing.memory import (
    FIXED_OVERHEAD_BYTES,
    PRECISIONS,
    transformers_cache_bytes,
    weights_bytes,
)
from tracer.sizing.sources import shape_of
from tracer.sizing.training import TrainingChoice, training_memory

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # transformers renames arguments between versions, and warns of the old names.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TOKENS = 1024
# Llama 3.2 1B, untied so that the embedding is only gathered.
ONE_BILLION = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def measured() -> Gpu:
    return measure_device()


@pytest.fixture
def model() -> Iterator[Any]:
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**ONE_BILLION)
    with torch.device("cuda"):
        built = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    yield built
    del built
    torch.cuda.empty_cache()


def test_the_measured_rates_are_near_the_datasheet(measured: Gpu) -> None:
    known = match_gpu(measured.name)
    if known is None or known.bandwidth_bytes_per_s is None or known.bf16_flops_per_s is None:
        pytest.skip(f"{measured.name} is not in the table")
    assert measured.bandwidth_bytes_per_s is not None
    assert measured.bf16_flops_per_s is not None
    assert 0.6 < measured.bandwidth_bytes_per_s / known.bandwidth_bytes_per_s < 1.0
    assert 0.4 < measured.bf16_flops_per_s / known.bf16_flops_per_s < 1.05
    assert measured.memory_bytes is not None
    assert known.memory_bytes is not None
    assert measured.memory_bytes >= known.memory_bytes * 0.98


def test_plan_measure(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    plan_command.add_arguments(parser)
    sizes = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
    assert (
        plan_command.run(parser.parse_args(["--params", "8e9", *sizes, "--measure", "--json"])) == 0
    )
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["gpu"]["kind"] == "GPU"
    assert device["gpu"]["basis"].startswith("measured")
    floor_ns = device["decode"][0]["limit"]["floor_ns"]
    assert floor_ns == pytest.approx(16e9 / device["gpu"]["bandwidth_bytes_per_s"] * 1e9, rel=1e-6)


def test_weights_take_what_the_arithmetic_says(model: Any) -> None:
    expected = int(weights_bytes(shape_of(model), PRECISIONS["bf16"]).value)
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    assert held == expected
    # The allocator rounds each tensor up to 512 bytes; rotary buffers and the workspace of cuBLAS
    # (tens of MiB) come on top.
    assert expected <= torch.cuda.memory_allocated() < expected * 1.01 + (64 << 20)


def _prefilled(model: Any) -> Any:
    tokens = torch.randint(0, 1000, (1, TOKENS), device="cuda")
    with torch.no_grad():
        output = model(tokens, use_cache=True, logits_to_keep=1)
    cache = getattr(output, "cache", None)
    return cache if cache is not None else output.past_key_values


def test_the_cache_takes_what_the_arithmetic_says(model: Any) -> None:
    cache = _prefilled(model.eval())
    kept = sum(
        tensor.numel() * tensor.element_size()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )
    assert kept == transformers_cache_bytes(shape_of(model), TOKENS, 2)


def test_reading_every_weight_once_is_near_the_floor(model: Any, measured: Gpu) -> None:
    """All matrices of the model times one token, captured, so that the host does not count: no
    faster than the bytes over the datasheet's rate, and no slower than twice that."""
    shape = shape_of(model)
    known = match_gpu(measured.name) or measured
    limit = decode_limit(shape, known, PRECISIONS["bf16"], batch=1, context=0, cache_dtype_bytes=2)
    assert limit is not None
    assert known.bandwidth_bytes_per_s is not None
    read = int(limit.weights_read_bytes.value) - 2 * shape.gathered_parameters
    floor_ns = read / known.bandwidth_bytes_per_s * 1e9
    assert 0.97 * floor_ns < _matrices_ns(model) < 3 * floor_ns


def _matrices_ns(model: Any) -> float:
    """Nanoseconds of one pass through the weights, the best of a few replays."""
    matrices = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    inputs = {
        width: torch.ones(1, width, dtype=torch.bfloat16, device="cuda")
        for width in {matrix.shape[1] for matrix in matrices}
    }

    def run() -> None:
        for matrix in matrices:
            torch.nn.functional.linear(inputs[matrix.shape[1]], matrix)

    with torch.no_grad():
        graph = _captured(run)
    best = float("inf")
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e6)
    return best


def _captured(run: Callable[[], None]) -> Any:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_memory_is_near_the_estimate(model: Any, checkpointing: bool) -> None:
    """Full fine-tuning without a master copy, AdamW in bf16, one sequence: the peak of torch
    against the parts of the estimate, all but the process's own overhead."""
    choice = TrainingChoice(
        master_weights=False, sequence=2048, batch=1, checkpointing=checkpointing
    )
    expected = training_memory(shape_of(model), "full", choice)
    estimate = int(expected.total_bytes.value) - int(expected.overhead_bytes.value)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(0, 1000, (1, 2048), device="cuda")
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated()
    assert peak == pytest.approx(estimate, rel=0.3)


def test_the_context_of_a_process_fits_the_stated_overhead() -> None:
    pynvml = pytest.importorskip("pynvml")
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    (left @ left).sum().item()
    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    pynvml.nvmlShutdown()
    assert used - torch.cuda.memory_reserved() < FIXED_OVERHEAD_BYTES + 1_000_000_000


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return examine(timeout_s=120)


def test_doctor_reaches_the_gpu(diagnosis: Diagnosis) -> None:
    rows = {row.rule: row for row in diagnosis.rows}
    assert rows["cuda"].status == "ok", [row.found for row in diagnosis.with_status("error")]
    assert rows["device"].status == "ok"
    assert rows["wheel.architectures"].status == "ok"
    assert "a kernel ran" in rows["wheel.architectures"].found
    assert rows["profiler"].status == "ok"
    assert "device rows" in rows["profiler"].found
    assert rows["driver.version"].status in ("ok", "warning")


def test_doctor_runs_precisions_and_attention(diagnosis: Diagnosis) -> None:
    rows = {row.rule: row for row in diagnosis.rows}
    capability = torch.cuda.get_device_capability()
    assert rows["precision.bf16"].status == ("ok" if capability >= (8, 0) else "warning")
    if capability >= (8, 9):
        assert rows["precision.fp8"].found == "a fp8 matrix multiplication ran"
    if capability >= (8, 0):
        assert "flash" in rows["attention"].found.partition(" ran ")[0]


def test_doctor_and_torch_agree_on_the_device(diagnosis: Diagnosis) -> None:
    rows = {row.rule: row for row in diagnosis.rows}
    properties = torch.cuda.get_device_properties(0)
    assert properties.name in rows["device"].found
    assert f"capability {properties.major}.{properties.minor}" in rows["device"].found
