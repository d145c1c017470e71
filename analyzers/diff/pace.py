"""Whether all of a step changed by one factor: the machine did, and no one thing in the program."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.analysis import Analysis
from tracer.diff_analysis import Difference, PhaseChange

# Operators of this share of the time, and so many of them, changed by about the same factor.
_MOST_RATIO, _FEWEST = 0.85, 4
# About the same: up to so many times the usual factor, or as much below it.
_ALIKE_TIMES = 1.3
# A factor closer to 1 is not told.
_NOTABLE_RATIO = 0.1
# As many calls a step, but for what few steps do besides.
_CALLS_RATIO = 0.05
# Settings that make all operators slower or faster alike.
_SETTINGS = ("diff.setting", "diff.version")


def pace_of(
    before: Analysis, after: Analysis, change: PhaseChange, differences: Iterable[Difference]
) -> float | None:
    """How many times as long all operators take that run on a CPU, where that is one factor. None
    where it is none, or where other work or another setting may be what it comes from."""
    if not (before.cpu_only and after.cpu_only):
        return None
    if any(d.breaks or d.rule in _SETTINGS for d in differences):
        return None
    times = np.array([(row.before_ns, row.after_ns) for row in change.kernels], dtype=np.float64)
    counts = np.array([(row.before_count, row.after_count) for row in change.kernels], np.float64)
    if len(times) < _FEWEST:
        return None
    times, counts = (each / (change.before.count, change.after.count) for each in (times, counts))
    same = np.abs(counts[:, 1] - counts[:, 0]) <= _CALLS_RATIO * counts.max(axis=1)
    same &= times.min(axis=1) > 0
    if same.sum() < _FEWEST:
        return None
    factors = np.full(len(times), np.nan)
    factors[same] = times[same, 1] / times[same, 0]
    factor = float(times[same, 1].sum() / times[same, 0].sum())
    alike = np.abs(np.log(factors / factor)) <= np.log(_ALIKE_TIMES)
    shares = times[alike].sum(axis=0) / np.maximum(times.sum(axis=0), 1)
    told = abs(factor - 1) > _NOTABLE_RATIO and alike.sum() >= _FEWEST
    return factor if told and shares.min() >= _MOST_RATIO else None
