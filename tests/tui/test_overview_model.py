"""What the first screen says adds up, and says the answer first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.make_analysis import Step, make_analysis
from tests.tui.samples import decode_analysis, launches_only_trace
from tracer.analysis import GROUPS, Analysis
from tracer.analyzers import analyze
from tracer.exporters.levels import phase_levels
from tracer.tui.look import Look
from tracer.tui.model.modules import build_modules, heaviest_path, modules_table, shown_rows
from tracer.tui.model.overview import Facts, lay_out, where_rows
from tracer.tui.model.steps import mark_steps, steps_table


def screen(analysis: Analysis, width: int, height: int) -> list[str]:
    sheet = lay_out(Facts(analysis), Look(), width, height, 0)
    return [text.plain for text in sheet.draw(Look(), None)]


def uneven_analysis() -> Analysis:
    """Times that do not divide well, two devices, warm-up and an outlier."""
    work = {"attention.core": 111.1, "ffn.projection": 77.7, "other.norm": 0.9}
    rest = {"overhead.launch": 333.3, "communication.all_reduce": 3.1}
    steps = [Step("decode", work | rest)] * 9
    steps.append(Step("decode", {"overhead.launch": 900.0, "attention.core": 111.1}))
    steps.append(Step("decode", {"overhead.compile": 5000.0}, warmup=True))
    return make_analysis(steps)


def group_times(lines: list[str]) -> list[float]:
    """The times of the groups in the table WHERE, as they are shown."""
    at = next(n for n, line in enumerate(lines) if line.startswith(" WHERE"))
    found = []
    for line in lines[at + 1 :]:
        match = re.match(r"   . (\S+)\s+(<?[\d,.]+)\s+<?[\d.]+ %$", line.rstrip())
        if match and match[1] in GROUPS:
            found.append(float(match[2].replace(",", "")))
    return found


@pytest.mark.parametrize("make", [uneven_analysis, decode_analysis])
def test_groups_of_the_table_sum_to_the_time_in_its_title(make: Callable[[], Analysis]) -> None:
    lines = screen(make(), 80, 60)
    title = next(line for line in lines if line.startswith(" WHERE"))
    times = group_times(lines)
    assert len(times) == len(GROUPS)
    assert sum(times) == pytest.approx(float(title.split()[1].replace(",", "")), abs=1e-6)


def test_parts_of_each_group_sum_to_the_group() -> None:
    level = phase_levels(uneven_analysis())[0]
    times: dict[str, int] = {}
    for _, group, part in where_rows(level):
        times[group] = times.get(group, 0) + (level.part_ns(group, part) if part else 0)
    assert times == {group: level.group_ns(group) for group in times}


def test_cells_of_a_step_row_sum_to_its_wall_time() -> None:
    table = steps_table(Look(), uneven_analysis())
    wall = table.column("wall")
    groups = [column for column in table.columns if column.key in GROUPS]
    assert wall is not None and len(groups) == len(GROUPS)
    for row in range(len(table)):
        cells = [column.cells[row].replace(",", "") for column in groups]
        # A cell `<0.1` stands for a part that rounding gave nothing.
        parts = [0.0 if cell.startswith("<") else float(cell) for cell in cells]
        assert sum(parts) == pytest.approx(float(wall.cells[row].replace(",", "")), abs=1e-6)


def test_a_phase_bar_fills_its_room_exactly() -> None:
    for width in (80, 97, 120, 200):
        lines = screen(decode_analysis(), width, 40)
        bar = next(line for line in lines if "▕" in line)
        inside = bar[bar.index("▕") + 1 : bar.rindex("▏")]
        assert " " not in inside
        assert len(bar) <= width


def test_warm_up_and_outliers_are_marked() -> None:
    marks = mark_steps(uneven_analysis())
    assert "".join(marks.letters) == " " * 9 + "!" + "w"
    assert "1 outlier" in marks.counts and "1 warm-up" in marks.counts
    assert marks.slowest == 10


def test_the_answer_comes_first_and_the_findings_are_on_the_first_screen() -> None:
    lines = screen(decode_analysis(), 80, 19)
    assert lines[0].strip()
    shown = "\n".join(lines[:19])
    assert "gap.compile" in shown and "-200 us" in shown and "PHASES" in shown


def test_a_tall_screen_has_the_tables_before_the_findings() -> None:
    lines = screen(decode_analysis(), 120, 60)
    first = {
        title: n for n, line in enumerate(lines) for title in ("WHERE", "FINDINGS") if title in line
    }
    assert first["WHERE"] < first["FINDINGS"]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_no_line_is_wider_than_the_screen(width: int, ascii: bool) -> None:
    look = Look(ascii=ascii)
    sheet = lay_out(Facts(decode_analysis()), look, width, 40, 0)
    for text in sheet.draw(look, sheet.spots[0]):
        assert text.cell_len <= width


def test_what_is_not_known_is_said_and_not_zero() -> None:
    analysis = analyze(launches_only_trace())
    text = "\n".join(screen(analysis, 80, 40))
    assert "not known: launches were recorded and no device row was" in text
    assert "0.0 %" not in text and "100" not in text


def test_a_growing_recording_marks_its_numbers() -> None:
    sheet = lay_out(Facts(decode_analysis(), live=True), Look(), 100, 40, 0)
    text = "\n".join(line.plain for line in sheet.draw(Look(), None))
    assert text.startswith(" ~") and "WHERE ~" in text


def test_floors_of_the_roofline_are_shown_where_there_are_some() -> None:
    row = {"phase": "decode", "part": "attention.core", "reached_ratio": 0.27}
    row |= {"floor_ns": 600_000, "measured_ns": 2_200_000}
    analysis = replace(decode_analysis(), roofline=(row,))
    text = "\n".join(screen(analysis, 120, 50))
    assert "FLOOR" in text and "27 %" in text
    assert "FLOOR" not in "\n".join(screen(decode_analysis(), 120, 50))


def test_shares_of_siblings_and_self_sum_to_the_parent() -> None:
    index = build_modules(decode_analysis())
    rows = shown_rows(index, heaviest_path(index), frozenset())
    for at, row in enumerate(rows):
        below = []
        for other in rows[at + 1 :]:
            if other.depth <= row.depth:
                break
            if other.depth == row.depth + 1:
                below.append(other)
        if below and not row.own:
            assert sum(other.share for other in below) == row.share
            assert sum(other.device_ns for other in below) == row.device_ns
    root = rows[0]
    window = index.analysis.window.capacity_ns
    assert root.share == round(1000 * root.device_ns / window) < 1000
    assert any(row.own for row in rows) or all(
        index.total(row.node, "self_device_ns") == 0 or not row.node.children for row in rows
    )


def test_like_modules_are_one_row_and_unfold_the_slowest_first() -> None:
    index = build_modules(decode_analysis())
    rows = shown_rows(index, heaviest_path(index), frozenset())
    layers = next(row for row in rows if row.node.path == "model.layers.*")
    assert len(layers.node.rows) == 2
    apart = shown_rows(index, heaviest_path(index), frozenset(["model.layers.*"]))
    singles = [row for row in apart if row.node.single]
    times = [row.device_ns for row in singles]
    assert len(singles) == 2 and times == sorted(times, reverse=True)
    table = modules_table(Look(), index, rows)
    assert any("layers.* × 2" in cell for cell in table.columns[0].cells)


def test_phases_of_step_times_alone_have_numbers() -> None:
    steps = [Step("decode", {"overhead.host": 2_000.0})] * 4
    steps += [Step("prefill", {"overhead.host": 5_000.0})]
    timed = make_analysis(steps, devices=0, accounted=False, breakdown_reason="only steps timed")
    lines = screen(timed, 100, 30)
    at = next(n for n, line in enumerate(lines) if line.startswith(" PHASES"))
    assert lines[at + 1].split()[0] == "decode" and "2.00 ms  2.00 ms      4" in lines[at + 1]
    assert lines[at + 2].split()[0] == "prefill" and "5.00 ms" in lines[at + 2]
    assert "not known: only steps timed" in lines[at + 3]
    assert not any(sign in line for line in lines for sign in "▕▏")
    assert lines[at].index("median") + len("median") == lines[at + 1].index("2.00 ms") + 7
