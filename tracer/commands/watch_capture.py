"""The capture of `tracer watch`: the engine profiles itself, and its files are reported."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tracer.commands.exits import PARTIAL
from tracer.commands.output import say, write_report
from tracer.errors import CaptureError, TracerError, UsageError

if TYPE_CHECKING:
    from tracer.collectors.serving.http import Server
    from tracer.serving import Engine

DEFAULT_CAPTURE_S = 5.0
WAIT_LIMIT_S = 600.0
# A hang-up, of a lost connection, is unknown to Windows.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True)
class Wanted:
    """What was asked for: how long, and the engine's directory as it is seen from here."""

    seconds: float
    traces: Path | None = None


@dataclass(frozen=True)
class Captured:
    """What came of it. `where` tells where the engine writes; `files` are there whole, `cut` are
    not; `failure` says why there is nothing."""

    seconds: float
    where: str = ""
    files: tuple[Path, ...] = ()
    cut: tuple[Path, ...] = ()
    failure: str = ""

    @property
    def whole(self) -> bool:
        """Whether all that was asked for is there."""
        return not self.failure and not self.cut


def wanted_of(seconds: float | None, traces: str | None) -> Wanted | None:
    """What the options ask for; a directory that is not there is wrong usage."""
    if seconds is None:
        if traces is not None:
            raise UsageError("--traces is where a capture is written: add --capture")
        return None
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--capture {seconds:g}: give a number of seconds above 0")
    if traces is not None and not Path(traces).is_dir():
        raise UsageError(f"--traces {traces}: there is no such directory")
    return Wanted(seconds, None if traces is None else Path(traces))


def take_capture(server: Server, engine: Engine, wanted: Wanted, timeout_s: float) -> Captured:
    """Let the engine profile itself and wait for its files; what goes wrong is said, on stderr and
    in the answer."""
    try:
        return _take(server, engine, wanted, timeout_s)
    except CaptureError as error:
        say(str(error))
        return Captured(wanted.seconds, failure=str(error))


def _take(server: Server, engine: Engine, wanted: Wanted, timeout_s: float) -> Captured:
    from tracer.collectors.serving.capture import capture, capturing_of
    from tracer.collectors.serving.http import is_loopback
    from tracer.collectors.serving.new_files import list_recordings, wait_for_new

    asked, directory, where = capturing_of(engine), "", capturing_of(engine).where
    if wanted.traces is not None and asked.takes_directory and is_loopback(server.host):
        directory = where = str(wanted.traces.resolve())
    before = {} if wanted.traces is None else list_recordings(wanted.traces)
    say(f"{engine.name} captures itself for {wanted.seconds:g} s, which slows it down")
    with _interrupted_by_signals():
        capture(server, engine, wanted.seconds, timeout_s, time.sleep, directory)
    made = Captured(wanted.seconds, where)
    if wanted.traces is None:
        say(f"captured; {engine.name} writes to {where}, on its own machine")
        return made
    say(f"captured; waiting for the files in {wanted.traces}")
    whole, cut = wait_for_new(wanted.traces, before, WAIT_LIMIT_S, time.sleep)
    if not whole and not cut:
        raise CaptureError(
            f"{wanted.traces}: no recording came in {WAIT_LIMIT_S:g} s; {engine.name} writes to "
            f"{where}: is this that directory?"
        )
    for path in cut:
        say(f"{path}: not complete after {WAIT_LIMIT_S:g} s, left out")
    return replace(made, files=tuple(whole), cut=tuple(cut))


@contextmanager
def _interrupted_by_signals() -> Generator[None, None, None]:
    """What would end the program ends the capture first, like Ctrl-C: the engine's profiler must
    not stay on."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report_capture(captured: Captured, width: int | None) -> int:
    """Print the report of the files, as `tracer report` does; 4 where something is missing."""
    from tracer.commands.report import report_paths

    if not captured.files:
        return 0 if captured.whole else PARTIAL
    write_report("\n")
    try:
        status = report_paths([str(path) for path in captured.files], width=width)
    except TracerError as error:
        say(str(error))
        return PARTIAL
    return status if captured.whole else PARTIAL


def capture_json(captured: Captured) -> dict[str, Any]:
    """The capture as JSON; `report` is the document of `tracer report --json` for its files."""
    return {
        "seconds": captured.seconds,
        "written_to": captured.where or None,
        "files": [str(path) for path in captured.files],
        "incomplete_files": [str(path) for path in captured.cut],
        "failure": captured.failure or None,
        "report": _document(captured.files),
    }


def _document(files: Sequence[Path]) -> Any:
    from tracer.commands.report import document_of_paths

    if not files:
        return None
    try:
        return json.loads(document_of_paths([str(path) for path in files]))
    except TracerError as error:
        say(str(error))
        return None
