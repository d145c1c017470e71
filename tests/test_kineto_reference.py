"""Real recordings against a plain reading of the same JSON: every event, every kept argument."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import SHARED
from tracer.collectors.kineto.columns import finish
from tracer.collectors.kineto.reading import read_file
from tracer.collectors.kineto.trace import read_kineto
from tracer.errors import TracerError
from tracer.events import DEVICE_WORK, Trace

KINDS = {
    "cpu_op": "operator",
    "Operator": "operator",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "Runtime": "runtime",
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "gpu_user_annotation": "device_annotation",
    "cuda_sync": "device_wait",
    "python_function": "frame",
    "cpu_instant_event": "memory",
    "overhead": "overhead",
}
DROPPED = {"ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "Trace", "cuda_flow", "__metadata"}
ARGUMENTS = [
    ("geometry", "registers_per_thread", "registers per thread"),
    ("geometry", "shared_memory_bytes", "shared memory"),
    ("copies", "bytes", "bytes"),
    ("frames", "frame", "Python id"),
    ("frames", "parent", "Python parent id"),
    ("frames", "module", "Python module id"),
    ("sequences", "sequence", "Sequence number"),
    ("sequences", "forward_thread", "Fwd thread id"),
    ("memory", "bytes", "Bytes"),
    ("memory", "address", "Addr"),
    ("memory", "reserved_bytes", "Total Reserved"),
    ("collectives", "op", "Collective name"),
    ("collectives", "group", "Process Group Name"),
    ("collectives", "dtype", "dtype"),
    ("collectives", "group_size", "Group size"),
    ("collectives", "in_elements", "In msg nelems"),
    ("generated", "kernel", "kernel_name"),
    ("generated", "backend", "kernel_backend"),
    ("waits", "on", "wait_on_cuda_event_record_corr_id"),
]
SHAPES = [
    ("input_shapes", "Input Dims"),
    ("input_types", "Input type"),
    ("concrete_inputs", "Concrete Inputs"),
]


def recordings(limit: int) -> list[Path]:
    """Recordings of all folders up to this size on disk, without the answers beside them."""
    found = [
        path
        for folder in ("traces", "h200", "h200x2", "vllm_cpu")
        for path in sorted((SHARED / folder).glob("*json.gz"))
    ]
    return [path for path in found if ".truth." not in path.name and path.stat().st_size < limit]


def plain_json(path: Path) -> Any:
    """The whole file, times as the text that stands there."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    return json.loads(text, strict=False, parse_float=str)


def nanoseconds(written: int | str) -> int:
    whole, _, part = str(written).partition(".")
    return int(whole) * 1000 + int(part.ljust(3, "0")[:3])


def wrapped(value: Any) -> int:
    return -1 if value is None else (int(value) + 2**63) % 2**64 - 2**63


def kind_of(event: dict[str, Any]) -> str | None:
    category = event.get("cat", "")
    if event["ph"] == "i":
        return "memory" if event["name"] in ("[memory]", "[OutOfMemory]") else None
    if event["ph"] != "X" or category in DROPPED:
        return None
    kind = KINDS.get(category, "other")
    is_module = kind in ("operator", "annotation") and event["name"].startswith("module::")
    return "module" if is_module else kind


def links_of(kind: str, event: dict[str, Any], args: dict[str, Any]) -> tuple[int, ...]:
    """device, stream, correlation, external id."""
    device = stream = -1
    if kind in (*DEVICE_WORK, "device_wait"):
        device = wrapped(args.get("device", event["pid"]))
        stream = wrapped(args.get("stream", event["tid"]))
        stream = -1 if kind == "device_wait" and stream == 2**32 - 1 else stream
    elif kind == "device_annotation":
        device, stream = event["pid"], event["tid"]
    joined = kind in (*DEVICE_WORK, "device_wait", "runtime", "other")
    external = args.get("External id", args.get("external id"))
    return (
        device,
        stream,
        wrapped(args.get("correlation")) if joined else -1,
        wrapped(external) if kind not in ("memory", "frame") else -1,
    )


def expected_events(document: Any) -> list[tuple[Any, ...]]:
    """Start, minus duration, place in the file, kind, name, links and arguments, in order."""
    is_list = isinstance(document, list)
    base = 0 if is_list else int(document.get("baseTimeNanoseconds") or 0)
    rows = []
    for place, event in enumerate(document if is_list else document["traceEvents"]):
        kind = kind_of(event)
        if kind is not None:
            args = event.get("args") or {}
            start = nanoseconds(event["ts"]) + base
            links = links_of(kind, event, args)
            length = nanoseconds(event.get("dur", 0))
            rows.append((start, -length, place, kind, event["name"], links, args))
    return sorted(rows, key=lambda row: row[:3])


