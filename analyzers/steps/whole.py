"""Steps of a file whose end is missing."""

from __future__ import annotations

import numpy as np

from tracer.analyzers.facts.cut import known_until
from tracer.analyzers.facts.host import Launches
from tracer.analyzers.steps.finder import HostStep
from tracer.events import Trace

# Of the launches of a step, those whose work was read: a capture launches nothing.
_WHOLE = 0.9


def whole_steps(trace: Trace, launches: Launches, steps: list[HostStep]) -> list[HostStep]:
    """The steps whose work was read."""
    until = known_until(trace)
    if until is None:
        return steps
    launching = np.flatnonzero(launches.launching)
    done = np.isin(launching, launches.launch[trace.device_rows])
    at = trace.start_ns[launching]

    def is_whole(step: HostStep) -> bool:
        mine = (at >= step.start_ns) & (at < step.end_ns)
        return step.end_ns <= until and bool(done[mine].sum() >= _WHOLE * mine.sum())

    return [step for step in steps if is_whole(step)]
