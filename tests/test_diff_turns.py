"""What a step takes from start to start on average: pauses every so many steps, and evaluations,
of which no median tells."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tests.make_analysis import Step, make_analysis
from tracer.analysis import Analysis
from tracer.analyzers.diff.compare import compare
from tracer.analyzers.diff.scatter import mean_variance, measure, measure_means, period_of
from tracer.analyzers.intervals import Longs
from tracer.commands.diff import exit_status
from tracer.diff_analysis import DiffAnalysis, MeanTurn
from tracer.exporters import diff_json
from tracer.exporters.diff_findings import cost_changes
from tracer.exporters.diff_json import to_diff
from tracer.exporters.diff_text import render_diff
from tracer.exporters.diff_verdict import diff_verdict
from tracer.exporters.json_report import report_text

ALLOWED = Fraction(5, 100)


def said(diff: DiffAnalysis) -> str:
    return diff_verdict(diff, cost_changes(diff))


def training(every: int, calls: int = 16, count: int = 20) -> Analysis:
    """Steps of training of 80 ms, and an evaluation of so many calls after every so many."""
    steps: list[Step] = []
    for i in range(1, count + 1):
        steps.append(Step("training", {"ffn.projection": 80_000.0 + 300 * (i % 5)}))
        if i % every == 0:
            steps += [Step("evaluation", {"ffn.projection": 25_000.0 + 100 * (i % 3)})] * calls
    return make_analysis(steps)


def pausing(every: int, usual_us: float = 25_000.0, count: int = 30) -> Analysis:
    """Steps with a pause of 120 ms in every so manieth."""
    hosts = [120_000.0 if every and i % every == every - 1 else 10.0 for i in range(count)]
    return make_analysis([
        Step("training", {"ffn.projection": usual_us + 100 * (i % 7), "overhead.host": host})
        for i, host in enumerate(hosts)
    ])  # fmt: skip


def test_evaluations_between_the_steps_are_in_the_first_sentence() -> None:
    often, seldom = training(4), training(20)
    assert said(compare(often, seldom)).startswith(
        "B is 44 % faster a training step from start to start on average: 181 -> 101 ms (the "
        "median step 80.6 ms in both); evaluation -80.3 ms."
    )
    diff = compare(seldom, often)
    assert [change.phase for change in diff.phases] == ["training", "evaluation"]
    assert said(diff).startswith("B is 80 % slower a training step from start to start on average")
    assert exit_status(diff, ALLOWED) == 1
    assert exit_status(compare(often, seldom), ALLOWED) == 0


def test_a_pause_in_every_so_manieth_step_fails_the_gate() -> None:
    diff = compare(pausing(0), pausing(6))
    assert said(diff).startswith(
        "B is 79 % slower a training step from start to start on average: 25.3 -> 45.3 ms (the "
        "median step 25.3 -> 25.4 ms, within the scatter); host work outside operators +20.0 ms."
    )
    assert exit_status(diff, ALLOWED) == 1
    assert "start to start, mean" in render_diff(diff, width=100)


def test_the_mean_turn_is_in_the_json() -> None:
    document = to_diff(compare(pausing(0), pausing(6)))
    schema = json.loads(Path(diff_json.__file__).with_name("diff.schema.json").read_text())
    jsonschema.validate(json.loads(report_text(document)), schema)
    mean = document["phases"][0]["mean_turn"]
    assert (mean["within_scatter"], mean["tells_more"]) == (False, True)
    assert mean["change_ns"] == pytest.approx(20_000_000, rel=0.01)


def test_what_the_mean_turn_goes_to_adds_up() -> None:
    for pair in ((training(4), training(20)), (pausing(6), pausing(0))):
        mean = compare(*pair).phases[0].mean_turn
        assert mean is not None
        for side in ("before_ns", "after_ns"):
            whole = sum(getattr(part, side) for part in mean.parts)
            assert whole == pytest.approx(getattr(mean.measure, side), abs=10)


def test_pauses_that_stay_are_no_change_and_a_slower_machine_is_told_of_the_step() -> None:
    diff = compare(pausing(6), pausing(6, usual_us=15_000.0))
    assert "on average" not in said(diff)
    slower = [replace(s, parts={name: 1.5 * us for name, us in s.parts.items()}) for s in _uneven()]
    diff = compare(make_analysis(_uneven()), make_analysis(slower))
    assert "on average" not in said(diff)


def _uneven() -> list[Step]:
    """Steps with a pause in each sixth."""
    hosts = [120_000.0 if i % 6 == 5 else 10.0 for i in range(30)]
    return [Step("training", {"ffn.projection": 25_000.0, "overhead.host": us}) for us in hosts]


def test_what_begins_anew_between_steps_is_none_of_their_turn() -> None:
    def chat(every: int) -> Analysis:
        steps: list[Step] = []
        for i in range(24):
            steps += [Step("prefill", {"ffn.projection": 900_000.0})] if i % every == 0 else []
            steps.append(Step("decode", {"ffn.projection": 10_000.0 + 50 * (i % 4)}))
        return make_analysis(steps)

    diff = compare(chat(12), chat(4))
    assert not any(change.mean_tells for change in diff.phases)
    assert exit_status(diff, ALLOWED) == 0


def test_how_often_a_regular_pause_comes_is_no_chance() -> None:
    regular = np.array([10, 11, 10, 50] * 5)
    assert period_of(regular) == 4
    assert period_of(np.array([90, *regular])) == 4  # the first step is one by itself
    assert period_of(np.array([10, 50, 10, 10, 50, 10, 10, 10, 50, 10])) == 0
    by_chance = np.random.default_rng(1).permutation(regular)
    assert mean_variance(regular)[0] < 0.05 * mean_variance(by_chance)[0]
    # Of a period that is cut, the recording may hold a pause more or less.
    assert mean_variance(regular[:-2])[0] > mean_variance(regular)[0]


def test_hiccups_of_a_machine_rarely_make_a_change() -> None:
    draw = np.random.default_rng(11)
    template = compare(pausing(0), pausing(0)).phases[0]
    told = {"calm": 0, "hiccups": 0, "busy": 0}
    for _ in range(400):
        for kind in told:
            ours, theirs = (_times(draw, kind) for _ in range(2))
            mean = MeanTurn(measure_means(ours, theirs), ())
            change = replace(template, step=measure(ours, theirs), mean_turn=mean, turn=None)
            told[kind] += change.mean_tells
    assert max(told.values()) <= 0.04 * 400


def _times(draw: np.random.Generator, kind: str) -> Longs:
    """Steps of one program on a machine that is at rest, stops some by chance, or has something
    else to do for a while."""
    times = draw.lognormal(17, 0.1, 24)
    if kind == "hiccups":
        times = times * np.where(draw.random(24) < 0.08, draw.uniform(2, 8, 24), 1)
    if kind == "busy":
        at, size = int(draw.integers(0, 24)), int(draw.integers(0, 8))
        times[at : at + size] *= 2.5
    whole: Longs = times.astype(np.int64)
    return whole
