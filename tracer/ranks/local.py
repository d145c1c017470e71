"""All ranks on this machine: one task a rank, in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracer.errors import InputError
from tracer.rank_analysis import ROW, Doings, Interval, Rows
from tracer.ranks.places import is_url, size_of
from tracer.ranks.task import Done, Failure, Task, describe, summarise

# Fewer bytes than these are read sooner than a second process starts.
_ALONE_BYTES = 4_000_000
# Memory that understanding a recording takes, for each byte of its file (gzipped, plain).
_ZIPPED_COST, _PLAIN_COST = 60, 6
_SMALL_BYTES = 4096
_NO_ROWS = np.zeros(0, dtype=ROW)


class LocalEngine:
    """Processes of this machine. workers None: as many as cores and memory allow."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self._folder = tempfile.TemporaryDirectory(prefix="tracer-ranks-")
        self._kept = Path(self._folder.name)
        self._open: dict[int, Rows] = {}

    def summarise(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Done | Failure]]:
        """Understand all ranks; rows and reports stay in a temporary folder."""
        workers = self._workers or fitting_workers([task.place for task in tasks])
        workers = min(workers, len(tasks))
        jobs = [(self._kept, place, task) for place, task in enumerate(tasks)]
        if workers <= 1:
            for place, task in enumerate(tasks):
                yield place, _kept_summary(self._kept, place, task)
            return
        with _pool(workers) as pool:
            waiting = {pool.submit(_kept_summary, *job): job[1] for job in jobs}
            for future in as_completed(waiting):
                place = waiting[future]
                yield place, _result(future, tasks[place].place)

    def rows(self, place: int, begin: int, end: int) -> Rows:
        """Collectives of one task's rank, from disk."""
        if place not in self._open:
            path = _rows_path(self._kept, place)
            # A file without rows cannot be mapped.
            small = path.stat().st_size <= _SMALL_BYTES
            self._open[place] = np.load(path, mmap_mode=None if small else "r")
        found: Rows = self._open[place][begin:end]
        return found

    def report(self, place: int) -> str:
        """The whole report of one task's rank."""
        path = _report_path(self._kept, place)
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def describe(
        self, questions: Sequence[tuple[str, Sequence[Sequence[Interval]]]]
    ) -> list[list[Doings]]:
        """Look at recordings again."""
        workers = self._workers or fitting_workers([place for place, _ in questions])
        if min(workers, len(questions)) <= 1:
            return [describe(place, asked) for place, asked in questions]
        with _pool(min(workers, len(questions))) as pool:
            waiting = [pool.submit(describe, place, asked) for place, asked in questions]
            return [future.result() for future in waiting]

    def close(self) -> None:
        """Remove what was kept."""
        self._open.clear()
        self._folder.cleanup()


def fitting_workers(places: Sequence[str]) -> int:
    """As many processes as there are cores, and as fit into the memory."""
    if any(is_url(place) for place in places):
        return _cores()
    sizes = [size_of(place) for place in places]
    if sum(sizes) < _ALONE_BYTES:
        return 1
    costs = [
        size * (_ZIPPED_COST if place.endswith(".gz") else _PLAIN_COST)
        for size, place in zip(sizes, places, strict=True)
    ]
    return max(1, min(_cores(), _free_memory() // max(max(costs), 1)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_memory() -> int:
    """Bytes that are available; very many where the system does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 1 << 62
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields.get("MemAvailable", "0 kB").split()[0]) * 1024 or 1 << 62


def _pool(workers: int) -> ProcessPoolExecutor:
    # Threads of the parent (a screen, a profiler) make a fork unsafe.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def _kept_summary(folder: Path, place: int, task: Task) -> Done | Failure:
    """Understand a rank and keep rows and report on disk, so that they do not travel."""
    done = summarise(task)
    if isinstance(done, Failure):
        return done
    np.save(_rows_path(folder, place), done.rows)
    if done.report:
        _report_path(folder, place).write_text(done.report, encoding="utf-8")
    return replace(done, rows=_NO_ROWS, report="")


def _rows_path(folder: Path, place: int) -> Path:
    return folder / f"{place}.npy"


def _report_path(folder: Path, place: int) -> Path:
    return folder / f"{place}.json"


def _result(future: Future[Done | Failure], place: str) -> Done | Failure:
    try:
        return future.result()
    except BrokenProcessPool:
        text = (
            f"{place}: a process that read recordings was ended by the system, most likely for "
            "want of memory: use fewer with --workers"
        )
        raise InputError(text, rule="trace.too_large") from None
