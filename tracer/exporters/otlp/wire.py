"""Spans as columns, and the bytes of `ExportTraceServiceRequest` made from them as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.exporters.otlp import protobuf as pb

Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]

# gRPC servers take 4 MiB a message by default; half leaves room for resource and headers.
MAX_BATCH_BYTES = 2_000_000
# Few enough that what one step of the encoding makes is still in the processor's cache at the next.
CHUNK_ROWS = 4096
_SPANS_FIELD = pb.tag(2, pb.BYTES)


@dataclass(frozen=True)
class SpanBlock:
    """Spans of one kind: `templates` hold what is constant, columns the rest.

    `parent_id` is None where the spans have no parent. A negative number in `numbers` means that
    the span does not have that attribute.
    """

    templates: Sequence[bytes]
    template: Ints  # for each span its row in `templates`
    span_id: Ids
    parent_id: Ids | None
    start_ns: Ints
    end_ns: Ints
    numbers: Mapping[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.template)


@dataclass(frozen=True)
class Envelope:
    """The resource and the scope that stand around spans."""

    resource: bytes  # the fields of ResourceSpans before `scope_spans`
    scope: bytes  # the fields of ScopeSpans before `spans`

    def head(self, body_bytes: int) -> bytes:
        """The bytes before a body of `spans` fields of that length."""
        scoped = pb.tag(2, pb.BYTES) + pb.varint(len(self.scope) + body_bytes) + self.scope
        inner = len(self.resource) + len(scoped) + body_bytes
        return pb.tag(1, pb.BYTES) + pb.varint(inner) + self.resource + scoped


def make_envelope(resource: Mapping[str, pb.Value | None], scope: str, version: str) -> Envelope:
    """The envelope of these resource attributes and this instrumentation scope."""
    named = pb.block(1, pb.text_bytes(scope)) + pb.block(2, pb.text_bytes(version))
    return Envelope(pb.block(1, pb.attributes(1, resource)), pb.block(1, named))


@dataclass(frozen=True)
class Batch:
    """Whole spans that travel in one request. `ends` holds where each span ends in `body`."""

    envelope: Envelope
    body: memoryview
    ends: Ints

    @property
    def count(self) -> int:
        return len(self.ends)

    def message(self) -> bytes:
        """The request. A file of several of them, one after another, is one larger request."""
        return b"".join((self.envelope.head(len(self.body)), self.body))

    def split(self, count: int) -> tuple[Batch, Batch]:
        """The first `count` spans, and the others."""
        cut = int(self.ends[count - 1])
        first = Batch(self.envelope, self.body[:cut], self.ends[:count])
        return first, Batch(self.envelope, self.body[cut:], self.ends[count:] - cut)

    def fitting(self, max_bytes: int) -> int:
        """How many of the spans fit into so many bytes; at least one."""
        return max(int(np.searchsorted(self.ends, max_bytes, side="right")), 1)


def batches(
    blocks: Iterable[SpanBlock],
    trace_id: bytes,
    envelope: Envelope,
    max_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[Batch]:
    """Encode spans into batches of at most `max_bytes`, keeping one batch in memory."""
    room = max(max_bytes - len(envelope.head(max_bytes)), 1)
    pending: list[Encoded] = []
    for encoded in chain.from_iterable(encode(block, trace_id) for block in blocks):
        if pending and sum(len(e.body) for e in pending) + len(encoded.body) > room:
            yield from _cut(pending, envelope, room)
            pending = []
        pending.append(encoded)
    if pending:
        yield from _cut(pending, envelope, room)


@dataclass(frozen=True)
class Encoded:
    """`spans` fields, one after another, and the length of each."""

    body: bytes
    lengths: Ints


def _cut(pending: list[Encoded], envelope: Envelope, room: int) -> Iterator[Batch]:
    body = memoryview(b"".join(e.body for e in pending))
    ends = np.cumsum(np.concatenate([e.lengths for e in pending]))
    rest = Batch(envelope, body, ends)
    while len(rest.body) > room and rest.count > 1:
        first, rest = rest.split(min(rest.fitting(room), rest.count - 1))
        yield first
    yield rest


def encode(block: SpanBlock, trace_id: bytes) -> Iterator[Encoded]:
    """The spans of a block, `CHUNK_ROWS` at a time."""
    for first in range(0, len(block), CHUNK_ROWS):
        rows = np.arange(first, min(first + CHUNK_ROWS, len(block)))
        parts = [_encode_alike(block, trace_id, alike) for alike in _alike(block, rows)]
        yield Encoded(
            b"".join(part.body for part in parts),
            np.concatenate([part.lengths for part in parts]),
        )


def _alike(block: SpanBlock, rows: Ints) -> list[Ints]:
    """Rows parted so that in each part every number takes as many bytes as its like."""
    code: Ints = np.zeros(len(rows), dtype=np.int64)
    for values in block.numbers.values():
        code = code * 11 + varint_widths(values[rows])
    return [rows[code == one] for one in np.unique(code)]


def _encode_alike(block: SpanBlock, trace_id: bytes, rows: Ints) -> Encoded:
    fields = _changing_fields(block, rows)
    used, place = np.unique(block.template[rows], return_inverse=True)
    before = pb.block(1, trace_id)
    sizes = [len(before) + len(block.templates[t]) + fields.shape[1] for t in used.tolist()]
    heads = [
        _SPANS_FIELD + pb.varint(size) + before + block.templates[t]
        for size, t in zip(sizes, used.tolist(), strict=True)
    ]
    tails = fields.view(f"V{fields.shape[1]}").ravel().tolist()
    body = b"".join(
        chain.from_iterable(zip(map(heads.__getitem__, place.tolist()), tails, strict=True))
    )
    head_sizes = np.array([len(head) for head in heads], dtype=np.int64)
    return Encoded(body, head_sizes[place] + fields.shape[1])


def _changing_fields(block: SpanBlock, rows: Ints) -> NDArray[np.uint8]:
    """One row of bytes for each span: ids, times and numbers, each number of equal width."""
    pieces = [_fixed(2, block.span_id[rows], ">u8")]
    if block.parent_id is not None:
        pieces.append(_fixed(4, block.parent_id[rows], ">u8"))
    pieces.append(_fixed(7, block.start_ns[rows], "<u8"))
    pieces.append(_fixed(8, block.end_ns[rows], "<u8"))
    for key, values in block.numbers.items():
        width = int(varint_widths(values[rows[:1]])[0])
        if width:
            pieces.append(_number(key, values[rows], width))
    return np.ascontiguousarray(np.concatenate(pieces, axis=1))


def _fixed(number: int, values: NDArray[Any], layout: str) -> NDArray[np.uint8]:
    """An id (a field of eight bytes) or a time (a fixed64 field) for each row."""
    head = pb.tag(number, pb.BYTES) + b"\x08" if layout[0] == ">" else pb.tag(number, pb.FIXED64)
    payload = np.ascontiguousarray(values.astype(layout)).view(np.uint8).reshape(-1, 8)
    return _after(head, payload)


def _number(key: str, values: Ints, width: int) -> NDArray[np.uint8]:
    """An integer attribute for each row."""
    value = pb.tag(2, pb.BYTES) + pb.varint(1 + width) + pb.tag(3, pb.VARINT)
    inner = pb.block(1, pb.text_bytes(key)) + value
    head = pb.tag(9, pb.BYTES) + pb.varint(len(inner) + width) + inner
    return _after(head, varint_bytes(values, width))


def _after(head: bytes, payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    repeated = np.broadcast_to(np.frombuffer(head, dtype=np.uint8), (len(payload), len(head)))
    return np.concatenate([repeated, payload], axis=1)


def varint_widths(values: Ints) -> Ints:
    """Bytes of each value's varint; 0 for a negative one, which is left out."""
    limits = np.array([0, *(1 << (7 * n) for n in range(1, 9))], dtype=np.int64)
    widths: Ints = np.searchsorted(limits, values, side="right").astype(np.int64)
    return widths


def varint_bytes(values: Ints, width: int) -> NDArray[np.uint8]:
    """The varints of values that all take `width` bytes."""
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    digits = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    digits[:, :-1] |= np.uint64(0x80)
    return digits.astype(np.uint8)
