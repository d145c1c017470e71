"""Recordings that another process writes: which are new, and when they are complete."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_ENDINGS = (".json", ".json.gz")
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 4096
_GZIP = 16 + zlib.MAX_WBITS
POLL_S = 1.0
# Ranks do not end together: nothing may change for so many polls.
SETTLED_POLLS = 3

# Size and time of change of each file.
Listing = Mapping[Path, tuple[int, int]]


def list_recordings(directory: Path) -> Listing:
    """The files below a directory that may be recordings."""
    return dict(_recordings(directory))


def _recordings(directory: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if not name.endswith(_ENDINGS):
                continue
            try:
                found = path.stat()
            except OSError:  # gone since
                continue
            yield path, (found.st_size, found.st_mtime_ns)


def wait_for_new(
    directory: Path, before: Listing, limit_s: float, sleep: Callable[[float], None]
) -> tuple[list[Path], list[Path]]:
    """The recordings that came or changed since `before`, complete ones and those that are not
    after `limit_s`. It ends when there is one, all are complete and none changes any more."""
    last: Listing = {}
    still = 0
    for _ in range(max(round(limit_s / POLL_S), 1)):
        new = _changed(before, list_recordings(directory))
        still = still + 1 if new and new == last else 0
        last = new
        if still >= SETTLED_POLLS and all(map(is_complete, new)):
            return sorted(new), []
        sleep(POLL_S)
    whole = {path for path in last if is_complete(path)}
    return sorted(whole), sorted(set(last) - whole)


def _changed(before: Listing, now: Listing) -> dict[Path, tuple[int, int]]:
    return {path: state for path, state in now.items() if before.get(path) != state}


def is_complete(path: Path) -> bool:
    """Whether a JSON file, compressed or not, was written to its end."""
    try:
        return _ends_gzip(path) if path.name.endswith(".gz") else _ends_json(path)
    except (OSError, zlib.error):
        return False


def _ends_json(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        return file.read().rstrip()[-1:] in (b"}", b"]")


def _ends_gzip(path: Path) -> bool:
    unpacked = zlib.decompressobj(_GZIP)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            unpacked.decompress(chunk)
            if unpacked.eof:
                return True
    return False
