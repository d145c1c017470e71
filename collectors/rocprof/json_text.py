"""The text of a JSON file in parts: records a few megabytes at a time, cut files closed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import GenericAlias
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

Record = TypeVar("Record")

PART_BYTES = 4 << 20
# Between two records; the second pattern is also found inside of one, and then no list ends there.
_BETWEEN = (re.compile(rb'\}\s*,\s*(?=\{\s*"size")'), re.compile(rb"\}\s*,\s*(?=\{)"))
# A text that does not end goes to the end.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
_MARK = b"\xef\xbb\xbf"
_PLACE = re.compile(r"\(byte (\d+)\)")
_CLOSING = {b"{"[0]: b"}", b"["[0]: b"]"}
_RAW = msgspec.json.Decoder(list[Raw])


class Records(Generic[Record]):
    """The records of a list in JSON, part by part; `lost` counts those that do not fit."""

    def __init__(self, form: type[Record], part_bytes: int = PART_BYTES) -> None:
        self.lost = 0
        self._list: msgspec.json.Decoder[list[Record]] = msgspec.json.Decoder(
            GenericAlias(list, (form,)), strict=False
        )
        self._one = msgspec.json.Decoder(form, strict=False)
        self._part_bytes = part_bytes

    def read(self, text: bytes | Raw) -> Iterator[list[Record]]:
        """The records of a valid list; of anything else none."""
        inner = bytes(text).strip()
        if inner[:1] != b"[":
            return
        inner, begin = inner[1:-1], 0
        while begin < len(inner):
            found, begin = self._part(inner, begin)
            yield found

    def _part(self, text: bytes, begin: int) -> tuple[list[Record], int]:
        """The records from here to the first end of one behind the size of a part."""
        for pattern in _BETWEEN:
            for between in pattern.finditer(text, begin + self._part_bytes):
                found = self._decoded(text[begin : between.start() + 1])
                if found is not None:
                    return found, between.end()
        return self._decoded(text[begin:]) or [], len(text)

    def _decoded(self, text: bytes) -> list[Record] | None:
        """The records of a text; None where it ends inside of one."""
        whole = b"[" + text + b"]"
        try:
            return self._list.decode(whole)
        except msgspec.ValidationError:
            return self._each(whole)
        except msgspec.DecodeError:
            return None

    def _each(self, text: bytes) -> list[Record] | None:
        try:
            pieces = _RAW.decode(text)
        except msgspec.DecodeError:
            return None
        found = [one for one in map(self.one, pieces) if one is not None]
        self.lost += len(pieces) - len(found)
        return found

    def one(self, piece: bytes | Raw) -> Record | None:
        """A single record; None for one that does not fit."""
        try:
            return self._one.decode(piece)
        except msgspec.ValidationError:
            return None


def length_of(text: Raw) -> int:
    """How many records a list holds; 0 for what is none."""
    try:
        return len(_RAW.decode(text))
    except msgspec.DecodeError:
        return 0


def part_of(text: Raw, form: Any, otherwise: Any) -> Any:
    """A part of a valid document in the given form; `otherwise` where it has another."""
    try:
        return msgspec.json.decode(text, type=form, strict=False)
    except msgspec.DecodeError:
        return otherwise


def readable(text: bytes) -> bytes:
    """The text in UTF-8; what is none becomes U+FFFD."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8-sig", "replace").encode()
    return text[len(_MARK) :] if text.startswith(_MARK) else text


def closed(text: bytes, error: msgspec.DecodeError) -> bytes | None:
    """What comes before the damage, cut behind the last whole item of a list and closed there; None
    where there is none."""
    place = _PLACE.search(str(error))
    end, open_brackets = _last_item(text if place is None else text[: int(place.group(1))])
    if not end:
        return None
    return text[:end] + b"".join(_CLOSING[bracket] for bracket in reversed(open_brackets))


def item_ends(text: bytes | bytearray) -> Iterator[int]:
    """Where each object ends that does not lie in another, until a bracket closes that was not
    opened here."""
    depth = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in _CLOSING:
            depth += 1
        elif first != b'"'[0]:
            depth -= 1
            if depth < 0:
                return
            if depth == 0:
                yield token.end()


def _last_item(text: bytes) -> tuple[int, bytes]:
    """Where the last item of a list ends, and the brackets that are open there."""
    stack = bytearray()
    end, still_open = 0, b""
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in _CLOSING:
            stack.append(first)
        elif first != b'"'[0]:
            if not stack:
                break
            stack.pop()
            if stack.endswith(b"["):
                end, still_open = token.end(), bytes(stack)
    return end, still_open
