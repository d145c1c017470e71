"""The report as one self-contained page: no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.analysis import BUCKETS, Analysis
from tracer.exporters.absent import all_checks
from tracer.exporters.costs import Cost
from tracer.exporters.format import UNKNOWN, bytes_text, count_text, duration_text, percent_text
from tracer.exporters.html_plots import level_bar, module_icicle, step_columns, text
from tracer.exporters.html_style import CSS, POLICY
from tracer.exporters.json_report import all_notes
from tracer.exporters.levels import Level, phase_levels, window_level
from tracer.exporters.merged import reported_costs
from tracer.exporters.module_tree import fold_modules, visible_rows
from tracer.exporters.names import short_kernel, where_text
from tracer.exporters.ranks_verdict import job_words
from tracer.exporters.sentence import verdict
from tracer.exporters.spread import mean_note, usual_level
from tracer.exporters.text_findings import head_items, live_items
from tracer.exporters.text_index import index_rows, place_names
from tracer.exporters.text_times import (
    TIME_TITLES,
    breakdown_columns,
    breakdown_rows,
    phase_times,
    shown_levels,
    with_parts,
)
from tracer.exporters.traced import block_text, period_text
from tracer.exporters.words import level_words, limit_words
from tracer.rank_analysis import JobAmong

_MOST_KERNELS = 40
_MOST_MODULES = 40
_LEVEL_COLUMNS = 3
_GROUPS_SHOWN = ("attention", "ffn", "communication", "other", "overhead")


def to_html(*analyses: Analysis, jobs: Sequence[JobAmong] = ()) -> str:
    """A page with the report of each analysis, of several below an index of them. `jobs`: which of
    them are ranks of one job."""
    title = "tracer report"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'{POLICY}<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title>"
        "<style>html{color-scheme:light dark}body{margin:0}"
        "@media (prefers-color-scheme:dark){body{background:#161616}}</style></head><body>"
        + (_several(analyses, jobs) if len(analyses) > 1 else to_fragment(*analyses))
        + "</body></html>\n"
    )


def _several(analyses: Sequence[Analysis], jobs: Sequence[JobAmong]) -> str:
    """An index, then the reports, each below its number and name."""
    _, names = place_names(analyses)
    titles = [f"{number} of {len(names)}: {name}" for number, name in enumerate(names, 1)]
    reports = (
        f'<header class="tracer-report"><h2>{text(title)}</h2></header>{to_fragment(analysis)}'
        for title, analysis in zip(titles, analyses, strict=True)
    )
    index = f'<header class="tracer-report">{_jobs(jobs)}{_index(analyses)}</header>'
    return f"<style>{CSS}</style>{index}{''.join(reports)}"


def _jobs(jobs: Sequence[JobAmong]) -> str:
    return "".join(f"<h1>{text(job_words(job, job.place))}</h1>" for job in jobs)


def _index(analyses: Sequence[Analysis]) -> str:
    folder, rows = index_rows(analyses, str)
    where = f" in {folder}" if folder else ""
    heads = ["recording", "steps", "costliest finding", "median", "share"]
    lines = [
        _row([f"{number}: {name}", steps, finding, median, share], names=3)
        for number, name, steps, median, finding, share in rows
    ]
    return f"<h2>{text(f'{len(rows)} recordings{where}')}</h2>{_table(heads, lines, 3)}"


def to_fragment(analysis: Analysis) -> str:
    """The report as a part of a page, such as the output of a notebook cell."""
    sections = (
        _head(analysis),
        _times(analysis),
        _breakdown(analysis),
        _phases(analysis),
        _steps(analysis),
        _findings(analysis),
        _modules(analysis),
        _kernels(analysis),
        _limits(analysis),
        _checks(analysis),
        _notes(analysis),
    )
    return f'<style>{CSS}</style><div class="tracer-report">{"".join(sections)}</div>'


def _table(heads: Sequence[str], rows: Iterable[str], names: int = 1) -> str:
    head = "".join(
        f'<th class="{_cell_class(i, names)}">{text(h)}</th>' for i, h in enumerate(heads)
    )
    body = "".join(rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _cell_class(position: int, names: int) -> str:
    """The first column is text that breaks, the other names are short text, the rest numbers."""
    return "name" if position == 0 else "word" if position < names else "number"


def _row(cells: Sequence[object], kind: str = "", names: int = 1) -> str:
    """A line of a table; the first `names` cells are text."""
    inside = "".join(
        f'<td class="{_cell_class(i, names)}">{text(cell)}</td>' for i, cell in enumerate(cells)
    )
    return f'<tr class="{kind}">{inside}</tr>'


def _head(analysis: Analysis) -> str:
    lines = [" · ".join(items) for items in (head_items(analysis), live_items(analysis))]
    lines.append(block_text(analysis))
    facts = "".join(f'<p class="dim">{text(line)}</p>' for line in lines if line)
    return f"<h1>{text(verdict(analysis))}</h1>{facts}"


def _times(analysis: Analysis) -> str:
    if not analysis.accounted:
        return f"<h2>Where the time goes</h2><p>Not known: {text(analysis.breakdown_reason)}</p>"
    phases = [usual_level(analysis, level) for level in phase_levels(analysis)]
    levels = [*phases, window_level(analysis)]
    bars = "".join(_bar_of(level) for level in levels if level.total_ns)
    keys = "".join(
        f'<svg class="key" viewBox="0 0 1 1"><rect class="g-{g}" width="1" height="1"/></svg>{g}'
        for g in _GROUPS_SHOWN
    )
    return f'<h2>Where the time goes</h2>{bars}<p class="dim">{keys}</p>'


def _bar_of(level: Level) -> str:
    words = level_words(level)
    time = duration_text(level.per_step(level.wall_ns))
    steps = f", mean of {level.steps:,}" if level.steps > 1 and not level.middle else ""
    label = f"{words.one}: {time}{steps}"
    return f"<p>{text(label)}</p>{level_bar(level, label)}"


def _breakdown(analysis: Analysis) -> str:
    if not analysis.accounted:
        return ""
    columns = breakdown_columns(shown_levels(analysis, _LEVEL_COLUMNS))
    heads = [""]
    for column in columns:
        heads += [f"{level_words(column.level).one}, {column.scale.unit}", "share"]
    rows = breakdown_rows(columns)
    lines = [_row(row, "part" if row[0].startswith(" ") else "group") for row in rows]
    notes = filter(None, (mean_note(analysis, level) for level in phase_levels(analysis)))
    return _table(heads, lines) + "".join(f'<p class="dim">{text(note)}.</p>' for note in notes)


def _phases(analysis: Analysis) -> str:
    rows = [_row([p.name or "step", *phase_times(p)]) for p in with_parts(analysis.phases)]
    period = period_text(analysis)
    note = f'<p class="dim">{text(period)}</p>' if period else ""
    return f"<h2>Phases</h2>{_table(['phase', *TIME_TITLES], rows)}{note}" if rows else ""


def _steps(analysis: Analysis) -> str:
    plot = step_columns(analysis)
    if not plot:
        return ""
    top = duration_text(int(analysis.steps["wall_ns"].max()))
    count = len(analysis.steps)
    return f'<h2>Steps</h2>{plot}<p class="dim">{count:,} steps, 0 to {top}</p>'


def _modules(analysis: Analysis) -> str:
    if not len(analysis.modules) or not analysis.accounted:
        return ""
    roots = fold_modules(analysis.modules)
    whole = analysis.window.capacity_ns
    rows = [
        _row(
            [
                "  " * row.depth + ("(self)" if row.own else row.node.path or row.node.type),
                row.node.role,
                count_text(row.node.calls),
                duration_text(row.device_ns),
                percent_text(row.device_ns / whole if whole else None),
            ],
            names=2,
        )
        for row in visible_rows(roots, _MOST_MODULES)
    ]
    heads = ["module", "role", "calls", "time", "share"]
    return f"<h2>Modules</h2>{module_icicle(roots)}{_table(heads, rows, 2)}"


def _kernels(analysis: Analysis) -> str:
    kernels = analysis.kernels.sort_values("total_ns", ascending=False, kind="stable")
    columns = ("name", "bucket", "how", "count", "total_ns", "ratio")
    shown = kernels.head(_MOST_KERNELS)
    rows = [
        _row(
            [
                short_kernel(name),
                ".".join(BUCKETS[bucket]),
                how,
                f"{count:,}",
                duration_text(total),
                percent_text(ratio),
            ],
            names=3,
        )
        for name, bucket, how, count, total, ratio in zip(
            *(shown[column].tolist() for column in columns), strict=True
        )
    ]
    title = "Operators" if analysis.cpu_only else "Kernels"
    heads = ["name", "role", "how", "calls", "time", "share"]
    note = f'<p class="dim">{len(rows)} of {len(kernels):,} rows</p>'
    return f"<h2>{title}</h2>{_table(heads, rows, 3)}{note}" if rows else ""


def _limits(analysis: Analysis) -> str:
    """How near parts of a step come to the limits of the device."""
    rows = [
        _row(
            [
                limit_words(row),
                row["phase"] or UNKNOWN,
                row["bound"],
                bytes_text(row["bytes"]),
                duration_text(row["floor_ns"]),
                duration_text(row["measured_ns"]),
                percent_text(row["reached_ratio"]),
            ],
            names=3,
        )
        for row in analysis.roofline
    ]
    heads = ["part", "phase", "bound by", "bytes", "floor", "takes", "reached"]
    note = '<p class="dim">a step; floor: its bytes or flops at the rates of the datasheet</p>'
    return f"<h2>Speed limit</h2>{_table(heads, rows, 3)}{note}" if rows else ""


def _findings(analysis: Analysis) -> str:
    cards = "".join(_card(cost) for cost in reported_costs(analysis))
    return f"<h2>Findings</h2>{cards or '<p>none</p>'}"


def _card(cost: Cost) -> str:
    finding = cost.finding
    each = " a step" if cost.of_steps > 1 else ""
    facts = [] if cost.cost_ns is None else [f"cost {duration_text(cost.cost_ns)}{each}"]
    facts.append(percent_text(finding.ratio))
    if cost.gain_ns:
        facts.append(f"gain {duration_text(cost.gain_ns)}{each}")
    if cost.of_steps:
        facts.append(f"in {len(finding.steps)} of {cost.of_steps} steps")
    lines = [where_text(finding.where), finding.advice]
    said = "".join(f"<p>{text(line)}</p>" for line in lines if line)
    return (
        f'<div class="card {finding.severity}"><b>{text(finding.rule)}</b> '
        f'{text(finding.title)}<p class="dim">{text(", ".join(f for f in facts if f != UNKNOWN))}'
        f"</p>{said}</div>"
    )


def _checks(analysis: Analysis) -> str:
    rows = [_row([c.rule, c.status, c.reason], names=3) for c in all_checks(analysis)]
    table = _table(["rule", "status", "reason"], rows, 3)
    return f"<h2>Checks</h2><details><summary>{len(rows)} checks</summary>{table}</details>"


def _notes(analysis: Analysis) -> str:
    items = "".join(
        f"<p><b>{text(note.rule)}</b> {text(note.message)}</p>" for note in all_notes(analysis)
    )
    return f"<h2>Integrity: {analysis.integrity_status}</h2>{items}"
