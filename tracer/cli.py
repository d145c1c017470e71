"""The command line: finds the command, runs it, turns errors into one line and a status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tracer.commands import COMMANDS, Command, load_command
from tracer.commands.blank import expect_no_blank
from tracer.commands.exits import NO_REPORT
from tracer.commands.meant import Parser
from tracer.commands.output import close_stdout, flush_report, say
from tracer.errors import TracerError
from tracer.near import hint
from tracer.version import VERSION

INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended

_DESCRIPTION = """\
Where did the time of this transformer step go, and what do I change?

Records PyTorch programs, reads recordings of others, and accounts for every nanosecond of a step:
attention, FFN, communication, overhead (why the GPU was idle) and the rest."""

_EPILOG = """\
examples:
  tracer demo                              see it work on this machine
  tracer run train.py --epochs 1           trace an unchanged script, then print the report
  tracer report trace.json.gz              report a PyTorch profiler trace or a saved run
  tracer report trace.json --json > r.json the same for programs
  tracer report runs/a --fail-on 'sync.*'  for continuous integration
  tracer diff runs/a runs/b                before and after a change: what did it do?
  tracer watch http://localhost:8000       a serving engine that runs: what do requests wait for?

in a program:
  from tracer import trace
  with trace() as t:
      model.generate(**inputs, max_new_tokens=16)
  print(t.report)

exit status:
  0  a report was made
  1  a gate failed (--fail-on, --max-slowdown), or an export was not delivered whole
  2  wrong usage
  3  no report could be made: nothing on stdout, one line on stderr says why
  4  a report was made, but the input was damaged or cut
  `tracer run` returns the status of the program it ran.

environment:
  NO_COLOR=1      no colour         COLUMNS=120  width of the report
  TRACER_DEBUG=1  the traceback of an unexpected error
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="tracer",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tracer {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        command = load_command(name)
        sub = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.HELP[:1].upper() + command.HELP[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(parser, args.command, unknown)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        expect_no_blank(_subparser(parser, args.command) or parser, args)
    except TracerError as error:
        return _fail(error)
    command = load_command(args.command)
    if getattr(command, "TRANSPARENT", False):
        # A traced program keeps its exceptions, signals and exit status.
        return _run_transparent(command, args)
    return _run(command, args)


def _refuse(parser: argparse.ArgumentParser, command: str | None, unknown: Sequence[str]) -> None:
    """End with the usage of the command that does not know these words, and what was meant."""
    own = _subparser(parser, command) or parser
    known = [option for action in own._actions for option in action.option_strings]
    option = unknown[0].partition("=")[0]
    near = hint(option, known)
    if option == "--html" and "--json" in known:
        near = f" (tracer {command} writes text, or JSON with --json)"
    own.error(f"unrecognized arguments: {' '.join(unknown)}{near}")


def _subparser(
    parser: argparse.ArgumentParser, command: str | None
) -> argparse.ArgumentParser | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser | None = action.choices.get(command or "")
            return found
    return None


def _run_transparent(command: Command, args: argparse.Namespace) -> int:
    try:
        return command.run(args)
    except TracerError as error:
        return _fail(error)


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        status = command.run(args)
        flush_report()
        return status
    except TracerError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        close_stdout()
        return BROKEN_PIPE
    except Exception as error:
        # The border to the user: whatever went wrong inside, they get one line, no traceback.
        if os.environ.get("TRACER_DEBUG"):
            raise
        say(
            f"unexpected {type(error).__name__}: {error} "
            "(a fault of tracer: TRACER_DEBUG=1 shows the traceback)"
        )
        return NO_REPORT


def _fail(error: TracerError) -> int:
    say(str(error))
    return error.exit_code
