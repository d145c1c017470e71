"""Attention of calls of a model that the recorder did not look at."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.live_models import decoder, prompt
from tests.make_traces import TraceMaker
from tracer import trace
from tracer.analyzers.pipeline import work_of
from tracer.analyzers.rules.attention_arguments import AttentionCalls
from tracer.events import Trace

pytestmark = pytest.mark.usefixtures("one_thread", "quietly")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that other tests left would be taken for some that call models."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])


NAME = "aten::scaled_dot_product_attention"
FLASH = "aten::_scaled_dot_product_flash_attention"
MATH = "aten::_scaled_dot_product_attention_math"


def lines_of(recorded: Trace) -> list[int | None]:
    """The line that called each attention, in order; None where nothing tells."""
    calls = AttentionCalls(work_of(recorded))
    rows = np.flatnonzero(recorded.named(lambda name: name == NAME, "operator")).tolist()
    return [None if (place := calls.line(row)) is None else place.line for row in rows]


def called(*calls: tuple[str, int | None], **unlike: list[int]) -> Trace:
    """Calls of one model, each with one attention: the operator that it runs and, if the recorder
    looked at it, the line."""
    maker = TraceMaker()
    for number, (inner, line) in enumerate(calls):
        at = 1000.0 * number
        maker.operator(NAME, at + 100, 50)
        maker.operator(inner, at + 110, 30)
        if line is not None:
            maker.side(
                "attention_calls",
                time_ns=round((at + 90) * 1000),
                thread=1,
                arguments="{}",
                refused="",
                file="model.py",
                line=line,
                function="attend",
            )
        facts = {"batch": 1, "tokens": 1, "cached": 1, "graded": 0, "trains": 0, "fills": 1}
        facts.update({name: values[number] for name, values in unlike.items()})
        maker.side(
            "root_calls",
            root="",
            type="Model",
            start_ns=round(at * 1000),
            end_ns=round((at + 900) * 1000),
            thread=1,
            call="forward",
            generation=-1,
            part="",
            callers="[]",
            **facts,
        )
    return maker.build()


def test_a_call_is_told_by_its_like() -> None:
    seen, bare = (FLASH, 7), (FLASH, None)
    assert lines_of(called(bare, seen, bare, bare)) == [None, 7, 7, 7]


def test_another_operator_is_not_told() -> None:
    assert lines_of(called((FLASH, 7), (MATH, None), (FLASH, None))) == [7, None, 7]


def test_calls_with_more_to_do_are_no_like() -> None:
    seen, bare = (FLASH, 7), (FLASH, None)
    assert lines_of(called(seen, bare, bare, tokens=[1, 9, 1])) == [7, None, 7]
    assert lines_of(called(seen, bare, bare, trains=[0, 0, 1])) == [7, 7, None]


def test_between_calls_that_differ_nothing_is_told() -> None:
    bare = (FLASH, None)
    seen = lines_of(called((FLASH, 7), bare, (FLASH, 8), bare, bare, (FLASH, 8)))
    assert seen == [7, None, 8, 8, 8, 8]


CALLS = 21


@pytest.mark.usefixtures("alone")
def test_a_model_called_alike_is_looked_at_now_and_then() -> None:
    model = decoder("llama")
    with trace() as t, torch.no_grad():
        for _ in range(CALLS):
            model(prompt())
    layers = len(model.model.layers)
    assert len(t.trace.table("attention_calls")) == (4 + 2) * layers
    found = lines_of(t.trace)
    assert len(found) == CALLS * layers
    assert len(set(found)) == 1 and None not in found


def test_calls_outside_a_model_and_of_other_sizes_are_all_noted() -> None:
    model, query = decoder("llama"), torch.randn(1, 2, 4, 8)
    original = functional.scaled_dot_product_attention
    with trace() as t, torch.no_grad():
        for length in range(2, 14):
            model(prompt()[:, :length])
            functional.scaled_dot_product_attention(query, query, query)
    assert functional.scaled_dot_product_attention is original
    table = t.trace.table("attention_calls")
    layers = len(model.model.layers)
    assert len(table) >= 12 + 4 * layers
    assert int((table["file"] == __file__).sum()) == 12


@pytest.mark.usefixtures("alone")
def test_a_call_that_fails_does_not_silence_the_next() -> None:
    class Attends(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(8, 8)

        def forward(self, ids: torch.Tensor, fail: bool) -> torch.Tensor:
            if fail:
                raise LookupError("mine")
            x = self.weight(torch.ones(*ids.shape, 8))[None]
            return functional.scaled_dot_product_attention(x, x, x)

    model, query = Attends(), torch.randn(1, 2, 4, 8)
    ids = torch.ones(1, 3, dtype=torch.long)
    with trace() as t, torch.no_grad():
        for number in range(7):
            if number < 6:
                model(ids, False)
                continue
            with pytest.raises(LookupError):
                model(ids, True)
        functional.scaled_dot_product_attention(query, query, query)
    assert len(t.trace.table("attention_calls")) == 4 + 1
