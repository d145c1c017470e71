"""What this machine reaches: copy bandwidth and bf16 matmul rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer.errors import InputError
from tracer.sizing.gpus import Gpu, match_gpu

# Large against every cache, small against every memory: the last-level cache of a GPU is 50 MB,
# of a server CPU up to 400 MB.
_GPU_COPY_BYTES = 2 << 30
_CPU_COPY_BYTES = 1 << 29
_GPU_MATMUL = 8192
_CPU_MATMUL = 1024
_REPEATS = 10


def measure_device() -> Gpu:
    """Measure the current CUDA device with CUDA events, or without one this CPU with the clock."""
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"--measure needs torch, which does not import here: {error}", rule="plan.measure"
        ) from None
    if torch.cuda.is_available():
        return _measure_cuda(torch)
    return _measure_cpu(torch)


def _measure_cuda(torch: Any) -> Gpu:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    count = min(_GPU_COPY_BYTES, free // 4)
    known = match_gpu(properties.name)
    copy = _copy_rate(torch, "cuda", count, _cuda_seconds)
    flops = _matmul_rate(torch, "cuda", _GPU_MATMUL, _cuda_seconds)
    return Gpu(
        name=str(properties.name),
        memory_bytes=int(properties.total_memory),
        bandwidth_bytes_per_s=copy,
        measured_copy_bytes_per_s=copy,
        bf16_flops_per_s=flops,
        fp8_flops_per_s=known.fp8_flops_per_s if known else None,
        basis=f"measured: copy of {count / 1e9:.1f} GB, bf16 matmul of {_GPU_MATMUL} cubed",
    )


def _measure_cpu(torch: Any) -> Gpu:
    copy = _copy_rate(torch, "cpu", _CPU_COPY_BYTES, _clock_seconds)
    flops = _matmul_rate(torch, "cpu", _CPU_MATMUL, _clock_seconds)
    return Gpu(
        name="here",
        kind="CPU",
        memory_bytes=_cpu_memory_bytes(),
        bandwidth_bytes_per_s=copy,
        measured_copy_bytes_per_s=copy,
        bf16_flops_per_s=flops,
        basis=f"measured: copy of {_CPU_COPY_BYTES / 1e9:.1f} GB, bf16 matmul of {_CPU_MATMUL} "
        f"cubed, {torch.get_num_threads()} threads",
    )


Timer = Callable[[Any, Callable[[], object]], float]


def _cuda_seconds(torch: Any, work: Callable[[], object]) -> float:
    """Seconds of one call on the device, the best of a few, by CUDA events."""
    work()
    best = float("inf")
    for _ in range(_REPEATS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best


def _clock_seconds(torch: Any, work: Callable[[], object]) -> float:
    del torch
    work()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _copy_rate(torch: Any, device: str, count: int, seconds: Timer) -> float:
    """Bytes read and written a second by a copy within one memory."""
    source = torch.empty(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    source.fill_(1)
    return 2 * count / seconds(torch, lambda: target.copy_(source))


def _matmul_rate(torch: Any, device: str, size: int, seconds: Timer) -> float:
    left = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    right = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    return 2 * size**3 / seconds(torch, lambda: left @ right)


def _cpu_memory_bytes() -> int:
    """What this process may use: the machine's memory, or its cgroup's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
