"""Detail light: a training step ends with its optimizer's, without a profiler that says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from tracer import trace
from tracer.analyzers import analyze
from tracer.collectors.steps.device_steps import DeviceSpan, DeviceSteps
from tracer.collectors.steps.optimizer_steps import OptimizerSteps
from tracer.events import SIDE_TABLES, make_table
from tracer.exporters.sentence import verdict
from tracer.live.building import light_trace
from tracer.live.following import LiveView
from tracer.live.recorded import Recorded

pytestmark = pytest.mark.usefixtures("one_thread")


def train(steps: int, *, passes: int = 1, after: int = 0, optimizers: int = 1) -> None:
    """Steps of accumulated passes, and an evaluation after all of them."""
    net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(2, 8)
    learners = [torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(optimizers)]
    for _ in range(steps):
        for _ in range(passes):
            net(x).sum().backward()
        for learner in learners:
            learner.step()
    net.eval()
    with torch.no_grad():
        for _ in range(after):
            net(x)


def phases(t: Any) -> dict[str, int]:
    counted = t.analysis.steps["phase"].astype(str).value_counts(sort=False)
    return {str(name): int(count) for name, count in counted.items()}


@pytest.mark.parametrize("detail", ["light", "modules"])
@pytest.mark.parametrize(("passes", "optimizers"), [(1, 1), (3, 1), (1, 2)])
def test_each_detail_has_the_same_training_steps(detail: Any, passes: int, optimizers: int) -> None:
    with trace(detail=detail) as t:
        train(4, passes=passes, after=2, optimizers=optimizers)
    assert phases(t) == {"training": 4, "evaluation": 2}
    assert [note.rule for note in t.trace.notes if note.rule == "capture.failed"] == []


def test_a_training_step_holds_its_optimizer() -> None:
    with trace(detail="light") as t:
        train(3)
    events, steps = t.trace.events, t.analysis.steps
    ends = events[events["name"] == "Optimizer.step#SGD.step"]["start_ns"].tolist()
    assert len(ends) == 3
    for end, step in zip(ends, steps.to_dict("records"), strict=True):
        assert step["announced_ns"] < end < step["host_end_ns"]
    assert "a training step takes" in verdict(t.analysis).lower()
    assert "with any backward pass" not in verdict(t.analysis)


def test_an_announced_step_that_learns_is_training() -> None:
    net, x = nn.Linear(8, 4), torch.ones(2, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with trace(detail="light") as t:
        for i in range(4):
            with t.step():
                out = net(x).sum()
                if i < 2:
                    out.backward()
                    optimizer.step()
    assert t.analysis.steps["phase"].tolist() == ["training"] * 2 + [""] * 2


def test_nobody_is_told_of_steps_once_the_trace_has_ended() -> None:
    for detail in ("light", "modules"):
        with trace(detail=detail) as t:
            assert len(_global_optimizer_post_hooks) == int(detail == "light")
            train(1)
        assert not _global_optimizer_post_hooks and phases(t) == {"training": 1}


def test_a_running_trace_tells_of_training_steps() -> None:
    with trace(detail="light") as t:
        train(3)
        assert t._capture is not None
        known = LiveView(t._capture)()
        train(1)
    assert known is not None and known.steps["phase"].tolist() == ["training"] * 3


def test_a_step_that_fails_is_the_programs_own_affair() -> None:
    def failing() -> float:
        raise ValueError("no loss")

    net, x = nn.Linear(8, 4), torch.ones(2, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with trace(detail="light") as t:
        net(x).sum().backward()
        with pytest.raises(ValueError, match="no loss"):
            optimizer.step(failing)
        optimizer.step()
    assert phases(t) == {"training": 1}


class Device:
    """A device whose marks pass a millisecond after each other."""

    def __init__(self) -> None:
        self.marks = 0

    def current(self) -> int | None:
        return 0

    def event(self) -> DeviceMark:
        return DeviceMark(self)


class DeviceMark:
    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, -1

    def record(self) -> None:
        self.device.marks += 1
        self.at_ms = self.device.marks

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def elapsed_time(self, end_event: Any, /) -> float:
        return float(end_event.at_ms - self.at_ms)


def test_the_end_of_the_optimizers_step_is_marked_on_the_device() -> None:
    device = Device()
    marks = DeviceSteps(device)
    notes = OptimizerSteps(marks, lambda what, error: pytest.fail(f"{what}: {error}"))
    notes.start()
    train(2)
    notes.close()
    spans = marks.close()
    assert [(span.owner, span.end_ns - span.start_ns) for span in spans] == [
        ("optimizer", 1_000_000)
    ] * 2
    table = notes.table()
    assert all(s.host_ns <= row for s, row in zip(spans, table["start_ns"], strict=True))


def test_a_training_step_lasts_until_the_device_has_changed_the_weights() -> None:
    """The host has launched a step long before the device has done it."""
    calls, ends, spans = [], [], []
    for row in range(2):
        host, device = 20_000 * row, 100_000 * row
        calls.append((host, host + 5_000))
        ends.append((host + 15_000, host + 15_010))
        spans.append(DeviceSpan(0, device + 1_000, device + 30_000, host - 1, "call"))
        spans.append(DeviceSpan(0, device + 99_000, device + 100_000, host + 14_999, "optimizer"))
    recorded = Recorded("light", end_ns=1_000_000, spans=spans, optimizers=_ends(ends))
    columns = {"start_ns": [c[0] for c in calls], "end_ns": [c[1] for c in calls]}
    same = {"thread": [7, 7], "type": ["Model"] * 2, "root": [""] * 2, "graded": [1, 1]}
    table = make_table(SIDE_TABLES["root_calls"], {**columns, **same})
    made = light_trace(recorded, [], table)
    made = replace(made, tables={**made.tables, "root_calls": table})
    steps = analyze(replace(made, meta=replace(made.meta, detail="light"))).steps
    assert steps["phase"].tolist() == ["training"] * 2
    assert steps["start_ns"].tolist() == [0, 100_000]
    assert steps["wall_ns"].tolist() == [100_000, 100_000]


def _ends(times: list[tuple[int, int]]) -> pd.DataFrame:
    rows = [(start, end, 7, "Optimizer.step#SGD.step") for start, end in times]
    return pd.DataFrame(rows, columns=pd.Index(["start_ns", "end_ns", "thread", "name"]))


def test_a_compiled_step_of_an_optimizer_is_compiled_as_without_us() -> None:
    net, x = nn.Linear(8, 4), torch.ones(2, 8)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    found = []
    for traced in (False, True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = torch.compile(optimizer.step, backend="aot_eager")
        counters.clear()
        with trace(detail="light" if traced else "kernels") as t:
            for _ in range(3):
                net(x).sum().backward()
                step()
        net(x).sum().backward()
        step()
        found.append(dict(counters["stats"]) | {"breaks": sum(counters["graph_break"].values())})
        assert len(t.analysis.steps) == 3
        torch._dynamo.reset()
    assert found[0] == found[1]
