"""Calls of a model that rest: their modules are those of the calls that were looked at."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.live_models import decoder, prompt
from tracer import trace
from tracer.analyzers.facts.host import read_host
from tracer.collectors.modules.looks import EVERY, FIRST_CALLS
from tracer.collectors.modules.module_ranges import ModuleRanges
from tracer.collectors.modules.root_calls import OpenCall
from tracer.events import Trace
from tracer.store import load_run

CALLS = 2 * EVERY + 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(nn.functional.silu(self.up(self.norm(x))))
        return out


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.chosen = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Routed(Stack):
    """One layer of three, of the same operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers[self.chosen[0]](x)
        return out


def recorded(model: nn.Module, step: Callable[[int], object], calls: int = CALLS) -> Trace:
    with trace() as t:
        for number in range(calls):
            step(number)
    return t.trace


def modules_of_calls(run: Trace) -> list[list[tuple[str, str]]]:
    """For each call of the model its outermost operators in order, with the module of each."""
    host = read_host(run)
    module = host.module
    rows = run.rows("operator")
    outermost = rows[host.outer_operator[rows] == rows]
    table = run.table("root_calls")
    out = []
    for start_ns, end_ns in table[["start_ns", "end_ns"]].to_numpy().tolist():
        inside = outermost[
            (run.start_ns[outermost] >= start_ns) & (run.start_ns[outermost] < end_ns)
        ]
        out.append([(run.names[run.name_codes[r]], name_of(run, int(module[r]))) for r in inside])
    return out


def name_of(run: Trace, row: int) -> str:
    return "" if row < 0 else run.names[run.name_codes[row]]


def test_a_call_that_rested_has_the_modules_of_one_that_was_looked_at() -> None:
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        run = recorded(model, lambda _: model(x))
    calls = modules_of_calls(run)
    assert len(calls) == CALLS
    assert len({name for _, name in calls[0]}) > 6
    assert all(call == calls[0] for call in calls)
    assert set(Counter(names_of_modules(run)).values()) == {CALLS}


def names_of_modules(run: Trace) -> list[str]:
    return [run.names[code] for code in run.name_codes[run.rows("module")]]


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each call whether it rested; complete when the recording has ended."""
    seen: list[int] = []
    close = ModuleRanges.close

    def closed(ranges: ModuleRanges) -> None:
        seen.extend(ranges.looks.table()["rests"])
        close(ranges)

    monkeypatch.setattr(ModuleRanges, "close", closed)
    return seen


def test_calls_rest(rests: list[int]) -> None:
    """What the other tests are about happens: of nineteen calls six are looked at."""
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    recorded(model, lambda _: model(x))
    assert rests, threading.enumerate()
    assert [i for i, rested in enumerate(rests) if not rested] == [*range(FIRST_CALLS), 8, 16]


def test_decoding_rests_though_its_cache_grows(rests: list[int]) -> None:
    model = decoder("llama")
    with torch.no_grad(), trace(model):
        model.generate(prompt(), max_new_tokens=20, min_new_tokens=20, do_sample=False)
    assert len(rests) == 20
    # The prompt is of a kind of its own.
    decodes = [*range(1, 1 + FIRST_CALLS), 9, 17]
    assert [i for i, rested in enumerate(rests) if not rested] == [0, *decodes]


def test_ranges_that_are_told_stand_around_their_operators() -> None:
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    run = recorded(model, lambda _: model(x))
    rows = run.rows("module")
    spans = sorted(zip(run.start_ns[rows].tolist(), run.end_ns[rows].tolist(), strict=True))
    open_until: list[int] = []
    for start, end in spans:
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)
    assert (np.diff(run.start_ns) >= 0).all()
    assert all(a <= b for a, b in pairwise(run.start_ns.tolist()))


def test_a_call_of_other_modules_is_told_by_none() -> None:
    """The operators are the same, and the modules are not: what was looked at says nothing."""
    model, x = Routed().eval(), torch.randn(2, 5, 16)

    def step(number: int) -> None:
        model.chosen[0] = int(number in (5, 7))
        model(x)

    run = recorded(model, step)
    told = [{name for _, name in call if "layers" in name} for call in modules_of_calls(run)]
    for number, names in enumerate(told):
        wanted = f"layers.{int(number in (5, 7))}"
        assert all(wanted in name for name in names), (number, names)
    assert "capture.modules_untold" in [note.rule for note in run.notes]


def test_a_router_is_always_looked_at() -> None:
    model, x = Routed().eval(), torch.randn(2, 5, 16)

    def step(number: int) -> None:
        model.chosen[0] = number % 3
        model(x)

    run = recorded(model, step)
    for number, call in enumerate(modules_of_calls(run)):
        assert any(f"layers.{number % 3}." in name for _, name in call)
    assert "capture.modules_untold" not in [note.rule for note in run.notes]


def test_a_call_that_runs_other_operators_is_told_by_none() -> None:
    model = Stack().eval()
    x = torch.randn(2, 5, 16)
    late = [False]
    model.layers[1].register_forward_hook(lambda *_: torch.sin(x) if late[0] else None)

    def step(number: int) -> None:
        late[0] = number == 6
        model(x)

    run = recorded(model, step)
    calls = modules_of_calls(run)
    assert {name for _, name in calls[6] if "layers" in name} == set()
    assert calls[5] == calls[7] == calls[0]
    (note,) = [note for note in run.notes if note.rule == "capture.modules_untold"]
    assert note.count == 1


def test_tables_stay_with_their_events(tmp_path: Path) -> None:
    """Rows are put between others: a training step has sequences of autograd."""
    model, x = Stack(), torch.randn(2, 5, 16)
    with trace() as t:
        for _ in range(CALLS):
            model(x).sum().backward()
    run = t.trace
    at = run.table("sequences")["event"].to_numpy()
    assert {run.names[code] for code in run.name_codes[at]} & {"aten::addmm", "aten::linear"}
    assert (run.kind_codes[at] == run.kind_codes[at[0]]).all()
    path = tmp_path / "t"
    t.save(path)
    again = load_run(path)
    assert Counter(names_of_modules(again)) == Counter(names_of_modules(run))
    assert modules_of_calls(again) == modules_of_calls(run)


def test_calls_before_the_recording_are_no_looks() -> None:
    """A schedule waits: the calls meanwhile wrote no ranges."""
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    with trace(schedule=torch.profiler.schedule(wait=6, warmup=1, active=7)) as t:
        for _ in range(14):
            with t.step("decode"):
                model(x)
    counts = Counter(names_of_modules(t.trace))
    assert counts and set(counts.values()) == {7}


class Experts(Stack):
    """As many layers as a router says, in a loop of its own: no module is called for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.chosen[0] + 1):
            x = torch.sin(x)
        return super().forward(x)


