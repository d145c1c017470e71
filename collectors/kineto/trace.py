"""PyTorch profiler traces (Kineto's Chrome JSON), read into a `Trace`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any

import numpy as np
import pandas as pd

from tracer.collectors.kineto.columns import Columns, Tables, finish
from tracer.collectors.kineto.flows import join_by_flows, needs_flows
from tracer.collectors.kineto.header import base_ns, devices, read_meta
from tracer.collectors.kineto.loose import Remarks
from tracer.collectors.kineto.names import thread_name
from tracer.collectors.kineto.notes import clock_notes, notes_of, rank_note
from tracer.collectors.kineto.reading import Progress, Reading, read_file
from tracer.collectors.kineto.workers import can_share, read_shared
from tracer.collectors.sniff import sniff
from tracer.errors import EmptyTraceError, InputError
from tracer.events import NONE, SIDE_TABLES, Trace, make_table

_ANY = sys.maxsize
_EPOCH_NS = 10**18  # the year 2001: a time beyond it counts from the epoch, not from a base


def read_kineto(
    path: str | PathLike[str],
    *,
    progress: Progress | None = None,
    max_bytes: int | None = None,
    workers: int = 1,
) -> Trace:
    """Read a trace of the PyTorch profiler, plain or gzipped.

    `progress` is called with the bytes read of the file and its size; `max_bytes` limits the JSON
    that is read. With `workers` above 1 a large plain file is shared with a second process, which
    only a program without threads of its own, such as a command line, may ask for."""
    known = sniff(path)
    if known.name != "kineto":
        raise known.refusal(path)
    with _collector_paused():
        reading = None
        if workers > 1 and can_share(path) and (max_bytes or _ANY) >= os.path.getsize(path):
            reading = read_shared(path, progress)
        if reading is None:
            reading = read_file(path, progress=progress, max_bytes=max_bytes)
        if not reading.columns.rows:
            raise _nothing_read(path, reading.remarks)
        if needs_flows(reading.columns):
            flows = read_file(path, careful=True, keep_flows=True).remarks.flows
            join_by_flows(reading.columns, flows)
        return _trace(fspath(path), reading)


@contextmanager
def _collector_paused() -> Generator[None, None, None]:
    """No garbage collection, which would look at each new object again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _nothing_read(path: str | PathLike[str], remarks: Remarks) -> InputError:
    if remarks.damage.lost:
        return InputError(f"{path}: none of its {remarks.damage.lost:,} events is valid JSON")
    if remarks.unread_phases:
        phases = ", ".join(sorted(remarks.unread_phases))
        return InputError(
            f"{path}: its events are of phases that this build does not read ({phases})"
        )
    rows = remarks.metadata_rows
    return EmptyTraceError(
        f"{path}: nothing was recorded in it" + (f" ({rows} rows of names only)" if rows else "")
    )


def _trace(path: str, reading: Reading) -> Trace:
    base, clock = _clock(reading)
    threads = _threads(reading.columns, reading.remarks)
    tables = finish(reading.columns, base)
    sides = {"threads": threads, **tables.sides}
    sides["devices"] = devices(reading.header, _devices_seen(tables))
    has_modules = bool((tables.events["kind"] == "module").any())
    meta = read_meta(reading.header, path, clock, sides, modules=has_modules)
    notes = (
        *notes_of(reading.remarks, events=len(tables.events), cut=reading.cut),
        *clock_notes(clock, whole_microseconds=_is_coarse(tables.events)),
        *rank_note(meta.rank),
    )
    return Trace(tables.events, {k: v for k, v in sides.items() if len(v)}, meta, notes)


def _clock(reading: Reading) -> tuple[int, str]:
    """What to add to the times, and whether they are then those of the Unix clock."""
    first = int(reading.columns.view("events", "start_ns").min())
    base = base_ns(reading.header)
    if first >= _EPOCH_NS:
        return 0, "unix"
    return (0, "relative") if base is None else (base, "unix")


def _is_coarse(events: pd.DataFrame) -> bool:
    times = (events["start_ns"].to_numpy(), events["duration_ns"].to_numpy())
    return not any((column % 1000).any() for column in times)


def _devices_seen(tables: Tables) -> list[int]:
    seen = np.unique(tables.events["device"].to_numpy())
    return [int(device) for device in seen if device != NONE]


def _threads(columns: Columns, remarks: Remarks) -> pd.DataFrame:
    """The threads that events lie on, with the names that the file gives them."""
    values: dict[str, list[Any]] = {"pid": [], "tid": [], "name": []}
    for pid, tid in columns.threads:
        values["pid"].append(pid)
        values["tid"].append(tid)
        values["name"].append(thread_name(remarks.thread_names.get((pid, tid), "")))
    return make_table(SIDE_TABLES["threads"], values)
