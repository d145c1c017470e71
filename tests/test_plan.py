"""`tracer plan`: the arithmetic that people check by hand, and what they see."""

from __future__ import annotations

import argparse
import csv
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.plan_configs import LLAMA_8B, LLAMA_70B, PUBLISHED
from tracer.commands import plan as command
from tracer.commands import plan_making
from tracer.errors import InputError, UsageError
from tracer.sizing.config import Config, read_config
from tracer.sizing.gpus import Gpu, gpu_table, match_gpu, named_gpu
from tracer.sizing.limits import attention_flops, weights_read
from tracer.sizing.memory import PRECISIONS, longest_context, token_bytes
from tracer.sizing.planning import make_plan
from tracer.sizing.results import Choice, DevicePlan, Plan
from tracer.sizing.shape import ModelShape
from tracer.sizing.sources import published_precision, shape_of
from tracer.sizing.training import TrainingChoice, gpus_when_sharded, training_memory


def shape(values: dict[str, Any]) -> ModelShape:
    return shape_of(Config(values), basis="formula")


def device(values: dict[str, Any], gpu: str | Gpu, **choice: Any) -> DevicePlan:
    found = named_gpu(gpu) if isinstance(gpu, str) else gpu
    return make_plan(shape(values), [found], Choice(**choice)).devices[0]


def floor_ns(found: DevicePlan) -> float:
    return found.decode[0].limit.floor_ns.value


def test_llama_8b_weights_and_cache() -> None:
    plan = make_plan(shape(LLAMA_8B), [], Choice())
    assert plan.model.parameters == 8_030_261_248
    assert plan.weights["bf16"].value == 16_060_522_496
    assert plan.kv_cache is not None
    assert plan.kv_cache.bytes_per_token.value == 131_072


def test_llama_8b_on_24_gb_leaves_32_000_tokens() -> None:
    inference = device(LLAMA_8B, "RTX 4090").inference
    assert inference.fits
    assert inference.kv_tokens is not None
    assert inference.kv_tokens.value == pytest.approx(32_000, rel=0.01)
    parts = inference.weights_bytes.value + inference.overhead_bytes.value
    assert parts + inference.kv_room_bytes.value == inference.usable_bytes.value == 21.6e9


@pytest.mark.parametrize(
    ("gpu", "bandwidth", "milliseconds"),
    [("H100", None, 4.79), ("H200", None, 3.35), ("H200", 4.27e12, 3.76)],
)
def test_decode_floor_of_llama_8b(gpu: str, bandwidth: float | None, milliseconds: float) -> None:
    known = named_gpu(gpu)
    rate = bandwidth or known.bandwidth_bytes_per_s
    found = device(LLAMA_8B, Gpu(gpu, known.memory_bytes, rate))
    assert floor_ns(found) / 1e6 == pytest.approx(milliseconds, abs=0.005)


def test_the_floor_also_at_the_measured_copy_and_without_the_embedding() -> None:
    found = device(LLAMA_8B, "H200")
    assert found.decode_floor_at_measured_copy_ns is not None
    assert found.decode_floor_at_measured_copy_ns.value / 1e6 == pytest.approx(3.76, abs=0.005)
    without = found.decode_floor_without_input_embedding_ns
    assert without is not None
    table = 128_256 * 4096 * 2
    assert without.value == pytest.approx((16_060_522_496 - table) / 4800, abs=1)


def test_training_of_llama_8b() -> None:
    on_80 = {fit.regime: fit.fits for fit in device(LLAMA_8B, "H100").training}
    on_24 = {fit.regime: fit.fits for fit in device(LLAMA_8B, "4090").training}
    assert on_80 == {"full": False, "lora": True, "qlora": True}
    assert on_24["full"] is False
    assert on_24["qlora"] is True


def test_full_fine_tuning_is_sixteen_bytes_a_parameter() -> None:
    memory = training_memory(shape(LLAMA_8B), "full", TrainingChoice())
    states = sum(
        int(part.value)
        for part in (memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes)
    )
    assert states == 16 * 8_030_261_248
    light = training_memory(shape(LLAMA_8B), "full", TrainingChoice(master_weights=False))
    assert light.weights_bytes.value + light.optimizer_bytes.value == 6 * 8_030_261_248


def test_lora_adapters_of_llama_8b() -> None:
    """Rank 16 on all projections: 41.9 million, as peft counts them."""
    memory = training_memory(shape(LLAMA_8B), "lora", TrainingChoice(lora_rank=16))
    sides = 4096 * 2 + 2 * (4096 + 1024) + 4096 * 2 + 3 * (4096 + 14336)
    assert memory.trainable_parameters.value == 16 * 32 * sides == 41_943_040


