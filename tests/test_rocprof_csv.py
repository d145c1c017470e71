"""The tables of rocprofv3: which files are one recording, what their rows become."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.make_rocprof import (
    CALL_COLUMNS,
    Record,
    agent_row,
    call_row,
    copy_row,
    csv_file,
    csv_text,
    json_file,
    kernel_row,
    process,
)
from tests.test_rocprof_json import AT, US, launches, note_of, rows, rules, side
from tracer.__main__ import main
from tracer.analyzers import analyze
from tracer.collectors.rocprof import csv_lines
from tracer.collectors.rocprof.read_csv import read_rocprof_csv
from tracer.collectors.rocprof.tables import read_table
from tracer.errors import EmptyTraceError, InputError, NotATraceError
from tracer.exporters.json_report import to_report
from tracer.exporters.sentence import verdict
from tracer.sources import each_recording_once, find_sources, open_source


def write_run(directory: Path, prefix: str = "7_", pid: int = 7, count: int = 3) -> list[Path]:
    """Kernels, calls and agents of one process."""
    directory.mkdir(exist_ok=True)
    kernels = [
        kernel_row("gemm(int)", AT + 20 * US * i + 6 * US, 9 * US, i + 1, Thread_Id=pid)
        for i in range(count)
    ]
    calls = [
        call_row("hipLaunchKernel", AT + 20 * US * i, 4 * US, i + 1, pid=pid) for i in range(count)
    ]
    described = [agent_row(0, "CPU"), agent_row(3, "GPU", "MI300X"), agent_row(4, "GPU", "MI300X")]
    return [
        csv_file(directory / f"{prefix}kernel_trace.csv", kernels),
        csv_file(directory / f"{prefix}hip_api_trace.csv", calls),
        csv_file(directory / f"{prefix}agent_info.csv", described),
    ]


def test_kernels_without_rows_are_counted_by_their_numbers(tmp_path: Path) -> None:
    kept = [kernel_row("gemm", AT + 20 * US * i, 9 * US, i) for i in (3, 4, 9)]
    trace = open_source(csv_file(tmp_path / "kernel_trace.csv", kept))
    note = note_of(trace, "trace.kernels_missing")
    assert (note.count, note.partial) == (4, True)
    analysis = analyze(trace)
    assert analysis.gaps["unrecorded"].all()
    said = verdict(analysis)
    assert "what the GPU did in the rest is not recorded. Record every kernel" in said
    assert "idle" not in said.partition("Partial")[0]
    whole = [kernel_row("gemm", AT + 20 * US * i, 9 * US, i) for i in (5, 3, 4)]
    trace = open_source(csv_file(tmp_path / "whole_kernel_trace.csv", whole))
    assert "trace.kernels_missing" not in rules(trace)


def test_siblings_are_one_recording_whichever_is_given(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    traces = [open_source(path) for path in paths]
    for trace in traces:
        assert rows(trace, "kind", "name", "start_ns", "device", "stream", "correlation")[:2] == [
            ("runtime", "hipLaunchKernel", AT, -1, -1, 1),
            ("kernel", "gemm(int)", AT + 6 * US, 1, 2, 1),
        ]
        assert len(trace.events) == 6
        assert set(note_of(trace, "trace.files").detail["files"]) == {path.name for path in paths}
    assert [Path(str(trace.meta.path)) for trace in traces] == paths
    assert side(traces[0], "devices")[1]["name"] == "MI300X"
    assert side(traces[0], "geometry")[0] == {
        "event": 1,
        "blocks": 30,
        "threads_per_block": 64,
        "registers_per_thread": 16,
        "shared_memory_bytes": 1024,
    }
    assert traces[0].meta.extra == {"pid": 7}


def test_a_directory_gives_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_run(tmp_path / "run")
    write_run(tmp_path / "run", prefix="8_", pid=8)
    assert find_sources(tmp_path / "run") == [paths[0], tmp_path / "run" / "8_kernel_trace.csv"]
    assert each_recording_once(paths) == paths[:1]
    assert main(["report", *map(str, paths)]) == 0
    assert "RECORDINGS" not in capsys.readouterr().out


def test_tables_beside_the_json_of_the_same_run_are_left_to_it(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    whole = json_file(tmp_path, process(**launches(2)), name="7_results.json")
    assert find_sources(tmp_path) == [whole]
    whole.write_text('{"a": 1}')
    assert find_sources(tmp_path) == [paths[0], whole]
    assert each_recording_once(paths) == paths[:1]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("kernel_trace.csv", "hip_api_trace.csv", True),
        ("decode_kernel_trace.csv", "decode_hip_api_trace.csv", True),
        ("run-a-kernel.csv", "run-a-hipapi.csv", True),
        ("kernel_trace_rank0.csv", "hip_api_trace_rank0.csv", True),
        ("kernel_trace_rank0.csv", "hip_api_trace_rank1.csv", False),
        ("decode_kernel_trace.csv", "prefill_hip_api_trace.csv", False),
        ("1_kernel_trace.csv", "11_hip_api_trace.csv", False),
    ],
)
def test_names_tell_siblings(tmp_path: Path, one: str, other: str, together: bool) -> None:
    kernels = csv_file(tmp_path / one, [kernel_row("k", AT, 5, 1)])
    csv_file(tmp_path / other, [call_row("hipLaunchKernel", AT - 9, 5, 1)])
    assert (len(open_source(kernels).events) == 2) is together
    assert len(find_sources(tmp_path)) == (1 if together else 2)


def test_a_sibling_of_another_process_is_left_out(tmp_path: Path) -> None:
    kernels = csv_file(tmp_path / "kernel_trace.csv", [kernel_row("k", AT, 5, 1)])
    csv_file(tmp_path / "hip_api_trace.csv", [call_row("hipLaunchKernel", AT, 5, 1, pid=99)])
    trace = open_source(kernels)
    assert rows(trace, "kind") == [("kernel",)]
    assert "hip_api_trace.csv" in note_of(trace, "trace.other_process").message
    assert find_sources(tmp_path) == [tmp_path / "hip_api_trace.csv", kernels]
    csv_file(tmp_path / "memory_copy_trace.csv", [copy_row("DEVICE_TO_HOST", AT, 5, 1, "4", "0")])
    beside = open_source(tmp_path / "memory_copy_trace.csv")
    assert set(rows(beside, "kind")) == {("kernel",), ("memcpy",)}
    assert find_sources(tmp_path) == [tmp_path / "hip_api_trace.csv", kernels]


def test_packed_siblings(tmp_path: Path) -> None:
    for path in write_run(tmp_path):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = tmp_path / "7_kernel_trace.csv.gz"
    both = open_source(packed)
    assert len(both.events) == 6
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    assert len(open_source(packed).events) == 6
    assert find_sources(tmp_path) == [packed]


def test_tables_that_are_none_of_the_tool(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,b,c\n1,2,3\n")
    with pytest.raises(NotATraceError, match="comma-separated"):
        open_source(tmp_path / "a.csv")
    with pytest.raises(NotATraceError, match="columns of rocprofv3"):
        read_rocprof_csv(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"absent\.csv"):
        read_rocprof_csv(tmp_path / "absent.csv")
    csv_file(tmp_path / "agent_info.csv", [agent_row(1, "GPU")])
    with pytest.raises(EmptyTraceError, match="nothing was recorded"):
        open_source(tmp_path / "agent_info.csv")


def test_counters_have_no_timeline(tmp_path: Path) -> None:
    counted = {**kernel_row("k", AT, 5, 1), "Counter_Name": "SQ_WAVES", "Counter_Value": 1.5}
    path = csv_file(tmp_path / "counter_collection.csv", [counted])
    with pytest.raises(EmptyTraceError, match="counter_collection"):
        open_source(path)


def test_columns_of_the_first_versions(tmp_path: Path) -> None:
    """No stream, agents as bare numbers, other words for shared memory; columns in any order."""
    row = {
        "End_Timestamp": AT + 5,
        "Start_Timestamp": AT,
        "Kernel_Name": "k<a, b>(int)",
        "Agent_Id": 2,
        "Queue_Id": 6,
        "Group_Segment_Size": 256,
        "Unknown": "x",
        "Correlation_Id": 4,
    }
    trace = open_source(csv_file(tmp_path / "kernel_trace.csv", [row]))
    assert rows(trace, "kind", "name", "device", "stream", "correlation") == [
        ("kernel", "k<a, b>(int)", 0, 6, 4)
    ]
    assert side(trace, "geometry") == [
        {
            "event": 0,
            "blocks": -1,
            "threads_per_block": -1,
            "registers_per_thread": -1,
            "shared_memory_bytes": 256,
        }
    ]


def test_copies_markers_and_collectives(tmp_path: Path) -> None:
    ends = ("Agent 0", "Agent 4")
    csv_file(
        tmp_path / "memory_copy_trace.csv",
        [
            copy_row("HOST_TO_DEVICE", AT, 5, 1, *ends),
            copy_row("DEVICE_TO_HOST", AT + 10, 5, 2, *ends[::-1]),
            copy_row("DEVICE_TO_DEVICE", AT + 20, 5, 3, "Agent 4", "Agent 5"),
        ],
    )
    csv_file(
        tmp_path / "marker_api_trace.csv",
        [
            call_row("step 1", AT, 90, 1, "MARKER_CORE_API"),
            call_row("here", AT + 30, 0, 2, "MARKER_CORE_API"),
        ],
    )
    path = csv_file(
        tmp_path / "rccl_api_trace.csv", [call_row("ncclAllReduce", AT + 40, 5, 7, "RCCL_API")]
    )
    trace = open_source(path)
    assert rows(trace, "kind", "name", "device", "stream") == [
        ("annotation", "step 1", -1, -1),
        ("memcpy", "Memcpy HtoD", 0, 3),
        ("memcpy", "Memcpy DtoH", 0, 3),
        ("memcpy", "Memcpy PtoP", 0, 3),
        ("other", "here", -1, -1),
        ("annotation", "rccl:ncclAllReduce", -1, -1),
    ]
    assert trace.table("copies")["bytes"].tolist() == [-1, -1, -1]


def test_processes_of_a_converted_database(tmp_path: Path) -> None:
    kernels = [{"Guid": guid, **kernel_row("k", AT + 50, 5, 1)} for guid in "ab"]
    calls = [
        {"Guid": guid, **call_row("hipLaunchKernel", AT, 5, 1, pid=pid)}
        for guid, pid in zip("ab", (7, 8), strict=True)
    ]
    path = csv_file(tmp_path / "kernel_trace.csv", kernels)
    csv_file(tmp_path / "hip_api_trace.csv", calls)
    trace = open_source(path)
    assert [row["pid"] for row in side(trace, "threads")] == [7, 8]
    kernel_rows = trace.events[trace.events["kind"] == "kernel"]
    assert kernel_rows["correlation"].is_unique


@pytest.mark.parametrize(
    ("label", "device", "devices"), [("Agent 4", 1, 2), ("GPU 1", 1, 2), ("4", 1, 2), ("9", 2, 3)]
)
def test_labels_of_agents(tmp_path: Path, label: str, device: int, devices: int) -> None:
    write_run(tmp_path)
    path = tmp_path / "7_kernel_trace.csv"
    csv_file(path, [kernel_row("k", AT, 5, 1, Agent_Id=label)])
    trace = open_source(path)
    assert trace.events["device"][trace.rows("kernel")].tolist() == [device]
    assert len(trace.table("devices")) == devices


# --- damage --------------------------------------------------------------------------------------


def test_an_empty_file_and_a_header_alone(tmp_path: Path) -> None:
    (tmp_path / "kernel_trace.csv").write_text("")
    with pytest.raises(EmptyTraceError, match="empty"):
        open_source(tmp_path / "kernel_trace.csv")
    path = csv_file(tmp_path / "hip_api_trace.csv", [], CALL_COLUMNS)
    with pytest.raises(EmptyTraceError, match="nothing was recorded"):
        open_source(path)


def test_each_place_to_cut_leaves_out_what_is_not_whole(tmp_path: Path) -> None:
    text = csv_text([kernel_row("gemm<4, 5>(int)", AT + 10 * i, 5, i) for i in range(4)])
    whole = text.index("\n") + 1
    path = tmp_path / "kernel_trace.csv"
    for end in range(whole + 5, len(text) - 2, 11):
        path.write_text(text[:end])
        lines = text[:end].count("\n") - 1
        try:
            trace = open_source(path)
        except InputError as error:
            assert lines == 0 and "its end is missing" in str(error)
            continue
        assert len(trace.events) in (lines, lines + 1)
        assert set(trace.names) == {"gemm<4, 5>(int)"}
        assert len(trace.events) == lines + 1 or "trace.truncated" in rules(trace)


def test_a_cut_archive(tmp_path: Path) -> None:
    text = csv_text([kernel_row(f"k{i}", AT + 10 * i, 5, i) for i in range(500)])
    packed = gzip.compress(text.encode())
    path = tmp_path / "kernel_trace.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = open_source(path)
    assert 0 < len(trace.events) < 500
    assert note_of(trace, "trace.truncated").partial


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("Start_Timestamp", "lost", 2),
        ("End_Timestamp", 5, 2),
        ("Correlation_Id", "", 3),
        ("Grid_Size_X", "wide", 3),
    ],
)
def test_a_row_with_a_wrong_number(tmp_path: Path, field: str, value: Any, kept: int) -> None:
    made = [kernel_row("nan", AT + 10 * i, 5, i) for i in range(3)]
    made[1][field] = value
    trace = open_source(csv_file(tmp_path / "kernel_trace.csv", made))
    assert len(trace.events) == kept
    assert set(trace.names) == {"nan"}
    assert kept == 3 or any(note.partial and note.count == 1 for note in trace.notes)


def test_calls_without_a_thread_are_on_one(tmp_path: Path) -> None:
    columns = [name for name in CALL_COLUMNS if name not in ("Thread_Id", "Process_Id")]
    made = [call_row("hipLaunchKernel", AT + 10 * i, 5, i) for i in range(3)]
    made = [{name: row[name] for name in columns} for row in made]
    trace = open_source(csv_file(tmp_path / "hip_api_trace.csv", made))
    assert side(trace, "threads") == [{"pid": -1, "tid": 0, "name": ""}]
    assert not analyze(trace).accounted


def test_headers_that_are_damaged(tmp_path: Path) -> None:
    text = csv_text([kernel_row("k", AT + 10 * i, 5, i) for i in range(3)])
    path = tmp_path / "kernel_trace.csv"
    path.write_text(text.replace('"Agent_Id"', '"Queue_Id"'))
    assert len(open_source(path).events) == 3
    path.write_text(text.replace('"Grid_Size_Z"', "Grid\r_Size"))
    with pytest.raises(InputError, match=r"kernel_trace\.csv"):
        open_source(path)


def test_a_line_with_too_many_fields(tmp_path: Path) -> None:
    text = csv_text([kernel_row("k", AT + 10 * i, 5, i) for i in range(3)])
    lines = text.splitlines()
    lines[2] += ",1,2"
    (tmp_path / "kernel_trace.csv").write_text("\n".join(lines) + "\n")
    trace = open_source(tmp_path / "kernel_trace.csv")
    assert len(trace.events) == 2
    assert note_of(trace, "trace.invalid_event").count == 1


# --- in parts ------------------------------------------------------------------------------------


def kernels_with_odd_names(count: int) -> list[Record]:
    names = ['gemm<4, 5>("a")', "two\nlines", "caf\u00e9", "k"]
    return [kernel_row(names[i % 4], AT + 10 * i, 5, i) for i in range(count)]


@pytest.mark.parametrize("piece_bytes", [50, 700, 3000])
@pytest.mark.parametrize("ending", ["\n", ""])
def test_tables_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, ending: str
) -> None:
    """Names with quotes, commas and ends of lines may lie where a part ends."""
    made = kernels_with_odd_names(60)
    path = tmp_path / "kernel_trace.csv"
    path.write_text(csv_text(made).removesuffix("\n") + ending)
    monkeypatch.setattr(csv_lines, "_PIECE_BYTES", piece_bytes)
    table = read_table(path)
    assert len(table.parts) > 1 and (table.lost, table.cut) == (0, False)
    assert table.texts("Kernel_Name").listed() == [row["Kernel_Name"] for row in made]
    assert table.numbers("Start_Timestamp").tolist() == [AT + 10 * i for i in range(60)]
    trace = read_rocprof_csv(path)
    assert rows(trace, "start_ns", "name") == [
        (AT + 10 * i, made[i]["Kernel_Name"]) for i in range(60)
    ]


@pytest.mark.parametrize(
    ("old", "new", "kept", "rule"),
    [
        (b"caf\xc3\xa9", b"caf\xe9", 60, None),
        (b"5000000300,", b"lost,", 59, "trace.invalid_event"),
        (b"5000000300,", b"5000000300,1,", 59, "trace.invalid_event"),
        (
            b'DISPATCH","Agent 4",1,2,7,30,',
            b'DISPATCH,"Agent 4",1,2,7,30,',
            59,
            "trace.invalid_event",
        ),
    ],
)
def test_a_table_with_damage_is_read_as_a_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: bytes,
    new: bytes,
    kept: int,
    rule: str | None,
) -> None:
    monkeypatch.setattr(csv_lines, "_PIECE_BYTES", 500)
    path = tmp_path / "kernel_trace.csv"
    text = csv_text(kernels_with_odd_names(60)).encode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))
    trace = read_rocprof_csv(path)
    assert len(trace.events) == kept
    assert rule is None or rule in rules(trace)


# --- real recordings -----------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["kernel", "hipapi"])
def test_a_decode_of_llama_cpp(shared: Path, given: str) -> None:
    trace = open_source(shared / "traces" / f"llamacpp-decode-rocprofv3-{given}.csv.gz")
    assert len(trace.events) == 920 + 144
    assert note_of(trace, "trace.files").count == 2
    assert trace.meta.extra == {"pid": 2684120}
    report = to_report(analyze(trace))
    wall = report["window"]["wall_ns"]
    assert sum(group["ns"] for group in report["breakdown"].values()) == wall
    assert sum(row["total_ns"] for row in report["kernels"]) == int(
        trace.events["duration_ns"][trace.events["kind"] == "kernel"].sum()
    )
    assert {"ggml"} <= {row["library"] for row in report["kernels"]}
    launched = trace.events[trace.events["kind"] == "kernel"]["correlation"].value_counts()
    assert launched.iloc[0] == 24  # one replay of a graph


def test_the_shared_tables_are_one_recording(shared: Path) -> None:
    found = [path for path in find_sources(shared / "traces") if ".csv" in path.suffixes]
    assert [path.name for path in found] == ["llamacpp-decode-rocprofv3-kernel.csv.gz"]
