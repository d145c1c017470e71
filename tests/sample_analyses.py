"""Analyses that tests of several outputs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.make_analysis import Step, bucket_code, make_analysis
from tracer.analysis import Analysis, Observer
from tracer.events import Note
from tracer.findings import Check, Finding, Where, costliest_first

HOSTILE_NAMES = (
    "n" * 400,
    "[red]bold[/red] {x} %s $HOME `id`",
    "tab\there\x1b[31mred\x07bell\x9b1m",
    "核函数_矩阵乘法_" * 12,
    "גרעין כפל מטריצות",
    "a\u202eb\u2066c\u200ed\ufeff",
    "lone \ud800 surrogate",
    "line\nbreak\u2028and\r\x00nul",
    "</td><script>alert(1)</script>&amp;\"'",
)


def decode_step(launch: float = 18_000, warmup: bool = False) -> Step:
    """An eager decode step that waits for the host."""
    parts = {
        "attention.core": 1_200.0,
        "attention.projection": 1_000.0,
        "ffn.projection": 3_000.0,
        "ffn.activation": 100.0,
        "other.norm": 800.0,
        "other.lm_head": 200.0,
        "overhead.launch": launch,
        "overhead.compile": 35_000.0,
        "overhead.unexplained": 200.0,
    }
    return Step("decode", parts, warmup, batch=1, tokens=1)


def module_rows(layers: int = 4) -> list[dict[str, Any]]:
    """The modules of a small model, as rows of the table."""
    rows: list[dict[str, Any]] = [_module("", "Model", "container", -1, layers * 700_000 + 90_000)]
    for layer in range(layers):
        rows.append(_module(f"layers.{layer}", "Layer", "layer", 0, 700_000))
        above = len(rows) - 1
        rows.append(_module(f"layers.{layer}.mlp", "MLP", "ffn", above, 400_000, 400_000))
        rows.append(_module(f"layers.{layer}.self_attn", "Attention", "attention", above, 250_000))
    rows.append(_module("lm_head", "Linear", "lm_head", 0, 80_000, 80_000))
    return rows


def _module(
    path: str, kind: str, role: str, parent: int, device_ns: int, self_ns: int = 10_000
) -> dict[str, Any]:
    return {
        "path": path,
        "type": kind,
        "role": role,
        "parent": parent,
        "device_ns": device_ns,
        "self_device_ns": self_ns,
        "host_ns": 2 * device_ns,
        "calls": 9,
        "kernels": 27,
    }


def plan_finding(steps: Sequence[int]) -> Finding:
    """A finding that costs most of each of these steps."""
    return Finding(
        "gap.compile",
        "critical",
        "cuDNN plan built for each new KV length",
        count=len(steps),
        cost_ns=35_000_000 * len(steps),
        ratio=0.55,
        steps=tuple(steps),
        where=Where("llama.py", 241, "forward", "layers.0.self_attn", "aten::_cudnn_attention"),
        detail={"kind": "library-plan"},
        advice="Each length costs this once. Use flash attention, or a KV cache of fixed length.",
        gain_ns=35_000_000 * len(steps),
    )


def decode_analysis() -> Analysis:
    """One prefill, one warm-up and six decode steps, with everything that a report shows."""
    prefill_parts = {"attention.core": 9e3, "ffn.projection": 31e3, "overhead.launch": 40e3}
    prefill = Step("prefill", prefill_parts, batch=1, tokens=512)
    steps = [decode_step(18_000 + 100 * i) for i in range(6)]
    return make_analysis(
        [prefill, decode_step(90_000, warmup=True), *steps],
        between={"overhead.host": 4_000},
        modules=module_rows(),
        findings=costliest_first(
            (
                Finding("attention.backend", "info", "cuDNN, chosen by SDPA", 7),
                plan_finding(range(2, 8)),
            )
        ),
        checks=(
            Check("gap.compile", "found"),
            Check("sync.hidden", "clear"),
            Check("sync.allocator", "partial", "driver calls were not recorded on 1 thread"),
            Check("comm.hang", "not_checked", "one device"),
        ),
        notes=(Note("trace.clock_error", "3 of 10 kernels start before their launch", 3),),
        observer=Observer(59_750_000, 50_000_000, 1.195, "6 steps before the recording"),
        facts={"attention_implementation": "sdpa", "dtypes": ["bfloat16"], "versions": {}},
        memory={"peak_allocated_bytes": 1_000_000},
    )


def hostile_analysis() -> Analysis:
    """Names that try to break a terminal, a table or a page."""
    kernels = [
        {
            "name": name,
            "bucket": bucket_code("ffn.projection"),
            "library": name,
            "how": "name",
            "confidence": 0.5,
            "count": 10,
            "total_ns": 1_000_000 - i,
            "ratio": 0.1,
        }
        for i, name in enumerate(HOSTILE_NAMES)
    ]
    modules = [
        {**_module(name, name, "ffn", -1, 1_000_000 - i)} for i, name in enumerate(HOSTILE_NAMES)
    ]
    findings = tuple(
        Finding("sync.hidden", "warning", n, 1, 10, 0.1, (0,), Where(n, 1, n, n, n), {n: n}, n, 5)
        for n in HOSTILE_NAMES
    )
    return make_analysis(
        [Step("decode", {"ffn.projection": 10_000.0})] * 2,
        kernels=kernels,
        modules=modules,
        findings=costliest_first(findings),
        notes=tuple(Note("trace.invalid_event", name, 1) for name in HOSTILE_NAMES),
        facts={"engine": HOSTILE_NAMES[2], "dtypes": list(HOSTILE_NAMES)},
    )


def unusable_analysis() -> Analysis:
    """Launches were recorded and no device row was."""
    reason = "200 launches recorded, 0 device events"
    step = Step("decode", {"overhead.unexplained": 2_000.0})
    return make_analysis([step] * 3, accounted=False, breakdown_reason=reason, devices=0)
