"""The programs of samples/fallbacks: what each runs into, and how to run it inside a test."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tracer.analysis import Analysis
from tracer.findings import Finding

FOLDER = Path(__file__).resolve().parents[1] / "samples" / "fallbacks"


@dataclass(frozen=True)
class Sample:
    """A program, the rule that finds what it does, and the cause or backend in the detail."""

    name: str
    rule: str
    told: str = ""
    gpu: bool = False


SAMPLES = (
    Sample("attention_math", "fallback.attention", "math"),
    Sample("attention_by_hand", "fallback.attention", "unfused"),
    Sample("attention_weights", "fallback.attention", "unfused"),
    Sample("quantized_weights", "fallback.quantized_matmul"),
    Sample("experts_in_a_loop", "fallback.moe", "expert-loop"),
    Sample("attention_head_size", "fallback.attention", "math", gpu=True),
    Sample("attention_mask", "attention.backend", gpu=True),
    Sample("matmul_fp32", "fallback.matmul", "fp32", gpu=True),
    Sample("matmul_misaligned", "fallback.matmul", "misaligned", gpu=True),
    Sample("layer_on_cpu", "device.cpu_tensor", gpu=True),
    Sample("offloaded_layers", "transfer.repeated_weights", gpu=True),
)
RULES = frozenset(sample.rule for sample in SAMPLES)


@contextmanager
def _beside_it() -> Generator[None]:
    """The folder on the path, as when a program of it is run."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))


def recording_of(name: str, *, clean: bool) -> Any:
    """Run a program, as it is or as its clean twin."""
    with _beside_it():
        return import_module(name).traced(clean)


def slow_ways(analysis: Analysis) -> list[Finding]:
    """Findings of the rules that these programs are about."""
    return [f for f in analysis.findings if f.rule in RULES]


def ran_math(analysis: Analysis) -> bool:
    """Whether the math path ran, by the operators of the recording itself."""
    return any("_scaled_dot_product_attention_math" in name for name in analysis.trace.names)


def check(sample: Sample, analysis: Analysis, *, clean: bool) -> None:
    """Assert that what ran is found, its cause with it, and nothing else."""
    found = slow_ways(analysis)
    if clean or (sample.told == "math" and not ran_math(analysis)):
        assert [f.rule for f in found if f.severity != "info"] == []
        assert sample.rule not in {f.rule for f in found}
        return
    assert {f.rule for f in found} == {sample.rule}
    for finding in found:
        assert str(finding.detail.get("backend") or finding.detail.get("cause") or "") in (
            (sample.told,) if sample.told else ("", "efficient", "cudnn")
        )
        assert finding.cost_ns
        assert finding.ratio
        assert finding.detail["expected"]
