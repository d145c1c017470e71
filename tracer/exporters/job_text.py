"""What changed between two jobs of several ranks, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from tracer.diff_analysis import Measure
from tracer.exporters.diff_findings import cost_changes, rank_cost_changes, wait_ns
from tracer.exporters.diff_text import diff_lines, finding_lines, measured_cells, source_line
from tracer.exporters.format import UNKNOWN, counted, duration_text, numbers_text
from tracer.exporters.job_verdict import job_verdict
from tracer.exporters.layout import Column, Page, heading, paragraph, table, titled
from tracer.exporters.names import inert
from tracer.exporters.ranks_text import source_items
from tracer.exporters.text import page_of, rule_line, shown
from tracer.exporters.words import phase_words
from tracer.job_diff import JobChange, JobDiff, RankChange
from tracer.rank_analysis import RankAnalysis, RankResult

_MOST_RANKS = 16


def render_job_diff(
    job: JobDiff,
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool | None = None,
) -> str:
    """The comparison as text; arguments as for the report of one recording."""
    page = page_of(width, ascii)
    costs, across = cost_changes(job.detail), rank_cost_changes(job.change)
    lines = paragraph(page, job_verdict(job, costs, across), style="bold")
    lines += _source(page, "A", job.before, job.change.before)
    lines += _source(page, "B", job.after, job.change.after)
    lines += [Text(), *_rank_lines(page, job.change)]
    if job.detail.phases:
        lines += [Text(), *finding_lines(page, across, "FINDINGS ACROSS RANKS")]
    lines += [Text(), Text(rule_line(page, _led_words(job.change)))]
    return shown(page, [*lines, *diff_lines(page, job.detail, costs)], color)


def _source(page: Page, side: str, path: str, job: RankAnalysis) -> list[Text]:
    return source_line(page, side, (page.name(path), *source_items(job)))


def _led_words(change: JobChange) -> str:
    why = "late" if change.why == "late" else "slowest"
    return f"rank {change.led} of A and of B, the {why} one"


def _rank_lines(page: Page, change: JobChange) -> list[Text]:
    """Each rank of both sides: its step, and what it waits for others."""
    chosen = _chosen(change)
    columns = [Column("rank"), *map(Column, ("A", "B", "change", "", "scatter"))]
    columns += [Column("wait A"), Column("B")]
    rows = [row for rank in chosen for row in _rank_row(change, rank)]
    if not rows:
        return titled(page, "RANKS", "no steps that both sides have")
    lines = [heading("RANKS", _note(page, change)), *table(page, columns, rows)]
    for said in _left_out(change, len(chosen)):
        lines += paragraph(page, said, indent=2, style="dim")
    return lines


def _note(page: Page, change: JobChange) -> str:
    phase = change.phases[0].phase if change.phases else None
    if phase is None:
        return "the whole recording; wait: for later ranks"
    one = page.name(phase_words(phase, 1).one).replace("the ", "the median ", 1)
    return f"{one}; wait: for later ranks, a step"


def _chosen(change: JobChange) -> list[RankChange]:
    """All ranks, or the one that is told, the slowest ones and those that changed most."""
    if len(change.ranks) <= _MOST_RANKS:
        return list(change.ranks)
    named = {change.led, *(rank for phase in change.phases[:1] for rank in phase.slowest)}
    ordered = sorted(change.ranks, key=lambda r: (r.rank not in named, -abs(_changed(change, r))))
    return sorted(ordered[:_MOST_RANKS], key=lambda rank: rank.rank)


def _step(change: JobChange, rank: RankChange) -> Measure | None:
    return rank.steps.get(change.phases[0].phase) if change.phases else None


def _changed(change: JobChange, rank: RankChange) -> int:
    step = _step(change, rank)
    return 0 if step is None else step.change_ns


def _rank_row(change: JobChange, rank: RankChange) -> Iterator[list[str]]:
    step = _step(change, rank)
    if step is not None:
        waits = [_wait(side) for side in (rank.before, rank.after)]
        yield [str(rank.rank), *measured_cells(step), *waits]


def _wait(rank: RankResult) -> str:
    return duration_text(wait_ns(rank)) if rank.wait_ns is not None else UNKNOWN


def _left_out(change: JobChange, shown_count: int) -> Iterator[str]:
    rest = len(change.ranks) - shown_count
    if rest:
        yield f"{counted(rest, 'more rank')} that changed less; all are in the JSON."
    for side, ranks in (("A", change.only_before), ("B", change.only_after)):
        if ranks:
            word = "rank" if len(ranks) == 1 else "ranks"
            yield f"Only {side} has {word} {numbers_text(ranks)}."
    for side, job in (("A", change.before), ("B", change.after)):
        for note in job.notes:
            if note.partial:
                yield f"{side}: {inert(note.message)}."
