"""Tables of name patterns: rows of a CSV file, the first that fits decides."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

_GROUP = re.compile(r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)[?*+]?")
_CLASS = re.compile(r"\[[^\]]*\][?*+]?|\\.[?*+]?|.[?*]")
_LITERAL = re.compile(r"[^\0^$.+]+")
_META = re.compile(r"[\\^$.?*+()\[\]{}|]")


@dataclass(frozen=True)
class Rule:
    """One row: two patterns, and the values of its other columns."""

    needle: str  # text that a fitting name holds; "" when the pattern has no fixed part
    pattern: str  # "" when the needle says it all
    body: str
    values: Mapping[str, str]

    def fits(self, name: str, body: Callable[[], str]) -> bool:
        """Whether the row speaks of this name; `body` is asked only when the name fits."""
        if self.needle not in name:
            return False
        if self.pattern and not compiled(self.pattern).search(name):
            return False
        return not self.body or compiled(self.body).search(body()) is not None


@lru_cache(maxsize=None)
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern compiled once, and only when a name comes near it."""
    return re.compile(pattern)


def read_table(file: str) -> Iterator[dict[str, str]]:
    """Rows of a table beside this module; lines that begin with # are for people."""
    text = resources.files(__package__).joinpath(file).read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    for row in csv.DictReader(lines, restval=""):
        yield {key: value for key, value in row.items() if key is not None}


def read_rules(file: str) -> tuple[Rule, ...]:
    """The rows of a table with the columns `name` and, where it has one, `body`."""
    return tuple(_make_rule(row) for row in read_table(file))


def first_fit(
    rules: tuple[Rule, ...], name: str, body: Callable[[], str] = str
) -> Mapping[str, str] | None:
    """The values of the first row that fits."""
    for rule in rules:
        if rule.needle in name and rule.fits(name, body):
            return rule.values
    return None


def _make_rule(row: dict[str, str]) -> Rule:
    pattern = row.pop("name")
    literal = not _META.search(pattern)
    return Rule(
        needle=pattern if literal else _fixed_part(pattern),
        pattern="" if literal else pattern,
        body=row.pop("body", ""),
        values=row,
    )


def _fixed_part(pattern: str) -> str:
    """The longest text that stands in everything the pattern fits: a cheap test before it."""
    outside = _GROUP.sub("\0", pattern)
    if "|" in outside:
        return ""
    return max(_LITERAL.findall(_CLASS.sub("\0", outside)), key=len, default="")
