"""How the idle time of a level is spread: over many short gaps, or a few long ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.exporters.levels import Level, of_steps, steps_of

# An operator is named when so much of the idle lies before its kernels, in gaps so much longer.
_OPERATOR_RATIO = 0.4
_LONGER = 3
# The longest gaps that make up half of the idle are "a few" when they are at most this share.
_FEW_RATIO = 0.05
_FEWEST_GAPS = 20


@dataclass(frozen=True)
class Before:
    """The gaps before kernels of one operator."""

    operator: str
    gaps: int
    idle_ns: int


@dataclass(frozen=True)
class Pauses:
    """Gaps of a level. `long_gaps` are the longest that make up half of the idle time."""

    gaps: int
    idle_ns: int
    works: int
    long_gaps: int
    longest_ns: int
    after: int  # row of the work after the longest gap; -1 for none
    before: Before | None  # the operator whose kernels wait unlike others

    @property
    def concentrated(self) -> bool:
        """Whether a few long gaps make up half of the idle time."""
        return self.long_gaps <= max(1, int(self.gaps * _FEW_RATIO))

    @property
    def many(self) -> bool:
        """Whether there are enough gaps to speak of how they are spread."""
        return self.gaps >= _FEWEST_GAPS


def find_pauses(analysis: Analysis, level: Level) -> Pauses | None:
    """The gaps in the steps of a level; None when no gap was recorded there. What may not have been
    idle at all says nothing."""
    gaps = analysis.gaps[~analysis.gaps["unrecorded"].to_numpy()]
    if level.phase is not None:
        gaps = gaps[of_steps(gaps["step"].to_numpy(), steps_of(analysis, level.phase))]
    if not len(gaps):
        return None
    whole = _whole_gaps(gaps)
    durations = whole["ns"].to_numpy()
    half = int(np.searchsorted(np.cumsum(durations), durations.sum() / 2)) + 1
    return Pauses(
        gaps=len(whole),
        idle_ns=int(durations.sum()),
        works=count_work(analysis, level),
        long_gaps=half,
        longest_ns=int(durations[0]),
        after=int(whole["after"].to_numpy()[0]),
        before=_largest_before(analysis, whole),
    )


def _whole_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """Gaps with their pieces put together, the longest first."""
    pieces = pd.DataFrame(
        {
            "device": gaps["device"].to_numpy(),
            "gap": gaps["gap"].to_numpy(),
            "ns": (gaps["end_ns"] - gaps["start_ns"]).to_numpy(),
            "after": gaps["after"].to_numpy(),
        }
    )
    grouped = pieces.groupby(["device", "gap"], sort=False)
    whole = grouped.agg(ns=("ns", "sum"), after=("after", "max"))
    return whole.sort_values("ns", ascending=False, kind="stable")


def count_work(analysis: Analysis, level: Level) -> int:
    """Kernels, copies and sets in the steps of a level."""
    if level.phase is None:
        return len(analysis.work)
    return int(of_steps(analysis.work["step"].to_numpy(), steps_of(analysis, level.phase)).sum())


def _largest_before(analysis: Analysis, gaps: pd.DataFrame) -> Before | None:
    """The operator whose kernels most of the idle lies before, if they wait longer than others."""
    codes, times = _operators_after(analysis, gaps)
    if not codes.size:
        return None
    sums = np.bincount(codes, weights=times)
    largest = int(sums.argmax())
    count = int((codes == largest).sum())
    idle = float(gaps["ns"].sum())
    longer = sums[largest] / count >= _LONGER * idle / len(gaps)
    if sums[largest] < _OPERATOR_RATIO * idle or not longer:
        return None
    return Before(analysis.trace.names[largest], count, int(sums[largest]))


def _operators_after(
    analysis: Analysis, gaps: pd.DataFrame
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Name codes of the operators that launched the work after each gap, and the gaps' times."""
    after = gaps["after"].to_numpy()
    known = after >= 0
    events = analysis.work["operator"].to_numpy()[after[known]]
    named = events >= 0
    times: NDArray[np.int64] = gaps["ns"].to_numpy()[known][named]
    return analysis.trace.name_codes[events[named]], times
