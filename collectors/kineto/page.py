"""A text of whole events, seen through its quotes: where each event and each string begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.collectors.kineto.digits import Ints, Text
from tracer.collectors.kineto.salvage import ORDER_STEP, Piece

_QUOTE, _BACKSLASH, _OPEN, _CLOSE = 34, 92, 123, 125
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*("ph"|"name"|"cat"|"pid"|"tid"|"ts"|"args"|"attr")\s*:')
_LEARN_BYTES = 1 << 16


class Separator(NamedTuple):
    """What stands between two events: from the closing brace to the next one's first key."""

    text: bytes
    key: bytes  # with its quotes

    @property
    def to_quote(self) -> int:
        """Bytes from the closing brace to the opening quote of the next event's first key."""
        return len(self.text) - len(self.key)

    @property
    def brace_to_quote(self) -> int:
        """Bytes from the opening brace of an event to its first quote."""
        return self.to_quote - self.text.index(b"{")


def find_separator(text: bytes) -> Separator | None:
    """How this text separates its events, as the first of them show it."""
    found = _BETWEEN.search(text, 0, _LEARN_BYTES)
    if found is None:
        return None
    return Separator(found.group(0)[: found.end(1) - found.start()], found.group(1))


def last_separator(text: bytes) -> int:
    """Where the last closing brace stands that another event follows; -1 when none does."""
    last = -1
    for found in _BETWEEN.finditer(text):
        last = found.start()
    return last


@dataclass(frozen=True)
class Page:
    """`quotes` are the positions of all quotes, opening and closing in turn, and one more for the
    event that would follow; `events` the numbers in `quotes` of the first quote of each event, and
    of that one more."""

    text: Text
    begin: int
    end: int
    quotes: Ints
    events: Ints
    separator: Separator

    def __len__(self) -> int:
        return len(self.events) - 1

    def begins(self, event: int) -> int:
        """Where the opening brace of an event stands."""
        if event >= len(self):
            return self.end
        return int(self.quotes[self.events[event]]) - self.separator.brace_to_quote

    def pieces(self, events: Ints, order: int, base: int) -> Iterator[Piece]:
        """The text of these events, and what stands before the first event of the page."""
        if self.begins(0) > self.begin:
            yield self._piece(order, base, self.begin, self.begins(0))
        for event in events.tolist():
            begin, end = self.begins(event), self.begins(event + 1)
            yield self._piece(order + ORDER_STEP * (1 + event), base, begin, end)

    def _piece(self, order: int, base: int, begin: int, end: int) -> Piece:
        text = self.text.bytes[begin:end].tobytes().rstrip(b", \r\n\t")
        return Piece(order, base + begin, text)


class Sheet:
    """Events of one page that are of one form, with the positions of their quotes."""

    def __init__(self, page: Page, events: Ints) -> None:
        self.page = page
        self.events = events
        self._firsts = page.events.take(events)
        self._quotes: dict[int, Ints] = {}

    def __len__(self) -> int:
        return len(self.events)

    def strings(self) -> Ints:
        """How many quotes there are from each event's first to the next event's."""
        found: Ints = self.page.events.take(self.events + 1) - self._firsts
        return found

    def quote(self, number: int) -> Ints:
        """Where a quote stands in each event, counted from its first."""
        found = self._quotes.get(number)
        if found is None:
            found = self._quotes[number] = self.page.quotes.take(self._firsts + number)
        return found

    def keep(self, good: NDArray[np.bool_]) -> Sheet:
        """Only the events for which `good` holds."""
        return self if good.all() else Sheet(self.page, self.events[good])


def open_page(text: Text, begin: int, end: int) -> Page | None:
    """Find quotes and events in text[begin:end]; None where they cannot be told apart."""
    separator = find_separator(bytes(text.raw[begin : min(end, begin + _LEARN_BYTES)]))
    if separator is None:
        return None
    # Behind the last event the next one's separator stands: its quote is the one more.
    following = end - 1 + separator.to_quote
    is_cut_between = text.raw[end - 1 : following + len(separator.key)] == separator.text
    quotes = text.places_of(_QUOTE, begin, following + 1 if is_cut_between else end)
    if text.raw.find(b"\\", begin, end) >= 0:
        quotes = quotes[~_escaped(text.bytes, quotes)]
    if not is_cut_between:
        quotes = np.append(quotes, following)
    if len(quotes) % 2 == 0:
        return None
    starts = _event_starts(text, quotes[:-1], separator)
    if not len(starts):
        return None
    events = np.append(starts, len(quotes) - 1)
    return Page(text, begin, end, quotes, events, separator)


def _escaped(buffer: NDArray[np.uint8], quotes: Ints) -> NDArray[np.bool_]:
    """Which quotes an odd number of backslashes stands before."""
    escaped = np.zeros(len(quotes), dtype=bool)
    for number in np.flatnonzero(buffer[quotes - 1] == _BACKSLASH).tolist():
        position = int(quotes[number]) - 1
        while buffer[position] == _BACKSLASH:
            position -= 1
        escaped[number] = (int(quotes[number]) - 1 - position) % 2 == 1
    return escaped


def _event_starts(text: Text, quotes: Ints, separator: Separator) -> Ints:
    """Numbers of the quotes that open the first key of an event."""
    key = np.frombuffer(separator.key[:8].ljust(8, b"\0"), dtype="<u8")[0]
    mask = np.uint64((1 << 8 * min(len(separator.key), 8)) - 1)
    opening = quotes[::2]
    # Most keys begin with another letter; a byte is cheaper to look up than a word.
    likely = np.flatnonzero(text.bytes[1:].take(opening) == separator.key[1])
    positions = opening[likely]
    is_key = (text.words[positions] & mask) == key
    follows = text.bytes[positions - separator.to_quote] == _CLOSE
    if len(positions):
        braced = text.bytes[positions[0] - separator.brace_to_quote] == _OPEN
        follows[0] |= bool(braced) and int(likely[0]) == 0
    starts: Ints = 2 * likely[is_key & follows]
    return starts
