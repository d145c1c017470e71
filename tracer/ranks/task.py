"""What is done for one rank, wherever it is done: read, understand, summarise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracer.errors import EmptyTraceError, TracerError
from tracer.rank_analysis import Doings, Interval, RankSummary, Rows
from tracer.ranks.places import local_copy

if TYPE_CHECKING:
    from tracer.analysis import Analysis


@dataclass(frozen=True)
class Task:
    """One recording to understand. rank -1: not known before it is read."""

    place: str
    rank: int
    with_report: bool


@dataclass(frozen=True)
class Failure:
    """A recording that could not be understood, and why."""

    message: str
    rule: str


@dataclass(frozen=True)
class Done:
    """A rank understood: its summary, its collectives, its whole report where that was wanted."""

    summary: RankSummary
    rows: Rows
    report: str
    device_index: int  # the only device that worked; -1 for none or several
    named_rank: int | None  # the rank that the recording itself names


def summarise(task: Task) -> Done | Failure:
    """Read one rank and reduce it to what the others need of it."""
    try:
        return _summarised(task, _analysed(task.place))
    except TracerError as error:
        return Failure(str(error), error.rule)
    # The border of a worker: one damaged recording must not take the others with it.
    except Exception as error:
        return Failure(f"{task.place}: {type(error).__name__}: {error}", "trace.unreadable")


def _analysed(place: str) -> Analysis:
    from tracer.analyzers import analyze
    from tracer.sources import open_source

    with local_copy(place) as path:
        analysis = analyze(open_source(path))
    if not analysis.window.wall_ns and analysis.accounted:
        text = f"{place}: it holds no operator, launch or device work of a known kind"
        raise EmptyTraceError(text)
    return analysis


def _summarised(task: Task, analysis: Analysis) -> Done:
    from tracer.analyzers.ranks.summary import summarise_rank
    from tracer.exporters.sentence import verdict

    summary, rows = summarise_rank(analysis, task.rank, task.place)
    summary = replace(summary, answer=verdict(analysis))
    report = ""
    if task.with_report:
        from tracer.exporters.json_report import report_text, to_report

        report = report_text(to_report(analysis))
    devices = [int(device) for device in set(analysis.work["device"].tolist()) if device >= 0]
    only = devices[0] if len(devices) == 1 and not analysis.cpu_only else -1
    return Done(summary, rows, report, only, analysis.trace.meta.rank)


def describe(place: str, questions: Sequence[Sequence[Interval]]) -> list[Doings]:
    """How the rank recorded at a place spent the intervals of each question."""
    from tracer.analyzers import analyze
    from tracer.analyzers.facts.places import Places
    from tracer.analyzers.pipeline import work_of
    from tracer.analyzers.ranks.before import describe_doings
    from tracer.sources import open_source

    with local_copy(place) as path:
        trace = open_source(path)
    analysis = analyze(trace)
    places = Places(work_of(trace))
    return [describe_doings(analysis, intervals, places) for intervals in questions]
