"""The text of a JSON file taken apart while it is read: long lists of records, and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from tracer.collectors.kineto.stream import Source
from tracer.collectors.rocprof.json_columns import RecordList
from tracer.collectors.rocprof.json_forms import FORMS
from tracer.collectors.rocprof.json_text import item_ends

PART_BYTES = 1 << 21
_KEY_BYTES = 128  # from before the key of a list to its first record
_LEARN_BYTES = 1 << 16
_KEY = re.compile(rb'(?<!\\)"(%s)"\s*:\s*\[\Z' % "|".join(FORMS).encode())
_OBJECT = re.compile(rb"\s*\{")
_OF_RECORDS = b'"start_timestamp"'
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]*"')
_NEXT = re.compile(rb"\s*,\s*")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED = "truncated"
_HELD = rb'{"\u0000":%d}'
_HOLDS = re.compile(rb'\[\{"\\u0000":(\d+)\},?')
_RECORDS = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True)
class Split:
    """`text`: what was read without the records of lists. In place of those it says which list
    holds them."""

    text: bytes
    lists: list[RecordList]

    def records(self, domain: str, text: bytes | Raw) -> RecordList:
        """The records of a domain's list, which is this in the text; of anything else none."""
        text = bytes(text).strip()
        held = _HOLDS.match(text)
        number = len(self.lists) if held is None else int(held.group(1))
        if held is None or number >= len(self.lists):
            found, rest = RecordList(FORMS[domain]), text[1:-1]
        else:
            found, rest = self.lists[number], text[held.end() : -1]
        if text[:1] == b"[" and rest.strip():
            found.add_text(rest)
        return found


def split_lists(
    source: Source, after_read: Callable[[], None] | None = None, part_bytes: int = PART_BYTES
) -> Split:
    """Read a source to its end, or to where what it says is no JSON."""
    splitter = _Splitter(source, after_read, part_bytes)
    splitter.read()
    return Split(bytes(splitter.rest), splitter.lists)


