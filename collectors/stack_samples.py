"""Where the host spends its time, sampled: the line at which each thread is, up to a hundred times
a second.

A recording without Python frames cannot say which function kept everybody waiting. A thread that
looks at the stacks now and then can. Where the host works between the calls of a model it looks
more often: a thread that calls operators waits for the interpreter much longer than a look takes.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracer.collectors.awaited import awaited
from tracer.collectors.called_names import Callee, Callees, called_name
from tracer.collectors.modules.calling_threads import threads_now
from tracer.collectors.thread_frames import FramesOfThreads
from tracer.collectors.user_code import (
    USER,
    CodeKinds,
    as_written,
    function_name,
    line_of,
)
from tracer.events import SIDE_TABLES, make_table
from tracer.own_thread import OwnThread

# So often at first, since many recordings are short, and then more seldom; in a call of a model at
# once as seldom as in the end: a program that calls operators one after another waits 170 us for
# the interpreter to change hands, for a look of 28 us (on the host of an H200).
INTERVAL_S = 0.01
_DENSE_LOOKS = 30
_MOST_SELDOM = 4
# Looking takes at most this share of the clock: a look that takes longer comes less often. Any
# program waits about as long again, which no clock here shows.
_MOST_COST = 0.004
_WITH_CHANGES = 2
# Between calls of a model the first looks come whatever they take: they find nothing in the caches,
# and a short recording would have no others.
_FIRST_LOOKS = 8
_LIMIT = 200_000
_PROMPT_S = 0.001
# A thread that runs Python alone is asked for the interpreter after so long, meanwhile: one that
# calls an operator before gives it up by itself, and is seen there.
_SWITCH_S, _BY_ITSELF_S = 0.001, 0.0003
_OUR_THREADS = "tracer-"
_WIDTH = 3


class _Place(NamedTuple):
    """The innermost line that is the user's, and the innermost that is not the framework's; as
    code and line, None where there is none. callee: what the user's line calls; at: the
    instruction of the latter, if it calls nothing in Python, else -1."""

    user: CodeType | None
    user_line: int
    inner: CodeType
    inner_line: int
    callee: Callee | None = None
    at: int = -1


class StackSamples:
    """Looks at the stacks of all threads, from a thread of its own, between `start` and `close`.

    `in_call`: tells whether a call of a model is open.
    """

    def __init__(
        self, interval_s: float = INTERVAL_S, in_call: Callable[[], bool] = lambda: False
    ) -> None:
        self._interval_s = interval_s
        self._in_call = in_call
        self._rows = array("q")  # time_ns, thread, place
        self._places: dict[_Place, int] = {}
        self._listed: list[threading.Thread] = []
        self._threads: dict[int, int] = {}  # those listed: Python's number -> the system's
        self._parked: dict[int, tuple[int, _Place | None]] = {}  # thread -> its work, and its place
        self._code = CodeKinds()
        self._callees = Callees()
        self._stopped = threading.Event()
        self._thread: OwnThread | None = None
        self._begun = False  # who starts or ends the recording waits for this thread
        self._switch_s = 0.0  # the program's own; 0 where it was not changed
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to look. Where this Python offers no way, nothing is collected."""
        if self._thread is not None or not hasattr(sys, "_current_frames"):
            return
        self._stopped = threading.Event()
        if sys.getswitchinterval() > _SWITCH_S:
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_S)
        self._thread = OwnThread(self._run)
        self._thread.start()
        self._begun = True

    def close(self) -> None:
        """Look no more; what was seen stays."""
        thread, self._thread = self._thread, None
        self._begun = False
        self._listed = []
        self._stopped.set()
        try:
            if thread is not None:
                thread.join()
        finally:
            changed, self._switch_s = self._switch_s, 0.0
            if changed and _is_ours(sys.getswitchinterval()):  # unless the program has set its own
                sys.setswitchinterval(changed)

    def _run(self) -> None:
        try:
            self._look_on()
        except Exception as error:  # the border to the traced program: it must not notice
            self.failure = error

    def _look_on(self) -> None:
        looks, wait_s, stopped = 0, self._interval_s, self._stopped
        due_s = time.monotonic() + wait_s
        while not stopped.wait(wait_s) and len(self._rows) < _LIMIT * _WIDTH:
            before_s = time.thread_time()
            if not _let_in_late(time.monotonic() - due_s):
                self._look()
            looks += 1
            wait_s = self._wait_s(looks, time.thread_time() - before_s)
            due_s = time.monotonic() + wait_s

    def _wait_s(self, looks: int, spent_s: float) -> float:
        """How long until the next look, after so many of which the last took so long."""
        in_call = self._in_call()
        settled = in_call or looks >= 2 * _DENSE_LOOKS
        times = _MOST_SELDOM if settled else 1 + looks // _DENSE_LOOKS
        if looks < _FIRST_LOOKS and not in_call:
            return self._interval_s * times
        return max(self._interval_s * times, _WITH_CHANGES * spent_s / _MOST_COST)

    def _look(self) -> None:
        now_ns, begun = time.time_ns(), self._begun
        self._learn_threads()
        with FramesOfThreads() as frames:
            seen = [
                (thread, place)
                for ident, frame in frames.items()
                if (thread := self._threads.get(ident)) is not None
                and (place := self._place_of(thread, frame)) is not None
            ]
        # Whoever took the interpreter meanwhile moved on: the frames do not belong together.
        if not (begun and self._begun) or time.time_ns() - now_ns > _PROMPT_S * 1e9:
            return
        for thread, place in seen:
            self._rows.extend((now_ns, thread, self._places.setdefault(place, len(self._places))))

    def _learn_threads(self) -> None:
        """Python gives the number of a thread that has ended to the next."""
        listed = threads_now()
        if listed == self._listed:
            return
        self._listed = listed
        self._threads = {
            thread.ident: thread.native_id
            for thread in listed
            if thread.ident and thread.native_id and not thread.name.startswith(_OUR_THREADS)
        }

    def _place_of(self, thread: int, frame: FrameType) -> _Place | None:
        """Where a thread is. A service has many that wait: one that has not run since the last look
        is where it was then."""
        worked_ns, parked = _worked_ns(thread), self._parked.get(thread)
        if parked is not None and parked[0] == worked_ns >= 0:
            return parked[1]
        place = self._place(frame)
        self._parked[thread] = worked_ns, place
        return place

    def _place(self, frame: FrameType) -> _Place | None:
        inner = self._code.innermost(frame)
        if inner is None:
            return None
        code, line = _function_of(inner).f_code, line_of(inner)
        at = inner.f_lasti if inner is frame and code is frame.f_code else -1
        user = self._code.innermost(inner, USER)
        if user is None:
            return _Place(None, -1, code, line, at=at)
        callee = self._callees.of(user, frame)
        if user is inner:
            return _Place(code, line, code, line, callee, at)
        return _Place(_function_of(user).f_code, line_of(user), code, line, callee, at)

    def table(self) -> pd.DataFrame:
        """The table `stack_samples`."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, _WIDTH)
        places = list(self._places)
        names = {c: called_name(c) for c in {p.callee for p in places} if c is not None}
        waits = {(p.inner, p.at): awaited(p.inner, p.at) for p in places}
        seen = [places[code] for code in rows[:, 2]]
        return make_table(
            SIDE_TABLES["stack_samples"],
            {
                "time_ns": rows[:, 0],
                "thread": rows[:, 1],
                "file": [_file(place.user) for place in seen],
                "line": [place.user_line for place in seen],
                "function": [_name(place.user) for place in seen],
                "inner_file": [_file(place.inner) for place in seen],
                "inner_line": [place.inner_line for place in seen],
                "inner_function": [_name(place.inner) for place in seen],
                "called": ["" if p.callee is None else names[p.callee] for p in seen],
                "awaited": [waits[p.inner, p.at] for p in seen],
            },
        )


def _worked_ns(thread: int) -> int:
    """How long a processor has worked for a thread (the system's number); -1 where the system does
    not tell."""
    if sys.platform != "linux":
        return -1
    try:
        # The clock of a thread, as the kernel numbers it (CPUCLOCK_PERTHREAD, CPUCLOCK_SCHED).
        return time.clock_gettime_ns(~thread << 3 | 6)
    except OSError:  # it has ended
        return -1


def _function_of(frame: FrameType) -> FrameType:
    """The function around a comprehension, which some versions of Python run in its own frame."""
    code = frame.f_code
    while code.co_name.startswith("<") and code.co_name != "<module>":
        outer = frame.f_back
        if outer is None or outer.f_code.co_filename != code.co_filename:
            break
        frame, code = outer, outer.f_code
    return frame


def _let_in_late(waited_s: float) -> bool:
    """Whether another thread held the interpreter when the look was due, and gave it up by itself,
    calling an operator: it is seen there, and not where it was. One that is made to give it up,
    after the switch interval, is seen where it was."""
    return _BY_ITSELF_S < waited_s < sys.getswitchinterval()


def _is_ours(switch_s: float) -> bool:
    return abs(switch_s - _SWITCH_S) < _SWITCH_S / 100  # it is kept in whole microseconds


def _file(code: CodeType | None) -> str:
    return "" if code is None else code.co_filename


def _name(code: CodeType | None) -> str:
    return "" if code is None else as_written(function_name(code))
