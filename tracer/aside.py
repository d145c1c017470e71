"""Nothing of the user's is lost: what gives way to something of its name moves to `.old`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_OLD = ".old"  # hidden, so that a directory of runs does not list them


def old_place(path: str | os.PathLike[str]) -> Path:
    """Where a file or directory is kept when it gives way: in `.old` beside it."""
    gone = Path(path).absolute()
    return gone.parent / _OLD / gone.name


def put_aside(path: Path) -> None:
    """Move a file or directory to its `old_place`; what was kept there before is gone."""
    kept = old_place(path)
    kept.parent.mkdir(exist_ok=True)
    older = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=kept.parent))
    try:
        if kept.exists():
            os.replace(kept, older / kept.name)
        os.replace(path, kept)
    finally:
        shutil.rmtree(older, ignore_errors=True)
