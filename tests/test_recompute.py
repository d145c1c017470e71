"""Rule training.recompute: what checkpointed activations cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.diff.compare import compare
from tracer.exporters.diff_findings import cost_changes
from tracer.exporters.diff_levels import Bucket
from tracer.exporters.diff_text import render_diff
from tracer.findings import Finding

NODE = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
DEVICE: dict[str, Any] = {"device": 0, "name": "NVIDIA H200", "memory_bytes": 150 * 10**9}


def checkpointed(again_us: float = 200, reserved: int | None = None, steps: int = 2) -> Analysis:
    """Steps of 1 ms: forward, what is computed again in the backward, backward, optimizer."""
    maker = TraceMaker()
    if reserved is not None:
        maker.side("devices", **DEVICE)
        allocation = maker.add("memory", "[memory]", 1, 0)
        sizes = {"allocated_bytes": reserved, "reserved_bytes": reserved}
        maker.side("memory", allocation, device_type=1, device=0, **sizes)
    for step in range(steps):
        at = 1000 * step
        rest = at + again_us
        maker.annotation(f"ProfilerStep#{step}", at, 790 + again_us)
        maker.module("layers.0", "Layer", at + 5, 20)
        maker.launch("gemm", start=at + 8, run=(at + 100, at + 300), operator="aten::mm")
        maker.operator(NODE, at + 40, 40)
        maker.module("layers.0", "Layer", at + 45, 10)
        end = at + 300 + again_us
        if again_us:
            maker.launch("gemm", start=at + 46, run=(at + 300, end), operator="aten::mm")
        maker.launch("gemm", start=at + 60, run=(end, rest + 600), operator="aten::mm")
        maker.annotation("Optimizer.step#SGD.step", at + 85, 10)
        maker.launch("adam", start=at + 88, run=(rest + 600, rest + 700), operator="aten::add_")
    return analyze(maker.build())


def found(analysis: Analysis) -> Finding:
    (finding,) = [f for f in analysis.findings if f.rule == "training.recompute"]
    return finding


def test_a_comparison_tells_of_the_part_that_went() -> None:
    diff = compare(checkpointed(steps=8), checkpointed(0, steps=8))
    assert re.search(r"recompute +200 us +- +-200 us", render_diff(diff, width=160))
    (promise,) = [row.prediction for row in cost_changes(diff) if row.prediction is not None]
    assert promise.about == Bucket("recompute", "", 200_000, 0)
    assert promise.predicted_gain_ns == promise.measured_gain_ns == 200_000


def test_what_is_computed_again_is_the_cost() -> None:
    finding = found(checkpointed())
    assert finding.cost_ns == finding.gain_ns == 2 * 200_000
    assert "200 us a step, 20% of the time" in finding.title
    assert finding.where.module == "layers.*"
    assert finding.steps == (0, 1)
    assert finding.severity == "info"
    assert "How much memory is free was not recorded" in finding.advice


def test_where_there_is_room_it_is_worth_a_change() -> None:
    roomy, tight = (found(checkpointed(reserved=gb * 10**9)) for gb in (30, 120))
    assert (roomy.severity, tight.severity) == ("warning", "info")
    assert "At most 30.0 of 150 GB were reserved: if the activations fit beside" in roomy.advice
    assert "At most 120.0 of 150 GB were reserved: if a smaller batch is no loss" in tight.advice


def test_little_is_not_told() -> None:
    analysis = checkpointed(again_us=10)
    assert not any(f.rule == "training.recompute" for f in analysis.findings)
    (check,) = [c for c in analysis.checks if c.rule == "training.recompute"]
    assert check.status == "clear"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_model_that_trains_here(checkpoints: bool) -> None:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)) for _ in range(4)]
    model = nn.ModuleList(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(64, 256, requires_grad=True)

    def run(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        again: Any = checkpoint(layer, x, use_reentrant=False) if checkpoints else layer(x)
        assert isinstance(again, torch.Tensor)
        return again

    with trace() as t:
        for _ in range(4):
            with t.step("train"):
                x = inputs
                for layer in layers:
                    x = run(layer, x)
                total: Any = x.sum()
                total.backward()
                optimizer.step()
    told = [f for f in t.analysis.findings if f.rule == "training.recompute"]
    assert len(told) == int(checkpoints)


def test_a_recording_with_checkpoints(shared: Path) -> None:
    finding = found(analysis_of(shared / "traces" / "ddp-resnet-act-ckpt-rccl-mi300x.json.gz"))
    assert finding.severity == "info"
    assert finding.gain_ns is not None and finding.gain_ns > 0
