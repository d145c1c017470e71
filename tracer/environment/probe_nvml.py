"""Run as a script: what NVML and the CUDA driver say, each field on its own.

Every answer is written before the next question, so that a library that crashes in one field
loses that field and no other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tracer.environment.child import open_channel, reply

Question = tuple[str, Callable[[Any, Any], Any]]


def _memory(nvml: Any, handle: Any) -> dict[str, int]:
    info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"total_bytes": info.total, "used_bytes": info.used}


def _throttle(nvml: Any, handle: Any) -> int:
    """The reasons have a new name since driver 535."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _link(nvml: Any, handle: Any) -> dict[str, int]:
    return {
        "width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "max_width": nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "max_generation": nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
    }


def _uncorrected(nvml: Any, handle: Any) -> int:
    return int(
        nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    )


DEVICE_QUESTIONS: tuple[Question, ...] = (
    ("name", lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu)),
    ("uuid", lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu)),
    ("pci_address", lambda nvml, gpu: nvml.nvmlDeviceGetPciInfo(gpu).busId),
    ("capability", lambda nvml, gpu: nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
    ("memory", _memory),
    ("utilization", lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    ("power", lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu)),
    ("power_limit", lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu)),
    ("temperature", lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0)),
    ("sm_clock", lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    ("memory_clock", lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
    ("throttle_reasons", _throttle),
    ("ecc_uncorrected", _uncorrected),
    ("mig_mode", lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0]),
    ("persistence_mode", lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu)),
    ("compute_mode", lambda nvml, gpu: nvml.nvmlDeviceGetComputeMode(gpu)),
    ("pcie_link", _link),
    ("processes", lambda nvml, gpu: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))),
)


def _cuda_version(nvml: Any, _: Any) -> int:
    try:
        return int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return int(nvml.nvmlSystemGetCudaDriverVersion())


SYSTEM_QUESTIONS: tuple[Question, ...] = (
    ("driver_version", lambda nvml, _: nvml.nvmlSystemGetDriverVersion()),
    ("cuda_driver_version", _cuda_version),
    ("nvml_version", lambda nvml, _: nvml.nvmlSystemGetNVMLVersion()),
)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _ask(nvml: Any, handle: Any, question: Question, **where: Any) -> None:
    """Answer one question, or say why not; whatever a driver raises is the reason."""
    name, function = question
    reply(asking=name, **where)
    try:
        value = _plain(function(nvml, handle))
    except Exception as error:  # the border to the driver: any failure is an answer
        reply(field=name, error=_reason(error), **where)
    else:
        reply(field=name, value=value, **where)


def _reason(error: Exception) -> str:
    """`NotSupported`, `GpuIsLost`, … for NVML's own errors."""
    kind = type(error).__name__
    return kind.removeprefix("NVMLError_") if kind.startswith("NVMLError_") else f"{kind}: {error}"


def _ask_nvml() -> None:
    try:
        import pynvml
    except ImportError as error:
        reply(nvml_error="NoBinding", message=str(error))
        return
    reply(asking="nvmlInit")
    try:
        pynvml.nvmlInit()
    except Exception as error:  # the border to the driver
        reply(nvml_error=_reason(error))
        return
    for question in SYSTEM_QUESTIONS:
        _ask(pynvml, None, question)
    reply(asking="count")
    try:
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # the border to the driver
        reply(field="count", error=_reason(error))
        return
    reply(field="count", value=count)
    for index in range(count):
        _ask_device(pynvml, index)


def _ask_device(nvml: Any, index: int) -> None:
    reply(asking="handle", device=index)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:  # the border to the driver
        reply(field="handle", error=_reason(error), device=index)
        return
    for question in DEVICE_QUESTIONS:
        _ask(nvml, handle, question, device=index)


def _ask_driver() -> None:
    """`cuInit` tells apart what NVML cannot: a fabric manager that is down, a library mismatch."""
    reply(asking="cuInit")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        reply(libcuda_error=str(error))
        return
    version = ctypes.c_int()
    try:
        status = cuda.cuInit(0)
        cuda.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError as error:
        reply(libcuda_error=str(error))
        return
    reply(cu_init=status, cu_version=version.value)


def main() -> None:
    open_channel()
    _ask_nvml()
    _ask_driver()
    reply(asking=None)


if __name__ == "__main__":
    main()
