"""`tracer ranks`: the ranks of one run together, who waits for whom, and why it hangs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.commands.exits import GATE_FAILED, PARTIAL
from tracer.commands.gates import expect_rules, gate_failed
from tracer.commands.output import Progress, few_names, say, wants_color, write_report
from tracer.errors import UsageError

if TYPE_CHECKING:
    from tracer.rank_analysis import RankAnalysis
    from tracer.ranks.engine import Engine
    from tracer.ranks.run import RanksRun

NAME = "ranks"
HELP = "compare the ranks of a run: clocks, waiting, late ranks, hangs (flight recorder), transport"

ENGINES = ("local", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer ranks`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a directory or the files of one run: recordings, flight-recorder dumps, logs of "
        "NCCL_DEBUG=INFO; also URLs such as s3://bucket/run",
    )
    parser.add_argument("--json", action="store_true", help="JSON, schema tracer.report/1")
    parser.add_argument(
        "--rank",
        metavar="FILE=N",
        action="append",
        default=[],
        help="the rank of a recording, where it says none or a wrong one; may be repeated",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="where ranks are read: processes of this machine, or a Ray cluster (extra `ray`)",
    )
    parser.add_argument(
        "--address", metavar="URL", help="an existing Ray cluster; without it Ray starts here"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes at a time")
    parser.add_argument(
        "--fail-on",
        metavar="RULE",
        action="append",
        default=[],
        help="exit with 1 when such a finding exists, across ranks or on one; may be repeated",
    )
    parser.add_argument("--width", type=int, metavar="N", help="cells of a line, 80 to 160")


def run(args: argparse.Namespace) -> int:
    """Print what the ranks did to each other; returns the exit status."""
    if args.workers is not None and args.workers < 1:
        raise UsageError("--workers: give a number of at least 1")
    if args.address is not None and args.engine != "ray":
        raise UsageError("--address is that of a Ray cluster: add --engine ray")
    expect_rules(args.fail_on)
    assigned = parse_ranks(args.rank)
    return report_ranks(
        args.paths,
        make_engine(args.engine, args.workers, args.address),
        as_json=args.json,
        assigned=assigned,
        patterns=args.fail_on,
        width=args.width,
    )


def make_engine(name: str, workers: int | None, address: str | None = None) -> Engine:
    """What runs the tasks of the ranks."""
    if name == "ray":
        from tracer.ranks.ray_engine import RayEngine

        return RayEngine(address, workers)
    from tracer.ranks.local import LocalEngine

    return LocalEngine(workers)


def parse_ranks(given: Sequence[str]) -> dict[str, int]:
    """`FILE=N` as given on the command line."""
    ranks: dict[str, int] = {}
    for text in given:
        file, equals, number = text.rpartition("=")
        if not equals or not number.isdigit() or not file:
            raise UsageError(f"--rank {text}: write FILE=N, for example --rank trace_a.json=0")
        ranks[file] = int(number)
    return ranks


def report_ranks(
    places: Sequence[str],
    engine: Engine,
    *,
    as_json: bool = False,
    assigned: Mapping[str, int] | None = None,
    patterns: Sequence[str] = (),
    width: int | None = None,
    html: Path | None = None,
) -> int:
    """Understand the ranks at these places and print the report."""
    from tracer.ranks.run import analyse_ranks

    with closing(engine), Progress("reading ranks") as progress:
        run = analyse_ranks(
            places, engine, assigned=assigned, with_reports=as_json, progress=progress
        )
        if run.left_out:
            say(left_out_words(run.left_out))
        if as_json:
            _write_json(run)
        else:
            _write_text(run.analysis, width)
        if html is not None:
            _write_html(run.analysis, html)
        return exit_status(run.analysis, patterns)


def left_out_words(places: Sequence[str]) -> str:
    """Files that are no ranks of the run."""
    return f"left out, of no rank of this run: {few_names([Path(place).name for place in places])}"


def ranks_document(places: Sequence[str], engine: Engine) -> str:
    """The JSON report of the ranks at these places."""
    from tracer.exporters.ranks_json import ranks_parts
    from tracer.ranks.run import analyse_ranks

    with closing(engine):
        run = analyse_ranks(places, engine, with_reports=True)
        return "".join(ranks_parts(run.analysis, run.report))


def _write_json(run: RanksRun) -> None:
    from tracer.exporters.ranks_json import ranks_parts

    for part in ranks_parts(run.analysis, run.report):
        write_report(part)


def _write_text(analysis: RankAnalysis, width: int | None) -> None:
    from tracer.exporters.ranks_text import render_ranks

    write_report(render_ranks(analysis, width=width, color=wants_color()))


def _write_html(analysis: RankAnalysis, path: Path) -> None:
    from tracer.errors import DeliveryError
    from tracer.exporters.ranks_html import ranks_page

    try:
        path.write_text(ranks_page(analysis), encoding="utf-8")
    except OSError as error:
        raise DeliveryError(f"{path}: the page could not be written: {error.strerror}") from error
    say(f"wrote {path}")


def exit_status(analysis: RankAnalysis, patterns: Sequence[str]) -> int:
    """0, 1 when a gate failed, 4 when a rank is missing, damaged or cut."""
    findings = [*analysis.findings, *(f for rank in analysis.ranks for f in rank.findings)]
    across = {check.rule for check in analysis.checks}
    alone = [c for rank in analysis.ranks for c in rank.checks if c.rule not in across]
    checks = [*analysis.checks, *alone]
    if gate_failed({"": findings}, checks, patterns):
        return GATE_FAILED
    return PARTIAL if analysis.integrity_status == "partial" else 0
