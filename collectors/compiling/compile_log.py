"""What the compiler says of itself in torch's structured log: compilations, recompilations, graph
breaks with the user's line, CUDA graphs that it skipped, code that it compiles no more."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from tracer.events import SIDE_TABLES, make_table

LOGGER = "torch.__trace"
# The kind of a backward that is compiled apart, at its first call.
BACKWARD = "backward"
# What code that was compiled does when it runs is in no metrics; the compiler logs it in words.
_RUNTIME_LOGGER = "torch._inductor"
_SKIPPED = re.compile(r"skipping cudagraphs? due to")
_BREAK = re.compile(r"Graph break in user code at (?P<file>.+):(?P<line>\d+)\s*$", re.M)
_REASON = re.compile(r"Graph Break Reason: *(?P<reason>.*)", re.S)
# Dynamo puts what it was doing before what went wrong.
_ATTEMPT = re.compile(r"Encountered graph break when attempting to trace .*", re.S)
# Torch of another version words it otherwise: the limit by its name alone.
_LIMIT = re.compile(
    r"exceeding the (?P<name>\w+_limit) cache size limit \(currently set to (?P<value>\d+)\)"
    r"|(?P<named>\w*(?:cache_size|recompile)_limit) reached"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


class CompileEvent(NamedTuple):
    """A row of the table `compile_events`."""

    kind: str
    start_ns: int
    end_ns: int
    compile_id: str
    reason: str
    file: str
    line: int
    function: str


class CompileLog(logging.Handler):
    """Keeps the events; costs something only while code is compiled."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.events: list[CompileEvent] = []
        self._skips: list[CompileEvent] = []

    def start(self) -> None:
        for name in (LOGGER, _RUNTIME_LOGGER):
            logging.getLogger(name).addHandler(self)

    def close(self) -> None:
        for name in (LOGGER, _RUNTIME_LOGGER):
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Read a record of torch: of its structured log, which has `metadata`, or in words."""
        metadata, now_ns = getattr(record, "metadata", None), round(record.created * 1e9)
        try:
            if isinstance(metadata, Mapping):
                self._read(metadata, getattr(record, "payload", None), now_ns)
            elif _SKIPPED.search(text := record.getMessage()):
                self._skips.append(_runtime_skip(text, now_ns))
        except (AttributeError, TypeError, ValueError):  # a form of a later torch
            return

    def _read(self, metadata: Mapping[str, Any], payload: Any, now_ns: int) -> None:
        artifact = metadata.get("artifact")
        name = artifact.get("name") if isinstance(artifact, Mapping) else None
        if name == "dynamo_graph_break_reason":
            self.events.append(_graph_break(str(payload), _compile_id(metadata), now_ns))
        for kind in ("compilation_metrics", "bwd_compilation_metrics"):
            metrics = metadata.get(kind)
            if isinstance(metrics, Mapping):
                self.events += _compilations(metrics, now_ns)

    def table(self) -> pd.DataFrame:
        """The table `compile_events`, in order of time, with what lasts of earlier compilations."""
        first = min((event.start_ns for event in self.events), default=None)
        kept = kept_metrics()
        earlier = [e for e in earlier_events(kept) if first is None or e.end_ns < first]
        told = {e.reason for e in self.events if e.kind == "cudagraph_skip"}
        later = [skip for skip in self._skips if skip.reason not in told]
        known = [*(_compilation(metrics, 0) for metrics in kept), *self.events]
        events = [_placed(event, known) for event in (*earlier, *self.events, *later)]
        rows = sorted(events, key=lambda event: event.start_ns)
        columns = zip(*rows, strict=True) if rows else ([] for _ in CompileEvent._fields)
        values = dict(zip(CompileEvent._fields, map(list, columns), strict=True))
        return make_table(SIDE_TABLES["compile_events"], values)


def kept_metrics() -> list[dict[str, Any]]:
    """What torch keeps of the last compilations of this process, in order of time."""
    utils = sys.modules.get("torch._dynamo.utils")
    reader = getattr(utils, "get_compilation_metrics", None)
    kept = [] if reader is None else reader()
    return [{name: getattr(metrics, name, None) for name in _METRICS} for metrics in kept]


def earlier_events(kept: Iterable[Mapping[str, Any]]) -> list[CompileEvent]:
    """Breaks, skips and limits of the compilations that torch keeps: their line is that of the
    function."""
    last: dict[str, Mapping[str, Any]] = {}
    for values in kept:
        if values["is_forward"] is False:  # it has the number of its forward
            continue
        compile_id = str(values["compile_id"])
        anew = compile_id in last and compile_id.endswith("/0") and not values["is_runtime"]
        if anew:  # as after a reset
            frame = _frame(compile_id)
            last = {key: value for key, value in last.items() if _frame(key) != frame}
        last[compile_id] = values
    out: list[CompileEvent] = []
    for values in last.values():
        compiled = _compilation(values, 0)
        if compiled.kind == "recompile_limit":
            out.append(compiled)
        for reason in values["restart_reasons"] or ():
            if "Explanation:" in str(reason):  # what else restarts it names a class
                reason_line = _first_line(str(reason))
                out.append(compiled._replace(kind="graph_break", reason=reason_line))
        if values["cudagraph_skip_reason"]:
            words = _first_line(str(values["cudagraph_skip_reason"]))
            out.append(compiled._replace(kind="cudagraph_skip", reason=words))
    return out


def _frame(compile_id: str) -> str:
    return compile_id.partition("/")[0]


def _placed(event: CompileEvent, known: Iterable[CompileEvent]) -> CompileEvent:
    """A limit with the function whose earlier versions were compiled, since torch gives up before
    it notes which it is; a backward with the function of its forward."""
    if event.kind not in ("recompile_limit", BACKWARD) or event.file:
        return event
    frame, before = _frame(event.compile_id), event.start_ns
    mine = [e for e in known if _frame(e.compile_id) == frame and e.file and e.start_ns <= before]
    if event.kind == BACKWARD:
        mine = [e for e in mine if e.compile_id == event.compile_id]
    if not mine:
        return event
    last = max(mine, key=lambda compiled: compiled.start_ns)
    return event._replace(file=last.file, line=last.line, function=last.function)


_METRICS = (
    *("compile_id", "co_filename", "co_firstlineno", "co_name", "start_time_us", "duration_us"),
    *("recompile_reason", "cudagraph_skip_reason", "restart_reasons", "is_runtime"),
    *("fail_reason", "is_forward"),
)


def _compile_id(metadata: Mapping[str, Any]) -> str:
    frame, number = metadata.get("frame_id"), metadata.get("frame_compile_id")
    return "" if frame is None or number is None else f"{frame}/{number}"


def _graph_break(text: str, compile_id: str, now_ns: int) -> CompileEvent:
    place = _BREAK.search(text)
    said = _REASON.search(text)
    reason = _first_line(said["reason"] if said else text)
    file, line = (place["file"], int(place["line"])) if place else ("", -1)
    frames = [m for m in _FRAME.finditer(text) if m["file"] == file and int(m["line"]) == line]
    function = frames[-1]["function"] if frames else ""
    return CompileEvent("graph_break", now_ns, now_ns, compile_id, reason, file, line, function)


def _runtime_skip(text: str, now_ns: int) -> CompileEvent:
    return CompileEvent("cudagraph_skip", now_ns, now_ns, "", _first_line(text), "", -1, "")


def _first_line(text: str) -> str:
    """The sentence that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not _ATTEMPT.match(line)]
    return (telling or lines or [""])[0]


