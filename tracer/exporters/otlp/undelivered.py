"""A file of OTLP requests: what was not delivered, kept so that it can be sent later.

The file is `ExportTraceServiceRequest` messages one after another, which by the rules of protocol
buffers is itself one such message (and a `TracesData`): any OTLP tool reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tracer.errors import RunFormatError
from tracer.exporters.otlp import protobuf as pb
from tracer.exporters.otlp.wire import Batch, Envelope

SUFFIX = ".otlp"
_RESOURCE_SPANS = pb.tag(1, pb.BYTES)
_SCOPE_SPANS = pb.tag(2, pb.BYTES)
_SPANS = pb.tag(2, pb.BYTES)


class Keeper:
    """Writes batches to a file that appears under its name only when it is whole.

    A full disk must not end a delivery that still counts: `failure` tells of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spans = 0
        self.failure = ""
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        self._file: BinaryIO | None = None

    def keep(self, batch: Batch) -> None:
        """Append a batch."""
        if self.failure:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._partial.open("wb")
            self._file.write(batch.message())
            self.spans += batch.count
        except OSError as error:
            self.failure = f"cannot write {self._partial}: {error.strerror}"

    def close(self) -> Path | None:
        """The finished file; None when nothing had to be kept or could be."""
        if self._file is None:
            return None
        try:
            self._file.close()
            if not self.failure:
                self._partial.replace(self.path)
                return self.path
        except OSError as error:
            self.failure = f"cannot write {self.path}: {error.strerror}"
        self._partial.unlink(missing_ok=True)
        return None


def is_otlp_file(path: Path) -> bool:
    """Whether the file is meant to hold OTLP: by its suffix, or by its first bytes."""
    if not path.is_file():
        return False
    if path.suffix == SUFFIX:
        return True
    with path.open("rb") as file:
        head = file.read(16)
    try:
        length, at = _read_varint(head, 1)
    except _CutError:
        return False
    # `resource_spans`, and in it `resource`, neither longer than the file.
    fits = at + length <= path.stat().st_size
    return head[:1] == _RESOURCE_SPANS and head[at : at + 1] == _RESOURCE_SPANS and fits


def read_batches(path: Path) -> Iterator[Batch]:
    """The batches of a kept file, one in memory at a time."""
    with path.open("rb") as file:
        while head := file.read(1):
            message = _next_message(file) if head == _RESOURCE_SPANS else None
            if message is None:
                raise RunFormatError(f"{path} is damaged: it ends inside an OTLP message")
            try:
                yield from _batches_of(message)
            except _CutError:
                raise RunFormatError(f"{path} is damaged: a message in it is not OTLP") from None


def _next_message(file: BinaryIO) -> bytes | None:
    length = shift = 0
    while byte := file.read(1):
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            message = file.read(length)
            return message if len(message) == length else None
        if shift > 63:
            return None
    return None


class _CutError(ValueError):
    """The bytes end inside a field."""


@dataclass(frozen=True)
class _Field:
    """Where a field lies: from its tag at `start` to `end`; the payload from `payload` on."""

    tag: bytes
    start: int
    payload: int
    end: int


def _batches_of(message: bytes) -> Iterator[Batch]:
    fields = list(_fields(message, 0, len(message)))
    scopes = [field for field in fields if field.tag == _SCOPE_SPANS]
    resource = b"".join(message[f.start : f.end] for f in fields if f.tag != _SCOPE_SPANS)
    for scope in scopes:
        inner = list(_fields(message, scope.payload, scope.end))
        spans = [field for field in inner if field.tag == _SPANS]
        if spans:
            around = b"".join(message[f.start : f.end] for f in inner if f.tag != _SPANS)
            body = memoryview(b"".join(message[f.start : f.end] for f in spans))
            ends = np.cumsum([f.end - f.start for f in spans], dtype=np.int64)
            yield Batch(Envelope(resource, around), body, ends)


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        key, after = _read_varint(data, at)
        payload, stop = after, after
        if key & 7 == pb.VARINT:
            _, stop = _read_varint(data, after)
        elif key & 7 == pb.BYTES:
            length, payload = _read_varint(data, after)
            stop = payload + length
        elif key & 7 in (pb.FIXED64, pb.FIXED32):
            stop = after + (8 if key & 7 == pb.FIXED64 else 4)
        if stop > end or stop == after:
            raise _CutError
        yield _Field(data[at:after], at, payload, stop)
        at = stop


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
    raise _CutError
