"""`tracer doctor`: is this environment sound, and what to do where it is not."""

from __future__ import annotations

import argparse
import json

from tracer.commands.output import wants_color, write_report
from tracer.errors import UsageError

NAME = "doctor"
HELP = "is this environment sound: driver, wheel, extensions, attention, profiler, variables"

DEFAULT_TIMEOUT_S = 30.0
_ERRORS_FOUND = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tracer doctor`."""
    parser.epilog = (
        "exit status: 0 sound, warnings or not; 1 errors were found.\n"
        "Nothing is changed, sent or downloaded; what may crash runs in processes of its own."
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    parser.add_argument(
        "--problems", action="store_true", help="only what is wrong or could not be checked"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help=f"for all probes together ({DEFAULT_TIMEOUT_S:g}); a single import has a fifth of it",
    )


def run(args: argparse.Namespace) -> int:
    """Examine, print, and tell by the status whether there were errors."""
    from tracer.commands.console import line_width, render
    from tracer.commands.doctor_text import diagnosis_json, doctor_lines
    from tracer.environment.diagnosis import examine

    if args.timeout <= 0:
        raise UsageError(f"--timeout {args.timeout:g}: give a number of seconds above 0")
    diagnosis = examine(timeout_s=args.timeout)
    if args.json:
        write_report(json.dumps(diagnosis_json(diagnosis), indent=1) + "\n")
    else:
        width = line_width()
        lines = doctor_lines(diagnosis, width, problems_only=args.problems)
        write_report(render(lines, width=width, color=wants_color()))
    return _ERRORS_FOUND if diagnosis.count("error") else 0
