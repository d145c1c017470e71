"""Times and counts for the sentences of findings and notes."""

from __future__ import annotations


def milliseconds(ns: float) -> str:
    """Time for a sentence: 3 significant digits and a unit."""
    for limit, unit, size in ((1e3, "ns", 1), (1e6, "us", 1e3), (1e9, "ms", 1e6)):
        if abs(ns) < limit:
            return f"{ns / size:.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def counted(count: int, noun: str) -> str:
    """`1 wait`, `4 waits`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
