"""What the allocator and the devices counted: sizes of memory, samples of device counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.events import Trace

_CPU_TYPE = 0  # of a device, as the profiler numbers types
Memory = Mapping[str, Any]
Samples = NDArray[np.float64]


def memory_of(trace: Trace) -> Memory:
    """Peaks of the caching allocator, bytes, over the devices and for each; empty where nothing
    counted. `fragmentation_ratio`: of what is reserved on the fullest device, the share that lies
    in pieces of split blocks that are free (`inactive_split_bytes` of `torch.cuda.memory_stats`);
    None where only events of allocations tell."""
    counted = _counted(trace)
    devices = counted or _told_by_events(trace)
    if not devices:
        return {}
    fullest = max(devices, key=lambda device: int(device["peak_reserved_bytes"]))
    reserved, split = fullest.get("reserved_bytes"), fullest.get("inactive_split_bytes")
    return {
        "peak_allocated_bytes": max(int(d["peak_allocated_bytes"]) for d in devices),
        "peak_reserved_bytes": int(fullest["peak_reserved_bytes"]),
        "fragmentation_ratio": split / reserved if reserved and split is not None else None,
        "basis": "allocator" if counted else "events",
        "devices": devices,
    }


def _counted(trace: Trace) -> list[dict[str, Any]]:
    """What the allocator itself counted while a live recording ran."""
    counted = trace.meta.facts.get("allocator")
    if not isinstance(counted, list):
        return []
    rows = [row for row in counted if isinstance(row, Mapping) and row.get("peak_reserved_bytes")]
    return [{**row, "capacity_bytes": _capacity(trace, int(row["device"]))} for row in rows]


def _told_by_events(trace: Trace) -> list[dict[str, Any]]:
    """The same from the allocations that a profiler recorded."""
    table = trace.table("memory")
    table = table[(table["device_type"] > _CPU_TYPE) & (table["reserved_bytes"] > 0)]
    device = table["device"].to_numpy()
    allocated, reserved = table["allocated_bytes"].to_numpy(), table["reserved_bytes"].to_numpy()
    return [
        {
            "device": one,
            "peak_allocated_bytes": int(allocated[device == one].max()),
            "peak_reserved_bytes": int(reserved[device == one].max()),
            "capacity_bytes": _capacity(trace, one),
        }
        for one in np.unique(device).tolist()
    ]


def _capacity(trace: Trace, device: int) -> int | None:
    """Bytes of a device's memory; None where the recording does not tell."""
    devices = trace.table("devices")
    sizes = devices["memory_bytes"].to_numpy()[devices["device"].to_numpy() == device]
    return int(sizes[0]) if sizes.size and sizes[0] > 0 else None


def metrics_of(trace: Trace, start_ns: int, end_ns: int) -> dict[str, dict[str, Any]]:
    """Device -> counter -> mean, min, max and number of the samples taken in this time, in the unit
    that ends the counter's name; empty where none was."""
    out: dict[str, dict[str, Any]] = {}
    for (device, metric), values in samples_of(trace, start_ns, end_ns).items():
        if metric == THROTTLE_REASONS:  # bits: they have no mean
            summed: dict[str, Any] = {"seen": sorted(set(values.astype(np.int64).tolist()))}
        else:
            summed = {key: float(getattr(values, key)()) for key in ("mean", "min", "max")}
        out.setdefault(str(device), {})[metric] = {**summed, "samples": int(values.size)}
    return out


THROTTLE_REASONS = "throttle_reasons"


def samples_of(trace: Trace, start_ns: int, end_ns: int) -> dict[tuple[int, str], Samples]:
    """The samples of each device and counter, taken in this time."""
    table = trace.table("metrics")
    inside = (table["time_ns"] >= start_ns) & (table["time_ns"] <= end_ns)
    table = table[inside.to_numpy()]
    names, values = table["metric"].astype(str).to_numpy(), table["value"].to_numpy()
    devices = table["device"].to_numpy()
    keys = dict.fromkeys(zip(devices.tolist(), names.tolist(), strict=True))
    return {(device, name): values[(devices == device) & (names == name)] for device, name in keys}
