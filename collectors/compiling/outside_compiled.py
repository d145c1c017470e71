"""A patch that compiled code must not see: in place only while no thread runs such code.

Code that Dynamo compiled checks at each call that the functions it was made of are the same, and is
compiled again where one is not. A thread tells by one function of Dynamo when it goes into such
code and when it comes out: there the patch goes, and comes back.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from tracer.collectors import torch_private
from tracer.collectors.compiling.before_compiling import before_compiling, compiled_code_checks
from tracer.collectors.thread_frames import FramesOfThreads

# Entered again where a signal or a finalizer comes while it is held.
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


# A fork copies the lock as it is, without the thread that holds it.
os.register_at_fork(after_in_child=_renew_lock)


class OutsideCompiling:
    """Keeps a patch that compiled code does not check in place, between `start` and `close`, except
    while something is compiled.

    Both functions may be called in any state.
    """

    def __init__(self, put_on: Callable[[], None], take_off: Callable[[], None]) -> None:
        self._put_on, self._take_off = put_on, take_off
        self._open = False
        self._undo: list[Callable[[], None]] = []

    def start(self) -> bool:
        """Put the patch in place; False, and nothing done, where that may not be."""
        self._open = True
        self._undo.append(before_compiling(self._hide, self._show))
        convert = sys.modules.get("torch._dynamo.convert_frame")
        if not _runs_in(getattr(convert, "__file__", None)):
            self._show()
        return True

    def close(self) -> None:
        """Take the patch off, and undo every change."""
        with _lock:
            self._open = False
            self._take_off()
        while self._undo:
            self._undo.pop()()

    def _hide(self) -> None:
        with _lock:
            self._take_off()

    def _show(self) -> None:
        with _lock:
            if self._open:
                self._put_on()


class OutsideCompiled(OutsideCompiling):
    """Keeps a patch in place wherever compiled code cannot see it, between `start` and `close`.

    Where Dynamo does not tell of its code, the patch goes before the first compilation and stays
    away.
    """

    def __init__(self, name: str, put_on: Callable[[], None], take_off: Callable[[], None]) -> None:
        super().__init__(put_on, take_off)
        self._name = name
        self._switch: torch_private.CompiledSwitch | None = None
        self._inside = 0  # entries into compiled code that have not ended, of all threads

    def start(self) -> bool:
        """Put the patch of a function in place; False, and nothing done, where code that was
        compiled before would see it."""
        self._follow()
        if self._switch is None and compiled_code_checks(self._name):
            return False
        self._open = True
        self._undo.append(before_compiling(self._hide, self._show))
        self._put_on()
        return True

    def _follow(self) -> None:
        """Listen to Dynamo, once it is loaded and while no thread is in its code."""
        switch = torch_private.compiled_switch()
        if switch is None or switch.current() is not None or _runs_in(switch.module.__file__):
            return
        self._switch = switch
        self._undo.append(self._watch(switch))

    def _watch(self, switch: torch_private.CompiledSwitch) -> Callable[[], None]:
        module, original, current = switch

        def set_eval_frame(callback: Any) -> Any:
            # While a callback is set, a call of ours would be looked at by the compiler.
            if callback is None:
                prior = original(None)
                if prior is not None:
                    self._leave()
                return prior
            if current() is None:
                self._enter()
            return original(callback)

        names = [name for name, value in vars(module).items() if value is original]
        for name in names:
            setattr(module, name, set_eval_frame)

        def restore() -> None:
            for name in names:
                if getattr(module, name) is set_eval_frame:
                    setattr(module, name, original)

        return restore

    def _enter(self) -> None:
        with _lock:
            self._inside += 1
            self._take_off()

    def _leave(self) -> None:
        with _lock:
            self._inside = max(0, self._inside - 1)  # one may have begun before all this
            self._put_back()

    def _show(self) -> None:
        with _lock:
            if self._open and self._switch is None:
                self._follow()
            self._put_back()

    def _put_back(self) -> None:
        if self._open and self._switch is not None and not self._inside:
            self._put_on()


def _runs_in(file: str | None) -> bool:
    """Whether a thread is in a function of this file, or in one that it called."""
    with FramesOfThreads() as frames:
        return any(_has_frame_of(file, frame) for frame in frames.values())


def _has_frame_of(file: str | None, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False
