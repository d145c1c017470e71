"""Why code was compiled again: the guards that failed, as the compiler words them, and how often
each of them did."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# The compiler begins with the version of the code whose guard it was: "0/3: ".
_VERSION = re.compile(r"^\S*\d+/\d+\S*: ")
# What differs from call to call at one guard: a number that stands alone (not the index of a
# dimension or of a list), or a text that something is compared to.
_VALUE = re.compile(r"(?<!index )(?<![\w\[.'])(-?\d+(?:\.\d+)?)(?![\w\]'])|(?<=[=!]= )('[^']*')")
# The size of a dimension that differs from call to call; what was expected is the size before.
_SIZES = re.compile(r"^(?P<what>.* size mismatch at index \d+)\. expected (\d+), actual (\d+)$")
# Longer numbers are addresses, which no two runs share.
_LONGEST_NUMBER = 9
_MOST_TEXTS = 3


class Reason(NamedTuple):
    """A guard that failed so many `times`, with the values that it failed for."""

    text: str
    times: int


def reasons_by_count(told: Iterable[str]) -> list[Reason]:
    """The guards that failed, the most frequent first; equally frequent ones in order of time."""
    guards: dict[str, list[str]] = {}
    for reason in told:
        words = _VERSION.sub("", reason)
        guards.setdefault(_VALUE.sub("\0", words), []).append(words)
    found = [Reason(_merged(alike), len(alike)) for alike in guards.values()]
    return sorted(found, key=lambda reason: -reason.times)


def _merged(alike: list[str]) -> str:
    """One text for reasons that differ in their values alone."""
    sizes = [match for words in alike if (match := _SIZES.match(words))]
    if len(sizes) == len(alike) > 1:
        return _sizes(sizes)
    values = [[match[0] for match in _VALUE.finditer(words)] for words in alike]
    spans = iter([_span(list(dict.fromkeys(column))) for column in zip(*values, strict=True)])
    return _VALUE.sub(lambda _: next(spans), alike[0])


def _sizes(alike: list[re.Match[str]]) -> str:
    """`tensor 'ids' size mismatch at index 1: 8 sizes from 64 to 120`."""
    seen = {int(match[place]) for match in alike for place in (2, 3)}
    return f"{alike[0]['what']}: {len(seen)} sizes from {min(seen)} to {max(seen)}"


def _span(values: list[str]) -> str:
    if len(values) == 1 or any(len(value) > _LONGEST_NUMBER for value in values if value[0] != "'"):
        return values[0]
    if any(value[0] == "'" for value in values):
        more = ", …" if len(values) > _MOST_TEXTS else ""
        return ", ".join(values[:_MOST_TEXTS]) + more
    ordered = sorted(values, key=float)
    return f"{ordered[0]} to {ordered[-1]}"
