"""Pauses that grow in the course of a recording say so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.make_traces import TraceMaker
from tests.test_idle import found
from tracer.analyzers import analyze
from tracer.analyzers.rules.growth import with_growth
from tracer.findings import Finding


def pause_of(lengths_us: Sequence[float]) -> Finding:
    """Steps on a CPU, each with a pause between its two operators."""
    maker, at = TraceMaker(), 0.0
    for step, length in enumerate(lengths_us):
        maker.annotation(f"ProfilerStep#{step}", at, 20_000 + length)
        maker.operator("aten::mm", at + 10, 9_980)
        maker.operator("aten::add", at + 10_000 + length, 9_980)
        at += 20_000 + length
    (pause,) = found(analyze(maker.build()), "gap.host")
    return pause


def test_a_pause_that_grows_says_from_what_to_what() -> None:
    pause = pause_of([1_000 * (step + 1) for step in range(12)])
    assert pause.title.endswith("growing from 2.01 ms to 11 ms")
    assert "look for what grows" in pause.advice
    assert pause.detail["grows_ns"] == pytest.approx([2e6, 11e6], rel=0.02)


@pytest.mark.parametrize(
    "lengths",
    [
        [5_000] * 12,
        [5_000 + 300 * step for step in range(12)],  # not by enough
        [1_000, 9_000] * 6,
        [12_000 - 900 * step for step in range(12)],
        [1_000, 3_000, 5_000, 9_000],  # too few
    ],
)
def test_other_pauses_do_not(lengths: Sequence[float]) -> None:
    pause = pause_of(lengths)
    assert "grow" not in pause.title + pause.advice and "grows_ns" not in pause.detail


def test_pieces_of_one_pause_are_one() -> None:
    finding = Finding("gap.host", "info", "work", 8, 0, None)
    gap = np.repeat(np.arange(8), 2)
    grown = with_growth(finding, gap, np.repeat(np.arange(1, 9) * 1000, 2))
    assert grown.detail["grows_ns"] == [3000, 15000]


def test_that_a_device_waits_longer_and_longer_is_said() -> None:
    maker, at = TraceMaker(), 0.0
    for step in range(13):
        length = 2_000.0 * (step + 1)
        maker.annotation(f"ProfilerStep#{step}", at, 1_000 + length)
        maker.launch("k", start=at + 5, run=(at + 10, at + 400), operator="aten::mm")
        maker.host("frame", "run.py(4): prepare", at + 410, length)
        maker.launch("k", start=at + 500 + length, run=(at + 505 + length, at + 900 + length))
        at += 1_000 + length
    pause = next(f for f in found(analyze(maker.build()), "gap.host") if f.where.function)
    assert pause.title.startswith("host work in prepare keeps the device waiting, growing from ")
    assert pause.advice.endswith("look for what grows (a list, a text, a history).")
