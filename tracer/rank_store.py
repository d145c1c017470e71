"""Where each of many ranks writes, though all were given one name: a run in a directory, a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tracer.errors import RunFormatError
from tracer.events import TraceMeta
from tracer.store import is_run


def rank_directory(meta: TraceMeta, directory: str | os.PathLike[str]) -> Path:
    """Where a process saves its run: the directory itself, or `rank<r>` in it when it is one of
    several ranks, unless the directory is called that already."""
    path = Path(directory)
    if not _is_one_of_several(meta) or path.name == f"rank{meta.rank}":
        return path
    if is_run(path):
        raise RunFormatError(
            f"{path}: holds the run of a single process; give the ranks another directory"
        )
    return path / f"rank{meta.rank}"


def rank_file(meta: TraceMeta, file: str | os.PathLike[str]) -> Path:
    """Where a process writes its file: the file itself, or `a.rank<r>.html` for `a.html` when it is
    one of several ranks, unless the name says so already or is that of a device or pipe."""
    path = Path(file)
    told = re.search(rf"(?<![a-z])rank[-_]?{meta.rank}(?!\d)", path.name, re.IGNORECASE)
    special = path.exists() and not path.is_file()
    if not _is_one_of_several(meta) or told or special:
        return path
    return path.with_name(f"{path.stem}.rank{meta.rank}{path.suffix}")


def _is_one_of_several(meta: TraceMeta) -> bool:
    return meta.rank is not None and (meta.world_size or 1) > 1
