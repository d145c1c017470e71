"""`tracer export`: exit status, messages and files; cases 36 and 37."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.otlp_receiver import (
    GrpcReceiver,
    HttpReceiver,
    Reply,
    SilentServer,
    Store,
    closed_port,
    in_turn,
)
from tests.otlp_samples import attributes_of, kernel_analysis, kernel_trace, write_kineto
from tracer.analysis import GROUPS
from tracer.cli import main
from tracer.exporters.json_report import to_report
from tracer.exporters.parquet import kernel_table
from tracer.exporters.perfetto import write_perfetto

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profiler's file with 500 kernels in 2 steps."""
    return write_kineto(kernel_trace(2, 250), tmp_path_factory.mktemp("runs") / "small.json")


@pytest.fixture(scope="module")
def recording_50k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50,000 kernels."""
    return write_kineto(kernel_trace(10, 5000), tmp_path_factory.mktemp("runs") / "large.json")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command line in an empty directory; status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "TRACEPARENT"):
        monkeypatch.delenv(name, raising=False)

    def call(*argv: object) -> tuple[int, str, str]:
        status = main(["export", *map(str, argv)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.mark.parametrize("detail", ["folded", "kernels"])
def test_case_36_a_fast_receiver_loses_none(run: Run, recording_50k: Path, detail: str) -> None:
    with GrpcReceiver() as receiver:
        status, out, _ = run(
            recording_50k, "--to", "otlp", "--endpoint", receiver.endpoint, "--detail", detail,
            "--json",
        )  # fmt: skip
    said = json.loads(out)
    assert status == 0 and said["complete"]
    assert receiver.received == said["accepted"] == said["produced"]
    assert said["produced"] > 50_000 if detail == "kernels" else said["produced"] <= 4000


def test_case_36_a_slow_receiver_is_left_with_an_exact_count(run: Run, recording_50k: Path) -> None:
    """It takes 1,000 spans a second and is slow to answer."""

    def plan(_store: Store, count: int) -> Reply:
        return Reply(hang_s=count / 1000)

    with HttpReceiver(plan) as receiver:
        status, out, err = run(
            recording_50k, "--to", "otlp", "--detail", "kernels", "--endpoint",
            receiver.endpoint + "/v1/traces", "--deadline", 3, "--json",
        )  # fmt: skip
    said = json.loads(out)
    assert status == 1 and not said["complete"]
    assert receiver.received == said["accepted"] > 0
    assert said["produced"] == said["accepted"] + said["dropped"]
    assert "time limit" in err and receiver.endpoint in err
    assert Path(said["undelivered"]).is_file()


def test_the_number_dropped_is_printed(run: Run, recording: Path) -> None:
    with HttpReceiver(in_turn(Reply(), Reply(status=404))) as receiver:
        status, out, err = run(
            recording, "--to", "otlp", "--endpoint", receiver.endpoint + "/v1/traces",
            "--detail", "kernels",
        )  # fmt: skip
    dropped = f"{sum_of_spans(recording) - 64:,} dropped"
    assert status == 1 and dropped in out and "404" in err


def sum_of_spans(path: Path) -> int:
    with GrpcReceiver() as receiver:
        main(["export", str(path), "--to", "otlp", "--endpoint", receiver.endpoint,
              "--detail", "kernels"])  # fmt: skip
    return receiver.received


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_case_37_a_closed_port(run: Run, recording: Path, protocol: str) -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}"
    status, out, err = run(
        recording, "--to", "otlp", "--endpoint", endpoint, "--protocol", protocol, "--deadline", 0.5
    )
    assert status == 1
    assert out.startswith("not delivered: 0 of ") and endpoint in out
    assert "refused" in err.lower() and endpoint in err
    assert recording.is_file() and list(Path().glob("tracer-undelivered-*.otlp"))


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_case_37_accepts_and_never_answers(run: Run, recording: Path, protocol: str) -> None:
    with SilentServer() as server:
        endpoint = f"http://127.0.0.1:{server.port}"
        status, out, err = run(
            recording, "--to", "otlp", "--endpoint", endpoint, "--protocol", protocol,
            "--deadline", 0.5,
        )  # fmt: skip
    assert status == 1 and "not delivered" in out and "no answer" in err


@pytest.mark.parametrize(("code", "hint"), [(404, "/v1/traces"), (401, "headers")])
def test_case_37_refusals(run: Run, recording: Path, code: int, hint: str) -> None:
    with HttpReceiver(in_turn(Reply(status=code))) as receiver:
        status, out, err = run(
            recording, "--to", "otlp", "--endpoint", receiver.endpoint, "--protocol",
            "http/protobuf", "--header", "authorization=Bearer secret",
        )  # fmt: skip
    assert status == 1 and str(code) in err and hint in err
    assert "secret" not in out + err


def test_case_37_a_grpc_endpoint_addressed_as_http(run: Run, recording: Path) -> None:
    with GrpcReceiver() as receiver:
        status, _, err = run(
            recording, "--to", "otlp", "--endpoint", receiver.endpoint, "--protocol",
            "http/protobuf",
        )  # fmt: skip
    assert status == 1 and "--protocol grpc" in err


def test_what_is_left_is_sent_later(run: Run, recording: Path) -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}"
    _, out, _ = run(
        recording, "--to", "otlp", "--endpoint", endpoint, "--deadline", 0.2, "--json",
        "--keep", "left.otlp",
    )  # fmt: skip
    first = json.loads(out)
    with GrpcReceiver() as receiver:
        status, out, _ = run("left.otlp", "--to", "otlp", "--endpoint", receiver.endpoint, "--json")
    second = json.loads(out)
    assert status == 0
    assert receiver.received == second["accepted"] == first["dropped"] == first["produced"]


def test_a_damaged_file_of_spans_is_named(run: Run, recording: Path) -> None:
    run(recording, "--to", "otlp", "--out", "spans.otlp")
    whole = Path("spans.otlp").read_bytes()
    Path("cut.otlp").write_bytes(whole[:-100])
    status, out, err = run("cut.otlp", "--to", "otlp", "--endpoint", "http://127.0.0.1:9")
    assert status == 3 and out == "" and "cut.otlp is damaged" in err
    Path("empty.otlp").write_bytes(b"hello, this is text")
    status, _, err = run("empty.otlp", "--to", "otlp", "--endpoint", "http://127.0.0.1:9")
    assert status == 3 and "damaged" in err


def test_spans_as_json_for_an_upload(run: Run, recording: Path) -> None:
    status, out, _ = run(recording, "--to", "otlp", "--out", "spans.json")
    data = json.loads(Path("spans.json").read_text())
    spans = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert status == 0 and f"wrote {len(spans)} spans" in out
    run_span = next(span for span in spans if "parentSpanId" not in span)
    assert len(run_span["traceId"]) == 32 and len(run_span["spanId"]) == 16
    assert run_span["kind"] == 1 and run_span["startTimeUnixNano"].isdigit()
    assert all(span["traceId"] == run_span["traceId"] for span in spans)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--to", "otlp", "--endpoint", "ftp://x"), "ftp://x"),
        (("--to", "otlp", "--traceparent", "nonsense"), "traceparent"),
        (("--to", "otlp", "--header", "nonsense"), "KEY=VALUE"),
        (("--to", "otlp", "--deadline", "-1"), "deadline"),
        (("--to", "otlp", "--max-spans", "1"), "max_spans"),
        (("--to", "otlp", "--out", "x", "--endpoint", "http://h:1"), "--out"),
        (("--to", "perfetto", "--endpoint", "http://h:1"), "--to otlp"),
    ],
)
def test_wrong_usage(run: Run, recording: Path, argv: tuple[str, ...], said: str) -> None:
    status, out, err = run(recording, *argv)
    assert status == 2 and out == "" and said in err
    assert len(err.strip().splitlines()) == 1


def test_no_such_recording(run: Run) -> None:
    status, out, err = run("nowhere.json", "--to", "otlp")
    assert status in (2, 3) and out == "" and "nowhere.json" in err


def test_a_directory_of_ranks_is_one_trace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in (0, 1):
        trace = kernel_trace(1, 20, rank=rank, world_size=2)
        write_kineto(trace, tmp_path / "ranks" / f"rank{rank}.json")
    with GrpcReceiver() as receiver:
        status, out, _ = run(
            "ranks", "--to", "otlp", "--endpoint", receiver.endpoint, "--json"
        )  # fmt: skip
    said = json.loads(out)
    assert status == 0 and len(said["trace_ids"]) == 1
    assert {span.trace_id.hex() for span in receiver.spans} == set(said["trace_ids"])
    (root,) = (span for span in receiver.spans if not span.parent_span_id)
    assert root.name == "run of 2 ranks"
    # What `tracer report` of the directory begins with; these share no collective.
    assert attributes_of(root)["tracer.answer"].startswith("The ranks cannot be compared: ")


def test_a_warning_above_100_000_spans(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_kineto(kernel_trace(2, 50_001), tmp_path / "huge.json")
    with HttpReceiver() as receiver:
        status, out, _ = run(
            path, "--to", "otlp", "--endpoint", receiver.endpoint, "--protocol", "http/protobuf",
            "--detail", "kernels", "--json",
        )  # fmt: skip
    assert status == 0 and receiver.received == json.loads(out)["produced"] > 100_000
    assert "viewers open a trace of this size slowly" in caplog.text


def test_kernels_as_parquet(run: Run, recording: Path) -> None:
    status, out, _ = run(recording, "--to", "parquet", "--out", "tables")
    table = pd.read_parquet("tables/kernels.parquet")
    assert status == 0 and "tables/kernels.parquet" in out
    assert list(table.columns[:12]) == [
        "correlation", "device", "stream", "start_ns", "duration_ns", "name", "group", "part",
        "module", "step", "how", "confidence",
    ]  # fmt: skip
    assert len(table) == 500 and table["start_ns"].is_monotonic_increasing
    assert set(table["step"]) == {0, 1} and set(table["group"]) <= set(GROUPS)
    status, _, _ = run(recording, "--to", "parquet", "--out", "one.parquet")
    assert status == 0 and len(pd.read_parquet("one.parquet")) == 500


def test_a_kernel_table_adds_up_with_the_report() -> None:
    analysis = kernel_analysis(3, 40)
    table, report = kernel_table(analysis), to_report(analysis)
    inside = table[table["in_window"]]
    totals = inside.groupby("name", observed=True)["duration_ns"].sum().to_dict()
    assert totals == {kernel["name"]: kernel["total_ns"] for kernel in report["kernels"]}
    assert int(table["charged_ns"].sum()) == analysis.window.busy_ns
    assert table["module"].isna().all()


def events_of(path: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return loaded


def test_perfetto_tracks_are_the_groups_and_add_up(tmp_path: Path) -> None:
    analysis = kernel_analysis(3, 40)
    write_perfetto([analysis], tmp_path / "t.json")
    events = events_of(tmp_path / "t.json")
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lengths: Counter[str] = Counter(dict.fromkeys(GROUPS, 0))
    for event in events:
        if event["ph"] == "X" and event["cat"] != "step":
            label = tracks[event["pid"], event["tid"]]
            assert label == event["cat"]
            lengths[label] += event["args"]["duration_ns"]
    report = to_report(analysis)
    assert lengths == {group: report["breakdown"][group]["ns"] for group in GROUPS}
    assert sum(event["ph"] == "X" and event["cat"] == "step" for event in events) == 3


def test_perfetto_events_of_a_track_never_overlap(tmp_path: Path) -> None:
    write_perfetto([kernel_analysis(2, 40)], tmp_path / "t.json")
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events_of(tmp_path / "t.json"):
        if event["ph"] == "X":
            place = by_track.setdefault((event["pid"], event["tid"]), [])
            place.append((event["ts"], event["ts"] + event["dur"]))
    assert len(by_track) >= 3
    for spans in by_track.values():
        ordered = sorted(spans)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(ordered))


def test_perfetto_through_the_command_line(run: Run, recording: Path) -> None:
    status, out, _ = run(recording, "--to", "perfetto", "--out", "t.json.gz")
    assert status == 0 and Path("t.json.gz").read_bytes()[:2] == b"\x1f\x8b" and "t.json.gz" in out
    status, _, _ = run(recording, "--to", "perfetto")
    assert status == 0 and Path("small.perfetto.json").is_file()
