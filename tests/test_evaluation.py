"""Rule loop.evaluation: what a training loop spends on passes over held-out data."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.live_models import OwnModel, prompt
from tests.make_traces import TraceMaker
from tests.recordings import analysis_of
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.facts.callers import Asked, asked_from
from tracer.exporters.sentence import verdict
from tracer.findings import Finding, Where
from tracer.store import load_run

pytestmark = pytest.mark.usefixtures("one_thread")

RULE = "loop.evaluation"


def found(analysis: Analysis) -> Finding | None:
    return next((finding for finding in analysis.findings if finding.rule == RULE), None)


def status(analysis: Analysis) -> str:
    return next(check.status for check in analysis.checks if check.rule == RULE)


# --- live


class Loop:
    """A loop that trains a small transformer, and looks at held-out batches every few steps."""

    def __init__(self, *, every: int, batches: int = 4, recorded: bool = False) -> None:
        self.model, self.ids = OwnModel(32), prompt(2, 16)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.every, self.batches, self.recorded = every, batches, recorded

    def loss(self) -> torch.Tensor:
        out: torch.Tensor = self.model(self.ids)
        return out.square().mean()

    def step(self) -> None:
        torch.autograd.backward(self.loss())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def look(self) -> None:
        self.model.eval()
        with nullcontext() if self.recorded else torch.no_grad():
            for _ in range(self.batches):
                self.loss()
        self.model.train()

    def run(self, steps: int, around: Callable[[], Any] = nullcontext) -> None:
        for i in range(steps):
            with around():
                self.step()
                if i % self.every == self.every - 1:
                    self.look()  # asked here


ASKED = Loop.run.__code__.co_firstlineno + 5


@pytest.mark.parametrize("detail", ["light", "modules"])
@pytest.mark.parametrize("announced", [False, True], ids=["calls", "announced"])
def test_an_evaluation_every_few_steps_is_named_with_its_line(detail: Any, announced: bool) -> None:
    loop = Loop(every=3, batches=6)
    loop.step()
    with trace(detail=detail) as t:
        loop.run(12, t.step if announced else nullcontext)
    finding = found(t.analysis)
    assert finding is not None and finding.severity == "warning"
    assert (finding.count, finding.detail["every_steps"], finding.detail["calls"]) == (4, 3, 24)
    assert finding.where == Where(__file__, ASKED, "Loop.run")
    assert "evaluation in Loop.look takes" in finding.title
    assert "after every 3 training steps" in finding.title and "in 6 calls" in finding.title
    assert 0 < (finding.gain_ns or 0) < (finding.cost_ns or 0) < t.analysis.window.wall_ns
    holding = [2, 5, 8, 11] if announced else [i for i, p in enumerate(phases(t)) if p != "t"]
    assert list(finding.steps) == holding
    assert finding.advice.startswith("Evaluate less often: every ")
    if detail == "light":  # nothing else can be said there
        said = verdict(t.analysis)
        assert f"at {__file__}:{ASKED}. Evaluate less often: every " in said


def phases(t: Any) -> str:
    return "".join(phase[0] for phase in t.analysis.steps["phase"].astype(str))


def test_what_an_evaluation_takes_is_that_of_its_steps_and_what_lies_between_them() -> None:
    loop = Loop(every=2)
    with trace() as t:
        loop.run(4)
    steps, finding = t.analysis.steps, found(t.analysis)
    assert phases(t) == "tteeeetteeee" and finding is not None
    ends = steps["start_ns"] + steps["wall_ns"]
    spans = [int(ends[last] - steps["start_ns"][first]) for first, last in ((2, 5), (8, 11))]
    assert finding.cost_ns == sum(spans)
    assert finding.detail["each_ns"] == sum(spans) // 2
    between = sum(spans) - int(steps["wall_ns"][[2, 3, 4, 5, 8, 9, 10, 11]].sum())
    assert finding.detail["between_steps_ns"] == between
    assert finding.ratio == pytest.approx(sum(spans) / t.analysis.window.wall_ns)


def test_a_saved_run_tells_the_same(tmp_path: Path) -> None:
    loop = Loop(every=2)
    with trace(detail="light") as t:
        loop.run(4)
    t.save(tmp_path / "run")
    assert found(analyze(load_run(tmp_path / "run"))) == found(t.analysis)


def test_one_evaluation_does_not_tell_how_often_it_returns() -> None:
    loop = Loop(every=4)
    with trace() as t:
        loop.run(4)
    finding = found(t.analysis)
    assert finding is not None and (finding.severity, finding.gain_ns) == ("info", None)
    assert "one evaluation in Loop.look takes" in finding.title
    assert "beside 4 training steps" in finding.title
    assert "Evaluate less often" not in finding.advice and "Record more" in finding.advice


def test_an_evaluation_that_autograd_records_is_told_so() -> None:
    for recorded in (False, True):
        loop = Loop(every=2, recorded=recorded)
        with trace() as t:
            loop.run(4)
        finding = found(t.analysis)
        assert finding is not None
        assert ("inference_mode" in finding.advice) == recorded
        assert finding.detail["recorded_by_autograd"] == 8 * recorded


def test_training_alone_is_clear_and_so_is_inference() -> None:
    loop = Loop(every=100)
    with trace() as learning:
        loop.run(4)
    with trace() as answering, torch.no_grad():
        loop.look()
    for t in (learning, answering):
        assert found(t.analysis) is None and status(t.analysis) == "clear"


def test_a_reference_that_every_step_asks_is_part_of_it() -> None:
    net, x = nn.Linear(8, 4), torch.ones(2, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with trace() as t:
        for _ in range(4):
            with torch.no_grad():
                wanted = net(x)
            (net(x) - wanted).sum().backward()
            optimizer.step()
    assert found(t.analysis) is None and phases(t) == "tttt"


class Around(nn.Module):
    """What some write around a model to train it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(ids)
        return out


