"""The torch wheel: does it import, was it built for these GPUs, do its libraries fit."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from tracer.environment.facts import Facts, Torch
from tracer.environment.rows import Row, error, not_checked, ok, warning

_OLDEST, _BEYOND = (2, 11), (2, 15)
_PYTHONS = ((3, 10), (3, 13))
_WHEELS = "https://download.pytorch.org/whl"


def check_wheel(facts: Facts) -> Iterable[Row]:
    """Python, torch, and the architectures it was compiled for."""
    yield _python_row()
    torch = facts.torch
    if not torch.imported:
        yield _import_row(torch)
        return
    yield _torch_row(facts)
    yield from _numpy_rows(torch)
    yield from _pinned_rows(facts)
    if torch.cudnn_error is not None:
        yield error(
            "wheel.cudnn",
            "cuDNN",
            torch.cudnn_error.splitlines()[0],
            "take other cuDNN folders out of LD_LIBRARY_PATH, or reinstall torch",
        )
    yield from _architecture_rows(facts)


def _python_row() -> Row:
    version = sys.version_info[:2]
    text = f"Python {sys.version.split()[0]}"
    if _PYTHONS[0] <= version <= _PYTHONS[1]:
        return ok("python.version", "Python", text)
    return warning(
        "python.version", "Python", f"{text}: not tested", "use Python 3.10 to 3.13 for tracer"
    )


def _import_row(torch: Torch) -> Row:
    if torch.error == "missing":
        return error(
            "torch.missing",
            "torch",
            "torch is not installed",
            "pip install torch (see pytorch.org)",
        )
    if torch.error is not None:
        return error(
            "torch.import",
            "torch",
            f"torch does not import: {first_line(torch.error)}",
            import_remedy(torch.error, "torch", torch),
        )
    if torch.late:
        return warning(
            "torch.slow",
            "torch",
            "torch did not finish its import in time: nothing of it was checked",
            "run again with --timeout 120: the first import from a cold disk is slow",
        )
    place = crash_place(torch.import_stderr, "torch")
    return error(
        "torch.crash",
        "torch",
        f"torch {torch.import_ending} while it was imported{place}",
        "pip install --force-reinstall torch; take LD_LIBRARY_PATH and LD_PRELOAD out of the way",
    )


def _torch_row(facts: Facts) -> Row:
    torch = facts.torch
    build = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "CPU only"
    facts_of_build = [build]
    for name, called in (("cudnn", "cuDNN"), ("nccl", "NCCL")):
        if torch.wheel.get(name):
            facts_of_build.append(f"{called} {torch.wheel[name]}")
    text = f"torch {torch.version} ({', '.join(facts_of_build)})"
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch.version)[:2])
    if numbers and not _OLDEST <= numbers < _BEYOND:
        return warning(
            "torch.version",
            "torch",
            f"{text}: tracer is made for 2.11 to 2.14",
            "other versions work as far as the rows below say",
        )
    if torch.cuda is None and torch.hip is None and facts.has_nvidia:
        return error(
            "wheel.cpu_only",
            "torch",
            f"{text}, but this machine has an NVIDIA GPU",
            f"pip install --force-reinstall torch --index-url {_WHEELS}/{_wheel_for(facts)}",
        )
    return ok("torch.version", "torch", text)


def _wheel_for(facts: Facts) -> str:
    """The newest CUDA wheel that this driver runs."""
    cuda = facts.nvml.cuda_version
    if cuda is None:
        return "cu126"
    return "cu130" if cuda >= (13, 0) else "cu128" if cuda >= (12, 8) else "cu126"


def _numpy_rows(torch: Torch) -> Iterable[Row]:
    if torch.wheel.get("numpy") is None:
        yield warning(
            "torch.numpy",
            "numpy",
            "tensors do not convert to numpy: it is missing, or of another major version",
            "pip install --upgrade numpy torch",
        )


def _pinned_rows(facts: Facts) -> Iterable[Row]:
    """The libraries that the wheel names with an exact version."""
    wrong: list[str] = []
    for requirement in facts.requirements.get("torch", ()):
        name, wanted = pinned(requirement)
        found = facts.versions.get(name) if name else None
        if name and wanted and found is not None and not found.startswith(wanted):
            wrong.append(f"{name} {found} (torch names {wanted})")
    if wrong:
        yield warning(
            "wheel.libraries",
            "CUDA libraries",
            "; ".join(wrong),
            "pip install --force-reinstall torch, with its dependencies",
        )


def pinned(requirement: str) -> tuple[str | None, str | None]:
    """`nvidia-cudnn-cu12==9.1.0; …` as name and version; None where no exact one is named."""
    match = re.match(
        r"\s*([A-Za-z0-9_.\-]+)(?:\[[^\]]*\])?\s*\(?==\s*([0-9][^\s;,)*]*)", requirement
    )
    if match is None:
        return None, None
    return match[1].lower().replace("_", "-"), match[2]


def _architecture_rows(facts: Facts) -> Iterable[Row]:
    """Each GPU's compute capability against the code in the wheel."""
    torch = facts.torch
    if torch.cuda is None:
        return
    listed = [str(name) for name in torch.wheel.get("architectures") or ()]
    if not listed:
        yield not_checked("wheel.architectures", "architectures", "the wheel does not list them")
        return
    for title, capability in _capabilities(facts):
        yield _architecture_row(title, capability, listed, ran=_ran_kernel(torch, title))


