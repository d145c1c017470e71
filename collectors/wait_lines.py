"""The line of each hidden wait, without recording Python stacks.

On CUDA the framework itself warns when an operator makes the host wait; the warning comes while
the user's line is on the stack. On a CPU nothing waits, but the same reads can be seen at the
methods that make them, until something is compiled: a compiler must not find a patch.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from array import array
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from tracer.collectors.compiling.before_compiling import before_compiling
from tracer.collectors.user_code import USER, CodeKinds
from tracer.collectors.warning_hook import Warned, listen
from tracer.events import SIDE_TABLES, make_table

_MESSAGE = "called a synchronizing"
# Methods that read a value of a tensor: on a GPU each would wait.
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")
_SKIPPED = ("torch.", "tracer.")
_SKIPPED_NAMES = ("torch", "tracer", "warnings", "contextlib", "functools")
# More lines than this are not kept: a loop that waits so often is understood by then.
_LIMIT = 200_000


class _Line(NamedTuple):
    file: str
    line: int
    function: str


class WaitLines:
    """Collects the lines that wait, between `start` and `close`, which undoes it all."""

    def __init__(self) -> None:
        self._times = array("q")
        self._threads = array("q")
        self._sites = array("q")
        self._how = "warned"
        self._known: dict[tuple[_Line, _Line], int] = {}
        self._code = CodeKinds()
        self._undo: list[Callable[[], None]] = []
        self._patched: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to listen. Where this torch offers no way, nothing is collected."""
        if torch.cuda.is_available():
            self._listen_to_cuda()
        else:
            self._how = "called"
            self._watch_reads()

    def close(self) -> None:
        """Undo every change, the last first."""
        while self._undo:
            self._undo.pop()()

    def table(self) -> pd.DataFrame:
        """The table `host_sites`. cause "warned": seen while the operator waited;
        "called": right before the call that reads."""
        places = list(self._known)
        chosen = [places[site] for site in self._sites]
        columns = {
            "time_ns": np.array(self._times, dtype=np.int64),
            "thread": np.array(self._threads, dtype=np.int64),
            "cause": [self._how] * len(chosen),
            "file": [own.file for own, _ in chosen],
            "line": [own.line for own, _ in chosen],
            "function": [own.function for own, _ in chosen],
            "user_file": [user.file for _, user in chosen],
            "user_line": [user.line for _, user in chosen],
            "user_function": [user.function for _, user in chosen],
        }
        return make_table(SIDE_TABLES["host_sites"], columns)

    def _note(self, frame: FrameType | None) -> None:
        """Keep the innermost line that is neither the framework's nor ours, and the innermost that
        is the user's: a library may lie between."""
        while frame is not None and _is_plumbing(frame):
            frame = frame.f_back
        if frame is None or len(self._times) >= _LIMIT:
            return
        user: FrameType | None = frame
        while user is not None and self._code.of(user) != USER:
            user = user.f_back
        place = (_line_of(frame), _line_of(user))
        self._sites.append(self._known.setdefault(place, len(self._known)))
        self._times.append(time.time_ns())
        self._threads.append(threading.get_native_id())

    # --- CUDA --------------------------------------------------------------------------------

    def _listen_to_cuda(self) -> None:
        before = torch.cuda.get_sync_debug_mode()
        if before == 2:  # the program asked for errors: they name the line themselves
            return
        _set_sync_debug_mode(1)
        filters = list(warnings.filters)
        warnings.filterwarnings("always", message=f".*{_MESSAGE}.*")
        self._undo.append(lambda: _restore_filters(filters))
        wanted = before == 1

        def takes(warned: Warned) -> bool:
            ours = _MESSAGE in warned.text
            if ours:
                self._note(sys._getframe(1))
            return ours and not wanted

        self._undo.append(listen(takes))
        self._undo.append(lambda: _set_sync_debug_mode(before))

    # --- CPU ---------------------------------------------------------------------------------

    def _watch_reads(self) -> None:
        for name in _READS:
            original = getattr(torch.Tensor, name)
            own = name in torch.Tensor.__dict__
            watched = _Watched(original, self._note)
            setattr(torch.Tensor, name, watched)
            self._patched.append(_restorer(name, original, own, watched))
        self._undo.append(self._unpatch)
        # A compiler must not find the patches.
        self._undo.append(before_compiling(self._unpatch))

    def _unpatch(self) -> None:
        while self._patched:
            self._patched.pop()()

    def __enter__(self) -> WaitLines:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Watched:
    """Stands for a method of a tensor and notes who asks for it.

    The call itself is then made without a frame of ours, so that a warning that the method gives
    names the line of the user.
    """

    def __init__(self, original: Any, note: Callable[[FrameType | None], None]) -> None:
        self._original, self._note = original, note

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self._original
        if not torch.compiler.is_compiling():
            self._note(sys._getframe(1))
        return self._original.__get__(tensor, owner)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():  # it warns that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


def _line_of(frame: FrameType | None) -> _Line:
    if frame is None:
        return _Line("", -1, "")
    return _Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _is_plumbing(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name in _SKIPPED_NAMES or name.startswith(_SKIPPED)


def _restore_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    # The interpreter caches decisions by a version that only this call raises.
    mutated = getattr(warnings, "_filters_mutated", None) or getattr(
        warnings, "_filters_mutated_lock_held", None
    )
    if callable(mutated):
        mutated()


def _restorer(name: str, original: Any, own: bool, watched: _Watched) -> Callable[[], None]:
    def restore() -> None:
        if torch.Tensor.__dict__.get(name) is not watched:
            return  # somebody patched over it: theirs stays and passes calls on
        if own:
            setattr(torch.Tensor, name, original)
        else:
            delattr(torch.Tensor, name)

    return restore
