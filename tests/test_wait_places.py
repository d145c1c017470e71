"""Waits of a library's own: one finding for each of the user's lines that call it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.make_traces import TraceMaker, steps_held_up_by
from tests.test_idle import found
from tests.test_wait_lines import line_of
from tracer import trace
from tracer.analyzers import analyze
from tracer.findings import Finding

LIBRARY = """
def generate(model, x, steps, callback):
    for step in range(steps):
        x = model(x)
        if finished(x):
            break
        callback(x)
    return x

def finished(x):
    if bool(x.sum() > 1e9):
        return True
    return bool(x.max() > 1e9)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library that is installed and calls the user's function back."""
    folder = tmp_path / "site-packages" / "generating"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "generating", raising=False)
    return importlib.import_module("generating")


def read_in_a_callback(x: torch.Tensor) -> None:
    x.mean().item()  # the user's own read


def test_a_library_waits_where_the_user_calls_it(library: ModuleType) -> None:
    model = torch.nn.Linear(4, 4)
    with torch.no_grad(), trace() as t:
        library.generate(model, torch.ones(1, 4), 8, read_in_a_callback)  # calls the library
    waits = {wait.where.line: wait for wait in found(t.analysis, "sync.hidden")}
    assert set(waits) == {
        line_of("calls the library", __file__),
        line_of("the user's own read", __file__),
    }
    of_library = waits[line_of("calls the library", __file__)]
    assert of_library.where.file == __file__
    assert of_library.count == 16
    assert (of_library.detail["library"], len(of_library.detail["lines"])) == ("generating", 2)
    assert all("finished (8)" in line for line in of_library.detail["lines"])
    assert "generating/__init__.py" in of_library.advice
    assert waits[line_of("the user's own read", __file__)].where.function == "read_in_a_callback"


def waits_of(*frames: tuple[str, ...]) -> list[Finding]:
    """Steps that wait once in each of these stacks of frames, the outermost first."""
    maker = TraceMaker()
    for step in range(3):
        at = 1_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1_000)
        for place, stack in enumerate(frames):
            begin = at + 10 + 200 * place
            maker.launch("k", start=begin, run=(begin + 4, begin + 90), operator="aten::mm")
            for depth, frame in enumerate(stack):
                maker.host("frame", frame, begin + 5 + depth, 120 - 2 * depth)
            maker.operator("aten::item", begin + 12, 100)
            maker.operator("aten::_local_scalar_dense", begin + 13, 98)
            maker.copy("device_to_host", 8, start=begin + 14, run=(begin + 90, begin + 91))
            maker.host("runtime", "cudaStreamSynchronize", begin + 20, 80)
        maker.launch("k", start=at + 900, run=(at + 905, at + 990), operator="aten::mm")
    return found(analyze(maker.build()), "sync.hidden")


def test_frames_of_a_library_and_who_called_it() -> None:
    user, loop = "run.py(4): main", "transformers/generation/utils.py(9): generate"
    one = "transformers/generation/utils.py(20): stops"
    other = "transformers/generation/logits.py(30): __call__"
    own = "run.py(50): callback"
    waits = waits_of((user, loop, one), (user, loop, other), (user, loop, own))
    assert [(w.where.function, w.count) for w in waits] == [("main", 6), ("callback", 3)]
    assert waits[0].detail["lines"] == [
        f"{one[:-11]}:20 stops (3)",
        f"{other[:-14]}:30 __call__ (3)",
    ]


def test_frames_of_the_recording_itself_are_no_place() -> None:
    own = ("tracer/collectors/modules/module_ranges.py(341): outermost", "tracer/recorder.py(9): f")
    (wait,) = waits_of(("run.py(4): main", *own))
    assert wait.where.function == "main"


def test_one_line_of_a_library_stays_a_place_and_tells_who_called_it() -> None:
    (wait,) = waits_of(("run.py(4): main", "transformers/masks.py(9): mask"))
    assert (wait.where.file, wait.where.function) == ("transformers/masks.py", "mask")
    assert wait.detail["called_from"] == "run.py:4 main"
    assert "called from run.py:4 in main" in wait.advice


def test_a_library_that_nobody_calls_is_the_program() -> None:
    """An engine in its own process: its lines are what one looks for."""
    waits = waits_of(("vllm/engine.py(4): step", "vllm/a.py(9): a"), ("vllm/b.py(8): b",))
    assert [wait.where.function for wait in waits] == ["a", "b"]
    assert "called_from" not in waits[0].detail


@pytest.mark.parametrize(
    ("frame", "told"),
    [("run.py(4): prepare", "Move it off"), ("transformers/a.py(9): prepare", "of transformers")],
)
def test_host_work_of_a_library_is_not_the_programs_to_move(frame: str, told: str) -> None:
    maker = steps_held_up_by("frame", frame)
    advice = [f.advice for f in found(analyze(maker.build()), "gap.host") if f.where.function]
    assert [told in text for text in advice] == [True]
