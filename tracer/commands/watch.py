"""`tracer watch URL`: a serving engine that runs, where a request's time goes, what to change."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tracer.commands.exits import PARTIAL
from tracer.commands.output import say, wants_color, write_report
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
    parser.add_argument("url", metavar="URL", help="http://host:8000, with or without /metrics")
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
    parser.add_argument("--json", action="store_true", help="JSON, schema tracer.watch/1")
    parser.add_argument("--width", type=int, metavar="N", help="cells of a line, 80 to 160")
    parser.epilog = (
        "The metrics are read, nothing else; every number is of the window, not since the start."
    )


def run(args: argparse.Namespace) -> int:
    """Watch, print, and tell by the status whether something was lost."""
    from tracer.analyzers.serving.causes import analyze_serving
    from tracer.collectors.serving.http import parse_url
    from tracer.collectors.serving.polling import watch_metrics

    for name in ("seconds", "interval", "timeout"):
        _expect_positive(name, getattr(args, name))
    server = parse_url(args.url, parse_headers(args.header))
    say(f"watching {server.base} for {args.seconds:g} s")
    readings = watch_metrics(server, args.seconds, args.interval, args.timeout, teller())
    analysis = analyze_serving(readings)
    write_report(_as_json(analysis) if args.json else _as_text(analysis, args.width))
    return PARTIAL if analysis.damaged else 0


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


def _as_json(analysis: ServingAnalysis) -> str:
    from tracer.exporters.json_report import report_text
    from tracer.exporters.watch_json import to_watch

    return report_text(to_watch(analysis))
