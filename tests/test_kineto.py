"""What the Kineto reader makes of each kind of event, of headers, clocks and formats of a file."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.make_kineto import (
    BASE_NS,
    Event,
    call,
    decode_loop,
    event,
    kernel,
    kineto_file,
    operator,
    text_of,
    write,
)
from tracer.collectors.kineto.trace import read_kineto
from tracer.errors import EmptyTraceError, InputError, TooLargeError
from tracer.events import Trace


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of the events as plain tuples."""
    return [tuple(row) for row in trace.events[list(columns)].astype(object).to_numpy().tolist()]


def side(trace: Trace, name: str) -> list[dict[str, Any]]:
    """Rows of a side table."""
    rows: Any = trace.table(name).astype(object).to_dict("records")
    return list(rows)


def rules(trace: Trace) -> list[str]:
    return [note.rule for note in trace.notes if note.rule != "trace.no_rank"]


def test_operator_call_and_kernel(tmp_path: Path) -> None:
    trace = read_kineto(
        kineto_file(
            tmp_path,
            [
                operator("aten::mm", 10.5, 20.25, 5, Sequence_number=7, Fwd_thread_id=0),
                call("cudaLaunchKernel", 12, 3, 99),
                kernel("gemm", 16.001, 8, 99, External_id=5, grid=[2, 3, 4], block=[32, 2, 1]),
            ],
        )
    )
    assert rows(trace, "kind", "name", "start_ns", "duration_ns", "thread", "device", "stream") == [
        ("operator", "aten::mm", BASE_NS + 10_500, 20_250, 0, -1, -1),
        ("runtime", "cudaLaunchKernel", BASE_NS + 12_000, 3_000, 0, -1, -1),
        ("kernel", "gemm", BASE_NS + 16_001, 8_000, -1, 0, 7),
    ]
    assert rows(trace, "correlation", "external_id") == [(-1, 5), (99, -1), (99, 5)]
    assert side(trace, "threads") == [{"pid": 10, "tid": 11, "name": ""}]
    assert side(trace, "sequences") == [{"event": 0, "sequence": 7, "forward_thread": 0}]
    assert side(trace, "geometry") == [
        {
            "event": 2,
            "blocks": 24,
            "threads_per_block": 64,
            "registers_per_thread": -1,
            "shared_memory_bytes": -1,
        }
    ]


def test_equal_starts_put_the_longer_first_then_the_order_of_the_file(tmp_path: Path) -> None:
    events = [operator("b", 5, 1), operator("a", 5, 3), operator("c", 5, 1), operator("z", 4, 1)]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert trace.events["name"].tolist() == ["z", "a", "b", "c"]


def test_side_tables_are_keyed_by_the_sorted_rows(tmp_path: Path) -> None:
    events = [operator("late", 9, 1, Sequence_number=2), operator("early", 1, 1, Sequence_number=1)]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert [(row["event"], row["sequence"]) for row in side(trace, "sequences")] == [(0, 1), (1, 2)]


@pytest.mark.parametrize("cat", ["cpu_op", "user_annotation"])
def test_a_module_range_is_a_module_in_either_category(tmp_path: Path, cat: str) -> None:
    trace = read_kineto(kineto_file(tmp_path, [event(cat, "module::model.0::Block", 1, 2)]))
    assert rows(trace, "kind", "name") == [("module", "module::model.0::Block")]
    assert trace.meta.recorded["modules"]


@pytest.mark.parametrize("cat", ["cpu_op", "user_annotation"])
def test_what_the_recording_did_itself_is_on_no_thread(tmp_path: Path, cat: str) -> None:
    events = [event(cat, "tracer::names of modules", 1, 2), operator("aten::mm", 4, 2)]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert rows(trace, "kind", "thread") == [("overhead", -1), ("operator", 0)]


def test_frames_keep_their_caller_and_module(tmp_path: Path) -> None:
    args: list[dict[str, Any]] = [
        {"Python id": 1, "Python parent id": None},
        {"Python id": 2, "Python parent id": 1, "Python module id": 4},
    ]
    events = [event("python_function", f"f{i}", i, 9, **each) for i, each in enumerate(args)]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert rows(trace, "kind") == [("frame",), ("frame",)]
    assert side(trace, "frames") == [
        {"event": 0, "frame": 1, "parent": -1, "module": -1},
        {"event": 1, "frame": 2, "parent": 1, "module": 4},
    ]


