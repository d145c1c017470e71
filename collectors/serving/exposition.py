"""The text format of Prometheus: samples with their labels; what cannot be read is counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)\s*"
    r'(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s*'
    r"(?P<value>[^\s{}]+)(?:\s+[^#]*)?(?:\s#.*)?",
    re.ASCII,
)
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|\Z)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n"}


@dataclass(frozen=True)
class Sample:
    """One line: a value of a metric under its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Page:
    """The samples of an answer, and how many of its lines were no sample."""

    samples: tuple[Sample, ...]
    damaged_lines: int = 0


def parse_page(text: str) -> Page:
    """The samples of a page; comments and blank lines are none, other lines that do not parse are
    left out and counted. A page that does not end with its line lost the rest of it."""
    lines = text.split("\n")
    cut = bool(lines[-1].strip())
    body = lines[:-1] if cut else lines
    told = [line for line in body if line.strip() and not line.lstrip().startswith("#")]
    samples = [sample for line in told if (sample := parse_sample(line)) is not None]
    return Page(tuple(samples), len(told) - len(samples) + cut)


def parse_sample(line: str) -> Sample | None:
    """The sample of a line; None for a line that is damaged."""
    match = _SAMPLE.fullmatch(line.strip())
    if match is None:
        return None
    labels = _parse_labels(match["labels"] or "")
    try:
        value = float(match["value"])
    except ValueError:
        return None
    return None if labels is None else Sample(match["name"], labels, value)


def _parse_labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text) and text[at:].strip():
        match = _LABEL.match(text, at)
        if match is None:
            return None
        labels[match[1]] = _ESCAPE.sub(lambda e: _ESCAPES.get(e[1], e[1]), match[2])
        at = match.end()
    return labels
