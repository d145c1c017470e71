"""The timeline as a value: moving, zooming, jumping; what is drawn where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len

from tests.make_traces import TraceMaker
from tests.tui.big_trace import big_trace
from tests.tui.samples import (
    NASTY,
    cpu_trace,
    decode_analysis,
    launches_only_trace,
    one_kernel_trace,
    rank_trace,
)
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.tui.look import Look
from tracer.tui.model.evidence import evidence_lines, finding_of, place_of
from tracer.tui.model.lanes import Lanes, build_lanes
from tracer.tui.model.picture import cells_in, draw_timeline
from tracer.tui.model.places import Moment
from tracer.tui.model.scene import axis_row, draw_lanes
from tracer.tui.model.selection import biggest, gap_selection, work_selection
from tracer.tui.model.signs import cause_letter
from tracer.tui.model.spans import spans_of, visible_runs
from tracer.tui.model.timeline import Timeline, open_timeline, step_bounds
from tracer.tui.model.viewport import viewport_on

CELLS = 103


def timeline_of(analysis: Analysis, moment: Moment) -> Timeline:
    return open_timeline(build_lanes(analysis), moment, CELLS, False)


@pytest.fixture(scope="module")
def decode() -> Timeline:
    return timeline_of(decode_analysis(), Moment(step=1))


def cursor_cell(timeline: Timeline) -> int:
    return timeline.viewport.column(timeline.viewport.cursor_ns, timeline.cells)


def test_it_opens_fitted_to_the_step_with_the_cursor_on_the_largest_cost(decode: Timeline) -> None:
    start, end = step_bounds(decode.lanes, 1)
    assert (decode.viewport.start_ns, decode.viewport.end_ns) == (start, end)
    largest = biggest(decode.lanes, start, end)[0]
    assert decode.selection == largest
    assert start <= decode.viewport.cursor_ns < end


def test_zoom_keeps_the_time_of_the_cursor_in_its_cell(decode: Timeline) -> None:
    time_ns, cell = decode.viewport.cursor_ns, cursor_cell(decode)
    closer = decode
    for _ in range(6):
        closer = closer.zoomed(True)
        assert closer.viewport.cursor_ns == time_ns
        assert abs(cursor_cell(closer) - cell) <= 1
    for _ in range(30):
        closer = closer.zoomed(False)
    assert closer.viewport.cursor_ns == time_ns
    low, high = closer.viewport.bounds
    assert (closer.viewport.start_ns, closer.viewport.end_ns) == (low, high)
    assert closer.fitted().viewport.span_ns == decode.viewport.span_ns


def test_a_resize_keeps_stretch_and_cursor(decode: Timeline) -> None:
    near = decode.zoomed(True).zoomed(True)
    for width in (40, 80, 200, 120):
        picture = draw_timeline(near.wide(cells_in(width)), Look(), width, 30)
        assert all(line.cell_len <= width for line in picture.lines)
    assert near.wide(184).viewport == near.viewport


@pytest.mark.parametrize("cells", [1, 7, 103, 400])
def test_every_moment_lies_in_the_cell_that_is_said(cells: int) -> None:
    viewport = viewport_on(1_000_003, 1_007_777, (0, 2_000_000))
    edges = viewport.edges(cells)
    for time_ns in range(1_000_003, 1_007_777, 97):
        column = viewport.column(time_ns, cells)
        assert edges[column] <= time_ns < edges[column + 1]


def test_moving_walks_cell_by_cell_and_the_view_follows(decode: Timeline) -> None:
    start = replace(decode, viewport=decode.viewport.at(decode.viewport.start_ns))
    walked = start
    for step in range(1, 10):
        walked = walked.moved(1)
        assert cursor_cell(walked) == cursor_cell(start) + step
    near = decode.zoomed(True).zoomed(True).zoomed(True)
    far = near.moved(CELLS * 2)
    assert far.viewport.start_ns > near.viewport.start_ns
    assert 0 <= cursor_cell(far) < CELLS
    assert far.viewport.span_ns == near.viewport.span_ns


def test_gaps_come_one_after_another_and_back(decode: Timeline) -> None:
    low, _ = decode.viewport.bounds
    at: Timeline | None = replace(decode, viewport=decode.viewport.at(low), selection=None)
    starts: list[int] = []
    while at is not None and len(starts) < 100:
        at = at.to_gap(True)
        if at is not None and at.selection is not None:
            starts.append(at.selection.start_ns)
    assert starts == sorted(set(starts)) and len(starts) > 5
    last = timeline_of(decode.lanes.analysis, Moment(gap=decode.lanes.gaps.first.size - 1))
    back = last.to_gap(False)
    assert back is not None and back.selection is not None and last.selection is not None
    assert back.selection.start_ns < last.selection.start_ns


def test_kernels_come_in_the_order_of_their_stream(decode: Timeline) -> None:
    first = timeline_of(decode.lanes.analysis, Moment(work=0))
    seen = [0]
    at = first
    while (following := at.to_kernel(True)) is not None:
        at = following
        assert at.selection is not None
        seen.append(at.selection.row)
    assert seen == list(range(len(decode.lanes.analysis.work)))


def test_from_a_kernel_to_launch_operator_module_and_back(decode: Timeline) -> None:
    lanes = decode.lanes
    kernel = timeline_of(lanes.analysis, Moment(work=0))
    launch = kernel.to_launch()
    assert launch is not None and launch.selection is not None
    assert lanes.name(launch.selection.row) == "cudaLaunchKernel"
    assert launch.lane.kind == "launches"
    operator = launch.to_operator()
    assert operator is not None and operator.selection is not None
    assert lanes.name(operator.selection.row).startswith("aten::_scaled_dot_product")
    module = operator.to_module()
    assert module is not None and module.selection is not None
    assert "layers.0.self_attn" in lanes.name(module.selection.row)
    outer = module.to_module()
    assert outer is not None and outer.selection is not None
    assert lanes.name(outer.selection.row) == "module::model.layers.0::LlamaDecoderLayer"
    back = launch.to_launch()
    assert back is not None and back.selection == kernel.selection


def test_a_gap_leads_to_the_launch_that_ended_it(decode: Timeline) -> None:
    gaps = decode.lanes.analysis.gaps
    after = int(gaps["after"].iloc[int(decode.lanes.gaps.first[1])])
    there = timeline_of(decode.lanes.analysis, Moment(gap=1)).to_launch()
    assert there is not None and there.selection is not None
    assert there.selection.row == int(decode.lanes.analysis.work["launch"].iloc[after])


def test_biggest_goes_round_by_size(decode: Timeline) -> None:
    sizes: list[int] = []
    at = decode
    low, high = decode.viewport.start_ns, decode.viewport.end_ns
    for press in range(4):
        following = at.to_biggest(press > 0)
        assert following is not None and following.selection is not None
        at, chosen = following, following.selection
        sizes.append(min(chosen.end_ns, high) - max(chosen.start_ns, low))
    assert sizes == sorted(sizes, reverse=True)


def test_steps_before_and_after_are_fitted(decode: Timeline) -> None:
    following = decode.to_step(1)
    assert following is not None and following.step == 2
    assert (following.viewport.start_ns, following.viewport.end_ns) == step_bounds(decode.lanes, 2)
    last = timeline_of(decode.lanes.analysis, Moment(step=3))
    assert last.to_step(1) is None


def test_search_finds_every_event_with_the_name_in_order(decode: Timeline) -> None:
    at = replace(decode, viewport=decode.viewport.at(decode.viewport.bounds[0]), selection=None)
    numbers = []
    for _ in range(10):
        at, number, count = at.found("FLASH_fwd", True, False)
        numbers.append(number)
    assert count == 8
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    at, number, _ = at.found("flash_fwd", False, False)
    assert number == 1
    assert at.found("no such kernel", True, True)[1:] == (0, 0)


def test_folding_leaves_the_device_lanes(decode: Timeline) -> None:
    kinds = {key.kind for key in decode.fold().keys}
    assert kinds == {"work", "idle"}
    assert {"module", "operator", "launches"} <= {key.kind for key in decode.keys}
    on_host = decode.chosen(decode.keys[0]).fold()
    assert on_host.lane in on_host.keys


def test_idle_cells_carry_the_letter_of_the_cause(decode: Timeline) -> None:
    rows = draw_lanes(decode.lanes, Look(), decode.viewport, CELLS, decode.keys, decode.lane)
    idle = next(row.cells.plain for row in rows if row.key.kind == "idle")
    load = next(row.cells.plain for row in rows if row.label.endswith("load"))
    causes = decode.lanes.analysis.gaps["cause"].unique().tolist()
    assert set(idle) - {" "} <= {cause_letter(str(cause)) for cause in causes}
    blank = [at for at, sign in enumerate(load) if sign == " "]
    assert all(idle[at] != " " for at in blank)
    assert not set("█▇▆▅▄▃▂▁") & set(idle)


def test_a_collective_is_filled_where_exposed_and_dotted_where_covered() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 300)
    maker.launch("gemm_kernel", start=5, run=(10, 100), operator="aten::mm")
    maker.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start=6, run=(50, 200), stream=9)
    timeline = timeline_of(analyze(maker.build()), Moment(step=0))
    rows = draw_lanes(
        timeline.lanes, Look(), timeline.viewport, CELLS, timeline.keys, timeline.lane
    )
    text = next(row.cells.plain for row in rows if row.key.kind == "collectives")
    assert text.strip("·█▇▆▅▄▃▂▁ ") == ""
    assert "·" in text and "█" in text
    assert text.index("·") < text.index("█")


def test_the_axis_is_round_and_in_place() -> None:
    viewport = viewport_on(5_000, 105_000, (0, 200_000))
    text = axis_row(Look(), viewport, 100, 5_000).plain
    assert text.startswith(("0 us", "0."))
    assert text[20:22].strip() in ("20", "") and text.index("20") == 20
    close = viewport_on(1_000_000, 1_000_900, (0, 2_000_000))
    labels = [
        float(word) for word in axis_row(Look(), close, 100, 0).plain.replace("ms", "").split()
    ]
    assert len(set(labels)) == len(labels) >= 3


def test_narrow_spans_leave_the_cells_to_the_one_around_them() -> None:
    maker = TraceMaker()
    maker.module("outer", "O", 0, 1000)
    for n in range(100):
        maker.module(f"outer.{n}", "I", n * 10, 9)
    maker.module("outer.wide", "W", 500, 200)
    trace = maker.build()
    spans = spans_of(trace, trace.rows("module"))
    names = [trace.names[code] for code in trace.name_codes[spans.events]]
    runs = visible_runs(spans, np.linspace(0, 1_000_000, 51).astype(np.int64))
    assert {names[run.position] for run in runs} == {"module::outer::O", "module::outer.wide::W"}
    near = visible_runs(spans, np.linspace(0, 100_000, 101).astype(np.int64))
    assert len({run.position for run in near}) >= 10


def test_spans_that_began_before_the_view_are_there() -> None:
    maker = TraceMaker()
    maker.module("outer", "O", 0, 1000)
    maker.module("outer.first", "F", 10, 20)
    trace = maker.build()
    spans = spans_of(trace, trace.rows("module"))
    runs = visible_runs(spans, np.linspace(400_000, 500_000, 11).astype(np.int64))
    assert [(run.first, run.last, run.begins) for run in runs] == [(0, 10, False)]


@pytest.mark.parametrize("size", [(60, 13), (80, 19), (100, 25), (120, 35), (200, 45)])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize(
    "make", [cpu_trace, launches_only_trace, one_kernel_trace, lambda: rank_trace(1)]
)
def test_every_kind_of_recording_fits_every_size(
    size: tuple[int, int], ascii: bool, make: object
) -> None:
    width, height = size
    look = Look(ascii=ascii)
    analysis = analyze(make())  # type: ignore[operator]
    timeline = open_timeline(build_lanes(analysis), Moment(), cells_in(width), False)
    picture = draw_timeline(timeline, look, width, height)
    assert len(picture.lines) <= height
    assert all(line.cell_len <= width for line in picture.lines)
    if not analysis.accounted:
        assert any("no device row" in line.plain for line in picture.lines)


def test_nasty_names_are_shown_and_never_interpreted() -> None:
    analysis = decode_analysis(names=NASTY)
    lanes = build_lanes(analysis)
    for row in range(len(analysis.work)):
        timeline = open_timeline(lanes, Moment(work=row), CELLS, False)
        for line in draw_timeline(timeline, Look(), 120, 60).lines:
            assert cell_len(line.plain) <= 120
            assert not any(ord(c) < 32 or ord(c) == 0x7F for c in line.plain)
            assert "\u202e" not in line.plain
    shown = [
        line.text.plain for line in evidence_lines(lanes, Look(), work_selection(lanes, 0), 0, 120)
    ]
    assert any("[red]not red[/red]" in line for line in shown)


def test_evidence_of_a_gap_names_what_surrounds_it_and_its_source(decode: Timeline) -> None:
    lanes = decode.lanes
    gap = biggest(lanes, *step_bounds(lanes, 1))[0]
    assert gap.kind == "gap"
    text = "\n".join(line.text.plain for line in evidence_lines(lanes, Look(), gap, 0, 120))
    for words in ("GAP", "after", "before", "launched", "module", "sample_model.py"):
        assert words in text
    assert place_of(lanes, gap).line == 4


def test_a_gap_that_may_be_none_says_so() -> None:
    maker = TraceMaker()
    maker.annotation("step[DECODE bs=8]", 0, 900)
    maker.launch("k", start=10, run=(90_000, 90_100), operator="aten::mm")
    maker.launch("k", start=30, run=(90_200, 90_300), operator="aten::mm")
    lanes = build_lanes(analyze(maker.build()))
    texts = [
        "\n".join(line.text.plain for line in evidence_lines(lanes, Look(), gap, 0, 90))
        for gap in (gap_selection(lanes, 0), gap_selection(lanes, 1))
    ]
    assert ["has no rows here" in text for text in texts] == [True, False]


def test_the_finding_whose_evidence_it_is_belongs_to_the_selection(decode: Timeline) -> None:
    lanes = decode.lanes
    event = lanes.analysis.findings[0].events[0]
    there = timeline_of(lanes.analysis, Moment(event=event))
    assert there.selection is not None
    found = finding_of(lanes, there.selection)
    assert found is not None and found.rule == "gap.compile"


def lanes_of_big(steps: int) -> Lanes:
    return build_lanes(analyze(big_trace(steps)))


def test_a_large_recording_is_drawn_from_sums_alone() -> None:
    lanes = lanes_of_big(12)
    timeline = open_timeline(lanes, Moment(), CELLS, False)
    whole = timeline
    for _ in range(12):
        whole = whole.zoomed(False)
    rows = draw_lanes(lanes, Look(), whole.viewport, CELLS, whole.keys, whole.lane)
    assert len(rows) == 6
    assert gap_selection(lanes, 0).length_ns >= 0
