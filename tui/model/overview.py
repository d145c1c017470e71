"""The first screen: the answer, then where the time goes, then what to look at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from tracer.analysis import BUCKETS, GROUPS, PARTS, Analysis, Phase
from tracer.exporters.format import (
    UNKNOWN,
    count_text,
    duration_text,
    percent_text,
    table_scale,
)
from tracer.exporters.layout import CAUSE_LETTERS, bar, pad
from tracer.exporters.levels import (
    Level,
    has_steps,
    main_level,
    part_level,
    window_level,
)
from tracer.exporters.module_tree import TreeRow, fold_modules, visible_rows
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.exporters.sentence import verdict
from tracer.exporters.spread import bar_levels, usual_level
from tracer.exporters.text_findings import source_items
from tracer.exporters.text_times import ANNOUNCING, bars_show, rounded, segments
from tracer.exporters.words import level_words
from tracer.rank_analysis import RankAnalysis
from tracer.tui.look import Look
from tracer.tui.model.findings import (
    RankedFinding,
    checks_sentence,
    findings_table,
    no_findings,
    ranked_findings,
)
from tracer.tui.model.lines import (
    BOLD,
    DIM,
    GUTTER,
    Line,
    Target,
    heading,
    marked,
    plain,
    wrapped,
)
from tracer.tui.model.places import Filter, ModulePath, Moment
from tracer.tui.model.signs import page_of
from tracer.tui.model.steps import StepMarks, mark_steps
from tracer.tui.model.table import Column, Table, cut
from tracer.tui.model.titled import titled_lines
from tracer.tui.session import Session

WIDE = 100
_LABEL = 11
_SHORT = {
    "preparation": "prepare",
    "gradient_communication": "grad comm",
    "draft prefill": "d. prefill",
}
_TITLES = ("median", "p95", "steps", "tok/s")
_NARROW = 76
_CHART_LABEL = 10
_WIDEST_COLUMN = 8
_MOST_FLOORS = 6
_FIRST_SENTENCE = re.compile(r".*?[.!?](?=\s|$)")


@dataclass(frozen=True)
class Facts:
    """All that the first screen says of an analysis. `live`: it still grows; `ranks`: those that it
    is one of, once they are compared."""

    analysis: Analysis
    live: bool = False
    ranks: RankAnalysis | None = None

    @property
    def sign(self) -> str:
        """What stands before a number that is not final."""
        return "~" if self.live else ""

    @cached_property
    def verdict(self) -> str:
        """The answer: of all ranks where there are several, then in a sentence of this one."""
        own = verdict(self.analysis)
        if self.ranks is None:
            return own
        first = _FIRST_SENTENCE.match(own)
        rank = self.analysis.trace.meta.rank
        named = "This rank" if rank is None else f"Rank {rank}"
        return f"{ranks_verdict(self.ranks)} {named} alone: {first.group() if first else own}"

    @cached_property
    def source(self) -> list[str]:
        return list(source_items(self.analysis))

    @cached_property
    def levels(self) -> list[Level]:
        return bar_levels(self.analysis)

    @cached_property
    def main(self) -> Level:
        return usual_level(self.analysis, main_level(self.analysis))

    @cached_property
    def ranked(self) -> list[RankedFinding]:
        return ranked_findings(self.analysis)

    @cached_property
    def marks(self) -> StepMarks:
        return mark_steps(self.analysis)

    @cached_property
    def modules(self) -> list[TreeRow]:
        """The modules with most time of their own tree."""
        if not len(self.analysis.modules):
            return []
        rows = visible_rows(fold_modules(self.analysis.modules), 24)
        leaves = [row for row in rows if not row.own and row.depth]
        return sorted(leaves or rows, key=lambda row: -row.node.self_ns)[:6]

    @cached_property
    def checks(self) -> str:
        return checks_sentence(self.analysis)

    def prepare(self) -> Facts:
        """Work out everything now, off the thread that draws."""
        for name in ("verdict", "source", "levels", "main", "ranked", "marks", "modules", "checks"):
            getattr(self, name)
        return self


def facts_of(session: Session) -> Facts:
    """What the first screen says of what is open and shown."""
    assert session.analysis is not None
    comparison = session.comparison
    several = comparison is not None and session.shown in comparison.numbers.values()
    ranks = comparison.ranks if comparison is not None and several else None
    return Facts(session.analysis, session.live, ranks)


@dataclass(frozen=True)
class Spot:
    """A line that can be selected, and where it stands."""

    part: str
    y: int
    x: int
    width: int
    line: Line


@dataclass(frozen=True)
class Block:
    """The lines of one part; `x` and `width` place them on the page."""

    part: str
    lines: Sequence[Line]
    x: int = 0
    width: int = 0


class Sheet:
    """Blocks put under and beside each other."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[list[Block]] = []
        self.spots: list[Spot] = []

    def add(self, part: str, lines: Sequence[Line]) -> None:
        """Put a block below what is there."""
        self._place([Block(part, lines, 0, self.width)])

    def beside(self, left: Block, right: Block) -> None:
        """Put two blocks beside each other."""
        self._place([left, right])

    def _place(self, blocks: Sequence[Block]) -> None:
        top = len(self.rows)
        height = max(len(block.lines) for block in blocks)
        for at in range(height):
            self.rows.append([Block(b.part, b.lines[at : at + 1], b.x, b.width) for b in blocks])
        for block in blocks:
            self.spots += [
                Spot(block.part, top + at, block.x, block.width, line)
                for at, line in enumerate(block.lines)
                if line.selectable
            ]

    def draw(self, look: Look, selected: Spot | None) -> list[Text]:
        """The lines of the sheet, one of them marked."""
        return [self._row(look, y, row, selected) for y, row in enumerate(self.rows)]

    def _row(self, look: Look, y: int, row: Sequence[Block], selected: Spot | None) -> Text:
        text = Text()
        for block in row:
            text.pad_right(max(block.x - text.cell_len, 0))
            for line in block.lines:
                here = selected is not None and (selected.y, selected.x) == (y, block.x)
                text.append_text(marked(look, line, here, block.width))
        return text


