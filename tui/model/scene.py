"""The lanes of a timeline as rows of cells, for one stretch of time and one width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from tracer.analysis import BUCKETS, GROUPS
from tracer.exporters.format import duration_text, scale_for
from tracer.exporters.names import short_kernel
from tracer.tui.look import Look
from tracer.tui.model.coverage import dominant, ratios
from tracer.tui.model.lanes import Lanes, StreamLane
from tracer.tui.model.lines import BOLD, DIM
from tracer.tui.model.selection import (
    LaneKey,
    Selection,
    lane_keys,
    spans_at,
    stream_of,
    thread_of,
)
from tracer.tui.model.signs import (
    GROUP_LETTERS,
    cause_letter,
    group_styles,
    load_levels,
    load_signs,
)
from tracer.tui.model.spans import draw_runs, visible_runs
from tracer.tui.model.table import cut
from tracer.tui.model.viewport import Viewport

LABEL_WIDTH = 16
_HOST = ("ranges", "module", "operator", "launches")
# Kinds of lanes of a thread that needs its name beside it.
_SHORT = {"operator": "op", "launches": "call", "module": "mod", "ranges": "range"}
_OVERHEAD = GROUPS.index("overhead")
_COMMUNICATION = GROUPS.index("communication")
_OTHER = GROUPS.index("other")
# Idle shows its letter from this share of a cell on: below, the cell is as good as full.
_LEAST_IDLE_RATIO = 1 / 16


@dataclass(frozen=True)
class LaneRow:
    """One row: the lane it belongs to, its label, and its cells."""

    key: LaneKey
    label: str
    cells: Text


@dataclass(frozen=True)
class Painter:
    """What stays the same while the rows of one picture are drawn."""

    lanes: Lanes
    look: Look
    edges: NDArray[np.int64]

    @property
    def cells(self) -> int:
        return int(self.edges.size) - 1

    def styled(self, signs: str, groups: NDArray[np.int64]) -> Text:
        """Signs coloured by group (-1: none), in runs."""
        text = Text(signs)
        styles = group_styles(self.look.light)
        bounds = np.flatnonzero(np.diff(groups)) + 1
        firsts = np.concatenate([[0], bounds]).tolist()
        lasts = np.concatenate([bounds, [groups.size]]).tolist()
        for first, last in zip(firsts, lasts, strict=True):
            if groups[first] >= 0:
                text.stylize(styles[int(groups[first])], first, last)
        return text


def shown_keys(lanes: Lanes, folded: bool) -> list[LaneKey]:
    """The lanes that are drawn; folded ones leave the host out, unless there is nothing else."""
    keys = lane_keys(lanes)
    if not folded:
        return keys
    device = [key for key in keys if key.kind not in _HOST]
    return device or keys


def draw_lanes(
    lanes: Lanes,
    look: Look,
    viewport: Viewport,
    cells: int,
    keys: Sequence[LaneKey],
    chosen: LaneKey,
) -> list[LaneRow]:
    """The rows of these lanes. The chosen stream shows the letters of its work."""
    painter = Painter(lanes, look, viewport.edges(cells))
    rows: list[LaneRow] = []
    lettered = _lettered_stream(lanes, keys, chosen)
    for key in keys:
        if key.kind == "work":
            rows += _stream_rows(painter, key, key == lettered)
        else:
            rows.append(_lane_row(painter, key))
    return rows


def _lettered_stream(lanes: Lanes, keys: Sequence[LaneKey], chosen: LaneKey) -> LaneKey | None:
    """The stream whose work is spelled out: the chosen one, or the first of the chosen device."""
    if chosen.kind == "work":
        return chosen
    device = chosen.first if chosen.kind == "idle" else None
    works = [key for key in keys if key.kind == "work"]
    return next((key for key in works if device is None or key.first == device), None)


def _lane_row(painter: Painter, key: LaneKey) -> LaneRow:
    if key.kind == "idle":
        return LaneRow(key, "idle", _idle_cells(painter, key))
    if key.kind == "copies":
        coverage = painter.lanes.copy_coverage
        share = ratios(coverage.within(painter.edges), painter.edges)
        return LaneRow(
            key, "copies", _one_group(painter, load_signs(painter.look, share), _OVERHEAD)
        )
    if key.kind == "collectives":
        return LaneRow(key, "collectives", _collective_cells(painter))
    if key.kind == "rank":
        return LaneRow(
            key, f"rank {key.first}".ljust(LABEL_WIDTH - 7) + " load", _rank_cells(painter, key)
        )
    thread = thread_of(painter.lanes, key)
    label: str = key.kind
    if thread is not None and thread is not painter.lanes.threads[0]:
        label = f"{_SHORT.get(key.kind, key.kind)} {thread.name}"
    if key.kind == "launches" and thread is not None:
        share = ratios(thread.call_coverage.within(painter.edges), painter.edges)
        return LaneRow(key, label, _one_group(painter, load_signs(painter.look, share), _OTHER))
    return LaneRow(key, label, _span_cells(painter, key))


def _one_group(painter: Painter, signs: str, group: int) -> Text:
    return Text(signs, group_styles(painter.look.light)[group])


def stream_label(lanes: Lanes, device: int, stream: int) -> str:
    """`stream 7`, with the device where there are several."""
    if lanes.analysis.cpu_only:
        return "operators"
    many = len({lane.device for lane in lanes.streams}) > 1
    return f"GPU {device} st {stream}" if many else f"stream {stream}"


def _stream_rows(painter: Painter, key: LaneKey, lettered: bool) -> list[LaneRow]:
    stream = stream_of(painter.lanes, key)
    if stream is None:
        return []
    group, _ = dominant(stream.groups, painter.edges)
    share = ratios(stream.busy.within(painter.edges), painter.edges)
    label = stream_label(painter.lanes, key.first, key.second)
    load = painter.styled(load_signs(painter.look, share), group)
    rows = [LaneRow(key, f"{label.ljust(LABEL_WIDTH - 7)} load", load)]
    if lettered:
        letters = "".join(_letter(code) for code in group.tolist())
        rows.append(LaneRow(key, "work".rjust(LABEL_WIDTH - 2), painter.styled(letters, group)))
    return rows


def _letter(group: int) -> str:
    return GROUP_LETTERS[GROUPS[group]] if group >= 0 and group != _OVERHEAD else _copy(group)


def _copy(group: int) -> str:
    """Copies between host and device are overhead that fills a stream."""
    return " " if group < 0 else "t"


def _idle_cells(painter: Painter, key: LaneKey) -> Text:
    idle = painter.lanes.idle[key.first]
    cause, idle_ns = dominant(idle.coverages, painter.edges)
    seen = ratios(idle_ns, painter.edges) >= _LEAST_IDLE_RATIO
    letters = [cause_letter(name) for name in idle.causes]
    signs = "".join(
        letters[code] if code >= 0 and shown else " "
        for code, shown in zip(cause.tolist(), seen.tolist(), strict=True)
    )
    return Text(signs, group_styles(painter.look.light)[_OVERHEAD])


def _collective_cells(painter: Painter) -> Text:
    """Filled where exposed, a dot where compute covers the collective."""
    lanes, edges = painter.lanes, painter.edges
    exposed = load_levels(ratios(lanes.exposed.within(edges), edges))
    covered = lanes.collective_coverage.within(edges) > 0
    dot = painter.look.sign("·", "'")
    signs = load_signs(painter.look, ratios(lanes.exposed.within(edges), edges))
    text = "".join(
        sign if level else dot if hidden else " "
        for sign, level, hidden in zip(signs, exposed.tolist(), covered.tolist(), strict=True)
    )
    return _one_group(painter, text, _COMMUNICATION)


def _rank_cells(painter: Painter, key: LaneKey) -> Text:
    """The load of another rank; where most of it is a collective, in the colour of those."""
    other = next(other for other in painter.lanes.others if other.rank == key.first)
    busy = other.busy.within(painter.edges)
    in_collective = 2 * other.collectives.within(painter.edges) > busy
    groups = np.where(busy > 0, np.where(in_collective, _COMMUNICATION, _OTHER), -1)
    return painter.styled(load_signs(painter.look, ratios(busy, painter.edges)), groups)


def _span_cells(painter: Painter, key: LaneKey) -> Text:
    spans = spans_at(painter.lanes, key)
    if spans is None or not len(spans):
        return Text(" " * painter.cells)
    runs = visible_runs(spans, painter.edges)

    def label(position: int, room: int) -> str:
        event = int(spans.events[position])
        length = int(spans.end_ns[position] - spans.start_ns[position])
        return _span_label(painter, event, length, room)

    return Text(draw_runs(painter.look, runs, painter.cells, label))


def _span_label(painter: Painter, event: int, length_ns: int, room: int) -> str:
    """The longest form of a span's name that fits; nothing rather than half a name."""
    name = painter.look.name(span_name(painter.lanes.name(event)))
    timed = f"{name} {duration_text(length_ns)}"
    forms = [timed, name, name.rpartition("::")[2], ".".join(name.split(".")[-2:])]
    tail = name.rpartition(".")[2]
    forms += [] if tail.isdigit() else [tail]
    return next((form for form in forms if form and cell_len(form) <= room), "")


