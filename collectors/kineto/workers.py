"""A large plain file read by two processes: this one takes the first half, a fork the second."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from io import FileIO
from multiprocessing.connection import Connection
from os import PathLike
from typing import Any, NamedTuple

from tracer.collectors.kineto.columns import Columns
from tracer.collectors.kineto.header import read_header
from tracer.collectors.kineto.loose import Remarks
from tracer.collectors.kineto.page import find_separator
from tracer.collectors.kineto.reading import EventReader, Progress, Reading, read_rest
from tracer.collectors.kineto.stream import PlainSource, TextStream

SMALLEST_BYTES = 48 << 20  # below it the fork costs more than it saves
_WINDOW = 1 << 20
_GZIP = b"\x1f\x8b"
# The second half takes as long to hand over as this part of the file takes to read.
_FIRST_SHARE = 0.52


class _Half(NamedTuple):
    columns: Columns
    remarks: Remarks
    tail: bytes | None


class _FirstHalf(NamedTuple):
    reader: EventReader
    head: bytes


def can_share(path: str | PathLike[str], smallest_bytes: int | None = None) -> bool:
    """Whether the file is worth a second process, and this process may be forked: CUDA in it would
    not survive in the child, and threads could hold locks that nobody there would ever free."""
    smallest = SMALLEST_BYTES if smallest_bytes is None else smallest_bytes
    if not hasattr(os, "fork") or "torch" in sys.modules or os.path.getsize(path) < smallest:
        return False
    with open(path, "rb") as file:
        return file.read(2) != _GZIP


def read_shared(path: str | PathLike[str], progress: Progress | None = None) -> Reading | None:
    """Read a file by two processes; None when it cannot be cut, or the other did not succeed."""
    cut = _find_cut(path)
    if cut is None:
        return None
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_second, args=(path, cut, sender), daemon=True)
    with warnings.catch_warnings():
        # Threads of numerical libraries, which Python warns of, are idle here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        first = _read_first(path, cut, progress)
        second = _received(receiver)
    finally:
        receiver.close()
        child.join()
    return None if first is None or second is None else _joined(first, second)


def _received(receiver: Any) -> _Half | None:
    try:
        half: _Half | None = receiver.recv()
    except (EOFError, OSError):
        return None
    return half


def _find_cut(path: str | PathLike[str]) -> int | None:
    """Where an event begins near the middle of the file."""
    with FileIO(path) as file:
        near = int(os.path.getsize(path) * _FIRST_SHARE)
        file.seek(near)
        window = file.read(_WINDOW)
    separator = find_separator(window)
    if separator is None:
        return None
    brace = window.index(separator.text) + separator.text.index(b"{")
    return near + brace


def _read_first(
    path: str | PathLike[str], cut: int, progress: Progress | None
) -> _FirstHalf | None:
    reader, size = EventReader(), os.path.getsize(path)
    with FileIO(path) as file:
        source = PlainSource(file, 0, cut)

        def after_read() -> None:
            if progress is not None:
                progress(min(2 * source.position(), size), size)

        stream = TextStream(source, after_read=after_read)
        for chunk in stream.chunks():
            reader.read_chunk(chunk)
    reader.read_text(stream.rest.rstrip(b", \r\n\t"), stream.rest_offset)
    if not stream.found or reader.has_open_ranges():
        return None
    return _FirstHalf(reader, stream.head)


def _send_second(path: str | PathLike[str], cut: int, sender: Connection) -> None:
    try:
        half = _read_second(path, cut)
    except Exception:  # whatever it is, the first process meets it too, and says it
        half = None
    sender.send(half)
    sender.close()


def _read_second(path: str | PathLike[str], cut: int) -> _Half:
    reader = EventReader()
    with FileIO(path) as file:
        stream = TextStream(PlainSource(file, cut), in_list=True, offset=cut)
        for chunk in stream.chunks():
            reader.read_chunk(chunk)
    tail = read_rest(reader, stream.rest, stream.rest_offset)
    reader.finish()
    return _Half(reader.columns, reader.remarks, tail)


def _joined(first: _FirstHalf, second: _Half) -> Reading:
    reader, head = first
    reader.finish()
    reader.columns.merge(second.columns)
    reader.remarks.merge(second.remarks)
    header = read_header(head, second.tail or b"")
    return Reading(reader.columns, reader.remarks, header, second.tail is None)
