"""Reading a server's metrics again and again, for as long as was asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tracer.collectors.serving.engines import engine_of, engines, read_page
from tracer.collectors.serving.exposition import Page, parse_page
from tracer.collectors.serving.http import METRIC_PATHS, Answer, Server, ServerError, ask
from tracer.serving import Engine, Reading, Readings

_NONE_THERE = (404, 405, 501)
_REFUSED = (401, 403)
_ENABLE = (
    "start llama.cpp with --metrics, SGLang with --enable-metrics, TensorRT-LLM with "
    "return_perf_metrics: true, vLLM without --disable-log-stats; or give the port of the metrics "
    "(Triton: 8002)"
)


@dataclass(frozen=True)
class Clock:
    """Time, as tests may replace it."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    unix_ns: Callable[[], int] = time.time_ns
    sleep: Callable[[float], None] = time.sleep


_REAL = Clock()


def watch_metrics(
    server: Server,
    seconds: float,
    interval_s: float,
    timeout_s: float,
    heard: Callable[[Engine, Reading | None], None] = lambda engine, reading: None,
    clock: Clock = _REAL,
) -> Readings:
    """Read the metrics every interval. The first answer must come; later ones may fail and are
    counted. An interruption (Ctrl-C) ends the window early. `heard` gets each reading, None for
    one that failed."""
    started_unix_ns = clock.unix_ns()
    server, engine, first = find_engine(server, timeout_s, clock)
    heard(engine, first)
    readings, missed, failure, interrupted = [first], 0, "", False
    try:
        for _ in _ticks(first.at_ns, seconds, interval_s, clock):
            try:
                readings.append(read_metrics(server, engine, timeout_s, clock))
                heard(engine, readings[-1])
            except ServerError as error:
                missed, failure = missed + 1, str(error)
                heard(engine, None)
    except KeyboardInterrupt:
        interrupted = True
    if len(readings) < 2:
        raise ServerError(failure or f"{server.base}: interrupted before its second answer")
    url = server.base + server.path
    return Readings(url, engine, started_unix_ns, tuple(readings), missed, failure, interrupted)


def _ticks(start_ns: int, seconds: float, interval_s: float, clock: Clock) -> Iterator[None]:
    """The moments to read at, the last one at the end; those that an answer took are left out."""
    passed_s = 0.0
    while passed_s < seconds:
        due_s = min((passed_s // interval_s + 1) * interval_s, seconds)
        clock.sleep(max(start_ns + due_s * 1e9 - clock.monotonic_ns(), 0) / 1e9)
        yield
        passed_s = max(due_s, (clock.monotonic_ns() - start_ns) / 1e9)


def find_engine(server: Server, timeout_s: float, clock: Clock) -> tuple[Server, Engine, Reading]:
    """The path at which metrics are, whose they are, and the first of them."""
    failures: list[ServerError] = []
    for path in (server.path,) if server.path else METRIC_PATHS:
        try:
            at_ns, page = _fetch(replace(server, path=path), timeout_s, clock)
        except ServerError as error:
            if not error.status:
                raise
            failures.append(error)
            continue
        engine = engine_of(page)
        if engine is not None:
            return replace(server, path=path), engine, read_page(page, engine, at_ns)
        failures.append(_stranger(server.base + path, page))
    raise _advised(failures[-1])


def read_metrics(server: Server, engine: Engine, timeout_s: float, clock: Clock) -> Reading:
    """The metrics now."""
    at_ns, page = _fetch(server, timeout_s, clock)
    if not any(sample.name.startswith(engine.prefix) for sample in page.samples):
        raise ServerError(f"{server.base}{server.path}: no metric of {engine.name} in the answer")
    return read_page(page, engine, at_ns)


def _fetch(server: Server, timeout_s: float, clock: Clock) -> tuple[int, Page]:
    """A page, and the moment in the middle of asking and answer."""
    asked_ns = clock.monotonic_ns()
    answer = ask(server, server.path, timeout_s)
    at_ns = (asked_ns + clock.monotonic_ns()) // 2
    return at_ns, _page(server.base + server.path, answer)


def _page(url: str, answer: Answer) -> Page:
    """The samples of an answer; the error says what it is where it holds none."""
    page = parse_page(answer.text)
    if page.samples:
        return page
    if answer.text.lstrip()[:1] in ("{", "["):
        raise ServerError(f"{url}: it answers JSON, no Prometheus metrics", 404)
    if "html" in answer.content_type or answer.text.lstrip()[:1] == "<":
        raise ServerError(f"{url}: it answers a web page, no Prometheus metrics", 404)
    raise ServerError(f"{url}: no Prometheus metric in its answer", 404)


def _stranger(url: str, page: Page) -> ServerError:
    known = ", ".join(dict.fromkeys(engine.name for engine in engines()))
    return ServerError(
        f"{url}: metrics of no known engine ({page.samples[0].name} is the first; known: {known})",
        404,
    )


def _advised(error: ServerError) -> ServerError:
    """With what to do about it."""
    if error.status in _NONE_THERE:
        return ServerError(f"{error}: {_ENABLE}", error.status)
    if error.status in _REFUSED:
        return ServerError(
            f"{error}: give its key, for example --header 'Authorization: Bearer …'", error.status
        )
    return error
