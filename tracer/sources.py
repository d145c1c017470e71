"""Opening a recording, whatever its format: sniff it, then read it with its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.errors import InputError, NotATraceError

if TYPE_CHECKING:
    from tracer.events import Trace

# Called with how much is done and how much there is.
ProgressCall = Callable[[int, int], None]

RUN_MARKER = "meta.json"
# Format, as `collectors.sniff` names it -> where its reader is: `read(path, progress=...)`.
READERS: Mapping[str, str] = {
    "kineto": "tracer.collectors.kineto:read_kineto",
}


def open_source(path: str | Path, progress: ProgressCall | None = None) -> Trace:
    """Read one recording: a saved run (a directory) or a file of a known format."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    if path.is_dir():
        return _open_directory(path)
    return _reader(sniffed_format(path))(path, progress=progress)


def _open_directory(path: Path) -> Trace:
    if not is_run(path):
        raise NotATraceError(f"{path}: a directory without a saved run (no {RUN_MARKER})")
    from tracer.store import load_run

    return load_run(path)


def is_run(path: Path) -> bool:
    """Whether the directory is a saved run."""
    return (path / RUN_MARKER).is_file()


def sniffed_format(path: Path) -> str:
    """The name of the format of a file; an error names a file that is no timeline."""
    from tracer.collectors.sniff import sniff

    return str(sniff(path))


def _reader(format_name: str) -> Any:
    home = READERS.get(format_name)
    if home is None:
        known = ", ".join(READERS)
        raise NotATraceError(f"format {format_name} cannot be read; known are {known}")
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def find_sources(path: str | Path) -> list[Path]:
    """What there is to read at a path: itself, or the files and saved runs of a directory."""
    path = Path(path)
    if not path.is_dir() or is_run(path):
        return [path]
    entries = sorted(path.iterdir())
    return [entry for entry in entries if (is_run(entry) if entry.is_dir() else entry.is_file())]