def _ran_kernel(torch: Torch, title: str) -> bool | None:
    for reply in torch.task("device").replies:
        if reply.get("ran") == "kernel" and title == f"GPU {reply.get('cuda_device')}":
            return bool(reply.get("ok"))
    return None


def _capabilities(facts: Facts) -> Iterable[tuple[str, tuple[int, int]]]:
    """From torch where it answers, else from NVML."""
    from_torch = [(f"GPU {d.index}", d.capability) for d in facts.torch.devices if d.capability]
    if from_torch:
        yield from from_torch
        return
    for device in facts.nvml.devices:
        value = device.get("capability").value
        if isinstance(value, list | tuple) and len(value) == 2:
            yield device.title, (int(value[0]), int(value[1]))


def supports(capability: tuple[int, int], listed: Sequence[str]) -> str:
    """`binary` if code for this GPU is in the wheel, `ptx` if it can be compiled for it at the
    first start, else `none`. Code of a major version runs on later minor ones; with the suffixes
    `a` and `f` it does not leave its own."""
    major, minor = capability
    binary = ptx = False
    for name in listed:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        code = (int(match[2]), int(match[3]))
        if match[1] == "compute":
            ptx |= code <= capability and not match[4]
        elif match[4] == "a":
            binary |= code == capability
        else:
            binary |= code[0] == major and code[1] <= minor
    return "binary" if binary else "ptx" if ptx else "none"


def _architecture_row(
    title: str, capability: tuple[int, int], listed: Sequence[str], *, ran: bool | None
) -> Row:
    named = f"capability {capability[0]}.{capability[1]} (sm_{capability[0]}{capability[1]})"
    wheel = f"the wheel has {' '.join(listed)}"
    kind = supports(capability, listed)
    if kind == "binary" or ran:
        ran_text = "; a kernel ran" if ran else ""
        return ok("wheel.architectures", title, f"{named}: {wheel}{ran_text}")
    if kind == "ptx":
        return warning(
            "wheel.architecture_ptx",
            title,
            f"{named}: {wheel}, only as PTX: the first start compiles for minutes",
            f"take a wheel that lists sm_{capability[0]}{capability[1]}",
        )
    newest = max((int(n) for n in re.findall(r"sm_(\d+)", " ".join(listed))), default=0)
    age = "newer" if capability[0] * 10 + capability[1] > newest else "older"
    remedy = (
        f"take a newer wheel, built for this GPU: pip install --upgrade torch --index-url "
        f"{_WHEELS}/cu130"
        if age == "newer"
        else f"take an older wheel, or one for CUDA 12: pip install torch --index-url "
        f"{_WHEELS}/cu126"
    )
    return error(
        "wheel.no_architecture",
        title,
        f"{named} is {age} than all the wheel was built for: {wheel}",
        remedy,
    )


def first_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0].strip()[:300] if lines else ""


def crash_place(stderr: str, package: str = "") -> str:
    """Where a crash came from, of the frames that faulthandler wrote: the innermost one of the
    package, else of anything but Python's import machinery."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', stderr)
    outside = [f for f in frames if "importlib" not in f[0] and not f[0].startswith("<")]
    own = [f for f in outside if package and f"/{package}/" in f[0]]
    if not outside:
        return ""
    file, line = (own or outside)[0]
    return f" (at {'/'.join(file.rsplit('/', 2)[-2:])}:{line})"


def import_remedy(message: str, package: str, torch: Torch) -> str:
    """What to do about an ImportError, from its text."""
    built = f"torch {torch.version}" if torch.version else "this torch"
    rebuild = f"pip install --force-reinstall --no-deps --no-build-isolation {package}"
    if "undefined symbol" in message:
        if package == "torch":
            return "take LD_LIBRARY_PATH out of the way, then pip install --force-reinstall torch"
        return f"it was built for another torch: {rebuild}, for {built}"
    library = re.search(r"(lib[\w\-]+\.so[.\d]*): cannot open shared object", message)
    if library is not None:
        # These carry CUDA's own version in their name; cuDNN and NCCL have versions of their own.
        major = re.match(r"lib(?:cudart|cublas|cublasLt|nvrtc|cufft)\.so\.(\d+)", library[1])
        if major is not None and torch.cuda and not torch.cuda.startswith(major[1] + "."):
            return (
                f"it needs the CUDA {major[1]} libraries, torch brings CUDA {torch.cuda}: {rebuild}"
            )
        return f"{library[1]} is missing: install what brings it, or {rebuild}"
    if re.search(r"GLIBC(XX)?_\d", message):
        return "it was built on a newer system than this: build it here, or use a newer image"
    missing = re.search(r"No module named '([\w.]+)'", message)
    if missing is not None:
        return f"pip install {missing[1].partition('.')[0]}"
    return f"pip install --force-reinstall {package}"
