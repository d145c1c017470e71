"""Tables of name patterns: rows of a CSV file, the first that fits decides."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

# What stands in a pattern beside fixed text; a group or a class of characters fits many texts.
_GROUP = re.compile(r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)[?*+]?")
_ESCAPE = re.compile(r"\[[^\]]*\]|\\.")
_CLASS = re.compile(r"(?:\[[^\]]*\]|\\.)(?:[?*+]|\{[^}]*\})?|.(?:[?*]|\{[^}]*\})")
_LITERAL = re.compile(r"[^\0^$.+]+")
_META = re.compile(r"[\\^$.?*+()\[\]{}|]")


@dataclass(frozen=True)
class Pattern:
    """A regular expression, and a text that everything it fits holds: a cheap test before it."""

    needle: str
    expression: str  # "" when the needle says it all

    def search(self, text: str) -> re.Match[str] | None:
        """Where the pattern fits, if it does."""
        if self.needle not in text:
            return None
        return compiled(self.expression or re.escape(self.needle)).search(text)

    def fits(self, text: str) -> bool:
        """Whether the pattern fits somewhere in the text."""
        if self.needle not in text:
            return False
        return not self.expression or compiled(self.expression).search(text) is not None


@dataclass(frozen=True)
class Rule:
    """One alternative of one row: its patterns, and the values of its other columns."""

    name: Pattern
    body: tuple[Pattern, ...]  # any of them; none: everything fits
    values: Mapping[str, str]

    def fits(self, name: str, body: Callable[[], str] = str) -> bool:
        """Whether the row speaks of this name; `body` is asked only when the name fits."""
        if not self.name.fits(name):
            return False
        return not self.body or any(pattern.fits(body()) for pattern in self.body)


@cache
def compiled(expression: str) -> re.Pattern[str]:
    """A pattern compiled once, and only when a name comes near it."""
    return re.compile(expression)


def read_table(file: str) -> Iterator[dict[str, str]]:
    """Rows of a table beside this module; lines that begin with # are for people."""
    text = resources.files("tracer.analyzers.names").joinpath(file).read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    for row in csv.DictReader(lines, restval=""):
        yield {key: value for key, value in row.items() if key is not None}


def read_rules(file: str) -> tuple[Rule, ...]:
    """The rows of a table with the columns `name` and, where it has one, `body`."""
    return tuple(rule for row in read_table(file) for rule in make_rules(row))


def first_fit(
    rules: tuple[Rule, ...], name: str, body: Callable[[], str] = str
) -> Mapping[str, str] | None:
    """The values of the first row that fits."""
    for rule in rules:
        if rule.name.needle in name and rule.fits(name, body):
            return rule.values
    return None


def make_rules(row: Mapping[str, str]) -> tuple[Rule, ...]:
    """A rule for each alternative of the name, so that each has a needle of its own."""
    body = row.get("body", "")
    bodies = tuple(_make_pattern(part) for part in _alternatives(body)) if body else ()
    values = {key: value for key, value in row.items() if key not in ("name", "body")}
    names = _alternatives(row["name"])
    return tuple(Rule(_make_pattern(name), bodies, values) for name in names)


def _alternatives(expression: str) -> list[str]:
    """Cut at each | that stands in no bracket."""
    hidden = _ESCAPE.sub(lambda found: "\0" * len(found.group()), expression)
    hidden = _GROUP.sub(lambda found: "\0" * len(found.group()), hidden)
    cuts = [-1, *(at for at, sign in enumerate(hidden) if sign == "|"), len(hidden)]
    return [expression[start + 1 : end] for start, end in pairwise(cuts)]


def _make_pattern(expression: str) -> Pattern:
    if not _META.search(expression):
        return Pattern(expression, "")
    fixed = _CLASS.sub("\0", _GROUP.sub("\0", expression))
    return Pattern(max(_LITERAL.findall(fixed), key=len, default=""), expression)
