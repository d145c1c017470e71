"""Counters of the devices that the program uses, sampled on a thread of its own through NVML.

Each field of each device stands for itself: one that the device does not have is absent, with the
reason, and takes nothing else with it.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pandas as pd

from tracer.collectors.device_identity import Identity, Installed, find_handle, visible_identities
from tracer.events import SIDE_TABLES, Note, make_table
from tracer.own_thread import OwnThread

INTERVAL_S = 0.1
# Each answer of the driver costs a program that calls operators one after another a wait for the
# interpreter, which changes hands for it: what the driver itself renews seldom, or what changes
# slowly, is asked for in every fifth sample.
_OFTEN = ("power_watts", "sm_clock_hertz")
_SAMPLES_PER_FULL = 5
# Opening the library takes the driver long enough to hold up the steps that run meanwhile: a trace
# starts when it is done, or after so long where the driver hangs.
_OPENING_S = 2.0
# To ask the framework which devices it uses takes longer than a sample of one, and the program
# waits for each of its answers: it is asked in every tenth sample, and until it names one.
_SAMPLES_PER_SEARCH = 10
NOT_SAMPLED = "capture.metrics"
MEMORY_USED = "memory_used_bytes"

Reader = Callable[[Any, Any], float]


def _throttle_reasons(nvml: Any, handle: Any) -> float:
    read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return float((read or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))


# Each takes 3 to 10 us; energy (3 ms) and PCIe throughput (21 ms) are left out.
FIELDS: Mapping[str, Reader] = MappingProxyType(
    {
        "gpu_utilization_ratio": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,
        "memory_utilization_ratio": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory / 100,
        MEMORY_USED: lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used,
        "power_watts": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,
        "temperature_celsius": lambda n, h: n.nvmlDeviceGetTemperature(h, 0),
        "sm_clock_hertz": lambda n, h: n.nvmlDeviceGetClockInfo(h, 1) * 1_000_000,
        "memory_clock_hertz": lambda n, h: n.nvmlDeviceGetClockInfo(h, 2) * 1_000_000,
        "throttle_reasons": _throttle_reasons,
    }
)
_NAMES = tuple(FIELDS)


class Framework(Protocol):
    """What the framework says of its devices."""

    def used_devices(self) -> list[Identity]:
        """Those that this process uses now; empty before it uses any."""
        ...

    def memory_used_bytes(self, index: int) -> int:
        """Memory in use on a device, by whomever."""
        ...


class TorchDevices:
    """The devices of torch, asked without making it initialize one."""

    def used_devices(self) -> list[Identity]:
        import torch

        from tracer.collectors.untyped_torch import cuda_is_initialized

        if not cuda_is_initialized():
            return []
        indexes = [i for i in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(i)]
        return [_torch_identity(i) for i in indexes or [torch.cuda.current_device()]]

    def memory_used_bytes(self, index: int) -> int:
        import torch

        free, total = torch.cuda.mem_get_info(index)
        return total - free


def _torch_identity(index: int) -> Identity:
    import torch

    properties: Any = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return Identity(index, uuid)
    return Identity(
        index, uuid, f"{properties.pci_domain_id:08x}:{bus:02x}:{properties.pci_device_id:02x}.0"
    )


@dataclass
class _Failure:
    reason: str
    failed: int = 0


@dataclass
class _Device:
    identity: Identity
    handle: Any
    failures: dict[str, _Failure] = field(default_factory=dict)
    sampled: Counter[str] = field(default_factory=Counter)
    memory_by_framework: bool = False


class DeviceMetrics:
    """Samples of the devices in use until it is closed: what changes often ten times a second, the
    other fields twice."""

    def __init__(self, framework: Framework | None = None, interval_s: float = INTERVAL_S) -> None:
        self._framework = framework or TorchDevices()
        self._interval_s = interval_s
        self._stop, self._is_open = threading.Event(), threading.Event()
        self._thread = OwnThread(self._run)
        self._integers = array("q")  # device, field, time
        self._values = array("d")
        self._devices: dict[int, _Device] = {}
        self._missing: dict[int, str] = {}
        self._unavailable = ""
        self._used: list[Identity] = []
        self._samples = 0
        self._nvml: Any = None
        self._installed: list[Installed] = []

    def start(self) -> None:
        """Begin to sample. Returns when the driver's library is open."""
        self._thread.start()
        self._is_open.wait(_OPENING_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2)  # a driver that hangs must not hold up the program

    def _run(self) -> None:
        try:
            try:
                self.open()
            finally:
                self._is_open.set()
            while not self._stop.wait(self._interval_s):
                self.sample()
        except Exception as error:  # the driver's and the framework's: without them we only miss it
            self._unavailable = _reason(error)

    def open(self) -> None:
        """Load the driver's library and list its devices."""
        self._nvml, self._installed = _open_library()

    def sample(self) -> None:
        """One sample of each device in use, of all its fields or of those that change often."""
        if not self._used or self._samples % _SAMPLES_PER_SEARCH == 0:
            self._used = self._framework.used_devices()
        all_fields = self._samples % _SAMPLES_PER_FULL == 0
        self._samples += bool(self._used)
        for identity in self._used:
            device = self._devices.get(identity.number) or self._find(identity)
            if device is not None:
                for code, name in enumerate(_NAMES):
                    if all_fields or name in _OFTEN:
                        self._read(device, code, name)

    def _find(self, identity: Identity) -> _Device | None:
        if not identity.uuid and not identity.pci:
            identity = self._by_environment(identity)
        handle = find_handle(identity, self._installed, self._by_uuid)
        if handle is None:
            self._missing.setdefault(identity.number, "its UUID or PCI address is not the driver's")
            return None
        device = self._devices[identity.number] = _Device(identity, handle)
        return device

    def _by_environment(self, identity: Identity) -> Identity:
        """What the variables say, where the framework tells neither UUID nor address."""
        visible = visible_identities(
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            os.environ.get("CUDA_DEVICE_ORDER"),
            self._installed,
        )
        return visible[identity.number] if identity.number < len(visible) else identity

    def _by_uuid(self, uuid: str) -> Any | None:
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError:
            return None

    def _read(self, device: _Device, code: int, name: str) -> None:
        try:
            value = FIELDS[name](self._nvml, device.handle)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"the driver says {value!r}")
        except Exception as error:  # the driver's answers are not ours to trust
            failure = device.failures.setdefault(name, _Failure(_reason(error)))
            failure.failed += 1
            if name == MEMORY_USED and not device.sampled[name]:
                self._read_memory_from_framework(device, code)
            return
        device.sampled[name] += 1
        self._add(device, code, float(value))

    def _read_memory_from_framework(self, device: _Device, code: int) -> None:
        try:
            value = self._framework.memory_used_bytes(device.identity.number)
        except Exception:  # the framework's answer is a substitute: without it the field is absent
            return
        device.memory_by_framework = True
        self._add(device, code, float(value))

    def _add(self, device: _Device, code: int, value: float) -> None:
        self._integers.extend((device.identity.number, code, time.time_ns()))
        self._values.append(value)

    def latest(self) -> list[tuple[int, str, float]]:
        """The last value of each field of each device, while the thread goes on sampling."""
        end = len(self._values)
        first = max(end - 4 * len(_NAMES) * max(len(self._devices), 1), 0)
        places = self._integers[3 * first : 3 * end]
        rows = zip(places[0::3], places[1::3], self._values[first:end], strict=True)
        return [(d, _NAMES[f], v) for (d, f), v in {(d, f): v for d, f, v in rows}.items()]

    def table(self) -> pd.DataFrame:
        """The `metrics` table."""
        rows = np.array(self._integers, dtype=np.int64).reshape(-1, 3)
        return make_table(
            SIDE_TABLES["metrics"],
            {
                "device": rows[:, 0].astype(np.int32),
                "metric": pd.Categorical.from_codes(
                    rows[:, 1].astype(np.int8), categories=pd.Index(_NAMES)
                ),
                "time_ns": rows[:, 2],
                "value": np.array(self._values, dtype=np.float64),
            },
        )

    def notes(self) -> list[Note]:
        """What could not be sampled, with the reason."""
        if self._unavailable:
            message = f"device counters are not available: {self._unavailable}"
            return [Note(NOT_SAMPLED, message, detail={"reason": self._unavailable})]
        notes = [
            Note(
                NOT_SAMPLED,
                f"no counters of device {index}: {reason}",
                detail={"device": index, "reason": reason},
            )
            for index, reason in self._missing.items()
        ]
        return notes + [
            _field_note(name, failing, len(self._devices))
            for name in _NAMES
            if (failing := [d for d in self._devices.values() if name in d.failures])
        ]