def _compilations(metrics: Mapping[str, Any], now_ns: int) -> list[CompileEvent]:
    """A compilation, and what its metrics say besides."""
    compiled = _compilation(metrics, now_ns)
    out = []
    if not metrics.get("is_runtime"):  # what compiled code sets up when it first runs
        out.append(compiled)
    if metrics.get("cudagraph_skip_reason"):
        words = _first_line(str(metrics["cudagraph_skip_reason"]))
        skip = compiled._replace(kind="cudagraph_skip", start_ns=compiled.end_ns, reason=words)
        out.append(skip)
    return out


def _compilation(metrics: Mapping[str, Any], now_ns: int) -> CompileEvent:
    start_us, took_us = metrics.get("start_time_us"), metrics.get("duration_us")
    start_ns = now_ns if start_us is None else int(start_us) * 1000
    again = _first_line(str(metrics.get("recompile_reason") or "")).partition("  #")[0].strip()
    limit = _limit(str(metrics.get("fail_reason") or ""))
    forward = "recompile" if again else "compile"
    return CompileEvent(
        "recompile_limit" if limit else BACKWARD if metrics.get("is_forward") is False else forward,
        start_ns,
        now_ns if took_us is None else start_ns + int(took_us) * 1000,
        str(metrics.get("compile_id") or ""),
        f"{limit}; {again}" if limit else again,
        str(metrics.get("co_filename") or ""),
        int(metrics.get("co_firstlineno") or -1),
        str(metrics.get("co_name") or ""),
    )


def _limit(failed: str) -> str:
    """The limit that kept code from being compiled again: `recompile_limit (8)`."""
    told = _LIMIT.search(failed)
    if told is None:
        return ""
    return str(told["named"] or f"{told['name']} ({told['value']})")
