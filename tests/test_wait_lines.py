"""Lines of hidden waits, seen live without Python stacks."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from tests.test_idle import found
from tracer import trace
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


def test_a_compiler_finds_no_patch() -> None:
    """The same graph breaks and frames with and without us, though the function reads a value."""

    def reading(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x + 1

    import torch._dynamo
    from torch._dynamo.utils import counters as kept

    def compiled_afresh() -> tuple[int, int]:
        torch.compile(reading, backend="eager")(torch.ones(4))
        return sum(kept["graph_break"].values()), kept["frames"]["total"]

    torch._dynamo.reset()
    kept.clear()
    alone = compiled_afresh()
    torch._dynamo.reset()
    kept.clear()
    lines = WaitLines()
    lines._watch_reads()
    try:
        assert compiled_afresh() == alone
        assert "item" not in torch.Tensor.__dict__
    finally:
        lines.close()


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
