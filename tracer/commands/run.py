"""`tracer run`: trace an unchanged program.

Nothing here imports torch, numpy or pandas before the program does: the program may set variables
that these read when they are imported.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tracer.commands.output import say
from tracer.errors import UsageError
from tracer.live.deferred import FirstUse
from tracer.program import Program, run_program

if TYPE_CHECKING:
    from tracer.recorder import Recording
    from tracer.tui.beside import Beside

NAME = "run"
HELP = "trace an unchanged script or module, then print the report (on stderr)"
TRANSPARENT = True  # exceptions, signals and the exit status are the program's

# Without a recording, and why: detail "full" waits for the first module call.
_UNUSED = (
    "did not use torch",
    "called no module of torch; `--detail modules` also records operators outside of modules",
)
_DETAILS = ("light", "kernels", "modules", "full")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer run`."""
    parser.usage = (
        "tracer run [--detail D] [--out DIR] [--report FILE] [--seconds S] [--open] "
        "(script.py | -m module) [argument ...]"
    )
    parser.epilog = (
        "stdout, exceptions, signals and the exit status are the program's own. The report goes to "
        "stderr or to FILE; with --out the run is saved for `tracer report` and `open`. Steps are "
        "the calls of the model, or ranges of torch.profiler.record_function('train_step')."
    )
    parser.add_argument(
        "--detail",
        choices=_DETAILS,
        default="modules",
        help="what to record: light (steps alone; cheapest), kernels (the device), modules "
        "(default: also operators and blocks of the model), full (also shapes, Python, memory)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="save the run there; of several ranks each in its own: DIR/rank0",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write the report there and not to stderr: text, JSON (.json) or a page (.html); "
        "several ranks: each its own, a.rank0.html for a.html",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="record at most so long from the first work on: a step, a call of a model (300)",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="show the explorer while the program runs, and the whole run when it has ended; what "
        "the program prints comes when the explorer is closed",
    )
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.PARSER,
        metavar="module",
        help="run a module, as `python -m` does",
    )
    script = parser.add_argument(
        "script", nargs=argparse.PARSER, metavar="script.py", help="run a script with its arguments"
    )
    script.required = False


def run(args: argparse.Namespace) -> int:
    """Run the program, report on it; returns the program's status."""
    program = _program(args)
    program.check()
    if args.open and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("--open needs a terminal: save the run with --out, then `tracer open` it")
    _check_places(args)
    _mention_late_options(program)
    session = _Session(args)
    with session.watching():
        outcome = run_program(program)
    session.end(outcome.error)
    return outcome.status


def _check_places(args: argparse.Namespace) -> None:
    """Nobody wants to learn after an hour that the report has no place."""
    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds:g}: give a number above 0")
    for option, place in (("--report", args.report), ("--out", args.out)):
        if place is None:
            continue
        folder = Path(place).absolute().parent
        while option == "--out" and not folder.exists():
            folder = folder.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"{option} {place}: nothing can be written in {folder}")


def _mention_late_options(program: Program) -> None:
    """What stands behind the script belongs to it, even if it looks like ours."""
    words = program.arguments
    for word, value in itertools.pairwise(words):
        if word == "--detail" and value in _DETAILS:
            say(f"--detail {value} stands behind the program and goes to it; ours come before it")


def _program(args: argparse.Namespace) -> Program:
    if args.module:
        return Program(args.module[0], tuple(args.module[1:]), is_module=True)
    words = list(args.script or ())
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise UsageError("give a script or `-m module` to run: tracer run train.py --epochs 1")
    return Program(words[0], tuple(words[1:]))


class Terminated(BaseException):
    """The process was told to end by a signal. Never raised: it names the end in the report."""


