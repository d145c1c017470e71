"""The timeline as lines for a size: axis, lanes, cursor, lens, evidence, legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from tracer.exporters.format import duration_text
from tracer.tui.look import Look
from tracer.tui.model.evidence import evidence_lines
from tracer.tui.model.lines import BOLD, DIM, SELECTED, wrapped
from tracer.tui.model.scene import (
    LABEL_WIDTH,
    LaneRow,
    axis_row,
    cursor_row,
    draw_lanes,
    legend,
    lens_viewport,
    selection_words,
)
from tracer.tui.model.selection import LaneKey
from tracer.tui.model.table import cut
from tracer.tui.model.timeline import Timeline
from tracer.tui.model.viewport import Viewport

NARROW = 100
_LENS_HEIGHT = 30
_LEAST_EVIDENCE = 4
_LENS_LANES = ("module", "work", "idle")


@dataclass(frozen=True)
class Picture:
    """The lines, which lane each belongs to, and where the cells begin."""

    lines: Sequence[Text]
    lanes: Sequence[LaneKey | None]
    lens: Viewport | None


def cells_in(width: int) -> int:
    """Cells of a row of lanes."""
    return max(width - LABEL_WIDTH - 1, 8)


def draw_timeline(timeline: Timeline, look: Look, width: int, height: int) -> Picture:
    """Everything, at this size."""
    cells = cells_in(width)
    chart, keys = _chart(timeline, look, cells, _lane_room(height))
    bottom = legend(look, timeline.lanes, width)
    room = height - len(chart) - len(bottom)
    lens: list[Text] = []
    lens_view: Viewport | None = None
    if height >= _LENS_HEIGHT and width >= NARROW and room > 8 + _LEAST_EVIDENCE:
        lens_view = lens_viewport(timeline.viewport, timeline.selection, cells)
        lens = _lens(timeline, look, cells, lens_view)
        room -= len(lens)
    origin = timeline.step_bounds[0]
    said = evidence_lines(timeline.lanes, look, timeline.selection, origin, width)
    words = [line.text for line in said][: max(room, 0)]
    words += [Text()] * (room - len(words))
    lines = [*chart, *lens, *words, *bottom]
    return Picture(lines, [*keys, *[None] * (len(lines) - len(keys))], lens_view)


def _lane_room(height: int) -> int:
    """Rows for lanes: what axis, cursor, legend and a few words leave."""
    return max(height - 4 - _LEAST_EVIDENCE, 2)


def _chart(
    timeline: Timeline, look: Look, cells: int, room: int
) -> tuple[list[Text], list[LaneKey | None]]:
    viewport, origin = timeline.viewport, timeline.step_bounds[0]
    edge = look.sign("│", "|")
    cell = f"{duration_text(viewport.cell_ns(cells))} a cell"
    lines = [Text(f" {cell:<{LABEL_WIDTH - 1}}{edge}", DIM)]
    lines[0].append_text(axis_row(look, viewport, cells, origin))
    keys: list[LaneKey | None] = [None]
    rows = draw_lanes(timeline.lanes, look, viewport, cells, timeline.keys, timeline.lane)
    column = viewport.column(viewport.cursor_ns, cells)
    for row in _in_view(rows, timeline.lane, room):
        chosen = row.key == timeline.lane
        lines.append(_lane_line(row, edge, column, chosen, chosen))
        keys.append(row.key)
    if not timeline.lanes.streams:
        reason = wrapped(look.name(_no_lanes(timeline)), LABEL_WIDTH + cells, 1)
        lines += [line.text for line in reason]
        keys += [None] * len(reason)
    words = selection_words(timeline.lanes, timeline.selection)
    under = cursor_row(look, viewport, cells, timeline.selection, look.name(words))
    lines.append(Text(" " * (LABEL_WIDTH + 1)).append_text(under))
    return lines, [*keys, None]


def _in_view(rows: Sequence[LaneRow], chosen: LaneKey, room: int) -> Sequence[LaneRow]:
    """As many rows as there is room for, the chosen one among them."""
    if len(rows) <= room:
        return rows
    at = next((n for n, row in enumerate(rows) if row.key == chosen), 0)
    first = min(max(at - room // 2, 0), len(rows) - room)
    return rows[first : first + room]


def _lane_line(row: LaneRow, edge: str, column: int, chosen: bool, cursor: bool) -> Text:
    """Label and cells; the chosen lane is marked, and the cell of the cursor reversed."""
    label = cut(row.label, LABEL_WIDTH - 2)
    line = Text().append(
        f"{'>' if chosen else ' '}{label:<{LABEL_WIDTH - 1}}", BOLD if chosen else ""
    )
    line.append(edge, DIM)
    cells = row.cells.copy()
    if cursor and 0 <= column < len(cells.plain):
        cells.stylize(SELECTED, column, column + 1)
    return line.append_text(cells)


def _no_lanes(timeline: Timeline) -> str:
    reason = timeline.lanes.analysis.breakdown_reason
    return reason or "nothing on any lane was recorded"


def _lens(timeline: Timeline, look: Look, cells: int, viewport: Viewport) -> list[Text]:
    """A closer look around the cursor."""
    origin = timeline.step_bounds[0]
    span = f"{duration_text(max(viewport.start_ns - origin, 0))} to "
    span += f"{duration_text(max(viewport.end_ns - origin, 0))}"
    title = Text(" LENS", BOLD).append(
        f"  {span}, {duration_text(viewport.cell_ns(cells))} a cell; Enter zooms to it",
        "not bold dim",
    )
    device = timeline.lane.first if timeline.lane.kind in ("work", "idle") else None
    keys = [key for key in timeline.keys if key.kind in _LENS_LANES]
    keys = [k for k in keys if k.kind == "module" or device is None or k.first == device]
    keys = _one_of_each(keys, timeline.lane)
    rows = draw_lanes(timeline.lanes, look, viewport, cells, keys, timeline.lane)
    column = viewport.column(viewport.cursor_ns, cells)
    edge = look.sign("│", "|")
    lines = [_lane_line(row, edge, column, False, row.key.kind != "module") for row in rows]
    return [Text(), title, *lines, Text()]


def _one_of_each(keys: Sequence[LaneKey], chosen: LaneKey) -> list[LaneKey]:
    """One lane of each kind, the chosen one before others, in the order of the lanes."""
    kept: dict[str, LaneKey] = {}
    for key in keys:
        if key.kind not in kept or key == chosen:
            kept[key.kind] = key
    return [key for key in keys if kept[key.kind] == key]