@pytest.mark.parametrize(
    ("cat", "name", "expected"),
    [
        (
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            ("host_to_device", "pageable", "device"),
        ),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", ("device_to_host", "device", "pinned")),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", ("device_to_device", "device", "device")),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", ("peer_to_peer", "device", "device")),
        ("gpu_memcpy", "Memcpy HtoD (Host -> Device)", ("host_to_device", "unknown", "device")),
        (
            "gpu_memcpy",
            "Memcpy HtoD (Managed Static -> Device Static)",
            ("host_to_device", "managed", "device"),
        ),
        ("Memcpy", "CopyHostToDevice", ("host_to_device", "unknown", "unknown")),
        ("gpu_memset", "Memset (Device)", ("set", "unknown", "device")),
        ("gpu_memset", "Memset (Unknown)", ("set", "unknown", "unknown")),
        ("gpu_memset", "FillBufferAligned", ("set", "unknown", "unknown")),
    ],
)
def test_copies(tmp_path: Path, cat: str, name: str, expected: tuple[str, ...]) -> None:
    made = event(cat, name, 1, 2, device=0, stream=7, correlation=3, bytes=64)
    (copy,) = side(read_kineto(kineto_file(tmp_path, [made])), "copies")
    assert (copy["direction"], copy["source"], copy["target"]) == expected
    assert copy["bytes"] == 64


def test_a_copy_without_bytes(tmp_path: Path) -> None:
    made = event("gpu_memset", "Memset (Device)", 1, 2, device=0, stream=7, correlation=3)
    (copy,) = side(read_kineto(kineto_file(tmp_path, [made])), "copies")
    assert copy["bytes"] == -1


@pytest.mark.parametrize(
    ("cbid", "name"),
    [
        (461, "cudaStreamGetCaptureInfo"),
        (468, "cudaGetDriverEntryPointByVersion"),
        (90_000, "INVALID"),
    ],
)
def test_calls_without_a_name_are_named_by_their_number(
    tmp_path: Path, cbid: int, name: str
) -> None:
    events = [
        event("cuda_runtime", "INVALID", 1, 1, cbid=cbid, correlation=1),
        event("cuda_runtime", "cudaFree", 2, 1, cbid=461, correlation=2),
    ]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert trace.events["name"].tolist() == [name, "cudaFree"]


def test_numbers_of_driver_calls_are_not_those_of_the_runtime(tmp_path: Path) -> None:
    made = event("cuda_driver", "INVALID", 1, 1, cbid=461, correlation=1)
    trace = read_kineto(kineto_file(tmp_path, [made, event("cuda_runtime", "INVALID", 2, 1)]))
    assert rows(trace, "kind", "name") == [("runtime", "INVALID"), ("runtime", "INVALID")]


def test_device_annotations_and_waits_are_no_device_work(tmp_path: Path) -> None:
    wait = {
        "cuda sync kind": "Stream Wait Event",
        "stream": 20,
        "device": 0,
        "correlation": 6,
        "wait on stream": 7,
    }
    wait = {key.replace(" ", "_"): value for key, value in wait.items()}
    made = {**event("cuda_sync", "Stream Wait Event", 3, 1), "args": wait}
    made["args"]["wait_on_cuda_event_record_corr_id"] = 4
    context = {
        **event("cuda_sync", "Context Sync", 5, 1),
        "args": {"cuda_sync_kind": "Context Sync", "stream": 4294967295, "device": 0},
    }
    spans = {**event("gpu_user_annotation", "step", 1, 9, External_id=2), "pid": 1, "tid": 7}
    trace = read_kineto(kineto_file(tmp_path, [spans, made, context]))
    assert rows(trace, "kind", "device", "stream", "thread") == [
        ("device_annotation", 1, 7, -1),
        ("device_wait", 0, 20, -1),
        ("device_wait", 0, -1, -1),
    ]
    assert len(trace.device_rows) == 0
    assert side(trace, "waits") == [
        {"event": 1, "sync_kind": "Stream Wait Event", "on_stream": 7, "on": 4},
        {"event": 2, "sync_kind": "Context Sync", "on_stream": -1, "on": -1},
    ]


