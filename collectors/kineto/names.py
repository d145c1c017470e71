"""What Kineto's names mean: texts, calls it could not name, kinds of copies, threads."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

MODULE_PREFIX = b"module::"
# What the recording itself does in the program's threads.
OWN_PREFIX = b"tracer::"
UNNAMED_CALL = b"INVALID"
# How the ranges begin that PyTorch itself writes around Python code.
FRAMEWORK_RANGES = (
    b"ProfilerStep#",
    b"enumerate(DataLoader)#",
    b"Optimizer.step#",
    b"Optimizer.zero_grad#",
)

# Calls of the CUDA runtime by callback id, as in `cupti_runtime_cbid.h` of CUDA 13, from the first
# that some version of Kineto has no name for. Only those that a transformer's step can meet.
_CALL_NAMES = {
    405: "cudaDeviceFlushGPUDirectRDMAWrites",
    406: "cudaGetDriverEntryPoint",
    407: "cudaGetDriverEntryPoint",
    409: "cudaStreamGetCaptureInfo",
    410: "cudaStreamGetCaptureInfo",
    411: "cudaStreamUpdateCaptureDependencies",
    412: "cudaStreamUpdateCaptureDependencies",
    413: "cudaUserObjectCreate",
    414: "cudaUserObjectRetain",
    415: "cudaUserObjectRelease",
    416: "cudaGraphRetainUserObject",
    417: "cudaGraphReleaseUserObject",
    418: "cudaGraphInstantiateWithFlags",
    419: "cudaGraphAddMemAllocNode",
    421: "cudaGraphAddMemFreeNode",
    423: "cudaDeviceGraphMemTrim",
    424: "cudaDeviceGetGraphMemAttribute",
    425: "cudaDeviceSetGraphMemAttribute",
    426: "cudaGraphNodeSetEnabled",
    427: "cudaGraphNodeGetEnabled",
    430: "cudaLaunchKernelExC",
    431: "cudaLaunchKernelExC",
    432: "cudaOccupancyMaxPotentialClusterSize",
    433: "cudaOccupancyMaxActiveClusters",
    436: "cudaGraphInstantiateWithParams",
    437: "cudaGraphInstantiateWithParams",
    438: "cudaGraphExecGetFlags",
    439: "cudaGetKernel",
    440: "cudaGetDeviceProperties",
    441: "cudaStreamGetId",
    442: "cudaStreamGetId",
    443: "cudaGraphInstantiate",
    444: "cudaInitDevice",
    445: "cudaGraphAddNode",
    446: "cudaGraphNodeSetParams",
    447: "cudaGraphExecNodeSetParams",
    448: "cudaMemAdvise",
    449: "cudaMemPrefetchAsync",
    450: "cudaMemPrefetchAsync",
    451: "cudaFuncGetName",
    452: "cudaStreamBeginCaptureToGraph",
    453: "cudaStreamBeginCaptureToGraph",
    454: "cudaGraphConditionalHandleCreate",
    455: "cudaGraphGetEdges",
    456: "cudaGraphNodeGetDependencies",
    457: "cudaGraphNodeGetDependentNodes",
    458: "cudaGraphAddDependencies",
    459: "cudaGraphRemoveDependencies",
    460: "cudaGraphAddNode",
    461: "cudaStreamGetCaptureInfo",
    462: "cudaStreamGetCaptureInfo",
    463: "cudaStreamUpdateCaptureDependencies",
    464: "cudaStreamUpdateCaptureDependencies",
    467: "cudaFuncGetParamInfo",
    468: "cudaGetDriverEntryPointByVersion",
    469: "cudaGetDriverEntryPointByVersion",
    470: "cudaLibraryLoadData",
    471: "cudaLibraryLoadFromFile",
    472: "cudaLibraryUnload",
    473: "cudaLibraryGetKernel",
    474: "cudaLibraryGetGlobal",
    475: "cudaLibraryGetManaged",
    479: "cudaKernelSetAttributeForDevice",
    480: "cudaStreamGetDevice",
    481: "cudaStreamGetDevice",
    482: "cudaMemcpyBatchAsync",
    483: "cudaMemcpyBatchAsync",
    484: "cudaMemcpy3DBatchAsync",
    485: "cudaMemcpy3DBatchAsync",
    486: "cudaEventElapsedTime",
    487: "cudaMemPrefetchBatchAsync",
    488: "cudaMemPrefetchBatchAsync",
    505: "cudaLaunchKernel",
    506: "cudaLaunchKernel",
    509: "cudaMemcpyBatchAsync",
    510: "cudaMemcpyBatchAsync",
    511: "cudaMemcpy3DBatchAsync",
    512: "cudaMemcpy3DBatchAsync",
    533: "cudaExecutionCtxStreamCreate",
    534: "cudaExecutionCtxSynchronize",
    543: "cudaExecutionCtxRecordEvent",
    544: "cudaExecutionCtxWaitEvent",
}

_DIRECTIONS = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "PtoP": "peer_to_peer",
    "HtoH": "host_to_host",
    "HostToDevice": "host_to_device",
    "DeviceToHost": "device_to_host",
    "DeviceToDevice": "device_to_device",
    "PeerToPeer": "peer_to_peer",
    "HostToHost": "host_to_host",
    # Arrays lie on the device.
    "HtoA": "host_to_device",
    "AtoH": "device_to_host",
    "AtoA": "device_to_device",
    "AtoD": "device_to_device",
    "DtoA": "device_to_device",
}
_DIRECTION = re.compile(r"(Host|Device|Peer)To(Host|Device|Peer)|[HDAP]to[HDAP]")
_ENDS = re.compile(r"\(\s*([^()]*?)\s*(?:->\s*([^()]*?)\s*)?\)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)\s*")


class CopyKind(NamedTuple):
    """Which way a copy went, and from what memory to what."""

    direction: str
    source: str
    target: str


def copy_kind(name: str) -> CopyKind:
    """Read `Memcpy HtoD (Pageable -> Device)`, `Memset (Device)`, `CopyHostToDevice`."""
    ends = _ENDS.search(name)
    first, second = (ends.group(1), ends.group(2)) if ends else (None, None)
    if "set" in name or "Fill" in name:
        return CopyKind("set", "unknown", _memory(first))
    found = _DIRECTION.search(name)
    direction = _DIRECTIONS.get(found.group(0), "unknown") if found else "unknown"
    return CopyKind(direction, _memory(first), _memory(second))


def _memory(word: str | None) -> str:
    """The kind of memory behind Kineto's word. ROCm says "Host" for pinned and pageable alike."""
    words = (word or "").lower()
    for kind in ("pageable", "pinned", "managed"):
        if kind in words:
            return kind
    return "device" if words.startswith(("device", "array")) else "unknown"


