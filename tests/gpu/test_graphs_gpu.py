"""Graph replays on a CUDA device: every node in the module for which it was captured."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from tests.gpu.decoding import Shape, Step, capture, make_step, warm_up
from tests.graph_checks import Row, agree, agree_in_number, graph_ratio, launch_ends, nodes, one_of
from tracer import trace
from tracer.analyzers import analyze
from tracer.live import graph_memory
from tracer.recorder import Recording
from tracer.store import load_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = Shape()


@pytest.fixture(autouse=True)
def _settled() -> Generator[None]:
    graph_memory.forget()
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()
    graph_memory.forget()


@pytest.fixture(scope="module")
def step() -> Step:
    made = make_step(SHAPE)
    warm_up(made)
    return made


def eager_truth(step: Step, times: int = 2) -> list[Row]:
    """The kernels of one eager step, each in the group of its module."""
    with trace() as t:
        for _ in range(times):
            step()
        torch.cuda.synchronize()
    return one_of(nodes(t.analysis, replayed=False), times)


def replays(body: Callable[[], None]) -> Recording:
    with trace() as t:
        body()
        torch.cuda.synchronize()
    return t


def test_every_replayed_kernel_has_the_group_of_its_capture(step: Step) -> None:
    wanted = eager_truth(step)

    def body() -> None:
        graph = capture(step)
        for _ in range(3):
            graph.replay()

    analysis = replays(body).analysis
    assert graph_ratio(analysis) >= 0.99
    agree(nodes(analysis, replayed=True), wanted, 3)


def test_a_second_graph_is_told_from_the_first(step: Step) -> None:
    other = make_step(SHAPE, batch=8)
    warm_up(other)
    one, two = eager_truth(step), eager_truth(other)

    def body() -> None:
        first, second = capture(step), capture(other)
        for graph in (first, second, first):
            graph.replay()
            torch.cuda.synchronize()

    analysis = replays(body).analysis
    assert graph_ratio(analysis) >= 0.99
    found = nodes(analysis, replayed=True)
    ends = launch_ends(analysis)
    assert len(ends) == 3
    for wanted, (first_row, last_row) in zip((one, two, one), ends, strict=True):
        agree(found[first_row:last_row], wanted, 1)


def test_a_graph_that_was_captured_again(step: Step) -> None:
    wanted = eager_truth(step)

    def body() -> None:
        for _ in range(2):
            graph = capture(step)
            graph.replay()
            torch.cuda.synchronize()

    analysis = replays(body).analysis
    assert graph_ratio(analysis) >= 0.99
    agree(nodes(analysis, replayed=True), wanted, 2)


def test_a_graph_on_two_streams() -> None:
    step = make_step(Shape(parallel=True))
    warm_up(step)
    wanted = eager_truth(step)

    with trace() as t:
        with t.step():
            step()  # the same code at once: it names the kernels of the capture
            torch.cuda.synchronize()
        graph = capture(step)
        with t.step():
            graph.replay()
            torch.cuda.synchronize()
    analysis = t.analysis
    found = nodes(analysis, replayed=True)
    agree_in_number(found, wanted)


def test_a_later_trace_knows_the_graph(step: Step) -> None:
    wanted = eager_truth(step)
    graphs: list[torch.cuda.CUDAGraph] = []
    replays(lambda: graphs.append(capture(step)))

    def body() -> None:
        for _ in range(2):
            graphs[0].replay()

    analysis = replays(body).analysis
    assert graph_ratio(analysis) >= 0.99
    agree(nodes(analysis, replayed=True), wanted, 2)
    assert "trace.graph_map_reused" in [note.rule for note in analysis.notes]
    modules = analysis.modules.set_index("path")["device_ns"]
    assert modules["layers.0.self_attn"] > 0
    assert modules["layers.0.mlp"] > 0


def test_a_saved_capture_explains_another_trace(step: Step, tmp_path: Path) -> None:
    wanted = eager_truth(step)
    graphs: list[torch.cuda.CUDAGraph] = []
    replays(lambda: graphs.append(capture(step))).save(tmp_path / "warmup")
    graph_memory.forget()
    alone = replays(graphs[0].replay)
    assert "graph" not in set(alone.analysis.work["how"])
    analysis = analyze(alone.trace, captures=[load_run(tmp_path / "warmup")])
    assert graph_ratio(analysis) >= 0.99
    agree(nodes(analysis, replayed=True), wanted, 1)