def span_name(name: str) -> str:
    """A span's name without what every name of its kind carries."""
    if name.startswith("module::"):
        return name.removeprefix("module::").rpartition("::")[0] or name
    return name


def axis_row(look: Look, viewport: Viewport, cells: int, origin_ns: int) -> Text:
    """Round times since an origin, as far apart as they need to be read."""
    step_ns = _round_step(viewport.span_ns * 14 / cells)
    scale = scale_for(max(abs(viewport.end_ns - origin_ns), step_ns))
    scale = replace(scale, places=_places(step_ns, scale.unit_ns))
    row = [" "] * cells
    tick = -(-(viewport.start_ns - origin_ns) // step_ns) * step_ns
    free = 0
    while tick + origin_ns < viewport.end_ns:
        at = viewport.column(tick + origin_ns, cells)
        number = f"{tick / scale.unit_ns:,.{scale.places}f}"
        text = f"{number} {scale.unit}" if not free else number
        if at >= free and at + len(text) <= cells:
            row[at : at + len(text)] = list(text)
            free = at + len(text) + 2
        tick += step_ns
    return Text("".join(row), DIM)


def _places(step_ns: int, unit_ns: int) -> int:
    """Decimals that tell neighbouring ticks apart."""
    places = 0
    while step_ns * 10**places % unit_ns and places < 9:
        places += 1
    return places


def _round_step(least_ns: float) -> int:
    """The smallest of 1, 2, 5, 10, 20 … nanoseconds that is at least so much."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= least_ns:
                return digit * power
        power *= 10


def cursor_row(
    look: Look, viewport: Viewport, cells: int, selection: Selection | None, words: str
) -> Text:
    """A line under the lanes: where the cursor is, and how far the selection reaches."""
    row = [" "] * cells
    at = min(max(viewport.column(viewport.cursor_ns, cells), 0), cells - 1)
    if selection is not None:
        first = max(viewport.column(selection.start_ns, cells), 0)
        last = min(viewport.column(max(selection.end_ns - 1, 0), cells), cells - 1)
        if last > first and first < cells:
            row[first : last + 1] = [look.rule] * (last + 1 - first)
            row[first] = row[last] = "^"
    row[at] = "^"
    marks = "".join(row).rstrip()
    said = cut(words, max(cells - 2, 8))
    free_before = len(marks) - len(marks.lstrip())
    if len(marks) + 1 + cell_len(said) <= cells:
        return Text(f"{marks} {said}", BOLD)
    if cell_len(said) + 1 <= free_before:
        blanks = " " * (free_before - cell_len(said) - 1)
        return Text(f"{blanks}{said} {marks.lstrip()}", BOLD)
    return Text(marks, BOLD)


def lens_viewport(viewport: Viewport, selection: Selection | None, cells: int) -> Viewport:
    """A closer look around the cursor; for what is longer than that, around its end, where
    something else begins."""
    span = max(viewport.span_ns // 64, cells)
    middle = viewport.cursor_ns
    if selection is not None and selection.length_ns > span:
        middle = selection.end_ns
    start = middle - span // 2
    return replace(viewport, start_ns=start, span_ns=span)._inside()


def work_label(lanes: Lanes, row: int) -> str:
    """`attention.core  flash_fwd_splitkv[128]`."""
    group, part = BUCKETS[int(lanes.analysis.work["bucket"].iloc[row])]
    event = int(lanes.analysis.work["event"].iloc[row])
    return f"{group}.{part}  {short_kernel(lanes.name(event))}"


def cell_loads(stream: StreamLane, viewport: Viewport, cells: int) -> NDArray[np.float64]:
    """The share of each cell's time in which a stream works."""
    edges = viewport.edges(cells)
    return ratios(stream.busy.within(edges), edges)


def selection_words(lanes: Lanes, selection: Selection | None) -> str:
    """`gap, 35.0 ms`, for the line under the lanes."""
    if selection is None:
        return "nothing here"
    kind = {"work": "", "gap": "gap ", "event": ""}[selection.kind]
    name = "" if selection.kind == "gap" else _selection_name(lanes, selection) + " "
    return f"{kind}{name}{duration_text(selection.length_ns)}"


def _selection_name(lanes: Lanes, selection: Selection) -> str:
    if selection.kind == "work":
        return short_kernel(lanes.name(int(lanes.analysis.work["event"].iloc[selection.row])))
    return span_name(lanes.name(selection.row))


def legend(look: Look, lanes: Lanes, width: int) -> list[Text]:
    """What the signs stand for, those that occur; whole words, in at most two lines."""
    styles = group_styles(look.light)
    entries: list[tuple[str, str, Style]] = []
    for group, letter in (*GROUP_LETTERS.items(), ("overhead", "t")):
        at = GROUPS.index(group)
        if any(lane.groups[at].total_ns for lane in lanes.streams):
            name = "transfer" if group == "overhead" else group
            entries.append((letter, name, styles[at]))
    work = _entries(" work:", entries, width)
    causes = dict.fromkeys(cause for idle in lanes.idle.values() for cause in idle.causes)
    named = [(cause_letter(cause), cause, styles[_OVERHEAD]) for cause in causes]
    idle = _entries(" idle:", named, width)
    if work.cell_len + idle.cell_len > width:
        return [work, idle]
    signs = ". to #" if look.ascii else "▁ to █"
    load = f" load: {signs} = share of the cell's time with work on it; blank = none"
    both = work.append_text(idle)
    return [both, Text(load, DIM)] if len(load) <= width else [both]


def _entries(title: str, entries: Sequence[tuple[str, str, Style]], width: int) -> Text:
    line = Text(title) if entries else Text()
    for letter, name, style in entries:
        if line.cell_len + len(letter) + len(name) + 3 <= width:
            line.append(" ").append(letter, style).append(f" {name} ")
    return line
