"""Graph replays on a CUDA device: every node in the module for which it was captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from tests.gpu.decoding import Shape, Step, capture, make_step, warm_up
from tracer import trace
from tracer.analysis import BUCKETS, Analysis
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


Row = tuple[str, str, int]  # kernel, group, nanoseconds


def nodes(analysis: Analysis, *, replayed: bool) -> list[Row]:
    """Kernels in order of start that a graph launched, or that were launched one by one."""
    trace_, work = analysis.trace, analysis.work
    names = trace_.events["name"].astype(str).to_numpy()
    order = trace_.start_ns[work["event"].to_numpy()].argsort(kind="stable")
    rows = []
    for row in order.tolist():
        launch, event = int(work["launch"].iloc[row]), int(work["event"].iloc[row])
        is_replay = launch >= 0 and "GraphLaunch" in names[launch]
        if is_replay is replayed and not names[event].startswith("Mem"):
            group = BUCKETS[int(work["bucket"].iloc[row])][0]
            rows.append((names[event], group, int(work["charged_ns"].iloc[row])))
    return rows


def by_group(rows: list[Row]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for _, group, ns in rows:
        sums[group] += ns
    return dict(sums)


def eager_truth(step: Step, times: int = 2) -> list[Row]:
    """The kernels of one eager step, each in the group of its module."""
    with trace() as t:
        for _ in range(times):
            step()
        torch.cuda.synchronize()
    rows = nodes(t.analysis, replayed=False)
    assert len(rows) % times == 0
    return rows[: len(rows) // times]


def graph_ratio(analysis: Analysis) -> float:
    """Share of the replayed kernels' time that the capture explains."""
    work = analysis.work
    names = analysis.trace.events["name"].astype(str).to_numpy()
    launch = work["launch"].to_numpy()
    replayed = [row >= 0 and "GraphLaunch" in names[row] for row in launch.tolist()]
    mine = work[replayed]
    # What a model does outside of its parts has the model for its module, and its role from there.
    told = mine["charged_ns"][mine["module"] >= 0].sum()
    return float(told / mine["charged_ns"].sum())


def agree(found: list[Row], wanted: list[Row], replays: int) -> None:
    """Every node has the group of the same kernel of the eager step. Where a library chose other
    kernels for the capture, the groups take as long as there."""
    size = len(found) // replays
    for number in range(replays):
        part = found[number * size : (number + 1) * size]
        if [row[0] for row in part] == [row[0] for row in wanted]:
            assert [row[1] for row in part] == [row[1] for row in wanted]
            continue
        eager, replayed = by_group(wanted), by_group(part)
        for group in eager:
            assert replayed[group] == pytest.approx(eager[group], rel=0.1), (group, number)


def launch_ends(analysis: Analysis) -> list[tuple[int, int]]:
    """Where the nodes of each replay begin and end among all of them."""
    trace_, work = analysis.trace, analysis.work
    names = trace_.events["name"].astype(str).to_numpy()
    launch = work["launch"].to_numpy()
    kernels = [not names[event].startswith("Mem") for event in work["event"].tolist()]
    counts = Counter(
        row
        for row, kernel in zip(launch.tolist(), kernels, strict=True)
        if row >= 0 and kernel and "GraphLaunch" in names[row]
    )
    ends, at = [], 0
    for row in sorted(counts):
        ends.append((at, at + counts[row]))
        at += counts[row]
    return ends


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
    # Streams interleave otherwise than in the eager step, and share the time: compared is how often
    # a kernel of one name serves each group.
    assert Counter(row[:2] for row in found) == Counter(row[:2] for row in wanted)


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
