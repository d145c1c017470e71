"""Exports of Nsight Systems: what is read of them, and that reports of them say the same."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.make_nsys import EPOCH_NS, Export, add_process, exported, header, thread
from tests.rank_samples import compared
from tracer.analyzers import analyze
from tracer.cli import main
from tracer.collectors.kineto.trace import read_kineto
from tracer.collectors.nsys.names import call_name, kernel_name, read_range, split_ends
from tracer.collectors.nsys.trace import ranks_in, read_nsys
from tracer.errors import EmptyTraceError, InputError, NotATraceError
from tracer.events import Trace
from tracer.exporters.json_report import to_report
from tracer.exporters.sentence import verdict
from tracer.sources import find_sources, open_source
from tracer.store import load_run

RANKS = Path(__file__).parent / "recordings/ranks/late"
SAMPLE = Path(__file__).parents[1] / "samples/recordings/decode_llama8b_modules.json.gz"
PID = 77
HOST = thread(PID, PID)
ALIKE = ["compile_default", "fallback_sdpa_math", "graph_llama8b_capture_and_replay"]
ALIKE += ["bare_mixtral_decode", "qlora_nf4_train", "sync_malloc_churn"]


def decode_step(export: Export, at: int = 1000, pid: int = PID, **place: Any) -> None:
    """A range of the program, an operator in it, its launch and its kernel."""
    on = thread(pid, pid)
    export.range("step", at, at + 900, on)
    export.range("aten::mm, op_id = 5", at + 10, at + 300, on)
    export.call("cudaLaunchKernel_v7000", at + 20, at + 40, 9, on)
    export.kernel("gemm", at + 60, at + 460, 9, pid, **place)


def written(tmp_path: Path, export: Export, name: str = "a.sqlite") -> Trace:
    header(export)
    return read_nsys(export.write(tmp_path / name))


def of_kind(trace: Trace, kind: str) -> list[str]:
    return trace.events["name"].astype(str)[trace.rows(kind)].tolist()


# --- the same recording in two formats ----------------------------------------------------------


def groups_of(report: dict[str, Any]) -> dict[str, int]:
    return {group: found["ns"] for group, found in report["breakdown"].items()}


def check_alike(trace: Trace, tmp_path: Path, *, parts: bool = True) -> None:
    """Every nanosecond goes to the same group and part, and the steps are the same."""
    again = open_source(exported(trace).write(tmp_path / "same.sqlite"))
    assert again.meta.source_kind == "nsys"
    ours, theirs = to_report(analyze(again)), to_report(analyze(trace))
    assert groups_of(ours) == groups_of(theirs)
    assert ours["breakdown"] == theirs["breakdown"] or not parts
    assert [step["wall_ns"] for step in ours["steps"]] == [s["wall_ns"] for s in theirs["steps"]]
    rules = [[finding["rule"] for finding in report["findings"]] for report in (ours, theirs)]
    # Without Python's frames waits between operators are told apart in fewer places, and without
    # the types of operands nothing is known of their bytes.
    assert set(rules[0]) >= set(rules[1]) - {"gap.host", "roofline.headroom"}


def test_the_sample_says_the_same_as_an_export(tmp_path: Path) -> None:
    check_alike(read_kineto(SAMPLE), tmp_path)


@pytest.mark.parametrize("name", ALIKE)
def test_recordings_say_the_same_as_exports(name: str, shared: Path, tmp_path: Path) -> None:
    # The layers' markers do not name classes, by which the parts of an adapter are told apart.
    parts = name != "qlora_nf4_train"
    check_alike(read_kineto(shared / "h200" / f"{name}.json.gz"), tmp_path, parts=parts)


def test_modules_keep_their_time(tmp_path: Path) -> None:
    trace = read_kineto(SAMPLE)
    again = open_source(exported(trace).write(tmp_path / "same.sqlite"))
    times = [
        {entry["path"]: entry["device_ns"] for entry in to_report(analyze(source))["modules"]}
        for source in (trace, again)
    ]
    assert times[0] == times[1]
    assert len(times[0]) > 100


def test_the_late_rank_of_one_export(tmp_path: Path) -> None:
    """Both ranks in one file, as a profiler of the whole machine writes them."""
    traces = [load_run(RANKS / name) for name in ("rank0", "rank1")]
    export, base = Export(), min(int(trace.start_ns.min()) for trace in traces)
    header(export)
    for rank, trace in enumerate(traces):
        add_process(export, trace, PID + rank, base)
    path = export.write(tmp_path / "job.sqlite")
    (ours,) = compared(path).findings
    (theirs,) = compared(RANKS).findings
    assert (ours.rule, ours.detail["rank"]) == ("comm.straggler", 1)
    assert (ours.cost_ns, ours.gain_ns) == (theirs.cost_ns, theirs.gain_ns)
    assert "host work outside operators, 12 times up to 20.3 ms" in ours.title


# --- exports that Nsight wrote ------------------------------------------------------------------


def test_two_gpus_of_two_processes(shared: Path) -> None:
    trace = open_source(shared / "traces" / "nsys-2gpu-torch-1s-h100.sqlite.gz")
    analysis = analyze(trace)
    report = to_report(analysis)
    assert report["source"]["kind"] == "nsys"
    assert report["window"]["devices"] == 2
    groups = sum(group["ns"] for group in report["breakdown"].values())
    assert groups == 2 * report["window"]["wall_ns"]
    # 3442 kernels, 904 copies and 22 sets, as `SELECT count(*)` says.
    assert trace.device_rows.size == 4368
    assert trace.meta.facts["versions"] == {"nsight_systems": "2026.2.1.210"}
    assert not any("op_id" in name or "_v7000" in name for name in trace.names)
    assert any("{lambda(float)#1}" in name for name in trace.names)
    assert {"fallback.matmul"} <= {finding["rule"] for finding in report["findings"]}


def test_two_processes_are_reported_as_ranks(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = shared / "traces" / "nsys-2gpu-torch-1s-h100.sqlite.gz"
    path = tmp_path / "server.sqlite"
    path.write_bytes(gzip.decompress(export.read_bytes()))
    assert find_sources(path) == [Path(f"{path}#rank0"), Path(f"{path}#rank1")]
    ranks = [open_source(place) for place in find_sources(path)]
    assert [trace.meta.rank for trace in ranks] == [0, 1]
    assert [np.unique(t.events["device"].to_numpy()[t.device_rows]) for t in ranks] == [[0], [1]]
    assert sum(len(trace.events) for trace in ranks) == len(open_source(path).events)
    assert main(["report", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The ranks cannot be compared: each is reported for itself. Rank ")
    assert "Copying between host and GPU takes most of the recording" in " ".join(said.split())
    assert main(["report", f"{path}#rank1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"]["rank"] == 1


def test_a_database_of_few_columns(shared: Path) -> None:
    trace = open_source(shared / "traces" / "nsys-thin-schema.sqlite.gz")
    assert trace.rows("kernel").size == trace.rows("runtime").size == 400
    assert trace.meta.clock == "relative"
    assert "trace.no_timestamps_base" in {note.rule for note in trace.notes}
    assert to_report(analyze(trace))["source"]["device"] == "NVIDIA H100 80GB HBM3"


# --- what rows become ---------------------------------------------------------------------------


def test_a_launch_joins_its_operator_and_kernel(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    export.add("ThreadNames", nameId=export.string("python3"), globalTid=HOST)
    trace = written(tmp_path, export)
    assert trace.meta.clock == "unix"
    assert trace.start_ns[0] == EPOCH_NS + 1000
    kinds = ["annotation", "operator", "runtime", "kernel"]
    assert trace.events["kind"].astype(str).tolist() == kinds
    assert trace.events["name"].astype(str).tolist() == [
        "step",
        "aten::mm",
        "cudaLaunchKernel",
        "gemm",
    ]
    assert trace.events["correlation"].tolist() == [-1, -1, 9, 9]
    assert trace.table("threads").iloc[0].tolist() == [PID, PID, "python3"]


def test_processes_share_neither_correlations_nor_streams(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    decode_step(export, at=5000, pid=78)
    trace = written(tmp_path, export)
    kernels, calls = trace.rows("kernel"), trace.rows("runtime")
    correlations = trace.events["correlation"].to_numpy()
    assert correlations[kernels].tolist() == correlations[calls].tolist()
    assert len(set(correlations[kernels].tolist())) == 2
    assert len(set(trace.events["stream"].to_numpy()[kernels].tolist())) == 2


def test_a_process_numbers_the_devices_that_it_sees(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    decode_step(export, at=5000, pid=78)
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid)")
        rows = [(3, 0, 77), (5, 0, 78)]
        connection.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?)", rows)
    connection.close()
    trace = read_nsys(path)
    assert trace.events["device"].to_numpy()[trace.rows("kernel")].tolist() == [3, 5]
    assert trace.table("devices")["device"].tolist() == [3, 5]


def test_processes_on_one_device_are_no_ranks(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    decode_step(export, at=5000, pid=78)
    path = export.write(tmp_path / "a.sqlite")
    assert ranks_in(path) == []
    assert find_sources(path) == [path]
    with pytest.raises(NotATraceError, match="it holds no rank 1"):
        open_source(f"{path}#rank1")


def test_a_file_by_such_a_name_is_that_file(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    path = export.write(tmp_path / "a.sqlite#rank1")
    assert open_source(path).meta.rank is None
    with pytest.raises(InputError, match="no such file"):
        open_source(tmp_path / "b.sqlite#rank1")


def test_graphs_recorded_whole_are_busy_and_said(tmp_path: Path) -> None:
    export = Export()
    export.call("cudaGraphLaunch_v10000", 1000, 1100, 4, HOST)
    export.device("GRAPH_TRACE", 1200, 9200, 4, PID, graphId=3)
    analysis = analyze(written(tmp_path, export))
    report = to_report(analysis)
    assert report["window"]["busy_ns"] == 8000
    assert report["breakdown"]["other"]["parts"]["unattributed"] == 8000
    notes = {note["rule"]: note["message"] for note in report["integrity"]["notes"]}
    assert "--cuda-graph-trace=node" in notes["trace.graph_not_divided"]
    assert "--cuda-graph-trace=node" in verdict(analysis)


def test_nodes_of_a_graph_are_known(tmp_path: Path) -> None:
    export = Export()
    export.call("cudaGraphLaunch_v10000", 1000, 1100, 4, HOST)
    export.kernel("gemm", 1200, 9200, 4, PID, graphNodeId=6 << 32 | 2)
    trace = written(tmp_path, export)
    assert trace.table("graph_nodes").iloc[0].tolist() == [1, 6, 6 << 32 | 2]


@pytest.mark.parametrize(
    ("domain", "kind"), [("NCCL", "other"), ("cuBLASLt", "other"), ("TensorRT-LLM", "annotation")]
)
def test_domains_of_libraries_hold_no_ranges_of_the_program(
    domain: str, kind: str, tmp_path: Path
) -> None:
    export = Export()
    export.add("NVTX_EVENTS", eventType=75, domainId=4, text=domain)
    export.range("work", 500, 600, HOST, domainId=4)
    assert written(tmp_path, export).events["kind"].tolist() == [kind]


def test_steps_of_an_engine_are_found(tmp_path: Path) -> None:
    export = Export()
    export.range("_executor_loop", 0, 90_000, HOST)
    for step, said in enumerate(
        ("2 ctx reqs, 900 ctx tokens, 0 gen reqs", "0 ctx reqs, 2 gen reqs")
    ):
        at = 1000 + 20_000 * step
        name = f"[Executor] _forward_step {step}: {said}"
        export.range(name, at, at + 9000, HOST)
        export.call("cudaLaunchKernel_v7000", at + 10, at + 20, step + 1, HOST)
        export.kernel("gemm", at + 50, at + 7000, step + 1, PID)
    steps = to_report(analyze(written(tmp_path, export)))["steps"]
    assert [(step["phase"], step["tokens"]) for step in steps] == [("prefill", 900), ("decode", 2)]


def test_copies_sets_waits_and_overhead(tmp_path: Path) -> None:
    export = Export()
    export.device("MEMCPY", 1000, 1100, 1, PID, bytes=64, copyKind=1, srcKind=0, dstKind=2)
    export.device("MEMSET", 1200, 1300, 2, PID, bytes=32, memKind=2)
    export.device("SYNCHRONIZATION", 1400, 1500, 3, PID, syncType=2)
    values = {"start": 1600, "end": 1700, "globalTid": HOST, "nameId": 0}
    export.add("CUPTI_ACTIVITY_KIND_OVERHEAD", **values, overheadType=3)
    trace = written(tmp_path, export)
    assert trace.events["name"].astype(str).tolist() == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
        "Stream Wait Event",
        "Buffer Flush",
    ]
    copies = trace.table("copies")
    assert copies.iloc[0].tolist() == [0, 64, "host_to_device", "pageable", "device"]
    assert copies.iloc[1].tolist() == [1, 32, "set", "unknown", "device"]
    assert trace.table("waits")["sync_kind"].tolist() == ["Stream Wait Event"]


def test_ranges_are_told_apart(tmp_path: Path) -> None:
    export = Export()
    export.add("NVTX_EVENTS", eventType=75, domainId=4, text="NCCL")
    export.range("ncclAllReduce", 500, 600, HOST, domainId=4)
    export.range("{'Module': 'm.layers.0', 'Inputs': [[1, 8]]}", 1000, 2000, HOST)
    export.range("{'Module': 'm.layers.0', 'Outputs': [[1, 8]]}", 2000, 2001, HOST)
    export.range("{'Module': os.system('x')}", 2100, 2200, HOST)
    export.range("detach_, op_id = 8", 2300, 2400, HOST)
    export.range("aten::detach_, op_id = 7, sizes = [[2, 3], []]", 2290, 2450, HOST)
    export.range("mine", 2500, 2600, HOST, eventType=60, endGlobalTid=HOST + 1)
    export.range("AddmmBackward0, seq = 12, op_id = 9", 2700, 2800, HOST)
    export.range("never ended", 2900, None, HOST)
    export.range(None, 2950, 2960, HOST, textId=export.string("by number"))
    trace = written(tmp_path, export)
    assert of_kind(trace, "module") == ["module::m.layers.0::"]
    assert of_kind(trace, "other") == ["ncclAllReduce", "mine"]
    assert of_kind(trace, "operator") == ["aten::detach_", "detach_", "AddmmBackward0"]
    assert of_kind(trace, "annotation") == ["{'Module': os.system('x')}", "by number"]
    assert trace.table("shapes")["input_shapes"].tolist() == ["[[2, 3], []]"]
    assert trace.table("sequences").iloc[0].tolist()[1:] == [12, 1]
    assert [note.rule for note in trace.notes] == ["trace.unpaired"]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo"),
    ],
)
def test_calls_lose_their_version(raw: str, name: str) -> None:
    assert call_name(raw) == name


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("k<(int)4, (bool)1, (bool)0, (unsigned long)3>(T1)", "k<4, true, false, 3>(T1)"),
        ("at::<unnamed>::f(T &, const U *)", "at::(anonymous namespace)::f(T&, const U*)"),
        ("g<h(A &)::[lambda(float, int) (instance 2)]>", "g<h(A&)::{lambda(float, int)#2}>"),
        ("sm90_gemm_bf16", "sm90_gemm_bf16"),
    ],
)
def test_kernels_are_named_as_elsewhere(raw: str, name: str) -> None:
    assert kernel_name(raw) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("aten::mm", ("aten::mm", -1, "")),
        ("aten::mm, seq = 3", ("aten::mm", 3, "")),
        ("aten::mm, op_id = 4", ("aten::mm", -1, "")),
        ("aten::mm, seq = 3, op_id = 4, sizes = [[1], [2]]", ("aten::mm", 3, "[[1], [2]]")),
        (
            "aten::mm, op_id = 4, sizes = [[1]], input_op_ids = [(3,0)]",
            ("aten::mm", -1, "[[1]]"),
        ),
        ("epoch, op_id = mine", ("epoch, op_id = mine", -1, "")),
    ],
)
def test_ends_of_ranges(text: str, found: tuple[str, int, str]) -> None:
    assert tuple(split_ends(text)) == found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "operator"),
        ("c10d::allreduce_", "operator"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "operator"),
        ("triton_poi_fused_add_0", "operator"),
        ("FSDP::pre_forward (encoder)", "annotation"),
        ("ProfilerStep#3", "annotation"),
        ("train step", "annotation"),
        ("ncclGroupEnd", "other"),
        ("cublasLtMatmul", "other"),
    ],
)
def test_operators_and_ranges_of_the_program(name: str, kind: str) -> None:
    assert read_range(name).kind == kind


# --- files that are damaged or something else ---------------------------------------------------


def test_a_gzipped_export_reads_the_same(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    header(export)
    path = export.write(tmp_path / "a.sqlite")
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_nsys(packed).events.equals(read_nsys(path).events)


def test_a_damaged_export_is_named(tmp_path: Path) -> None:
    export = Export()
    for step in range(400):
        decode_step(export, at=1000 * step)
    header(export)
    path = export.write(tmp_path / "a.sqlite")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"a\.sqlite: the database is damaged"):
        read_nsys(path)
    packed = tmp_path / "b.sqlite.gz"
    packed.write_bytes(gzip.compress(content)[:-900])
    with pytest.raises(InputError, match=r"b\.sqlite\.gz: gzip data"):
        read_nsys(packed)


def test_an_export_of_nothing(tmp_path: Path) -> None:
    export = Export()
    export.string("unused")
    with pytest.raises(EmptyTraceError, match="--trace=cuda,nvtx"):
        written(tmp_path, export)


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (id)")
    connection.close()
    with pytest.raises(NotATraceError, match="SQLite database"):
        read_nsys(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start)")
    connection.close()
    with pytest.raises(NotATraceError, match="Nsight Systems did not write"):
        read_nsys(path)


def test_absent_columns_read_as_not_recorded(tmp_path: Path) -> None:
    export = Export(
        dropped={
            "CUPTI_ACTIVITY_KIND_KERNEL": ["globalPid", "contextId", "graphNodeId", "gridX"],
            "NVTX_EVENTS": ["endGlobalTid", "textId", "domainId"],
        }
    )
    decode_step(export)
    trace = written(tmp_path, export)
    assert trace.table("geometry")["blocks"].tolist() == [-1]
    assert np.unique(trace.events["correlation"].to_numpy()).tolist() == [-1, 9]


def test_rows_without_times_are_left_out_and_said(tmp_path: Path) -> None:
    export = Export()
    decode_step(export)
    export.kernel("lost", 0, 0, 11, PID)
    trace = written(tmp_path, export)
    assert of_kind(trace, "kernel") == ["gemm"]
    note = next(note for note in trace.notes if note.rule == "trace.no_times")
    assert (note.count, note.partial) == (1, True)