def test_the_profilers_own_rows_lie_on_no_thread(tmp_path: Path) -> None:
    made = {**event("overhead", "Command Buffer Full", 1, 2), "pid": -1, "tid": 0}
    trace = read_kineto(kineto_file(tmp_path, [made, operator("aten::mm", 1, 1)]))
    assert rows(trace, "kind", "thread") == [("overhead", -1), ("operator", 0)]
    assert len(trace.table("threads")) == 1


@pytest.mark.parametrize("cat", [{"cat": "cpu_instant_event"}, {}])
def test_memory_events(tmp_path: Path, cat: Event) -> None:
    def instant(name: str, size: int) -> Event:
        args = {"Bytes": size, "Addr": 2**47, "Device Type": 1, "Device Id": 0}
        return {"ph": "i", **cat, "s": "t", "name": name, "pid": 1, "tid": 1, "ts": 5, "args": args}

    trace = read_kineto(
        kineto_file(tmp_path, [instant("[memory]", -512), instant("Record Window End", 1)])
    )
    assert rows(trace, "kind", "duration_ns") == [("memory", 0)]
    assert side(trace, "memory") == [
        {
            "event": 0,
            "bytes": -512,
            "address": 2**47,
            "device_type": 1,
            "device": 0,
            "allocated_bytes": -1,
            "reserved_bytes": -1,
        }
    ]


def test_shapes_are_kept_as_json(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"Input Dims": [[1, 2], []], "Input type": ["float", "Scalar"]}
    trace = read_kineto(
        kineto_file(tmp_path, [operator("aten::add", 1, 1, **shapes), operator("x", 2, 1)])
    )
    (found,) = side(trace, "shapes")
    assert json.loads(found["input_shapes"]) == [[1, 2], []]
    assert json.loads(found["input_types"]) == ["float", "Scalar"]
    assert (found["event"], found["concrete_inputs"]) == (0, "")
    assert trace.meta.recorded["shapes"]


def test_generated_kernels(tmp_path: Path) -> None:
    made = event("cpu_op", "triton_poi_0", 1, 1)
    made["args"] = {"kernel_backend": "triton", "kernel_file": "/a/b.py", "kernel_kwargs": "X=1"}
    (found,) = side(read_kineto(kineto_file(tmp_path, [made])), "generated")
    assert found == {
        "event": 0,
        "backend": "triton",
        "kernel": "",
        "file": "/a/b.py",
        "arguments": "X=1",
    }


@pytest.mark.parametrize(("op", "peer"), [("send", 3), ("recv", 2)])
def test_collectives(tmp_path: Path, op: str, peer: int) -> None:
    args = {
        "Collective name": op,
        "Process Group Name": "0",
        "Process Group Ranks": "[2, 3]",
        "In msg nelems": 8,
        "Out msg nelems": 9,
        "Group size": 2,
        "dtype": "Float",
        "In split size": [],
        "Src Rank": 2,
        "Dst Rank": 3,
        "Seq": 12,
    }
    made = {**operator("record_param_comms", 1, 1), "args": args}
    (found,) = side(read_kineto(kineto_file(tmp_path, [made])), "collectives")
    assert found == {
        "event": 0,
        "op": op,
        "group": "0",
        "group_description": "",
        "ranks": "[2, 3]",
        "group_size": 2,
        "sequence": 12,
        "dtype": "Float",
        "in_elements": 8,
        "out_elements": 9,
        "in_splits": "[]",
        "out_splits": "",
        "peer": peer,
    }


def test_ranges_that_were_open_at_the_end(tmp_path: Path) -> None:
    """Some versions say of each range whether it had ended, others of those that had not."""
    events = [
        operator("ended", 10, 20, 5, finished=True),
        operator("open", 40, 20, 6, finished=False),
        operator("untold", 42, 2, 7),
    ]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert side(trace, "unfinished") == [{"event": 1, "finished": "false"}]