def test_a_model_with_experts_never_rests() -> None:
    experts, x = Experts(), torch.randn(2, 5, 16)
    model = nn.Sequential(experts, nn.Linear(16, 16)).eval()

    def step(number: int) -> None:
        experts.chosen[0] = number % 3
        model(x)

    run = recorded(model, step)
    assert set(Counter(names_of_modules(run)).values()) == {CALLS}
    assert "capture.modules_untold" not in [note.rule for note in run.notes]


class Pooled(Stack):
    """Its first layer runs on a thread of a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.pool.submit(self.layers[0], x).result()
        out: torch.Tensor = self.layers[2](self.layers[1](y))
        return out


def test_a_call_on_several_threads_is_always_looked_at() -> None:
    model, x = Pooled().eval(), torch.randn(2, 5, 16)
    with model.pool:
        run = recorded(model, lambda _: model(x))
    assert set(Counter(names_of_modules(run)).values()) == {CALLS}


class Sines(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


class Waves(nn.Module):
    """Of the same operator as `Sines`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


def test_a_module_that_is_replaced_is_not_taken_for_the_one_before() -> None:
    """It may get the number that the other had in memory."""
    model, x = nn.Sequential(Sines(), nn.Linear(16, 16)), torch.randn(2, 16)

    def step(number: int) -> None:
        if number == 6:
            del model[0]
            model.insert(0, Waves())
        model(x)

    run = recorded(model, step)
    kinds = Counter(name.rpartition("::")[2] for name in names_of_modules(run))
    assert kinds["Sines"] == 6
    assert kinds["Waves"] >= CALLS - 8  # the one in which it is new, and the one that rests then


def test_numbers_in_ranges_of_the_program_change_nothing() -> None:
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    seen: list[int] = []

    def named(*_: object) -> None:
        with torch.profiler.record_function(f"token {len(seen)}"):
            seen.append(0)

    model.layers[1].register_forward_hook(named)
    run = recorded(model, lambda _: model(x))
    assert set(Counter(names_of_modules(run)).values()) == {CALLS}


def test_an_interrupt_when_a_call_begins_leaves_nothing_at_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    original = ModuleRanges._look_or_rest
    calls: list[int] = []

    def interrupted(ranges: ModuleRanges, call: OpenCall) -> None:
        original(ranges, call)
        calls.append(0)
        if len(calls) == FIRST_CALLS + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(ModuleRanges, "_look_or_rest", interrupted)

    def step(_: int) -> None:
        with suppress(KeyboardInterrupt):
            model(x)

    run = recorded(model, step)
    assert len(run.table("root_calls")) == CALLS - 1
