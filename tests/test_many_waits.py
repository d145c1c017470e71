"""Recordings of very many waits: each costs little to judge, and its line is the right one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.make_traces import MAIN_THREAD, TraceMaker
from tracer.analyzers import analyze
from tracer.events import Trace

# Reads of values are judged so long as this many calls of functions each suffice.
_CALLS_A_WAIT = 60


def see(maker: TraceMaker, time: float, cause: str, line: int) -> None:
    """The hook sees a line."""
    place: dict[str, Any] = {"file": "/x/site-packages/pkg/loop.py", "function": "read"}
    when: dict[str, Any] = {"time_ns": int(1000 * time), "thread": MAIN_THREAD}
    maker.side("host_sites", line=line, cause=cause, **place, **when)


def reads(count: int) -> Trace:
    """A recording of a CPU with so many reads of values, each at a line that the hook saw."""
    maker = TraceMaker()
    for i in range(count):
        maker.operator("aten::item", 20 * i + 10, 4)
        maker.operator("aten::_local_scalar_dense", 20 * i + 11, 2)
        see(maker, 20 * i + 9, "called", 5 + i % 2)
    return maker.build()


def calls_of(trace: Trace) -> int:
    """Calls of Python functions that an analysis makes."""
    count = 0

    def counted(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        analyze(trace)
    finally:
        sys.setprofile(before)
    return count


def test_a_wait_costs_a_few_calls_however_many_there_are() -> None:
    few, many = reads(500), reads(2_500)
    analyze(few)  # what is paid once
    assert (calls_of(many) - calls_of(few)) / 2_000 < _CALLS_A_WAIT


def test_lines_of_many_waits() -> None:
    found = [f for f in analyze(reads(100)).findings if f.rule == "sync.hidden"]
    assert sorted((f.where.file, f.where.line, f.count) for f in found) == [
        ("pkg/loop.py", 5, 50),
        ("pkg/loop.py", 6, 50),
    ]


@pytest.mark.parametrize(
    ("count", "steps", "said"),
    [(100, 10, ", 10 times a step"), (100, 0, ", 100 times"), (10, 5, "_local_scalar_dense)")],
)
def test_how_often_a_step_reads_is_told(count: int, steps: int, said: str) -> None:
    maker = TraceMaker()
    for i in range(count):
        maker.operator("aten::item", 20 * i + 10, 4)
        maker.operator("aten::_local_scalar_dense", 20 * i + 11, 2)
    for step in range(steps):
        length = 20 * count / steps
        maker.annotation(f"ProfilerStep#{step}", step * length, length)
    (found,) = (f for f in analyze(maker.build()).findings if f.rule == "sync.hidden")
    assert found.title.endswith(said)


@pytest.mark.parametrize(
    ("sites", "line"),
    [
        ([(90, "called", 1), (95, "called", 2), (103, "warned", 3)], 2),
        ([(103, "warned", 3), (104, "warned", 4)], 3),
        ([(99, "warned", 3)], None),  # before the operator began
        ([(-10, "called", 1)], None),  # long before it
        ([(106, "called", 1)], None),  # the next one's
    ],
)
def test_which_line_is_that_of_an_operator(
    sites: list[tuple[float, str, int]], line: int | None
) -> None:
    maker = TraceMaker()
    maker.operator("aten::item", 100, 5)
    maker.operator("aten::_local_scalar_dense", 101, 3)
    for time, cause, number in sites:
        see(maker, time, cause, number)
    (found,) = (f for f in analyze(maker.build()).findings if f.rule == "sync.hidden")
    assert found.where.line == line
