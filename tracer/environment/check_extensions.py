"""Compiled extensions: do they import beside this torch, were they built for it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracer.environment.ask import describe_ending
from tracer.environment.check_wheel import crash_place, first_line, import_remedy
from tracer.environment.extensions import EXTENSIONS, Extension, extension_named
from tracer.environment.facts import Facts, TaskEnd, Torch
from tracer.environment.rows import Row, error, not_checked, ok, warning


def check_extensions(facts: Facts) -> Iterable[Row]:
    """A row for each that is installed, and one that names the others."""
    for name in facts.extensions:
        extension = extension_named(name)
        end = facts.torch.task(f"extension:{name}")
        yield _extension_row(facts, extension, end)
        if end.ended_well:
            yield from _built_for_rows(facts, extension)
    absent = [e.name for e in EXTENSIONS if e.name not in facts.extensions]
    yield ok("extension.absent", "extensions", f"not installed: {', '.join(absent)}")


def _version(facts: Facts, extension: Extension) -> str | None:
    return next((facts.versions[d] for d in extension.distributions if d in facts.versions), None)


def _extension_row(facts: Facts, extension: Extension, end: TaskEnd) -> Row:
    version = _version(facts, extension) or _told_version(end)
    called = f"{extension.name} {version}" if version else extension.name
    if not end.ran:
        why = facts.torch.import_ending or "the probe did not get to it"
        return not_checked("extension.not_asked", extension.name, f"{called}: {why}")
    if end.late:
        return not_checked(
            "extension.slow",
            extension.name,
            f"{called} did not finish its import in time",
            "run again with --timeout 120; if it hangs again, look at what it waits for",
        )
    if end.status is not None and end.status < 0:
        return _crash_row(extension, called, end)
    if end.error is not None:
        return _failure_row(facts.torch, extension, called, end)
    hidden = next((r["hidden_failure"] for r in end.replies if r.get("hidden_failure")), None)
    if hidden:
        return warning(
            "extension.hidden_failure",
            extension.name,
            f"{called} imports, but its compiled part does not: {first_line(str(hidden))}",
            import_remedy(str(hidden), _package(extension), facts.torch),
        )
    return ok("extension", extension.name, f"{called} imports")


def _told_version(end: TaskEnd) -> str | None:
    return next((str(r["version"]) for r in end.replies if r.get("version")), None)


def _package(extension: Extension) -> str:
    return extension.distributions[0]


def _importing(end: TaskEnd) -> str:
    names = [str(reply["importing"]) for reply in end.replies if "importing" in reply]
    return names[-1] if names else "it"


def _crash_row(extension: Extension, called: str, end: TaskEnd) -> Row:
    how = describe_ending(end.status)
    place = crash_place(end.stderr, extension.module)
    package = _package(extension)
    if end.status == -4:  # SIGILL
        remedy = (
            "it uses instructions this CPU lacks: build it here "
            f"(pip install --no-binary :all: {package})"
        )
    else:
        remedy = (
            f"pip install --force-reinstall --no-deps {package} for this torch; "
            f"pip uninstall {package} to run without it"
        )
    return error(
        "extension.crash",
        extension.name,
        f"{called} {how} on import of {_importing(end)}{place}",
        remedy,
        signal=-int(end.status or 0),
    )


def _failure_row(torch: Torch, extension: Extension, called: str, end: TaskEnd) -> Row:
    message = str(end.error)
    if not torch.imported and "No module named 'torch'" in message:
        return not_checked(
            "extension.needs_torch", extension.name, f"{called} needs torch", "install torch first"
        )
    symbol = re.search(r"undefined symbol: (\S+)", message)
    rule = "extension.undefined_symbol" if symbol else "extension.import"
    shown = f"undefined symbol {symbol[1]}" if symbol else first_line(message)
    return error(
        rule,
        extension.name,
        f"{called} does not import: {shown}",
        import_remedy(message, _package(extension), torch),
        message=message[:1000],
    )


def _built_for_rows(facts: Facts, extension: Extension) -> Iterable[Row]:
    """What the package's own metadata says about the torch and CUDA it was built for."""
    version = _version(facts, extension) or ""
    torch = facts.torch
    wrong = list(_wrong_tags(version, torch))
    for distribution in extension.distributions:
        for requirement in facts.requirements.get(distribution, ()):
            wanted = re.match(r"\s*torch\s*\(?\s*==\s*([0-9][0-9.]*)", requirement)
            if wanted and not torch.version.startswith(wanted[1].rstrip(".")):
                wrong.append(f"it asks for torch {wanted[1]}, here is {torch.version}")
    if wrong:
        package = _package(extension)
        yield warning(
            "extension.built_for_other",
            extension.name,
            f"{extension.name} {version} imports, but {'; '.join(wrong)}",
            f"pip install --force-reinstall {package}, built for torch {torch.version}",
        )


def _wrong_tags(version: str, torch: Torch) -> Iterable[str]:
    """Local versions such as `2.8.3+cu12torch2.6cxx11abiFALSE`."""
    local = version.partition("+")[2]
    built = re.search(r"torch(\d+\.\d+)", local)
    if built and not torch.version.startswith(built[1]):
        yield f"it was built for torch {built[1]}, here is {torch.version}"
    cuda = re.search(r"cu(\d\d)", local)
    if cuda and torch.cuda and cuda[1] != torch.cuda.partition(".")[0]:
        yield f"it was built for CUDA {cuda[1]}, torch has {torch.cuda}"
    abi = re.search(r"cxx11abi(TRUE|FALSE)", local)
    known = torch.wheel.get("cxx11_abi")
    if abi and known is not None and (abi[1] == "TRUE") != bool(known):
        yield f"its C++ ABI ({abi[0]}) is not torch's"
