"""A file as a stream of texts of a few megabytes, each cut between two events."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from os import PathLike, fstat
from typing import NamedTuple, Protocol

from tracer.collectors.kineto.digits import Text
from tracer.collectors.kineto.page import Separator, find_separator, last_separator
from tracer.collectors.sniff import unreadable
from tracer.errors import TooLargeError

CHUNK_BYTES = 4 << 20
SLACK = 32  # bytes before and behind a text, so that whole words can be read at its ends
_INPUT_BYTES = 1 << 18
_SMALLEST_INPUT = 64
_GZIP = b"\x1f\x8b"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_AFTER_LIST = re.compile(rb'\}\s*\]\s*(?:,\s*"|\})')
_NEXT = re.compile(rb"[\s,]*")
_WINDOW = 1 << 18
_LONGEST_HEAD = 64 << 20

Progress = Callable[[int, int], None]


class Source(Protocol):
    """Bytes of a file's content. `cut` says that it ended before it should."""

    cut: bool

    def read_into(self, view: memoryview) -> int: ...

    def position(self) -> int: ...


class PlainSource:
    """A file read as it is, from `begin` up to `end`."""

    def __init__(self, file: FileIO, begin: int = 0, end: int | None = None) -> None:
        self.cut = False
        self._file = file
        self._left = (fstat(file.fileno()).st_size if end is None else end) - begin
        file.seek(begin)

    def read_into(self, view: memoryview) -> int:
        got = self._file.readinto(view[: max(self._left, 0)]) or 0
        self._left -= got
        return got

    def position(self) -> int:
        return self._file.tell()


class GzipSource:
    """A gzipped file, unpacked as it is read; what comes before damage is given."""

    def __init__(self, file: FileIO) -> None:
        self.cut = False
        self._file = file
        self._unpacker = _unpacker()
        self._pending = b""
        self._ended = False

    def read_into(self, view: memoryview) -> int:
        while not self._ended:
            if not self._pending:
                self._pending = self._file.read(_INPUT_BYTES)
            if not self._pending:
                self._ended, self.cut = True, not self._unpacker.eof
                return 0
            text = self._unpack(len(view))
            if text:
                view[: len(text)] = text
                return len(text)
        return 0

    def position(self) -> int:
        return self._file.tell()

    def _unpack(self, most: int) -> bytes:
        before = self._unpacker.copy()
        try:
            text = self._unpacker.decompress(self._pending, most)
        except zlib.error:
            text = self._unpack_before_damage(before, most)
        else:
            self._pending = self._unpacker.unconsumed_tail
        if self._unpacker.eof:
            self._next_member()
        return text

    def _next_member(self) -> None:
        """A file may hold several members; anything else behind one is padding."""
        rest = self._unpacker.unused_data or self._file.read(_INPUT_BYTES)
        if rest.startswith(_GZIP):
            self._pending, self._unpacker = rest, _unpacker()
        else:
            self._pending, self._ended = b"", True

    def _unpack_before_damage(self, unpacker: zlib._Decompress, most: int) -> bytes:
        self._ended = self.cut = True
        text = bytearray()
        for begin in range(0, len(self._pending), _SMALLEST_INPUT):
            part = self._pending[begin : begin + _SMALLEST_INPUT]
            try:
                text += unpacker.decompress(part, most - len(text))
            except zlib.error:
                break
            if len(text) >= most:
                break
        return bytes(text)


def _unpacker() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


@contextmanager
def open_source(path: str | PathLike[str]) -> Generator[tuple[Source, int], None, None]:
    """The content of a file, gzipped or not, and its size on disk."""
    try:
        with FileIO(path) as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            size = fstat(file.fileno()).st_size
            yield (GzipSource(file) if packed else PlainSource(file)), size
    except OSError as error:
        raise unreadable(path, error) from None


class Chunk(NamedTuple):
    """Whole events: text[begin:end]. `base` is where in the whole content text[0] lies."""

    text: Text
    begin: int
    end: int
    base: int


class TextStream:
    """Cuts the content, which begins at `offset` of the file's, into chunks. Once they are read,
    `head` is what came before the list of events, `rest` what came from the last cut on; `found`
    says whether there was such a list."""

    def __init__(
        self,
        source: Source,
        *,
        in_list: bool = False,
        offset: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        max_bytes: int | None = None,
        after_read: Callable[[], None] | None = None,
    ) -> None:
        self.head = b""
        self.rest = b""
        self.rest_offset = 0
        self.found = in_list
        self._source = source
        self._max_bytes = max_bytes
        self._after_read = after_read
        self._begin = self._filled = SLACK
        self._base = offset - SLACK
        self._ended = False
        self._separator: Separator | None = None
        self._text = _new_text(chunk_bytes)

    def chunks(self) -> Iterator[Chunk]:
        """Texts of whole events, in order. Each is valid until the next is asked for."""
        while not self._ended:
            self._fill()
            if not self.found:
                self._find_list()
                if self._filled > _LONGEST_HEAD and not self.found:
                    break
            end = self._last_end() if self.found else -1
            if end > self._begin:
                yield Chunk(self._text, self._begin, end, self._base)
                self._begin = self._skip(end)
        self.rest = bytes(self._text.raw[self._begin : self._filled])
        self.rest_offset = self._base + self._begin

    def _fill(self) -> None:
        self._make_room()
        view = memoryview(self._text.raw)
        while self._filled < len(view) - SLACK:
            got = self._source.read_into(view[self._filled : len(view) - SLACK])
            self._filled += got
            if not got:
                self._ended = True
                break
        if self._max_bytes is not None and self._base + self._filled > self._max_bytes:
            raise TooLargeError(
                f"more than {self._max_bytes:,} bytes of JSON, the limit max_bytes: "
                "raise it, or record fewer steps"
            )
        if self._after_read is not None:
            self._after_read()

    def _make_room(self) -> None:
        """Move what is left to the front; double the room when that is all there is."""
        left = self._filled - self._begin
        old = self._text
        if left > len(old.raw) // 2:
            self._text = _new_text(2 * (len(old.raw) - 2 * SLACK))
        self._text.bytes[SLACK : SLACK + left] = old.bytes[self._begin : self._filled].copy()
        self._base += self._begin - SLACK
        self._begin, self._filled = SLACK, SLACK + left

    def _find_list(self) -> None:
        """Look for the list of events: at the very beginning, or under its key."""
        raw, limit = self._text.raw, self._filled
        found = _LIST.match(raw, self._begin, limit) or _EVENTS.search(raw, self._begin, limit)
        if found is not None:
            self.head = bytes(raw[self._begin : found.start()])
            self.found = True
            self._begin = self._skip(found.end())

    def _skip(self, position: int) -> int:
        found = _NEXT.match(self._text.raw, position, self._filled)
        return position if found is None else found.end()

    def _last_end(self) -> int:
        """Behind the closing brace of the last event that another one follows; -1: none does."""
        raw = self._text.raw
        if self._separator is None:
            window = bytes(raw[self._begin : min(self._filled, self._begin + _WINDOW)])
            self._separator = find_separator(window)
        if self._separator is not None:
            found = raw.rfind(self._separator.text, self._begin, self._filled)
            if found >= 0:
                return found + 1
        if self._ended or _AFTER_LIST.search(raw, self._begin, self._filled):
            return -1
        start = max(self._begin, self._filled - _WINDOW)
        found = last_separator(bytes(raw[start : self._filled]))
        return -1 if found < 0 else start + found + 1


def _new_text(size: int) -> Text:
    return Text(bytearray(size + 2 * SLACK))
