"""Steps of which a part was not recorded: the end of a file is missing, or the recording ended
within them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracer.analyzers.facts.cut import known_until
from tracer.analyzers.facts.host import Launches
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.steps.finder import HostStep
from tracer.events import Trace

# Of the launches of a step, those whose work was read: a capture launches nothing. A few without
# work at the end tell nothing.
_WHOLE, _FEW = 0.9, 5


class Whole(NamedTuple):
    """The steps that were recorded whole, and within how many the recording ended."""

    steps: list[HostStep]
    cut_off: int


def whole_steps(trace: Trace, launches: Launches, steps: list[HostStep]) -> Whole:
    """Where the recording ended within all steps that there are, they stay, but how many tokens
    they computed in the time that was seen is not known."""
    until = known_until(trace)
    if until is not None:  # that the file was cut is said
        return Whole(_read_until(until, trace, launches, steps), 0)
    ends = _Ends(trace, launches, steps)
    whole = [step for step in steps if ends.is_whole(step)]
    kept = whole or [replace(step, tokens=NONE, kept=NONE) for step in steps]
    return Whole(kept, len(steps) - len(whole))


def _read_until(
    until: int, trace: Trace, launches: Launches, steps: list[HostStep]
) -> list[HostStep]:
    """The steps whose work was read, of a file that was cut."""
    at, done = _launched(trace, launches)

    def is_whole(step: HostStep) -> bool:
        mine = (at >= step.start_ns) & (at < step.end_ns)
        return step.end_ns <= until and bool(done[mine].sum() >= _WHOLE * mine.sum())

    return [step for step in steps if is_whole(step)]


def _launched(trace: Trace, launches: Launches) -> tuple[Longs, Longs]:
    """When work was launched, and whether (1) it has rows."""
    launching = np.flatnonzero(launches.launching)
    done = np.isin(launching, launches.launch[trace.device_rows])
    return trace.start_ns[launching], done.astype(np.int64)


class _Ends:
    """What the end of a recording cut off: ranges that were open, and work that had not run."""

    def __init__(self, trace: Trace, launches: Launches, steps: list[HostStep]) -> None:
        open_ranges = trace.table("unfinished")["event"].to_numpy()
        self._open_ns = trace.start_ns[open_ranges]
        self._open_thread = trace.events["thread"].to_numpy()[open_ranges]
        self._last = {step.thread: step for step in steps}
        traced = trace.meta.extra.get("traced") if trace.meta.detail != "light" else None
        self._end_ns = int(traced["end_ns"]) if traced else None
        at, done = _launched(trace, launches)
        ran = at[done == 1]
        # What has no row before the last work that ran was lost on the way, or launched nothing.
        self._launched_ns = np.sort(at)
        self._ran_until = int(ran.max()) if ran.size else None

    def is_whole(self, step: HostStep) -> bool:
        """Whether all of a step was recorded."""
        beyond = self._end_ns is not None and step.end_ns > self._end_ns
        return not (beyond or self._is_open(step) or self._is_ahead(step))

    def _is_open(self, step: HostStep) -> bool:
        """Whether a range that began within it was open at the end; a step that another follows has
        ended, whatever was left open."""
        mine = self._open_thread == step.thread
        begun = (self._open_ns >= step.start_ns) & (self._open_ns < step.end_ns)
        return self._last[step.thread] is step and bool((mine & begun).any())

    def _is_ahead(self, step: HostStep) -> bool:
        """Whether the recording ended before the device had done what the host had launched."""
        if self._ran_until is None:
            return False
        bounds = (step.start_ns, step.end_ns, max(self._ran_until + 1, step.start_ns))
        first, end, ran = np.searchsorted(self._launched_ns, bounds).tolist()
        return bool(end - ran > max((1 - _WHOLE) * (end - first), _FEW))
