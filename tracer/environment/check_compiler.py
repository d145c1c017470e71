"""What just-in-time compilation needs: a compiler that works, headers, folders to write to."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tracer.environment.facts import Facts
from tracer.environment.machine import Machine
from tracer.environment.rows import Row, error, ok, warning

_SOURCE = "int main(void) { return 0; }\n"


def probe_compilers(machine: Machine, *, timeout_s: float) -> Mapping[str, str]:
    """Compile an empty program with each compiler that torch.compile and Triton would take, and
    ask nvcc for its version. The value is `ok`, a version, or what went wrong."""
    answers: dict[str, str] = {}
    for variable, program in (("CXX", "g++"), ("CC", "cc")):
        name = machine.variable(variable) or program
        found = machine.which(name)
        answers[program] = _compiles(found, machine, timeout_s) if found else "missing"
    nvcc = machine.which("nvcc") or _nvcc_of_home(machine)
    if nvcc is not None:
        answers["nvcc"] = _nvcc_version(nvcc, timeout_s)
    return answers


def _nvcc_of_home(machine: Machine) -> str | None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = machine.variable(variable)
        if home and (Path(home) / "bin/nvcc").exists():
            return str(Path(home) / "bin/nvcc")
    return None


def _compiles(compiler: str, machine: Machine, timeout_s: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text(_SOURCE)
        command = [compiler, str(source), "-o", str(Path(folder) / "empty")]
        return _run(command, timeout_s, machine.environ)[0]


def _run(
    command: list[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """`ok` or what went wrong, and the output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"{type(failure).__name__}", ""
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1], ""
    return "ok", done.stdout


def _nvcc_version(nvcc: str, timeout_s: float) -> str:
    status, output = _run([nvcc, "--version"], timeout_s)
    match = re.search(r"release (\d+\.\d+)", output)
    return match[1] if match else status


def check_compiler(facts: Facts) -> Iterable[Row]:
    """Compiler, Python headers, nvcc against the wheel, cache folders."""
    yield _host_compiler_row(facts)
    yield _headers_row()
    nvcc = facts.compilers.get("nvcc")
    if nvcc is not None:
        yield _nvcc_row(nvcc, facts.torch.cuda)
    elif facts.torch.cuda is not None:
        yield ok("compiler.nvcc", "nvcc", "not installed: only needed to build extensions here")
    yield from _folder_rows(facts.machine)


def _host_compiler_row(facts: Facts) -> Row:
    broken = {name: why for name, why in facts.compilers.items() if name in ("g++", "cc")}
    works = [name for name, why in broken.items() if why == "ok"]
    if len(works) == len(broken) and works:
        return ok("compiler", "compiler", f"{', '.join(works)} compiled an empty program")
    if all(why == "missing" for why in broken.values()):
        return warning(
            "compiler.missing",
            "compiler",
            "no C or C++ compiler: torch.compile and Triton cannot build",
            "apt-get install g++ (or your system's), or set CC and CXX",
        )
    told = "; ".join(f"{name}: {why}" for name, why in broken.items() if why != "ok")
    return warning(
        "compiler.broken",
        "compiler",
        f"the compiler does not compile an empty program ({told})",
        "apt-get install --reinstall g++ libc6-dev, or point CC and CXX at one that works",
    )


def _headers_row() -> Row:
    folder = sysconfig.get_paths()["include"]
    if (Path(folder) / "Python.h").exists():
        return ok("compiler.headers", "Python headers", folder)
    return warning(
        "compiler.headers",
        "Python headers",
        "no Python.h: Triton and torch.compile on the CPU cannot build their launchers",
        "apt-get install python3-dev (for this Python)",
    )


def _nvcc_row(version: str, wheel: str | None) -> Row:
    if not version[:1].isdigit():
        return warning(
            "compiler.nvcc", "nvcc", f"nvcc does not run: {version}", "reinstall the CUDA toolkit"
        )
    if wheel is not None and version.partition(".")[0] != wheel.partition(".")[0]:
        return warning(
            "compiler.nvcc",
            "nvcc",
            f"nvcc is {version}, torch has CUDA {wheel}: extensions built here will not fit it",
            f"set CUDA_HOME to a toolkit of CUDA {wheel.partition('.')[0]}",
        )
    return ok("compiler.nvcc", "nvcc", version)


def _folder_rows(machine: Machine) -> Iterable[Row]:
    """Folders of compiled code: writable, and not mounted noexec."""
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        folder = machine.variable(variable)
        if folder is not None:
            yield _folder_row(machine, variable, folder)
    mounts = _noexec_mounts(machine)
    if "/tmp" in mounts:
        yield warning(
            "compiler.tmp",
            "/tmp",
            "/tmp is mounted noexec: compiled kernels in it do not load",
            "export TORCHINDUCTOR_CACHE_DIR and TMPDIR to a folder on another file system",
        )


def _folder_row(machine: Machine, variable: str, folder: str) -> Row:
    path = machine.at(folder)
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), None)
    if existing is not None and os.access(existing, os.W_OK):
        return ok("compiler.folder", variable, folder)
    return error(
        "compiler.folder", variable, f"{folder} cannot be written", f"unset {variable}, or chmod it"
    )


def _noexec_mounts(machine: Machine) -> set[str]:
    lines = (machine.text("/proc/mounts") or "").splitlines()
    fields = [line.split() for line in lines]
    return {f[1] for f in fields if len(f) > 3 and "noexec" in f[3].split(",")}
