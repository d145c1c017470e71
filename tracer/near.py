"""What was meant by a word that is not known, or by a path that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tracer.errors import InputError


def hint(word: str, known: Iterable[str]) -> str:
    """` (did you mean report?)`; empty where nothing is near."""
    near = nearest(word, known)
    return f" (did you mean {near}?)" if near else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most alike; "" for none."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")


def absent(path: Path) -> InputError:
    """The error for a path that is not there; it names what stands near it under a like name. An
    ending in common makes no names alike."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    by_stem = {_stem(name): name for name in beside}
    near = by_stem.get(nearest(_stem(path.name), by_stem))
    said = f" (did you mean {near}?)" if near else ""
    return InputError(f"{path}: there is no such file or directory{said}")


def _stem(name: str) -> str:
    return name.partition(".")[0]
