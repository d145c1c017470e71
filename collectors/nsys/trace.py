"""Exports of Nsight Systems (`nsys export --type sqlite`), read into a `Trace`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from tracer.collectors.batches import tables_of
from tracer.collectors.nsys.database import Database, Progress, open_database
from tracer.collectors.nsys.places import Places
from tracer.collectors.nsys.rows import Reader, Remarks
from tracer.collectors.sniff import sniff
from tracer.errors import EmptyTraceError, NotATraceError
from tracer.events import Note, Trace, TraceMeta
from tracer.held_ranks import place_of

_EPOCH_NS = 10**18  # the year 2001: a time beyond it counts from the epoch already


def read_nsys(
    path: str | PathLike[str], *, progress: Progress | None = None, rank: int | None = None
) -> Trace:
    """Read an export of Nsight Systems, plain or gzipped; with `rank`, one of those it holds.

    `progress` is called with the tables read and how many there are."""
    known = sniff(path)
    if known.name != "nsys-sqlite":
        raise known.refusal(path)
    with open_database(path) as database:
        if "StringIds" not in database.tables:
            raise NotATraceError(f"{path}: an SQLite database that Nsight Systems did not write")
        ranks = Places(database).ranks() if rank is not None else {}
        process = None if rank is None else ranks[rank]
        return _trace(database, _Rank(rank, len(ranks)), Places(database, process), progress)


def ranks_in(path: str | PathLike[str]) -> list[int]:
    """The ranks in an export: its processes, where each ran kernels on a device of its own."""
    stat = os.stat(path)
    return list(_ranks_in(fspath(path), stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=64)
def _ranks_in(path: str, _modified_ns: int, _size: int) -> tuple[int, ...]:
    """Kept while the file is the same: a packed one takes long to unpack."""
    with open_database(path) as database:
        return tuple(Places(database).ranks())


class _Rank(NamedTuple):
    """One of the ranks of an export; number None for all that it holds."""

    number: int | None
    of: int


def _trace(database: Database, rank: _Rank, places: Places, progress: Progress | None) -> Trace:
    reader = Reader(database, places)
    batches = []
    for done, batch in enumerate(reader.batches(), 1):
        batches.append(batch)
        if progress is not None:
            progress(done, _TABLES)
    if not any(batch.rows for batch in batches):
        raise EmptyTraceError(
            f"{database.path}: it holds no CUDA call, kernel or range; record with "
            "nsys profile --trace=cuda,nvtx"
        )
    origin = _origin(database)
    events, sides = tables_of(batches)
    if origin is not None:
        events["start_ns"] += origin
    sides["threads"] = places.thread_table()
    sides["devices"] = places.device_table(events["device"].to_numpy())
    held = {name: table for name, table in sides.items() if len(table)}
    clock = "relative" if origin is None else "unix"
    meta = _meta(database, rank, clock, held)
    return Trace(events, held, meta, tuple(_notes(reader.remarks, clock)))


_TABLES = 12


def _origin(database: Database) -> int | None:
    """When the times of the file begin; None where it does not say."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if "utcEpochNs" not in database.columns(table):
        return None
    found = database.ask(f"SELECT utcEpochNs FROM {table} LIMIT 1")
    return int(found[0][0]) if found and found[0][0] else None


def _meta(database: Database, rank: _Rank, clock: str, sides: dict[str, Any]) -> TraceMeta:
    said = _pairs(database, "META_DATA_EXPORT")
    version = said.get("EXPORT_PRODUCT_VERSION")
    versions = {"nsight_systems": version} if version else {}
    return TraceMeta(
        source_kind="nsys",
        path=_path(database.path, rank.number),
        rank=rank.number,
        world_size=rank.of or None,
        clock=clock,
        recorded={
            "shapes": "shapes" in sides,
            "stacks": False,
            "memory": False,
            "modules": False,
        },
        facts={"versions": versions} if versions else {},
    )


def _path(file: str, rank: int | None) -> str:
    return file if rank is None else fspath(place_of(Path(file), rank))


def _pairs(database: Database, table: str) -> dict[str, str]:
    if not {"name", "value"} <= database.columns(table):
        return {}
    return {
        str(name): str(value) for name, value in database.ask(f"SELECT name, value FROM {table}")
    }


def _notes(remarks: Remarks, clock: str) -> Iterator[Note]:
    if remarks.graph_launches:
        count = remarks.graph_launches
        text = (
            f"{count:,} graph launches were recorded whole: their time is busy, and what ran in it "
            "is not known; record with nsys profile --cuda-graph-trace=node"
        )
        detail = {"device_ns": remarks.graphs_ns}
        yield Note("trace.graph_not_divided", text, count, detail)
    if remarks.open_ranges:
        count = remarks.open_ranges
        text = f"{count:,} ranges have no end in the recording and are left out"
        yield Note("trace.unpaired", text, count)
    if remarks.unmeasured:
        count = remarks.unmeasured
        text = f"{count:,} rows of the device have no times and are left out"
        yield Note("trace.no_times", text, count, partial=True)
    if clock == "relative":
        text = "the file does not say when its clock began: its times cannot be joined with others"
        yield Note("trace.no_timestamps_base", text)