def found_events(trace: Trace) -> list[tuple[Any, ...]]:
    events = trace.events
    links = [events[name].tolist() for name in ("device", "stream", "correlation", "external_id")]
    columns = (
        events["start_ns"].tolist(),
        (-events["duration_ns"]).tolist(),
        events["kind"].tolist(),
        events["name"].tolist(),
        list(zip(*links, strict=True)),
    )
    return list(zip(*columns, strict=True))


def check(path: Path) -> None:
    trace = read_kineto(path)
    expected = expected_events(plain_json(path))
    names_told = [(*row[:2], row[3], row[4], row[5]) for row in expected]
    found = found_events(trace)
    for row, (one, other) in enumerate(zip(found, names_told, strict=True)):
        renamed = other[3] == "INVALID"  # calls that Kineto had no name for
        assert one == ((*other[:3], one[3], other[4]) if renamed else other), row
    args = [row[6] for row in expected]
    for table, column, key in ARGUMENTS:
        check_column(trace, table, column, key, args)
    check_shapes(trace, args)
    assert len(trace.table("sequences")) == sum("Sequence number" in each for each in args)
    assert len(trace.table("collectives")) == sum("Collective name" in each for each in args)


def check_column(
    trace: Trace, table: str, column: str, key: str, args: list[dict[str, Any]]
) -> None:
    side = trace.table(table)
    values = side[column].tolist()
    default: Any = "" if values and isinstance(values[0], str) else -1
    raw = [args[event].get(key) for event in side["event"].tolist()]
    expected = [default if value is None else value for value in raw]
    assert values == expected, (table, column)


def check_shapes(trace: Trace, args: list[dict[str, Any]]) -> None:
    side = trace.table("shapes")
    for column, key in SHAPES:
        for event, text in zip(side["event"].tolist(), side[column].tolist(), strict=True):
            found = json.loads(text, parse_float=str) if text else None
            assert found == args[event].get(key), (event, column)
    geometry = trace.table("geometry")
    for column, key in (("blocks", "grid"), ("threads_per_block", "block")):
        raw = [args[event].get(key) for event in geometry["event"].tolist()]
        products = [-1 if value is None else int(np.prod([int(n) for n in value])) for value in raw]
        assert geometry[column].tolist() == products


def names(paths: list[Path]) -> list[Any]:
    return [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in paths]


def readable(path: Path) -> bool:
    """Not those that are no timeline, nor those whose events are begun and ended apart."""
    if path.name.startswith(("aiu", "nccl-profiler", "rocprofv3", "execution-trace-simple-add.et")):
        return False
    return path.name.endswith(".json.gz")


SMALL = [path for path in recordings(130_000) if readable(path)]
LARGER = [
    "hf-qwen1.5-0.5b-mi300x",
    "nccl-args-resnet-ddp-a100",
    "qlora_nf4_train",
    "train_ddp_rank0",
    "vllm-gptoss-eager-tp-b200",
]
CHECKED = [*SMALL, *(path for path in recordings(1_000_000) if path.name[:-8] in LARGER)]


@pytest.mark.parametrize("path", names(CHECKED))
def test_every_event_as_a_plain_reading_has_it(path: Path) -> None:
    check(path)


@pytest.mark.parametrize("path", names(CHECKED))
def test_the_fast_way_and_the_careful_way_agree(path: Path) -> None:
    """The same events in the same order, the same side tables."""
    fast, careful = read_file(path), read_file(path, careful=True)
    assert fast.remarks.other_categories == careful.remarks.other_categories
    one, other = finish(fast.columns, 0), finish(careful.columns, 0)
    assert_same(one.events.drop(columns="thread"), other.events.drop(columns="thread"))
    assert one.sides.keys() == other.sides.keys()
    for name in one.sides:
        assert_same(one.sides[name], other.sides[name])


def assert_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one, other, check_categorical=False)


@pytest.mark.parametrize("folder", ["traces", "h200", "h200x2", "vllm_cpu", "kernels"])
def test_every_shared_file_gives_a_trace_or_one_line(shared: Path, folder: str) -> None:
    """Whatever lies there: no traceback, and an error names the file."""
    for path in sorted((shared / folder).iterdir()):
        if path.stat().st_size > 5_000_000:
            continue
        try:
            trace = read_kineto(path)
        except TracerError as error:
            assert path.name in str(error)
            assert "\n" not in str(error)
            assert error.exit_code == 3
        else:
            assert len(trace.events) > 0
