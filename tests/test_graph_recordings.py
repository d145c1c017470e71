"""Recordings of captures and replays of tests/gpu, made on a device and read here."""

from __future__ import annotations

from pathlib import Path

from tests.graph_checks import (
    Row,
    agree,
    agree_in_number,
    graph_ratio,
    launch_ends,
    nodes,
    one_of,
)
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.store import load_run

FOLDER = Path(__file__).parent / "recordings" / "graphs"


def read(name: str) -> Analysis:
    return analyze(load_run(FOLDER / name))


def truth(name: str) -> list[Row]:
    """One of the two steps launched kernel by kernel."""
    return one_of(nodes(read(name), replayed=False), 2)


def test_replays_of_a_capture() -> None:
    analysis = read("captured")
    assert graph_ratio(analysis) == 1
    agree(nodes(analysis, replayed=True), truth("eager"), 3)


def test_replays_of_graphs_of_two_models_alike() -> None:
    analysis = read("captured_twins")
    assert [note.rule for note in analysis.notes] == ["trace.graph_alike"]
    found = nodes(analysis, replayed=True)
    eager, twin = truth("eager"), truth("eager_twin")
    for wanted, (begin, end) in zip((eager, twin, eager), launch_ends(analysis), strict=True):
        agree(found[begin:end], wanted, 1)


def test_a_replay_on_two_streams() -> None:
    found = nodes(read("captured_streams"), replayed=True)
    agree_in_number(found, truth("eager_streams"))
