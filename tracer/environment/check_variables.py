"""Environment variables that change what runs, or are misspelt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracer.environment.facts import Facts
from tracer.environment.machine import Machine
from tracer.environment.rows import Row, error, ok, warning

_ALLOCATOR_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_ALLOCATOR_KEYS = frozenset(
    {
        "backend",
        "expandable_segments",
        "garbage_collection_threshold",
        "graph_capture_record_stream_reuse",
        "large_segment_size_mb",
        "max_non_split_rounding_mb",
        "max_split_size_mb",
        "per_process_memory_fraction",
        "pinned_max_cached_size_mb",
        "pinned_max_power2_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "roundup_power2_divisions",
        "throw_on_cudamalloc_oom",
    }
)


@dataclass(frozen=True)
class _Known:
    """A variable that slows down or hides something when it has such a value."""

    name: str
    values: str  # pattern of the whole value
    meaning: str
    remedy: str


_ON = r"(?i)1|true|yes|y|on"
_COSTLY: tuple[_Known, ...] = (
    _Known("CUDA_LAUNCH_BLOCKING", _ON, "every launch waits: all times are wrong", "unset it"),
    _Known("HIP_LAUNCH_BLOCKING", _ON, "every launch waits: all times are wrong", "unset it"),
    _Known("AMD_SERIALIZE_KERNEL", r"[1-9]", "kernels wait for each other", "unset it"),
    _Known(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        _ON,
        "each tensor calls the driver: slow, and each free waits",
        "unset it",
    ),
    _Known(
        "CUDA_MODULE_LOADING",
        "EAGER",
        "all kernels load at the start: slower start, more memory",
        "unset it (LAZY is the default)",
    ),
    _Known("TORCHDYNAMO_DISABLE", _ON, "torch.compile does nothing", "unset it"),
    _Known("TORCH_COMPILE_DISABLE", _ON, "torch.compile does nothing", "unset it"),
    _Known(
        "NVIDIA_TF32_OVERRIDE", "0", "fp32 matmuls run without TF32, 8 times slower", "unset it"
    ),
    _Known("NCCL_P2P_DISABLE", _ON, "no NVLink: GPUs exchange through the host", "unset it"),
    _Known("NCCL_SHM_DISABLE", _ON, "no shared memory: ranks exchange over sockets", "unset it"),
    _Known("NCCL_IB_DISABLE", _ON, "no InfiniBand: hosts exchange over sockets", "unset it"),
    _Known("NCCL_NET_GDR_LEVEL", r"(?i)LOC|0", "no GPUDirect RDMA", "unset it"),
    _Known("NCCL_DEBUG", r"(?i)TRACE", "NCCL writes a line for each call", "use INFO or unset it"),
    _Known(
        "NCCL_BLOCKING_WAIT",
        _ON,
        "renamed long ago, and no longer read",
        "TORCH_NCCL_BLOCKING_WAIT",
    ),
    _Known(
        "NCCL_ASYNC_ERROR_HANDLING",
        r".*",
        "renamed long ago, and no longer read",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    _Known(
        "TORCH_NCCL_BLOCKING_WAIT", _ON, "each collective blocks the host: no overlap", "unset it"
    ),
    _Known(
        "TORCH_DISTRIBUTED_DEBUG", r"(?i)DETAIL", "every collective is checked twice", "unset it"
    ),
    _Known("KINETO_USE_DAEMON", _ON, "a daemon may start recordings of its own", "unset it"),
    _Known("HSA_ENABLE_SDMA", "0", "copies take compute units", "unset it"),
)
_NOTED = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_CUMEM_ENABLE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUBLAS_WORKSPACE_CONFIG",
    "HSA_OVERRIDE_GFX_VERSION",
    "TORCH_LOGS",
    "KINETO_CONFIG",
)


def check_variables(facts: Facts) -> Iterable[Row]:
    """Allocator, NCCL, and what makes a run slow without a word."""
    machine = facts.machine
    yield from _allocator_rows(machine)
    for known in _COSTLY:
        value = machine.variable(known.name)
        if value is not None and re.fullmatch(known.values, value.strip()):
            yield warning(
                "variables.costly",
                known.name,
                f"{known.name}={value}: {known.meaning}",
                known.remedy,
            )
    yield from _interface_rows(machine)
    noted = [f"{name}={machine.variable(name)}" for name in _NOTED if machine.variable(name)]
    if noted:
        yield ok("variables.noted", "variables", f"set by hand: {', '.join(noted)}")


def _allocator_rows(machine: Machine) -> Iterable[Row]:
    set_here = [name for name in _ALLOCATOR_NAMES if machine.variable(name) is not None]
    if not set_here:
        yield ok("variables.allocator", "allocator", "default settings")
        return
    if len(set_here) > 1:
        yield warning(
            "variables.allocator_twice",
            "allocator",
            f"{' and '.join(set_here)} are both set, and only the first is read",
            f"unset {' and '.join(set_here[1:])}",
        )
    name = set_here[0]
    value = machine.variable(name) or ""
    problems = list(_allocator_problems(value))
    if problems:
        yield error(
            "variables.allocator",
            name,
            f"{name}={value}: {'; '.join(problems)}",
            "correct it: torch stops at the first use of the GPU",
        )
    else:
        yield ok("variables.allocator", name, value)


def _allocator_problems(value: str) -> Iterable[str]:
    """Keys torch does not know, and values that it refuses."""
    for part in re.split(r",(?![^\[]*\])", value):
        key, separator, setting = (piece.strip() for piece in part.partition(":"))
        if not key:
            continue
        if not separator:
            yield f"`{key}` has no value"
        elif key not in _ALLOCATOR_KEYS:
            yield f"`{key}` is unknown"
        elif key == "expandable_segments" and setting not in ("True", "False"):
            yield f"expandable_segments is True or False, not {setting}"
        elif key == "max_split_size_mb" and not _at_least(setting, 20):
            yield f"max_split_size_mb must be more than 20, not {setting}"
        elif key == "garbage_collection_threshold" and not _is_ratio(setting):
            yield f"garbage_collection_threshold lies between 0 and 1, not {setting}"
        elif key == "backend" and setting not in ("native", "cudaMallocAsync"):
            yield f"backend is native or cudaMallocAsync, not {setting}"


def _at_least(text: str, smallest: int) -> bool:
    return text.isdigit() and int(text) > smallest


def _is_ratio(text: str) -> bool:
    return re.fullmatch(r"0?\.\d+", text) is not None and 0 < float(text) < 1


def _interface_rows(machine: Machine) -> Iterable[Row]:
    """Network interfaces that NCCL and gloo are told to use."""
    here = machine.names("/sys/class/net")
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = machine.variable(name)
        if not value or not here:
            continue
        prefix, excluded, exact = value.lstrip("^="), value.startswith("^"), value.startswith("=")
        wanted = [entry for entry in prefix.split(",") if entry]
        known = [
            entry
            for entry in wanted
            if any(found == entry if exact else found.startswith(entry) for found in here)
        ]
        if not excluded and wanted and not known:
            yield error(
                "variables.interface",
                name,
                f"{name}={value} names no interface of this machine ({', '.join(here)})",
                f"set {name} to one of them, or unset it",
            )
