"""Memory and device counters in the report, and the rules that judge them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.make_traces import TraceMaker
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.exporters import json_report
from tracer.exporters.json_report import report_text, to_report
from tracer.exporters.text import render_text
from tracer.findings import Finding
from tracer.store import load_run

GIB = 1 << 30
SCHEMA = Path(json_report.__file__).with_name("report.schema.json")
RECORDED = Path(__file__).parent / "recordings"


def report_of(analysis: Analysis) -> Any:
    """The report in JSON, which fits its schema."""
    report = json.loads(report_text(to_report(analysis)))
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    return report


def recording(allocator: dict[str, Any] | None = None, masks: tuple[int, ...] = ()) -> Analysis:
    """Ten launches on a device of 80 GiB; what its allocator counted, its throttle reasons."""
    maker = TraceMaker()
    for row in range(10):
        maker.launch("gemm", start=100 * row, run=(100 * row + 10, 100 * row + 90))
    maker.side("devices", device=0, name="NVIDIA H100", memory_bytes=80 * GIB)
    for row, mask in enumerate(masks):
        time_ns = 50_000 + 10_000 * row
        maker.side("metrics", device=0, metric="throttle_reasons", time_ns=time_ns, value=mask)
        maker.side("metrics", device=0, metric="sm_clock_hertz", time_ns=time_ns, value=1.2e9)
    trace = maker.build()
    facts = {} if allocator is None else {"allocator": [{"device": 0, **allocator}]}
    return analyze(replace(trace, meta=replace(trace.meta, facts={**trace.meta.facts, **facts})))


def counted(reserved: int, split: int, **more: int) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": reserved - split,
        "peak_reserved_bytes": reserved,
        "reserved_bytes": reserved,
        "inactive_split_bytes": split,
        **more,
    }


def judged(analysis: Analysis, rule: str) -> tuple[str, list[Finding]]:
    (check,) = [check for check in analysis.checks if check.rule == rule]
    return check.status, [finding for finding in analysis.findings if finding.rule == rule]


@pytest.mark.parametrize(
    ("allocator", "severity"),
    [
        (counted(40 * GIB, 0), None),
        (counted(78 * GIB, 0), "info"),
        (counted(70 * GIB, 0, num_alloc_retries=3), "warning"),
        (counted(79 * GIB, 0, num_ooms=1, num_alloc_retries=1), "critical"),
    ],
)
def test_headroom(allocator: dict[str, Any], severity: str | None) -> None:
    status, found = judged(recording(allocator), "memory.headroom")
    assert status == ("clear" if severity is None else "found")
    assert [finding.severity for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("allocator", "severity"),
    [
        (counted(70 * GIB, GIB), None),  # a little
        (counted(2 * GIB, GIB // 2), None),  # of little
        (counted(40 * GIB, 16 * GIB), "info"),  # with much room left
        (counted(70 * GIB, 20 * GIB), "warning"),
    ],
)
def test_fragmentation(allocator: dict[str, Any], severity: str | None) -> None:
    status, found = judged(recording(allocator), "memory.fragmentation")
    assert status == ("clear" if severity is None else "found")
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_what_was_not_counted_is_not_judged() -> None:
    analysis = recording()
    for rule in ("memory.headroom", "memory.fragmentation", "device.throttled"):
        assert judged(analysis, rule) == ("not_checked", [])
    report = report_of(analysis)
    assert report["device_metrics"] is None
    assert report["memory"]["peak_reserved_bytes"] is None


@pytest.mark.parametrize(
    ("masks", "severity"),
    [
        ((0,) * 20, None),
        ((0x40,) + (0,) * 19, None),  # once
        ((0x40,) * 5 + (0x04,) * 15, "warning"),
        ((0x04,) * 15 + (0,) * 5, "info"),
        ((0x01,) * 20, None),  # nothing to do
    ],
)
def test_throttling(masks: tuple[int, ...], severity: str | None) -> None:
    status, found = judged(recording(masks=masks), "device.throttled")
    assert status == ("clear" if severity is None else "found")
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    if severity == "warning":
        assert found[0].detail["reasons"] == {"thermal slowdown (hardware)": 0.25}
        assert "1,200 MHz" in found[0].title


def test_allocations_of_a_profiler_give_the_peaks() -> None:
    maker = TraceMaker()
    maker.launch("gemm", start=0, run=(10, 90))
    for allocated, reserved in ((GIB, 2 * GIB), (3 * GIB, 4 * GIB), (GIB, 4 * GIB)):
        maker.side(
            "memory", device_type=1, device=0, allocated_bytes=allocated, reserved_bytes=reserved
        )
    memory = report_of(analyze(maker.build()))["memory"]
    assert (memory["peak_allocated_bytes"], memory["peak_reserved_bytes"]) == (3 * GIB, 4 * GIB)
    assert (memory["fragmentation_ratio"], memory["basis"]) == (None, "events")


def test_counters_of_a_gpu_reach_the_report() -> None:
    analysis = analyze(load_run(RECORDED / "ranks" / "late" / "rank0"))
    report = report_of(analysis)
    assert report["memory"]["basis"] == "allocator"
    assert 0 < report["memory"]["peak_allocated_bytes"] <= report["memory"]["peak_reserved_bytes"]
    counters = report["device_metrics"]["0"]
    assert counters["power_watts"]["min"] <= counters["power_watts"]["mean"]
    assert judged(analysis, "device.throttled")[0] == "clear"
    assert "memory: at most 2.7 GB in use" in render_text(analysis, width=200)
