"""Ranks that stand in one file, as a profiler of a whole machine writes them: `FILE#rank1`."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path

_HELD = re.compile(r"(.+)#rank(\d+)", re.DOTALL)


def place_of(path: Path, rank: int) -> Path:
    """How one rank of a file is named."""
    return Path(f"{path}#rank{rank}")


def split_rank(path: str | PathLike[str]) -> tuple[Path, int | None]:
    """The file, and which of its ranks is meant; None for all that it holds."""
    found = _HELD.fullmatch(fspath(path))
    if found is None or Path(path).exists():
        return Path(path), None
    return Path(found[1]), int(found[2])
