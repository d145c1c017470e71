"""What changed between two recordings: the one result that text and JSON read.

`before` is the first of the two, called A, and `after` the second, called B. Times are sums over
the compared steps of a side, which `Side.count` divides; nothing is rounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.findings import Finding

# Stand for a group where the mean turn is told: what lies in no step, and steps of another phase.
BETWEEN = "between the steps"
EVALUATION, OTHER_STEPS = "evaluation", "other steps"
# From this share of a turn on a change of its mean is told that the median does not show, and from
# this share of it on where the median did not change beyond its scatter.
_NOTABLE_TURN_RATIO, _REST_RATIO = 0.02, 0.25


@dataclass(frozen=True)
class Measure:
    """One time of both sides, as medians of so many steps.

    `scatter_ns`: a difference up to it is what steps that scatter like these show by chance. None
    where that is not known, and `reason` says why.
    """

    before_ns: int
    after_ns: int
    scatter_ns: int | None = None
    reason: str = ""

    @property
    def change_ns(self) -> int:
        return self.after_ns - self.before_ns

    @property
    def change_ratio(self) -> float | None:
        """The change as a share of what it was; None of nothing."""
        return self.change_ns / self.before_ns if self.before_ns else None

    @property
    def within_scatter(self) -> bool | None:
        """Whether the change may be chance; None where it is not known. None at all is none."""
        if not self.change_ns:
            return True
        return None if self.scatter_ns is None else abs(self.change_ns) <= self.scatter_ns


@dataclass(frozen=True)
class Side:
    """The steps of one recording that are compared; of the window where `steps` is 0.

    `shown`: rows of `steps` that the sums are about, all of them or the middle half by their time.
    bucket_ns: None where the time is not accounted for.
    between_ns: from the end of these steps to the next ones, of which there are `followed`.
    """

    steps: int
    warmup_steps: int
    shown: NDArray[np.int64]
    wall_ns: int
    devices: int
    bucket_ns: NDArray[np.int64] | None
    between_ns: int
    followed: int
    batch: int  # of the median step, as `tokens`; -1 unknown
    tokens: int
    tokens_per_second: float | None

    @property
    def count(self) -> int:
        """What sums are divided by for a step."""
        return max(int(self.shown.size), 1)


@dataclass(frozen=True)
class Named:
    """A module, a role or a kernel: time and count over the shown steps of each side. A count of 0
    on one side: it appeared or is gone."""

    name: str
    kind: str  # of a module its role, of a kernel `group.part`
    before_ns: int
    after_ns: int
    before_count: int
    after_count: int
    parent: str | None = None  # of a module: the path around it
    self_before_ns: int = 0
    self_after_ns: int = 0


@dataclass(frozen=True)
class PartOfStep:
    """A part of the time of steps, such as the backward pass: the medians."""

    name: str
    before_ns: int
    after_ns: int


@dataclass(frozen=True)
class TurnPart:
    """What a mean turn goes to, on all devices: a group and a part of the step, or one of the names
    above with part ""."""

    group: str
    part: str
    before_ns: int
    after_ns: int


@dataclass(frozen=True)
class MeanTurn:
    """From the start of a step to that of the next, as the mean: with what comes every so many
    steps. The parts add up to it; none where the time is not accounted for."""

    measure: Measure
    parts: tuple[TurnPart, ...]


@dataclass(frozen=True)
class PhaseChange:
    """What changed in the steps of a phase; `phase` None: in the whole window.

    turn: from the start of a step to that of the next, where steps follow each other. medians: the
    time of each (group, part), and of each (group, ""). modules_by: path or role. middle: the
    middle half of the steps is shown, as their mean does not stand for all.
    """

    phase: str | None
    before: Side
    after: Side
    step: Measure
    turn: Measure | None
    medians: Mapping[tuple[str, str], Measure]
    middle: bool
    modules: tuple[Named, ...]
    modules_by: str
    kernels: tuple[Named, ...]
    parts: tuple[PartOfStep, ...] = ()
    phase_before: str = ""  # as A calls it
    turn_counts: bool = False  # steps are calls in a loop, which goes on between them
    pace: float | None = None  # all operators take so many times as long: the machine's doing
    like_turns: bool = False  # calls of other kinds on either side: their turns alone are alike
    mean_turn: MeanTurn | None = None  # None where no step is followed

    @property
    def mean_tells(self) -> bool:
        """Whether the mean turn changed beyond its scatter, and by what the median does not show:
        neither by so much longer nor by so many times as long as the median went the same way."""
        mean = None if self.mean_turn is None else self.mean_turn.measure
        if mean is None or mean.within_scatter is not False or mean.scatter_ns is None:
            return False
        usual = self.turn if self.turn is not None and self.turn_counts else self.step
        rest = mean.before_ns - usual.before_ns, mean.after_ns - usual.after_ns
        slower = usual.after_ns / max(usual.before_ns, 1)
        way = 1 if mean.change_ns > 0 else -1
        beyond = min(way * (rest[1] - rest[0]), way * (rest[1] - rest[0] * slower))
        least = (
            mean.scatter_ns if usual.within_scatter is False else _REST_RATIO * way * mean.change_ns
        )
        return beyond > max(least, _NOTABLE_TURN_RATIO * mean.before_ns)


@dataclass(frozen=True)
class Difference:
    """Something that A and B do not have in common. `breaks`: their times are not like with like,
    so that the change is not the effect of one change. Otherwise it is a setting that may be just
    what was changed. before, after: as recorded."""

    rule: str
    message: str
    before: Any
    after: Any
    breaks: bool = True


@dataclass(frozen=True)
class FindingChange:
    """A finding of A and the same one of B; None: not there. unseen: why the side that lacks it
    could not be looked at, "" where it was; unsure: why it could be looked at in part. below: why
    that side may have it too, only too little of it to be named, and other_ns what it costs there
    in all, None where that is not known."""

    before: Finding | None
    after: Finding | None
    unseen: str = ""
    unsure: str = ""
    below: str = ""
    other_ns: int | None = None

    @property
    def status(self) -> str:
        """gone, new, still (on one side perhaps too little to be named), or not_checked where one
        side could not be looked at."""
        if self.unseen:
            return "not_checked"
        if self.below:
            return "still"
        if self.after is None:
            return "gone"
        return "new" if self.before is None else "still"

    @property
    def finding(self) -> Finding:
        """The finding, as B tells it where it is still there."""
        told = self.after or self.before
        assert told is not None
        return told


@dataclass(frozen=True)
class DiffAnalysis:
    """Two recordings compared. `phases`: common to both, the longest first (after one whose change
    is known to be beyond its scatter, where that of the longest is not); one for the windows where
    steps were not found in both. Empty, and `reason` says why: nothing can be compared."""

    before: Analysis
    after: Analysis
    phases: tuple[PhaseChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    differences: tuple[Difference, ...]
    findings: tuple[FindingChange, ...]
    reason: str = ""

    @property
    def comparable(self) -> bool:
        """Whether nothing stands against taking the change of time as the effect of a change."""
        return bool(self.phases) and not any(d.breaks for d in self.differences)
