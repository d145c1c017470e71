"""`tracer report`: reports of recordings, as text, JSON and HTML."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.commands.exits import GATE_FAILED, PARTIAL
from tracer.commands.gates import RULES, expect_rules, gate_failed, is_rule
from tracer.commands.heap import keep_freed_memory
from tracer.commands.output import (
    Progress,
    few_names,
    flush_report,
    say,
    wants_color,
    write_report,
)
from tracer.errors import DeliveryError, EmptyTraceError, NotATraceError, TracerError, UsageError

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.events import Note, Trace
    from tracer.findings import Check, Finding
    from tracer.rank_analysis import JobAmong

NAME = "report"
HELP = (
    "report a recording: a saved run, a PyTorch trace (.json, .json.gz), an export of Nsight "
    "Systems (.sqlite), JSON or CSV of rocprofv3, or a directory of them"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer report`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="what to report")
    parser.add_argument("--json", action="store_true", help="JSON, schema tracer.report/1")
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    parser.add_argument(
        "--fail-on",
        metavar="RULE",
        nargs="+",
        action="extend",
        default=[],
        help="exit with 1 when such a finding exists; patterns such as 'sync.*' are fine",
    )
    add_reading_arguments(parser)
    parser.epilog = "rules: " + ", ".join(RULES) + ", trace.*, capture.*"


def run(args: argparse.Namespace) -> int:
    """Print the report of each path; returns the exit status."""
    paths, patterns = split_arguments(args.paths, args.fail_on)
    if not paths:
        raise UsageError("give at least one PATH to report, for example: tracer report trace.json")
    if not args.capture and _are_ranks(paths):
        return _report_ranks(paths, patterns, args)
    keep_freed_memory()
    opened = open_all(paths, args.capture)
    write_report(_as_json(opened) if args.json else _as_text(opened, args.width))
    if len(opened.analyses) > 1 and not args.json and sys.stdout.isatty():
        flush_report()
        say(f"{len(opened.analyses)} reports; their index is at the top: | less begins with it")
    if args.html is not None:
        _write_html(opened, Path(args.html))
    return exit_status(opened, patterns)


def _are_ranks(paths: Sequence[str]) -> bool:
    from tracer.ranks.identity import are_ranks_of_one_run

    return are_ranks_of_one_run(paths)


def _report_ranks(paths: Sequence[str], patterns: Sequence[str], args: argparse.Namespace) -> int:
    """Several ranks of one run are reported together, as `tracer ranks` does."""
    from tracer.commands.ranks import make_engine, report_ranks

    return report_ranks(
        paths,
        make_engine("local", None),
        as_json=args.json,
        patterns=patterns,
        width=args.width,
        html=None if args.html is None else Path(args.html),
    )


def report_paths(paths: Sequence[str], *, width: int | None = None) -> int:
    """Print the text report of paths, of ranks of one run or of recordings; the exit status."""
    from tracer.commands.ranks import make_engine, report_ranks

    if _are_ranks(paths):
        return report_ranks(paths, make_engine("local", None), width=width)
    keep_freed_memory()
    opened = open_all(paths)
    write_report(_as_text(opened, width))
    return exit_status(opened, ())


def document_of_paths(paths: Sequence[str]) -> str:
    """The JSON report of the same paths."""
    from tracer.commands.ranks import make_engine, ranks_document

    if _are_ranks(paths):
        return ranks_document(paths, make_engine("local", None))
    keep_freed_memory()
    return _as_json(open_all(paths))


def split_arguments(paths: Sequence[str], patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Paths and rule patterns; a path that stands behind `--fail-on RULE` is still a path."""
    rules = [pattern for pattern in patterns if is_rule(pattern)]
    others = [pattern for pattern in patterns if not is_rule(pattern)]
    expect_rules(other for other in others if not Path(other).exists())
    return [*paths, *others], rules


@dataclass(frozen=True)
class Opened:
    """What could be read of the paths. `failures` are files that could not, and why."""

    analyses: tuple[Analysis, ...]
    failures: tuple[TracerError, ...] = ()

    @cached_property
    def jobs(self) -> tuple[JobAmong, ...]:
        """The jobs of which several ranks are among them."""
        from tracer.ranks.among import jobs_among

        return jobs_among(self.analyses) if len(self.analyses) > 1 else ()


def open_all(paths: Iterable[str], captures: Sequence[str] = ()) -> Opened:
    """Read and analyse everything at these paths; an error when nothing can be reported.
    `captures`: paths of recordings in which graphs were captured."""
    from tracer.sources import each_recording_once

    analyses: list[Analysis] = []
    failures: list[TracerError] = []
    captured, seen = read_captures(captures), set[str]()
    for path in map(str, each_recording_once([Path(path) for path in paths])):
        found, failed = _open_path(path, captured, seen)
        analyses += found
        failures += failed
    for failure in failures if analyses else failures[:-1]:
        say(str(failure))
    if not analyses:
        raise failures[-1]
    return Opened(tuple(analyses), tuple(failures))


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """What tells how a recording is read, and how wide it is shown."""
    parser.add_argument(
        "--capture",
        metavar="PATH",
        action="append",
        default=[],
        help="a recording (or a directory of them) in which the graphs replayed here were captured",
    )
    parser.add_argument("--width", type=int, metavar="N", help="cells of a line, 80 to 160")


