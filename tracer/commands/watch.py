"""`tracer watch URL`: a serving engine that runs, where a request's time goes, what to change."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tracer.commands.exits import PARTIAL
from tracer.commands.output import flush_report, say, wants_color, write_report
from tracer.commands.watch_capture import (
    DEFAULT_CAPTURE_S,
    Captured,
    capture_json,
    report_capture,
    take_capture,
    wanted_of,
)
from tracer.errors import UsageError

if TYPE_CHECKING:
    from tracer.serving import Engine, Reading, ServingAnalysis

NAME = "watch"
HELP = (
    "watch a running serving engine (vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, …): where a "
    "request's time goes"
)

DEFAULT_SECONDS = 30.0
DEFAULT_INTERVAL_S = 2.0
DEFAULT_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tracer watch`."""
    parser.add_argument(
        "url", nargs="?", metavar="URL", help="http://host:8000, with or without /metrics"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"how long to look ({DEFAULT_SECONDS:g}); Ctrl-C reports what was seen until then",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=DEFAULT_INTERVAL_S,
        metavar="S",
        help=f"from one reading of the metrics to the next ({DEFAULT_INTERVAL_S:g})",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"for one answer of the server ({DEFAULT_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="sent with each request, such as 'Authorization: Bearer KEY'; may be repeated",
    )
    parser.add_argument(
        "--capture",
        nargs="?",
        const=f"{DEFAULT_CAPTURE_S:g}",
        metavar="SECONDS",
        help="then let the engine (vLLM, SGLang) profile itself for so long "
        f"({DEFAULT_CAPTURE_S:g}), which slows it down",
    )
    parser.add_argument(
        "--traces",
        metavar="DIR",
        help="the directory it writes to, as seen from here: wait for the files and report them",
    )
    parser.add_argument("--json", action="store_true", help="JSON, schema tracer.watch/1")
    parser.add_argument("--width", type=int, metavar="N", help="cells of a line, 80 to 160")
    parser.epilog = (
        "Without --capture the metrics are read, nothing else. Every number is of the window, not "
        "since the start."
    )


def run(args: argparse.Namespace) -> int:
    """Watch, print, and tell by the status whether something was lost."""
    from tracer.analyzers.serving.causes import analyze_serving
    from tracer.collectors.serving.http import parse_url
    from tracer.collectors.serving.polling import watch_metrics

    for name in ("seconds", "interval", "timeout"):
        _expect_positive(name, getattr(args, name))
    url, capture_s = split_capture(args.url, args.capture)
    server = parse_url(url, parse_headers(args.header))
    wanted = wanted_of(capture_s, args.traces)
    say(f"watching {server.base} for {args.seconds:g} s")
    readings = watch_metrics(server, args.seconds, args.interval, args.timeout, teller())
    analysis = analyze_serving(readings)
    status = PARTIAL if analysis.damaged else 0
    if not args.json:
        write_report(_as_text(analysis, args.width))
        flush_report()
    if wanted is None:
        captured = None
    else:
        if nothing_runs(analysis):
            say("nothing runs now: the capture may hold no step")
        captured = take_capture(server, readings.engine, wanted, args.timeout)
    if args.json:
        write_report(_as_json(analysis, captured))
        return status or (0 if captured is None or captured.whole else PARTIAL)
    reported = 0 if captured is None else report_capture(captured, args.width)
    return status or reported


def split_capture(url: str | None, capture: str | None) -> tuple[str, float | None]:
    """The URL and the seconds; `--capture URL` names the URL, and the seconds are the usual."""
    if url is None and capture is not None and not _is_number(capture):
        return capture, DEFAULT_CAPTURE_S
    if url is None:
        raise UsageError(
            "give the URL of a server, for example: tracer watch http://localhost:8000"
        )
    if capture is not None and not _is_number(capture):
        raise UsageError(f"--capture {capture}: give a number of seconds above 0")
    return url, None if capture is None else float(capture)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def nothing_runs(analysis: ServingAnalysis) -> bool:
    """Whether no request was there at the last reading, as far as the engine tells."""
    levels = analysis.window.levels
    told = [levels[name].last for name in ("running", "waiting") if name in levels]
    return not any(told) if told else analysis.idle


def _expect_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise UsageError(f"--{name} {value:g}: give a number of seconds above 0")


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """`NAME: VALUE` as given on the command line."""
    headers: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip().isascii() or not name.strip() or "\n" in text:
            raise UsageError(f"--header {name}: write NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def teller() -> Callable[[Engine, Reading | None], None]:
    """Says a line for each reading: the load, and what came since the one before."""
    heard: list[Reading] = []  # the first and the last

    def tell(engine: Engine, reading: Reading | None) -> None:
        if reading is None:
            say(f"{engine.name}: no answer")
            return
        if heard:
            passed_s = (reading.at_ns - heard[0].at_ns) / 1e9
            say(f"{engine.name} {passed_s:.0f} s: {_load(heard[-1], reading)}")
        heard[:] = [heard[0], reading] if heard else [reading]

    return tell


def _load(before: Reading, now: Reading) -> str:
    from tracer.analyzers.serving.window import make_window
    from tracer.exporters.watch_words import progress_line

    window = make_window((before, now))
    rates = {name: window.per_second(name) or 0.0 for name in window.counts}
    return progress_line({name: level.last for name, level in window.levels.items()}, rates)


def _as_text(analysis: ServingAnalysis, width: int | None) -> str:
    from tracer.exporters.watch_text import render_watch

    return render_watch(analysis, width=width, color=wants_color())


def _as_json(analysis: ServingAnalysis, captured: Captured | None) -> str:
    from tracer.exporters.json_report import report_text
    from tracer.exporters.watch_json import to_watch

    capture = None if captured is None else capture_json(captured)
    return report_text(to_watch(analysis, capture))
