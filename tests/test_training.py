"""Training steps: their parts, recomputation, adapters, sharding; by hand, live on a CPU, and on
the recordings."""

from __future__ import annotations

import warnings
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.live_models import quiet
from tests.make_traces import TraceMaker
from tests.recordings import analysis_of
from tracer import trace
from tracer.analysis import BUCKETS, Analysis, Phase
from tracer.analyzers import analyze


def parts(analysis: Analysis) -> dict[str, Phase]:
    """The parts of the training steps by name."""
    return {phase.name: phase for phase in analysis.phases if phase.part_of}


def whole(analysis: Analysis) -> Phase:
    return next(phase for phase in analysis.phases if phase.name == "training")


def test_the_parts_of_a_step_add_up_to_it() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    maker.launch("f", start=10, run=(20, 40), operator="aten::mm")
    maker.operator("autograd::engine::evaluate_function: MmBackward0", 50, 60)
    maker.launch("b", start=55, run=(60, 100), operator="aten::mm")
    maker.launch("clip", start=120, run=(125, 130), operator="aten::norm")
    maker.annotation("Optimizer.step#AdamW.step", 140, 50)
    maker.launch("o", start=150, run=(155, 180), operator="aten::_foreach_add_")
    analysis = analyze(maker.build())
    found = {name: phase.wall_ns for name, phase in parts(analysis).items()}
    # The gap before the first work of a part is its own; clipping serves the optimizer.
    assert found == {"forward": 40_000, "backward": 60_000, "optimizer": 100_000}
    assert sum(found.values()) == whole(analysis).wall_ns
    overhead = (parts(analysis)["backward"].groups or {})["overhead"]
    assert overhead == 20_000


def test_gradients_that_nothing_hides_are_a_part_of_their_own() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    maker.launch("f", start=10, run=(20, 40), operator="aten::mm")
    maker.operator("autograd::engine::evaluate_function: MmBackward0", 45, 60)
    maker.launch("b", start=50, run=(60, 100), operator="aten::mm")
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    maker.launch(reduce, start=70, run=(80, 140), operator="nccl:all_reduce", stream=9)
    maker.annotation("Optimizer.step#AdamW.step", 145, 50)
    maker.launch("o", start=150, run=(155, 180), operator="aten::_foreach_add_")
    found = {name: phase.wall_ns for name, phase in parts(analyze(maker.build())).items()}
    assert found["gradient_communication"] == 40_000
    assert sum(found.values()) == 200_000


