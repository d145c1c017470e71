"""The diagnosis: ask all probes at once, then let every check judge the answers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import PathFinder

from tracer.environment.ask import Answer, ask_python
from tracer.environment.check_compiler import check_compiler, probe_compilers
from tracer.environment.check_device_work import (
    check_attention,
    check_cuda,
    check_interfaces,
    check_precisions,
    check_profiler,
)
from tracer.environment.check_devices import check_devices
from tracer.environment.check_driver import check_driver
from tracer.environment.check_extensions import check_extensions
from tracer.environment.check_host import check_host
from tracer.environment.check_libraries import check_libraries
from tracer.environment.check_rocm import check_rocm
from tracer.environment.check_tools import check_tools
from tracer.environment.check_variables import check_variables
from tracer.environment.check_wheel import check_wheel
from tracer.environment.extensions import EXTENSIONS
from tracer.environment.facts import Facts, read_nvml, read_torch
from tracer.environment.machine import Machine
from tracer.environment.rows import STATUSES, Row, Status

Check = Callable[[Facts], Iterable[Row]]

# Family of the table, and its checks, in the order they are shown.
CHECKS: tuple[tuple[str, tuple[Check, ...]], ...] = (
    ("driver and GPUs", (check_driver, check_devices, check_rocm)),
    ("torch", (check_wheel, check_cuda, check_precisions)),
    ("attention", (check_attention,)),
    ("extensions", (check_extensions,)),
    ("compiler", (check_compiler,)),
    ("libraries", (check_libraries,)),
    ("profiler", (check_profiler, check_tools)),
    ("variables", (check_variables,)),
    ("host", (check_host,)),
    ("tracer", (check_interfaces,)),
)
# Of the whole time: for one import, and for what starts CUDA, which takes seconds on many GPUs.
_IMPORT_SHARE, _CUDA_SHARE = 0.2, 0.7


@dataclass(frozen=True)
class Diagnosis:
    """All rows, by family."""

    families: Mapping[str, tuple[Row, ...]]

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for rows in self.families.values() for row in rows)

    def count(self, status: Status) -> int:
        return sum(1 for row in self.rows if row.status == status)

    def with_status(self, status: Status) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == status)

    @property
    def worst(self) -> Status:
        for status in STATUSES:
            if status != "not_checked" and self.count(status):
                return status
        return "ok"


def examine(machine: Machine | None = None, *, timeout_s: float = 30.0) -> Diagnosis:
    """Ask and judge. Nothing is imported into this process, and no probe outlives the time."""
    return judge(gather(machine or Machine(), timeout_s=timeout_s))


def judge(facts: Facts) -> Diagnosis:
    """The rows of every check."""
    return Diagnosis(
        {
            family: tuple(row for check in checks for row in check(facts))
            for family, checks in CHECKS
        }
    )


def gather(machine: Machine, *, timeout_s: float) -> Facts:
    """The answers of all probes, asked side by side."""
    installed = tuple(e.name for e in EXTENSIONS if _is_installed(e.module, machine))
    import_s = max(1.0, timeout_s * _IMPORT_SHARE)
    payload = {
        "extensions": installed,
        "import_timeout_s": import_s,
        "cuda_timeout_s": timeout_s * _CUDA_SHARE,
        "parallel": min(4, max(2, os.cpu_count() or 2)),
    }
    with ThreadPoolExecutor(max_workers=3) as pool:
        nvml = pool.submit(_ask, "tracer.environment.probe_nvml", {}, machine, timeout_s / 2)
        torch = pool.submit(_ask, "tracer.environment.probe_torch", payload, machine, timeout_s)
        compilers = pool.submit(probe_compilers, machine, timeout_s=import_s)
        versions, requirements = _distributions(machine)
        return Facts(
            machine=machine,
            nvml=read_nvml(nvml.result()),
            torch=read_torch(torch.result()),
            extensions=installed,
            versions=versions,
            requirements=requirements,
            compilers=compilers.result(),
        )


def _ask(module: str, payload: object, machine: Machine, timeout_s: float) -> Answer:
    return ask_python(
        module, payload, timeout_s=timeout_s, environ=machine.environ, path=machine.path
    )


def _is_installed(module: str, machine: Machine) -> bool:
    """Whether the module is on the path; nothing is imported for the answer."""
    try:
        spec = PathFinder.find_spec(module, list(machine.path))
        if spec is None and list(machine.path) == sys.path:  # an editable install has a finder
            spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    # A folder without `__init__` is a namespace anybody's data may have.
    return spec is not None and spec.origin is not None


def _distributions(
    machine: Machine,
) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]]]:
    """Version and requirements of what is installed, by normalized name."""
    versions: dict[str, str] = {}
    requirements: dict[str, tuple[str, ...]] = {}
    for found in importlib.metadata.distributions(path=list(machine.path)):
        name = re.sub(r"[-_.]+", "-", str(found.metadata["Name"] or "")).lower()
        if name and name not in versions:
            versions[name] = found.version
            if name == "torch" or any(name in e.distributions for e in EXTENSIONS):
                requirements[name] = tuple(found.requires or ())
    return versions, requirements
