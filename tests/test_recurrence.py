"""Layers whose recurrence runs operator by operator are told; fused ones and others are not."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.emulated import emulate
from tests.live_models import quiet
from tests.test_position_models import small
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.events import Trace
from tracer.findings import Finding

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = torch.randint(3, 128, (2, 24))


def recorded(kind: str, folder: Path) -> Trace:
    """Two forward passes of a small model, as a device would run them."""
    with quiet():
        made: Any = small(kind).float()
    return emulate(made, lambda: [made(TOKENS) for _ in range(2)], folder)


def found_in(analysis: Analysis) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.rule == "fallback.mixer"]


def status_of(analysis: Analysis) -> str:
    (check,) = [check for check in analysis.checks if check.rule == "fallback.mixer"]
    return check.status


@pytest.mark.parametrize(
    ("kind", "mixer"),
    [
        ("mamba", "MambaMixer"),
        ("recurrent_gemma", "RecurrentGemmaRecurrentBlock"),
        ("rwkv", "RwkvSelfAttention"),
        ("qwen3_next", "Qwen3NextGatedDeltaNet"),
    ],
)
def test_a_scan_in_pieces(kind: str, mixer: str, tmp_path: Path) -> None:
    analysis = analyze(recorded(kind, tmp_path))
    (found,) = found_in(analysis)
    assert f"the recurrence of {mixer} runs as" in found.title
    assert found.detail["kernels_per_call"] >= 24
    assert found.where.module is not None
    assert "*" in found.where.module
    assert found.cost_ns is not None
    assert found.gain_ns is not None
    assert 0 < found.gain_ns < found.cost_ns
    assert found.detail["idle_ns"] < found.cost_ns <= analysis.window.capacity_ns


@pytest.mark.parametrize("kind", ["llama", "lfm2", "fnet", "gpt2"])
def test_other_layers_have_none(kind: str, tmp_path: Path) -> None:
    analysis = analyze(recorded(kind, tmp_path))
    assert found_in(analysis) == []
    assert status_of(analysis) == "clear"


@pytest.mark.parametrize(
    "kernel",
    [
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32, 4> >(SSMParamsBase)",
        "_chunk_scan_fwd_kernel",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
    ],
)
def test_a_fused_scan_is_none(kernel: str, tmp_path: Path) -> None:
    recording = recorded("mamba", tmp_path)
    kernels = recording.events[recording.events["kind"] == "kernel"]
    usual = str(kernels["name"][kernels["name"].astype(str).str.contains("exp")].iloc[0])
    names = recording.events["name"].cat.rename_categories({usual: kernel})
    analysis = analyze(replace(recording, events=recording.events.assign(name=names)))
    assert found_in(analysis) == []
    assert status_of(analysis) == "clear"


def test_on_a_cpu_nothing_is_fused_and_what_the_framework_says_is_kept() -> None:
    with quiet():
        made: Any = small("mamba").float()
    model: nn.Module = made
    said = "`selective_scan_fn` is falling back since `mamba_ssm` is not installed"
    with torch.no_grad(), trace(model) as t:
        logging.getLogger("transformers").warning(said)
        model(TOKENS)
    assert found_in(t.analysis) == []
    assert status_of(t.analysis) == "not_checked"
    notes = [note.message for note in t.analysis.notes if note.rule == "trace.framework_said"]
    assert any(said in message for message in notes)
