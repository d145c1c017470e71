"""Saved runs of many ranks in one directory, which no rank has to agree on with another."""

from __future__ import annotations

import os
from pathlib import Path

from tracer.errors import RunFormatError
from tracer.events import TraceMeta
from tracer.store import is_run


def rank_directory(meta: TraceMeta, directory: str | os.PathLike[str]) -> Path:
    """Where a process saves its run: the directory itself, or `rank<r>` in it when it is one of
    several ranks, unless the directory is called that already."""
    path = Path(directory)
    if meta.rank is None or (meta.world_size or 1) < 2 or path.name == f"rank{meta.rank}":
        return path
    if is_run(path):
        raise RunFormatError(
            f"{path}: holds the run of a single process; give the ranks another directory"
        )
    return path / f"rank{meta.rank}"
