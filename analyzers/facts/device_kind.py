"""Whose device a recording comes from, and of which generation."""

from __future__ import annotations

import re

import numpy as np

from tracer.events import Trace

_AMD_NAME = re.compile(r"\bAMD\b|Instinct|Radeon|\bgfx\d", re.I)
_AMD_KERNEL = re.compile(r"^(Custom_)?Cijk_|gfx\d{3}|\bck(_tile)?::|rocblas|MIOpen", re.I)
_NVIDIA_KERNEL = re.compile(r"cutlass|nvjet|_sm\d\d|cudnn|cublas|ampere_|volta_|hopper", re.I)


def vendor_of(trace: Trace) -> str:
    """ "nvidia", "amd", or "" where nothing tells: from the device's name, else the runtime that
    was called, else the kernels."""
    names = " ".join(trace.table("devices")["name"].astype(str))
    if _AMD_NAME.search(names):
        return "amd"
    if "NVIDIA" in names or re.search(r"Tesla|Quadro|GeForce", names):
        return "nvidia"
    calls = _names(trace, "runtime")
    if any(name.startswith("hip") for name in calls):
        return "amd"
    if any(name.startswith(("cuda", "cu")) for name in calls):
        return "nvidia"
    kernels = _names(trace, "kernel")
    if any(_AMD_KERNEL.search(name) for name in kernels):
        return "amd"
    return "nvidia" if any(_NVIDIA_KERNEL.search(name) for name in kernels) else ""


def _names(trace: Trace, kind: str) -> list[str]:
    return [trace.names[code] for code in np.unique(trace.name_codes[trace.rows(kind)])]


def nvidia_generation(trace: Trace) -> int | None:
    """Compute capability (major) of the recorded NVIDIA devices; None when not known."""
    if vendor_of(trace) != "nvidia":
        return None
    newest = int(trace.table("devices")["major"].max()) if len(trace.table("devices")) else -1
    return newest if newest > 0 else None
