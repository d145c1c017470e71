"""The report as JSON: its schema, its sums, what is null and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.golden_files import check_golden
from tests.make_analysis import START_NS, Step, make_analysis
from tests.sample_analyses import decode_analysis, hostile_analysis, unusable_analysis
from tracer.analysis import GROUPS, PARTS, Analysis
from tracer.events import Note
from tracer.exporters import json_report
from tracer.exporters.json_report import plain, report_text, to_report
from tracer.exporters.several_json import to_reports
from tracer.exporters.text import render_text
from tracer.findings import Check, Finding

SCHEMA_FILE = Path(json_report.__file__).with_name("report.schema.json")
# The keys of DESIGN 2, in its order.
KEYS = [
    "schema",
    "tracer",
    "answer",
    "source",
    "integrity",
    "facts",
    "window",
    "block",
    "breakdown",
    "steps",
    "idle",
    "phases",
    "modules",
    "kernels",
    "communication",
    "requests",
    "serving",
    "roofline",
    "memory",
    "device_metrics",
    "what_if",
    "findings",
    "checks",
    "observer",
]

Make = Callable[[], Analysis]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def two_devices() -> Analysis:
    """Two devices with communication, some of it hidden, and odd nanoseconds."""
    parts = {"attention.core": 10.001, "communication.all_reduce": 7.003, "overhead.sync": 3.002}
    steps = [Step("training", parts, batch=8, tokens=4096), Step("training", parts)]
    collectives = {
        "work": [0, 1, 2],
        "op": ["all_reduce", "all_reduce", "broadcast"],
        "group": ["tp", "tp", ""],
        "group_size": [2, 2, -1],
        "sequence": [0, 1, 2],
        "bytes": [1000, 3000, -1],
        "dtype": ["BFloat16"] * 3,
        "start_ns": [START_NS + ns for ns in (0, 10_000, 20_000)],
        "end_ns": [START_NS + ns for ns in (2_000, 12_000, 20_006)],
        "exposed_ns": [2_000, 1_500, 6],
        "overlapped_ns": [0, 500, 0],
        "wait_ns": [-1] * 3,
        "wire_ns": [-1] * 3,
        "step": [0, 1, 1],
        "module": [-1] * 3,
    }
    return make_analysis(
        steps,
        devices=2,
        between={"overhead.input": 5.0},
        tables={"collectives": collectives},
        overlapped_ns=500,
    )


def cpu_only() -> Analysis:
    """No GPU: the rest of the window is the host's."""
    steps = [Step("decode", {"ffn.projection": 5.0, "overhead.host": 2.0})] * 3
    return make_analysis(steps, devices=0, cpu_only=True)


def nothing() -> Analysis:
    """No step and no time."""
    return make_analysis([])


MAKERS: tuple[Make, ...] = (
    decode_analysis,
    hostile_analysis,
    unusable_analysis,
    two_devices,
    cpu_only,
    nothing,
)


@pytest.mark.parametrize("make", MAKERS)
def test_every_report_fits_the_schema(make: Make, validator: Any) -> None:
    report = json.loads(report_text(to_report(make())))
    validator.validate(report)
    assert list(report) == KEYS


def test_golden_json() -> None:
    report = json.loads(report_text(to_report(decode_analysis())))
    check_golden("decode.json", json.dumps(report, indent=1) + "\n")


def test_the_schema_knows_all_parts() -> None:
    definitions = json.loads(SCHEMA_FILE.read_text())["$defs"]
    for group in GROUPS:
        assert tuple(definitions[group]["properties"]["parts"]["properties"]) == PARTS[group]
    assert set(definitions["part"]["enum"]) == {part for group in GROUPS for part in PARTS[group]}


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report.update(extra=1),
        lambda report: report.pop("window"),
        lambda report: report["window"].update(wall_ns=1.5),
        lambda report: report["window"].update(wall_ms=1),
        lambda report: report["breakdown"]["ffn"]["parts"].update(core=1),
        lambda report: report["breakdown"]["ffn"]["parts"].update(projection=0),
        lambda report: report["breakdown"]["communication"].pop("overlapped_ns"),
        lambda report: report["findings"][0].update(severity="bad"),
        lambda report: report["checks"][0].update(status="maybe"),
        lambda report: report["steps"][0].update(start_ns=None),
    ],
)
def test_the_schema_is_strict(change: Callable[[Any], object], validator: Any) -> None:
    report = json.loads(report_text(to_report(decode_analysis())))
    change(report)
    assert not validator.is_valid(report)