def test_graph_nodes_only_of_work_in_a_graph(tmp_path: Path) -> None:
    events = [
        kernel("a", 1, 1, 5, graph_id=3, graph_node_id=12884901890),
        kernel("b", 2, 1, 6, graph_id=0, graph_node_id=0),
    ]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert side(trace, "graph_nodes") == [{"event": 0, "graph": 3, "node": 12884901890}]


def test_old_schema(tmp_path: Path) -> None:
    """Kineto of 2021: other categories, threads as text, no base, whole microseconds."""
    stamp = 1_623_143_093_496_523
    host = {"pid": 9, "tid": "9", "dur": 4}
    track = {"pid": 0, "tid": "stream 7", "dur": 3}
    inside = {"device": 0, "stream": 7, "correlation": 5, "external id": 2}
    events = [
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "ts": stamp, **host, "args": {}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "ts": stamp + 1, **host},
        {"ph": "X", "cat": "Kernel", "name": "k", "ts": stamp + 2, **track, "args": inside},
        {"ph": "X", "cat": "Memset", "name": "Memset (Device)", "ts": stamp + 9, **track},
    ]
    events[1]["args"] = {"correlation": 5, "external id": 2}
    trace = read_kineto(write(tmp_path / "old.json", json.dumps({"traceEvents": events})))
    assert rows(trace, "kind", "start_ns", "device", "stream", "correlation", "external_id") == [
        ("operator", stamp * 1000, -1, -1, -1, -1),
        ("runtime", stamp * 1000 + 1000, -1, -1, 5, 2),
        ("kernel", stamp * 1000 + 2000, 0, 7, 5, 2),
        ("memset", stamp * 1000 + 9000, 0, 7, -1, -1),
    ]
    assert side(trace, "threads") == [{"pid": 9, "tid": 9, "name": ""}]
    assert trace.meta.clock == "unix"
    assert rules(trace) == ["trace.coarse_clock"]


@pytest.mark.parametrize("number", [77, 2**40])
def test_work_joined_by_arrows_alone(tmp_path: Path, number: int) -> None:
    made = {**kernel("k", 20, 5, 0), "args": {"device": 0, "stream": 7}}
    launch = {**call("cudaLaunchKernel", 10, 2, 0), "args": {}}
    flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
    events = [
        launch,
        made,
        {"ph": "s", **flow, "pid": 10, "tid": 11, "ts": 10},
        {"ph": "f", **flow, "pid": 0, "tid": 7, "ts": 20, "bp": "e"},
    ]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert rows(trace, "kind", "correlation") == [("runtime", number), ("kernel", number)]


def test_arrows_are_no_events_where_correlations_are_known(tmp_path: Path) -> None:
    flow = {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 10, "tid": 11, "ts": 1}
    trace = read_kineto(kineto_file(tmp_path, [call("cudaFree", 1, 1, 9), flow]))
    assert rows(trace, "name", "correlation") == [("cudaFree", 9)]


def test_begin_and_end_are_paired_on_their_thread(tmp_path: Path) -> None:
    def half(phase: str, name: str, ts: float, tid: int = 1) -> Event:
        return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts}

    events = [
        half("B", "outer", 1),
        half("B", "elsewhere", 2, tid=2),
        half("B", "inner", 3),
        half("E", "inner", 4),
        half("E", "outer", 6),
        half("E", "elsewhere", 9, tid=2),
        half("B", "never ended", 10),
        half("E", "never begun", 11, tid=3),
    ]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert rows(trace, "name", "duration_ns") == [
        ("outer", 5000),
        ("elsewhere", 7000),
        ("inner", 1000),
    ]
    (note,) = [note for note in trace.notes if note.rule == "trace.unpaired"]
    assert (note.count, note.partial) == (2, True)


def test_unknown_categories_are_kept_as_other_and_said(tmp_path: Path) -> None:
    events = [event("mtia_runtime", "recordEvent", 1, 1), event("npu_op", "x", 2, 1)]
    trace = read_kineto(kineto_file(tmp_path, events))
    assert rows(trace, "kind") == [("other",), ("other",)]
    (note,) = [note for note in trace.notes if note.rule == "trace.unknown_category"]
    assert note.count == 2
    assert note.detail["categories"] == {"mtia_runtime": 1, "npu_op": 1}
    assert not note.partial


