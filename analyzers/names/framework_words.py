"""What the frameworks said about slower ways while the recording ran: evidence for findings.

The words are quoted as they came; nothing is read out of them but which rule they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tracer.events import Note, Trace
from tracer.findings import Finding

# The first pattern that fits decides.
_RULES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "fallback.mixer": re.compile(
            r"mamba|causal.?conv1d|selective.?(scan|state)|flash.?linear.?attention|delta.?rule"
            r"|\brwkv|\bmlstm|\bssm\b|linear attention",
            re.I,
        ),
        "fallback.moe": re.compile(r"\bmoe\b|fused_?moe|\bexperts?\b", re.I),
        "fallback.compile": re.compile(
            r"cuda ?graphs?\b|graph break|recompil|torch\.compile|dynamo|inductor", re.I
        ),
        "fallback.communication": re.compile(
            r"all.?reduce|all.?gather|\bp2p\b|peer.to.peer|nvlink|nccl|custom_ar|symm\w* mem", re.I
        ),
        "fallback.matmul": re.compile(
            r"\btf32\b|tensorfloat|float32 matri|matmul.precision|cublas|cutlass", re.I
        ),
        "fallback.quantized_matmul": re.compile(
            r"dequanti|quantiz|[48]-?bit\b|\bfp8\b|\bint[48]\b|marlin|machete|\bawq\b|\bgptq\b"
            r"|bitsandbytes|bnb_",
            re.I,
        ),
        "fallback.attention": re.compile(
            r"attention|\battn|\bsdpa\b|flash.?attn|\bflash_|xformers|flashinfer", re.I
        ),
        "transfer.repeated_weights": re.compile(r"offload|meta device|device_map|\bdisk\b", re.I),
        "device.cpu_tensor": re.compile(r"\bon (the )?cpu\b|\bto (the )?cpu\b", re.I),
    }
)
# The profiler's own words, and those of tracing, say nothing of the program.
_MOST_NOTES = 10


def rule_of(message: str) -> str:
    """The rule that a message belongs to; "" for none."""
    return next((rule for rule, words in _RULES.items() if words.search(message)), "")


def said(trace: Trace, rule: str) -> list[dict[str, Any]]:
    """Messages of a rule as `detail.log` holds them."""
    table = trace.table("warnings")
    rows = zip(
        table["source"].astype(str),
        table["message"].astype(str),
        table["count"].tolist(),
        strict=True,
    )
    return [
        {"source": source, "message": message, "count": count}
        for source, message, count in rows
        if rule_of(message) == rule
    ]


def quoted(
    trace: Trace, rule: str, findings: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """The findings of a rule with the messages that speak of them; as notes where it found none."""
    log = said(trace, rule)
    mine = [finding.rule == rule for finding in findings]
    if not log:
        return tuple(findings), ()
    if not any(mine):
        return tuple(findings), notes_of(log)
    with_log = (
        replace(finding, detail={**finding.detail, "log": log}) if own else finding
        for finding, own in zip(findings, mine, strict=True)
    )
    return tuple(with_log), ()


def notes_of(log: Sequence[Mapping[str, Any]]) -> tuple[Note, ...]:
    """One note for each message."""
    return tuple(
        Note(
            "trace.framework_said",
            f'{line["source"]} said: "{line["message"]}"',
            count=int(line["count"]),
        )
        for line in log[:_MOST_NOTES]
    )
