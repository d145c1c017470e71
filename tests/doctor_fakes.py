"""Environments made of small fakes: a driver library, a torch, extensions that break."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tracer.environment.ask import Answer
from tracer.environment.facts import Facts, read_nvml, read_torch
from tracer.environment.machine import Machine
from tracer.environment.rows import Row

_SOURCE = Path(__file__).with_name("doctor_nvml.c")
NVML_LIBRARY = "libnvidia-ml.so.1"

_TORCH = '''
"""A torch that answers what a diagnosis asks, and nothing else."""
__version__ = "2.13.0+cu{digits}"

class version:
    cuda = "{cuda}"
    hip = None

class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return "{architectures}"

class cuda:
    @staticmethod
    def is_available():
        return False
    @staticmethod
    def init():
        raise RuntimeError("No CUDA GPUs are available")
'''
_PINNED = "2.13.0+cu130"


def need_compiler() -> str:
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("gcc is needed to build the fake libraries")
    return found


def build_nvml(folder: Path) -> Path:
    """The folder with the fake driver library, for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [need_compiler(), "-shared", "-fPIC", str(_SOURCE), "-o", str(folder / NVML_LIBRARY)]
    subprocess.run(command, check=True)
    return folder


def write_torch(
    folder: Path, *, cuda: str = "13.0", architectures: str = "sm_80 sm_90 sm_100 compute_120"
) -> None:
    """A torch wheel built for this CUDA and these architectures."""
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    text = _TORCH.format(cuda=cuda, digits=cuda.replace(".", ""), architectures=architectures)
    (folder / "torch/__init__.py").write_text(text)


def write_package(folder: Path, name: str, body: str) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(body)


def write_broken_extension(folder: Path, name: str) -> None:
    """An extension module whose import fails on a symbol of another torch."""
    source = folder / f"{name}.c"
    source.write_text(
        "extern void _ZN3c104cuda20CUDACachingAllocator9allocatorE(void);\n"
        f"void *PyInit_{name}(void)"
        " { _ZN3c104cuda20CUDACachingAllocator9allocatorE(); return 0; }\n"
    )
    suffix = ".so"
    command = [
        need_compiler(),
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(folder / (name + suffix)),
    ]
    subprocess.run(command, check=True)


def machine(root: Path, path: Path, *, libraries: Path | None = None, **environ: str) -> Machine:
    """A machine of files below `root`, on whose path `path` comes first. Packages of this
    interpreter stay visible except torch and the extensions, as far as `path` covers them."""
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment |= environ
    environment["LD_LIBRARY_PATH"] = str(libraries or root / "no-libraries")
    return Machine(root=root, environ=environment, path=(str(path), *sys.path))


def rows_by_rule(rows: tuple[Row, ...]) -> dict[str, Row]:
    return {row.rule: row for row in rows}


def facts(root: Path, **wheel: Any) -> Facts:
    """Facts without any probe: a machine of files, no driver, a torch with these answers."""
    answers: tuple[Mapping[str, Any], ...] = ()
    if wheel:
        answers = ({"torch": {"version": _PINNED, "cuda": None, "hip": None, **wheel}},)
    done = {"stage": "done"}
    return Facts(
        machine=Machine(root=root, environ={}, path=()),
        nvml=read_nvml(Answer(({"nvml_error": "LibraryNotFound"},), 0)),
        torch=read_torch(Answer((*(dict(a) for a in answers), done), 0)),
    )


def with_nvml(
    base: Facts, *devices: Mapping[str, Any], cuda: int = 13000, driver: str = "580.65.06"
) -> Facts:
    """The facts with a driver that gives these fields for its GPUs."""
    replies: list[dict[str, Any]] = [
        {"field": "driver_version", "value": driver},
        {"field": "cuda_driver_version", "value": cuda},
        {"field": "count", "value": len(devices)},
    ]
    for index, fields in enumerate(devices):
        replies += [{"device": index, "field": k, "value": v} for k, v in fields.items()]
    replies += [{"cu_init": 0, "cu_version": cuda}, {"asking": None}]
    return replace(base, nvml=read_nvml(Answer(tuple(replies), 0)))


def with_environ(base: Facts, **environ: str) -> Facts:
    return replace(base, machine=replace(base.machine, environ=environ))


def with_task(base: Facts, name: str, *replies: Mapping[str, Any], ended: int | None = 0) -> Facts:
    """The facts with one more child of the torch probe that said this."""
    said = [{"task": name, **reply} for reply in replies]
    end = {"task": name, "ended": ended, "late": ended is None, "stderr": ""}
    answer = Answer(({"tasks": [name]}, *said, end), 0)
    tasks = {**base.torch.tasks, **read_torch(answer).tasks}
    return replace(base, torch=replace(base.torch, tasks=tasks))