def test_thread_names(tmp_path: Path) -> None:
    def names(pid: int, tid: int, name: str) -> Event:
        head = {"name": "thread_name", "ph": "M", "ts": 1, "pid": pid, "tid": tid}
        return {**head, "args": {"name": name}}

    events = [
        operator("a", 1, 1),
        {**operator("b", 2, 1), "tid": 12},
        names(10, 11, "thread 11 (python3)"),
        names(10, 12, "pt_autograd_0"),
        names(0, 7, "stream 7 "),
    ]
    assert side(read_kineto(kineto_file(tmp_path, events)), "threads") == [
        {"pid": 10, "tid": 11, "name": "python3"},
        {"pid": 10, "tid": 12, "name": "pt_autograd_0"},
    ]


def test_header(tmp_path: Path) -> None:
    header = {
        "baseTimeNanoseconds": BASE_NS,
        "deviceProperties": [
            {
                "id": 0,
                "name": "GPU X",
                "totalGlobalMem": 1024,
                "numSms": 4,
                "computeMajor": 9,
                "computeMinor": 0,
            }
        ],
        "with_stack": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": 3,
            "world_size": 8,
            "nccl_version": "2.28",
            "pg_config": [{"pg_name": "0", "pg_size": 8, "ranks": "[0, 1]"}],
        },
        "trace_id": "A",
        "vllm_version": "0.9",
    }
    trace = read_kineto(
        kineto_file(tmp_path, [{**kernel("k", 1, 1, 2), "pid": 1}], header=header, traceName="n")
    )
    meta = trace.meta
    assert (meta.rank, meta.world_size, meta.backend, meta.clock) == (3, 8, "nccl", "unix")
    assert meta.process_groups == ({"pg_name": "0", "pg_size": 8, "ranks": [0, 1]},)
    assert meta.recorded == {"shapes": False, "stacks": True, "memory": False, "modules": False}
    assert meta.facts == {"versions": {"nccl": "2.28", "vllm": "0.9"}, "engine": "vllm"}
    assert meta.extra["trace_id"] == "A" and meta.extra["traceName"] == "n"
    assert "trace.no_rank" not in [note.rule for note in trace.notes]
    assert side(trace, "devices") == [
        {
            "device": 0,
            "name": "GPU X",
            "memory_bytes": 1024,
            "sm_count": 4,
            "major": 9,
            "minor": 0,
        }
    ]


def test_devices_that_only_events_name(tmp_path: Path) -> None:
    made = event("kernel", "k", 1, 1, device=5, stream=0, correlation=1)
    (device,) = side(read_kineto(kineto_file(tmp_path, [made])), "devices")
    assert (device["device"], device["name"], device["memory_bytes"]) == (5, "", -1)


@pytest.mark.parametrize(("second", "name"), [("GPU X", "GPU X"), ("GPU Y", "")])
def test_a_device_that_is_counted_otherwise_is_of_the_one_kind(
    tmp_path: Path, second: str, name: str
) -> None:
    made = event("kernel", "k", 1, 1, device=5, stream=0, correlation=1)
    header = {"deviceProperties": [{"id": 0, "name": "GPU X"}, {"id": 1, "name": second}]}
    devices = side(read_kineto(kineto_file(tmp_path, [made], header=header)), "devices")
    assert [(d["device"], d["name"]) for d in devices] == [(0, "GPU X"), (1, second), (5, name)]


def test_pg_config_as_a_string_and_a_header_that_is_no_json(tmp_path: Path) -> None:
    groups = json.dumps([{"pg_name": "1", "ranks": [4]}])
    info = json.dumps({"rank": 2, "pg_config": groups})
    head = f'{{"bad": nan, "distributedInfo": {info}, "baseTimeNanoseconds": {BASE_NS},\n'
    body = json.dumps({"traceEvents": [operator("a", 1, 1)]})[1:]
    trace = read_kineto(write(tmp_path / "t.json", head + body))
    assert trace.meta.rank == 2
    assert trace.meta.process_groups == ({"pg_name": "1", "ranks": [4]},)
    assert trace.start_ns[0] == BASE_NS + 1000


