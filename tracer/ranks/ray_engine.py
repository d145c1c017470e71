"""Ranks on a Ray cluster: the same task a rank, with what it found kept in the object store.

Ray comes with the extra `ray`. The driver reads summaries, and rows in pieces; nothing it holds
grows with the length of the recordings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from tracer.errors import InputError, UsageError
from tracer.rank_analysis import ROW, Doings, Interval, Rows
from tracer.ranks.task import Done, Failure, Task, describe, summarise

# Rows of one object: large enough to lie in the store and not in the driver.
_PIECE = 4096
_NO_ROWS = np.zeros(0, dtype=ROW)


class RayEngine:
    """Tasks on a Ray cluster: the one at `address`, or one that is started here."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._ray = _ray()
        self._workers = workers
        self._pieces: dict[int, list[Any]] = {}
        self._reports: dict[int, Any] = {}
        self._started = not self._ray.is_initialized()
        if self._started:
            self._start(address)

    def _start(self, address: str | None) -> None:
        # Its usage report to the network is nobody's wish who reads a trace.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            options |= {"num_cpus": self._workers, "include_dashboard": False}
        else:
            options["address"] = address
        try:
            self._ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = address or "this machine"
            raise InputError(f"Ray at {where} cannot be reached: {error}") from None

    def summarise(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Done | Failure]]:
        """Understand all ranks, as many at a time as the cluster has cores."""
        remote = self._ray.remote(max_retries=1)(_pieces_of)
        limit = self._workers or len(tasks)
        left = list(enumerate(tasks))
        streams: dict[Any, int] = {}
        while streams or left:
            while left and len(streams) < limit:
                place, task = left.pop(0)
                streams[remote.options(num_returns="streaming").remote(task)] = place
            ready, _ = self._ray.wait(list(streams), num_returns=1)
            for stream in ready:
                place = streams.pop(stream)
                yield place, self._taken(place, tasks[place], stream)

    def _taken(self, place: int, task: Task, stream: Any) -> Done | Failure:
        """What a task found: its summary here, the rest by reference."""
        try:
            result: Done | Failure = self._ray.get(next(stream))
            rest = list(stream)
        except self._ray.exceptions.RayError as error:
            text = " ".join(str(error).split())[:300]
            return Failure(f"{task.place}: the task was lost: {text}", "trace.unreadable")
        if isinstance(result, Done):
            *self._pieces[place], self._reports[place] = rest
        return result

    def rows(self, place: int, begin: int, end: int) -> Rows:
        """Collectives of one task's rank, from the object store."""
        pieces = self._pieces[place]
        wanted = range(begin // _PIECE, min((max(end, begin) - 1) // _PIECE + 1, len(pieces)))
        parts: list[Rows] = []
        for piece in wanted:
            rows = self._ray.get(pieces[piece])
            first = piece * _PIECE
            parts.append(rows[max(begin - first, 0) : max(end - first, 0)])
        return parts[0] if len(parts) == 1 else np.concatenate([_NO_ROWS, *parts])

    def report(self, place: int) -> str:
        """The whole report of one task's rank."""
        return str(self._ray.get(self._reports[place]))

    def describe(
        self, questions: Sequence[tuple[str, Sequence[Sequence[Interval]]]]
    ) -> list[list[Doings]]:
        """Look at recordings again."""
        remote = self._ray.remote(describe)
        found: list[list[Doings]] = self._ray.get([remote.remote(*asked) for asked in questions])
        return found

    def close(self) -> None:
        """Forget the objects, and end a cluster that was started here."""
        self._pieces.clear()
        self._reports.clear()
        if self._started:
            self._ray.shutdown()


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        text = "--engine ray needs Ray: pip install 'llm-stack-tracer[ray]'"
        raise UsageError(text) from None


def _pieces_of(task: Task) -> Iterator[Any]:
    """Understand a rank; yields its summary, its rows in pieces, and its report."""
    done = summarise(task)
    if isinstance(done, Failure):
        yield done
        return
    yield replace(done, rows=_NO_ROWS, report="")
    for begin in range(0, len(done.rows), _PIECE):
        yield done.rows[begin : begin + _PIECE]
    yield done.report
