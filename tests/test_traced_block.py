"""The traced block beside its steps: nothing of its time is left unsaid."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tracer import trace
from tracer.exporters.json_report import to_report
from tracer.live.options import Detail
from tracer.recorder import Recording
from tracer.store import load_run

BEFORE_S, BETWEEN_S, AFTER_S = 0.08, 0.02, 0.12


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))


def loop(model: nn.Module, detail: Detail) -> Recording:
    """Four calls, with time before, between and after them."""
    ids = torch.randint(9, (2, 4))
    with torch.no_grad(), trace(detail=detail, metrics=False) as t:
        time.sleep(BEFORE_S)
        for _ in range(4):
            model(ids)
            time.sleep(BETWEEN_S)
        time.sleep(AFTER_S)
    return t


def seconds(ns: int) -> float:
    return ns / 1e9


@pytest.mark.parametrize("detail", ["light", "modules"])
def test_the_time_of_a_block_is_all_accounted_for(model: nn.Module, detail: Detail) -> None:
    report = loop(model, detail).report.json()
    block, window, steps = report["block"], report["window"], report["steps"]
    in_steps = sum(step["wall_ns"] for step in steps)
    assert block["before_ns"] + window["wall_ns"] + block["after_ns"] == block["wall_ns"]
    assert block["outside_steps_ns"] + in_steps == block["wall_ns"]
    assert seconds(block["before_ns"]) >= BEFORE_S
    assert seconds(block["after_ns"]) >= AFTER_S
    assert seconds(window["between_steps_ns"]) >= 3 * BETWEEN_S


@pytest.mark.parametrize("detail", ["light", "modules"])
def test_steps_of_calls_say_what_runs_between_them(model: nn.Module, detail: Detail) -> None:
    t = loop(model, detail)
    (phase,) = t.report.json()["phases"].values()
    assert seconds(phase["period_ns"]) >= BETWEEN_S > seconds(phase["median_ns"])
    text = " ".join(str(t.report).split())
    assert "what runs between the calls, such as sampling or preparing the next batch" in text
    assert "before the first step" in text and "in 4 steps" in text


@pytest.mark.parametrize("detail", ["light", "kernels", "modules", "full"])
def test_a_step_is_its_call_at_every_detail(model: nn.Module, detail: Detail) -> None:
    ids = torch.randint(9, (2, 4))
    with torch.no_grad(), trace(detail=detail, metrics=False) as t:
        for _ in range(4):
            logits = model(ids)[:, -1]
            torch.multinomial(logits.softmax(-1), 1)
    calls, steps = t.trace.table("root_calls"), t.analysis.steps
    assert steps["start_ns"].tolist() == calls["start_ns"].tolist()
    assert (steps["start_ns"] + steps["wall_ns"]).tolist() == calls["end_ns"].tolist()


def test_announced_steps_hold_what_runs_between_calls(model: nn.Module) -> None:
    ids = torch.randint(9, (2, 4))
    with torch.no_grad(), trace(detail="light") as t:
        for _ in range(4):
            with t.step("decode"):
                model(ids)
                time.sleep(BETWEEN_S)
    (phase,) = t.report.json()["phases"].values()
    assert seconds(phase["median_ns"]) >= BETWEEN_S
    assert "start to start" not in str(t.report)


@pytest.mark.parametrize(("detail", "seen"), [("light", "No step and no"), ("modules", "No work")])
def test_a_block_without_work_is_not_taken_for_no_time(detail: Detail, seen: str) -> None:
    with trace(detail=detail) as t:
        time.sleep(BEFORE_S)
    block: dict[str, Any] = t.report.json()["block"]
    assert block["before_ns"] == block["outside_steps_ns"] == block["wall_ns"]
    assert seconds(block["wall_ns"]) >= BEFORE_S
    assert str(t.report).startswith(seen)
    assert "nothing was recorded in it" in str(t.report)


def test_a_saved_run_keeps_its_block(model: nn.Module, tmp_path: Path) -> None:
    from tracer.analyzers import analyze

    t = loop(model, "modules")
    t.save(tmp_path / "run")
    assert to_report(analyze(load_run(tmp_path / "run")))["block"] == t.report.json()["block"]