def test_sharding_finds_the_smallest_number_of_gpus() -> None:
    memory = training_memory(shape(LLAMA_8B), "full", TrainingChoice())
    room = 72e9
    count = gpus_when_sharded(memory, room)
    assert count == 2
    own = memory.activations_bytes.value + memory.overhead_bytes.value
    assert gpus_when_sharded(memory, own) is None


def test_llama_70b_on_four_gpus() -> None:
    plan = make_plan(shape(LLAMA_70B), [named_gpu("H100")], Choice(), splits=[(4, 1), (2, 2)])
    reduces = plan.splits[0].collectives[0]
    assert (reduces.op, reduces.count.value) == ("all_reduce", 160)
    assert reduces.decode_bytes_each.value == 8192 * 2
    assert reduces.prefill_bytes_each.value == 2048 * 8192 * 2
    assert [entry.op for entry in plan.splits[1].collectives] == [
        "all_reduce",
        "all_gather",
        "send_recv",
    ]
    one, four = plan.devices[0].inference, plan.devices[0].splits[0]
    assert not one.fits
    assert four.fits
    assert plan.splits[0].kv_bytes_per_token_per_gpu.value * 4 == 327_680


def test_a_split_needs_heads_that_divide() -> None:
    plan = make_plan(shape(PUBLISHED["qwen2.5-0.5b"]), [named_gpu("L4")], Choice(), splits=[(4, 1)])
    assert plan.splits[0].obstacle == "14 attention heads do not divide by 4"
    assert not plan.devices[0].splits[0].fits


def test_latent_cache_is_whole_on_every_rank() -> None:
    plan = make_plan(shape(PUBLISHED["deepseek-v3"]), [], Choice(), splits=[(8, 1)])
    assert plan.kv_cache is not None
    assert plan.kv_cache.bytes_per_token.value == 61 * (512 + 64) * 2
    assert plan.splits[0].kv_bytes_per_token_per_gpu.value == 61 * (512 + 64) * 2


def test_ridge_point_of_an_h100() -> None:
    found = device(LLAMA_8B, "H100", weights="fp8")
    assert found.ridge_fp8_flops_per_byte is not None
    assert found.ridge_fp8_flops_per_byte.value == pytest.approx(590, abs=1)
    half = device(LLAMA_8B, "H100")
    assert half.ridge_batch is not None
    assert half.ridge_batch.value == 296  # 295.2 FLOP a byte, 2 FLOP and 2 bytes a parameter


def test_a_step_at_the_ridge_is_bound_by_compute() -> None:
    found = device({**LLAMA_8B, "tie_word_embeddings": True}, "H100", batch=400, context=1)
    assert [point.limit.bound for point in found.decode] == [
        "memory",
        "memory",
        "memory",
        "memory",
        "compute",
    ]


def test_experts_are_read_as_the_batch_hits_them() -> None:
    mixtral = shape(PUBLISHED["mixtral-8x7b"])
    experts = mixtral.count("experts")
    one = weights_read(mixtral, PRECISIONS["bf16"], 1).value
    many = weights_read(mixtral, PRECISIONS["bf16"], 1000).value
    assert many == 2 * mixtral.parameters
    assert one == 2 * (mixtral.parameters - experts) + 2 * experts * 2 // 8


def test_windows_stop_growing() -> None:
    gemma = shape(PUBLISHED["gemma-2-9b"])
    plan = make_plan(gemma, [], Choice())
    assert plan.kv_cache is not None
    near = plan.kv_cache.bytes_per_token.value
    assert plan.kv_cache.bytes_per_token_beyond_windows.value * 2 == near
    at = {point.tokens: point.bytes for point in plan.kv_cache.by_length}
    assert at[8192] == near * 4096 + near // 2 * 4096


def test_longest_context_is_the_last_that_fits() -> None:
    llama = shape(LLAMA_8B)
    assert longest_context(llama, 10 * 131_072, 2) == 10
    assert longest_context(llama, 10 * 131_072 - 1, 2) == 9
    assert longest_context(shape(PUBLISHED["mamba-2.8b"]), 1e9, 2) is None
    assert longest_context(shape(PUBLISHED["mamba-2.8b"]), 1e6, 2) == 0


def test_attention_flops_by_counting_pairs() -> None:
    llama = shape(LLAMA_8B)
    prompt = 37
    pairs = sum(range(1, prompt + 1))
    assert attention_flops(llama, prompt, prompt) == 4 * 4096 * 32 * pairs
    mistral = shape({**PUBLISHED["mistral-7b-v0.1"], "sliding_window": 10})
    windowed = sum(min(token, 10) for token in range(1, prompt + 1))
    assert attention_flops(mistral, prompt, prompt) == 4 * 4096 * 32 * windowed


