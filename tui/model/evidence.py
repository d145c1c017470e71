"""All that is known of what the cursor is on: times, neighbours, host, module, source, finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers.facts.places import parse_frame
from tracer.analyzers.intervals import NONE
from tracer.events import KINDS
from tracer.exporters.format import UNKNOWN, bytes_text, count_text, duration_text
from tracer.exporters.names import cut_middle, short_kernel
from tracer.findings import Finding, Where
from tracer.tui.look import Look
from tracer.tui.model.lanes import Lanes
from tracer.tui.model.lines import BOLD, Line, labelled
from tracer.tui.model.scene import span_name, work_label
from tracer.tui.model.selection import (
    Selection,
    cause_shares,
    host_event,
)
from tracer.tui.model.signs import cause_letter
from tracer.tui.model.source import source_lines

Pair = tuple[str, str]
_NEIGHBOUR_WIDTH = 60


def evidence_lines(
    lanes: Lanes, look: Look, selection: Selection | None, origin_ns: int, width: int
) -> list[Line]:
    """Words on a selection: what and when, what surrounds it, what to do, and last its source."""
    if selection is None:
        return []
    lines = _title_lines(look, _title(lanes, selection, origin_ns), width)
    for label, text in _facts(lanes, selection, origin_ns):
        lines += labelled(label, look.name(text), width)
    where = place_of(lanes, selection)
    found = finding_of(lanes, selection)
    if where.file is None and found is not None:
        where = found.where
    if found is not None:
        lines += labelled("finding", look.name(f"{found.rule}: {found.title}"), width)
        lines += labelled("do", look.name(found.advice), width) if found.advice else []
    return lines + source_lines(look, where, width, lanes.trace.meta.path or "", label="source")


def _title_lines(look: Look, parts: list[str], width: int) -> list[Line]:
    """The parts side by side, as many as fit; the others below."""
    lines = [""]
    for part in map(look.name, parts):
        joined = f"{lines[-1]}   {part}" if lines[-1] else f" {part}"
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(f" {cut_middle(part, width - 1)}")
    return [Line(Text(line, BOLD)) for line in lines]


def _since(time_ns: int, origin_ns: int) -> str:
    return f"{'-' if time_ns < origin_ns else ''}{duration_text(abs(time_ns - origin_ns))}"


def _title(lanes: Lanes, selection: Selection, origin_ns: int) -> list[str]:
    span = f"{_since(selection.start_ns, origin_ns)} to {_since(selection.end_ns, origin_ns)}"
    length = duration_text(selection.length_ns)
    if selection.kind == "gap":
        causes = cause_shares(lanes, selection.row)
        words = f"{cause_letter(causes[0][0])} {causes[0][0]}" if causes else "? unexplained"
        return [f"GAP {length}", span, words, _rank(lanes, selection)]
    return [f"{_kind(lanes, selection).upper()} {length}", span]


def _kind(lanes: Lanes, selection: Selection) -> str:
    event = selection.row
    if selection.kind == "work":
        event = int(lanes.analysis.work["event"].iloc[selection.row])
    kind = KINDS[int(lanes.trace.kind_codes[event])]
    return {"runtime": "call", "annotation": "range"}.get(kind, kind)


def _rank(lanes: Lanes, selection: Selection) -> str:
    longer, every = lanes.gaps.longer_than(selection.length_ns), lanes.gaps.lengths_ns.size
    if not longer:
        return f"the largest of {every:,} gaps"
    return f"{longer:,} of {every:,} gaps are larger"


def _facts(lanes: Lanes, selection: Selection, origin_ns: int) -> Iterator[Pair]:
    if selection.kind == "gap":
        yield from _gap_facts(lanes, selection, origin_ns)
    elif selection.kind == "work":
        yield from _work_facts(lanes, selection.row, origin_ns)
    else:
        yield from _event_facts(lanes, selection.row, origin_ns)
    yield from _module_fact(lanes, selection)


def _gap_facts(lanes: Lanes, selection: Selection, origin_ns: int) -> Iterator[Pair]:
    causes = cause_shares(lanes, selection.row)
    if len(causes) > 1:
        listed = (f"{cause_letter(cause)} {cause} {duration_text(ns)}" for cause, ns in causes)
        yield "causes", ", ".join(listed)
    row = int(lanes.gaps.first[selection.row])
    pieces = slice(row, int(lanes.gaps.last[selection.row]) + 1)
    if lanes.analysis.gaps["unrecorded"].iloc[pieces].any():
        yield "but", "the device may have been busy with work that has no rows here"
    before = int(lanes.analysis.gaps["before"].iloc[row])
    after = int(lanes.analysis.gaps["after"].iloc[row])
    if before != NONE:
        ended = _since(int(lanes.work_end_ns[before]), origin_ns)
        yield "after", f"{_short(work_label(lanes, before))}   ended {ended}"
    if after != NONE:
        label = _short(work_label(lanes, after))
        yield "before", f"{label}   {_launched(lanes, after, origin_ns)}"
    event = int(lanes.analysis.gaps["event"].iloc[int(lanes.gaps.largest_piece[selection.row])])
    if event != NONE:
        length = int(lanes.trace.end_ns[event] - lanes.trace.start_ns[event])
        yield "during", f"the host in {span_name(lanes.name(event))}, {duration_text(length)}"


def _short(label: str) -> str:
    """A neighbour's name: enough to know it by; its own details have the whole."""
    return cut_middle(label, _NEIGHBOUR_WIDTH)


