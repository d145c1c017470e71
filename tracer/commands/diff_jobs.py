"""Two jobs of several ranks for `tracer diff`: what is one, and reading and comparing both."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.commands.output import Progress, say
from tracer.commands.ranks import left_out_words, make_engine
from tracer.commands.report import analyse_source
from tracer.errors import UsageError

if TYPE_CHECKING:
    from tracer.job_diff import JobDiff
    from tracer.rank_analysis import RankAnalysis


def is_job(path: str) -> bool:
    """Whether several ranks of one job lie there, and no other recording: in a directory, or in a
    file in which several processes ran."""
    from tracer.ranks.identity import are_ranks_of_one_run
    from tracer.ranks.places import is_url

    return not is_url(path) and are_ranks_of_one_run([path])


def compare_jobs_at(before: str, after: str) -> JobDiff:
    """Read the ranks of both sides, compare them, and in full the rank that tells most."""
    from tracer.analyzers.diff.compare import compare
    from tracer.analyzers.diff.jobs import compare_jobs
    from tracer.job_diff import JobDiff

    jobs = _ranks_at("A", before), _ranks_at("B", after)
    change = compare_jobs(*jobs)
    if change is None:
        numbers = [", ".join(str(rank.summary.rank) for rank in job.ranks) for job in jobs]
        raise UsageError(
            f"A {before} holds ranks {numbers[0]}, B {after} ranks {numbers[1]}: give jobs that "
            "have a rank in common"
        )
    led = next(rank for rank in change.ranks if rank.rank == change.led)
    places = (Path(side.summary.path) for side in (led.before, led.after))
    return JobDiff(before, after, change, compare(*map(analyse_source, places)))


def _ranks_at(side: str, path: str) -> RankAnalysis:
    """What was found out about the ranks of one side."""
    from tracer.ranks.run import analyse_ranks

    engine = make_engine("local", None)
    with closing(engine), Progress(f"reading ranks of {side}") as progress:
        run = analyse_ranks([path], engine, progress=progress)
    if run.left_out:
        say(f"{side}: {left_out_words(run.left_out)}")
    return run.analysis