class _Session:
    """The recording of one program, from its first use of torch to its end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._detail = args.detail
        self._seconds = args.seconds
        # The program may change its directory.
        self._out = None if args.out is None else Path(args.out).absolute()
        self._report = None if args.report is None else Path(args.report).absolute()
        self._opens = bool(args.open)
        self._beside: Beside | None = None
        self._process = os.getpid()
        # Python frames of the imports would be most of the recording, and take a minute to read.
        self._first_use = FirstUse(self._start, at_import=args.detail != "full")
        self._recording: Recording | None = None
        self._ended = False

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Record from the first use of torch on; end in order when the process is terminated."""
        self._first_use.watch()
        with _on_termination(self._terminate):
            yield

    def _start(self) -> None:
        try:
            from tracer.recorder import Recording

            options = {
                "detail": self._detail,
                "limits": {"seconds": self._seconds},
                "yields_to_traces": True,
            }
            recording = Recording(options, self._out)  # which saves before it analyses anything
            recording.start(sys._getframe(1))
            self._recording = recording
            if self._opens:
                self._beside = recording.open()
        except Exception as error:  # the border to the traced program: it runs untraced
            say(f"the trace could not start: {type(error).__name__}: {error}")

    def _terminate(self) -> None:
        self.end(Terminated())

    def end(self, error: BaseException | None) -> None:
        """End the recording, save and report it. A forked child of the program does nothing."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        self._first_use.close()
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it may be closed
            sys.stdout.flush()
        if self._recording is None:
            say(f"nothing to report: the program {_UNUSED[self._detail == 'full']}")
            return
        try:
            self._recording.stop(error, says=False)
            self._say_where(self._recording)
            if self._beside is not None and not isinstance(error, Terminated):
                self._beside.wait()
            self._publish(self._recording)
        except Exception as failure:  # the border to the traced program: its status stands
            say(f"no report could be made: {type(failure).__name__}: {failure}")

    def _say_where(self, recording: Recording) -> None:
        if self._out is not None and recording.saved:
            replaced = f"; {recording.replaced}" if recording.replaced else ""
            say(f"run saved: tracer report {self._out}{replaced}")
        elif self._out is not None:
            say(f"the run could not be saved to {self._out}")

    def _publish(self, recording: Recording) -> None:
        if self._report is not None and self._write(recording, self._report):
            self._point_to_ranks(recording)
            return
        stream: Any = sys.__stderr__ or sys.stderr
        if stream is not None:
            stream.write("\n" + recording.report.text())
            stream.flush()
        self._point_to_ranks(recording)

    def _point_to_ranks(self, recording: Recording) -> None:
        """The last line of the report of one rank of several: what compares them."""
        meta = recording.report.analysis.trace.meta
        if meta.rank is None or (meta.world_size or 1) < 2:
            return
        if self._out is not None and recording.saved:
            how = f"compare all ranks: tracer ranks {self._out}"
        else:
            how = "to compare all ranks, save them with --out DIR, then: tracer ranks DIR"
        say(f"rank {meta.rank} of {meta.world_size}; {how}")

    @staticmethod
    def _write(recording: Recording, wanted: Path) -> bool:
        from tracer.rank_store import rank_file

        path = rank_file(recording.trace.meta, wanted)
        try:
            path.write_text(_document(recording, path.suffix), encoding="utf-8")
        except OSError as error:
            say(f"--report {path}: cannot be written ({error.strerror or error}); it follows here")
            return False
        say(f"report written to {path}")
        return True


def _document(recording: Recording, suffix: str) -> str:
    import json

    if suffix == ".json":
        return json.dumps(recording.report.json(), indent=1) + "\n"
    return recording.report.html() if suffix == ".html" else recording.report.text()


@contextlib.contextmanager
def _on_termination(action: Any) -> Generator[None]:
    """Do something before SIGTERM ends the process, which it still does.

    A handler of the program's own takes the place of ours.
    """
    number = signal.SIGTERM
    if signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            action()
        finally:
            os.kill(os.getpid(), number)

    def reset_in_child() -> None:
        if signal.getsignal(number) is handle:
            signal.signal(number, signal.SIG_DFL)

    signal.signal(number, handle)
    os.register_at_fork(after_in_child=reset_in_child)
    try:
        yield
    finally:
        reset_in_child()