class _Splitter:
    """A window that moves over the text: self._raw[self._begin : self._filled] is unread. There is
    always a byte before it and one behind it."""

    def __init__(
        self, source: Source, after_read: Callable[[], None] | None, part_bytes: int
    ) -> None:
        self.rest = bytearray()
        self.lists: list[RecordList] = []
        self._source, self._after_read = source, after_read
        self._raw = bytearray(part_bytes)
        self._begin = self._filled = 1
        self._ended = False
        self._open: RecordList | None = None  # the list that the window is in
        self._taken = False  # whether records of it were taken
        self._separator = b""

    def read(self) -> None:
        """Read everything."""
        while not self._ended:
            self._fill()
            while self._read_records() if self._open is not None else self._find_list():
                pass
        self._pass_on(self._filled)

    def _fill(self) -> None:
        self._make_room()
        end = len(self._raw) - 1
        view = memoryview(self._raw)
        while self._filled < end and not self._ended:
            got = self._source.read_into(view[self._filled : end])
            self._filled += got
            self._ended = not got
        if self._after_read is not None:
            self._after_read()

    def _make_room(self) -> None:
        """Move what is left, and the byte before it, to the front; double the room when that is
        all there is."""
        left, old = self._filled - self._begin, self._raw
        if left > len(old) // 2:
            self._raw = bytearray(2 * len(old))
        self._raw[: left + 1] = old[self._begin - 1 : self._filled]
        self._begin, self._filled = 1, left + 1

    def _pass_on(self, end: int) -> None:
        """Text that is no record."""
        self.rest += self._raw[self._begin : end]
        self._begin = end

    def _find_list(self) -> bool:
        """Go on to the first record of a list; False: more must be read first."""
        at = self._begin
        while (at := self._raw.find(b"[", at, self._filled) + 1) > 0:
            domain = self._domain_of_list(at)
            if domain is None:
                continue
            end = self._first_end(at)
            if end < 0 and not self._ended and self._filled - at < _LEARN_BYTES:
                self._pass_on(max(self._begin, at - _KEY_BYTES))
                return False
            if 0 <= self._raw.find(_OF_RECORDS, at) < end:
                self._pass_on(at)
                self._open, self._separator = RecordList(FORMS[domain]), b""
                return True
        self._pass_on(max(self._begin, self._filled - _KEY_BYTES))
        return False

    def _domain_of_list(self, begin: int) -> str | None:
        """The domain whose list of objects begins here; None where none does."""
        if not _OBJECT.match(self._raw, begin, self._filled):
            return None
        before = bytes(self._raw[max(self._begin - 1, begin - _KEY_BYTES) : begin])
        key = _KEY.search(before)
        return None if key is None else key.group(1).decode()

    def _first_end(self, begin: int) -> int:
        """Where the first object from here on ends; -1 where it does not end soon."""
        end = min(begin + _LEARN_BYTES, self._filled)
        return begin + next(item_ends(self._raw[begin:end]), -begin - 1)

    def _read_records(self) -> bool:
        """Take the records that are whole; False: more must be read first."""
        cut = self._last_between()
        if cut < 0 or not self._take(cut + 1):
            return self._read_to_end()
        self._skip_comma(cut + 1)
        return self._ended

    def _last_between(self) -> int:
        """The end of the last record that another follows, as it looks; -1 where none does."""
        if not self._separator:
            end = self._first_end(self._begin)
            between = _BETWEEN.match(self._raw, max(end - 1, 0), self._filled)
            self._separator = b"" if between is None else bytes(between.group())
        if not self._separator:
            return -1
        return self._raw.rfind(self._separator, self._begin, self._filled)

    def _take(self, end: int) -> bool:
        """Take the records up to here; False where that is no list of some."""
        raw, begin = self._raw, self._begin
        following = raw[end]
        raw[begin - 1], raw[end] = b"[]"
        try:
            records = _RECORDS.decode(memoryview(raw)[begin - 1 : end + 1])
        except msgspec.DecodeError:
            return False
        finally:
            raw[end] = following
        if self._open is not None:
            self._open.add(raw[begin:end], records)
            self._taken = True
        return True

    def _skip_comma(self, end: int) -> bool:
        """Go on behind the comma that follows a record that ends here; False where none does."""
        comma = _NEXT.match(self._raw, end, self._filled)
        if comma is not None:
            self._begin = comma.end()
        return comma is not None

    def _read_to_end(self) -> bool:
        """The list ends here, or more of it must be read, or this is no JSON."""
        self._raw[self._begin - 1 : self._begin] = b"["
        try:
            _RECORDS.decode(memoryview(self._raw)[self._begin - 1 : self._filled])
        except msgspec.DecodeError as error:
            said = str(error)
        else:
            return self._take_last(self._filled)
        trailing = _TRAILING.search(said)
        if trailing is not None and self._take_last(self._begin - 1 + int(trailing.group(1))):
            return True
        if _TRUNCATED in said and not self._ended:
            self._take_scanned()
            return False
        return self._break_off()

    def _take_last(self, limit: int) -> bool:
        """Take the records of a list that is closed before here; False where that is none."""
        end = self._raw.rfind(b"]", self._begin, limit)
        if end < 0 or not self._take(_before_space(self._raw, end)):
            return False
        self._close()
        self._begin = end
        return True

    def _break_off(self) -> bool:
        """What follows is no JSON: to be looked at with what stands before it."""
        separator = b"," if self._taken else b""
        self._close()
        self.rest += separator
        self._pass_on(self._filled)
        self._ended = True
        return False

    def _take_scanned(self) -> None:
        """Take the records that are whole where what separates two stands elsewhere too."""
        begin = self._begin
        ends = [begin + end for end in item_ends(self._raw[begin : self._filled])]
        for end in reversed(ends):
            if _NEXT.match(self._raw, end, self._filled) and self._take(end):
                self._skip_comma(end)
                return

    def _close(self) -> None:
        """Say which list holds the records that stood here."""
        if self._open is not None and self._taken:
            self.rest += _HELD % len(self.lists)
            self.lists.append(self._open)
        self._open, self._taken = None, False


def _before_space(raw: bytearray, end: int) -> int:
    while raw[end - 1 : end].isspace():
        end -= 1
    return end
