"""Lines of hidden waits, seen live without Python stacks."""

from __future__ import annotations

import _thread
import operator
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

from tests.test_idle import found
from tracer import trace
from tracer.collectors import wait_lines
from tracer.collectors.wait_lines import WaitLines

METHODS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")


def line_of(marker: str, path: str = __file__) -> int:
    """The line of a file that carries a marker."""
    with open(path, encoding="utf-8") as file:
        return next(n for n, text in enumerate(file, 1) if f"# {marker}" in text)


class Step(torch.nn.Module):
    """A small step with a planted read."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.linear, self.reads = torch.nn.Linear(8, 8), reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if self.reads and self.scale(x) > 0:
            return x * 2
        return x

    def scale(self, x: torch.Tensor) -> float:
        return float(x.max().item())  # the planted read


def test_the_line_of_a_planted_read_is_named() -> None:
    model = Step(reads=True)
    with torch.no_grad(), trace() as t:
        for _ in range(16):
            model(torch.ones(2, 8))
    reads = [f for f in found(t.analysis, "sync.hidden") if f.where.file == __file__]
    assert [(f.where.line, f.where.function) for f in reads] == [
        (line_of("the planted read"), "scale")
    ]
    assert reads[0].count == 16
    assert reads[0].detail["cause"] == "scalar-read"


def test_an_operator_that_reads_by_itself_has_no_line_of_a_read_before_it() -> None:
    with torch.no_grad(), trace() as t:
        for _ in range(8):
            torch.ones(4).tolist()  # another line
            torch.multinomial(torch.ones(2, 16).softmax(-1), 1)
    reads = [f for f in found(t.analysis, "sync.hidden") if f.where.operator == "aten::multinomial"]
    assert [(f.where.line, f.count % 8) for f in reads] == [(None, 0)]
    assert reads[0].detail["cause"] == "scalar-read"
    assert "exponential_" in reads[0].advice


def test_the_clean_twin_has_no_wait() -> None:
    model = Step(reads=False)
    with torch.no_grad(), trace() as t:
        for _ in range(16):
            model(torch.ones(2, 8))
    assert not found(t.analysis, "sync.hidden")


def test_everything_is_undone() -> None:
    before = {name: getattr(torch.Tensor, name) for name in METHODS}
    own = {name: name in torch.Tensor.__dict__ for name in METHODS}
    filters, show = list(warnings.filters), warnings.showwarning
    with pytest.raises(ValueError, match="mine"), WaitLines():
        raise ValueError("mine")
    assert {name: getattr(torch.Tensor, name) for name in METHODS} == before
    assert {name: name in torch.Tensor.__dict__ for name in METHODS} == own
    assert list(warnings.filters) == filters
    assert warnings.showwarning is show


def test_results_do_not_change() -> None:
    x = torch.tensor([3.0, 0.0])
    lines = WaitLines()
    lines._watch_reads()
    try:
        assert (x[0].item(), x.tolist(), bool(x[0]), int(x[0])) == (3.0, [3.0, 0.0], True, 3)
        assert x.nonzero().tolist() == [[0]]
        with pytest.raises(RuntimeError, match="Boolean value"):
            bool(x)
    finally:
        lines.close()
    assert set(lines.table()["function"]) == {sys._getframe().f_code.co_name}


def test_a_warning_of_a_watched_read_names_the_line_of_the_user() -> None:
    learned, always = torch.ones(1, requires_grad=True), torch.is_warn_always_enabled()
    try:
        torch.set_warn_always(True)
        with warnings.catch_warnings(record=True) as caught, WaitLines() as lines:
            warnings.simplefilter("always")
            float(learned)  # the read that warns
    finally:
        torch.set_warn_always(always)
    places = [(w.filename, w.lineno) for w in caught if "requires_grad" in str(w.message)]
    assert places == [(__file__, line_of("the read that warns"))]
    assert line_of("the read that warns") in list(lines.table()["line"])


def test_a_method_asked_for_on_the_class_is_the_original() -> None:
    before = {name: getattr(torch.Tensor, name) for name in METHODS}
    with WaitLines():
        assert {name: getattr(torch.Tensor, name) for name in METHODS} == before
        assert torch.ones(3).tolist() == [1.0] * 3


WAITS = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:1.)"


@pytest.fixture
def listening() -> Generator[WaitLines]:
    """As on a GPU, whose warnings come through the interpreter like any other."""
    lines = WaitLines()
    lines._listen(shown=False)
    yield lines
    lines.close()


def test_a_warning_of_a_wait_is_noted_and_nobody_else_sees_it(listening: WaitLines) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "of others")
        for _ in range(3):
            warnings.warn(WAITS, stacklevel=1)  # the wait that warns
        warnings.warn("of others", stacklevel=1)
    assert [str(w.message) for w in caught] == ["of others"]
    table = listening.table()
    assert list(table["line"]) == [line_of("the wait that warns")] * 3
    assert set(table["cause"]) == {"warned"}
    assert listening.failure is None


def test_a_warning_from_inside_the_framework_names_the_line_of_the_user(
    listening: WaitLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_lines, "_MESSAGE", "Converting a tensor with requires_grad")
    learned, always = torch.ones(1, requires_grad=True), torch.is_warn_always_enabled()
    try:
        torch.set_warn_always(True)
        float(learned)  # warned of in C++
    finally:
        torch.set_warn_always(always)
    assert list(listening.table()["line"]) == [line_of("warned of in C++")]


def test_waits_that_the_program_asked_to_see_are_shown() -> None:
    lines = WaitLines()
    with warnings.catch_warnings(record=True) as caught:
        lines._listen(shown=True)
        for _ in range(2):
            warnings.warn(WAITS, stacklevel=1)
        lines.close()
    assert [str(w.message) for w in caught] == [WAITS] * 2
    assert len(lines.table()) == 2


def test_filters_of_the_program_stay_and_ours_goes() -> None:
    with warnings.catch_warnings():
        before = list(warnings.filters)
        lines = WaitLines()
        lines._listen(shown=False)
        warnings.filterwarnings("ignore", "the program's own")
        own = warnings.filters[0]
        with warnings.catch_warnings():
            lines.close()
            assert list(warnings.filters) == [own, *before]
        assert list(warnings.filters) == [own, *before]


@pytest.mark.parametrize(
    ("call", "argument", "answer"),
    [(warnings.warn, WAITS, None), (operator.methodcaller("item"), torch.tensor(3), 3)],
)
def test_a_thread_without_a_line_of_python(
    listening: WaitLines, call: Callable[[Any], Any], argument: Any, answer: Any
) -> None:
    """As those that the framework runs by itself."""
    answers: list[Any] = []
    listening._watch_reads()
    _thread.start_new_thread(answers.extend, (map(call, [argument]),))
    until = time.monotonic() + 60
    while not answers and time.monotonic() < until:
        time.sleep(0.001)
    assert answers == [answer]
    assert not len(listening.table())


def test_a_library_is_told_from_who_called_it_each_time(
    listening: WaitLines,
) -> None:
    """One line of a library, called from two of the user's."""
    names: dict[str, Any] = {"__name__": "reading", "warnings": warnings}
    file = f"{sysconfig.get_path('purelib')}/reading.py"
    exec(compile("def read(text): warnings.warn(text)", file, "exec"), names)
    for _ in range(2):
        names["read"](WAITS)  # one caller
        names["read"](WAITS)  # the other
    table = listening.table()
    assert set(table["file"]) == {file}
    assert list(table["user_line"]) == [line_of("one caller"), line_of("the other")] * 2
