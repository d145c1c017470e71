"""Steps measured without the profiler in the same loop, and what follows for the report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import schedule

from tests.live_models import OwnModel, prompt
from tests.make_traces import TraceMaker
from tracer import trace
from tracer.analyzers import analyze
from tracer.collectors.steps.calibration import FIRST_STEPS, WAITING_STEPS, Calibration
from tracer.collectors.steps.device_steps import Event
from tracer.errors import UsageError
from tracer.recorder import Recording

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model() -> nn.Module:
    return OwnModel()


def forward(model: nn.Module, steps: int = 1) -> None:
    with torch.no_grad():
        for _ in range(steps):
            model(prompt())


def unprofiled(recording: Recording) -> int:
    return len(recording.trace.table("unprofiled_steps"))


@pytest.mark.parametrize("blocks", [True, False])
def test_wait_steps_of_a_schedule_are_measured(model: nn.Module, blocks: bool) -> None:
    with trace(schedule=schedule(wait=4, warmup=1, active=3)) as t:
        for _ in range(10):
            if blocks:
                with t.step():
                    forward(model)
            else:
                forward(model)
                t.step()
    observer = t.analysis.observer
    assert observer is not None
    assert unprofiled(t) == (3 if blocks else 2)  # the first half pays for first use
    assert observer.profiled_step_ns > 0
    assert observer.unprofiled_step_ns > 0
    assert t.report["observer"]["inflation_ratio"] == observer.inflation_ratio


def test_steps_under_the_profiler_are_not_taken_for_others(model: nn.Module) -> None:
    with trace(schedule=schedule(wait=0, warmup=1, active=2)) as t:
        for _ in range(6):
            with t.step():
                forward(model)
    assert unprofiled(t) == 0
    assert t.analysis.observer is None
    assert "calibrate=True" in t.analysis.observer_reason


def test_calibrate_measures_calls_of_the_model_before_it_records(model: nn.Module) -> None:
    with trace(calibrate=True) as t:
        forward(model, 12)
    observer = t.analysis.observer
    assert observer is not None
    assert unprofiled(t) == WAITING_STEPS - FIRST_STEPS
    assert len(t.analysis.steps) == 12 - WAITING_STEPS
    assert t.trace.notes == ()


def test_calibrate_measures_announced_steps(model: nn.Module) -> None:
    with trace(calibrate=True) as t:
        for _ in range(10):
            with t.step("decode"):
                forward(model, 2)
    assert unprofiled(t) == WAITING_STEPS - FIRST_STEPS
    assert len(t.analysis.steps) == 10 - WAITING_STEPS
    assert t.analysis.observer is not None


def test_a_block_too_short_to_calibrate_is_said(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    with trace(calibrate=True) as t:
        forward(model, 3)
    (note,) = [note for note in t.trace.notes if note.rule == "capture.no_steps"]
    assert note.detail == {"measured": 3, "needed": WAITING_STEPS}
    assert "capture.no_steps" in caplog.text
    assert t.trace.rows("operator").size == 0


@pytest.mark.parametrize(
    "arguments",
    [{"schedule": schedule(wait=1, warmup=1, active=1)}, {"detail": "light"}],
    ids=["schedule", "light"],
)
def test_calibrate_needs_the_profiler_for_itself(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        trace(calibrate=True, **arguments)


# --- on a device, which a stand-in plays ------------------------------------------------------


class FakeEvent:
    """A mark that passes so many milliseconds after the one before it."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.at_ms = device, 0.0

    def record(self) -> None:
        self.device.now_ms += self.device.step_ms
        self.at_ms = self.device.now_ms

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.device.waits += 1

    def elapsed_time(self, end_event: Event, /) -> float:
        assert isinstance(end_event, FakeEvent)
        return end_event.at_ms - self.at_ms


class FakeDevice:
    """A device on which a step takes `step_ms`, however far ahead the host is."""

    def __init__(self, step_ms: float) -> None:
        self.step_ms, self.now_ms, self.waits = step_ms, 0.0, 0
        self.ready = False

    def current(self) -> int | None:
        return 0 if self.ready else None

    def event(self) -> Event:
        return FakeEvent(self)


def test_on_a_device_its_own_clock_counts_and_it_waits_once() -> None:
    device = FakeDevice(8.25)
    calibration = Calibration(gpu=True, device=device)
    calibration.mark()  # before the program has used the device
    device.ready = True
    for _ in range(4):
        calibration.mark()
    assert [end - start for start, end in calibration.close()] == [8_250_000] * 2
    assert device.waits == 1
    assert calibration.close() == []


# --- the comparison ---------------------------------------------------------------------------


def training_trace(calls: int, unprofiled_us: float) -> TraceMaker:
    """Steps of 1 ms with so many calls of the model each."""
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        maker.operator("autograd::engine::evaluate_function: MmBackward0", at + 500, 100)
        maker.launch("k", start=at + 10, run=(at + 20, at + 400), operator="aten::mm")
        for call in range(calls):
            start_ns = round((at + 10 + 100 * call) * 1000)
            times = {"start_ns": start_ns, "end_ns": start_ns + 1000}
            maker.side("root_calls", type="M", root="m", graded=1, **times)
    for row in range(4):
        start = round(row * unprofiled_us * 1000)
        end = round((row + 1) * unprofiled_us * 1000)
        maker.side("unprofiled_steps", start_ns=start, end_ns=end, phase="forward", calls=1)
    return maker


@pytest.mark.parametrize(("calls", "wanted_us"), [(1, 400), (2, 800)])
def test_a_step_lasts_as_long_as_the_calls_that_it_holds(calls: int, wanted_us: int) -> None:
    observer = analyze(training_trace(calls, 400).build()).observer
    assert observer is not None
    assert observer.unprofiled_step_ns == wanted_us * 1000


def test_steps_of_another_phase_are_no_comparison() -> None:
    maker = training_trace(1, 400)
    for row in maker.side_rows["unprofiled_steps"]:
        row["phase"] = "decode"
    analysis = analyze(maker.build())
    assert analysis.observer is None
    assert "another phase" in analysis.observer_reason


def test_time_between_steps_belongs_to_the_stopwatch() -> None:
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 800)
        maker.launch("k", start=at + 10, run=(at + 20, at + 790), operator="aten::mm")
        maker.side("unprofiled_steps", start_ns=at * 900, end_ns=at * 900 + 900_000)
    observer = analyze(maker.build()).observer
    assert observer is not None
    assert observer.profiled_step_ns == 1_000_000
    assert sum(observer.scaled.values()) == 900_000