def lay_out(facts: Facts, look: Look, width: int, height: int, step: int) -> Sheet:
    """The first screen at this size. Where it is too long for one, the findings come before the
    tables, and nothing is left blank."""
    whole = _sheet(facts, look, width, step, roomy=True)
    return whole if len(whole.rows) <= height else _sheet(facts, look, width, step, roomy=False)


def _sheet(facts: Facts, look: Look, width: int, step: int, *, roomy: bool) -> Sheet:
    sheet = Sheet(width)
    gap = [plain()] if roomy else []
    sheet.add("verdict", [*_verdict_lines(facts, look, width), *gap])
    sheet.add("phases", [*_phase_lines(facts, look, width), *gap])
    chart = [*_step_lines(facts, look, width, step, 2 if roomy else 1), *gap]
    found = [*_finding_lines(facts, look, width), *gap]
    if not roomy:
        sheet.add("findings", found)
    sheet.add("steps", chart)
    _add_tables(sheet, facts, look, width)
    sheet.add("where", gap)
    if roomy:
        sheet.add("findings", found)
    sheet.add("checks", _check_lines(facts, look, width))
    return sheet


def _add_tables(sheet: Sheet, facts: Facts, look: Look, width: int) -> None:
    middle = width // 2 if width >= WIDE else 0
    room = width - middle
    right = [*_floor_lines(facts, look, room), *_module_lines(facts, look, room)]
    if not middle or not right:
        sheet.add("where", _where_lines(facts, look, width))
        sheet.add("modules", right)
        return
    sheet.beside(
        Block("where", _where_lines(facts, look, middle - 2), 0, middle - 2),
        Block("modules", right, middle, room),
    )


def _verdict_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    """The verdict, its first sentence bold."""
    text = look.name(facts.sign + facts.verdict)
    first = _FIRST_SENTENCE.match(text)
    bold = len(first.group().split()) if first else 1 << 20
    lines: list[Line] = []
    for line in wrapped(text, width - 1, 1):
        words = line.text.plain.split()
        if bold > 0:
            line.text.stylize(BOLD, 0, 1 + len(" ".join(words[:bold])))
        bold -= len(words)
        lines.append(line)
    return lines


