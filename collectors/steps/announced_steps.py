"""Steps that the program announces: a block, or a call that ends one and begins the next."""

from __future__ import annotations

import dis
import threading
import time
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.events import SIDE_TABLES, make_table

PHASES = ("prefill", "decode", "mixed", "forward", "training", "evaluation")
DEFAULT_NAME = "step"


@dataclass(frozen=True)
class Announced:
    """A step. `edge`: a bare call bounds it on one side only, the trace's own on the other."""

    name: str
    phase: str
    start_ns: int
    end_ns: int
    thread: int
    edge: bool = False


@dataclass
class _Open:
    name: str
    phase: str
    start_ns: int
    is_block: bool = False

    def ended(self, thread: int, *, edge: bool) -> Announced:
        return Announced(self.name, self.phase, self.start_ns, time.time_ns(), thread, edge)


_WITH = frozenset(
    number
    for name, number in dis.opmap.items()
    if name in ("SETUP_WITH", "SETUP_ASYNC_WITH", "BEFORE_WITH", "BEFORE_ASYNC_WITH")
)
_CACHE = dis.opmap.get("CACHE", 0)


def opens_block(caller: FrameType) -> bool:
    """Whether the call that the frame is in stands in a `with` statement.

    A bare call ends a step at once, a block at its end: with a schedule that decides when the
    recording begins, and waiting for `__enter__` would be too late.
    """
    code = caller.f_code.co_code
    place = caller.f_lasti + 2
    while place < len(code) and code[place] == _CACHE:
        place += 2
    return place < len(code) and code[place] in _WITH


class StepListener(Protocol):
    """Who wants to know when an announced step begins and ends."""

    def step_begins(self) -> None: ...

    def step_ends(self) -> None: ...


class StepLog:
    """The steps of a trace while they are announced, on any thread."""

    def __init__(self, listener: StepListener) -> None:
        self.start_ns = time.time_ns()
        self.calls = 0  # how often the program announced one
        self.nested = 0  # announcements inside a block, which belong to it
        self._listener = listener
        self._ended: list[Announced] = []
        self._open: dict[int, _Open] = {}
        self._threads: set[int] = set()

    def begin(self, name: str, phase: str, caller: FrameType) -> Step:
        """A step begins here; what a bare call began before ends here."""
        thread = threading.get_native_id()
        open_step = self._open.get(thread)
        if open_step is not None and open_step.is_block:
            self.nested += 1
            return Step(None, thread, None)
        self.calls += 1
        is_block = opens_block(caller)
        implied = None
        if not self._end_open(thread) and not is_block:
            implied = self._implied(name, phase, thread)
        self._threads.add(thread)
        self._listener.step_begins()
        self._open[thread] = _Open(name, phase, time.time_ns(), is_block)
        return Step(self, thread, implied)

    def _end_open(self, thread: int) -> bool:
        step = self._open.pop(thread, None)
        if step is None:
            return False
        self._ended.append(step.ended(thread, edge=False))
        self._listener.step_ends()
        return True

    def _implied(self, name: str, phase: str, thread: int) -> Announced | None:
        """As with a profiler's step(), the first call ends the step that began with the trace."""
        if thread in self._threads:
            return None
        implied = Announced(name, phase, self.start_ns, time.time_ns(), thread, edge=True)
        self._ended.append(implied)
        self._listener.step_ends()
        return implied

    def enter(self, thread: int, implied: Announced | None) -> None:
        """The call begins a block: nothing was announced before it."""
        if implied is not None:
            self._ended.remove(implied)
        self._open[thread].is_block = True

    def leave(self, thread: int) -> None:
        """The block ends."""
        self._end_open(thread)

    def ended_since(self, first: int) -> list[Announced]:
        """Steps that have ended, from the `first` on, while the trace runs."""
        return self._ended[first:]

    def close(self) -> None:
        """The trace ends, and every open step with it."""
        for thread, step in self._open.items():
            self._ended.append(step.ended(thread, edge=not step.is_block))
        self._open.clear()

    def steps(self, work_ns: NDArray[np.int64]) -> list[Announced]:
        """The steps in order of time, without edges that hold hardly any of the work.

        A loop may announce a step at its beginning or at its end: then the time before the first
        call, or that after the last, is no step. `work_ns`: when work began, sorted.
        """
        inner = [_count(work_ns, step) for step in self._ended if not step.edge]
        usual = float(np.median(inner)) if inner else 0.0
        kept = [
            replace(step, edge=False)
            for step in self._ended
            if not step.edge or (_count(work_ns, step) > 0 and _count(work_ns, step) * 2 >= usual)
        ]
        return sorted(kept, key=lambda step: step.start_ns)


def _count(work_ns: NDArray[np.int64], step: Announced) -> int:
    first, last = np.searchsorted(work_ns, (step.start_ns, step.end_ns))
    return int(last - first)


class Step:
    """What `t.step()` returns: leave it, and the step lasts until the next; or enter it."""

    def __init__(self, log: StepLog | None, thread: int, implied: Announced | None) -> None:
        self._log = log
        self._thread = thread
        self._implied = implied

    def __enter__(self) -> Step:
        if self._log is not None:
            self._log.enter(self._thread, self._implied)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._log is not None:
            self._log.leave(self._thread)


def steps_table(steps: list[Announced]) -> pd.DataFrame:
    """The `announced_steps` of these."""
    return make_table(
        SIDE_TABLES["announced_steps"],
        {
            "name": [step.name for step in steps],
            "phase": [step.phase for step in steps],
            "start_ns": [step.start_ns for step in steps],
            "end_ns": [step.end_ns for step in steps],
            "thread": [step.thread for step in steps],
        },
    )