def call_name(callback: int) -> bytes | None:
    """The runtime call with that callback id, where Kineto had no name for it."""
    name = _CALL_NAMES.get(callback)
    return None if name is None else name.encode()


def thread_name(name: str) -> str:
    """`thread 12 (python3)` is called python3."""
    found = _THREAD_NAME.fullmatch(name)
    return (found.group(1) if found else name).strip()


def text_of(raw: bytes) -> str:
    """The text of a JSON string without its quotes; what cannot be read becomes U+FFFD."""
    text = raw.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        unescaped = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text
    # A lone surrogate would break every writer after us.
    return _SURROGATE.sub("\ufffd", str(unescaped))


def json_of(raw: bytes) -> str:
    """JSON text kept as it is; a list that Kineto wrote as a string loses its quotes."""
    return text_of(raw[1:-1]) if raw[:1] == b'"' else raw.decode("utf-8", "replace")


def product_of(raw: bytes) -> int:
    """The product of a JSON list of integers such as a launch grid; -1 when it is none."""
    product = 1
    try:
        for part in raw.strip(b"[] \n").split(b","):
            product *= int(part)
    except ValueError:
        return -1
    return product


def is_clean(raw: bytes) -> bool:
    """Whether the inside of a JSON string is what the standard allows."""
    try:
        text = raw.decode()
        return (text.isprintable() and "\\" not in text) or _is_json_string(text)
    except ValueError:
        return False


def _is_json_string(text: str) -> bool:
    unescaped = json.loads(f'"{text}"')
    return isinstance(unescaped, str) and _SURROGATE.search(unescaped) is None