def _field_note(name: str, devices: list[_Device], device_count: int) -> Note:
    failures = [device.failures[name] for device in devices]
    failed = sum(failure.failed for failure in failures)
    sampled = sum(device.sampled[name] for device in devices)
    counted = device_count - sum(not device.sampled[name] for device in devices)
    message = f"{name}: n/a on {device_count - counted} of {device_count} devices"
    if sampled:
        message = f"{name}: {failed} of {failed + sampled} samples failed"
    message += f" ({failures[0].reason})"
    if any(device.memory_by_framework for device in devices) and name == MEMORY_USED:
        message += "; the framework's own query is used instead"
    return Note(
        NOT_SAMPLED,
        message,
        count=failed,
        detail={"metric": name, "reason": failures[0].reason, "devices_counted": counted},
    )


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


# Open until the process ends: the library, its devices, and the process.
_library: tuple[Any, list[Installed], int] | None = None


def _open_library() -> tuple[Any, list[Installed]]:
    """The driver's library, opened once a process, and the devices that it knows."""
    global _library
    import pynvml

    if _library is None or _library[::2] != (pynvml, os.getpid()) or not _is_open(pynvml):
        pynvml.nvmlInit()
        found = (_installed(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount()))
        installed = [device for device in found if device is not None]
        _library = pynvml, installed, os.getpid()
    return _library[:2]


def _is_open(nvml: Any) -> bool:
    """Whether nobody has shut it meanwhile."""
    try:
        nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return False
    return True


def _installed(nvml: Any, index: int) -> Installed | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:  # lost, or not ours to see
        return None
    return Installed(
        handle,
        _text(nvml.nvmlDeviceGetUUID, handle),
        _pci(nvml, handle),
        _text(nvml.nvmlDeviceGetName, handle),
    )


def _pci(nvml: Any, handle: Any) -> str:
    try:
        info = nvml.nvmlDeviceGetPciInfo(handle)
        return f"{info.domain:08x}:{info.bus:02x}:{info.device:02x}.0"
    except nvml.NVMLError:
        return ""


def _text(read: Callable[[Any], Any], handle: Any) -> str:
    try:
        value = read(handle)
    except Exception:  # a device that does not tell its name is no reason to miss the others
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)
