"""`tracer diff A B`: what changed between two recordings, before and after a change."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.commands.diff_jobs import compare_jobs_at, is_job
from tracer.commands.exits import GATE_FAILED, PARTIAL
from tracer.commands.heap import keep_freed_memory
from tracer.commands.output import say, wants_color, write_report
from tracer.commands.report import (
    add_reading_arguments,
    analyse_source,
    is_empty_file,
    read_captures,
)
from tracer.errors import UsageError

if TYPE_CHECKING:
    from tracer.diff_analysis import DiffAnalysis, Measure, PhaseChange
    from tracer.job_diff import JobDiff

NAME = "diff"
HELP = (
    "compare two recordings, or two jobs of several ranks, before and after a change: steps, "
    "groups, modules, kernels, findings"
)

_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
_MOST_NAMED = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer diff`."""
    what = (
        "a saved run, a PyTorch trace (.json, .json.gz), an export of Nsight Systems (.sqlite), "
        "what rocprofv3 wrote (JSON, CSV), or a directory with the ranks of one job"
    )
    parser.add_argument("before", metavar="A", help=f"the recording before the change: {what}")
    parser.add_argument("after", metavar="B", help="the recording after it")
    parser.add_argument("--json", action="store_true", help="JSON, schema tracer.diff/1")
    parser.add_argument(
        "--max-slowdown",
        metavar="P%",
        help="exit with 1 when the step of a phase (without steps: the recording) takes so much "
        "longer in B, for example 5%%",
    )
    add_reading_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print what changed; returns the exit status."""
    allowed = None if args.max_slowdown is None else parse_percent(args.max_slowdown)
    keep_freed_memory()
    jobs = [is_job(path) for path in (args.before, args.after)]
    if any(jobs):
        return _run_jobs(args, jobs, allowed)
    diff = compare_paths(args.before, args.after, args.capture)
    write_report(_as_json(diff) if args.json else _as_text(diff, args.width))
    return exit_status(diff, allowed)


def _run_jobs(args: argparse.Namespace, jobs: Sequence[bool], allowed: Fraction | None) -> int:
    """The same for jobs of several ranks; a single recording is a job of one."""
    if args.capture:
        raise UsageError("--capture is read for one rank alone: give the same one on both sides")
    sides = zip("AB", (args.before, args.after), jobs, strict=True)
    places = [path if job else str(_one_recording(side, path)) for side, path, job in sides]
    job = compare_jobs_at(*places)
    write_report(_job_as_json(job) if args.json else _job_as_text(job, args.width))
    if allowed is not None and _job_too_slow(job, allowed):
        return GATE_FAILED
    return PARTIAL if job.damaged else 0


def parse_percent(text: str) -> Fraction:
    """`5%` as a share. The sign is asked for: 0.05 could be meant either way."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--max-slowdown {text}: write a percentage, for example 5%")
    return Fraction(match[1]) / 100


def compare_paths(before: str, after: str, captures: Sequence[str]) -> DiffAnalysis:
    """Read both recordings, which must be one each, and compare them."""
    from tracer.analyzers.diff.compare import compare

    places = _one_recording("A", before), _one_recording("B", after)
    captured = read_captures(captures)
    return compare(*(analyse_source(place, captured) for place in places))


def _one_recording(side: str, path: str) -> Path:
    """The one recording at a path; other files may lie beside it."""
    from tracer.sources import find_sources, none_in

    found = find_sources(Path(path))
    if len(found) == 1:
        return found[0]
    found = [place for place in found if _may_be_recording(place)]
    if not found:
        raise none_in(f"{side} {path}")
    if len(found) == 1:
        return found[0]
    named = ", ".join(place.name for place in found[:_MOST_NAMED])
    more = ", …" if len(found) > _MOST_NAMED else ""
    raise UsageError(
        f"{side} {path}: holds {len(found)} recordings ({named}{more}) that are not the ranks "
        "of one job; give one of them, or a directory of one job"
    )


def _may_be_recording(place: Path) -> bool:
    from tracer.collectors.sniff import sniff

    if place.is_dir():
        return True
    return not is_empty_file(place) and sniff(place).reader is not None


def _as_text(diff: DiffAnalysis, width: int | None) -> str:
    from tracer.exporters.diff_text import render_diff

    return render_diff(diff, width=width, color=wants_color())


def _as_json(diff: DiffAnalysis) -> str:
    from tracer.exporters.diff_json import to_diff
    from tracer.exporters.json_report import report_text

    return report_text(to_diff(diff))


def _job_as_text(job: JobDiff, width: int | None) -> str:
    from tracer.exporters.job_text import render_job_diff

    return render_job_diff(job, width=width, color=wants_color())


def _job_as_json(job: JobDiff) -> str:
    from tracer.exporters.diff_json import to_job_diff
    from tracer.exporters.json_report import report_text

    return report_text(to_job_diff(job))


def exit_status(diff: DiffAnalysis, allowed: Fraction | None) -> int:
    """0, 1 when B is slower by more than is allowed, 4 when an input was damaged or cut."""
    if allowed is not None and _too_slow(diff, allowed):
        return GATE_FAILED
    return PARTIAL if diff.before.damaged or diff.after.damaged else 0


def _too_slow(diff: DiffAnalysis, allowed: Fraction) -> bool:
    """Whether the gate fails; says where, and what could not be judged."""
    return _say_slow(diff, _slow_words(diff.phases, allowed), allowed)


def _job_too_slow(job: JobDiff, allowed: Fraction) -> bool:
    """The same of what the slowest ranks take."""
    from tracer.exporters.job_verdict import job_phases

    return _say_slow(job.detail, _slow_words(job_phases(job), allowed), allowed)


def _slow_words(phases: Iterable[PhaseChange], allowed: Fraction) -> list[str]:
    from tracer.exporters.diff_verdict import slow_words

    judged = [(change, measure) for change in phases for measure in _judged(change)]
    return [slow_words(c, measure) for c, measure in judged if is_slower(measure, allowed)]


def _say_slow(diff: DiffAnalysis, slow: list[str], allowed: Fraction) -> bool:
    for words in slow:
        say(f"--max-slowdown {float(100 * allowed):g}%: {words}")
    against = [difference.message for difference in diff.differences if difference.breaks]
    if not diff.phases:
        say(f"--max-slowdown was not checked: {diff.reason}")
    elif against:
        say(f"--max-slowdown was checked, though not like with like: {'; '.join(against)}")
    return bool(slow)


def _judged(change: PhaseChange) -> list[Measure]:
    """The step; where steps are calls in a loop what it takes from one to the next; and the mean of
    that where it tells of more, such as a pause every so many steps."""
    mean = [change.mean_turn.measure] if change.mean_turn and change.mean_tells else []
    if change.turn is None or not change.turn_counts:
        return [change.step, *mean]
    return [change.turn, *mean] if change.like_turns else [change.step, change.turn, *mean]


def is_slower(measure: Measure, allowed: Fraction) -> bool:
    """Whether it takes longer by more than this share of what it took."""
    return measure.change_ns > allowed * measure.before_ns
