"""The line of each hidden wait, without recording Python stacks.

On CUDA the framework itself warns when an operator makes the host wait; the warning comes while
the user's line is on the stack. On a CPU nothing waits, but the same reads can be seen at the
methods that make them.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

import pandas as pd
import torch

from tracer.collectors.compiling.outside_compiled import OutsideCompiling
from tracer.collectors.thread_notes import WIDTH, ThreadNotes
from tracer.collectors.user_code import USER, CodeKinds, as_written, line_of
from tracer.events import SIDE_TABLES, make_table

_MESSAGE = "called a synchronizing"
# Methods that read a value of a tensor: on a GPU each would wait.
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")
# More lines of a thread than this are not kept: a loop that waits so often is understood by then.
_LIMIT = 200_000

_Line = tuple[str, int, str]  # file, line, function


class WaitLines:
    """Collects the lines that wait, between `start` and `close`, which undoes it all."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._notes = ThreadNotes()
        self._how = "warned"
        self._places: dict[int, tuple[_Line, _Line]] = {}
        self._next_number = itertools.count()
        # Where code waits, and which code of the user called it, if it is not the user's -> its
        # place. The code is kept, so that its `id` is not given to another.
        self._known: dict[tuple[int, ...], tuple[int, CodeType, CodeType | None]] = {}
        self._code = CodeKinds()
        self._undo: list[Callable[[], None]] = []
        self._open = True

    def start(self) -> None:
        """Begin to listen. Where this torch offers no way, nothing is collected."""
        self._open = True
        if torch.cuda.is_available():
            self._listen_to_cuda()
        else:
            self._how = "called"
            self._watch_reads()

    def close(self) -> None:
        """Undo every change, the last first."""
        self._open = False  # a program may have kept a patch
        while self._undo:
            self._undo.pop()()

    def table(self) -> pd.DataFrame:
        """The table `host_sites`. cause "warned": seen while the operator waited;
        "called": right before the call that reads."""
        times, threads, numbers = self._notes.columns()
        chosen = [self._places[number] for number in numbers.tolist()]
        columns = {
            "time_ns": times,
            "thread": threads,
            "cause": [self._how] * len(chosen),
            "file": [own[0] for own, _ in chosen],
            "line": [own[1] for own, _ in chosen],
            "function": [own[2] for own, _ in chosen],
            "user_file": [user[0] for _, user in chosen],
            "user_line": [user[1] for _, user in chosen],
            "user_function": [user[2] for _, user in chosen],
        }
        return make_table(SIDE_TABLES["host_sites"], columns)

    def _note(self, frame: FrameType | None) -> bool:
        """Keep the innermost line that is neither the framework's nor ours, and the innermost that
        is the user's: a library may lie between. False where nothing is collected any more."""
        if frame is None or not self._open:  # a thread of the framework's own has no line
            return self._open
        try:
            known = self._known.get(_key(frame))
            number = self._place(frame) if known is None else known[0]
            moments = self._notes.own.moments
            if number >= 0 and len(moments) < _LIMIT * WIDTH:
                moments.extend((time.time_ns(), number))
        except Exception as error:  # the border to the traced program
            self.failure = error
        return True

    def _place(self, frame: FrameType) -> int:
        """The number of a place; -1 where all is plumbing."""
        line = self._code.innermost(frame)
        if line is None:
            return -1
        user = self._code.innermost(line, USER)
        key = _key(line) if user is line else (*_key(line), *_key(user))
        known = self._known.get(key)
        if known is None:
            place = _line_of(line), _line_of(user)
            known = next(self._next_number), line.f_code, user and user.f_code
            # Two threads may be here at once: both have the place, one its number.
            self._places[known[0]] = place
            self._known[key] = known
        return known[0]

    # --- CUDA --------------------------------------------------------------------------------

    def _listen_to_cuda(self) -> None:
        before = torch.cuda.get_sync_debug_mode()
        if before == 2:  # the program asked for errors: they name the line themselves
            return
        self._listen(shown=before == 1)
        # This also makes the interpreter forget which warnings it shows no more.
        _set_sync_debug_mode(1)
        self._undo.append(lambda: _set_sync_debug_mode(before))

    def _listen(self, *, shown: bool) -> None:
        """Note the warnings of waits; `shown`: the program itself asked to see them."""
        action = "always" if shown else "ignore"
        self._undo.append(_filter_first(action, _Waits(self._note)))

    # --- CPU ---------------------------------------------------------------------------------

    def _watch_reads(self) -> None:
        """Asked for on the class, each method is what it was: compiled code, which may check that,
        is as before."""
        watched = [_WatchedMethod(name, self._note) for name in _READS]

        def put_on() -> None:
            for method in watched:
                method.put_on()

        def take_off() -> None:
            for method in watched:
                method.take_off()

        outside = OutsideCompiling(put_on, take_off)
        self._undo.append(outside.close)  # which also ends a start that is interrupted
        outside.start()

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


class _WatchedMethod:
    """Stands for a method of a tensor and notes who asks for it.

    The call itself is then made without a frame of ours, so that a warning that the method gives
    names the line of the user. Asked for on the class it is the original.
    """

    def __init__(self, name: str, note: Callable[[FrameType | None], bool]) -> None:
        self._name, self._note = name, note
        self._original = getattr(torch.Tensor, name)
        self._own = name in torch.Tensor.__dict__

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self._original
        if not torch.compiler.is_compiling():
            self._note(sys._getframe().f_back)
        return self._original.__get__(tensor, owner)

    def put_on(self) -> None:
        in_place = torch.Tensor.__dict__.get(self._name) is self
        if not in_place and getattr(torch.Tensor, self._name) is self._original:
            setattr(torch.Tensor, self._name, self)

    def take_off(self) -> None:
        if torch.Tensor.__dict__.get(self._name) is not self:
            return  # somebody patched over it: theirs stays and passes calls on
        if self._own:
            setattr(torch.Tensor, self._name, self._original)
        else:
            delattr(torch.Tensor, self._name)


class _Waits:
    """Stands for a pattern among the filters of warnings. The interpreter asks it of each warning
    while the frame that gave cause is the innermost: a tenth of what it costs to be shown one."""

    def __init__(self, note: Callable[[FrameType | None], bool]) -> None:
        self._note = note

    def match(self, text: str) -> bool:
        """Whether a warning tells of a wait, which is noted."""
        if not text.startswith(_MESSAGE):
            return False
        return self._note(sys._getframe().f_back)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():  # it warns that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


def _key(frame: FrameType | None) -> tuple[int, int]:
    return (0, 0) if frame is None else (id(frame.f_code), frame.f_lasti)


def _line_of(frame: FrameType | None) -> _Line:
    if frame is None:
        return "", -1, ""
    return frame.f_code.co_filename, line_of(frame), as_written(frame.f_code.co_name)


def _filter_first(action: str, pattern: _Waits) -> Callable[[], None]:
    """Let a filter be asked before all others; returns what takes it away."""
    module: Any = warnings
    filters, ours = module.filters, (action, pattern, Warning, None, 0)
    filters.insert(0, ours)

    def remove() -> None:
        # Inside `catch_warnings` the program has a copy.
        for those in (filters, module.filters):
            if ours in those:
                those.remove(ours)

    return remove
