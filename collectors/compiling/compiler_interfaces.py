"""Private interfaces of torch's compiler and of its CUDA graphs that a trace uses, for the doctor.

Loads the compiler, which a trace never does.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from tracer.collectors.torch_private import Interface

_NOT_NOTED = "calls of attention are not noted once anything was compiled"
_PARTS = "time of compiled code is divided by the parameters and the source lines of its modules"
_KERNELS = "launches of compiled code are placed by their names and their order alone"
# Module, what is used of it, and what a trace does without.
_COMPILER: tuple[tuple[str, str, str], ...] = (
    ("torch._dynamo.convert_frame", "input_codes.seen", _NOT_NOTED),
    ("torch._dynamo.eval_frame", "_debug_get_cache_entry_list", _NOT_NOTED),
    ("torch._dynamo.output_graph", "OutputGraph.call_user_compiler", _PARTS),
    ("torch._inductor.config", "trace.provenance_tracking_level", _PARTS),
    ("torch._inductor.output_code", "CompiledFxGraph.__init__", _PARTS),
    ("torch._inductor.output_code", "CompiledFxGraph.post_compile", _KERNELS),
    ("torch._inductor.output_code", "CompiledFxGraph.__call__", _KERNELS),
    (
        "torch._inductor.runtime.triton_heuristics",
        "autograd_profiler._is_profiler_enabled",
        "generated Triton kernels write a range in every call",
    ),
    (
        "torch._inductor.output_code",
        "CompiledFxGraph.compiled_fn_runner",
        "C++ kernels that the compiler generates are one region",
    ),
)
_MISSING = object()


def private_interfaces() -> list[Interface]:
    """Every private interface of the compiler and of graphs in use."""
    listed = [
        Interface(f"{module}.{name}", _has(module, name), fallback)
        for module, name, fallback in _COMPILER
    ]
    if hasattr(torch._C, "_CUDAGraph"):
        found = _has("torch.cuda", "CUDAGraph.capture_end")
        fallback = "a later trace does not know what a captured graph holds"
        listed.append(Interface("torch.cuda.CUDAGraph.capture_end", found, fallback))
    return listed


def _has(module: str, name: str) -> bool:
    try:
        owner: Any = importlib.import_module(module)
    except ImportError:
        return False
    return functools.reduce(_part, name.split("."), owner) is not _MISSING


def _part(holder: Any, name: str) -> Any:
    """An attribute, or a field that the class only declares."""
    declared = getattr(holder, "__annotations__", {})
    return getattr(holder, name, declared.get(name, _MISSING))
