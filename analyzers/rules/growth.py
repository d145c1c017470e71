"""Pauses that get longer in the course of a recording: what they go through again grows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import Longs
from tracer.analyzers.rules.judging import milliseconds
from tracer.findings import Finding

# So many pauses, in so many parts of the recording: each part is longer than the one before, of
# eight but for one, and the last is so many times as long as the first.
_LEAST, _MANY, _FEW_PARTS, _PARTS = 8, 24, 4, 8
_TIMES = 2.0
_ADVICE = "It takes longer with each turn: look for what grows (a list, a text, a history)."


def with_growth(finding: Finding, gap: Longs, length_ns: Longs) -> Finding:
    """The finding, in other words where its pauses grow. `gap`: of each piece, in order of time,
    the number of the pause that it is of; `length_ns`: how long it is."""
    _, whole = np.unique(gap, return_inverse=True)
    parts = _means(np.bincount(whole, weights=length_ns).astype(np.float64))
    if not _grow(parts):
        return finding
    first, last = float(parts[0]), float(parts[-1])
    return replace(
        finding,
        title=f"{finding.title}, growing from {milliseconds(first)} to {milliseconds(last)}",
        advice=f"{finding.advice} {_ADVICE}",
        detail={**finding.detail, "grows_ns": [round(first), round(last)]},
    )


def _means(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each part of the pauses; none of too few."""
    if lengths.size < _LEAST:
        return np.zeros(0)
    parts = np.array_split(lengths, _PARTS if lengths.size >= _MANY else _FEW_PARTS)
    return np.array([part.mean() for part in parts])


def _grow(parts: NDArray[np.float64]) -> bool:
    if not parts.size or parts[-1] < _TIMES * parts[0]:
        return False
    return int((np.diff(parts) <= 0).sum()) <= parts.size // _PARTS
