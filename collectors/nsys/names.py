"""What the names in an export mean: runtime calls, kernels, NVTX ranges, copies, waits."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import NamedTuple

from tracer.events import NONE

_VERSION = re.compile(r"_(?:v\d+|ptsz|ptds)+(?=_|$)")

# How the demangler of this format writes what that of the others writes shorter.
_CAST = re.compile(r"\((?:(?:un)?signed )?(?:int|long|short|char|long long)\)(-?\d)")
_UNSIGNED = re.compile(r"\(unsigned\)(\d)")
_TRUE, _FALSE = re.compile(r"\(bool\)1\b"), re.compile(r"\(bool\)0\b")
_LAMBDA = re.compile(r"\[lambda(\([^][]*\)) \(instance (\d+)\)\]")
_SPACED = re.compile(r" (?=[*&])")

# Ends that PyTorch gives to a range of `emit_nvtx`, in this order, each of them optional.
_ENDS = re.compile(
    r"(?:, seq = (?P<seq>\d+))?(?:, op_id = (?P<op>\d+))?(?:, sizes = (?P<sizes>\[.*?\]))?"
    r"(?:, input_op_ids = \[.*\])?$",
    re.DOTALL,
)
# Operators and the ranges of the compiler, which PyTorch's own profiler counts among them.
_OPERATOR = re.compile(
    r"[a-z_]\w*::[A-Za-z_][\w.]*$|(torch::)?autograd::|\w+Backward\d*$|record_param_comms$"
    r"|triton_\w+$|Torch-Compiled Region|TorchDynamo |CompiledFunction|Pregraph bytecode"
    r"|AOTDispatcher "
)
_MARKER = re.compile(r"\{'Module': ")

# Domains of libraries that announce their own calls: no ranges of the program.
LIBRARY_DOMAINS = re.compile(
    r"(?:NCCL|CCCL|CUB|NVSHMEM|UCX|MPI|cu(?:BLAS|DNN|SPARSE|SOLVER|FFT|RAND|TENSOR|DSS)|nv(?:JPEG"
    r"|COMP))(?:Lt)?\b",
    re.IGNORECASE,
)

# Functions of such libraries, where the file does not say which domain is whose.
_LIBRARY_CALL = re.compile(r"(?:nccl|cublas|cudnn|cusparse|cusolver|cufft|nvshmem)[A-Z]\w*|MPI_\w+")


class Direction(NamedTuple):
    """Which way a copy goes: the word of the schema, and how a copy is called."""

    word: str
    name: str


DIRECTIONS = {
    1: Direction("host_to_device", "HtoD"),
    2: Direction("device_to_host", "DtoH"),
    3: Direction("host_to_device", "HtoA"),
    4: Direction("device_to_host", "AtoH"),
    5: Direction("device_to_device", "AtoA"),
    6: Direction("device_to_device", "AtoD"),
    7: Direction("device_to_device", "DtoA"),
    8: Direction("device_to_device", "DtoD"),
    9: Direction("host_to_host", "HtoH"),
    10: Direction("peer_to_peer", "PtoP"),
    11: Direction("host_to_device", "HtoD"),  # by moving pages of managed memory
    12: Direction("device_to_host", "DtoH"),
    13: Direction("device_to_device", "DtoD"),
}
MEMORIES = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "device",  # an array
    4: "managed",
    5: "device",
    6: "managed",
}
WAITS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
OVERHEADS = {
    2: "Driver Compiler",
    3: "Buffer Flush",
    4: "Instrumentation",
    5: "Resource",
    6: "Runtime Triggered Module Loading",
    7: "Lazy Function Loading",
    8: "Command Buffer Full",
}


class Ends(NamedTuple):
    """What PyTorch wrote behind the name of a range. sequence: of autograd, -1 for none; sizes: of
    the inputs, as JSON text, "" for none."""

    name: str
    sequence: int = NONE
    sizes: str = ""


def call_name(raw: str) -> str:
    """`cudaLaunchKernel_v7000` without its version."""
    return _VERSION.sub("", raw)


@lru_cache(maxsize=65536)
def kernel_name(raw: str) -> str:
    """A kernel's name as other formats write it: `kernel<(int)4, (bool)1>` is `kernel<4, true>`."""
    name = raw.replace("<unnamed>", "(anonymous namespace)")
    name = _FALSE.sub("false", _TRUE.sub("true", name))
    name = _UNSIGNED.sub(r"\1", _CAST.sub(r"\1", name))
    name = _LAMBDA.sub(r"{lambda\1#\2}", name)
    return _SPACED.sub("", name)


def split_ends(text: str) -> Ends:
    """Take what PyTorch wrote behind the name of a range from it."""
    name, written, rest = text.partition(", op_id = ")
    if not written or not rest.isdecimal():
        return _split_slowly(text)
    if ", seq = " not in name:
        return Ends(name)
    name, _, sequence = name.rpartition(", seq = ")
    return Ends(name, int(sequence)) if sequence.isdecimal() else _split_slowly(text)


def _split_slowly(text: str) -> Ends:
    found = _ENDS.search(text)
    if found is None or not found.group():
        return Ends(text)
    sequence = int(found["seq"]) if found["seq"] else NONE
    return Ends(text[: found.start()], sequence, found["sizes"] or "")


class Range(NamedTuple):
    """What a range is. kind "": a marker that encloses nothing."""

    kind: str
    name: str


def read_range(name: str) -> Range:
    """What a range of the program is, by its name without the ends."""
    if _MARKER.match(name):
        return _module(name)
    if _LIBRARY_CALL.fullmatch(name):
        return Range("other", name)
    return Range("operator" if _OPERATOR.match(name) else "annotation", name)


def _module(text: str) -> Range:
    """A marker of NVIDIA's hooks for the layers of a model, a Python dict as text: `Module` is the
    path. One with outputs and no inputs stands behind the layer and encloses nothing."""
    try:
        marker = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return Range("annotation", text)
    path = marker.get("Module") if isinstance(marker, dict) else None
    if not isinstance(path, str):
        return Range("annotation", text)
    if "Outputs" in marker and "Inputs" not in marker:
        return Range("", text)
    return Range("module", f"module::{path}::")
