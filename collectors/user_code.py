"""Whose code a frame runs: the user's own, that of an installed library, or plumbing."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

PLUMBING, LIBRARY, USER = range(3)
_PLUMBING_PACKAGES = ("torch", "tracer", "triton", "runpy")


class CodeKinds:
    """Tells the kind of a frame by its file, looked at once."""

    def __init__(self) -> None:
        self._kinds: dict[str, int] = {}
        self._libraries = _library_folders()

    def of(self, frame: FrameType) -> int:
        """PLUMBING, LIBRARY or USER."""
        file = frame.f_code.co_filename
        kind = self._kinds.get(file)
        if kind is None:
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            kind = self._kinds[file] = _kind_of(file, package, self._libraries)
        return kind


def _kind_of(file: str, package: str, libraries: tuple[str, ...]) -> int:
    if file.startswith("<") or package in _PLUMBING_PACKAGES:
        return PLUMBING
    return LIBRARY if file.startswith(libraries) else USER


def _library_folders() -> tuple[str, ...]:
    """Folders of code that the user did not write: the standard library and what is installed."""
    named = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {path for name in named if (path := sysconfig.get_path(name))}
    installed = {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    resolved = {str(Path(path).resolve()) for path in folders | installed}
    return tuple(f"{path}/" for path in folders | installed | resolved)