def test_a_single_file_without_a_rank_is_noted(tmp_path: Path) -> None:
    trace = read_kineto(kineto_file(tmp_path, [operator("a", 1, 1)]))
    assert trace.meta.rank is None
    assert [note.rule for note in trace.notes] == ["trace.no_rank", "trace.coarse_clock"][::-1]


# Case 19


@pytest.mark.parametrize("count", [1, 100])
def test_epoch_microseconds_with_decimals_keep_every_nanosecond(tmp_path: Path, count: int) -> None:
    """As 64-bit floats these two would seem to overlap. One goes the careful way, many the fast."""
    pair = (
        '{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ts},"dur":{dur},'
        '"args":{{"device":0,"stream":7,"correlation":{n}}}}}'
    )
    times = [("1711964646014959.412", "0.412"), ("1711964646014959.824", "0.300")] * count
    texts = [pair.format(ts=ts, dur=dur, n=n) for n, (ts, dur) in enumerate(times)]
    trace = read_kineto(write(tmp_path / "t.json", '{"traceEvents":[' + ",".join(texts) + "]}"))
    assert set(rows(trace, "start_ns", "duration_ns")) == {
        (1_711_964_646_014_959_412, 412),
        (1_711_964_646_014_959_824, 300),
    }
    assert trace.meta.clock == "unix"


def test_bases_that_differ_line_up(tmp_path: Path) -> None:
    first = kineto_file(tmp_path, [operator("a", 5_000_000, 1)], name="a.json")
    later = {"baseTimeNanoseconds": BASE_NS + 3_000_000_000}
    second = kineto_file(tmp_path, [operator("a", 2_000_000, 1)], name="b.json", header=later)
    assert read_kineto(first).start_ns[0] == read_kineto(second).start_ns[0]


def test_no_base_and_small_times_give_a_relative_clock(tmp_path: Path) -> None:
    trace = read_kineto(kineto_file(tmp_path, [operator("a", 5.5, 1)], header={}))
    assert (trace.meta.clock, trace.start_ns[0]) == ("relative", 5500)
    assert "trace.no_timestamps_base" in rules(trace)


@pytest.mark.parametrize("written", ["5.5", "5.50", "5500e-3", "0.0055E3", '"5.5"', "5.4996"])
def test_other_ways_to_write_a_time(tmp_path: Path, written: str) -> None:
    text = text_of([operator("a", 7, 1)]).replace('"ts": 7.000', f'"ts": {written}')
    assert read_kineto(write(tmp_path / "t.json", text)).start_ns[0] == BASE_NS + 5500


def test_identifiers_beyond_64_bits_and_odd_numbers(tmp_path: Path) -> None:
    made = event("cuda_runtime", "cudaFree", 1, 1, correlation=2**63 + 5)
    none = event("cuda_runtime", "cudaFree", 2, 1, correlation=2**64 - 1)
    wide = event("cuda_runtime", "cudaFree", 3, 1, correlation=10**30)
    text = event("cuda_runtime", "cudaFree", 4, 1, correlation="17")
    trace = read_kineto(kineto_file(tmp_path, [made, none, wide, text]))
    found = trace.events["correlation"].tolist()
    assert found[:2] == [-(2**63) + 5, -1]
    assert found[3] == 17


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, -(2**31) - 1, 2**50])
def test_a_wide_number_late_in_the_file_leaves_the_others_as_they_are(
    tmp_path: Path, number: int
) -> None:
    calls = [call("cudaFree", at, 1, at) for at in range(1, 40)]
    kernels = [kernel("k", at, 5e6, at) for at in range(50, 90)]
    last = event("kernel", "k", 99, 1, device=0, stream=number, correlation=number)
    trace = read_kineto(kineto_file(tmp_path, [*calls, *kernels, last]))
    correlations = [*range(1, 40), *range(50, 90), number]
    assert trace.events["correlation"].tolist() == correlations
    assert trace.events["stream"].tolist() == [-1] * 39 + [7] * 40 + [number]
    assert trace.events["duration_ns"].tolist() == [1000] * 39 + [5_000_000_000] * 40 + [1000]


