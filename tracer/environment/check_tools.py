"""What stands between a profiler and the GPU: permissions, other tools, WSL, containers."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.environment.facts import Facts
from tracer.environment.machine import Machine
from tracer.environment.rows import Row, ok, warning

# Programs that hold the profiling interface of a GPU while they run.
_HOLDERS = {
    "nv-hostengine": "DCGM",
    "dcgm-exporter": "DCGM exporter",
    "nsys": "Nsight Systems",
    "nsys-launcher": "Nsight Systems",
    "ncu": "Nsight Compute",
    "nv-nsight-cu-cli": "Nsight Compute",
    "rocprofv3": "rocprofv3",
    "rocprof": "rocprof",
}
_INJECTIONS = ("CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "NVTX_INJECTION64_PATH")
_SMALL_SHM = 1 << 30


def check_tools(facts: Facts) -> Iterable[Row]:
    """Profiler permission, holders of CUPTI, and where this runs."""
    yield from _permission_rows(facts.machine)
    yield from _holder_rows(facts.machine)
    yield from _place_rows(facts.machine)


def _permission_rows(machine: Machine) -> Iterable[Row]:
    """Kernel timelines need no permission; hardware counters may be for administrators only."""
    text = machine.text("/proc/driver/nvidia/params")
    if text is None:
        return
    if "RmProfilingAdminOnly: 1" in text:
        yield ok(
            "profiler.permission",
            "hardware counters",
            "for administrators only; timelines, and so tracer, work without them",
            remedy="options nvidia NVreg_RestrictProfilingToAdminUsers=0",
        )
    else:
        yield ok("profiler.permission", "hardware counters", "open to every user")


def _holder_rows(machine: Machine) -> Iterable[Row]:
    set_here = [name for name in _INJECTIONS if machine.variable(name)]
    if set_here:
        yield warning(
            "profiler.injected",
            "profilers",
            f"{', '.join(set_here)} puts another tool into every CUDA program",
            "unset it: two tools cannot hold CUPTI at once",
        )
    running = sorted(_running_holders(machine))
    if running:
        yield warning(
            "profiler.held",
            "profilers",
            f"running now: {', '.join(running)}; while it profiles, CUPTI is taken",
            "stop it, or pause it (dcgmi profile --pause), if recordings have no device rows",
        )
    elif not set_here:
        yield ok("profiler.held", "profilers", "no other profiler is running")


def _running_holders(machine: Machine) -> set[str]:
    found: set[str] = set()
    for pid in machine.names("/proc"):
        if pid.isdigit():
            name = machine.text(f"/proc/{pid}/comm")
            if name in _HOLDERS:
                found.add(f"{_HOLDERS[name]} ({name}, pid {pid})")
    return found


def _place_rows(machine: Machine) -> Iterable[Row]:
    if machine.in_wsl:
        yield warning(
            "place.wsl",
            "WSL",
            "Windows Subsystem for Linux: CUPTI gives timelines only with the driver's permission",
            "NVIDIA Control Panel, Desktop, Enable Developer Settings, Manage GPU Performance "
            "Counters: allow access to all users",
        )
    if not machine.in_container:
        yield ok("place", "container", "none")
        return
    yield ok("place", "container", "yes: process ids and limits are the container's")
    shm = _shm_bytes(machine)
    if shm is not None and shm < _SMALL_SHM:
        yield warning(
            "place.shm",
            "/dev/shm",
            f"{shm / 1e6:.0f} MB: DataLoader workers and NCCL may fail",
            "start the container with --ipc=host or --shm-size=16g",
        )


def _shm_bytes(machine: Machine) -> int | None:
    """The size option of the mount, as containers set it."""
    for line in (machine.text("/proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/dev/shm":
            for option in fields[3].split(","):
                if option.startswith("size="):
                    return _size(option.removeprefix("size="))
    return None


def _size(text: str) -> int | None:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    return int(number) * units.get(unit, 1) if number.isdigit() else None
