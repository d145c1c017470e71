"""The lines of a file as it is read, without one that is not whole."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator

import numpy as np

from tracer.collectors.kineto.stream import Source

_QUOTE = b'"'[0]
LONGEST_ROW = 16 << 20  # bytes
_PIECE_BYTES = 1 << 20


def columns_of(head: bytes) -> list[str]:
    """The columns that the first line of a file names."""
    end = head.find(b"\n")
    line = head[: end if end >= 0 else None].decode("utf-8-sig", "replace").strip()
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []


def is_whole(last: bytes | bytearray, head: bytes, *, cut: bool) -> bool:
    """Whether the last line of a file, which has no end, is all that it should be."""
    try:
        fields = next(csv.reader([last.decode("utf-8", "replace")]), [])
    except csv.Error:
        return False
    return not cut and len(fields) >= len(columns_of(head)) and last.count(b'"') % 2 == 0


def _quotes_in(lines: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(lines, dtype=np.uint8) == _QUOTE))


def _check_text(lines: bytes) -> None:
    if not lines.isascii():
        lines.decode()


class WholeLines:
    """The lines of a source up to its last whole one; `head` is the first of them. `cut`: what
    follows, or more, is missing; known when all is read."""

    def __init__(self, source: Source, after_read: Callable[[], None] | None = None) -> None:
        self.cut = False
        self._source, self._after_read = source, after_read
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._begun = b""
        self._ended = False
        self.head = b""
        self.head, _, self._first = self._first_lines().partition(b"\n")

    def _first_lines(self) -> bytes:
        lines = b""
        while not self._ended and not lines:
            lines = self._more()
        return lines

    def blocks(self) -> Iterator[bytes]:
        """The lines behind the first, some at a time, none cut inside of a text with quotes. Raises
        ValueError where such a text does not end, and for what is not UTF-8."""
        lines = self._first
        while not self._ended:
            lines += self._more()
            if lines and (self._ended or _quotes_in(lines) % 2 == 0):
                _check_text(lines)
                yield lines
                lines = b""
            elif len(lines) > LONGEST_ROW:
                raise ValueError("a text with quotes does not end")

    def _more(self) -> bytes:
        """The next lines; none where the next piece of the source ends no line."""
        got = self._source.read_into(self._piece)
        if self._after_read is not None:
            self._after_read()
        if not got:
            self._ended, self.cut = True, self._source.cut
            return self._last_line()
        whole, newline, rest = bytes(self._piece[:got]).rpartition(b"\n")
        if not newline:
            self._begun += rest
            return b""
        whole, self._begun = self._begun + whole + newline, rest
        return whole

    def _last_line(self) -> bytes:
        """The line that has no end, or nothing of it."""
        if self._begun and self.head and not is_whole(self._begun, self.head, cut=self.cut):
            self.cut = True
            return b""
        return self._begun
