"""Text sections on where the time goes: phases, steps, the breakdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from tracer.analysis import GROUPS, PARTS, Analysis, Phase
from tracer.exporters.format import (
    UNKNOWN,
    Scale,
    duration_text,
    table_scale,
)
from tracer.exporters.layout import (
    CAUSE_LETTERS,
    Column,
    Page,
    bar,
    heading,
    pad,
    paragraph,
    table,
    titled,
)
from tracer.exporters.levels import (
    Level,
    divided,
    has_steps,
    part_level,
    phase_levels,
    window_level,
)
from tracer.exporters.names import inert
from tracer.exporters.spread import bar_levels, mean_note, usual_level
from tracer.exporters.traced import period_text
from tracer.exporters.words import level_words

_WORK_ORDER = ("attention", "ffn", "communication", "other")
_BAR_LABEL_WIDTH = 10
TIME_TITLES = ("median", "p95", "steps", "tok/s")
# What the analysis calls the steps without a phase.
_UNNAMED = {"step": ""}
ANNOUNCING = "t.step() or record_function announces them"
_SHORT = {
    "preparation": "prepare",
    "gradient_communication": "grad comm",
    "draft prefill": "d. prefill",
}
_SHARE_QUANTA = 1000  # tenths of a percent
_LEVEL_WIDTH = 20  # a column of times and one of shares
_LABEL_WIDTH = 20  # the longest part, indented
_SOURCES = {
    "announced": "announced by t.step()",
    "profiler_step": "from ProfilerStep ranges",
    "engine": "from the engine's ranges",
    "annotation": "from repeated ranges",
    "root_call": "from calls of the root module",
    "graph": "from replays of one graph",
}


def segments(level: Level) -> list[tuple[str, str, int]]:
    """What fills a level, in the order of a bar: work by group, then copies and idle by cause."""
    work = [(group, "", level.group_ns(group)) for group in _WORK_ORDER]
    rest = [("overhead", part, level.part_ns("overhead", part)) for part in PARTS["overhead"]]
    return [segment for segment in work + rest if segment[2] > 0]


def phase_lines(page: Page, analysis: Analysis) -> list[Text]:
    """A bar for each phase; for a recording without phases one of the window. Where only the times
    of steps are known, these alone: an empty bar would look like an idle device."""
    phases = with_parts(analysis.phases)
    if not phases or not has_steps(analysis):
        return _window_bar(page, analysis)
    times = [phase_times(phase) for phase in phases]
    if not analysis.accounted:
        return _timed_phases(page, phases, times)
    levels = {level.phase: level for level in bar_levels(analysis)}
    numbers = table(page, [Column(title) for title in TIME_TITLES], times, indent=0)
    width = page.width - _BAR_LABEL_WIDTH - 4 - max(line.cell_len for line in numbers) - 2
    lines = [_phase_title(page, list(levels.values()), numbers[0])]
    for phase, row in zip(phases, numbers[1:], strict=True):
        line = Text("  " + pad(_phase_name(page, phase)[:_BAR_LABEL_WIDTH], _BAR_LABEL_WIDTH))
        level = levels.get(phase.name) or levels.get(_UNNAMED.get(phase.name, phase.name))
        level = part_level(phase, analysis.window.devices) if phase.part_of else level
        line.append_text(bar(page, segments(level) if level else [], width))
        lines.append(line.append("  ").append_text(row))
    return [*lines, *_legend(page, list(levels.values()))]


def _phase_name(page: Page, phase: Phase) -> str:
    name = phase.name.removeprefix(f"{phase.part_of}.")
    name = _SHORT.get(name, name)
    return (" " if phase.part_of else "") + page.name(name)


def _timed_phases(
    page: Page, phases: Sequence[Phase], times: Sequence[tuple[str, ...]]
) -> list[Text]:
    columns = [Column("", "left", flexible=True), *(Column(title) for title in TIME_TITLES)]
    rows = [(_phase_name(page, phase), *row) for phase, row in zip(phases, times, strict=True)]
    return [heading("PHASES"), *table(page, columns, rows)]


def with_parts(phases: Sequence[Phase]) -> list[Phase]:
    """The phases of steps, the longest first, each before the parts of its steps in their order."""
    whole = sorted((p for p in phases if not p.part_of), key=lambda phase: -phase.wall_ns)
    return [p for one in whole for p in (one, *(q for q in phases if q.part_of == one.name))]


def bars_show(levels: Sequence[Level]) -> str:
    """What the bars of these levels stand for."""
    middle = any(level.middle for level in levels)
    return f"one bar = {'its median step' if middle else 'the time of its steps'}"


def _phase_title(page: Page, levels: Sequence[Level], titles: Text) -> Text:
    line = heading("PHASES", bars_show(levels))
    line.append(" " * max(page.width - line.cell_len - titles.cell_len, 1))
    return line.append_text(titles)


def phase_times(phase: Phase) -> tuple[str, str, str, str]:
    """Its cells below TIME_TITLES."""
    tokens = phase.tokens_per_second
    speed = UNKNOWN if tokens is None else f"{tokens:,.1f}" if tokens < 100 else f"{tokens:,.0f}"
    p95 = duration_text(phase.p95_ns) if phase.steps > 1 else UNKNOWN
    return duration_text(phase.median_ns), p95, f"{phase.steps:,}", speed


def _window_bar(page: Page, analysis: Analysis) -> list[Text]:
    if not analysis.accounted or not analysis.window.wall_ns:
        return []
    level = window_level(analysis)
    line = Text("  ").append_text(bar(page, segments(level), page.width - 6))
    title = f"one bar = the whole recording, {duration_text(analysis.window.wall_ns)}"
    return [heading("TIME", title), line, *_legend(page, [level])]


def _legend(page: Page, levels: Sequence[Level]) -> list[Text]:
    """What the textures and letters of the bars mean, those that occur."""
    work = Text(" ")
    for group in _WORK_ORDER:
        if any(level.group_ns(group) for level in levels):
            work.append(f" {page.block(group)}", style=page.style(group)).append(f" {group} ")
    causes = [
        f"{CAUSE_LETTERS[part]} {part}"
        for part in PARTS["overhead"]
        if any(level.part_ns("overhead", part) for level in levels)
    ]
    if not causes:
        return [work] if work.plain.strip() else []
    idle = Text(" idle: ").append("  ".join(causes), style=page.style("overhead"))
    if work.cell_len + idle.cell_len <= page.width:
        return [work.append_text(idle)]
    return [work, *_cause_lines(page, causes)]


def _cause_lines(page: Page, causes: Sequence[str]) -> list[Text]:
    """The causes of idle below each other where one line does not hold them: a letter stays with
    its name."""
    rows = [causes[0]]
    for cause in causes[1:]:
        if len(rows[-1]) + len(cause) + 10 <= page.width:
            rows[-1] += f"  {cause}"
        else:
            rows.append(cause)
    titles = ["  idle: ", *[" " * 8] * (len(rows) - 1)]
    style = page.style("overhead")
    return [Text(title).append(row, style) for title, row in zip(titles, rows, strict=True)]


def step_lines(page: Page, analysis: Analysis) -> list[Text]:
    """How long each step took, as a row of blocks."""
    steps = analysis.steps
    if not has_steps(analysis):
        return titled(page, "STEPS", f"none recognised, so the recording is one; {ANNOUNCING}")
    source = _SOURCES.get(str(steps["source"].iloc[0]), "")
    lines = titled(page, "STEPS", f"{len(steps):,}: {_step_counts(analysis)}; {source}")
    if len(steps) > 1:
        lines += _step_chart(page, analysis)
    period = period_text(analysis)
    return lines + (paragraph(page, period, indent=2, style="dim") if period else [])


def _step_counts(analysis: Analysis) -> str:
    steps = analysis.steps
    named = Counter(map(str, steps.loc[~steps["warmup"], "phase"].tolist()))
    counts = [f"{n:,} {inert(name) or 'of unknown phase'}" for name, n in named.most_common()]
    warmup = int(steps["warmup"].sum())
    if warmup:
        counts.append(f"{warmup:,} warm-up (left out of the phases)")
    return ", ".join(counts)


def _step_chart(page: Page, analysis: Analysis) -> list[Text]:
    walls = analysis.steps["wall_ns"].to_numpy()
    room = page.width - 14
    bins = min(len(walls), room)
    edges = np.linspace(0, len(walls), bins + 1).astype(int)
    highest = np.maximum.reduceat(walls, edges[:-1])
    letters_by_step = _step_letters(analysis)
    letters = "".join(letters_by_step[first] for first in edges[:-1])
    top = duration_text(int(walls.max()))
    left = pad(f"0 to {top}", 2, "right")
    indent = len(left) + 3
    chart = Text(f"  {left} {page.heights(highest.tolist())[: page.width - indent]}")
    slowest = int(walls.argmax())
    name = page.name(str(analysis.steps["name"].iloc[slowest]))
    note = f"slowest: step {slowest} ({name}), {top}"
    lines = [chart]
    if letters.strip():
        lines.append(Text(" " * indent + letters[: page.width - indent]))
    if len(walls) > bins:
        note += f"; one block = the slowest of {len(walls) / bins:.1f} steps"
    return [*lines, *paragraph(page, note, indent=2, style="dim")]


def _step_letters(analysis: Analysis) -> list[str]:
    """A letter under each step that is not of the most frequent phase; w for warm-up."""
    phases = [str(phase) for phase in analysis.steps["phase"].tolist()]
    usual = Counter(phases).most_common(1)[0][0]
    return [
        "w" if warmup else " " if phase == usual else (inert(phase)[:1] or " ")
        for phase, warmup in zip(phases, analysis.steps["warmup"].tolist(), strict=True)
    ]


@dataclass(frozen=True)
class Rounded:
    """A level as it is shown: whole numbers of the last decimal, which add up."""

    level: Level
    scale: Scale
    times: dict[tuple[str, str], int]
    shares: dict[tuple[str, str], int]

    def cells(self, group: str, part: str) -> tuple[str, str]:
        """Time and share of a group (part "") or a part."""
        ns = self.level.part_ns(group, part) if part else self.level.group_ns(group)
        share = self.shares[group, part]
        time = self.scale.quanta_text(self.times[group, part], ns > 0)
        return time, "<0.1 %" if not share and ns else f"{share / 10:.1f} %"


def rounded(level: Level, scale: Scale | None = None) -> Rounded:
    """Times and shares of all groups and parts, rounded so that each level adds up."""
    scale = scale or table_scale(level.per_step(level.total_ns))
    whole = round(level.per_step(level.total_ns) / scale.quantum_ns)
    return Rounded(level, scale, divided(level, whole), divided(level, _SHARE_QUANTA))


def breakdown_lines(page: Page, analysis: Analysis) -> list[Text]:
    """Groups and parts in time and share: a mean step of each phase, and the whole recording."""
    if not analysis.accounted:
        said = f"- not known: {inert(analysis.breakdown_reason)}"
        return titled(page, "WHERE THE TIME GOES", said)
    levels = shown_levels(analysis, _most_levels(page))
    if not levels[0].total_ns:
        return []
    columns = breakdown_columns(levels)
    rows = breakdown_rows(columns)
    return [*_level_titles(columns), *map(_breakdown_line, rows), *_breakdown_notes(page, analysis)]


def _most_levels(page: Page) -> int:
    return max((page.width - _LABEL_WIDTH) // _LEVEL_WIDTH - 1, 1)


def breakdown_columns(levels: Sequence[Level]) -> list[Rounded]:
    """The levels as they are shown."""
    return [rounded(level) for level in levels]


def shown_levels(analysis: Analysis, most: int) -> list[Level]:
    """The columns of the breakdown: at most so many phases, then the window unless it is one."""
    levels = [usual_level(analysis, level) for level in phase_levels(analysis)]
    window = window_level(analysis)
    if len(levels) == 1 and levels[0].steps == 1 and levels[0].wall_ns == window.wall_ns:
        return levels
    return [*levels[:most], window]


def _level_titles(columns: Sequence[Rounded]) -> list[Text]:
    """The names of the levels above their two columns, and the units."""
    names = Text(pad("WHERE THE TIME GOES", _LABEL_WIDTH), style="bold")
    for column in columns:
        names.append(pad(_level_title(column.level), _LEVEL_WIDTH, "right"), style="not bold")
    units = _breakdown_line(["", *(c for column in columns for c in (column.scale.unit, "share"))])
    units.stylize("dim")
    return [names, units]


def _breakdown_line(row: Sequence[str]) -> Text:
    cells = [pad(f"  {row[0]}", _LABEL_WIDTH)]
    cells += [pad(cell, _LEVEL_WIDTH // 2, "right") for cell in row[1:]]
    return Text("".join(cells))


def _level_title(level: Level) -> str:
    if level.phase is None:
        return "whole recording"
    if level.steps == 1 and not level.middle:
        return level_words(level).one.removeprefix("the ")
    name = "a step" if level.phase in ("", "step") else inert(level.phase)
    return f"{name}, {'median' if level.middle else 'mean'}"


def breakdown_rows(columns: Sequence[Rounded]) -> list[list[str]]:
    """Groups by size, each with its parts by size; parts too small to show share a line."""
    rows: list[list[str]] = []
    main = columns[0].level
    for group in sorted(GROUPS, key=lambda g: -main.group_ns(g)):
        rows.append(_row(group, columns, group, ""))
        parts = [p for p in PARTS[group] if any(c.level.part_ns(group, p) for c in columns)]
        parts.sort(key=lambda p: -main.part_ns(group, p))
        rows += [_row(f"  {part}", columns, group, part) for part in parts]
    total = ["sum"]
    for column in columns:
        total += [column.scale.quanta_text(_total(column.times), True), "100.0 %"]
    return [*rows, total]


def _total(quanta: dict[tuple[str, str], int]) -> int:
    return sum(quanta[group, ""] for group in GROUPS)


def _row(label: str, columns: Sequence[Rounded], group: str, part: str) -> list[str]:
    row = [label]
    for column in columns:
        row += column.cells(group, part)
    return row


def _breakdown_notes(page: Page, analysis: Analysis) -> list[Text]:
    notes = [mean_note(analysis, level) for level in phase_levels(analysis)]
    notes = [note for note in notes if note]
    between = analysis.window.between_steps_ns
    if between > 0:
        notes.append(f"{duration_text(between)} of the whole recording lie between steps")
    hidden = analysis.overlapped_ns
    if hidden > 0:
        notes.append(f"{duration_text(hidden)} of communication are hidden under compute")
    if analysis.window.devices > 1:
        notes.append(f"times are sums over {analysis.window.devices} GPUs")
    if analysis.window.devices == 0:
        notes.append("no GPU in this recording: operators count as kernels, the rest as host")
    return paragraph(page, "; ".join(notes) + ".", indent=2, style="dim") if notes else []
