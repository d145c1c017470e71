"""Opening a recording, whatever its format: sniff it, then read it with its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tracer.errors import NotATraceError, TracerError
from tracer.held_ranks import place_of, split_rank
from tracer.near import absent

if TYPE_CHECKING:
    from tracer.events import Trace

# Called with how much is done and how much there is.
ProgressCall = Callable[[int, int], None]

RUN_MARKER = "meta.json"
# A directory with this file was a saved run, though its marker be lost.
_RUN_EVENTS = "events.parquet"


class Reader(Protocol):
    """What reads a file of one format, or one of the ranks that it holds."""

    def __call__(
        self, path: Path, /, *, progress: ProgressCall | None, rank: int | None = None
    ) -> Trace: ...


def open_source(path: str | Path, progress: ProgressCall | None = None) -> Trace:
    """Read one recording: a saved run (a directory), a file of a known format, or one of the ranks
    that such a file holds (`FILE#rank1`)."""
    path, rank = split_rank(path)
    if not path.exists():
        raise absent(path)
    if path.is_dir():
        return _open_run(path)
    if rank is None:
        return _reader_of(path)(path, progress=progress)
    if rank not in held_ranks(path):
        raise NotATraceError(f"{path}: it holds no rank {rank}{_held_words(held_ranks(path))}")
    return _reader_of(path)(path, progress=progress, rank=rank)


def _held_words(ranks: list[int]) -> str:
    return f" (but {', '.join(map(str, ranks))})" if ranks else ", but one recording"


def held_ranks(path: Path) -> list[int]:
    """The ranks that stand in one file, of a format that can hold several; none where it holds
    what is one recording."""
    from tracer.collectors.sniff import sniff

    known = sniff(path)
    if known.ranks is None:
        return []
    return cast(Callable[[Path], list[int]], _function(known.ranks))(path)


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
    return cast(Reader, _function(known.reader))


def _function(named: str) -> object:
    """What "module:function" names."""
    module, _, name = named.partition(":")
    return getattr(import_module(module), name)


def find_sources(path: str | Path) -> list[Path]:
    """What there is to read at a path: itself, its ranks where it is a file of several, or the
    files and saved runs of a directory, and the recordings of the directories in it. Hidden ones
    are not looked at."""
    path = Path(path)
    if is_run(path):
        return [path]
    if not path.is_dir():
        return _ranks_or_file(path)
    return each_recording_once([found for entry in _shown(path) for found in _found_at(entry)])


def each_recording_once(paths: Sequence[Path]) -> list[Path]:
    """These paths without files that are read together with another of them."""
    if not any(".csv" in path.suffixes for path in paths):
        return list(paths)
    from tracer.collectors.rocprof.siblings import one_for_each_recording

    return one_for_each_recording(paths)


def _ranks_or_file(path: Path) -> list[Path]:
    """The ranks in a file, or itself: also where it is damaged, which its reader says best."""
    try:
        ranks = held_ranks(path) if path.is_file() else []
    except TracerError:
        ranks = []
    return [place_of(path, rank) for rank in ranks] or [path]


def none_in(directory: str | Path) -> NotATraceError:
    """The error for a directory without recordings."""
    return NotATraceError(f"{directory}: no recording in this directory, nor in those in it")


def only_new(paths: Iterable[Path], seen: set[str]) -> list[Path]:
    """Those of the paths that were not seen: a directory may be given together with one in it."""
    out = []
    for path in paths:
        real = realpath(path)
        if real not in seen:
            seen.add(real)
            out.append(path)
    return out


def _found_at(entry: Path) -> list[Path]:
    if not entry.is_dir():
        return _ranks_or_file(entry) if entry.is_file() else []
    return [entry] if is_run(entry) else _recordings_in(entry)


def _recordings_in(directory: Path) -> list[Path]:
    """The recordings in a directory, by their first bytes; none where it cannot be looked into."""
    from tracer.collectors.sniff import is_surely_recording

    try:
        entries = _shown(directory)
    except OSError:
        return []
    found: list[Path] = []
    for entry in entries:
        if entry.is_dir():
            found += [entry] if is_run(entry) else []
        elif is_surely_recording(entry):
            found += _ranks_or_file(entry)
    return found


def _shown(directory: Path) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
