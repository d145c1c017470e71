"""What explains idle, and what judges may look at: a recording in its structures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracer.analysis import CALLS, Analysis, RuleResult
from tracer.analyzers.accounting import Lanes
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import Work
from tracer.analyzers.gaps import Gaps
from tracer.analyzers.intervals import Longs, Rows
from tracer.analyzers.steps.finder import HostStep


@dataclass(frozen=True)
class StepPlan:
    """Steps in time: as announced, as measured, and the step of each piece of work (-1 none)."""

    host: list[HostStep]
    start_ns: Longs
    end_ns: Longs
    work_step: Longs
    found: bool  # False: no step was recognised and the window stands for one
    cut_off: int = 0  # steps within which the recording ended

    @property
    def found_steps(self) -> list[HostStep]:
        """The steps that were recognised; none when the window stands for one."""
        return self.host if self.found else []

    def touched(self, step: Rows, start_ns: Longs) -> tuple[int, ...]:
        """The steps that pieces of time lie in. What begins between two calls of a model belongs to
        the turn of the loop that the call before it began."""
        if self.host[0].source in CALLS:
            turn = np.searchsorted(self.start_ns, start_ns, side="right") - 1
            step = np.where(step >= 0, step, turn)
        return tuple(np.unique(step[step >= 0]).tolist())

    def following(self, start_ns: Longs) -> tuple[int, ...]:
        """The steps that times between steps, on the host, come after."""
        announced = np.array([step.start_ns for step in self.host], dtype=np.int64)
        step = np.searchsorted(announced, start_ns, side="right") - 1
        return tuple(np.unique(step[step >= 0]).tolist())

    @property
    def window(self) -> tuple[int, int]:
        return int(self.start_ns[0]), int(self.end_ns.max())


@dataclass(frozen=True)
class Context:
    """What explains idle and what judges may look at: the recording in its structures, and (for
    judges) the result so far."""

    work: Work
    roles: Roles
    attribution: Attribution
    lanes: Lanes
    plan: StepPlan
    gaps: Gaps
    analysis: Analysis | None = None


Explain = Callable[[Context], Gaps]
Rule = Callable[[Context, Analysis], RuleResult]
