"""Reading events from JSON that is not quite JSON: one damaged event costs that event alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import Raw

NOTHING = Raw(b"")
Arguments = dict[str, Raw]


class LooseEvent(msgspec.Struct, gc=False):
    """An event as it stands in the file, values unread, so that no number loses a digit."""

    ph: Raw = NOTHING
    cat: Raw = NOTHING
    name: Raw = NOTHING
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    id: Raw = NOTHING
    args: Arguments | None = None


# Orders have room between them, for a piece that turns out to hold several events.
ORDER_STEP = 1 << 20


class Piece(NamedTuple):
    """A part of the file's text: its order among the events, where it begins, what it says."""

    order: int
    offset: int
    text: bytes


@dataclass
class Damage:
    """Events that were not valid JSON: repaired or, where that failed, left out."""

    repaired: int = 0
    lost: int = 0
    first_offset: int = -1

    @property
    def count(self) -> int:
        return self.repaired + self.lost

    def add(self, offset: int, *, lost: bool) -> None:
        """Count one event that begins at this byte of the text."""
        if lost:
            self.lost += 1
        else:
            self.repaired += 1
        self.first_offset = offset if self.first_offset < 0 else min(offset, self.first_offset)


_DECODER = msgspec.json.Decoder(list[LooseEvent])
# An event begins with one of these keys; a brace and a comma alone can stand in a name.
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp|attr)"\s*:)')
_NOT_A_NUMBER = re.compile(rb"(:\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
_CONTROLS = bytes(range(0x20))
_SPACES = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))
_LONE_BACKSLASH = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_SURROGATES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_TEXT_VALUE = re.compile(rb'(:\s*")(.*?)(?="\s*(?:,\s*"[\w .%()/]+"\s*:|[}\]]))', re.DOTALL)
_LIST_END = re.compile(rb"\}\s*\]")
_BEGUN = re.compile(rb"\}\s*,\s*\{[^{}]*\Z")
_AFTER_LIST = re.compile(rb'\s*(?:,\s*"[^"]+"\s*:|\}\s*\Z|\Z)')
_TRIES = 64
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_TRAILING_COMMA = re.compile(rb",(\s*[}\]])")
_BARE_WORD = re.compile(
    rb"(:\s*)(?!true\b|false\b|null\b)(0x[0-9a-fA-F]+|[A-Za-z_]\w*)(?=\s*[,}\]])"
)


def read_events(text: bytes, offset: int, damage: Damage) -> list[LooseEvent]:
    """The events of a text that holds them separated by commas. `offset` is where it begins."""
    found = _decode(text)
    if found is None:
        # Not counted: these numbers are ones that nothing is computed from.
        text = _NOT_A_NUMBER.sub(rb"\1null", text)
        found = _decode(text)
    if found is not None:
        return found
    events: list[LooseEvent] = []
    for begin, piece in split_events(text):
        events.extend(_read_one(piece, offset + begin, damage))
    return events


def _decode(text: bytes) -> list[LooseEvent] | None:
    try:
        return _DECODER.decode(b"[" + text + b"]")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def split_events(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Each event's text and where it begins, judged by what stands between two events."""
    begin = 0
    for between in _BETWEEN.finditer(text):
        yield begin, text[begin : between.start() + 1]
        begin = between.end()
    yield begin, text[begin:].rstrip(b", \r\n\t")


def split_end(rest: bytes) -> tuple[bytes, bytes | None]:
    """What of the last text belongs to the list of events, and what follows the list; None where
    its closing bracket is missing."""
    if rest.startswith(b"]"):
        return b"", rest[1:]
    ends = [(found.start() + 1, found.end()) for found in _LIST_END.finditer(rest)]
    for end, after in ends[:_TRIES]:
        if _decode(rest[:end]) is not None:
            return rest[:end], rest[after:]
    for end, after in ends:  # an event before the end is damaged
        if _AFTER_LIST.match(rest, after):
            return rest[:end], rest[after:]
    return rest, None


def without_cut_event(rest: bytes) -> bytes:
    """A text of events that ends in the middle of one, without that one."""
    begun = _BEGUN.search(rest)
    rest = rest if begun is None else rest[: begun.start() + 1]
    begin, last = list(split_events(rest))[-1]
    return rest[:begin].rstrip(b", \r\n\t") if _decode(last) is None else rest


def _read_one(piece: bytes, offset: int, damage: Damage) -> list[LooseEvent]:
    found = _decode(piece)
    if found is not None:
        return found
    for repair in _REPAIRS:
        piece = repair(piece)
        found = _decode(piece)
        if found is not None:
            damage.add(offset, lost=False)
            return found
    damage.add(offset, lost=True)
    return []


def _between_braces(piece: bytes) -> bytes:
    return piece[piece.find(b"{") : piece.rfind(b"}") + 1]


def _blank_controls(piece: bytes) -> bytes:
    return piece.translate(_SPACES)


def _double_backslashes(piece: bytes) -> bytes:
    return _LONE_BACKSLASH.sub(lambda m: m.group(0) if m.group(1) else rb"\\", piece)


def _replace_lone_surrogates(piece: bytes) -> bytes:
    return _SURROGATES.sub(lambda m: m.group(0) if m.group(1) else rb"\ufffd", piece)


def _escape_quotes(piece: bytes) -> bytes:
    def escaped(value: re.Match[bytes]) -> bytes:
        head, inside = value.groups()
        return bytes(head + _BARE_QUOTE.sub(rb'\\"', inside))

    return _TEXT_VALUE.sub(escaped, piece)


def _drop_trailing_commas(piece: bytes) -> bytes:
    return _TRAILING_COMMA.sub(rb"\1", piece)


def _quote_bare_words(piece: bytes) -> bytes:
    return _BARE_WORD.sub(rb'\1"\2"', piece)


def _drop_invalid_utf8(piece: bytes) -> bytes:
    return piece.decode("utf-8", "replace").encode()


_REPAIRS: tuple[Callable[[bytes], bytes], ...] = (
    _between_braces,
    _drop_invalid_utf8,
    _blank_controls,
    _double_backslashes,
    _replace_lone_surrogates,
    _escape_quotes,
    _drop_trailing_commas,
    _quote_bare_words,
)
