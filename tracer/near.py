"""What was meant by a word that is not known, or by a path that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tracer.errors import InputError


def hint(word: str, known: Iterable[str]) -> str:
    """` (did you mean report?)`; empty where nothing is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def absent(path: Path) -> InputError:
    """The error for a path that is not there; it names what stands near it under a like name."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    return InputError(f"{path}: there is no such file or directory{hint(path.name, beside)}")
