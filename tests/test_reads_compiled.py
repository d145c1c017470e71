"""Reads of values are noted beside compiled code, which never sees how: nothing is compiled that
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
from torch.overrides import TorchFunctionMode

from tests.compilations import compilations, forget
from tracer import trace
from tracer.collectors.wait_lines import _READS

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="reads are watched without a GPU"),
    pytest.mark.filterwarnings("ignore:Graph break from `Tensor.item"),
]
not_compiled: Callable[[Any], Any] = torch.compiler.disable


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Generator[None]:
    """And no collection that comes by chance: what is called at the end of an object is looked at
    by the compiler where compiled code runs."""
    forget()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    forget()


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each function that the compiler looks at, with its file."""
    seen: list[str] = []
    convert = ConvertFrame.__call__

    def look(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(f"{frame.f_code.co_filename}: {frame.f_code.co_name}")
        return convert(self, frame, *args, **kwargs)

    monkeypatch.setattr(ConvertFrame, "__call__", look)
    return seen


def read(x: torch.Tensor) -> float:
    """Every watched method once, each a break of a graph."""
    total: float = x.sum().item() + float(x.max()) + int(x.min()) + len(x.nonzero())
    total += [1, 2, 3][x.argmax() * 0] + sum(x[0].tolist())
    return total if bool(x.mean() > 0) else -total


@not_compiled
def never_compiled(x: torch.Tensor) -> torch.Tensor:
    return x * read(x)


class Straight(nn.Module):
    """No read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2


class Broken(nn.Module):
    """Reads in code that is compiled, in code that is not and is called by it, and after both."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        return torch.sigmoid(never_compiled(x)) * x.max().item()


class OfTheClass(nn.Module):
    """Methods as the class has them: what compiled code checks at each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = x.tolist if hasattr(x, "tolist") else None
        return x * (torch.Tensor.item(x.sum()) if whole is not None else 0)


class Own(torch.Tensor):
    """A subclass that takes part in what is done with it."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        parent: Any = super()
        return parent.__torch_function__(function, types, args, kwargs or {})


class OfASubclass(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = x.as_subclass(Own)
        return (own * own.sum().item()).as_subclass(torch.Tensor) if own.max() > 0 else x


class Seen(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class UnderAMode(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Seen():
            return x * x.sum().item()


class Captured(nn.Module):
    """Reads that stay in the graph, where that is switched on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() + float(x.max())


class Mixed(nn.Module):
    """A compiled layer, then reads that are not compiled."""

    def __init__(self, layer: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.compiled = torch.compile(layer(), backend="eager", **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.compiled(x)
        return y * read(y)


def inputs(length: int = 4) -> torch.Tensor:
    return torch.ones(2, length)


def new_lengths(model: nn.Module) -> None:
    for length in (4, 4, 5, 6):
        model(inputs(length))


def in_threads(model: nn.Module) -> None:
    """None of them compiles: which of them does what would be left to chance."""
    for _ in range(4):
        model(inputs())
    threads = [threading.Thread(target=model, args=(inputs(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_a_reset(model: nn.Module) -> None:
    model(inputs())
    torch._dynamo.reset()  # it forgets who wants to be told of compilations
    model(inputs())


LAYERS = [Straight, Broken, OfTheClass, OfASubclass, UnderAMode, Captured]
CASES = [
    *((layer, use) for layer in LAYERS for use in (new_lengths, with_a_reset)),
    # What the classes around the others do in threads is compiled in an order of chance.
    *((layer, in_threads) for layer in (Straight, Broken, OfTheClass, Captured)),
]


@pytest.mark.parametrize("first", [False, True], ids=["compiled in the trace", "before it"])
@pytest.mark.parametrize(("layer", "use"), CASES)
def test_nothing_is_compiled_otherwise(
    layer: type[nn.Module],
    use: Callable[[nn.Module], None],
    first: bool,
    looked_at: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", layer is Captured)
    plain, _ = compilations(lambda: Mixed(layer), use, traced=False, first=first)
    alone = list(looked_at)
    traced, t = compilations(lambda: Mixed(layer), use, traced=True, first=first)
    assert looked_at[len(alone) :] == alone
    assert traced == plain
    assert t is not None
    assert "read" in set(t.trace.table("host_sites")["function"])


@pytest.mark.parametrize(
    ("layer", "lines", "reads"), [(Straight, {}, 1), (Broken, {"forward": 2}, 2)]
)
def test_reads_are_noted_after_a_compilation(
    layer: type[nn.Module], lines: dict[str, int], reads: int
) -> None:
    """Those in code that was compiled as well, where they break its graph."""
    model = Mixed(layer)
    model(inputs())
    with trace(model) as t:
        for length in (4, 5, 5):
            model(inputs(length))
    table = t.trace.table("host_sites")
    noted = table.groupby(table["function"].astype(str))["line"]
    assert noted.nunique().to_dict() == lines | {"read": 3}
    assert noted.count()["read"] == 3 * reads * len(_READS)
    assert set(table["file"]) == {__file__}
    assert t.trace.notes == ()


def test_methods_are_as_they_were() -> None:
    before = {name: getattr(torch.Tensor, name) for name in vars(torch.Tensor)}
    with trace():
        Mixed(Broken)(inputs())
    assert {name: getattr(torch.Tensor, name) for name in vars(torch.Tensor)} == before


_LOADED_LATE = """
import sys
import torch
from tracer import trace

x = torch.ones(4)
scaled = lambda x: x * 2 if x.sum().item() > 0 else x
assert "torch._dynamo" not in sys.modules
with trace() as t:
    scaled(x)
    from torch._dynamo.variables import tensor
    scaled(x)
    compiled = torch.compile(scaled, backend="eager")
    compiled(x), compiled(x)
    scaled(x)
compiled(x)
known = {type(tensor.all_tensor_attrs[name]).__module__ for name in ("item", "__bool__")}
frames = torch._dynamo.utils.counters["frames"]["total"]
print(len(t.trace.table("host_sites")), known, frames, set(t.trace.table("host_sites")["file"]))
"""


def test_a_compiler_that_is_loaded_in_the_trace_knows_the_methods_as_they_are() -> None:
    command = [sys.executable, "-c", _LOADED_LATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "5 {'builtins'} 2 {'<string>'}\n"