def test_quantized_weights_leave_embedding_head_and_norms() -> None:
    plan = make_plan(shape(LLAMA_8B), [], Choice())
    rest = 2 * 128_256 * 4096 + 65 * 4096
    inside = 8_030_261_248 - rest
    assert plan.weights["fp8"].value == inside + 2 * rest
    assert plan.weights["nf4"].value == int(inside * (0.5 + 1 / 64 + 4 / 16384) + 2 * rest)


@pytest.mark.parametrize(
    ("extra", "precision"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float32"}, "fp32"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "nf4"),
        ({}, "bf16"),
    ],
)
def test_precision_of_a_checkpoint(extra: dict[str, Any], precision: str) -> None:
    values = {key: value for key, value in LLAMA_8B.items() if key != "torch_dtype"}
    assert published_precision(Config({**values, **extra})) == precision


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM2e", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H100 64GB HBM2", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H20-3e", None),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A100X", None),
        ("GRID A100-10C", None),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", None),
        ("NVIDIA A10-24Q", None),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"),
        ("Tesla V100-SXM2-16GB", "V100 SXM 16GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("Tesla V100-SXM3-32GB", None),
        ("Tesla V100S-PCIE-32GB", None),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S-48Q", None),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X", "MI250X GCD"),
        ("AMD Instinct MI250X / MI250", None),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI210", "MI210"),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_names_that_drivers_give(name: str, found: str | None) -> None:
    gpu = match_gpu(name)
    assert (gpu.name if gpu else None) == found


@pytest.mark.parametrize("gpu", gpu_table(), ids=lambda gpu: gpu.name)
def test_a_gpu_of_the_table_is_found_by_its_name(gpu: Gpu) -> None:
    assert match_gpu(gpu.name) == match_gpu(gpu.name.lower().replace(" ", "")) == gpu
    assert match_gpu(f"AMD Instinct {gpu.name}") == match_gpu(f"NVIDIA {gpu.name}") == gpu
    assert match_gpu(f"NVIDIA {gpu.name} Laptop GPU") is None
    assert gpu.memory_bytes and gpu.bandwidth_bytes_per_s
    # Dense: no GPU multiplies in 8 bit more than twice as fast as in 16.
    assert (gpu.fp8_flops_per_s or 0) <= 2.03 * (gpu.bf16_flops_per_s or 0)