@pytest.mark.parametrize("make", [decode_analysis, hostile_analysis, two_devices, cpu_only])
def test_the_sums_hold_to_the_nanosecond(make: Make) -> None:
    report = to_report(make())
    window = report["window"]
    devices = max(window["devices"], 1)
    capacity = window["wall_ns"] * devices
    assert sum(group["ns"] for group in report["breakdown"].values()) == capacity
    for group in report["breakdown"].values():
        assert sum(group["parts"].values()) == group["ns"]
        assert group["ratio"] == pytest.approx(group["ns"] / capacity)
        assert all(ns > 0 for ns in group["parts"].values())
    assert window["busy_ns"] + window["idle_ns"] == capacity
    assert sum(idle["ns"] for idle in report["idle"]) == window["idle_ns"]
    between = window["between_steps_ns"]
    assert sum(step["wall_ns"] for step in report["steps"]) + between == window["wall_ns"]
    for step in report["steps"]:
        assert sum(step["breakdown"].values()) == step["wall_ns"] * devices


def test_numbers_of_collectives() -> None:
    communication = to_report(two_devices())["communication"]
    assert communication["exposed_ns"] == 2 * 7_003
    assert communication["overlapped_ns"] == 500
    assert communication["collectives"] == [
        {
            "op": "all_reduce",
            "group": "tp",
            "count": 2,
            "bytes": 4000,
            "algbw_bytes_per_s": None,  # one rank cannot tell the time on the wire
            "busbw_bytes_per_s": None,
            "exposed_ns": 3_500,
            "overlapped_ns": 500,
            "wait_ns": None,
            "wire_ns": None,
        },
        {
            "op": "broadcast",
            "group": None,
            "count": 1,
            "bytes": None,
            "algbw_bytes_per_s": None,
            "busbw_bytes_per_s": None,
            "exposed_ns": 6,
            "overlapped_ns": 0,
            "wait_ns": None,
            "wire_ns": None,
        },
    ]


def test_bus_bandwidth_counts_the_ranks() -> None:
    collectives = {
        "op": ["all_reduce", "all_gather"],
        "group": ["a", "b"],
        "group_size": [4, 4],
        "bytes": [1000, 1000],
        "start_ns": [START_NS, START_NS],
        "end_ns": [START_NS + 9_000, START_NS + 1_000],
        "exposed_ns": [0, 0],
        "overlapped_ns": [0, 0],
        "wait_ns": [8_000, -1],
        "wire_ns": [1_000, -1],
    }
    step = Step("decode", {"communication.all_reduce": 10})
    analysis = make_analysis([step], tables={"collectives": collectives})
    reduce, gather = to_report(analysis)["communication"]["collectives"]
    assert reduce["algbw_bytes_per_s"] == 1e9  # on the wire, without the wait
    assert reduce["busbw_bytes_per_s"] == 1.5e9
    assert (reduce["wait_ns"], reduce["wire_ns"]) == (8_000, 1_000)
    assert gather["busbw_bytes_per_s"] is None


def test_what_was_not_measured_is_null_with_a_reason() -> None:
    report = to_report(unusable_analysis())
    assert report["integrity"]["status"] == "unusable"
    assert report["breakdown"] is None
    assert report["idle"] is None
    assert report["communication"] is None
    assert report["window"]["busy_ns"] is None
    assert [step["busy_ns"] for step in report["steps"]] == [None] * 3
    assert [step["breakdown"] for step in report["steps"]] == [None] * 3
    assert report["phases"]["decode"]["breakdown"] is None
    assert report["integrity"]["notes"] == [
        {
            "rule": "trace.no_device_events",
            "message": "200 launches recorded, 0 device events",
            "count": None,
        }
    ]


