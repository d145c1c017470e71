"""The JSON of rocprofv3: what becomes of each domain, of several processes, of damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.make_rocprof import (
    CONTROL,
    CPU_AGENT,
    FIRST_GPU,
    HSA,
    MARKER,
    RCCL,
    SCRATCH,
    allocation,
    call,
    copy,
    json_file,
    json_text,
    kernel,
    named,
    process,
    recorded,
)
from tracer.analyzers import analyze
from tracer.collectors.rocprof.json_records import Row
from tracer.collectors.rocprof.json_text import Records
from tracer.collectors.rocprof.read_json import read_rocprof_json
from tracer.errors import EmptyTraceError, InputError, NotATraceError
from tracer.events import Note, Trace
from tracer.exporters.json_report import to_report
from tracer.sources import find_sources, open_source

SAMPLE = Path(__file__).parents[1] / "samples/recordings/decode_llama8b_modules.json.gz"
US = 1000
AT = 5_000_000_000


def read(tmp_path: Path, **lists: Any) -> Trace:
    return read_rocprof_json(json_file(tmp_path, process(**lists)))


def note_of(trace: Trace, rule: str) -> Note:
    return next(note for note in trace.notes if note.rule == rule)


def rules(trace: Trace) -> set[str]:
    return {note.rule for note in trace.notes}


def side(trace: Trace, table: str) -> list[dict[str, Any]]:
    found = trace.table(table).astype(object)
    return [dict(zip(found.columns, row, strict=True)) for row in found.itertuples(index=False)]


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return list(trace.events[list(columns)].astype(object).itertuples(index=False, name=None))


def launches(count: int, **kernels: Any) -> dict[str, Any]:
    """Calls that launch kernels, each 20 us after the other."""
    return {
        "hip_api": [call("hipLaunchKernel", AT + 20 * US * i, 4 * US, i + 1) for i in range(count)],
        "kernel_dispatch": [
            kernel(1, AT + 20 * US * i + 6 * US, 9 * US, i + 1, **kernels) for i in range(count)
        ],
    }


def test_a_kernel_is_joined_to_its_launch(tmp_path: Path) -> None:
    trace = read(tmp_path, **launches(1))
    assert rows(
        trace,
        "kind",
        "name",
        "start_ns",
        "duration_ns",
        "thread",
        "device",
        "stream",
        "correlation",
    ) == [
        ("runtime", "hipLaunchKernel", AT, 4 * US, 0, -1, -1, 1),
        ("kernel", "void gemm<float>(float*)", AT + 6 * US, 9 * US, -1, 0, 0, 1),
    ]
    assert side(trace, "threads") == [{"pid": 7, "tid": 7, "name": ""}]
    assert side(trace, "geometry") == [
        {
            "event": 1,
            "blocks": 30,  # 640 of 64 work items, 5 of 2
            "threads_per_block": 128,
            "registers_per_thread": 32,
            "shared_memory_bytes": 512,
        }
    ]


def test_devices_stand_in_the_order_of_their_logical_numbers(tmp_path: Path) -> None:
    trace = read(tmp_path, kernel_dispatch=[kernel(1, AT, 5, 1, gpu=1)])
    assert trace.events["device"].tolist() == [1]
    known = {"name": "AMD Instinct MI300X", "memory_bytes": 2**31, "sm_count": 304}
    known |= {"major": 9, "minor": 4}
    assert side(trace, "devices") == [{"device": 0, **known}, {"device": 1, **known}]


def test_without_a_stream_the_queue_stands_for_it(tmp_path: Path) -> None:
    assert read(tmp_path, **launches(1, stream=None)).events["stream"].tolist() == [-1, 3]


def test_what_the_file_says_of_the_run(tmp_path: Path) -> None:
    meta = read(tmp_path, **launches(1)).meta
    assert (meta.source_kind, meta.clock, meta.framework) == ("rocprof", "relative", None)
    assert meta.extra == {"command": ["python", "a.py"], "pid": 7, "hostname": "box"}
    assert meta.path is not None and meta.path.endswith("7_results.json")


def test_copies(tmp_path: Path) -> None:
    second = FIRST_GPU + 1
    trace = read(
        tmp_path,
        memory_copy=[
            copy("HOST_TO_DEVICE", AT, 5, 1, 100, CPU_AGENT, second),
            copy("DEVICE_TO_HOST", AT + 10, 5, 2, 200, FIRST_GPU, CPU_AGENT),
            copy("DEVICE_TO_DEVICE", AT + 20, 5, 3, 300, FIRST_GPU, FIRST_GPU),
            copy("DEVICE_TO_DEVICE", AT + 30, 5, 4, 400, second, FIRST_GPU),
            copy("HOST_TO_HOST", AT + 40, 5, 5, 500, CPU_AGENT, CPU_AGENT),
        ],
    )
    assert rows(trace, "kind", "name", "device", "stream") == [
        ("memcpy", "Memcpy HtoD", 1, 2),
        ("memcpy", "Memcpy DtoH", 0, 2),
        ("memcpy", "Memcpy DtoD", 0, 2),
        ("memcpy", "Memcpy PtoP", 1, 2),
        ("other", "Memcpy HtoH", -1, -1),
    ]
    copies = trace.table("copies")
    assert copies["bytes"].tolist() == [100, 200, 300, 400]
    assert copies["direction"].tolist() == [
        "host_to_device", "device_to_host", "device_to_device", "peer_to_peer",
    ]  # fmt: skip
    assert copies["source"].tolist() == ["unknown", "device", "device", "device"]


def test_ranges_of_roctx(tmp_path: Path) -> None:
    messages = {1: "decode", 2: "a mark", 3: "aten::mm, seq = 4, op_id = 9"}
    trace = read(
        tmp_path,
        messages=messages,
        marker_api=[
            named(MARKER, "roctxThreadRangeA", AT, 90, 1),
            named(MARKER, "roctxMarkA", AT + 10, 0, 2),
            named(MARKER, "roctxThreadRangeA", AT + 20, 30, 3),
            named(CONTROL, "roctxProfilerPause", AT + 60, 1, 4),
        ],
    )
    assert rows(trace, "kind", "name", "correlation") == [
        ("annotation", "decode", -1),
        ("other", "a mark", -1),
        ("operator", "aten::mm", -1),
        ("other", "roctxProfilerPause", -1),
    ]


def test_ranges_of_libraries_are_none_of_the_program(tmp_path: Path) -> None:
    texts = [
        "ncclAllReduce",
        "rocblas_sgemm",
        "miopenFindSolution",
        "hipblasGemmEx",
        "roctxRangePop",
    ]
    made = [named(MARKER, "roctxThreadRangeA", AT + 9 * i, 5, i) for i in range(len(texts))]
    trace = read(tmp_path, messages=dict(enumerate(texts)), marker_api=made)
    assert rows(trace, "kind") == [("annotation",)] + [("other",)] * 4
    assert trace.events["name"][0] == "rccl:ncclAllReduce"


def test_what_pytorch_writes_behind_its_ranges(tmp_path: Path) -> None:
    texts = [
        "aten::mm, seq = 4, op_id = 9, sizes = [[2, 3], [3, 4]]",
        "MmBackward0, seq = 4, op_id = 12",
        "aten::add, op_id = 13",
        "add",
        "{'Module': 'layers.0.mlp', 'Inputs': []}",
    ]
    made = [named(MARKER, "roctxThreadRangeA", AT + 9 * i, 5, i) for i in range(len(texts))]
    trace = read(tmp_path, messages=dict(enumerate(texts)), marker_api=made)
    assert rows(trace, "kind", "name") == [
        ("operator", "aten::mm"),
        ("operator", "MmBackward0"),
        ("operator", "aten::add"),
        ("operator", "add"),
        ("module", "module::layers.0.mlp::"),
    ]
    assert side(trace, "sequences") == [
        {"event": 0, "sequence": 4, "forward_thread": 0},
        {"event": 1, "sequence": 4, "forward_thread": 1},
    ]
    assert [row["input_shapes"] for row in side(trace, "shapes")] == ["[[2, 3], [3, 4]]"]
    assert trace.meta.recorded["shapes"] and trace.meta.recorded["modules"]


def test_ranges_of_roctx_are_steps(tmp_path: Path) -> None:
    lists = launches(8)
    lists["marker_api"] = [
        named(MARKER, "roctxThreadRangeA", AT + 40 * US * i, 38 * US, 90 + i) for i in range(4)
    ]
    trace = read(tmp_path, messages={90 + i: f"step {i}" for i in range(4)}, **lists)
    analysis = analyze(trace)
    assert analysis.steps["name"].tolist() == ["step 0", "step 1", "step 2", "step 3"]
    assert np.bincount(analysis.work["step"]).tolist() == [2, 2, 2, 2]


def test_calls_of_rccl_name_the_collective(tmp_path: Path) -> None:
    lists = launches(2)
    lists["rccl_api"] = [named(RCCL, "ncclAllReduce", AT - 5, 10 * US, 50)]
    for record in lists["kernel_dispatch"]:
        record["dispatch_info"]["kernel_id"] = 77
    made = process(**lists)
    made["kernel_symbols"].append(
        {"kernel_id": 77, "demangled_kernel_name": "ncclDevKernel_Generic_1(x)"}
    )
    analysis = analyze(read_rocprof_json(json_file(tmp_path, made)))
    assert analysis.collectives["op"].tolist() == ["all_reduce", "other"]


def test_work_asked_by_hsa_belongs_to_the_hip_call_around(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        hip_api=[
            call("hipLaunchKernel", AT, 90, 1),
            call("hipLaunchKernel", AT + 200, 90, 3, thread=8),
        ],
        hsa_api=[
            named(HSA, "hsa_signal_store_screlease", AT + 10, 5, 2),
            named(HSA, "hsa_init", AT + 210, 5, 4),
        ],
        kernel_dispatch=[kernel(1, AT + 100, 5, 2), kernel(3, AT + 300, 5, 3)],
    )
    assert rows(trace, "kind", "name", "correlation") == [
        ("runtime", "hipLaunchKernel", 1),
        ("other", "hsa_signal_store_screlease", -1),
        ("kernel", "void gemm<float>(float*)", 1),
        ("runtime", "hipLaunchKernel", 3),
        ("other", "hsa_init", -1),
        ("kernel", "softmax_kernel(float*)", 3),
    ]


def test_calls_of_hsa_alone_are_those_of_the_runtime(tmp_path: Path) -> None:
    trace = read(tmp_path, hsa_api=[named(HSA, "hsa_init", AT, 5, 1)])
    assert rows(trace, "kind", "name") == [("runtime", "hsa_init")]


def test_allocations(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        memory_allocation=[
            allocation("ALLOCATE", AT, 1, 4096, "0x00007fa0"),
            allocation("FREE", AT + 10, 2, 0, {"handle": 0x7FA0}),
            allocation("FREE", AT + 20, 3, 0, "0xffffffffffffffff"),
        ],
    )
    found = [(row["bytes"], row["device"], row["device_type"]) for row in side(trace, "memory")]
    assert found == [(4096, 0, 20), (-4096, 0, 20), (0, -1, 0)]
    assert trace.meta.recorded["memory"]


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    lists = launches(1)
    lists["kfd"] = [{"size": 1}, {"size": 1}]
    lists["scratch_memory"] = [named(SCRATCH, "SCRATCH_MEMORY_ALLOC", AT, 3, 0)]
    trace = read(tmp_path, **lists)
    assert note_of(trace, "trace.unread_domain").detail == {"domains": {"kfd": 2}}
    assert ("overhead", "SCRATCH_MEMORY_ALLOC", -1) in rows(trace, "kind", "name", "thread")


def test_two_processes_do_not_mix(tmp_path: Path) -> None:
    other = process(9, **launches(1))
    trace = read_rocprof_json(json_file(tmp_path, process(7, **launches(1)), other))
    calls = trace.events[trace.events["kind"] == "runtime"]
    kernels = trace.events[trace.events["kind"] == "kernel"]
    assert sorted(kernels["correlation"]) == sorted(calls["correlation"])
    assert kernels["correlation"].is_unique and kernels["stream"].is_unique
    assert [row["pid"] for row in side(trace, "threads")] == [7, 9]
    assert len(trace.table("devices")) == 2
    assert note_of(trace, "trace.processes").detail == {"pids": [7, 9]}


def test_processes_with_devices_of_their_own_are_ranks(tmp_path: Path) -> None:
    one, other = process(7, **launches(2)), process(9, **launches(3, gpu=1))
    path = json_file(tmp_path, one, other)
    assert [place.name for place in find_sources(path)] == [f"{path.name}#rank{i}" for i in (0, 1)]
    second = open_source(f"{path}#rank1")
    assert (second.meta.rank, len(second.events)) == (1, 6)
    assert second.meta.path == f"{path}#rank1"
    assert find_sources(json_file(tmp_path, one, process(9, **launches(1)))) == [path]
    assert find_sources(json_file(tmp_path, one, process(9, hip_api=[]))) == [path]


def test_processes_of_two_machines_have_devices_of_their_own(tmp_path: Path) -> None:
    other = process(9, **launches(1))
    other["metadata"]["node"]["machine_id"] = "another"
    trace = read_rocprof_json(json_file(tmp_path, process(7, **launches(1)), other))
    kernels = trace.events[trace.events["kind"] == "kernel"]
    assert sorted(kernels["device"]) == [0, 2]


def test_the_sums_are_exact(tmp_path: Path) -> None:
    report = to_report(analyze(read(tmp_path, **launches(30))))
    assert sum(group["ns"] for group in report["breakdown"].values()) == report["window"]["wall_ns"]
    assert report["source"]["kind"] == "rocprof"
    assert report["window"]["launches"] == report["window"]["kernels"] == 30


def test_switches_that_were_not_given_are_named(tmp_path: Path) -> None:
    kernels = read(tmp_path, kernel_dispatch=launches(2)["kernel_dispatch"])
    assert "--hip-trace" in note_of(kernels, "trace.not_traced").message
    calls = read(tmp_path, hip_api=[call("hipMemcpyAsync", AT, 5, 1)])
    assert note_of(calls, "trace.not_traced").detail == {
        "switches": ["--kernel-trace", "--memory-copy-trace"]
    }
    assert "trace.not_traced" not in rules(read(tmp_path, **launches(2)))


def test_gaps_between_recorded_calls_make_no_cause(tmp_path: Path) -> None:
    lists = launches(40)
    whole = analyze(read(tmp_path, **lists))
    lists["hip_api"] = lists["hip_api"][::4]
    trace = read(tmp_path, **lists)
    note = note_of(trace, "trace.calls_missing")
    assert (note.count, note.detail) == (30, {"device_events": 40})
    analysis = analyze(trace)
    assert not analysis.kernels["bucket"].isna().any()
    causes = set(analysis.gaps["cause"].astype(str))
    assert "launch" in set(whole.gaps["cause"].astype(str)) and "host" not in causes
    checks = {check.rule: check for check in analysis.checks}
    assert checks["gap.host"].status == "not_checked"
    assert checks["sync.hidden"].status == "partial"
    assert not any(note.rule == "trace.launched_before_window" for note in analysis.notes)


def test_a_few_missing_calls_leave_the_causes_known(tmp_path: Path) -> None:
    lists = launches(100)
    del lists["hip_api"][50]
    trace = read(tmp_path, **lists)
    assert note_of(trace, "trace.calls_missing").count == 1
    analysis = analyze(trace)
    assert "launch" in set(analysis.gaps["cause"].astype(str))
    assert (analysis.work["step"] == 0).all()


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_packed_or_not(tmp_path: Path, packed: bool) -> None:
    text = json_text(process(**launches(2)))
    path = tmp_path / "r.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert len(open_source(path).events) == 4


def test_each_place_to_cut_gives_a_part_or_a_line(tmp_path: Path) -> None:
    text = json_text(process(**launches(3)))
    path = tmp_path / "cut.json"
    seen = set()
    for end in range(30, len(text) - 1, 37):
        path.write_bytes(text[:end])
        try:
            trace = read_rocprof_json(path)
        except InputError as error:
            assert "its end is missing" in str(error) and "\n" not in str(error)
            continue
        note = note_of(trace, "trace.truncated")
        assert note.partial and note.count == len(trace.events)
        seen.add(len(trace.events))
    assert {1, 3, 4, 5} <= seen


def test_a_cut_archive(tmp_path: Path) -> None:
    packed = gzip.compress(json_text(process(**launches(400))))
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    trace = read_rocprof_json(path)
    assert 0 < len(trace.events) < 800
    assert "cut.json.gz" in note_of(trace, "trace.truncated").message


def test_a_record_of_another_form_costs_itself_alone(tmp_path: Path) -> None:
    lists = launches(3)
    lists["kernel_dispatch"][1]["dispatch_info"] = "lost"
    lists["kernel_dispatch"][2]["start_timestamp"] = 0
    trace = read(tmp_path, **lists)
    assert (trace.events["kind"] == "kernel").sum() == 1
    assert note_of(trace, "trace.invalid_event").count == 1
    assert note_of(trace, "trace.no_times").count == 1


def test_fields_may_be_absent_or_new(tmp_path: Path) -> None:
    record = {
        "end_timestamp": AT + 5,
        "start_timestamp": AT,
        "new": [1],
        "dispatch_info": {"kernel_id": 5},
    }
    text = b'{"rocprofiler-sdk-tool":{"buffer_records":{"kernel_dispatch":[%s]}}}'
    path = tmp_path / "r.json"
    path.write_bytes(text % json.dumps(record).encode())
    trace = read_rocprof_json(path)
    assert rows(trace, "kind", "name", "start_ns", "duration_ns", "device") == [
        ("kernel", "kernel 5", AT, 5, 0)
    ]
    assert trace.table("geometry")["blocks"].tolist() == [-1]


def test_numbers_of_all_64_bits(tmp_path: Path) -> None:
    """The largest number stands for none; agents that no list describes are devices too."""
    made = kernel(1, AT, 5, 1, stream=2**64 - 1)
    made["dispatch_info"]["agent_id"]["handle"] = 2**63 + 5
    made["dispatch_info"]["kernel_id"] = 2**70
    trace = read(tmp_path, kernel_dispatch=[made])
    assert rows(trace, "name", "device", "stream") == [("kernel 0", 2, 3)]
    assert len(trace.table("devices")) == 3


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    made = process(
        messages={1: "caf\u00e9"}, marker_api=[named(MARKER, "roctxThreadRangeA", AT, 9, 1)]
    )
    path = tmp_path / "r.json"
    path.write_bytes(json_text(made).replace(b"caf\\u00e9", b"caf\xe9"))
    assert read_rocprof_json(path).names == ["caf\ufffd"]


def test_nothing_recorded(tmp_path: Path) -> None:
    with pytest.raises(EmptyTraceError, match="--kernel-trace"):
        read(tmp_path, hip_api=[])
    with pytest.raises(EmptyTraceError, match=r"kfd"):
        read(tmp_path, kfd=[{"size": 1}])
    (tmp_path / "x.json").write_text('{"rocprofiler-sdk-tool": [], "x": 1}')
    with pytest.raises(EmptyTraceError, match="nothing was recorded"):
        read_rocprof_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(NotATraceError, match="without records"):
        read_rocprof_json(tmp_path / "x.json")


def test_lists_are_read_in_parts(tmp_path: Path) -> None:
    """Wherever a part is cut, also inside the arguments of a call, each record is read once."""
    made = [call("hipLaunchKernel", AT + i, 1, i) for i in range(60)]
    for text in (json.dumps(made), json.dumps([dict(sorted(one.items())) for one in made])):
        for size in (1, 90, 333, 5000):
            records = Records(Row, size)
            parts = list(records.read(text.encode()))
            assert [r.correlation_id.internal for part in parts for r in part] == list(range(60))
            assert records.lost == 0 and (len(parts) > 1 or size > 4000)


# --- a real recording ----------------------------------------------------------------------------


def test_a_recording_of_pytorch(shared: Path) -> None:
    analysis = analyze(open_source(shared / "traces" / "rocprofv3-908.json.gz"))
    report = to_report(analysis)
    window = report["window"]
    assert (report["source"]["kind"], report["source"]["device"]) == (
        "rocprof",
        "AMD Instinct MI350X",
    )
    assert (window["kernels"], window["launches"], window["devices"]) == (43915, 0, 1)
    assert sum(group["ns"] for group in report["breakdown"].values()) == window["wall_ns"]
    kernels = {row["name"]: row for row in report["kernels"]}
    collective = kernels["ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"]
    assert (collective["count"], collective["group"]) == (1310, "communication")
    assert sum(row["total_ns"] for row in report["kernels"]) == 4_441_741_378
    assert report["integrity"]["status"] == "complete"
    assert "--hip-trace" in str(report["integrity"]["notes"])


ALIKE = [
    "h200/compile_default",
    "h200/fallback_sdpa_math",
    "h200/graph_llama8b_capture_and_replay",
    "traces/torch-compile-tiny-mi300x",
    "traces/gpu-only-mi210",
    "traces/vllm-gptoss-fullgraph-decode-mi300x",
]


def check_alike(trace: Trace, tmp_path: Path) -> None:
    """Every nanosecond goes to the same group and part, and the steps are the same."""
    again = open_source(json_file(tmp_path, recorded(trace)))
    ours, theirs = to_report(analyze(again)), to_report(analyze(trace))
    assert ours["breakdown"] == theirs["breakdown"]
    assert [step["wall_ns"] for step in ours["steps"]] == [s["wall_ns"] for s in theirs["steps"]]
    found = [[finding["rule"] for finding in report["findings"]] for report in (ours, theirs)]
    # Ranges do not name the types of tensors, which the speed limit is computed from.
    assert found[0] == [rule for rule in found[1] if rule != "roofline.headroom"]


def test_the_sample_says_the_same(tmp_path: Path) -> None:
    check_alike(open_source(SAMPLE), tmp_path)


@pytest.mark.parametrize("name", ALIKE)
def test_recordings_of_pytorch_say_the_same(name: str, shared: Path, tmp_path: Path) -> None:
    check_alike(open_source(shared / f"{name}.json.gz"), tmp_path)
