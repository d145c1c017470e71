"""Opening a recording, whatever its format: sniff it, then read it with its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tracer.errors import NotATraceError
from tracer.near import absent

if TYPE_CHECKING:
    from tracer.events import Trace

# Called with how much is done and how much there is.
ProgressCall = Callable[[int, int], None]

RUN_MARKER = "meta.json"
# A directory with this file was a saved run, though its marker be lost.
_RUN_EVENTS = "events.parquet"


class Reader(Protocol):
    """What reads a file of one format."""

    def __call__(self, path: Path, /, *, progress: ProgressCall | None) -> Trace: ...


def open_source(path: str | Path, progress: ProgressCall | None = None) -> Trace:
    """Read one recording: a saved run (a directory) or a file of a known format."""
    path = Path(path)
    if not path.exists():
        raise absent(path)
    if path.is_dir():
        return _open_run(path)
    return _reader_of(path)(path, progress=progress)


def _open_run(path: Path) -> Trace:
    if not is_run(path):
        raise NotATraceError(f"{path}: a directory that is no saved run (it has no {RUN_MARKER})")
    from tracer.store import load_run

    trace = load_run(path)
    return replace(trace, meta=replace(trace.meta, source_kind="run", path=str(path)))


def is_run(path: Path) -> bool:
    """Whether the directory is a saved run."""
    return (path / RUN_MARKER).is_file() or (path / _RUN_EVENTS).is_file()


def _reader_of(path: Path) -> Reader:
    """The reader of the file's format; an error says what a file is that none reads."""
    from tracer.collectors.sniff import sniff

    known = sniff(path)
    if known.reader is None:
        raise known.refusal(path)
    module, _, name = known.reader.partition(":")
    return cast(Reader, getattr(import_module(module), name))


def find_sources(path: str | Path) -> list[Path]:
    """What there is to read at a path: itself, or the files and saved runs of a directory, and the
    saved runs of the directories in it. Hidden ones are not looked at."""
    path = Path(path)
    if not path.is_dir() or is_run(path):
        return [path]
    return [found for entry in _shown(path) for found in _found_at(entry)]


def _found_at(entry: Path) -> list[Path]:
    if not entry.is_dir():
        return [entry] if entry.is_file() else []
    return [entry] if is_run(entry) else saved_runs(entry)


def saved_runs(directory: Path) -> list[Path]:
    """The saved runs in a directory; none where it cannot be looked into."""
    try:
        return [entry for entry in _shown(directory) if is_run(entry)]
    except OSError:
        return []


def _shown(directory: Path) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
