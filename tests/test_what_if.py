"""What a step would take after a change, in the JSON report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_traces import TraceMaker
from tracer.analyzers import analyze
from tracer.exporters.format import duration_text
from tracer.exporters.json_report import to_report
from tracer.exporters.sentence import verdict
from tracer.store import load_run

RECORDED = Path(__file__).parent / "recordings" / "fallbacks"


def test_launches_that_hold_up_a_step() -> None:
    maker = TraceMaker()
    for step in range(6):
        begin = 1000.0 * step
        maker.annotation(f"ProfilerStep#{step}", begin, 900)
        for row in range(30):
            at = begin + 30 * row
            maker.launch("elementwise", start=at, run=(at + 20, at + 22), operator="aten::add")
    analysis = analyze(maker.build())
    rows = [row for row in to_report(analysis)["what_if"] if row["rule"] == "gap.launch_bound"]
    (row,) = rows
    (found,) = [f for f in analysis.findings if f.rule == "gap.launch_bound"]
    assert found.gain_ns is not None
    assert row["gain_ns"] == pytest.approx(found.gain_ns / 6, abs=1)
    median = int(analysis.steps["wall_ns"].median())
    assert row["step_ns"] + row["gain_ns"] == median
    assert row["gain_ratio"] == pytest.approx(row["gain_ns"] / median)


def test_a_fallback_says_how_its_gain_was_found() -> None:
    report = to_report(analyze(load_run(RECORDED / "attention_math")))
    row = report["what_if"][0]
    assert row["rule"] == "fallback.attention"
    assert "bf16" in row["basis"]
    assert row["gain_ns"] > 0


def test_to_record_again_is_no_change() -> None:
    rows = to_report(analyze(load_run(RECORDED / "attention_math")))["what_if"]
    assert not [row for row in rows if row["change"].startswith("Record again")]


def test_a_clean_recording_has_none_for_fallbacks() -> None:
    rows = to_report(analyze(load_run(RECORDED / "attention_math_clean")))["what_if"]
    assert not [row for row in rows if row["rule"].startswith("fallback")]


def test_what_lies_between_the_calls_shortens_the_turns_of_the_loop() -> None:
    """A loop that works on the host for 300 us after each call of 700 us."""
    maker = TraceMaker()
    for step in range(6):
        begin = 1000.0 * step
        maker.module("", "Net", begin, 700)
        maker.launch("gemm", start=begin + 10, run=(begin + 20, begin + 690), operator="aten::mm")
        maker.host("frame", "loop.py(3): pick", begin + 701, 290)
    analysis = analyze(maker.build())
    (row,) = [row for row in to_report(analysis)["what_if"] if row["rule"] == "gap.host"]
    assert row["step_ns"] + row["gain_ns"] == 1_000_000
    said = verdict(analysis)
    assert "a step, between the steps)" in said
    assert f"takes {duration_text(row['step_ns'])} from start to start" in said
