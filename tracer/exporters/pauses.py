"""How the idle time of a level is spread: over many short gaps, or a few long ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.exporters.levels import Level, steps_of

# The longest gaps that make up half of the idle are "a few" when they are at most this share.
_FEW_RATIO = 0.05
_ONE_OPERATOR_RATIO = 0.6


@dataclass(frozen=True)
class Pauses:
    """Gaps of a level. `long_gaps` are the longest that make up half of the idle time."""

    gaps: int
    idle_ns: int
    works: int
    long_gaps: int
    longest_ns: int
    operator: str | None  # the operator before whose kernels most of that half lies

    @property
    def concentrated(self) -> bool:
        """Whether a few long gaps make up half of the idle time."""
        return self.long_gaps <= max(1, int(self.gaps * _FEW_RATIO))


def find_pauses(analysis: Analysis, level: Level) -> Pauses | None:
    """The gaps in the steps of a level; None when no gap was recorded there."""
    gaps = analysis.gaps
    if level.phase is not None:
        gaps = gaps[_inside(gaps["step"].to_numpy(), steps_of(analysis, level.phase))]
    if not len(gaps):
        return None
    whole = _whole_gaps(gaps)
    durations = whole["ns"].to_numpy()
    half = int(np.searchsorted(np.cumsum(durations), durations.sum() / 2)) + 1
    return Pauses(
        gaps=len(whole),
        idle_ns=int(durations.sum()),
        works=_count_work(analysis, level),
        long_gaps=half,
        longest_ns=int(durations[0]),
        operator=_operator_after(analysis, whole.head(half)),
    )


def _inside(rows: NDArray[np.int64], steps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (rows >= 0) & steps[np.maximum(rows, 0)]
    return inside


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
    whole = pieces.groupby(["device", "gap"], sort=False).agg(
        ns=("ns", "sum"), after=("after", "max")
    )
    return whole.sort_values("ns", ascending=False, kind="stable")


def _count_work(analysis: Analysis, level: Level) -> int:
    if level.phase is None:
        return len(analysis.work)
    return int(_inside(analysis.work["step"].to_numpy(), steps_of(analysis, level.phase)).sum())


def _operator_after(analysis: Analysis, gaps: pd.DataFrame) -> str | None:
    """The operator that launched the work after most of the time of these gaps."""
    after = gaps["after"].to_numpy()
    operators = analysis.work["operator"].to_numpy()
    known = after >= 0
    events = operators[after[known]]
    named = events >= 0
    times = gaps["ns"].to_numpy()[known][named]
    codes = analysis.trace.name_codes[events[named]]
    if not codes.size:
        return None
    sums = np.bincount(codes, weights=times)
    largest = int(sums.argmax())
    if sums[largest] < _ONE_OPERATOR_RATIO * gaps["ns"].sum():
        return None
    return analysis.trace.names[largest]
