"""What is new or gone is so in fact, and not only above or below what a rule names."""

from __future__ import annotations

from typing import Any

from tests.make_analysis import Step, make_analysis
from tests.make_traces import TraceMaker
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.diff.compare import compare
from tracer.diff_analysis import DiffAnalysis
from tracer.exporters.diff_findings import CostChange, cost_changes
from tracer.exporters.diff_text import render_diff
from tracer.exporters.diff_verdict import diff_verdict
from tracer.findings import Finding


def said(diff: DiffAnalysis) -> str:
    return diff_verdict(diff, cost_changes(diff))


def scored(call_us: float, score_us: float, calls: int = 16) -> Analysis:
    """Calls of a model on a CPU, with an operator of the loop after each."""
    maker = TraceMaker()
    for call in range(calls):
        at = call * (call_us + 2_500.0)
        maker.module("", "Model", at, call_us)
        maker.operator("aten::mm", at + 1, call_us - 2)
        maker.operator("aten::log_softmax", at + call_us + 1, score_us)
        maker.side("root_calls", None, root="", type="Model", start_ns=round(at * 1000),
                   end_ns=round((at + call_us) * 1000), thread=1, batch=1, tokens=1, cached=1,
                   graded=0, call="forward", generation=-1, part="")  # fmt: skip
    return analyze(maker.build(detail="modules", source_kind="live"))


def row_of(diff: DiffAnalysis, rule: str) -> CostChange:
    (row,) = (r for r in cost_changes(diff) if r.change.finding.rule == rule)
    return row


def test_operators_between_steps_are_compared_where_one_side_names_them() -> None:
    slow, fast = scored(60_000, 2_200), scored(10_000, 2_200)
    assert [bool(a.findings) for a in (slow, fast)] == [False, True]
    for diff in (compare(slow, fast), compare(fast, slow)):
        row = row_of(diff, "loop.between")
        assert (row.change.status, row.each_step, row.change_ns) == ("still", True, 0)
        assert row.after_ns == 2_200_000
        assert "log_softmax" not in said(diff)
        assert "of it in all, too little to be named" in " ".join(render_diff(diff).split())


def test_operators_between_steps_that_come_are_new_with_their_cost_a_step() -> None:
    diff = compare(scored(10_000, 50), scored(10_000, 2_200))
    assert row_of(diff, "loop.between").change.status == "new"
    assert "2.20 ms a step of operators run between the steps" in said(diff)


def paused(pauses_us: float, named: bool, **detail: Any) -> Analysis:
    """Steps on a CPU with so much time outside operators, named by a finding or not."""
    step = Step("forward", {"ffn.projection": 10_000.0, "overhead.host": pauses_us})
    cost = round(pauses_us * 10_000)
    finding = Finding("gap.host", "warning", f"{pauses_us:g} us pass outside operators", 10, cost,
                      steps=tuple(range(10)), detail=detail)  # fmt: skip
    return make_analysis([step] * 10, cpu_only=True, findings=(finding,) if named else ())


def test_a_pause_that_could_be_below_what_is_named_is_not_new() -> None:
    named, below = paused(230, True), paused(190, False)
    for diff in (compare(below, named), compare(named, below)):
        row = row_of(diff, "gap.host")
        assert (row.change.status, row.change_ns) == ("still", None)
        assert "may have as much of it: up to 1.9 ms in all is not named" in row.change.below
        assert "outside operators at" not in said(diff)


def test_a_pause_that_is_more_than_could_be_hidden_is_new_and_gone() -> None:
    there, absent = paused(2_000, True), paused(10, False)
    assert row_of(compare(absent, there), "gap.host").change.status == "new"
    assert row_of(compare(there, absent), "gap.host").change.status == "gone"
    # Many short pauses are named from a tenth of the window on.
    short, unnamed = paused(1_500, True, samples=40), paused(1_000, False)
    assert row_of(compare(unnamed, short), "gap.host").change.status == "still"