def _launched(lanes: Lanes, work: int, origin_ns: int) -> str:
    if lanes.analysis.cpu_only:
        return f"began {_since(int(lanes.work_start_ns[work]), origin_ns)}"
    launch = int(lanes.analysis.work["launch"].iloc[work])
    if launch == NONE:
        return "its launch is not recorded"
    at = _since(int(lanes.trace.start_ns[launch]), origin_ns)
    return f"launched {at} by {lanes.name(launch)}"


def _work_facts(lanes: Lanes, row: int, origin_ns: int) -> Iterator[Pair]:
    work = lanes.analysis.work
    event = int(work["event"].iloc[row])
    group, part = BUCKETS[int(work["bucket"].iloc[row])]
    yield "name", short_kernel(lanes.name(event))
    how = f"how: {work['how'].iloc[row]}, confidence {float(work['confidence'].iloc[row]):.2f}"
    yield "role", f"{group}.{part}   {how}"
    launch = int(work["launch"].iloc[row])
    text = _launched(lanes, row, origin_ns)
    if launch != NONE:
        delay = int(lanes.work_start_ns[row]) - int(lanes.trace.start_ns[launch])
        wait = duration_text(delay) if delay > 0 else "<= 0 (clock error)"
        text += f", {wait} before it ran"
    if not lanes.analysis.cpu_only:
        yield "launch", text
    operator = int(work["operator"].iloc[row])
    if operator not in (NONE, event):
        yield "operator", lanes.name(operator)
    yield from _side_facts(lanes, event)


def _side_facts(lanes: Lanes, event: int) -> Iterator[Pair]:
    """Sizes of copies and collectives, launch geometry."""
    row = _side_row(lanes, "copies", event)
    if row:
        size = bytes_text(row["bytes"]) if row["bytes"] >= 0 else UNKNOWN
        yield "copy", f"{row['direction']}, {size}, {row['source']} to {row['target']}"
    row = _side_row(lanes, "geometry", event)
    if row:
        yield "blocks", f"{count_text(row['blocks'])} of {count_text(row['threads_per_block'])}"
    row = _side_row(lanes, "shapes", event)
    if row and row["input_shapes"]:
        yield "shapes", str(row["input_shapes"])


