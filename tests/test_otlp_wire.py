"""Bytes that we write are what the official packages read."""

from __future__ import annotations

import tracemalloc
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.otlp_samples import attributes_of
from tracer.exporters.otlp import ids, wire
from tracer.exporters.otlp import protobuf as pb

_trace: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
TRACE_ID = bytes(range(1, 17))
ENVELOPE = wire.make_envelope({"service.name": "s", "tracer.rank": 0}, "scope", "1")


def make_block(count: int, **numbers: Any) -> wire.SpanBlock:
    """Spans of two templates."""
    rows = np.arange(count)
    return wire.SpanBlock(
        [pb.span_template("even", {"a": "x"}), pb.span_template("odd", {"b": 2.5})],
        rows % 2,
        ids.span_ids(TRACE_ID, "test", rows),
        ids.span_ids(TRACE_ID, "parent", rows),
        1_700_000_000_000_000_000 + rows * 1000,
        1_700_000_000_000_000_000 + rows * 1000 + 700,
        numbers,
    )


def spans_of(batches: list[wire.Batch]) -> list[Any]:
    requests = [_trace.ExportTraceServiceRequest.FromString(b.message()) for b in batches]
    return [s for r in requests for s in r.resource_spans[0].scope_spans[0].spans]


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 16383, 16384, 2**35, 2**56 - 1, 2**56, 2**63 - 1]
)
def test_a_number_is_the_varint_that_protobuf_writes(value: int) -> None:
    values = np.array([value], dtype=np.int64)
    width = int(wire.varint_widths(values)[0])
    assert wire.varint_bytes(values, width).tobytes() == pb.varint(value)
    assert pb.varint(value) == _varint_of_the_official_package(value)


def _varint_of_the_official_package(value: int) -> bytes:
    common: Any = import_module("opentelemetry.proto.common.v1.common_pb2")
    return bytes(common.AnyValue(int_value=value).SerializeToString()[1:])


def test_every_field_of_a_span_arrives() -> None:
    template = pb.span_template(
        "name",
        {"text": "ä", "whole": -5, "real": 0.5, "yes": True, "list": ["a", 1], "none": None},
        kind=3,
        flags=0x301,
        trace_state="k=v",
        extra=[
            pb.event("found", 42, {"code.line.number": 7}),
            pb.link(bytes([9] * 16), bytes([8] * 8), {"why": "served"}, 0x301),
        ],
    )
    block = wire.SpanBlock(
        [template],
        np.zeros(1, dtype=np.int64),
        np.array([5], dtype=np.uint64),
        None,
        np.array([100]),
        np.array([250]),
        {"n": np.array([150])},
    )
    (span,) = spans_of(list(wire.batches([block], TRACE_ID, ENVELOPE)))
    assert (span.name, span.kind, span.flags, span.trace_state) == ("name", 3, 0x301, "k=v")
    assert (span.trace_id, span.span_id, span.parent_span_id) == (TRACE_ID, b"\0" * 7 + b"\5", b"")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (100, 250)
    assert attributes_of(span) == {
        "text": "ä", "whole": -5, "real": 0.5, "yes": True, "list": ["a", 1], "n": 150,
    }  # fmt: skip
    assert (span.events[0].name, span.events[0].time_unix_nano) == ("found", 42)
    assert attributes_of(span.events[0]) == {"code.line.number": 7}
    assert (span.links[0].trace_id, span.links[0].span_id) == (bytes([9] * 16), bytes([8] * 8))
    assert (span.links[0].flags, attributes_of(span.links[0])) == (0x301, {"why": "served"})


