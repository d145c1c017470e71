"""Rules memory.headroom and memory.fragmentation: what the caching allocator has left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.rules.judging import counted, verdict
from tracer.findings import Check, Finding, Severity

HEADROOM, FRAGMENTATION = "memory.headroom", "memory.fragmentation"
# Shares of a device's memory that are reserved: full, and near enough that pieces matter.
_FULL, _NEARLY_FULL = 0.95, 0.8
# Of what is reserved, the share in free pieces that is much; and how many bytes are few.
_MUCH, _FEW_BYTES = 0.2, 1 << 30
_GIB = 1 << 30


def judge_memory(context: Context, analysis: Analysis) -> RuleResult:
    """By what the allocator of each device counted."""
    devices = analysis.memory.get("devices", ())
    if not devices:
        reason = "the allocator was not recorded"
        return RuleResult(checks=tuple(_unchecked(r, reason) for r in (HEADROOM, FRAGMENTATION)))
    headroom = [f for device in devices if (f := _headroom(device)) is not None]
    pieces = [f for device in devices if (f := _fragmentation(device)) is not None]
    tells = any(device.get("inactive_split_bytes") is not None for device in devices)
    untold = "allocations do not tell how much lies in pieces"
    return RuleResult(
        (*headroom, *pieces),
        (
            verdict(HEADROOM, headroom),
            verdict(FRAGMENTATION, pieces) if tells else _unchecked(FRAGMENTATION, untold),
        ),
    )


def _unchecked(rule: str, reason: str) -> Check:
    return Check(rule, "not_checked", reason)


def _headroom(device: Mapping[str, Any]) -> Finding | None:
    """A device that ran out, was near it, or is full without having been so."""
    ooms, retries = int(device.get("num_ooms") or 0), int(device.get("num_alloc_retries") or 0)
    ratio, number = _filled(device), device["device"]
    full = f"{ratio:.0%} of its memory is reserved" if ratio is not None else "its memory is full"
    severity: Severity
    if ooms:
        severity, said = "critical", f"ran out of memory ({counted(ooms, 'time')})"
    elif retries:
        severity, said = "warning", f"gave its cache back {counted(retries, 'time')} to go on"
    elif ratio is not None and ratio >= _FULL:
        severity, said = "info", "has no room left for a larger step"
    else:
        return None
    return Finding(
        rule=HEADROOM,
        severity=severity,
        title=f"device {number} {said}: {full}",
        count=max(ooms, retries, 1),
        detail={**device, "reserved_ratio": ratio},
        advice=(
            "Lower the batch or the length, shard or quantize the weights, checkpoint activations, "
            "or offload the optimizer's states. `tracer plan` says what fits."
        ),
    )


def _fragmentation(device: Mapping[str, Any]) -> Finding | None:
    """Free pieces that matter: many bytes of a device that is nearly full, or had to retry."""
    reserved, pieces = device.get("reserved_bytes"), device.get("inactive_split_bytes")
    if not reserved or not pieces or pieces < max(_MUCH * reserved, _FEW_BYTES):
        return None
    ratio = _filled(device)
    tight = bool(device.get("num_alloc_retries")) or (ratio or 0.0) >= _NEARLY_FULL
    return Finding(
        rule=FRAGMENTATION,
        severity="warning" if tight else "info",
        title=(
            f"device {device['device']}: {pieces / _GIB:.1f} of {reserved / _GIB:.1f} GiB reserved "
            "lie in free pieces of blocks that are in use"
        ),
        count=1,
        detail={**device, "fragmentation_ratio": pieces / reserved, "reserved_ratio": ratio},
        advice=(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or keep sizes the same from "
            "step to step."
        ),
    )


def _filled(device: Mapping[str, Any]) -> float | None:
    capacity = device.get("capacity_bytes")
    return int(device["peak_reserved_bytes"]) / capacity if capacity else None