# Forms of a file


@pytest.fixture(name="loop")
def _loop(tmp_path: Path) -> Trace:
    return read_kineto(kineto_file(tmp_path, decode_loop(), name="loop.json"))


def same(one: Trace, other: Trace) -> None:
    """The same events with the same side tables, whatever codes their texts have."""
    columns = list(one.events.columns)
    assert rows(one, *columns) == rows(other, *columns)
    assert one.tables.keys() == other.tables.keys()
    for name in one.tables:
        assert side(one, name) == side(other, name)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.anything", "t.gz"])
def test_gzip_by_content_not_by_name(tmp_path: Path, loop: Trace, name: str) -> None:
    same(read_kineto(write(tmp_path / name, text_of(decode_loop()))), loop)


def test_gzip_under_a_plain_name_and_in_several_members(tmp_path: Path, loop: Trace) -> None:
    text = text_of(decode_loop()).encode()
    first = write(tmp_path / "a.gz", text[:5000]).read_bytes()
    second = write(tmp_path / "b.gz", text[5000:]).read_bytes()
    (tmp_path / "t.json").write_bytes(first + second + b"\0" * 512)
    same(read_kineto(tmp_path / "t.json"), loop)


@pytest.mark.parametrize("indent", [None, 0, 1, 4])
@pytest.mark.parametrize("gaps", [(",", ":"), (", ", ": ")])
def test_files_written_again(
    tmp_path: Path, loop: Trace, indent: int | None, gaps: tuple[str, str]
) -> None:
    whole = json.loads(text_of(decode_loop()))
    text = json.dumps(whole, indent=indent, separators=gaps)
    same(read_kineto(write(tmp_path / "t.json", text)), loop)


def test_a_bare_list(tmp_path: Path) -> None:
    text = json.dumps(decode_loop())
    trace = read_kineto(write(tmp_path / "t.json", text))
    assert len(trace.events) == len(decode_loop())
    assert trace.meta.clock == "relative"


def test_header_after_the_events(tmp_path: Path, loop: Trace) -> None:
    whole = json.loads(text_of(decode_loop()))
    turned = {"traceEvents": whole.pop("traceEvents"), **whole, "deviceProperties": [{"id": 0}]}
    same(read_kineto(write(tmp_path / "t.json", json.dumps(turned))), loop)


def test_byte_order_mark_and_windows_lines(tmp_path: Path, loop: Trace) -> None:
    text = text_of(decode_loop()).replace("\n", "\r\n").encode("utf-8-sig")
    same(read_kineto(write(tmp_path / "t.json", text)), loop)


def test_keys_in_any_order(tmp_path: Path, loop: Trace) -> None:
    events = [dict(reversed(each.items())) for each in decode_loop()]
    same(read_kineto(kineto_file(tmp_path, events)), loop)


def test_text_of_any_kind_in_a_name(tmp_path: Path) -> None:
    names = [
        "<script>alert(1)</script>",
        "[bold]x[/bold] {0} %s",
        'quote " backslash \\ slash /',
        "emoji \U0001f600 \u00e9\u4e2d",
        "tab\tnew\nline",
        "}, {",
        '"ph": "X"',
        "",
    ]
    text = json.dumps({"traceEvents": [operator(name, n, 1) for n, name in enumerate(names)]})
    trace = read_kineto(write(tmp_path / "t.json", text))
    assert trace.events["name"].tolist() == names
    assert "trace.invalid_event" not in rules(trace)


def test_lone_surrogates_do_not_leave_the_reader(tmp_path: Path) -> None:
    text = text_of([operator("NAME", 1, 1)]).replace("NAME", "a\\ud800b")
    name = read_kineto(write(tmp_path / "t.json", text)).events["name"].tolist()[0]
    assert name.encode("utf-8")


# Limits and conduct


