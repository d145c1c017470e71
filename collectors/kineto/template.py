"""One event looked at closely: which keys it has where, and where the values stand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracer.collectors.kineto.digits import Words
from tracer.collectors.kineto.fields import (
    CATEGORIES,
    DROPPED_CATEGORIES,
    EVENTS,
    MEMORY,
    MEMORY_NAMES,
    OTHER,
    Family,
    Field,
)
from tracer.collectors.kineto.page import Page

_SPACE = " \t\r\n"
_JSON = json.JSONDecoder(strict=False)


class Span(NamedTuple):
    """Where the value of a field stands: `lead` bytes after quote number `after` of the event, up
    to `tail` bytes before quote number `before`. `around` are the bytes on both sides of it,
    `inside` its own first and last."""

    field: Field
    after: int
    lead: int
    before: int
    tail: int
    around: tuple[int, int]
    inside: tuple[int, int]


class Check(NamedTuple):
    """What stands `offset` bytes behind quote number `quote`, as one masked word."""

    quote: int
    offset: int
    word: np.uint64
    mask: np.uint64


@dataclass(frozen=True)
class Template:
    """One form of event. `family` is None for events that are not kept."""

    family: Family | None
    category: str
    quotes: int
    checks: tuple[Check, ...]
    spans: tuple[Span, ...] = ()


class _Value(NamedTuple):
    """A value in the text of one event: where it begins and ends, and what it is."""

    key: str
    in_arguments: bool
    quote: int  # number of the key's opening quote
    before: int  # number of the next key's opening quote
    begin: int
    end: int
    read: object


class _Key(NamedTuple):
    name: str
    quote: int
    depth: int
    parent: str


def learn(page: Page, event: int) -> Template | None:
    """The template of an event; None when its form is not one to read fast."""
    first, last = int(page.events[event]), int(page.events[event + 1])
    quotes = [int(position) for position in page.quotes[first : last + 1]]
    start = quotes[0]
    text = page.text.bytes[start : quotes[-1]].tobytes().decode("latin-1")
    positions = [position - start for position in quotes]
    try:
        values = list(_values(text, positions))
    except ValueError:
        return None
    return _template(page, start, text, positions, values)


def _keys(text: str, quotes: list[int]) -> Iterator[_Key]:
    """Each key of the event, how deep it lies and under which key of the event itself."""
    depth, parent = 1, ""
    for number in range(0, len(quotes) - 1, 2):
        opening, closing = quotes[number], quotes[number + 1]
        name = text[opening + 1 : closing]
        after = quotes[number + 2] if number + 2 < len(quotes) else len(text)
        gap = text[closing + 1 : after]
        if gap.lstrip(_SPACE).startswith(":"):
            yield _Key(name, number, depth, parent)
            parent = name if depth == 1 else parent
        depth += gap.count("{") + gap.count("[") - gap.count("}") - gap.count("]")


def _values(text: str, quotes: list[int]) -> Iterator[_Value]:
    keys = list(_keys(text, quotes))
    for index, key in enumerate(keys):
        if key.depth > 2 or (key.depth == 2 and key.parent != "args"):
            continue
        following = (later.quote for later in keys[index + 1 :] if later.depth <= key.depth)
        begin = quotes[key.quote + 1] + 1
        begin += len(text[begin:]) - len(text[begin:].lstrip(_SPACE + ":"))
        read, end = _JSON.raw_decode(text, begin)
        before = next(following, len(quotes) - 1)
        yield _Value(key.name, key.depth == 2, key.quote, before, begin, end, read)


def _template(
    page: Page, start: int, text: str, quotes: list[int], values: list[_Value]
) -> Template | None:
    own = {value.key: value for value in values if not value.in_arguments}
    phase, name, category = (_string(own.get(key)) for key in ("ph", "name", "cat"))
    told = {"ph", "cat"}
    family: Family | None = None
    if phase == "i" and name.encode() in MEMORY_NAMES:
        family = MEMORY
        told.add("name")
    elif phase == "X" and category not in ("", *DROPPED_CATEGORIES):
        family = CATEGORIES.get(category, OTHER)
    elif category not in DROPPED_CATEGORIES:
        return None
    fixed = [own[key] for key in told if key in own]
    checked = values if family else fixed
    checks = _checks(page, start, quotes, fixed, checked)
    spans = _spans(text, quotes, values, family) if family else ()
    return None if spans is None else Template(family, category, len(quotes) - 1, checks, spans)


def _string(value: _Value | None) -> str:
    return value.read if value is not None and isinstance(value.read, str) else ""


def _checks(
    page: Page, start: int, quotes: list[int], fixed: list[_Value], keys: Iterable[_Value]
) -> tuple[Check, ...]:
    """Words that every event of the form has: all text up to the first value that differs, then
    the end of each key with its closing quote, and the values in `fixed`."""
    words = page.text.words
    same = {value.quote for value in fixed}
    differing = min((key.quote for key in keys if key.quote not in same), default=0)
    prefix = quotes[differing]
    checks = [_check(words, start, 0, offset, prefix - offset) for offset in range(0, prefix, 8)]
    for number in sorted(value.quote for value in keys if quotes[value.quote] >= prefix):
        length = quotes[number + 1] - quotes[number]
        offset = 1 + max(length - 8, 0)
        checks.append(_check(words, start + quotes[number], number, offset, length))
    for number in sorted(value.quote + 2 for value in fixed if quotes[value.quote] >= prefix):
        length = quotes[number + 1] - quotes[number]
        for offset in range(0, length, 8):
            checks.append(
                _check(words, start + quotes[number], number, 1 + offset, length - offset)
            )
    return tuple(checks)


def _check(words: Words, begin: int, quote: int, offset: int, length: int) -> Check:
    mask = np.uint64((1 << 8 * min(length, 8)) - 1)
    return Check(quote, offset, words[begin + offset] & mask, mask)


def _spans(
    text: str, quotes: list[int], values: list[_Value], family: Family
) -> tuple[Span, ...] | None:
    """The values to take; None when one is not written as its field asks, or one is missing."""
    head = {field.key: field for field in family.head}
    spans = []
    for value in values:
        field = (family.by_key if value.in_arguments else head).get(value.key)
        if field is None:
            continue
        if not _is_written_as(field, value, text):
            return None
        spans.append(_span(field, value, text, quotes))
    found = {(span.field.table, span.field.column) for span in spans}
    needed = {(EVENTS, column) for column in ("name", "start_ns", *_NEEDED[family.place])}
    return tuple(spans) if needed <= found and len(found) == len(spans) else None


_NEEDED = {
    "thread": ("pid", "tid"),
    "ids": ("pid", "tid"),
    "args": ("device", "stream"),
    "nowhere": (),
}


def _is_written_as(field: Field, value: _Value, text: str) -> bool:
    if field.form == "text":
        return isinstance(value.read, str)
    if field.form == "json":
        return isinstance(value.read, list | str)
    if field.form == "product":
        return isinstance(value.read, list)
    if isinstance(value.read, str):  # as early versions wrote thread ids
        return field.form == "int" and value.read.isdigit()
    number = isinstance(value.read, int if field.form == "int" else int | float)
    return number and not set("eE") & set(text[value.begin : value.end])


def _span(field: Field, value: _Value, text: str, quotes: list[int]) -> Span:
    inset = 1 if isinstance(value.read, str) and field.form != "json" else 0
    begin, end = value.begin + inset, value.end - inset
    after = value.quote + 1
    lead, tail = begin - quotes[after], quotes[value.before] - end
    around = ord(text[begin - 1]), ord(text[end])
    inside = (0, 0) if begin == end else (ord(text[begin]), ord(text[end - 1]))
    return Span(field, after, lead, value.before, tail, around, inside)