def _phase_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    analysis = facts.analysis
    if analysis.accounted and not facts.levels:
        return _window_lines(facts, look, width)
    bars = list(_phase_bars(facts)) if analysis.accounted else _timed_alone(analysis)
    why = f"WHERE THE TIME GOES  -  not known: {analysis.breakdown_reason}"
    unknown = [] if analysis.accounted else wrapped(why, width - 1, 1)
    if not bars:
        return unknown
    rows = [_TITLES, *(_phase_numbers(facts, one.phase) for one in bars)]
    numbers = _columns([row[:1] if width < _NARROW else row for row in rows])
    # What filled a step that was only timed is not known: no bar, which would look idle.
    room = max(width - GUTTER - _LABEL - 4 - len(numbers[0]), 8) if analysis.accounted else 0
    lines = [_phase_title(bars, numbers[0], room, width)]
    for one, times in zip(bars, numbers[1:], strict=True):
        text = Text(" " * GUTTER + pad(cut(look.name(one.label), _LABEL - 1), _LABEL))
        if room:
            text.append_text(bar(page_of(look, width), segments(one.level), room)).append("  ")
        text.append(times)
        lines.append(Line(text, Target("steps", Filter(one.query)), one.label.strip()))
    return [*lines, *(unknown or legend_lines(look, facts.levels, width))]


def _phase_title(bars: Sequence[PhaseBar], numbers: str, room: int, width: int) -> Line:
    """The titles of the numbers above them, behind the bars or in their place."""
    said = bars_show([one.level for one in bars])
    title = heading("PHASES", said if room and width >= _NARROW else "")
    end = width - 1 if room else GUTTER + _LABEL + len(numbers)
    title.text.append(" " * max(end - title.text.cell_len - len(numbers), 1))
    title.text.append(numbers, DIM)
    return title


def _timed_alone(analysis: Analysis) -> list[PhaseBar]:
    """The phases of steps whose time is known and not what filled it."""
    nothing = np.zeros(len(BUCKETS), dtype=np.int64)
    whole = sorted((p for p in analysis.phases if not p.part_of), key=lambda p: -p.wall_ns)
    return [
        PhaseBar(
            phase.name or "step",
            Level(phase.name, phase.steps, phase.wall_ns, 0, nothing),
            phase,
            f"phase:{phase.name}" if phase.name else "",
        )
        for phase in whole
        if has_steps(analysis)
    ]


@dataclass(frozen=True)
class PhaseBar:
    """A phase of steps, or a part of their time such as the backward pass."""

    label: str
    level: Level
    phase: Phase | None
    query: str


def _phase_bars(facts: Facts) -> Iterator[PhaseBar]:
    """The phases, the longest first, each before the parts of its steps."""
    analysis = facts.analysis
    whole = {phase.name: phase for phase in analysis.phases if not phase.part_of}
    for level in facts.levels:
        name = level.phase or "step"
        query = f"phase:{level.phase}" if level.phase else ""
        yield PhaseBar(_SHORT.get(name, name), level, whole.get(name), query)
        for phase in analysis.phases:
            if phase.part_of == name:
                part = phase.name.removeprefix(f"{name}.")
                label = f" {_SHORT.get(part, part)}"
                yield PhaseBar(label, part_level(phase, analysis.window.devices), phase, query)


def _window_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    level = window_level(facts.analysis)
    if not level.total_ns:
        return [plain(" TIME  none: nothing in this recording took any")]
    text = Text(" " * GUTTER)
    text.append_text(bar(page_of(look, width), segments(level), width - GUTTER - 3))
    note = f"one bar = the whole recording, {duration_text(level.wall_ns)}"
    return [
        heading("TIME", note),
        Line(text, Target("timeline", Moment(step=0))),
        *legend_lines(look, [level], width),
    ]


def _phase_numbers(facts: Facts, phase: Phase | None) -> tuple[str, str, str, str]:
    if phase is None:
        return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN
    tokens = phase.tokens_per_second
    speed = UNKNOWN if tokens is None else f"{tokens:,.1f}" if tokens < 100 else f"{tokens:,.0f}"
    p95 = duration_text(phase.p95_ns) if phase.steps > 1 else UNKNOWN
    return facts.sign + duration_text(phase.median_ns), p95, f"{phase.steps:,}", speed


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def legend_lines(look: Look, levels: Sequence[Level], width: int) -> list[Line]:
    """What the signs of a bar stand for: those that occur."""
    page = page_of(look, width)
    work = Text(" " * GUTTER)
    for group in ("attention", "ffn", "communication", "other"):
        if any(level.group_ns(group) for level in levels):
            work.append(page.block(group), page.style(group)).append(f" {group}  ")
    causes = [p for p in PARTS["overhead"] if any(v.part_ns("overhead", p) for v in levels)]
    if not causes:
        return [Line(work)]
    idle = Text("idle: ")
    idle.append("  ".join(f"{CAUSE_LETTERS[c]} {c}" for c in causes), page.style("overhead"))
    if work.cell_len + idle.cell_len <= width:
        return [Line(work.append_text(idle))]
    return [Line(work), Line(Text(" " * GUTTER).append_text(idle))]


