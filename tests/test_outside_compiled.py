"""Calls of attention are noted beside compiled code, which never sees how: nothing is compiled that
would not have been without us."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.convert_frame import ConvertFrame
from torch._dynamo.utils import counters
from torch.nn import functional

from tests.compilations import compilations, forget
from tracer import trace
from tracer.collectors import host_events, torch_private

# What torch warns of in graphs of its own tests would be an error here.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]
not_compiled: Callable[[Any], Any] = torch.compiler.disable


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Generator[None]:
    forget()
    yield
    forget()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        return functional.scaled_dot_product_attention(query, query, query)


@not_compiled
def never_compiled(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x)


class Broken(Attention):
    """Three graphs: one before a break, and one on each side of a call that is not compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.query(x)
        torch._dynamo.graph_break()
        x = never_compiled(functional.scaled_dot_product_attention(x, x, x))
        return functional.scaled_dot_product_attention(x, x, x)


class Mixed(nn.Module):
    """A compiled layer, then the same without; both call attention."""

    def __init__(self, layer: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.compiled = torch.compile(layer(), backend="aot_eager", **options)
        self.eager = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.eager(self.compiled(x))
        return y


def inputs(length: int = 4) -> torch.Tensor:
    return torch.ones(1, 2, length, 8)


def new_lengths(model: nn.Module) -> None:
    for length in (4, 4, 5, 6):
        torch.autograd.backward(model(inputs(length)).sum())


def in_threads(model: nn.Module) -> None:
    model(inputs())
    threads = [threading.Thread(target=model, args=(inputs(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fullgraph() -> nn.Module:
    return Mixed(Attention, fullgraph=True)


def broken() -> nn.Module:
    return Mixed(Broken)


def compiled_in_compiled() -> nn.Module:
    """The inner one is called through a frame that is not compiled."""

    class Outer(Broken):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            y: torch.Tensor = inner(x)
            torch._dynamo.graph_break()
            return functional.scaled_dot_product_attention(y, y, y)

    inner = not_compiled(Mixed(Attention, fullgraph=True))
    return Mixed(Outer)


@pytest.mark.parametrize("first", [False, True], ids=["compiled in the trace", "before it"])
@pytest.mark.parametrize("use", [new_lengths, in_threads])
@pytest.mark.parametrize("make", [fullgraph, broken, compiled_in_compiled])
def test_nothing_is_compiled_otherwise(
    make: Callable[[], nn.Module], use: Callable[[nn.Module], None], first: bool
) -> None:
    plain, _ = compilations(make, use, traced=False, first=first)
    traced, t = compilations(make, use, traced=True, first=first)
    assert traced == plain
    assert t is not None
    assert len(t.trace.table("attention_calls"))


@pytest.mark.parametrize(
    ("make", "noted"), [(fullgraph, ["forward"]), (broken, ["never_compiled", "forward"])]
)
def test_eager_calls_are_noted_after_a_compilation(
    make: Callable[[], nn.Module], noted: list[str]
) -> None:
    model = make()
    with trace(model) as t:
        for _ in range(3):
            model(inputs())
    table = t.trace.table("attention_calls")
    assert table["function"].tolist() == noted * 3
    assert set(table["file"]) == {__file__}


def test_a_backward_pass_that_is_compiled_at_its_call_hides_no_eager_call() -> None:
    compiled = torch.compile(lambda x: functional.gelu(x), backend="aot_eager", dynamic=True)
    x = torch.ones(2, 8, requires_grad=True)
    with trace() as t:
        torch.autograd.backward(compiled(x).sum())
        never_compiled(inputs())
    assert len(t.trace.table("attention_calls")) == 1


def test_an_export_hides_no_eager_call() -> None:
    with trace() as t:
        never_compiled(inputs())
        program = torch.export.export(Attention(), (inputs(),), strict=True)
        never_compiled(inputs())
    calls = [node.target for node in program.graph.nodes if "scaled_dot" in str(node.target)]
    assert calls == [torch.ops.aten.scaled_dot_product_attention.default]
    assert len(t.trace.table("attention_calls")) == 2


def test_a_trace_that_begins_in_compiled_code() -> None:
    """Its guards would see the patch when the trace has ended inside; so there is none."""
    taken: list[int] = []

    @not_compiled
    def traced_inside(x: torch.Tensor) -> torch.Tensor:
        with trace() as t:
            y = functional.scaled_dot_product_attention(x, x, x)
        taken.append(len(t.trace.table("attention_calls")))
        return y

    @torch.compile(backend="eager")
    def attend(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(traced_inside(x), x, x) + 1

    for _ in range(3):
        attend(inputs())
    assert taken[1:] == [0, 0]
    assert counters["stats"]["unique_graphs"] == 1


def test_a_trace_that_ends_in_compiled_code_leaves_nothing() -> None:
    original = functional.scaled_dot_product_attention
    recording = trace()

    @not_compiled
    def end(x: torch.Tensor) -> torch.Tensor:
        recording.__exit__(None, None, None)
        return x

    compiled = torch.compile(lambda x: end(x) + 1, backend="eager")
    recording.__enter__()
    compiled(inputs())
    assert functional.scaled_dot_product_attention is original


def test_a_torch_that_does_not_tell_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "compiled_switch", lambda: None)
    model = Mixed(Attention, fullgraph=True)
    with trace(model) as t:
        never_compiled(inputs())
        for _ in range(2):
            model(inputs())
    assert t.trace.table("attention_calls")["function"].tolist() == ["never_compiled"]
    with trace(model) as t:
        model(inputs())
    assert not len(t.trace.table("attention_calls"))
    assert counters["stats"]["unique_graphs"] == 1


def collects(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    gc.collect()
    return x * 2


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
def test_what_listens_to_collections_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes while compiled code runs calls our listener there."""
    seen: list[str] = []
    convert = ConvertFrame.__call__

    def looked_at(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(frame.f_code.co_filename)
        return convert(self, frame, *args, **kwargs)

    monkeypatch.setattr(ConvertFrame, "__call__", looked_at)
    with trace() as t:
        torch.compile(collects, backend="eager")(inputs())
    assert __file__ in seen
    assert host_events.__file__ not in seen
    assert len(t.trace.table("collections"))


_LOADED_LATE = """
import sys
import torch
from torch.nn import functional
from tracer import trace

x = torch.ones(1, 2, 4, 8)
attend = lambda x: functional.scaled_dot_product_attention(x, x, x)
assert "torch._dynamo" not in sys.modules
with trace() as t:
    attend(x)
    compiled = torch.compile(lambda x: attend(x) + 1, backend="eager", fullgraph=True)
    attend(x)
    compiled(x), compiled(x)
    attend(x)
compiled(x)
print(len(t.trace.table("attention_calls")), torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


def test_a_compiler_that_nobody_had_loaded() -> None:
    command = [sys.executable, "-c", _LOADED_LATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["3", "1"]
