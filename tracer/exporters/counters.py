"""Counters of memory and devices in a line of words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracer.analysis import Analysis
from tracer.exporters.format import bytes_text, percent_text

# Counter -> how its mean is said.
_SAID: Mapping[str, Callable[[float], str]] = {
    "gpu_utilization_ratio": lambda mean: f"utilization {percent_text(mean)}",
    "power_watts": lambda mean: f"{mean:,.0f} W",
    "temperature_celsius": lambda mean: f"{mean:,.0f} C",
    "sm_clock_hertz": lambda mean: f"SM at {mean / 1e6:,.0f} MHz",
}


def counter_items(analysis: Analysis) -> Iterator[str]:
    """The peak of the fullest device's memory, and the means of each device's counters."""
    if analysis.memory:
        yield _memory_words(analysis.memory)
    for device, counters in analysis.device_metrics.items():
        words = [say(counters[name]["mean"]) for name, say in _SAID.items() if name in counters]
        if words:
            yield f"GPU {device}: {', '.join(words)}"


def _memory_words(memory: Mapping[str, Any]) -> str:
    """What of it is known."""
    sizes = {"in use": memory.get("peak_allocated_bytes")}
    sizes["reserved"] = memory.get("peak_reserved_bytes")
    said = ", ".join(f"{bytes_text(size)} {word}" for word, size in sizes.items() if size)
    fullest = max(memory.get("devices", ()), key=_reserved, default=None)
    capacity = None if fullest is None else fullest.get("capacity_bytes")
    return f"memory: at most {said}" + (f" of {bytes_text(capacity)}" if capacity else "")


def _reserved(device: Mapping[str, Any]) -> int:
    return int(device["peak_reserved_bytes"])
