"""A file's events into columns: chunk by chunk the fast way, what is left over the careful way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from tracer.collectors.kineto.columns import Columns
from tracer.collectors.kineto.header import read_header
from tracer.collectors.kineto.loose import LooseReader, Remarks
from tracer.collectors.kineto.salvage import ORDER_STEP, Piece, split_end, without_cut_event
from tracer.collectors.kineto.scan import ScanReader
from tracer.collectors.kineto.stream import CHUNK_BYTES, Chunk, TextStream, open_source
from tracer.collectors.sniff import READS
from tracer.errors import NotATraceError

Progress = Callable[[int, int], None]


@dataclass
class Reading:
    """What one file gave, unsorted. `cut`: its end is missing."""

    columns: Columns = field(default_factory=Columns)
    remarks: Remarks = field(default_factory=Remarks)
    header: Mapping[str, Any] = field(default_factory=dict)
    cut: bool = False


class EventReader:
    """Takes chunks in the order of the file. `careful` leaves out the fast way."""

    def __init__(self, *, careful: bool = False, keep_flows: bool = False) -> None:
        self.columns = Columns()
        self.remarks = Remarks()
        self._scan = None if careful else ScanReader(self.columns, self.remarks)
        self._loose = LooseReader(self.columns, self.remarks, keep_flows=keep_flows)
        self._order = 0

    def read_chunk(self, chunk: Chunk) -> None:
        """Read whole events."""
        if self._scan is None:
            text = bytes(chunk.text.raw[chunk.begin : chunk.end])
            self.read_text(text, chunk.base + chunk.begin)
            return
        left = self._scan.read(chunk, self._order)
        self._order += left.orders
        self._loose.read(left.pieces)

    def read_text(self, text: bytes, offset: int) -> None:
        """Read the events of a text one by one."""
        self._loose.read([Piece(self._order, offset, text)])
        self._order += ORDER_STEP

    def has_open_ranges(self) -> bool:
        """Whether a range was begun whose end has not come yet."""
        return any(self._loose.open_ranges.values())

    def finish(self) -> None:
        """No more comes."""
        self._loose.finish()


def read_file(
    path: str | PathLike[str],
    *,
    progress: Progress | None = None,
    max_bytes: int | None = None,
    careful: bool = False,
    keep_flows: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Reading:
    """Read all events of a file."""
    reader = EventReader(careful=careful, keep_flows=keep_flows)
    with open_source(path) as (source, size):
        after_read = None if progress is None else lambda: progress(source.position(), size)
        stream = TextStream(
            source, chunk_bytes=chunk_bytes, max_bytes=max_bytes, after_read=after_read
        )
        for chunk in stream.chunks():
            reader.read_chunk(chunk)
    if not stream.found:
        raise _without_list(path, stream.rest)
    tail = read_rest(reader, stream.rest, stream.rest_offset)
    reader.finish()
    header = read_header(stream.head, tail or b"")
    return Reading(reader.columns, reader.remarks, header, tail is None or source.cut)


def _without_list(path: str | PathLike[str], text: bytes) -> NotATraceError:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return NotATraceError(f"{path}: ends before a list of events (traceEvents) begins; {READS}")
    return NotATraceError(f"{path}: JSON without a list of events (traceEvents); {READS}")


def read_rest(reader: EventReader, rest: bytes, offset: int) -> bytes | None:
    """Read the last events. The result follows their list; None: the list has no end."""
    events, tail = split_end(rest)
    if tail is None:
        events = without_cut_event(events)
    if events.strip():
        reader.read_text(events, offset)
    return tail