def _nulls(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _nulls(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _nulls(item, path)
    elif value is None:
        yield path


def test_each_absent_value_has_a_check_that_says_why() -> None:
    report = to_report(make_analysis([Step("decode", {"ffn.projection": 5.0})]))
    nulls = set(_nulls(report))
    checks = {c["rule"]: c["reason"] for c in report["checks"] if c["status"] == "not_checked"}
    for null, rule in (
        (".observer", "capture.observer"),
        (".memory.peak_allocated_bytes", "capture.memory"),
        (".device_metrics", "capture.device_metrics"),
        (".serving", "capture.serving"),
        (".facts.engine", "capture.facts"),
        (".steps.batch", "capture.step_sizes"),
    ):
        assert null in nulls
        assert checks[rule]


def test_a_check_of_the_analysis_is_not_doubled() -> None:
    own = Check("capture.memory", "not_checked", "no allocator here")
    checks = to_report(make_analysis([], checks=(own,)))["checks"]
    assert [c["reason"] for c in checks if c["rule"] == "capture.memory"] == ["no allocator here"]


def test_several_reports_make_one_document(validator: Any) -> None:
    note = Note("trace.not_a_trace", "b.txt: no JSON", partial=True)
    report = json.loads(report_text(to_reports([decode_analysis(), cpu_only()], [note])))
    validator.validate(report)
    assert list(report) == ["schema", "tracer", "integrity", "jobs", "reports"]
    assert report["jobs"] == []
    assert report["integrity"] == {
        "status": "partial",
        "notes": [{"rule": "trace.not_a_trace", "message": "b.txt: no JSON", "count": None}],
    }
    assert len(report["reports"]) == 2
    assert to_reports([decode_analysis()])["integrity"]["status"] == "complete"


def test_the_answer_is_that_of_the_text() -> None:
    analysis = decode_analysis()
    answer = to_report(analysis)["answer"]
    text = " ".join(render_text(analysis, width=100, ascii=False).split())
    assert answer
    assert text.startswith(answer)


def test_the_text_is_one_line_of_ascii() -> None:
    text = report_text(to_report(hostile_analysis()))
    assert text.isascii()
    assert text.count("\n") == 1
    names = [kernel["name"] for kernel in json.loads(text)["kernels"]]
    assert "核函数" in "".join(names)


def test_values_of_other_libraries_become_plain() -> None:
    given = {
        1: np.int64(3),
        "x": (np.float32(0.5), float("nan"), float("inf")),
        "y": np.array([1, 2]),
        "p": Path("a"),
        "t": np.True_,
        "n": None,
    }
    wanted = {"1": 3, "x": [0.5, None, None], "y": [1, 2], "p": "a", "t": True, "n": None}
    assert plain(given) == wanted


def test_a_finding_keeps_its_detail() -> None:
    finding = Finding("gap.host", "info", "t", 2, detail={"n": np.int64(7)}, steps=(0,))
    shown = to_report(make_analysis([Step("", {})], findings=(finding,)))["findings"][0]
    assert json.loads(json.dumps(shown))["detail"] == {"n": 7}
    assert shown["where"] == dict.fromkeys(("file", "line", "function", "module", "operator"))


def test_gaps_count_once_for_each_cause() -> None:
    gaps = {
        "device": [0, 0, 0, 1],
        "start_ns": [0, 10, 30, 0],
        "end_ns": [10, 20, 40, 5],
        "cause": ["launch", "launch", "sync", "launch"],
        "gap": [0, 0, 0, 0],
    }
    steps = [Step("decode", {"overhead.launch": 0.025, "overhead.sync": 0.01})]
    idle = to_report(make_analysis(steps, tables={"gaps": gaps}))["idle"]
    assert idle == [
        {"cause": "launch", "ns": 25, "count": 2},
        {"cause": "sync", "ns": 10, "count": 1},
    ]
