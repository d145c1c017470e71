"""What a live trace says about what it could not record."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.live_models import OwnModel, prompt
from tracer import trace
from tracer.events import EVENTS, KIND_CODE, SIDE_TABLES, Trace, make_table
from tracer.live import building
from tracer.live.recorded import Recorded
from tracer.recorder import Recording


def launched(count: int) -> Trace:
    """A recording of launches without a device row."""
    values = {
        "kind": [KIND_CODE["runtime"]] * count,
        "name": ["cudaLaunchKernel"] * count,
        "start_ns": range(count),
    }
    return Trace(make_table(EVENTS, values))


def built(monkeypatch: pytest.MonkeyPatch, recorded: Recorded, profiled: Trace) -> Trace:
    monkeypatch.setattr(building, "_profiled", lambda recorded, notes: profiled)
    return building.build_trace(recorded)


def test_launches_without_device_rows_name_the_permission(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = built(monkeypatch, Recorded("modules", gpu=True), launched(200))
    (note,) = recorded.notes
    assert note.rule == "capture.no_device_events"
    assert note.message.startswith("200 launches recorded, 0 device events")
    assert "permission" in note.message
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_launches_here_are_not_said_to_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = built(monkeypatch, Recorded("modules", children=[5]), launched(3))
    assert recorded.notes == ()


def test_children_without_any_work_here_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = built(monkeypatch, Recorded("modules", children=[5, 7]), launched(0))
    (note,) = recorded.notes
    assert note.rule == "capture.no_gpu_work_here"
    assert "5, 7" in note.message
    assert note.detail == {"launches": 0, "pids": [5, 7]}


def test_a_call_of_a_model_here_is_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = make_table(SIDE_TABLES["root_calls"], {"start_ns": [5], "end_ns": [6]})
    monkeypatch.setattr(building, "_root_calls", lambda recorded: calls)
    recorded = built(monkeypatch, Recorded("modules", end_ns=9, children=[5]), launched(0))
    assert recorded.notes == ()


def test_a_trace_that_made_room_keeps_what_it_had() -> None:
    model = OwnModel()
    options: dict[str, Any] = {"detail": "light", "yields_to_traces": True}
    outer = Recording(options)
    with outer, torch.no_grad():
        model(prompt())
        model(prompt())
        with trace(detail="light") as inner:
            model(prompt())
    assert len(outer.trace.events) == 2
    assert [note.rule for note in outer.trace.notes] == ["capture.busy", "capture.light"]
    assert len(inner.trace.events) == 1
    assert [note.rule for note in inner.trace.notes] == ["capture.light"]