def test_too_large_names_the_limit(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop())
    with pytest.raises(TooLargeError, match="max_bytes"):
        read_kineto(path, max_bytes=1000)
    assert len(read_kineto(path, max_bytes=path.stat().st_size).events)


def test_the_limit_counts_unpacked_bytes(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop(400), name="t.json.gz")
    assert path.stat().st_size < 20_000
    with pytest.raises(TooLargeError):
        read_kineto(path, max_bytes=20_000)


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop(), name="t.json.gz")
    seen: list[tuple[int, int]] = []
    read_kineto(path, progress=lambda done, size: seen.append((done, size)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_garbage_collection_is_as_before(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop())
    assert gc.isenabled()
    read_kineto(path)
    assert gc.isenabled()
    gc.disable()
    try:
        read_kineto(path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_metadata_alone_is_an_empty_trace(tmp_path: Path) -> None:
    names = {"name": "process_name", "ph": "M", "ts": 1, "pid": 1, "tid": 0, "args": {"name": "p"}}
    path = kineto_file(tmp_path, [names, {**names, "name": "process_labels"}])
    with pytest.raises(EmptyTraceError, match=r"t\.json.*nothing was recorded.*2 rows"):
        read_kineto(path)


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", '{"traceEvents":[\n]\n, "a": 1}'])
def test_an_empty_list_is_an_empty_trace(tmp_path: Path, text: str) -> None:
    with pytest.raises(EmptyTraceError):
        read_kineto(write(tmp_path / "t.json", text))


def test_phases_that_are_not_read(tmp_path: Path) -> None:
    half = {"ph": "b", "cat": "x", "name": "n", "pid": 1, "tid": 1, "ts": 1, "id": 1}
    with pytest.raises(InputError, match="phases"):
        read_kineto(kineto_file(tmp_path, [half]))
    trace = read_kineto(kineto_file(tmp_path, [half, operator("a", 1, 1)]))
    assert "trace.unread_phase" in rules(trace)


def test_reading_loads_neither_torch_nor_screens(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop())
    code = (
        "import sys\n"
        "from tracer.collectors.kineto.trace import read_kineto\n"
        f"read_kineto({str(path)!r})\n"
        "print([m for m in ('torch', 'textual', 'opentelemetry') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Forms that look alike


def test_forms_that_differ_in_one_key_only(tmp_path: Path) -> None:
    """As many strings, the same places: only what the keys say tells them apart."""
    events = []
    for n in range(60):
        events.append(event("cuda_runtime", "a", 3 * n, 1, external_id=n, correlation=n))
        events.append(event("cuda_runtime", "b", 3 * n + 1, 1, external_ts=9, correlation=n))
        events.append(event("cuda_runtime", "c", 3 * n + 2, 1, cbid=n, correlations=n))
    trace = read_kineto(kineto_file(tmp_path, events))
    found = rows(trace, "name", "external_id", "correlation")
    expected = [[("a", n, n), ("b", -1, n), ("c", -1, -1)] for n in range(60)]
    assert found == [row for turn in expected for row in turn]


def test_categories_that_begin_alike(tmp_path: Path) -> None:
    events = []
    for n in range(60):
        events.append(event("user_annotation", "a", 2 * n, 1, External_id=1))
        events.append(event("user_annotatioN", "b", 2 * n + 1, 1, External_id=1))
    turned = [{"name": each["name"], **each} for each in events]
    for order in (events, turned):
        trace = read_kineto(kineto_file(tmp_path, order))
        assert rows(trace, "kind") == [("annotation",), ("other",)] * 60


def test_values_of_other_types_among_many_alike(tmp_path: Path) -> None:
    """Such events leave the fast way one by one."""
    odd: list[Any] = [None, "7", 7.0, -3, True, [1], {"a": 1}, 2**63, "none"]
    events = [call("cudaFree", n, 1, n) for n in range(200)]
    for place, value in enumerate(odd):
        events[20 * place + 5]["args"]["correlation"] = value
    found = read_kineto(kineto_file(tmp_path, events)).events["correlation"].tolist()
    expected = list(range(200))
    expected[5::20] = [-1, 7, 7, -3, -1, -1, -1, -(2**63), -1, 185][: len(expected[5::20])]
    assert found == expected