def _step_lines(facts: Facts, look: Look, width: int, step: int, rows: int) -> list[Line]:
    if not has_steps(facts.analysis):
        return [heading("STEPS", f"none recognised; {ANNOUNCING}")]
    marks = facts.marks
    title = heading("STEPS", f"{len(marks.walls_ns):,}: {marks.counts}")
    chart = step_chart(marks, look, width, step, rows)
    target = Target("timeline", Moment(step=step))
    first = Line(chart[0].text, target, f"step {step}")
    return [title, first, *chart[1:]]


def step_chart(marks: StepMarks, look: Look, width: int, step: int, rows: int) -> list[Line]:
    """The wall time of each step as a column, the chosen one marked below; what stands out is
    said beside."""
    page = page_of(look, width)
    top = duration_text(float(marks.walls_ns.max(initial=0)))
    left = " " * GUTTER + f"{top:>{_CHART_LABEL - GUTTER - 1}} "
    room = max(width - len(left) - 2, 8)
    bins = bins_of(len(marks.walls_ns), room)
    each = min(max(room // (2 * len(bins)), 1), _WIDEST_COLUMN)
    heights = np.maximum.reduceat(marks.walls_ns, bins)
    body = _bars(look, heights, rows, each)
    lines = [Line(Text(left + look.sign("│", "|") + body[0]))]
    for line in body[1:]:
        label = "0".rjust(_CHART_LABEL - 1) + " "
        lines.append(Line(Text(label + look.sign("│", "|") + line)))
    lines.append(_mark_line(marks, bins, step, len(left) + 1, each))
    note = marks.note(step)
    if len(bins) < len(marks.walls_ns):
        most = -(-len(marks.walls_ns) // len(bins))
        note += f"; one column = the slowest of up to {most} steps"
    lines += wrapped(look.name(note), page.width, style=DIM)
    return lines


def bins_of(steps: int, room: int) -> NDArray[np.int64]:
    """The first step of each column of a chart."""
    columns = max(min(steps, room), 1)
    return np.arange(columns, dtype=np.int64) * steps // columns


def _bars(look: Look, heights: NDArray[np.int64], rows: int, each: int) -> list[str]:
    signs = " .-=#" if look.ascii else " ▁▂▃▄▅▆▇█"
    grain = len(signs) - 1
    top = max(int(heights.max(initial=0)), 1)
    levels = np.maximum(np.rint(heights / top * grain * rows).astype(np.int64), 1)
    gap = " " if each > 1 else ""
    return [
        "".join(
            signs[n] * (each - len(gap)) + gap
            for n in np.clip(levels - grain * below, 0, grain).tolist()
        )
        for below in range(rows - 1, -1, -1)
    ]


def _mark_line(
    marks: StepMarks, bins: NDArray[np.int64], step: int, indent: int, each: int
) -> Line:
    """Letters under the columns, and `^` under the chosen one."""
    chosen = int(np.searchsorted(bins, step, side="right")) - 1
    letters = "".join(marks.letters[int(first)].ljust(each) for first in bins)
    text = Text(" " * indent + letters)
    at = indent + chosen * each
    return Line(Text.assemble(text[:at], ("^", BOLD), text[at + 1 :]))


def _where_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    if not facts.analysis.accounted or not facts.main.total_ns:
        return []
    level = facts.main
    column = rounded(level)
    words = level_words(level)
    whole = facts.sign + column.scale.with_unit(level.per_step(level.total_ns))
    subject = words.one if level.middle else words.subject
    room = max(width - GUTTER - 22, 12)
    titles = (f"WHERE {whole} OF {subject.upper()} GO", f"WHERE {whole} GO", "WHERE")
    # The title, the unit and the share each have their cells.
    head = heading(next((title for title in titles if len(title) <= width - 15), titles[-1]))
    page = page_of(look, width)
    head.text.append(f"{column.scale.unit:>{max(width - 10 - head.text.cell_len, 4)}}", DIM)
    head.text.append(f"{'share':>10}", DIM)
    lines = [head]
    for label, group, part in where_rows(level):
        time, share = column.cells(group, part)
        text = Text(" " * GUTTER).append(_row_sign(look, group, part), page.style(group))
        text.append(f" {pad(cut(label, room), room)}{time:>10}{share:>10}")
        lines.append(Line(text, _part_target(level, group, part), label.strip()))
    return lines


def _row_sign(look: Look, group: str, part: str) -> str:
    """What stands for the row in a bar: the texture of its group, the letter of its cause."""
    if group == "overhead":
        return CAUSE_LETTERS[part] if part else " "
    return " " if part else page_of(look, 1).block(group)


def where_rows(level: Level) -> Iterator[tuple[str, str, str]]:
    """Groups by size, each with its parts by size: label, group, part ("" for the group)."""
    for group in sorted(GROUPS, key=lambda group: -level.group_ns(group)):
        yield group, group, ""
        for part, _ in level.largest_parts(group):
            yield f"  {part}", group, part


def _part_target(level: Level, group: str, part: str) -> Target:
    largest = level.largest_parts(group)
    if not part and group == "overhead" and largest:
        part = largest[0][0]
    if group == "overhead" and part != "transfer":
        return Target("timeline", Moment(cause=part))
    return Target("kernels", Filter(f"role:{group}.{part}"))


def _floor_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    rows = [row for row in facts.analysis.roofline if row.get("measured_ns")]
    if not rows:
        return []
    rows = rows[:_MOST_FLOORS]
    names = [look.name(name) for name in floor_names(rows)]
    columns = (
        Column("part", "", names, None, "left", flexible=True),
        Column("floor", "floor", [duration_text(row.get("floor_ns")) for row in rows]),
        Column("now", "now", [duration_text(row["measured_ns"]) for row in rows], rank=1),
        Column("reached", "reached", [percent_text(row.get("reached_ratio")) for row in rows]),
    )
    targets = [Target("kernels", Filter(str(row.get("part") or ""))) for row in rows]
    table = Table(columns, names, lambda row: targets[row])
    return [*titled_lines(look, "FLOOR", table, width), plain()]


def floor_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each row is about: with its phase, unless the row of the whole step names the only
    one."""
    phases = {row.get("phase") or "" for row in rows}
    alone = len(phases) == 1 and any(not row.get("part") for row in rows)
    return [_floor_name(row.get("phase") or "", row.get("part"), alone) for row in rows]


def _floor_name(phase: str, part: str | None, alone: bool) -> str:
    if not part:
        return f"{phase or 'whole'} step"
    return part if alone or not phase else f"{phase} {part}"


def _module_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    rows = facts.modules
    if not facts.analysis.accounted or not rows:
        return []
    scale = table_scale(max(row.node.device_ns for row in rows))
    times = "device" if facts.analysis.window.devices else "operator"
    nodes = [row.node for row in rows]
    names = [look.name(node.path or node.type) for node in nodes]
    columns = (
        Column("module", "", names, None, "left", flexible=True, least=20),
        Column("own", f"own {scale.unit}", [scale.text(node.self_ns) for node in nodes]),
        Column("calls", "calls", [count_text(node.calls) for node in nodes], rank=1),
    )
    targets = [Target("modules", ModulePath(node.path)) for node in nodes]
    table = Table(columns, [node.path for node in nodes], lambda row: targets[row])
    return titled_lines(look, "MODULES", table, width, f"whole recording, {times} time")


def _finding_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    if not facts.ranked:
        return wrapped(f"FINDINGS  {no_findings(facts.analysis)}", width - 1, 1)
    table = findings_table(look, facts.ranked, facts.analysis)
    lines = titled_lines(look, "FINDINGS", table, width)
    said = "Cost: mean of its steps. Gains do not add up: each is computed alone."
    return [*lines, *wrapped(said, width, style=DIM)]


def _check_lines(facts: Facts, look: Look, width: int) -> list[Line]:
    lines = wrapped(look.name(f"CHECKS  {facts.checks}"), width - 1, 1)
    return [Line(lines[0].text, Target("findings", Filter("checks")), "checks"), *lines[1:]]
