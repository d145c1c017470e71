"""Where recordings lie: local paths and any URL that fsspec opens."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from tracer.errors import InputError
from tracer.held_ranks import split_rank
from tracer.near import absent
from tracer.sources import RUN_MARKER, find_sources

HEAD_BYTES = 1 << 16


def is_url(place: str) -> bool:
    """Whether a place is a URL and no path."""
    return "://" in place or "::" in place


def name_of(place: str) -> str:
    """The last part of a place."""
    return PurePosixPath(place.rstrip("/")).name if is_url(place) else Path(place).name


def list_places(place: str) -> list[str]:
    """The files and saved runs at a place: itself, or what the directory holds."""
    return _list_remote(place) if is_url(place) else _list_local(Path(place))


def _list_local(path: Path) -> list[str]:
    if not split_rank(path)[0].exists():
        raise absent(path)
    if (path / RUN_MARKER).is_file():
        return [str(path)]
    return [str(found) for found in find_sources(path)]


def _list_remote(url: str) -> list[str]:
    system, path = _file_system(url)
    try:
        if not system.exists(path):
            raise InputError(f"{url}: there is no such file or directory")
        if system.isfile(path) or system.exists(f"{path}/{RUN_MARKER}"):
            return [url]
        entries = system.ls(path, detail=True)
    except OSError as error:
        raise InputError(f"{url}: cannot be listed ({error})") from None
    names = sorted(str(entry["name"]).rstrip("/") for entry in entries if _is_wanted(system, entry))
    base = url.rstrip("/")
    return [f"{base}/{PurePosixPath(name).name}" for name in names]


def _is_wanted(system: Any, entry: Any) -> bool:
    name = str(entry["name"]).rstrip("/")
    if PurePosixPath(name).name.startswith("."):
        return False
    return entry["type"] == "file" or bool(system.exists(f"{name}/{RUN_MARKER}"))


def _file_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(f"{url}: cannot be opened ({error})") from None
    return system, str(path).rstrip("/")


@contextmanager
def local_copy(place: str) -> Generator[Path]:
    """The file or saved run on this machine, for as long as the block lasts."""
    if not is_url(place):
        yield Path(place)
        return
    system, path = _file_system(place)
    with tempfile.TemporaryDirectory(prefix="tracer-rank-") as folder:
        target = Path(folder) / (PurePosixPath(path).name or "recording")
        try:
            system.get(path, str(target), recursive=not system.isfile(path))
        except OSError as error:
            raise InputError(f"{place}: cannot be read ({error})") from None
        yield target


@contextmanager
def head_copy(place: str) -> Generator[Path]:
    """A local file with at least the beginning of a place, enough to tell what it is."""
    if not is_url(place):
        yield Path(place)
        return
    system, path = _file_system(place)
    with tempfile.TemporaryDirectory(prefix="tracer-head-") as folder:
        target = Path(folder) / name_of(place)
        try:
            if not system.isfile(path):
                (target / "").mkdir(parents=True)
                system.get(f"{path}/{RUN_MARKER}", str(target / RUN_MARKER))
            else:
                with system.open(path, "rb") as source, open(target, "wb") as copy:
                    copy.write(source.read(HEAD_BYTES))
        except OSError as error:
            raise InputError(f"{place}: cannot be read ({error})") from None
        yield target


def size_of(place: str) -> int:
    """Bytes of a file, or of the files of a saved run."""
    if is_url(place):
        system, path = _file_system(place)
        return int(system.du(path))
    path_here, _ = split_rank(place)
    if path_here.is_dir():
        return sum(file.stat().st_size for file in path_here.iterdir() if file.is_file())
    return path_here.stat().st_size
