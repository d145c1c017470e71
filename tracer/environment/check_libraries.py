"""CUDA libraries: one of each, from the wheel, and nothing put before it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tracer.environment.facts import Facts
from tracer.environment.rows import Row, ok, warning
from tracer.environment.tasks import CUDA_LIBRARIES


def check_libraries(facts: Facts) -> Iterable[Row]:
    """LD_LIBRARY_PATH, LD_PRELOAD, doubles in the process and among the packages."""
    yield from _search_path_rows(facts)
    yield from _preload_rows(facts)
    yield from _double_rows(facts)
    yield from _package_rows(facts)


def _stem(name: str) -> str | None:
    match = CUDA_LIBRARIES.search(name)
    return match[1] if match else None


def _search_path_rows(facts: Facts) -> Iterable[Row]:
    """Libraries that LD_LIBRARY_PATH puts before the wheel's."""
    value = facts.machine.variable("LD_LIBRARY_PATH")
    if not value:
        yield ok("libraries.path", "LD_LIBRARY_PATH", "not set")
        return
    found: dict[str, set[str]] = {}
    absent: list[str] = []
    for folder in filter(None, value.split(":")):
        names = facts.machine.names(folder)
        if not names and not facts.machine.exists(folder):
            absent.append(folder)
        stems = {stem for name in names if (stem := _stem(name)) is not None}
        if stems:
            found[folder] = stems
    has_gpu_wheel = facts.torch.cuda is not None or facts.torch.hip is not None
    if found and has_gpu_wheel:
        told = "; ".join(f"{folder}: {', '.join(sorted(stems))}" for folder, stems in found.items())
        yield warning(
            "libraries.shadowed",
            "LD_LIBRARY_PATH",
            f"puts other CUDA libraries before those of the wheel: {told}",
            "unset LD_LIBRARY_PATH; the wheel finds its own libraries",
        )
    else:
        missing = f"; absent folders: {', '.join(absent)}" if absent else ""
        yield ok("libraries.path", "LD_LIBRARY_PATH", f"shadows nothing{missing}")


def _preload_rows(facts: Facts) -> Iterable[Row]:
    value = facts.machine.variable("LD_PRELOAD")
    if value:
        yield warning(
            "libraries.preload",
            "LD_PRELOAD",
            f"{value} is loaded into every process",
            "unset LD_PRELOAD unless it is an allocator you chose",
        )


def _double_rows(facts: Facts) -> Iterable[Row]:
    """The same library twice in the process that imported torch."""
    by_stem: dict[str, set[str]] = {}
    for path in facts.torch.libraries:
        stem = _stem(Path(path).name)
        if stem is not None:
            by_stem.setdefault(stem, set()).add(path)
    doubles = {stem: sorted(paths) for stem, paths in by_stem.items() if len(paths) > 1}
    if doubles:
        told = "; ".join(f"{stem}: {', '.join(paths)}" for stem, paths in doubles.items())
        yield warning(
            "libraries.double",
            "CUDA libraries",
            f"loaded twice into one process: {told}",
            "keep one: unset LD_LIBRARY_PATH, or uninstall the package that brings the other",
        )
    elif facts.torch.libraries:
        count = len(by_stem)
        yield ok("libraries.double", "CUDA libraries", f"{count} loaded, each once")


def _package_rows(facts: Facts) -> Iterable[Row]:
    """`nvidia-cudnn-cu12` beside `nvidia-cudnn-cu13`: both folders are searched."""
    majors: dict[str, set[str]] = {}
    for name in facts.versions:
        match = re.fullmatch(r"nvidia-(\w+)-cu(\d\d)", name)
        if match is not None:
            majors.setdefault(match[1], set()).add(match[2])
    doubles = sorted(name for name, found in majors.items() if len(found) > 1)
    if doubles and facts.torch.cuda is not None:
        keep = facts.torch.cuda.partition(".")[0]
        yield warning(
            "libraries.packages",
            "CUDA packages",
            f"for two CUDA versions at once: {', '.join(doubles)}",
            f"pip uninstall those that do not end in -cu{keep}",
        )