def prepared(call: float, prepares: bool = True) -> dict[str, int]:
    """The parts of a step in which the model is called at this time; before it a copy runs."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    if prepares:
        maker.launch("copy", start=5, run=(30, 40), operator="aten::copy_")
    maker.module("", "Model", call, 49 - call)
    maker.launch("f", start=45, run=(60, 70), operator="aten::mm")
    maker.operator("autograd::engine::evaluate_function: MmBackward0", 75, 20)
    maker.launch("b", start=80, run=(90, 200), operator="aten::mm")
    analysis = analyze(maker.build())
    found = {name: phase.wall_ns for name, phase in parts(analysis).items()}
    assert sum(found.values()) == whole(analysis).wall_ns
    return found


def test_what_comes_before_the_model_is_called_prepares_the_forward_pass() -> None:
    rest = {"backward": 130_000}
    # The idle in which the model is called is shared: the host is at work in both.
    assert prepared(44) == {"preparation": 44_000, "forward": 26_000, **rest}
    assert prepared(44, prepares=False) == {"preparation": 44_000, "forward": 26_000, **rest}
    # A copy that the device gets to after the call still prepares.
    assert prepared(20) == {"preparation": 40_000, "forward": 30_000, **rest}
    assert prepared(2, prepares=False) == {"forward": 70_000, **rest}


def test_each_accumulated_pass_is_prepared() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    for begin in (0, 100):
        maker.module("", "Model", begin + 30, 15)
        maker.launch("f", start=begin + 35, run=(begin + 40, begin + 50), operator="aten::mm")
        maker.operator("autograd::engine::evaluate_function: MmBackward0", begin + 50, 40)
        maker.launch("b", start=begin + 55, run=(begin + 60, begin + 100), operator="aten::mm")
    found = {name: phase.wall_ns for name, phase in parts(analyze(maker.build())).items()}
    assert found == {"preparation": 60_000, "forward": 40_000, "backward": 100_000}


def test_weights_gathered_before_the_call_are_of_the_forward_pass() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    gather = "ncclDevKernel_AllGather_RING_LL"
    maker.launch(gather, start=12, run=(20, 40), operator="nccl:_all_gather_base", stream=9)
    maker.module("", "Model", 45, 10)
    maker.launch("f", start=50, run=(60, 70), operator="aten::mm")
    maker.operator("autograd::engine::evaluate_function: MmBackward0", 75, 20)
    maker.launch("b", start=80, run=(90, 200), operator="aten::mm")
    found = {name: phase.wall_ns for name, phase in parts(analyze(maker.build())).items()}
    assert found == {"preparation": 25_000, "forward": 45_000, "backward": 130_000}


def test_accumulated_passes_come_in_turns() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 300)
    for begin in (0, 100):
        maker.launch("f", start=begin + 5, run=(begin + 10, begin + 40), operator="aten::mm")
        maker.operator("autograd::engine::evaluate_function: MmBackward0", begin + 45, 50)
        maker.launch("b", start=begin + 50, run=(begin + 60, begin + 100), operator="aten::mm")
    maker.annotation("Optimizer.step#SGD.step", 210, 80)
    maker.launch("o", start=220, run=(230, 280), operator="aten::_foreach_add_")
    found = {name: phase.wall_ns for name, phase in parts(analyze(maker.build())).items()}
    assert found == {"forward": 80_000, "backward": 120_000, "optimizer": 100_000}


def test_a_checkpoint_computes_again_also_without_ranges() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    first = maker.operator("aten::mm", 9, 6)
    maker.side("sequences", first, sequence=3, forward_thread=0)
    maker.launch("f", start=10, run=(20, 40))
    maker.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", 50, 100)
    again = maker.operator("aten::mm", 59, 6)
    maker.side("sequences", again, sequence=7, forward_thread=0)
    maker.launch("f", start=60, run=(65, 80))
    maker.operator("aten::mm", 99, 6)
    maker.launch("b", start=100, run=(105, 130))
    analysis = analyze(maker.build())
    directions = analysis.work["direction"].tolist()
    assert directions == ["forward", "recompute", "backward"]
    assert list(parts(analysis)) == ["forward", "recompute", "backward"]


def test_fsdp_names_the_module_that_it_gathers() -> None:
    maker = TraceMaker()
    for layer in range(2):
        maker.module(f"model.layers.{layer}", "Layer", 100 * layer, 90)
    maker.module("model.layers.0.self_attn", "Attention", 5, 20)
    maker.annotation("FSDP::all_gather (model.layers.1)", 30, 20)
    gather = "ncclDevKernel_AllGather_RING_LL"
    maker.launch(gather, start=35, run=(40, 60), operator="nccl:_all_gather_base", stream=9)
    analysis = analyze(maker.build())
    assert analysis.modules["path"].iloc[int(analysis.work["module"].iloc[0])] == "model.layers.1"


def owners_of_sums(summed: list[bool]) -> list[str]:
    """Modules of the all-reduces that begin with the gradients of three modules, in order."""
    maker = TraceMaker()
    for place, path in enumerate(("head", "block", "emb")):
        maker.module(path, "Linear", 100 * place, 90)
        forward = maker.operator("aten::mm", 100 * place + 10, 50)
        maker.side("sequences", forward, sequence=place, forward_thread=0)
    for place, sums in enumerate(summed):
        at = 1000 + 100 * place
        engine = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        for name, length in ((engine, 90), ("torch::autograd::AccumulateGrad", 20)):
            row = maker.operator(name, at, length, tid=2)
            maker.side("sequences", row, sequence=place, forward_thread=1)
        if sums:
            maker.operator("c10d::allreduce_", at + 40, 10, tid=2)
            maker.annotation("gloo:all_reduce", at + 50, 30, tid=3)
    analysis = analyze(maker.build())
    paths = [*analysis.modules["path"].astype(str), ""]
    return [paths[row] for row in analysis.collectives["module"].tolist()]


def test_a_sum_of_a_bucket_of_gradients_is_of_no_module() -> None:
    assert owners_of_sums([False, True, True]) == ["", ""]


def test_a_sum_of_each_gradient_is_of_its_module() -> None:
    assert owners_of_sums([True, True, True]) == ["head", "block", "emb"]


@pytest.mark.parametrize("name", ["train_lora_4layer", "qlora_nf4_train"])
def test_recorded_training_is_told_apart(shared: Path, name: str) -> None:
    analysis = analysis_of(shared / "h200" / f"{name}.json.gz")
    found = parts(analysis)
    assert list(found) == ["forward", "backward", "optimizer"]
    assert sum(phase.wall_ns for phase in found.values()) == whole(analysis).wall_ns
    backward = analysis.work[analysis.work["direction"] == "backward"]
    assert len(backward) > 0
    assert ((backward["module"] >= 0) | (backward["operator"] >= 0)).all()


def test_dequantizing_counts_in_its_block_in_both_directions(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "qlora_nf4_train.json.gz")
    work, trace = analysis.work, analysis.trace
    names = trace.events["name"].astype(str).to_numpy()[work["event"].to_numpy()]
    dequantizes = ["kDequantizeBlockwise" in name for name in names]
    rows = work[dequantizes]
    groups = Counter(
        (str(direction), BUCKETS[bucket][0])
        for direction, bucket in zip(rows["direction"], rows["bucket"], strict=True)
    )
    assert set(groups) == {
        (direction, group)
        for direction in ("forward", "backward")
        for group in ("attention", "ffn")
    }
    assert {BUCKETS[bucket][1] for bucket in rows["bucket"]} == {"dequantize"}
    assert (rows["module"] >= 0).all()


# --- live --------------------------------------------------------------------------------------


def lora_training(*, reentrant: bool, accumulate: int = 2) -> Analysis:
    """Three steps of a LoRA model with checkpointing."""
    import peft
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model: Any = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        model.train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        ids = torch.arange(48).reshape(2, 24)
        with trace() as t:
            for _ in range(3):
                optimizer.zero_grad()
                for _ in range(accumulate):
                    model(input_ids=ids, labels=ids).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    return t.analysis


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("reentrant", [True, False])
def test_lora_training_with_checkpoints(reentrant: bool) -> None:
    analysis = lora_training(reentrant=reentrant)
    assert analysis.steps["phase"].tolist() == ["training"] * 3
    found = parts(analysis)
    assert list(found) == ["forward", "recompute", "backward", "optimizer"]
    assert sum(phase.wall_ns for phase in found.values()) == whole(analysis).wall_ns
    work = analysis.work
    backward = work[work["direction"].isin(["backward", "recompute"])]
    assert ((backward["module"] >= 0) | (backward["operator"] >= 0)).all()
    assert (backward["module"] >= 0).mean() >= 0.95


@pytest.mark.usefixtures("one_thread")
def test_adapters_and_the_frozen_base_are_told_apart() -> None:
    modules = lora_training(reentrant=False).modules.set_index("path")
    base = "base_model.model.model.layers.0.self_attn.q_proj"
    assert modules["role"][f"{base}.lora_A.default"] == "adapter"
    assert modules["role"][f"{base}.base_layer"] == "linear"
    times = modules["self_device_ns"]
    assert times[f"{base}.lora_A.default"] > 0
    assert times[f"{base}.lora_B.default"] > 0
    assert times[f"{base}.base_layer"] > 0


def test_layers_evaluated_in_a_fused_form_keep_their_parts_in_training() -> None:
    """torch runs the whole of its encoder layer at once where nothing learns: its attention runs in
    the layer itself then, which is no reason to call the layer attention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(*(deepcopy(layer) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 16, 32)
    with trace() as t:
        for _ in range(4):
            model.train()
            model(x).sum().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(x)
    analysis = t.analysis
    roles = dict(zip(analysis.modules["path"], analysis.modules["role"].astype(str), strict=True))
    assert {roles[f"{i}.linear1"] for i in range(2)} == {"ffn"}
    assert {roles[f"{i}.self_attn"] for i in range(2)} == {"attention"}
    assert {roles[str(i)] for i in range(2)} == {"layer"}
    group = np.array([BUCKETS[bucket][0] for bucket in analysis.work["bucket"]])
    names = analysis.trace.events["name"].astype(str).to_numpy()[analysis.work["event"]]
    assert set(group[names == "aten::_addmm_activation"]) == {"ffn"}
    assert "attention" in set(group[names == "aten::addmm"])
