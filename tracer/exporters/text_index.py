"""What begins several reports: which are ranks of one job, and an index in their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from tracer.analysis import Analysis
from tracer.exporters.format import UNKNOWN, duration_text, percent_text
from tracer.exporters.layout import Column, Page, paragraph, table, titled
from tracer.exporters.levels import has_steps
from tracer.exporters.merged import reported_costs
from tracer.exporters.ranks_verdict import job_words
from tracer.rank_analysis import JobAmong

_COLUMNS = (
    Column(""),
    Column("recording", "left", flexible=True),
    Column("steps", "left"),
    Column("median"),
    Column("costliest finding", "left"),
    Column("share"),
)
_ANSWER_INDENT = 6


def job_lines(page: Page, jobs: Sequence[JobAmong]) -> list[Text]:
    """Before the index: which recordings are ranks of one job, and who of them is late."""
    told = [paragraph(page, job_words(job, page.name(job.place)), style="bold") for job in jobs]
    return [*(line for lines in told for line in lines), Text()] if told else []


def index_lines(page: Page, analyses: Sequence[Analysis], answers: Sequence[str]) -> list[Text]:
    """The recordings: name, time of a step, costliest finding, and how the answer begins."""
    folder, rows = index_rows(analyses, page.name)
    where = f" in {page.name(folder)}" if folder else ""
    lines = titled(page, "RECORDINGS", f"{len(rows)}{where}, as their reports follow")
    titles, *numbers = table(page, _COLUMNS, rows)
    lines.append(titles)
    for row, answer in zip(numbers, answers, strict=True):
        lines += [row, _beginning(page, answer)]
    return lines


def index_rows(
    analyses: Sequence[Analysis], shown: Callable[[str], str]
) -> tuple[str, list[tuple[str, ...]]]:
    """The folder of all recordings, and a row for each of them. shown: a name as it may stand
    there."""
    folder, names = place_names(analyses)
    rows: list[tuple[str, ...]] = [
        (str(number), shown(name), *_step_cells(analysis, shown), *_finding_cells(analysis))
        for number, (name, analysis) in enumerate(zip(names, analyses, strict=True), 1)
    ]
    return folder, rows


def place_names(analyses: Sequence[Analysis]) -> tuple[str, list[str]]:
    """The folder that all recordings lie in, "" for none, and their names in it."""
    metas = [analysis.trace.meta for analysis in analyses]
    places = [meta.path or meta.source_kind for meta in metas]
    parents = {os.path.dirname(place) for place in places}
    if not all(parents) or len({os.path.isabs(parent) for parent in parents}) > 1:
        return "", places
    folder = os.path.commonpath(parents)
    return folder, [str(Path(place).relative_to(folder)) for place in places]


def _step_cells(analysis: Analysis, shown: Callable[[str], str]) -> tuple[str, str]:
    """The phase that takes most of the time, and its median step."""
    whole = [phase for phase in analysis.phases if not phase.part_of]
    phase = max(whole, key=lambda phase: phase.wall_ns, default=None)
    if phase is None or not has_steps(analysis):
        return UNKNOWN, UNKNOWN
    return shown(phase.name), duration_text(phase.median_ns)


def _finding_cells(analysis: Analysis) -> tuple[str, str]:
    costs = reported_costs(analysis)
    if not costs:
        return "none", ""
    return costs[0].finding.rule, percent_text(costs[0].finding.ratio)


def _beginning(page: Page, answer: str) -> Text:
    more = " ..." if page.ascii else " …"
    first, *rest = paragraph(page, answer, indent=_ANSWER_INDENT + len(more), style="dim")
    return Text(first.plain[len(more) :] + (more if rest else ""), style="dim")
