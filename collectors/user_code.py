"""Whose code a frame runs: the user's own, that of an installed library, or plumbing, which is the
framework's, ours, or nothing but a way from one to the other."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

PLUMBING, LIBRARY, USER = range(3)
_PLUMBING_PACKAGES = (
    "torch", "tracer", "triton", "runpy", "contextlib", "functools", "warnings",
)  # fmt: skip


class CodeKinds:
    """Tells the kind of a frame by its file, looked at once."""

    def __init__(self) -> None:
        self._kinds: dict[str, int] = {}
        self._libraries = _library_folders()

    def of(self, frame: FrameType) -> int:
        """PLUMBING, LIBRARY or USER."""
        file = frame.f_code.co_filename
        kind = self._kinds.get(file)
        return self._look(file, frame.f_globals) if kind is None else kind

    def line_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame from here on that is not plumbing."""
        while frame is not None and self.of(frame) == PLUMBING:
            frame = frame.f_back
        return frame

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame from here on that is the user's."""
        while frame is not None and self.of(frame) != USER:
            frame = frame.f_back
        return frame

    def _look(self, file: str, names: Mapping[str, Any]) -> int:
        module = str(names.get("__name__", ""))
        # A name that many share is not remembered. What was typed at a prompt, or given to `-c`, is
        # the main program, which then has no file; all else of that name was generated.
        if file.startswith("<"):
            return USER if module == "__main__" and "__file__" not in names else PLUMBING
        kind = self._kinds[file] = _kind_of(file, module.partition(".")[0], self._libraries)
        return kind


def _kind_of(file: str, package: str, libraries: tuple[str, ...]) -> int:
    if package in _PLUMBING_PACKAGES:
        return PLUMBING
    return LIBRARY if file.startswith(libraries) else USER


def _library_folders() -> tuple[str, ...]:
    """Folders of code that the user did not write: the standard library and what is installed."""
    named = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {path for name in named if (path := sysconfig.get_path(name))}
    installed = {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    resolved = {str(Path(path).resolve()) for path in folders | installed}
    return tuple(f"{path}/" for path in folders | installed | resolved)