@pytest.mark.parametrize("detail", ["light", "modules"])
def test_the_model_inside_of_what_is_trained_is_evaluated(detail: Any) -> None:
    loop = Loop(every=2)
    inner, loop.model = loop.model, Around(loop.model)  # type: ignore[assignment]
    with trace(detail=detail) as t:
        for _ in range(3):
            loop.step()
            loop.step()
            with torch.no_grad():
                for _ in range(4):
                    inner(loop.ids)
    finding = found(t.analysis)
    assert finding is not None and finding.detail["calls"] == 12


# --- a device, by hand


def on_device(*, idle: float, within: bool) -> Analysis:
    """Two turns of two training steps and an evaluation of two calls. The host launches a call each
    10 us, the device works 20 us on it, but for the last `idle`. `within`: each turn is one step,
    else calls are the steps."""
    maker = TraceMaker()
    for number in range(8):
        learns = number % 4 < 2
        host, device = 10 * number, 20 * number
        maker.module("", "Model", host, 4)
        maker.launch("gemm", start=host + 1, run=(device + 2, device + 20 - idle))
        maker.side(
            "root_calls",
            start_ns=host * 1000,
            end_ns=host * 1000 + 4000,
            thread=1,
            type="Model",
            generation=-1,
            batch=2,
            tokens=8,
            cached=0,
            fills=0,
            graded=int(learns),
            trains=int(learns),
            callers=json.dumps([["a.py", 7 if learns else 9, "main"]]),
        )
        if learns:
            maker.annotation("Optimizer.step#SGD.step", host + 6, 2)
        if within and number % 4 == 3:
            maker.annotation(f"ProfilerStep#{number // 4}", host - 30, 39)
    return analyze(maker.build())


@pytest.mark.parametrize("within", [False, True], ids=["calls", "within steps"])
def test_the_cost_is_the_time_of_the_device(within: bool) -> None:
    """What was launched before has to end first, and the last work ends long after the host."""
    finding = found(on_device(idle=0, within=within))
    assert finding is not None and finding.cost_ns == 2 * 40_000
    assert finding.where == Where("a.py", 9, "main")
    assert finding.detail["every_steps"] == (1 if within else 2)
    assert "idle" not in finding.advice


@pytest.mark.parametrize("within", [False, True], ids=["calls", "within steps"])
def test_larger_batches_are_advised_where_the_device_idles(within: bool) -> None:
    finding = found(on_device(idle=12, within=within))
    assert finding is not None and finding.detail["idle_ratio"] > 0.3
    assert "larger batches" in finding.advice


def test_ranges_of_the_user_name_an_evaluation_in_any_recording() -> None:
    maker = TraceMaker()
    for number in range(9):
        begin, learns = 100 * number, number % 3 < 2
        maker.annotation("train step" if learns else "evaluate", begin, 100)
        maker.launch("f", start=begin + 10, run=(begin + 20, begin + 80), operator="aten::mm")
        if learns:
            maker.operator("autograd::engine::evaluate_function: MmBackward0", begin + 40, 20)
    analysis = analyze(maker.build())
    assert analysis.steps["phase"].tolist() == ["training", "training", "evaluation"] * 3
    finding = found(analysis)
    assert finding is not None and finding.cost_ns == 3 * 100_000
    assert finding.title.startswith(
        "evaluation takes 33% of the time: after every 2 training steps"
    )
    assert finding.detail["calls"] == 0 and finding.where == Where()


def test_a_file_of_the_profiler_does_not_tell_which_calls_learn(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "train_lora_4layer.json.gz")
    assert found(analysis) is None and status(analysis) == "not_checked"


# --- the line


def chain(*lines: tuple[str, int]) -> str:
    return json.dumps([["loop.py", line, function] for function, line in lines])


TRAINS = chain(("loss_of", 3), ("train", 20), ("<module>", 40))


@pytest.mark.parametrize(
    ("mine", "where", "function"),
    [
        (chain(("loss_of", 3), ("test", 12), ("train", 25), ("<module>", 40)), 25, "test"),
        (chain(("test", 12), ("train", 25), ("<module>", 40)), 25, "test"),
        (chain(("train", 26), ("<module>", 40)), 26, ""),  # the loop calls the model itself
        (chain(("loss_of", 3), ("test", 12), ("<module>", 44)), 44, "test"),
        (chain(("loss_of", 3), ("test", 12), ("train", 20)), 12, "test"),  # on one line
        (chain(("<module>", 40)), 40, ""),  # a library's loop
    ],
)
def test_the_line_is_where_the_ways_part(mine: str, where: int, function: str) -> None:
    asked = asked_from([mine, mine, chain(("rare", 1))], [TRAINS] * 3)
    assert (asked.where.line, asked.function) == (where, function)


def test_nothing_is_known_of_calls_without_callers() -> None:
    assert asked_from(["", ""], [TRAINS]) == asked_from([], []) == Asked(Where(), "")