def _side_row(lanes: Lanes, table: str, event: int) -> dict[str, Any] | None:
    rows = lanes.trace.table(table)
    at = int(rows["event"].searchsorted(event))
    if at >= len(rows) or int(rows["event"].iloc[at]) != event:
        return None
    return {str(name): value for name, value in rows.iloc[at].items()}


def _event_facts(lanes: Lanes, event: int, origin_ns: int) -> Iterator[Pair]:
    yield "name", span_name(lanes.name(event))
    launched = lanes.launched_by(event)
    if launched.size:
        first = int(launched[0])
        more = f" and {launched.size - 1:,} more" if launched.size > 1 else ""
        began = _since(int(lanes.work_start_ns[first]), origin_ns)
        yield "launches", f"{work_label(lanes, first)}, which ran at {began}{more}"
    parent = int(lanes.host.parent[event])
    if parent != NONE:
        yield "inside", span_name(lanes.name(parent))
    yield from _side_facts(lanes, event)


def _module_fact(lanes: Lanes, selection: Selection) -> Iterator[Pair]:
    module = module_row(lanes, selection)
    if module != NONE:
        row = lanes.analysis.modules.iloc[module]
        yield "module", f"{row['path']}   {row['type']}"


def module_row(lanes: Lanes, selection: Selection) -> int:
    """The row of `modules` of a selection; -1 when none is recorded. For a gap, the module whose
    work it delayed."""
    work = lanes.analysis.work["module"].to_numpy()
    if selection.kind == "work":
        return int(work[selection.row])
    if selection.kind == "gap":
        after = int(lanes.analysis.gaps["after"].iloc[int(lanes.gaps.first[selection.row])])
        return NONE if after == NONE else int(work[after])
    launched = lanes.launched_by(selection.row)
    return int(work[launched[0]]) if launched.size else NONE


def place_of(lanes: Lanes, selection: Selection) -> Where:
    """The innermost Python frame of the user around a selection; empty when none was recorded."""
    at = host_event(lanes, selection)
    parents = lanes.host.parent
    frame = KINDS.index("frame")
    while at != NONE:
        if int(lanes.trace.kind_codes[at]) == frame:
            where = parse_frame(lanes.name(at))
            if where is not None:
                return where
        at = int(parents[at])
    return Where()


def finding_of(lanes: Lanes, selection: Selection) -> Finding | None:
    """The finding that names this selection, or something it is made of, as evidence: one on its
    cause before others, then the one with the fewest pieces of evidence."""
    events = set(_events_of(lanes, selection))
    named = [f for f in lanes.analysis.findings if not events.isdisjoint(f.events)]
    cause = ""
    if selection.kind == "gap":
        cause = next((name for name, _ in cause_shares(lanes, selection.row)), "")
    return min(named, key=lambda f: (cause not in f.rule.split("."), len(f.events)), default=None)


def _events_of(lanes: Lanes, selection: Selection) -> Iterator[int]:
    work = lanes.analysis.work
    if selection.kind == "event":
        yield selection.row
    elif selection.kind == "work":
        yield int(work["event"].iloc[selection.row])
        yield int(work["launch"].iloc[selection.row])
    else:
        first, last = lanes.gaps.first[selection.row], lanes.gaps.last[selection.row]
        pieces = lanes.analysis.gaps.iloc[int(first) : int(last) + 1]
        yield from (event for event in pieces["event"].tolist() if event != NONE)
        after = int(pieces["after"].iloc[0])
        if after != NONE:
            yield int(work["event"].iloc[after])
            yield int(work["launch"].iloc[after])


def event_words(analysis: Analysis, event: int) -> str:
    """An event in a list of evidence: kind, name, length."""
    trace = analysis.trace
    kind = KINDS[int(trace.kind_codes[event])]
    length = duration_text(int(trace.end_ns[event] - trace.start_ns[event]))
    name = span_name(trace.names[int(trace.name_codes[event])])
    return f"{kind:<9} {short_kernel(name)}   {length}"
