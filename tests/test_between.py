"""Rule loop.between: operators that a loop runs between the calls of its model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.make_traces import TraceMaker
from tests.test_idle import found
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.exporters.sentence import verdict

RULE = "loop.between"


def looping(operator: str, length: float, turns: int = 6, launches: bool = False) -> Analysis:
    """Calls of 500 us, each followed by so many microseconds of an operator."""
    maker = TraceMaker()
    for turn in range(turns):
        at = 1000.0 * turn
        maker.module("", "Net", at, 500)
        if launches:
            maker.launch("gemm", start=at + 5, run=(at + 10, at + 490), operator="aten::mm")
            maker.launch("copy", start=at + 510, run=(at + 520, at + 520 + length),
                         operator=operator)  # fmt: skip
        else:
            maker.operator("aten::mm", at + 5, 490)
            maker.operator(operator, at + 505, length)
    return analyze(maker.build())


@pytest.mark.parametrize("launches", [False, True], ids=["cpu", "gpu"])
def test_copies_between_the_calls_are_named(launches: bool) -> None:
    analysis = looping("aten::clone", 400, launches=launches)
    (finding,) = found(analysis, RULE)
    # What follows the last call is in no window.
    assert (finding.count, finding.steps) == (5, tuple(range(5)))
    assert finding.cost_ns == finding.detail["between_steps_ns"] == 5 * 400_000
    assert finding.title == (
        "2 ms of operators run between the steps, most of them aten::clone, 2 ms in 5 calls"
    )
    assert "allocated once" in finding.advice
    assert "(costs 2.00 ms, between the steps)" in verdict(analysis)


def test_other_work_between_the_calls_has_other_advice() -> None:
    (finding,) = found(looping("aten::sort", 400), RULE)
    assert "Take out of the loop" in finding.advice


@pytest.mark.parametrize(("length", "turns"), [(40, 6), (400, 2)], ids=["little", "once"])
def test_little_and_what_comes_once_is_no_finding(length: float, turns: int) -> None:
    analysis = looping("aten::clone", length, turns)
    assert not found(analysis, RULE)
    assert [check.status for check in analysis.checks if check.rule == RULE] == ["clear"]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def copying(turns: int) -> None:
    model, kept, x = Small(), torch.zeros(8_000_000), torch.zeros(1, 64)
    for _ in range(turns):
        with torch.no_grad():
            x = model(x)
        kept = kept.clone()  # copied here


COPIED = copying.__code__.co_firstlineno + 5


def test_a_live_recording_knows_the_line() -> None:
    with trace() as t:
        copying(90)
    (finding,) = found(t.analysis, RULE)
    assert finding.where.file == __file__
    assert (finding.where.line, finding.detail["operator"]) == (COPIED, "aten::clone")
