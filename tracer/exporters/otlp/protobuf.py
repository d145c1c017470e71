"""Protocol buffer bytes of the OTLP messages, written by hand.

Objects of the protobuf package cost 20 us a span; the constant part of a span written once and
joined with its changing fields costs under 1 us. Field numbers are those of
opentelemetry-proto 1.x (`common.proto`, `trace.proto`, `resource.proto`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = str | bool | int | float | Sequence["Value"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# A text from a trace can be a megabyte (shapes, C++ templates); a receiver's limit is 4 MiB.
MAX_TEXT_BYTES = 16_384
MAX_NAME_CHARACTERS = 256
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def varint(value: int) -> bytes:
    """The shortest varint of a value; a negative one as its 64-bit two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int, wire_type: int) -> bytes:
    """The bytes that begin a field."""
    return varint(number << 3 | wire_type)


def block(number: int, payload: bytes) -> bytes:
    """A field with a length: a text, bytes or a message."""
    return tag(number, BYTES) + varint(len(payload)) + payload


def number_field(number: int, value: int) -> bytes:
    """A varint field."""
    return tag(number, VARINT) + varint(value)


def fixed64_field(number: int, value: int) -> bytes:
    """A fixed64 field, such as a time."""
    return tag(number, FIXED64) + struct.pack("<Q", max(value, 0))


def fixed32_field(number: int, value: int) -> bytes:
    """A fixed32 field, such as flags."""
    return tag(number, FIXED32) + struct.pack("<I", value)


def text_bytes(text: str, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Valid UTF-8 of at most `limit` bytes: receivers refuse a message with any other."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= limit:
        return encoded
    return encoded[: limit - 3].decode("utf-8", "ignore").encode() + "…".encode()


def any_value(value: Value) -> bytes:
    """An AnyValue. An integer beyond 64 bits goes as text, since the type cannot hold it."""
    if isinstance(value, bool):
        return number_field(2, int(value))
    if isinstance(value, int):
        if _INT64_MIN <= value <= _INT64_MAX:
            return number_field(3, value)
        return block(1, str(value).encode())
    if isinstance(value, float):
        return tag(4, FIXED64) + struct.pack("<d", value)
    if isinstance(value, str):
        return block(1, text_bytes(value))
    return block(5, b"".join(block(1, any_value(item)) for item in value))


def key_value(key: str, value: Value) -> bytes:
    """A KeyValue message."""
    return block(1, text_bytes(key)) + block(2, any_value(value))


def attributes(number: int, values: Mapping[str, Value | None]) -> bytes:
    """Attribute fields of a message; None is left out: what was not seen is absent."""
    return b"".join(
        block(number, key_value(key, value)) for key, value in values.items() if value is not None
    )


def event(name: str, time_ns: int, values: Mapping[str, Value | None]) -> bytes:
    """A `Span.events` field."""
    body = fixed64_field(1, time_ns) + block(2, text_bytes(name)) + attributes(3, values)
    return block(11, body)


def dropped_events(count: int) -> bytes:
    """A `Span.dropped_events_count` field; nothing for none."""
    return number_field(12, count) if count else b""


def link(trace_id: bytes, span_id: bytes, values: Mapping[str, Value | None], flags: int) -> bytes:
    """A `Span.links` field."""
    body = block(1, trace_id) + block(2, span_id) + attributes(4, values)
    return block(13, body + fixed32_field(6, flags))


def span_template(
    name: str,
    values: Mapping[str, Value | None],
    *,
    kind: int = 1,
    flags: int = 0x101,
    trace_state: str = "",
    extra: Iterable[bytes] = (),
) -> bytes:
    """What is constant in a span: name, kind, attributes; `extra` are events and links."""
    shown = name[:MAX_NAME_CHARACTERS] or "(no name)"
    state = block(3, text_bytes(trace_state)) if trace_state else b""
    head = state + block(5, text_bytes(shown)) + number_field(6, kind)
    return b"".join([head, attributes(9, values), *extra, fixed32_field(16, flags)])
