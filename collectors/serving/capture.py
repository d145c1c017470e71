"""Captures on demand: an engine is asked to profile itself for a while."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tracer.collectors.serving.http import Server, ServerError, ask
from tracer.errors import CaptureError
from tracer.serving import Engine

# An engine may write all it recorded before it answers: minutes, for many ranks.
STOP_TIMEOUT_S = 600.0
_NOT_THERE = (404, 405, 501)


@dataclass(frozen=True)
class Capturing:
    """How an engine is asked, from its row of `captures.csv`. `where`: where it writes; `enable`:
    how to start it so that it can."""

    start: str
    stop: str
    takes_directory: bool
    where: str
    enable: str


@cache
def captures() -> dict[str, Capturing]:
    """The engines that can be asked, by key."""
    text = files("tracer.collectors.serving").joinpath("captures.csv").read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {
        row["engine"]: Capturing(
            row["start"], row["stop"], row["directory"] == "sent", row["where"], row["enable"]
        )
        for row in csv.DictReader(lines)
    }


def capturing_of(engine: Engine) -> Capturing:
    """How this engine is asked; CaptureError for one that cannot be."""
    known = captures().get(engine.key)
    if known is None:
        raise CaptureError(
            f"--capture: {engine.name} takes no capture over HTTP (vLLM and SGLang do): run it "
            "under a profiler, and give what that writes to tracer report"
        )
    return known


def capture(
    server: Server,
    engine: Engine,
    seconds: float,
    timeout_s: float,
    sleep: Callable[[float], None],
    directory: str = "",
) -> None:
    """Profile the engine for so long; `directory` is sent to one that takes it. What was started
    is stopped, whatever happens; CaptureError when the engine refuses."""
    asked = capturing_of(engine)
    body = json.dumps({"output_dir": directory}) if directory and asked.takes_directory else ""
    try:
        ask(server, asked.start, timeout_s, body=body.encode() or None, post=True)
    except ServerError as error:
        if not error.status:  # it may have begun
            _stop(server, asked, timeout_s)
        raise _refused(engine, asked, error) from error
    try:
        sleep(seconds)
    finally:
        failure = _stop(server, asked, STOP_TIMEOUT_S)
    if failure is not None:
        raise CaptureError(f"{engine.name} did not end its capture: {failure}") from failure


def _stop(server: Server, asked: Capturing, timeout_s: float) -> ServerError | None:
    try:
        ask(server, asked.stop, timeout_s, post=True)
    except ServerError as error:
        return error
    return None


def _refused(engine: Engine, asked: Capturing, error: ServerError) -> CaptureError:
    if error.status in _NOT_THERE:
        return CaptureError(f"{engine.name} takes no capture ({error}): {asked.enable}")
    return CaptureError(f"{engine.name} refused the capture: {error}")
