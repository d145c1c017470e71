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
    """The error for a path that is not there; it names what stands near it under a like name, at
    first what has its ending: a page beside a recording is none. An ending in common makes no
    names alike."""
    entries = path.parent.iterdir() if path.parent.is_dir() else ()
    names = sorted(offered(path.name, (entry.name for entry in entries)))
    alike = [name for name in names if _ending(name) == _ending(path.name)]
    near = _near_name(path.name, alike) or _near_name(path.name, names)
    said = f" (did you mean {near}?)" if near else ""
    return InputError(f"{path}: there is no such file or directory{said}")


def _near_name(name: str, names: Iterable[str]) -> str:
    by_stem = {_stem(other): other for other in names}
    return by_stem.get(nearest(_stem(name), by_stem), "")


def _ending(name: str) -> str:
    """What a file holds, packed or not, as its name says."""
    return Path(name.removesuffix(".gz")).suffix


def offered(wanted: str, names: Iterable[str]) -> list[str]:
    """The names that may be offered for another: hidden ones to who wrote the dot alone."""
    return [name for name in names if wanted.startswith(".") or not name.startswith(".")]


def _stem(name: str) -> str:
    bare = name.lstrip(".")
    return name[: len(name) - len(bare)] + bare.partition(".")[0]
