"""How full a cell is: exactly as full as its time is with work."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.tui.samples import sparse_trace
from tracer.analyzers import analyze
from tracer.tui.look import Look
from tracer.tui.model.coverage import cell_edges, coverage_of, dominant, ratios
from tracer.tui.model.lanes import build_lanes
from tracer.tui.model.places import Moment
from tracer.tui.model.scene import cell_loads, draw_lanes
from tracer.tui.model.selection import LaneKey
from tracer.tui.model.signs import load_levels, load_signs, share_bar
from tracer.tui.model.timeline import open_timeline
from tracer.tui.model.viewport import viewport_on


def covered_by_hand(starts: list[int], ends: list[int], low: int, high: int) -> int:
    times: set[int] = set()
    for start, end in zip(starts, ends, strict=True):
        times.update(range(max(start, low), min(end, high)))
    return len(times)


def test_covered_time_of_cells_is_that_of_the_union() -> None:
    generator = np.random.default_rng(1)
    starts = generator.integers(0, 900, 60)
    ends = starts + generator.integers(0, 30, 60)
    coverage = coverage_of(starts, ends)
    edges = cell_edges(50, 777, 13)
    wanted = [
        covered_by_hand(starts.tolist(), ends.tolist(), int(low), int(high))
        for low, high in pairwise(edges)
    ]
    assert coverage.within(edges).tolist() == wanted
    assert coverage.total_ns == covered_by_hand(starts.tolist(), ends.tolist(), 0, 1000)


def test_nothing_covers_nothing() -> None:
    none = coverage_of(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert none.within(cell_edges(0, 100, 4)).tolist() == [0, 0, 0, 0]
    assert none.total_ns == 0


def test_edges_cover_the_stretch_without_holes() -> None:
    edges = cell_edges(7, 1000, 33)
    assert edges[0] == 7 and edges[-1] == 1007 and bool((np.diff(edges) > 0).all())


def test_the_largest_coverage_of_a_cell_names_it() -> None:
    first = coverage_of(np.array([0]), np.array([30]))
    second = coverage_of(np.array([20]), np.array([100]))
    which, total = dominant([first, second], np.array([0, 25, 50, 200, 300]))
    assert which.tolist() == [0, 1, 1, -1]
    assert total.tolist() == [30, 30, 50, 0]


@pytest.mark.parametrize("cells", [60, 103, 184])
@pytest.mark.parametrize("zoom", [1, 8, 512])
def test_lane_load_equals_busy_time_of_each_column_on_a_mostly_idle_stream(
    cells: int, zoom: int
) -> None:
    analysis = analyze(sparse_trace())
    lanes = build_lanes(analysis)
    stream = lanes.streams[0]
    assert analysis.window.busy_ns == 2_000_000  # two percent of 100 ms
    start = analysis.window.start_ns
    viewport = viewport_on(start, start + analysis.window.wall_ns // zoom, lanes.bounds)
    edges = viewport.edges(cells)
    busy = np.zeros(cells)
    for begin, end in zip(lanes.work_start_ns.tolist(), lanes.work_end_ns.tolist(), strict=True):
        busy += np.maximum(np.minimum(end, edges[1:]) - np.maximum(begin, edges[:-1]), 0)
    loads = cell_loads(stream, viewport, cells)
    assert loads * np.diff(edges) == pytest.approx(busy)


def test_a_cell_with_little_work_is_low_and_an_idle_one_is_blank() -> None:
    analysis = analyze(sparse_trace())
    lanes = build_lanes(analysis)
    timeline = open_timeline(lanes, Moment(step=0), 103, False)
    rows = draw_lanes(lanes, Look(), timeline.viewport, 103, timeline.keys, timeline.lane)
    load = next(row.cells.plain for row in rows if row.label.endswith("load"))
    loads = cell_loads(lanes.streams[0], timeline.viewport, 103)
    assert [sign == " " for sign in load] == (loads == 0).tolist()
    assert load.count("█") == int((load_levels(loads) == 8).sum()) == 0
    assert 10 <= sum(sign != " " for sign in load) <= 20


def test_levels_show_any_work_and_no_idle() -> None:
    levels = load_levels(np.array([0.0, 1e-9, 0.02, 0.5, 0.93, 1.0]))
    assert levels.tolist() == [0, 1, 1, 4, 7, 8]
    assert load_signs(Look(), np.array([0.0, 0.02, 1.0])) == " ▁█"
    assert load_signs(Look(ascii=True), np.array([0.0, 0.02, 0.5, 1.0])) == " .:#"


def test_a_share_bar_grows_in_eighths() -> None:
    assert share_bar(Look(), 0.0, 2) == "  "
    assert share_bar(Look(), 0.5, 2) == "█ "
    assert share_bar(Look(), 0.001, 2) == "▏ "
    assert share_bar(Look(ascii=True), 1.0, 3) == "###"


def test_shares_of_cells_without_length_are_none() -> None:
    assert ratios(np.array([0, 5]), np.array([3, 3, 13])).tolist() == [0.0, 0.5]


def test_streams_of_one_lane_key() -> None:
    lanes = build_lanes(analyze(sparse_trace()))
    assert [(lane.device, lane.stream) for lane in lanes.streams] == [(0, 7)]
    assert LaneKey("work", 0, 7) in open_timeline(lanes, Moment(), 80, True).keys
