"""Small synthetic traces in a few lines, for any test.

    maker = TraceMaker()
    step = maker.annotation("ProfilerStep#0", 0, 100)
    maker.launch("gemm", start=10, run=(20, 30), operator="aten::mm")
    trace = maker.build()

Times are microseconds; fractions become nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracer.events import EVENTS, SIDE_TABLES, Note, Trace, TraceMeta, make_table

MAIN_THREAD = 1
STREAM = 7


def to_ns(us: float) -> int:
    """Microseconds as integer nanoseconds."""
    return round(us * 1000)


@dataclass
class TraceMaker:
    """Collects rows in any order; `build` sorts them, links side tables and checks the schema."""

    base_ns: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    side_rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    next_correlation: int = 1
    threads: list[int] = field(default_factory=lambda: [MAIN_THREAD])

    def add(self, kind: str, name: str, start: float, duration: float, **columns: Any) -> int:
        """Add a row of `events`; returns its handle, which side tables take as `event`."""
        start_ns = self.base_ns + to_ns(start)
        times = {"start_ns": start_ns, "duration_ns": to_ns(duration)}
        self.rows.append({"kind": kind, "name": name, **times, **columns})
        return len(self.rows) - 1

    def side(self, table: str, event: int | None = None, **columns: Any) -> None:
        """Add a row of a side table; `event` is a handle of `add`, None for tables without."""
        row = columns if event is None else {"event": event, **columns}
        self.side_rows.setdefault(table, []).append(row)

    def thread(self, tid: int) -> int:
        """The row of `threads` of this thread."""
        if tid not in self.threads:
            self.threads.append(tid)
        return self.threads.index(tid)

    def host(
        self,
        kind: str,
        name: str,
        start: float,
        duration: float,
        tid: int = MAIN_THREAD,
        **more: Any,
    ) -> int:
        """A row of a host thread."""
        return self.add(kind, name, start, duration, thread=self.thread(tid), **more)

    def operator(self, name: str, start: float, duration: float, **more: Any) -> int:
        """An operator on the main thread."""
        return self.host("operator", name, start, duration, **more)

    def annotation(self, name: str, start: float, duration: float, **more: Any) -> int:
        """A named range, such as `ProfilerStep#0`."""
        return self.host("annotation", name, start, duration, **more)

    def module(self, path: str, kind: str, start: float, duration: float, **more: Any) -> int:
        """The range of a module's call."""
        return self.host("module", f"module::{path}::{kind}", start, duration, **more)

    def launch(
        self,
        name: str,
        *,
        start: float,
        run: tuple[float, float],
        call: str = "cudaLaunchKernel",
        call_us: float = 2,
        kind: str = "kernel",
        operator: str | None = None,
        device: int = 0,
        stream: int = STREAM,
        tid: int = MAIN_THREAD,
    ) -> int:
        """A call at `start` and the device work it launched, which runs from run[0] to run[1].

        With `operator`, that operator lies around the call. Returns the handle of the work.
        """
        correlation = self.next_correlation
        self.next_correlation += 1
        if operator is not None:
            self.host("operator", operator, start - 1, call_us + 2, tid, external_id=correlation)
        links = {"correlation": correlation, "external_id": correlation}
        self.host("runtime", call, start, call_us, tid, **links)
        place = {"device": device, "stream": stream}
        return self.add(kind, name, run[0], run[1] - run[0], **place, **links)

    def device_row(
        self, name: str, start: float, duration: float, kind: str = "kernel", **more: Any
    ) -> int:
        """Device work without a launch."""
        return self.add(kind, name, start, duration, **{"device": 0, "stream": STREAM, **more})

    def copy(
        self, direction: str, size: int, *, start: float, run: tuple[float, float], **more: Any
    ) -> int:
        """A `cudaMemcpyAsync` and its copy; direction as in the table `copies`."""
        event = self.launch(
            f"Memcpy {direction}",
            start=start,
            run=run,
            call="cudaMemcpyAsync",
            kind="memcpy",
            **more,
        )
        self.side("copies", event, direction=direction, bytes=size)
        return event

    def build(self, *notes: Note, **meta: Any) -> Trace:
        """The trace of all rows so far."""
        order = sorted(
            range(len(self.rows)),
            key=lambda i: (self.rows[i]["start_ns"], -self.rows[i]["duration_ns"], i),
        )
        position = {handle: row for row, handle in enumerate(order)}
        events = _columns([self.rows[handle] for handle in order], EVENTS)
        tables = {
            name: make_table(SIDE_TABLES[name], _columns(_moved(rows, position), SIDE_TABLES[name]))
            for name, rows in self._all_side_rows().items()
        }
        return Trace(make_table(EVENTS, events), tables, TraceMeta(**meta), notes)

    def _all_side_rows(self) -> dict[str, list[dict[str, Any]]]:
        threads = [{"pid": 1, "tid": tid, "name": f"thread {tid}"} for tid in self.threads]
        return {"threads": threads, **self.side_rows}


def _moved(rows: list[dict[str, Any]], position: Mapping[int, int]) -> list[dict[str, Any]]:
    moved = [{**row, "event": position[row["event"]]} if "event" in row else row for row in rows]
    return sorted(moved, key=lambda row: row.get("event", 0))


def _columns(rows: list[dict[str, Any]], schema: Mapping[str, str]) -> dict[str, list[Any]]:
    used = [name for name in schema if any(name in row for row in rows)]
    default = {"text": "", "float64": float("nan")}
    return {name: [row.get(name, default.get(schema[name], -1)) for row in rows] for name in used}


def steps_held_up_by(kind: str, name: str) -> TraceMaker:
    """Three steps of 10 ms with a host row of 6 ms in which nothing is launched."""
    maker = TraceMaker()
    for step in range(3):
        at = 10_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 10_000)
        for row in range(20):
            begin = at + 5 + 20 * row
            maker.launch("k", start=begin, run=(begin + 5, begin + 15), operator="aten::mm")
        maker.host(kind, name, at + 500, 6_000)
        maker.launch("k", start=at + 6_600, run=(at + 6_605, at + 9_990), operator="aten::mm")
    return maker
