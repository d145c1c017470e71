"""Long lists in the JSON of rocprofv3: read in parts, many records at once, they say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.make_rocprof import (
    ALLOCATION,
    COPY,
    CPU_AGENT,
    HIP,
    KERNEL,
    MARKER,
    Record,
    allocation,
    call,
    copy,
    json_text,
    kernel,
    named,
    process,
)
from tests.test_rocprof_json import AT, note_of, rows
from tracer.collectors.rocprof.batches import Packed, distinct_of
from tracer.collectors.rocprof.json_columns import RecordList
from tracer.collectors.rocprof.json_forms import FORMS
from tracer.collectors.rocprof.json_lists import PART_BYTES, Split, split_lists
from tracer.collectors.rocprof.json_template import learn
from tracer.collectors.rocprof.read_json import read_rocprof_json


class Bytes:
    """A source of bytes in memory."""

    def __init__(self, text: bytes) -> None:
        self.cut = False
        self._left = text

    def read_into(self, view: memoryview) -> int:
        found, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(found)] = found
        return len(found)

    def position(self) -> int:
        return 0


def split(text: bytes, part_bytes: int = PART_BYTES) -> Split:
    return split_lists(Bytes(text), None, part_bytes)


def compact(found: Any) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def numbers(found: RecordList, path: str) -> list[int]:
    return [number for part in found.parts for number in part.ints(path).tolist()]


def all_domains(count: int = 60) -> dict[str, list[Record]]:
    """Records of each domain, some with nothing to tell, and texts that look like records."""
    arguments = [{"type": "char*", "name": "size", "value": '"},{"size":1,"args":[{'}]
    calls = [call("hipLaunchKernel", AT + i, 1, i) for i in range(count)]
    for i, made in enumerate(calls):
        made["args"] = arguments if i % 5 == 0 else made["args"][: i % 3]
    kernels = [kernel(1 + i % 3, AT + i, 2, i, stream=i % 4 or None) for i in range(count)]
    return {
        "hip_api": calls,
        "marker_api": [named(MARKER, "roctxMarkA", AT + i, 2, i) for i in range(count)],
        "kernel_dispatch": kernels,
        "memory_copy": [
            copy("HOST_TO_DEVICE", AT + i, 3, i, 64 * i, CPU_AGENT, 101) for i in range(count)
        ],
        "memory_allocation": [
            allocation("ALLOCATE", AT + i, i, 8, hex(4096 + i)) for i in range(count)
        ],
    }


KINDS = {
    "hip_api": HIP,
    "marker_api": MARKER,
    "kernel_dispatch": KERNEL,
    "memory_copy": COPY,
    "memory_allocation": ALLOCATION,
}
LAYOUTS: dict[str, Callable[[Any], str]] = {
    "as the tool writes": lambda found: json.dumps(found, separators=(",", ":")),
    "with spaces": json.dumps,
    "on lines": lambda found: json.dumps(found, indent=1),
    "sorted": lambda found: json.dumps(found, separators=(",", ":"), sort_keys=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part_bytes", [200, 1000, 7777, PART_BYTES])
def test_wherever_a_window_ends_each_record_is_read_once(layout: str, part_bytes: int) -> None:
    lists = all_domains()
    found = split(LAYOUTS[layout]({"buffer_records": lists}).encode(), part_bytes)
    rest = json.loads(found.text)["buffer_records"]
    for domain, made in lists.items():
        records = found.records(domain, compact(rest[domain]))
        assert (len(rest[domain]), records.lost) == (1, 0)
        assert numbers(records, "kind") == [KINDS[domain]] * len(made)
        for key in ("start_timestamp", "end_timestamp"):
            assert numbers(records, key) == [record[key] for record in made]
        internal = [record["correlation_id"]["internal"] for record in made]
        assert numbers(records, "correlation_id.internal") == internal
    kernels = found.records("kernel_dispatch", compact(rest["kernel_dispatch"]))
    streams = [
        record.get("stream_id", {"handle": -1})["handle"]
        for record in all_domains()["kernel_dispatch"]
    ]
    assert numbers(kernels, "stream_id.handle") == streams
    assert numbers(kernels, "dispatch_info.grid_size.x") == [640] * len(streams)


def test_numbers_that_are_none_cost_their_record_alone() -> None:
    odd = [kernel(1, AT + i, 2, i) for i in range(80)]
    odd[10]["dispatch_info"] = "lost"
    odd[11]["thread_id"] = 1.5
    odd[12]["stream_id"] = None
    odd[13]["stream_id"] = {"handle": 2**64 - 2}
    odd[14]["dispatch_info"]["kernel_id"] = -3
    odd[15]["thread_id"] = "77"
    odd[16]["kind7"] = odd[16].pop("kind")
    text = json_text(process(kernel_dispatch=odd))
    found = split(text)
    (records,) = found.lists
    assert records.lost == 2
    left = [i for i in range(80) if i not in (10, 11)]
    assert numbers(records, "start_timestamp") == [AT + i for i in left]
    streams = numbers(records, "stream_id.handle")
    assert [streams[left.index(i)] for i in (9, 12, 13)] == [0, -1, -2]
    assert numbers(records, "dispatch_info.kernel_id")[left.index(14)] == -3
    assert numbers(records, "thread_id")[left.index(15)] == 77
    assert numbers(records, "kind")[left.index(16)] == 0


def test_digits_in_a_key_are_no_number() -> None:
    """Without digits both records are the same text."""
    lines = [b'{"kind":5,"operation":%d}' % i for i in range(3)]
    template = learn(lines[0], lines[0], FORMS["hip_api"])
    assert template is not None
    read = template.read(b"\n".join(lines), 3)
    assert read is not None and {path: found.tolist() for path, found in read.items()} == {
        "kind": [5, 5, 5],
        "operation": [0, 1, 2],
    }
    assert template.read(b"\n".join([*lines[:2], b'{"kind7":5,"operation":2}']), 3) is None
    assert template.read(b"\n".join([*lines[:2], b'{"kind":-5,"operation":2}']), 3) is None
    assert template.read(b"\n".join([*lines[:2], b'{"kind":%d,"operation":2}' % 2**65]), 3) is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"kind":true,"operation":1}',
        b'{"kind":1.5,"operation":1}',
        b'{"kind":"5","operation":1}',
        b'{"kind":5,"kind":6,"correlation_id":{"internal":1},"correlation_id":{}}',
        b'{"other":5}',
        b'{"kind',
    ],
)
def test_records_that_are_not_read_many_at_once(text: bytes) -> None:
    assert learn(text, text, FORMS["hip_api"]) is None


def test_messages_are_no_records(tmp_path: Path) -> None:
    """The list of messages has the key of a list of records."""
    ranges = [named(MARKER, "roctxThreadRangeA", AT + 9 * i, 5, i) for i in range(40)]
    made = process(messages={i: f"step {i}" for i in range(40)}, marker_api=ranges)
    path = tmp_path / "7_results.json"
    path.write_bytes(json_text(made))
    names = [name for (name,) in rows(read_rocprof_json(path), "name")]
    assert names == [f"step {i}" for i in range(40)]


@pytest.mark.parametrize("damage", [b"", b"}", b"]", b'{"size":', b"nul", b"\x00"])
def test_damage_behind_many_records_costs_what_follows(tmp_path: Path, damage: bytes) -> None:
    text = json_text(process(hip_api=[call("hipLaunchKernel", AT + i, 1, i) for i in range(90)]))
    between = [at for at in range(len(text)) if text.startswith(b'},{"size"', at)]
    path = tmp_path / "7_results.json"
    for kept in (1, 20, 89):
        at = between[kept - 1] + 1
        path.write_bytes(text[:at] + b"," + damage + (text[at:] if damage else b""))
        trace = read_rocprof_json(path)
        assert len(trace.events) == kept
        assert note_of(trace, "trace.truncated").partial


@pytest.mark.parametrize("said", [r"{\\\"},[{\u00e9", "]}]}", '"'])
def test_a_file_cut_inside_of_a_text(tmp_path: Path, said: str) -> None:
    """Brackets in a text are none of the document, whether it ends or not."""
    calls = [call("hipLaunchKernel", AT + i, 1, i) for i in range(3)]
    calls[2]["args"] = [{"type": "char*", "name": "x", "value": said}]
    text = json_text(process(hip_api=calls))
    begin = text.index(json.dumps(said).encode())
    path = tmp_path / "7_results.json"
    for end in range(begin, begin + len(json.dumps(said))):
        path.write_bytes(text[:end])
        assert len(read_rocprof_json(path).events) == 2


@pytest.mark.parametrize(
    "values",
    [
        [],
        [5, 5, 5],
        [-1, 3, 7, 3],
        [0, 1 << 20, -5],
        [-(2**63), 2**63 - 1, 0],
        [1 << 40, 1 << 40 | 9],
    ],
)
def test_columns_are_packed_and_counted_without_loss(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    packed = Packed.of(column)
    assert packed.values().tolist() == values
    distinct, place = distinct_of(column)
    assert distinct == sorted(set(values))
    assert [distinct[at] for at in place.tolist()] == values