def read_captures(paths: Iterable[str]) -> tuple[Trace, ...]:
    """The maps of the graphs captured in these recordings, or in those of a directory."""
    from tracer.analyzers.graphs.maps import only_maps
    from tracer.sources import find_sources, open_source

    found: list[Trace] = []
    for path in paths:
        maps = []
        for source in find_sources(Path(path)):
            try:
                maps.append(only_maps(open_source(source)))
            except NotATraceError:
                if not Path(path).is_dir():
                    raise
        held = [trace for trace in maps if trace.tables]
        if not held:
            raise UsageError(f"--capture {path}: no graph is captured in it")
        found += held
    return tuple(found)


def _open_path(
    path: str, captures: Sequence[Trace], seen: set[str]
) -> tuple[list[Analysis], list[TracerError]]:
    from tracer.sources import find_sources, is_run, none_in, only_new

    target = Path(path)
    here = find_sources(target)
    sources = only_new(here, seen)
    analyses: list[Analysis] = []
    failures: list[TracerError] = []
    strangers: list[str] = []
    listed = target.is_dir() and not is_run(target)
    for source in sources:
        try:
            analyses.append(analyse_source(source, captures))
        except (NotATraceError, EmptyTraceError) as error:
            # A directory may hold other files besides: they are named, and no fault.
            if listed and (isinstance(error, NotATraceError) or is_empty_file(source)):
                strangers.append(source.name)
            else:
                failures.append(error)
        except TracerError as error:
            failures.append(error)
    if strangers and analyses:
        say(f"{path}: left out, no recordings: {few_names(strangers)}")
    if listed and not analyses and not failures and len(sources) == len(here):
        failures.append(none_in(path))
    return analyses, failures


def is_empty_file(path: Path) -> bool:
    """Whether nothing was ever written into it."""
    return path.is_file() and not path.stat().st_size


def analyse_source(path: Path, captures: Sequence[Trace] = ()) -> Analysis:
    """Read one recording and understand it, with the captures of graphs that it replays."""
    from tracer.analyzers import analyze
    from tracer.sources import open_source

    with Progress(f"reading {path.name}") as progress:
        trace = open_source(path, progress)
        progress.stage("accounting")
        analysis = analyze(trace, captures)
    if not analysis.window.wall_ns and analysis.accounted:
        raise EmptyTraceError(
            f"{path}: it holds no operator, launch or device work of a known kind"
        )
    return analysis


def _as_text(opened: Opened, width: int | None) -> str:
    from tracer.exporters.text import render_texts

    return render_texts(opened.analyses, width=width, color=wants_color(), jobs=opened.jobs)


def _as_json(opened: Opened) -> str:
    from tracer.exporters.json_report import report_text, to_report
    from tracer.exporters.several_json import to_reports

    if len(opened.analyses) == 1 and not opened.failures:
        return report_text(to_report(opened.analyses[0]))
    return report_text(to_reports(opened.analyses, _failure_notes(opened), opened.jobs))


def _failure_notes(opened: Opened) -> list[Note]:
    from tracer.events import Note

    return [Note(error.rule, str(error), partial=True) for error in opened.failures]


def _write_html(opened: Opened, path: Path) -> None:
    from tracer.exporters.html import to_html

    try:
        path.write_text(to_html(*opened.analyses, jobs=opened.jobs), encoding="utf-8")
    except OSError as error:
        raise DeliveryError(f"{path}: the page could not be written: {error.strerror}") from error
    say(f"wrote {path}")


def exit_status(opened: Opened, patterns: Sequence[str]) -> int:
    """0, 1 when a gate failed, 4 when the input was damaged, cut or in part unreadable."""
    if patterns and gate_failed(_all_findings(opened), _all_checks(opened), patterns):
        return GATE_FAILED
    partial = any(a.damaged for a in opened.analyses)
    return PARTIAL if partial or opened.failures else 0


def _all_findings(opened: Opened) -> Mapping[str, Sequence[Finding]]:
    """Those of each recording by its name; one alone, and ranks among each other, need none."""
    from tracer.exporters.text_index import place_names

    if len(opened.analyses) == 1:
        return {"": opened.analyses[0].findings}
    across = [finding for job in opened.jobs for finding in job.found.findings]
    found: dict[str, list[Finding]] = {"": across}
    for name, analysis in zip(place_names(opened.analyses)[1], opened.analyses, strict=True):
        found.setdefault(name, []).extend(analysis.findings)
    return found


def _all_checks(opened: Opened) -> list[Check]:
    across = [check for job in opened.jobs for check in job.found.checks]
    return [*across, *(check for analysis in opened.analyses for check in analysis.checks)]
