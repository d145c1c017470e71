"""Ranges of generated Triton kernels, left out where calls before tell the same.

Inductor's launcher writes one around every launch while a profiler is active, with what it knows of
the kernel, and launches more slowly for it. A kernel has the same name, and its launch lies in the
compiled graph all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pandas as pd

from tracer.collectors.compiling.compiled_source import GENERATED

_TRITON, _CPP = "triton_", "cpp_"
_ASKED = "autograd_profiler"  # of whom the launcher asks whether a profiler is active


class LaunchRanges:
    """Left out between `rest` and `wake`."""

    def __init__(self) -> None:
        self._asked: _Asked | None = None
        self._undo: list[Callable[[], None]] = []

    def watch(self, launcher: ModuleType) -> None:
        """Stand between the launcher and the profiler, until `close`."""
        profiler = getattr(launcher, _ASKED, None)
        if not hasattr(profiler, "_is_profiler_enabled"):
            return
        asked = self._asked = _Asked(profiler)
        setattr(launcher, _ASKED, asked)

        def undo() -> None:
            if getattr(launcher, _ASKED, None) is asked:
                setattr(launcher, _ASKED, profiler)

        self._undo.append(undo)

    def rest(self) -> None:
        """Launches that follow need no range."""
        if self._asked is not None:
            self._asked.rests = True

    def wake(self) -> None:
        """They need one again."""
        if self._asked is not None:
            self._asked.rests = False

    def close(self) -> None:
        """Take ourselves away."""
        self._asked = None
        while self._undo:
            self._undo.pop()()


class _Asked:
    """The profiler, as the launcher sees it."""

    def __init__(self, profiler: Any) -> None:
        self._profiler = profiler
        self.rests = False

    @property
    def _is_profiler_enabled(self) -> bool:
        return not self.rests and bool(self._profiler._is_profiler_enabled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._profiler, name)


def launch_namer(compiled_calls: pd.DataFrame | None) -> Callable[[str], bool]:
    """Tells names of operators that `rest` leaves out. `compiled_calls`: that table, if there is
    one; a kernel that the program wrote itself has any name."""
    if compiled_calls is None:
        return _is_triton
    made = compiled_calls["kernel"][compiled_calls["form"] == GENERATED].astype(str)
    names = {name for name in made if not name.startswith(_CPP)}
    return lambda name: name in names or _is_triton(name)


def _is_triton(name: str) -> bool:
    return name.startswith(_TRITON)
