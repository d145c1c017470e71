"""A watched server for a terminal: the answer, where the time goes, latencies, load, findings."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from tracer.exporters.format import (
    UNKNOWN,
    counted,
    duration_text,
    percent_text,
    table_scale,
)
from tracer.exporters.layout import Column, Page, heading, paragraph, table
from tracer.exporters.names import inert
from tracer.exporters.text import page_of, shown
from tracer.exporters.text_findings import MARKS, page_separator
from tracer.exporters.watch_words import CONCEPT_WORDS, watch_answer, watch_notes
from tracer.serving import LATENCIES, Level, Quantile, ServingAnalysis, Times

_STAGES = {
    "queue_time": "queue",
    "prefill_time": "prefill",
    "decode_time": "decode",
    "other": "other",
}
_INDENT = 5


def render_watch(
    analysis: ServingAnalysis,
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool | None = None,
) -> str:
    """The watch as text; arguments as for the report of a recording."""
    page = page_of(width, ascii)
    lines = paragraph(page, inert(watch_answer(analysis)), style="bold")
    lines += paragraph(page, inert(_source(page, analysis)), style="dim")
    for note in watch_notes(analysis):
        lines += paragraph(page, inert(f"Note: {note}."))
    for section in (_stage_lines, _latency_lines, _load_lines, _finding_lines, _absent_lines):
        made = list(section(page, analysis))
        lines += [Text(), *made] if made else []
    return shown(page, lines, color)


def _source(page: Page, analysis: ServingAnalysis) -> str:
    readings = analysis.readings
    models = readings.readings[-1].models
    named = [f"{readings.engine.name}", *([models[0]] if len(models) == 1 else [])]
    window = (
        f"{duration_text(analysis.window.wall_ns)}, {counted(len(readings.readings), 'reading')}"
    )
    return page_separator(page).join([readings.url, *named, window])


def _stage_lines(page: Page, analysis: ServingAnalysis) -> Iterator[Text]:
    stages = analysis.window.stages
    if stages is None:
        yield from _compute_lines(page, analysis)
        return
    basis = "" if stages.basis == "engine" else "; from the first token and the end"
    note = f"mean of {counted(stages.requests, 'request')} that ended{basis}"
    yield heading("WHERE A REQUEST'S TIME GOES", note)
    scale = table_scale(stages.total_ns)
    columns = [Column("", "left"), Column(scale.unit), Column("share")]
    rows = [
        [words, scale.text(stages.parts[name]), percent_text(stages.ratio(name))]
        for name, words in _STAGES.items()
        if name in stages.parts
    ]
    rows.append(["sum", scale.text(stages.total_ns), "100 %"])
    yield from table(page, columns, rows)


def _compute_lines(page: Page, analysis: ServingAnalysis) -> Iterator[Text]:
    """For an engine that counts the seconds of its computing alone."""
    counts, window = analysis.window.counts, analysis.window
    told = [name for name in ("prefill", "decode") if f"{name}_seconds" in counts]
    if not told:
        return
    yield heading("WHERE THE ENGINE'S TIME GOES", "the seconds of its slots; several run at a time")
    columns = [Column("", "left"), Column("s"), Column("of the window")]
    seconds = {name: counts[f"{name}_seconds"] for name in told}
    rows = [
        [name, f"{value:.2f}", percent_text(value * 1e9 / window.wall_ns)]
        for name, value in seconds.items()
    ]
    yield from table(page, columns, rows)


def _latency_lines(page: Page, analysis: ServingAnalysis) -> Iterator[Text]:
    times = analysis.window.times
    told = [name for name in LATENCIES if name in times]
    if not told:
        return
    yield heading("LATENCY", "of what came in the window; p50 and p95 lie within a bucket")
    titles = ("mean", "p50", "p95", "values")
    columns = [Column("", "left"), *(Column(title) for title in titles)]
    yield from table(page, columns, [_latency_row(name, times[name]) for name in told])


def _latency_row(name: str, times: Times | None) -> list[str]:
    words = CONCEPT_WORDS[name]
    if times is None:
        return [words, UNKNOWN, UNKNOWN, UNKNOWN, "0"]
    quantiles = [_quantile_text(times.p50), _quantile_text(times.p95)]
    return [words, duration_text(times.mean_ns), *quantiles, f"{times.count:,}"]


def _quantile_text(quantile: Quantile | None) -> str:
    if quantile is None:
        return UNKNOWN
    if quantile.high_ns is None:
        return f"> {duration_text(quantile.ns)}"
    # The first bucket begins at 0: in it, where is anybody's guess.
    return duration_text(quantile.ns) if quantile.low_ns else f"< {duration_text(quantile.high_ns)}"


def _load_lines(page: Page, analysis: ServingAnalysis) -> Iterator[Text]:
    rows = [*_level_rows(analysis)]
    if rows:
        yield heading("LOAD")
        titles = ("mean", "least", "most", "now")
        columns = [Column("", "left"), *(Column(title) for title in titles)]
        yield from table(page, columns, rows)
    counts = [*_count_rows(analysis)]
    if counts:
        yield Text()
        yield heading("IN THE WINDOW")
        yield from table(page, [Column("", "left"), Column("count"), Column("a second")], counts)


def _level_rows(analysis: ServingAnalysis) -> Iterator[list[str]]:
    for name in ("running", "waiting", "kv_cache_usage"):
        level = analysis.window.levels.get(name)
        if level is not None:
            yield [CONCEPT_WORDS[name], *_level_cells(level, name == "kv_cache_usage")]


def _level_cells(level: Level, is_ratio: bool) -> list[str]:
    values = (level.mean, level.low, level.high, level.last)
    if is_ratio:
        return [percent_text(value) for value in values]
    return [f"{level.mean:.1f}", *(f"{value:.0f}" for value in values[1:])]


def _count_rows(analysis: ServingAnalysis) -> Iterator[list[str]]:
    window = analysis.window
    for name in ("prompt_tokens", "generated_tokens", "finished", "aborted", "preemptions"):
        rate = window.per_second(name)
        if rate is not None:
            shown_rate = f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"
            yield [CONCEPT_WORDS[name], f"{window.counts[name]:,.0f}", shown_rate]
    if analysis.prefix_cache_hit_ratio is not None:
        yield ["prefix cache hits", percent_text(analysis.prefix_cache_hit_ratio), ""]
    if analysis.acceptance_ratio is not None:
        yield ["accepted drafts", percent_text(analysis.acceptance_ratio), ""]


def _finding_lines(page: Page, analysis: ServingAnalysis) -> Iterator[Text]:
    if not analysis.findings:
        return
    yield heading("FINDINGS")
    for finding in analysis.findings:
        yield Text(f"  {MARKS[finding.severity]:<2} {finding.rule}", style="bold")
        yield from paragraph(page, inert(finding.title), _INDENT)
        yield from paragraph(page, f"do: {finding.advice}", _INDENT)


def _absent_lines(page: Page, analysis: ServingAnalysis) -> Iterator[Text]:
    if not analysis.absent:
        return
    named = ", ".join(CONCEPT_WORDS[name] for name in analysis.absent)
    yield from paragraph(page, f"Not told by {analysis.readings.engine.name}: {named}.")
