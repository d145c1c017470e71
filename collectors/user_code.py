"""Whose code a frame runs: the user's own, that of an installed library, or plumbing, which is the
framework's, ours, or nothing but a way from one to the other."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PLUMBING, LIBRARY, USER = range(3)  # each nearer to the user than the one before
_PLUMBING_PACKAGES = (
    "torch", "tracer", "triton", "runpy", "contextlib", "functools", "warnings",
)  # fmt: skip
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")


class CodeKinds:
    """Tells the kind of a frame by its file, looked at once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}  # of files seen before
        self._libraries = _library_folders()

    def of(self, frame: FrameType) -> int:
        """PLUMBING, LIBRARY or USER."""
        file = frame.f_code.co_filename
        kind = self.known.get(file)
        return self._look(file, frame.f_globals) if kind is None else kind

    def innermost(self, frame: FrameType | None, least: int = LIBRARY) -> FrameType | None:
        """The innermost frame from here on of at least this kind: by default one that is not
        plumbing."""
        kinds = self.known
        while frame is not None:
            file = frame.f_code.co_filename
            kind = kinds.get(file)
            if (self._look(file, frame.f_globals) if kind is None else kind) >= least:
                return frame
            frame = frame.f_back
        return None

    def _look(self, file: str, names: Mapping[str, Any]) -> int:
        module = str(names.get("__name__", ""))
        # A name that many share is not remembered. What was typed at a prompt, or given to `-c`, is
        # the main program, which then has no file; all else of that name was generated.
        if file.startswith("<"):
            return USER if module == "__main__" and "__file__" not in names else PLUMBING
        kind = self.known[file] = _kind_of(file, module.partition(".")[0], self._libraries)
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


class CallerLines:
    """The user's lines around calls, each chain of them once. The first is that of no line."""

    MOST = 6

    def __init__(self) -> None:
        self._code = CodeKinds()
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        # The code is kept, so that its `id` is not given to another: code hashes all that it holds.
        self._chains: list[list[tuple[CodeType, int]]] = [[]]
        self._lock = threading.RLock()  # a finalizer of the program may run in it

    def around(self, frame: FrameType | None) -> int:
        """The number of the user's innermost lines from this frame on."""
        chain: list[tuple[CodeType, int]] = []
        key: list[int] = []
        # Looked up here and not by a call for each frame: the program waits now.
        known = self._code.known
        while frame is not None:
            code = frame.f_code
            kind = known.get(code.co_filename)
            if (self._code.of(frame) if kind is None else kind) == USER:
                # Its line is looked up in the end.
                at = frame.f_lasti
                chain.append((code, at))
                key += (id(code), at)
                if len(chain) == self.MOST:
                    break
            frame = frame.f_back
        number = self._numbers.get(tuple(key))
        return self._learn(tuple(key), chain) if number is None else number

    def _learn(self, key: tuple[int, ...], chain: list[tuple[CodeType, int]]) -> int:
        with self._lock:
            if key not in self._numbers:
                self._chains.append(chain)
                self._numbers[key] = len(self._chains) - 1
            return self._numbers[key]

    def texts(self) -> list[str]:
        """The chains in order of their numbers: JSON lists of [file, line, function]."""
        return [
            json.dumps(
                [[c.co_filename, line_at(c, at), as_written(function_name(c))] for c, at in chain]
            )
            for chain in list(self._chains)
        ]


def function_name(code: CodeType) -> str:
    """A function with the class that it is in, without the functions around it."""
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]


def as_written(function: str) -> str:
    """The name that its author gave a function: the compiler renames what is left of one behind a
    break of its graph."""
    return _RESUMED.sub(r"\1", function)


def line_of(frame: FrameType) -> int:
    """The line that runs. The jump back of a loop, at which threads take turns, has none of its
    own, whatever the type of `f_lineno` says: then that of the code before it."""
    return frame.f_lineno or line_at(frame.f_code, frame.f_lasti)


def line_at(code: CodeType, place: int) -> int:
    """The line of an instruction, or of those before it that has one."""
    line = code.co_firstlineno
    for start, _, here in code.co_lines():
        if start > place:
            break
        line = here or line
    return line
