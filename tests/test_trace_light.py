"""Detail light: the time of steps on the device from two marks each, without a profiler."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.live_models import OwnModel, prompt
from tests.make_traces import TraceMaker
from tracer import trace
from tracer.analyzers import analyze
from tracer.collectors.steps.announced_steps import Announced, steps_table
from tracer.collectors.steps.device_steps import DeviceSpan, DeviceSteps
from tracer.events import SIDE_TABLES, make_table
from tracer.exporters.sentence import verdict
from tracer.live.building import light_trace
from tracer.live.following import LiveView
from tracer.live.recorded import Recorded


@dataclass
class Clock:
    """A device whose marks pass at once; every mark takes a microsecond of its time."""

    now_ms: float = 0.0
    device: int | None = 0
    made: int = 0
    waits: int = 0
    marks: list[Mark] = field(default_factory=list)

    def current(self) -> int | None:
        return self.device

    def event(self) -> Mark:
        self.made += 1
        return Mark(self)


@dataclass(eq=False)
class Mark:
    """A mark on that device."""

    clock: Clock
    at_ms: float = -1.0

    def record(self) -> None:
        self.at_ms = self.clock.now_ms

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.clock.waits += 1

    def elapsed_time(self, end_event: Any, /) -> float:
        return float(np.float32(end_event.at_ms - self.at_ms))


def run_steps(clock: Clock, steps: DeviceSteps, times_ms: list[tuple[float, float]]) -> None:
    for begin, end in times_ms:
        clock.now_ms = begin
        steps.begin("call")
        clock.now_ms = end
        steps.end("call")


def lengths(spans: list[DeviceSpan]) -> list[int]:
    return [span.end_ns - span.start_ns for span in spans]


def test_lengths_and_gaps_of_steps() -> None:
    clock = Clock()
    steps = DeviceSteps(clock)
    run_steps(clock, steps, [(0.0, 2.0), (2.5, 4.0), (4.0, 9.0)])
    spans = steps.close()
    assert lengths(spans) == [2_000_000, 1_500_000, 5_000_000]
    assert spans[1].start_ns - spans[0].end_ns == 500_000
    assert clock.waits == 1


def test_the_device_is_tied_to_the_clock_of_the_host_at_its_end() -> None:
    clock = Clock()
    steps = DeviceSteps(clock)
    before_ns = time.time_ns()
    run_steps(clock, steps, [(0.0, 2.0)])
    clock.now_ms = 3.0
    (span,) = steps.close()
    assert before_ns <= span.end_ns + 1_000_000 <= time.time_ns()


def test_marks_are_used_again_and_long_runs_stay_exact() -> None:
    clock = Clock(now_ms=0.0)
    steps = DeviceSteps(clock)
    hour = [(i * 1000.0, i * 1000.0 + 0.001) for i in range(3600)]
    run_steps(clock, steps, hour)
    assert clock.made <= 2 * DeviceSteps.DRAIN_EVERY + 2
    assert set(lengths(steps.close())) == {1000}


def test_a_part_of_a_step_has_no_marks_of_its_own() -> None:
    clock = Clock()
    steps = DeviceSteps(clock)
    steps.begin("step")
    run_steps(clock, steps, [(1.0, 2.0), (2.0, 3.0)])
    clock.now_ms = 4.0
    steps.end("step")
    spans = steps.close()
    assert lengths(spans) == [4_000_000]
    assert [span.owner for span in spans] == ["step"]


def test_without_a_device_there_are_no_marks() -> None:
    clock = Clock(device=None)
    steps = DeviceSteps(clock)
    run_steps(clock, steps, [(0.0, 1.0)])
    assert steps.close() == []
    assert (clock.made, clock.waits) == (0, 0)


def test_a_step_that_ends_on_another_device_is_left_out() -> None:
    clock = Clock()
    steps = DeviceSteps(clock)
    steps.begin("call")
    clock.device = 1
    steps.end("call")
    clock.device = 0
    run_steps(clock, steps, [(1.0, 2.0)])
    assert lengths(steps.close()) == [1_000_000]


def test_each_device_has_a_chain_of_its_own() -> None:
    clock = Clock()
    steps = DeviceSteps(clock)
    run_steps(clock, steps, [(0.0, 1.0)])
    clock.device = 1
    run_steps(clock, steps, [(5.0, 7.0)])
    assert [(span.device, span.end_ns - span.start_ns) for span in steps.close()] == [
        (0, 1_000_000),
        (1, 2_000_000),
    ]


def empty_calls() -> Any:
    return make_table(SIDE_TABLES["root_calls"], {})


def test_device_time_stands_beside_its_step() -> None:
    recorded = Recorded("light", spans=[DeviceSpan(0, 130, 190, 95, "step")])
    steps = [Announced("a", "", 10, 50, 7), Announced("b", "", 100, 160, 7)]
    events = light_trace(recorded, steps, empty_calls()).events
    rows = events[["kind", "name", "start_ns", "duration_ns", "device", "external_id"]]
    assert [tuple(row) for row in rows.to_numpy()] == [
        ("annotation", "a", 10, 40, -1, 0),
        ("annotation", "b", 100, 60, -1, 1),
        ("device_annotation", "b", 130, 60, 0, 1),
    ]


def test_calls_of_models_are_the_steps_where_none_was_announced() -> None:
    calls = make_table(
        SIDE_TABLES["root_calls"],
        {
            "root": ["", ""],
            "type": ["Model", "Model"],
            "start_ns": [10, 30],
            "end_ns": [20, 50],
            "thread": [7, 7],
        },
    )
    spans = [DeviceSpan(0, 12, 22, 9, "call"), DeviceSpan(0, 40, 41, 35, "step")]
    events = light_trace(Recorded("light", spans=spans), [], calls).events
    assert list(events["name"]) == ["module::::Model"] * 3
    assert list(events["kind"]) == ["module", "device_annotation", "module"]
    assert list(events["external_id"]) == [0, 0, 1]


def test_nothing_happened() -> None:
    assert len(light_trace(Recorded("light"), [], empty_calls()).events) == 0


@pytest.mark.parametrize("announced", [True, False])
def test_a_light_trace_has_step_times_and_no_breakdown(announced: bool) -> None:
    model = OwnModel()
    with trace(detail="light") as t, torch.no_grad():
        for _ in range(5):
            if announced:
                with t.step("decode"):
                    model(prompt())
            else:
                model(prompt())
    report = t.report.json()
    assert len(report["steps"]) == 5
    assert all(step["wall_ns"] > 0 for step in report["steps"])
    assert all(step["busy_ns"] is None for step in report["steps"])
    assert report["breakdown"] is None
    assert report["integrity"]["status"] == "complete"
    (note,) = report["integrity"]["notes"]
    assert note["rule"] == "capture.light"
    assert note["message"] == t.analysis.breakdown_reason
    assert t.trace.meta.detail == "light"


def test_steps_that_are_only_timed_have_no_bar() -> None:
    """An empty one would look like a device that is idle."""
    model = OwnModel()
    with trace(detail="light") as t, torch.no_grad():
        for _ in range(5):
            with t.step("decode"):
                model(prompt())
    lines = str(t.report).splitlines()
    at = lines.index("PHASES")
    assert lines[at + 1].split() == ["median", "p95", "steps", "tok/s"]
    assert lines[at + 2].split()[0] == "decode" and lines[at + 2].split()[-2] == "5"
    assert not any(sign in line for line in lines for sign in "▕▏")


def test_what_lies_between_calls_may_be_the_rest_of_training_steps() -> None:
    model = torch.nn.Linear(4, 4)
    with trace(detail="light") as t:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            time.sleep(0.02)
    said = verdict(t.analysis)
    assert "lie between the calls of the model, with any backward pass and optimizer; " in said
    assert "a forward pass takes" in said


def test_roots_get_their_names_at_the_end() -> None:
    model = OwnModel()
    with trace(detail="light") as t, torch.no_grad():
        for _ in range(3):
            x = model.embedding(prompt())
            model.layers[0](x)
            model(prompt())
    calls = t.trace.table("root_calls")
    assert set(calls["root"]) == {"embedding", "layers.0", ""}
    assert "layers.1.attention" in set(t.trace.table("model_modules")["path"])


def test_a_root_that_is_freed_early_is_known_but_for_its_modules() -> None:
    with trace(detail="light") as t, torch.no_grad():
        for _ in range(3):
            OwnModel()(prompt())
    assert list(t.trace.table("model_modules")["parameters"]) == [-1, -1, -1]
    assert list(t.trace.table("root_calls")["type"]) == ["OwnModel"] * 3
    assert [model["type"] for model in t.trace.meta.facts["models"]] == ["OwnModel"] * 3


def test_a_running_trace_tells_what_it_knows_so_far() -> None:
    model = OwnModel().eval()
    with trace(detail="light") as t, torch.no_grad():
        assert t._capture is not None
        view = LiveView(t._capture)
        assert view() is None
        model(prompt())
        model(prompt())
        known = view()
        assert known is not None and len(known.steps) == 2
        assert view() is None
        model(prompt())
        known = view()
        assert known is not None and len(known.steps) == 3


def test_a_running_trace_with_the_profiler_says_that_more_will_come() -> None:
    with trace(detail="modules") as t, torch.no_grad():
        assert t._capture is not None
        OwnModel().eval()(prompt())
        known = LiveView(t._capture)()
    assert known is not None and "still runs" in known.breakdown_reason
    assert "capture.goes_on" in {note.rule for note in known.notes}
    assert "light" not in str(known.notes)
    assert verdict(known).endswith(f". The{known.breakdown_reason.removeprefix('the')}.")


def test_a_step_lasts_until_the_device_has_done_its_work() -> None:
    spans = [
        DeviceSpan(0, 1_000, 13_000, -1, "step"),
        DeviceSpan(0, 13_000, 25_000, 4_999, "step"),
    ]
    steps = [Announced("decode", "", 0, 5_000, 7), Announced("decode", "", 5_000, 9_000, 7)]
    recorded = Recorded("light", spans=spans)
    trace_ = light_trace(recorded, steps, empty_calls())
    tables = {**trace_.tables, "announced_steps": steps_table(steps)}
    meta = replace(trace_.meta, detail="light")
    found = analyze(replace(trace_, tables=tables, meta=meta)).steps
    assert list(found["start_ns"]) == [0, 13_000]
    assert list(found["wall_ns"]) == [13_000, 12_000]


def test_marks_and_kernels_of_a_device_give_the_same_steps() -> None:
    """A host that runs ahead: each call launches 28 us of work, and its loop 2 us of sampling."""
    maker = TraceMaker()
    calls, spans = [], []
    for row in range(3):
        host, device = 20 * row, 2 + 30 * row
        maker.module("", "Model", host, 10)
        maker.launch("gemm", start=host + 1, run=(device, device + 28), operator="aten::mm")
        maker.launch("argmax", start=host + 12, run=(device + 28, device + 30))
        calls.append((host * 1000, host * 1000 + 10_000))
        spans.append(DeviceSpan(0, device * 1000, device * 1000 + 28_000, host * 1000 - 1, "call"))
    starts, ends = zip(*calls, strict=True)
    columns = {"start_ns": starts, "end_ns": ends, "thread": [7] * 3, "type": ["Model"] * 3}
    table = make_table(SIDE_TABLES["root_calls"], {**columns, "root": [""] * 3})
    light = light_trace(Recorded("light", spans=spans), [], table)
    light = replace(light, meta=replace(light.meta, detail="light"))
    times = [
        list(zip(steps["start_ns"], steps["wall_ns"], strict=True))
        for steps in (analyze(light).steps, analyze(maker.build()).steps)
    ]
    assert times[0] == times[1] == [(0, 30_000), (30_000, 30_000), (60_000, 30_000)]
