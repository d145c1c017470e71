"""What changed between two recordings, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from tracer.analysis import GROUPS, PARTS, Analysis
from tracer.diff_analysis import (
    DiffAnalysis,
    FindingChange,
    Measure,
    Named,
    PartOfStep,
    PhaseChange,
    Side,
)
from tracer.exporters.diff_findings import CostChange, cost_changes
from tracer.exporters.diff_levels import buckets_of, levels_of, told_turn
from tracer.exporters.diff_verdict import chance, diff_verdict, promise_text
from tracer.exporters.format import (
    UNKNOWN,
    Scale,
    change_percent_text,
    change_text,
    counted,
    duration_text,
    percent_text,
    table_scale,
)
from tracer.exporters.layout import Column, Page, heading, pad, paragraph, table, titled
from tracer.exporters.levels import Level
from tracer.exporters.names import inert, short_kernel, where_text
from tracer.exporters.text import page_of, shown
from tracer.exporters.text_findings import head_items, page_separator
from tracer.exporters.text_times import Rounded, rounded

_MOST_PHASES, _MOST_MODULES, _MOST_KERNELS, _MOST_FINDINGS = 2, 12, 12, 10
# Modules and kernels are listed that changed by this share of the step.
_NOTABLE_RATIO = 0.001
# Modules are listed that changed by this share of what the largest did.
_MODULE_RATIO = 0.05
_WIDE = 90  # from here on there is room for tokens a second
_INDENT = 5
_SIGNS = {"gone": "-", "new": "+", "still": "=", "not_checked": "?"}
_TIMES = ("A", "B", "change")


def render_diff(
    diff: DiffAnalysis,
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool | None = None,
) -> str:
    """The comparison as text; arguments as for the report of one recording."""
    page, costs = page_of(width, ascii), cost_changes(diff)
    lines = paragraph(page, diff_verdict(diff, costs), style="bold")
    return shown(page, [*lines, *diff_lines(page, diff, costs)], color)


def diff_lines(page: Page, diff: DiffAnalysis, costs: Sequence[CostChange]) -> list[Text]:
    """What is compared, and all that changed: the report without its answer."""
    lines = [*_source(page, "A", diff.before), *_source(page, "B", diff.after)]
    sections = [section(page, diff) for section in _SECTIONS]
    sections.append(finding_lines(page, costs) if diff.phases else _untold_lines(page))
    for made in sections:
        lines += [Text(), *made] if made else []
    return lines


def _source(page: Page, side: str, analysis: Analysis) -> list[Text]:
    return source_line(page, side, head_items(analysis))


def source_line(page: Page, side: str, items: Iterable[str]) -> list[Text]:
    """What one side is."""
    return paragraph(page, f"{side}: {page_separator(page).join(items)}", style="dim")


def _difference_lines(page: Page, diff: DiffAnalysis) -> list[Text]:
    """What makes the comparison unfair, then settings that differ and what is not known."""
    lines: list[Text] = []
    for title, breaks in (("NOT LIKE WITH LIKE", True), ("ALSO TO KNOW", False)):
        told = [inert(d.message) for d in diff.differences if d.breaks == breaks]
        if told:
            lines += titled(page, title, "; ".join(told))
    return lines


# --- steps ---------------------------------------------------------------------------------------


def _step_lines(page: Page, diff: DiffAnalysis) -> list[Text]:
    """The median step of each common phase."""
    if not diff.phases:
        return []
    columns = [Column("", "left", flexible=True), *map(Column, (*_TIMES, "", "scatter"))]
    columns += [Column("steps"), Column("tok/s", "left")]
    rows = [row for change in diff.phases for row in _step_rows(page, change)]
    rows += _unprofiled_rows(diff)
    if page.width < _WIDE or not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    lines = [heading("STEPS", _steps_note(diff)), *table(page, columns, rows)]
    return lines + paragraph(page, _scatter_note(diff), indent=2, style="dim")


def _steps_note(diff: DiffAnalysis) -> str:
    if diff.phases[0].phase is None:
        return ""
    sides = [(change.before, change.after) for change in diff.phases]
    ours, theirs = (sum(side.warmup_steps for side in one) for one in zip(*sides, strict=True))
    left_out = f" ({ours:,} in A, {theirs:,} in B)" if ours or theirs else ""
    return f"the median step, warm-up left out{left_out}"


def _scatter_note(diff: DiffAnalysis) -> str:
    unknown = [c.step.reason for c in diff.phases if c.step.scatter_ns is None]
    if diff.phases[0].phase is None:
        return "Without steps nothing tells how far such times scatter."
    if len(unknown) == len(diff.phases):
        return f"The scatter is not known: {unknown[0]}."
    return (
        "Scatter: a change up to it may be chance (95 % interval of the medians). It "
        "is that within the two recordings; other runs of the same program may be further apart."
    )


def _step_rows(page: Page, change: PhaseChange) -> Iterator[list[str]]:
    before, after = change.before, change.after
    name = "whole recording" if change.phase is None else page.name(change.phase) or "step"
    steps = f"{before.steps:,} / {after.steps:,}" if before.steps else UNKNOWN
    yield [name, *measured_cells(change.step), steps, _speeds(before, after)]
    for part in change.parts:
        label = page.name(part.name.removeprefix(f"{change.phase}."))
        yield [f"  {label}", *_part_cells(part), "", "", ""]
    turn = told_turn(change)
    if turn is not None:
        yield ["  start to start", *measured_cells(turn), "", ""]
    if change.mean_turn is not None and change.mean_tells:
        yield ["  start to start, mean", *measured_cells(change.mean_turn.measure), "", ""]


def _part_cells(part: PartOfStep) -> list[str]:
    """Both times, the change and its percentage; a dash where a side has no such part."""
    *times, change, percent, _ = measured_cells(Measure(part.before_ns, part.after_ns))
    both = zip((part.before_ns, part.after_ns), times, strict=True)
    shown = [text if ns else UNKNOWN for ns, text in both]
    return [*shown, change, percent if part.before_ns and part.after_ns else ""]


def measured_cells(measure: Measure) -> list[str]:
    change = change_text(measure.change_ns) if measure.change_ns else "0"
    percent = change_percent_text(measure.change_ratio) if measure.change_ns else ""
    times = [duration_text(measure.before_ns), duration_text(measure.after_ns)]
    return [*times, change, percent, _scatter_text(measure)]


def _scatter_text(measure: Measure) -> str:
    if measure.scatter_ns is None:
        return UNKNOWN
    scatter = duration_text(measure.scatter_ns) if measure.scatter_ns else "0"
    return f"within {scatter}" if measure.within_scatter else scatter


def _speeds(before: Side, after: Side) -> str:
    speeds = before.tokens_per_second, after.tokens_per_second
    if speeds[0] is None or speeds[1] is None:
        return ""
    return " -> ".join(f"{speed:,.1f}" if speed < 100 else f"{speed:,.0f}" for speed in speeds
                       if speed is not None)  # fmt: skip


def _unprofiled_rows(diff: DiffAnalysis) -> list[list[str]]:
    """The step as it is without the profiler, where both recordings measured some."""
    ours, theirs = diff.before.observer, diff.after.observer
    if ours is None or theirs is None or ours.phase != theirs.phase:
        return []
    measure = Measure(ours.unprofiled_step_ns, theirs.unprofiled_step_ns)
    return [["not profiled", *measured_cells(measure)[:4], "", "", ""]]


# --- where it went -------------------------------------------------------------------------------


def _breakdown_lines(page: Page, diff: DiffAnalysis) -> list[Text]:
    """Groups and parts of the compared steps, which add up to them on both sides."""
    lines: list[Text] = []
    for change in diff.phases[:_MOST_PHASES]:
        levels = levels_of(change)
        if levels is None or not max(level.total_ns for level in levels):
            continue
        lines += [*([Text()] if lines else []), *_breakdown(page, change, levels)]
    return lines


def _breakdown(page: Page, change: PhaseChange, levels: tuple[Level, Level]) -> list[Text]:
    scale = table_scale(max(level.per_step(level.total_ns) for level in levels))
    ours, theirs = (rounded(level, scale) for level in levels)
    columns = [Column("", "left"), *(Column(f"{title} {scale.unit}") for title in _TIMES)]
    columns.append(Column("scatter", "left"))
    rows = [row for group in _groups(*levels) for row in _group_rows(group, change, ours, theirs)]
    whole = [sum(side.times[group, ""] for group in GROUPS) for side in (ours, theirs)]
    rows.append(["sum", *_quanta(scale, *whole), ""])
    lines = [heading("WHERE THE TIME GOES", _what_is_shown(page, change))]
    return [*lines, *table(page, columns, rows), *_breakdown_note(page, change)]


def _groups(before: Level, after: Level) -> list[str]:
    """Those that took time, the largest first."""
    longest = {g: max(s.per_step(s.group_ns(g)) for s in (before, after)) for g in GROUPS}
    return sorted((g for g in GROUPS if longest[g]), key=lambda g: -longest[g])


def _group_rows(
    group: str, change: PhaseChange, ours: Rounded, theirs: Rounded
) -> Iterator[list[str]]:
    said = _group_scatter(change, group, ours.scale)
    yield [group, *_changed(group, "", ours, theirs), said]
    parts = [p for p in PARTS[group] if ours.times[group, p] or theirs.times[group, p]]
    for part in sorted(parts, key=lambda p: -_larger(group, p, ours.level, theirs.level)):
        yield [f"  {part}", *_changed(group, part, ours, theirs), ""]


def _larger(group: str, part: str, before: Level, after: Level) -> float:
    return max(level.per_step(level.part_ns(group, part)) for level in (before, after))


def _group_scatter(change: PhaseChange, group: str, scale: Scale) -> str:
    measure = change.medians.get((group, ""))
    whole = next(b for b in buckets_of(change) if (b.group, b.part) == (group, ""))
    if measure is None or measure.scatter_ns is None or not whole.change_ns:
        return ""
    text = scale.text(measure.scatter_ns)
    return {"scatter": f"within {text}", "few": f"{text}, few steps", "": text}[
        chance(change, whole)
    ]


def _changed(group: str, part: str, ours: Rounded, theirs: Rounded) -> list[str]:
    """Both times as they are shown, and the difference of what is shown, so that it adds up."""
    change = theirs.times[group, part] - ours.times[group, part]
    cells = [side.cells(group, part)[0] for side in (ours, theirs)]
    return [*cells, _signed(ours.scale, change)]


def _quanta(scale: Scale, before: int, after: int) -> list[str]:
    texts = [scale.quanta_text(before, True), scale.quanta_text(after, True)]
    return [*texts, _signed(scale, after - before)]


def _signed(scale: Scale, quanta: int) -> str:
    return f"{'+' if quanta > 0 else ''}{scale.quanta_text(quanta, False)}"


def _what_is_shown(page: Page, change: PhaseChange) -> str:
    if change.phase is None:
        return "in the whole recordings"
    name = page.name(change.phase) or "step"
    return f"{name}, the mean {'of the middle half of its steps' if change.middle else 'step'}"


def _breakdown_note(page: Page, change: PhaseChange) -> list[Text]:
    notes = []
    devices = change.before.devices, change.after.devices
    if max(devices) > 1:
        notes.append(f"times are sums over {devices[0]} GPUs in A and {devices[1]} in B")
    if all(side.followed and side.between_ns for side in (change.before, change.after)):
        between = [side.between_ns / side.followed for side in (change.before, change.after)]
        said = f"{duration_text(between[0])} in A, {duration_text(between[1])} in B"
        notes.append(f"between the steps, a step: {said}")
    return paragraph(page, "; ".join(notes) + ".", indent=2, style="dim") if notes else []


# --- modules and kernels -------------------------------------------------------------------------


def _module_lines(page: Page, diff: DiffAnalysis) -> list[Text]:
    """Where in the model the time changed, of the main phase."""
    change = next(iter(diff.phases), None)
    if change is None or not change.modules:
        return []
    rows = _listed(change, change.modules, _MOST_MODULES, _MODULE_RATIO)
    by = "" if change.modules_by == "path" else "; by role, as the paths are others"
    title = heading("MODULES", f"{_what_is_shown(page, change)}{by}")
    if not rows:
        return [title, *paragraph(page, _nothing(change, "module"), indent=2)]
    ordered = _in_tree_order(change.modules, rows)
    scale = _scale(change, rows)
    columns = [Column("", "left", flexible=True), Column("role", "left")]
    columns += [Column(f"{name} {scale.unit}") for name in _TIMES]
    cells = [
        ["  " * depth + page.name(label), page.name(row.kind), *_per_step(change, row, scale)]
        for row, depth, label in ordered
    ]
    return [title, *table(page, columns, cells)]


def _listed(
    change: PhaseChange, rows: Sequence[Named], most: int, of_largest: float = 0.0
) -> list[Named]:
    """Those that changed notably, or that one side does not have; the largest change first."""
    step = max(change.step.before_ns, change.step.after_ns)
    largest = max((abs(_change_ns(change, row)) for row in rows), default=0.0)
    limit = max(_NOTABLE_RATIO * step, of_largest * largest)
    return [row for row in rows if abs(_change_ns(change, row)) >= max(limit, 1)][:most]


def _change_ns(change: PhaseChange, row: Named) -> float:
    return row.after_ns / change.after.count - row.before_ns / change.before.count


def _nothing(change: PhaseChange, noun: str) -> str:
    step = duration_text(_NOTABLE_RATIO * max(change.step.before_ns, change.step.after_ns))
    return f"no {noun} changed by more than {step}, {percent_text(_NOTABLE_RATIO)} of the step"


def _scale(change: PhaseChange, rows: Sequence[Named]) -> Scale:
    sides = ((r.before_ns / change.before.count, r.after_ns / change.after.count) for r in rows)
    return table_scale(max(max(pair) for pair in sides))


def _per_step(change: PhaseChange, row: Named, scale: Scale) -> list[str]:
    before, after = row.before_ns / change.before.count, row.after_ns / change.after.count
    quanta = round(after / scale.quantum_ns) - round(before / scale.quantum_ns)
    return [
        scale.text(before) if row.before_count else UNKNOWN,
        scale.text(after) if row.after_count else UNKNOWN,
        _signed(scale, quanta),
    ]


def _in_tree_order(modules: Sequence[Named], rows: Sequence[Named]) -> list[tuple[Named, int, str]]:
    """The rows below those of the modules around them, with depth and label."""
    known, chosen = {row.name: row for row in modules}, {row.name for row in rows}
    inside: dict[str | None, list[Named]] = {}
    for row in rows:
        inside.setdefault(_shown_around(row, known, chosen), []).append(row)

    def below(around: str | None, of: str | None, depth: int) -> Iterator[tuple[Named, int, str]]:
        for row in inside.get(around, ()):
            if _is_all_of(row, inside.get(row.name, ())):  # the one inside it tells more
                yield from below(row.name, of, depth)
                continue
            own = row.name.removeprefix(f"{of}.") if of else row.name
            yield row, depth, own or "(model)"
            yield from below(row.name, row.name, depth + 1)

    return list(below(None, None, 0))


def _is_all_of(row: Named, inside: Sequence[Named]) -> bool:
    """Whether a module is nothing but the one in it."""
    return [(one.before_ns, one.after_ns) for one in inside] == [(row.before_ns, row.after_ns)]


def _shown_around(row: Named, known: dict[str, Named], chosen: set[str]) -> str | None:
    around = row.parent
    while around is not None and around not in chosen:
        around = known[around].parent if around in known else None
    return around


def _kernel_lines(page: Page, diff: DiffAnalysis) -> list[Text]:
    """Kernels of the main phase that appeared, are gone, or take another time."""
    change = next(iter(diff.phases), None)
    if change is None or not change.kernels:
        return []
    rows = _listed(change, change.kernels, _MOST_KERNELS)
    title = "OPERATORS" if not max(change.before.devices, change.after.devices) else "KERNELS"
    if not rows:
        said = f"{_what_is_shown(page, change)}: {_nothing(change, title.lower()[:-1])}"
        return titled(page, title, said)
    scale = _scale(change, rows)
    columns = [Column("role", "left"), Column("name", "left", flexible=True)]
    columns += [Column("calls A"), Column("B"), *(Column(f"{t} {scale.unit}") for t in _TIMES)]
    names = [page.name(short_kernel(row.name)) for row in rows]
    cells = [
        [row.kind, name, *_calls(change, row), *_per_step(change, row, scale)]
        for row, name in zip(rows, names, strict=True)
    ]
    lines = table(page, columns, cells, identities=[row.name for row in rows])
    return [*titled(page, title, _kernel_note(page, change, len(rows))), *lines]


def _calls(change: PhaseChange, row: Named) -> list[str]:
    counts = row.before_count / change.before.count, row.after_count / change.after.count
    return [
        UNKNOWN if not count else f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"
        for count in counts
    ]


def _kernel_note(page: Page, change: PhaseChange, count: int) -> str:
    gone = sum(not row.after_count for row in change.kernels)
    new = sum(not row.before_count for row in change.kernels)
    rest = len(change.kernels) - count
    note = f"{_what_is_shown(page, change)}; {gone} gone, {new} new"
    return f"{note}; {counted(rest, 'more row')} in the JSON" if rest else note


# --- findings ------------------------------------------------------------------------------------


def finding_lines(page: Page, costs: Sequence[CostChange], title: str = "FINDINGS") -> list[Text]:
    """The findings that went, came or stayed, each with its cost before and after."""
    if not costs:
        return titled(page, title, "none in A and none in B")
    chosen = costs[:_MOST_FINDINGS]
    columns = [Column(title) for title in ("cost A", "B", "change")]
    titles, *numbers = table(page, columns, [_costs(row) for row in chosen])
    lines = _heads(page, heading(title, _finding_counts(costs)), titles)
    for row, line in zip(chosen, numbers, strict=True):
        status = row.change.status.replace("_", " ")
        name = (
            f"{pad(f'  {_SIGNS[row.change.status]}', _INDENT)}{row.change.finding.rule}  {status}"
        )
        lines.append(_beside(page, Text(name, style="bold"), line))
        lines += _finding_details(page, row)
    rest = len(costs) - len(chosen)
    said = f"{counted(rest, 'more finding')} in the JSON. " if rest else ""
    return [*lines, *paragraph(page, f"{said}Cost: mean a step.", indent=2, style="dim")]


def _untold_lines(page: Page) -> list[Text]:
    """Findings of steps that are not compared have neither gone nor come."""
    said = (
        "not compared, as no steps are; `tracer report A` and `tracer report B` tell those of each"
    )
    return titled(page, "FINDINGS", said)


def _finding_counts(costs: Sequence[CostChange]) -> str:
    statuses = [row.change.status for row in costs]
    named = {"gone": "gone", "new": "new", "still": "still there", "not_checked": "not checked"}
    return ", ".join(f"{n} {word}" for s, word in named.items() if (n := statuses.count(s)))


def _costs(row: CostChange) -> list[str]:
    each = "" if row.each_step else " in all"
    cells = [
        f"{duration_text(ns)}{each}" if ns else UNKNOWN for ns in (row.before_ns, row.after_ns)
    ]
    change = row.change_ns
    return [*cells, UNKNOWN if change is None else change_text(change) if change else "0"]


def _finding_details(page: Page, row: CostChange) -> list[Text]:
    finding = row.change.finding
    lines = paragraph(page, inert(finding.title), indent=_INDENT)
    place = _places_text(row.change)
    lines += paragraph(page, f"where: {place}", indent=_INDENT) if place else []
    for said in _sure_words(row):
        lines += paragraph(page, said, indent=_INDENT)
    if row.change.status == "new" and finding.advice:
        lines += paragraph(page, f"do: {inert(finding.advice)}", indent=_INDENT)
    return lines


def _places_text(change: FindingChange) -> str:
    """Where it is; in either recording, where these tell other places."""
    if change.before is None or change.after is None:
        return where_text(change.finding.where)
    places = where_text(change.before.where), where_text(change.after.where)
    if places[0] == places[1]:
        return places[0]
    ours, theirs = (place or "not recorded" for place in places)
    return f"{ours} in A; {theirs} in B"


def _sure_words(row: CostChange) -> Iterator[str]:
    change = row.change
    side = "A" if change.before is None else "B"
    if change.unseen:
        yield f"could not be checked in {side}: {inert(change.unseen)}"
    elif change.below:
        yield change.below
    elif change.unsure and change.status != "still":
        yield f"checked in part in {side}: {inert(change.unsure)}"
    if row.prediction is not None:
        yield f"{promise_text(row.prediction)}. How it was predicted: {inert(row.prediction.basis)}"


def _heads(page: Page, left: Text, right: Text) -> list[Text]:
    """A heading and the titles of columns at its right, below it where they do not fit."""
    fits = left.cell_len + right.cell_len < page.width
    return [_beside(page, left, right)] if fits else [left, _beside(page, Text(), right)]


def _beside(page: Page, left: Text, right: Text) -> Text:
    blanks = " " * max(page.width - left.cell_len - right.cell_len, 1)
    return Text.assemble(left, blanks, right)


_SECTIONS: tuple[Callable[[Page, DiffAnalysis], list[Text]], ...] = (
    _difference_lines,
    _step_lines,
    _breakdown_lines,
    _module_lines,
    _kernel_lines,
)