def test_each_row_of_the_table_names_where_it_is_from() -> None:
    text = files("tracer.sizing").joinpath("gpus.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(gpu_table()) > 30
    assert all("https://" in row["source"] and None not in row for row in rows)
    names = [name for row in rows for name in (row["name"], *row["aliases"].split(";")) if name]
    assert len({name.lower().replace(" ", "") for name in names}) == len(names)


def test_a_gpu_without_a_peak_rate_gets_the_floor_of_its_memory_alone() -> None:
    found = device(LLAMA_8B, "V100")
    assert found.prefill is None
    assert found.decode[0].limit.bound == "memory"
    assert floor_ns(found) == pytest.approx(16_060_522_496 / 900, abs=1)


def test_rates_of_thousands_are_written_out(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    assert "B300: 270 GB, 7,700 GB/s, 2,250 TFLOP/s bf16, 4,500 fp8" in _run(
        capsys, llama, "--gpu", "B300"
    )


def test_a_name_that_is_not_in_the_table_gets_a_near_one() -> None:
    with pytest.raises(UsageError, match=r"B301: not in the GPU table \(did you mean B300\?\)"):
        named_gpu("B301")


def test_every_figure_has_a_formula(tmp_path: Path) -> None:
    document = plan_making.plan_json(_plan(LLAMA_8B, "H100"), explain=True)
    formulas = document["formulas"]
    assert formulas["kv_cache.bytes_per_token"] == "32 layers x 2 x 8 KV heads x 128 x 2 bytes"
    assert formulas["weights.bf16"] == "8,030,261,248 parameters x 2 bytes"
    assert all(formulas.values())
    assert len(formulas) > 50


def _plan(values: dict[str, Any], gpu: str) -> Plan:
    return make_plan(shape(values), [named_gpu(gpu)], Choice(), name="model")


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(argv)) == 0
    return capsys.readouterr().out


@pytest.fixture
def llama(tmp_path: Path) -> str:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(folder)


def test_the_first_line_is_the_answer(
    capsys: pytest.CaptureFixture[str], llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    first = _run(capsys, llama, "--gpu", "4090").splitlines()[0]
    assert first == (
        "Llama-3.1-8B (8.03B parameters) bf16 fits one 24 GB GPU (RTX 4090) with 31,792 tokens "
        "of KV cache; a decode step takes at least 15.9 ms."
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_stay_within_the_terminal(
    capsys: pytest.CaptureFixture[str], llama: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for options in (["--gpu", "H100", "--tp", "4"], ["--gpu", "L4", "--explain"], []):
        text = _run(capsys, llama, *options)
        assert max(map(len, text.splitlines())) <= columns
        assert "\x1b" not in text


def test_json_is_stable(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    document = json.loads(_run(capsys, llama, "--gpu", "H100", "--json"))
    assert document["schema"] == "tracer.plan/1"
    assert document["model"]["parameters"] == 8_030_261_248
    assert document["model"]["basis"] == "formula"
    assert document["weights"]["bf16"] == 16_060_522_496
    assert document["kv_cache"]["bytes_per_token"] == 131_072
    (found,) = document["devices"]
    assert found["inference"]["fits"] is True
    assert found["decode"][0]["limit"]["floor_ns"] == 4_794_186
    assert {fit["regime"]: fit["fits"] for fit in found["training"]} == {
        "full": False,
        "lora": True,
        "qlora": True,
    }


def test_without_a_gpu_the_table_is_compared(
    capsys: pytest.CaptureFixture[str], llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_making, "gpu_here", lambda: None)
    text = _run(capsys, llama)
    assert all(gpu.name in text for gpu in gpu_table())
    known = len(gpu_table())
    assert f"fits {known - 2} of the {known} GPUs, from 24 GB." in " ".join(text.split())


def test_the_gpu_here_is_the_one_the_driver_names(tmp_path: Path) -> None:
    assert plan_making.gpu_here(tmp_path) is None
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    found = plan_making.gpu_here(tmp_path)
    assert found is not None
    assert found.name == "H200"


def test_a_model_told_by_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
    options = ["--params", "8e9", *sizes, "--gpu-memory", "24GB", "--bandwidth", "3.35TB/s"]
    document = json.loads(_run(capsys, *options, "--json"))
    assert document["kv_cache"]["bytes_per_token"] == 131_072
    assert document["devices"][0]["decode"][0]["limit"]["floor_ns"] == round(16e9 / 3350)
    assert document["model"]["basis"] == "the numbers given"


def test_what_was_not_told_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(_run(capsys, "--params", "8B", "--json", "--gpu", "H100"))
    assert document["kv_cache"] is None
    assert document["devices"][0]["inference"]["kv_tokens"] is None
    assert document["training"] == []


def test_sizes_alone_make_a_llama(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --intermediate 14336 --vocab 128256"
    document = json.loads(_run(capsys, *sizes.split(), "--json"))
    assert document["model"]["parameters"] == 8_030_261_248


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ("[1]", "no `model_type`"),
        ('{"model_type": "llama", "hidden_size": "x"}', "`hidden_size` is 'x'"),
    ],
)
def test_broken_configs_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=message):
        shape_of(read_config(file), basis="formula")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--layers", "32"],
        ["x.json", "--params", "8e9"],
        ["--params", "8e9", "--gpu", "GTX 1080"],
        ["--params", "8e9", "--gpus", "8", "--tp", "4"],
        ["--params", "8e9", "--experts", "8"],
        ["--params", "8e9", "--gpu", "H100", "--measure"],
    ],
)
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(UsageError):
        command.run(parser.parse_args(argv))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8e9", 8e9),
        ("8B", 8e9),
        ("3.35TB/s", 3.35e12),
        ("989TFLOPS", 989e12),
        ("24GiB", 24 * 2**30),
    ],
)
def test_quantities(text: str, value: float) -> None:
    assert command.quantity(text) == value


@pytest.mark.parametrize("text", ["", "GB", "8 apples", "1e999x", "-3"])
def test_wrong_quantities(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        command.quantity(text)


def test_measuring_a_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("tracer.sizing.measure._CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr("tracer.sizing.measure._CPU_MATMUL", 64)
    document = json.loads(_run(capsys, "--params", "8e9", "--measure", "--json"))
    found = document["devices"][0]["gpu"]
    assert found["kind"] == "CPU"
    assert found["bandwidth_bytes_per_s"] > 0
    assert found["bf16_flops_per_s"] > 0
    assert found["basis"].startswith("measured")


def test_a_bytes_per_token_formula_for_every_kind_of_cache() -> None:
    assert token_bytes(shape(PUBLISHED["deepseek-v3"]), 2).formula == (
        "61 layers x (512 latent + 64 rotary) x 2 bytes"
    )
    assert token_bytes(shape(PUBLISHED["gemma-2-9b"]), 1).formula == (
        "(21 layers x 2 x 8 KV heads x 256 + 21 layers x 2 x 8 KV heads x 256) x 1 bytes"
    )