def test_columns_arrive_row_by_row_whatever_the_width_of_their_numbers() -> None:
    numbers = np.array([0, 5, 127, 128, 300, -1, 2**40, -1, 7, 2**62])
    block = make_block(10, n=numbers, m=numbers[::-1].copy())
    spans = spans_of(list(wire.batches([block], TRACE_ID, ENVELOPE)))
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == 10
    for row in range(10):
        span = by_id[int(block.span_id[row]).to_bytes(8, "big")]
        found = attributes_of(span)
        assert span.name == ("odd" if row % 2 else "even")
        assert span.parent_span_id == int(block.parent_id[row]).to_bytes(8, "big")  # type: ignore[index]
        assert span.start_time_unix_nano == block.start_ns[row]
        assert found.get("n", -1) == numbers[row]
        assert found.get("m", -1) == numbers[9 - row]


def test_batches_are_cut_by_bytes_and_lose_nothing() -> None:
    made = list(wire.batches([make_block(5000), make_block(3)], TRACE_ID, ENVELOPE, 20_000))
    assert max(len(batch.message()) for batch in made) <= 20_000
    assert sum(batch.count for batch in made) == 5003
    assert len(spans_of(made)) == 5003


def test_memory_does_not_grow_with_the_spans() -> None:
    assert peak_bytes(200_000) < 1.2 * peak_bytes(70_000)


def peak_bytes(count: int) -> int:
    """Most memory that encoding so many spans takes, beyond their columns."""
    block = make_block(count, n=np.arange(count))
    tracemalloc.start()
    try:
        for batch in wire.batches([block], TRACE_ID, ENVELOPE):
            batch.message()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_span_larger_than_a_batch_travels_alone() -> None:
    big = pb.span_template("big", {"t": "x" * 3000})
    block = wire.SpanBlock(
        [big, pb.span_template("small", {})],
        np.array([1, 0, 1]),
        np.arange(1, 4, dtype=np.uint64),
        None,
        np.arange(3),
        np.arange(3),
    )
    made = list(wire.batches([block], TRACE_ID, ENVELOPE, 1000))
    assert [batch.count for batch in made] == [1, 1, 1]
    assert [span.name for span in spans_of(made)] == ["small", "big", "small"]


def test_a_split_batch_is_the_same_spans() -> None:
    (whole,) = wire.batches([make_block(100)], TRACE_ID, ENVELOPE)
    first, rest = whole.split(37)
    assert (first.count, rest.count) == (37, 63)
    assert [s.span_id for s in spans_of([first, rest])] == [s.span_id for s in spans_of([whole])]


def test_text_from_a_trace_is_data() -> None:
    """Lone surrogates, control characters, and a megabyte of template arguments."""
    values: dict[str, pb.Value | None] = {"bad": "a\ud800b", "long": "ü" * 100_000, "big": 2**70}
    block = wire.SpanBlock(
        [pb.span_template("k\x00\n" + "n" * 5000, values), pb.span_template("", {})],
        np.arange(2),
        np.arange(1, 3, dtype=np.uint64),
        None,
        np.arange(2),
        np.arange(2),
    )
    first, second = spans_of(list(wire.batches([block], TRACE_ID, ENVELOPE)))
    found = attributes_of(first)
    assert first.name == ("k\x00\n" + "n" * 5000)[: pb.MAX_NAME_CHARACTERS]
    assert found["bad"] == "a\\ud800b"
    assert found["long"].endswith("…") and len(found["long"].encode()) <= pb.MAX_TEXT_BYTES
    assert found["big"] == str(2**70)
    assert second.name == "(no name)"


def test_ids_are_stable_distinct_and_never_zero() -> None:
    rows = np.arange(200_000)
    made = ids.span_ids(TRACE_ID, "a", rows)
    assert len(np.unique(made)) == len(rows) and not (made == 0).any()
    assert (made == ids.span_ids(TRACE_ID, "a", rows)).all()
    others = [ids.span_ids(TRACE_ID, "b", rows), ids.span_ids(TRACE_ID[::-1], "a", rows)]
    assert all(not np.intersect1d(made, other).size for other in others)
    assert ids.trace_id_of([b"x", b"y"]) == ids.trace_id_of([b"y", b"x"])
    assert ids.trace_id_of([b"x"]) != ids.trace_id_of([b"y"])
