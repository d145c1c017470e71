"""The tables of an export as batches of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.collectors.batches import Batch, Ints
from tracer.collectors.nsys.database import Database
from tracer.collectors.nsys.names import (
    DIRECTIONS,
    MEMORIES,
    OVERHEADS,
    WAITS,
    call_name,
    kernel_name,
)
from tracer.collectors.nsys.places import Places
from tracer.collectors.nsys.ranges import RangeReader
from tracer.events import NONE

CUPTI = "CUPTI_ACTIVITY_KIND_"
GRAPH_NAME = "CUDA graph (its kernels were not recorded)"

_PLACE = ("deviceId", "contextId", "streamId", "correlationId", "globalPid")
_GEOMETRY = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_KERNEL = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId")


@dataclass
class Remarks:
    """What was met while reading. open_ranges: they have no end; unmeasured: rows of the device
    whose times the driver did not give; graph_launches: recorded whole, with all their time."""

    open_ranges: int = 0
    unmeasured: int = 0
    graph_launches: int = 0
    graphs_ns: int = 0


class Reader:
    """Reads the tables of one export into batches."""

    def __init__(self, database: Database, places: Places) -> None:
        self.database, self.places, self.remarks = database, places, Remarks()
        self.strings = dict(database.ask("SELECT id, value FROM StringIds"))

    def batches(self) -> Iterator[Batch]:
        """Everything, a table at a time."""
        yield from (self._calls(), self._kernels(), self._graphs(), self._copies(), self._sets())
        yield from (self._waits(), *self._overheads())
        ranges = RangeReader(self.database, self.places, self.strings)
        yield from ranges.batches()
        self.remarks.open_ranges = ranges.open_ranges

    def _calls(self) -> Batch:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        found = self._spans("RUNTIME", columns)
        distinct, rows = _distinct(found["nameId"])
        codes, names = _coded([call_name(self._string(name)) for name in distinct])
        return Batch(
            "runtime",
            found["start"],
            found["end"] - found["start"],
            codes[rows],
            names,
            {
                "thread": self.places.threads(found["globalTid"]),
                "correlation": self.places.correlations(
                    found["globalTid"] & ~0xFFFFFF, found["correlationId"]
                ),
            },
        )

    def _kernels(self) -> Batch:
        names = ("demangledName", "shortName", "mangledName")
        found = self._measured("KERNEL", (*_PLACE, *names, *_GEOMETRY, *_KERNEL, "graphId"))
        of_row = np.where(found["demangledName"] > 0, found["demangledName"], found["shortName"])
        of_row = np.where(of_row > 0, of_row, found["mangledName"])
        distinct, rows = _distinct(of_row)
        codes, texts = _coded([kernel_name(self._string(name)) for name in distinct])
        return self._device(
            "kernel", found, codes[rows], texts, geometry=_geometry(found), **_nodes(found)
        )

    def _graphs(self) -> Batch:
        """Launches of graphs that were recorded whole: the device is busy, with what is unknown."""
        found = self._measured("GRAPH_TRACE", _PLACE)
        self.remarks.graph_launches = found["start"].size
        self.remarks.graphs_ns = int((found["end"] - found["start"]).sum())
        return self._device("kernel", found, _zeros(found), [GRAPH_NAME])

    def _copies(self) -> Batch:
        columns = ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId", "graphId")
        found = self._measured("MEMCPY", (*_PLACE, *columns))
        kinds = found["copyKind"] << 16 | (found["srcKind"] & 0xFF) << 8 | found["dstKind"] & 0xFF
        distinct, rows = _distinct(kinds)
        known = [_copy_kind(int(kind)) for kind in distinct]
        codes, names = _coded([kind["name"] for kind in known])
        copies: dict[str, Any] = {"bytes": found["bytes"]}
        for column in _COPY_COLUMNS:
            copies[column] = [known[row][column] for row in rows.tolist()]
        return self._device("memcpy", found, codes[rows], names, copies=copies, **_nodes(found))

    def _sets(self) -> Batch:
        found = self._measured("MEMSET", (*_PLACE, "bytes", "memKind", "graphNodeId", "graphId"))
        distinct, rows = _distinct(found["memKind"])
        memories = [MEMORIES.get(int(kind), "unknown") for kind in distinct]
        codes, names = _coded([f"Memset ({memory.capitalize()})" for memory in memories])
        count = found["start"].size
        copies = {
            "bytes": found["bytes"],
            "direction": ["set"] * count,
            "source": ["unknown"] * count,
            "target": [memories[row] for row in rows],
        }
        return self._device("memset", found, codes[rows], names, copies=copies, **_nodes(found))

    def _waits(self) -> Batch:
        found = self._spans("SYNCHRONIZATION", ("start", "end", *_PLACE, "syncType"))
        distinct, rows = _distinct(found["syncType"])
        codes, names = _coded([WAITS.get(int(kind), "Sync") for kind in distinct])
        kinds = {"sync_kind": [names[code] for code in codes[rows]], "on_stream": found["streamId"]}
        return self._device("device_wait", found, codes[rows], names, waits=kinds)

    def _overheads(self) -> Iterator[Batch]:
        for table in (f"{CUPTI}OVERHEAD", "PROFILER_OVERHEAD"):
            columns = ("start", "end", "globalTid", "nameId", "overheadType")
            found = self._spans(table, columns)
            distinct, rows = _distinct(found["overheadType"] << 32 | found["nameId"] & 0xFFFFFFFF)
            names = [self._overhead(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in distinct]
            codes, texts = _coded(names)
            # No thread: what the profiler does in a thread is no work of the program.
            yield Batch(
                "overhead", found["start"], found["end"] - found["start"], codes[rows], texts
            )

    def _overhead(self, kind: int, name: int) -> str:
        return OVERHEADS.get(kind) or self._string(name) or "Profiler Overhead"

    def _device(
        self,
        kind: str,
        found: dict[str, Ints],
        codes: NDArray[Any],
        names: Sequence[str],
        **sides: dict[str, Any],
    ) -> Batch:
        return Batch(
            kind,
            found["start"],
            found["end"] - found["start"],
            codes,
            names,
            {
                "device": self.places.devices(found["globalPid"], found["deviceId"]),
                "stream": self.places.streams(found),
                "correlation": self.places.correlations(found["globalPid"], found["correlationId"]),
            },
            sides,
        )

    def _measured(self, table: str, columns: Sequence[str]) -> dict[str, Ints]:
        """Rows of the device; the driver gives 0 for times that it could not take."""
        where = self.places.only("globalPid")
        found = self.database.numbers(CUPTI + table, ("start", "end", *columns), where)
        good = (found["end"] >= found["start"]) & ~((found["start"] == 0) & (found["end"] == 0))
        self.remarks.unmeasured += int((~good).sum())
        return {column: values[good] for column, values in found.items()}

    def _spans(self, table: str, columns: Sequence[str]) -> dict[str, Ints]:
        name = CUPTI + table if CUPTI + table in self.database.tables else table
        owner = "globalTid" if "globalTid" in columns else "globalPid"
        found = self.database.numbers(name, columns, self.places.only(owner))
        good = found["end"] >= found["start"]
        return {column: values[good] for column, values in found.items()}

    def _string(self, number: int) -> str:
        return str(self.strings.get(number, ""))


_COPY_COLUMNS = ("direction", "source", "target")


def _copy_kind(key: int) -> dict[str, str]:
    kind, source, target = key >> 16, key >> 8 & 0xFF, key & 0xFF
    direction = DIRECTIONS.get(kind)
    ends = [MEMORIES.get(source, "unknown"), MEMORIES.get(target, "unknown")]
    name = "Memcpy" if direction is None else f"Memcpy {direction.name}"
    return {
        "direction": "unknown" if direction is None else direction.word,
        "source": ends[0],
        "target": ends[1],
        "name": f"{name} ({ends[0].capitalize()} -> {ends[1].capitalize()})",
    }


def _geometry(found: dict[str, Ints]) -> dict[str, Any]:
    def product(*columns: str) -> Ints:
        values = np.stack([found[column] for column in columns])
        return np.where((values >= 0).all(axis=0), values.prod(axis=0), NONE)

    static, dynamic = found["staticSharedMemory"], found["dynamicSharedMemory"]
    return {
        "blocks": product("gridX", "gridY", "gridZ"),
        "threads_per_block": product("blockX", "blockY", "blockZ"),
        "registers_per_thread": found["registersPerThread"],
        "shared_memory_bytes": np.where((static >= 0) & (dynamic >= 0), static + dynamic, NONE),
    }


def _nodes(found: dict[str, Ints]) -> dict[str, dict[str, Any]]:
    """The nodes of graph replays; the graph stands in the upper half of the node's number."""
    rows = np.flatnonzero(found["graphNodeId"] > 0)
    if not rows.size:
        return {}
    node, graph = found["graphNodeId"][rows], found["graphId"][rows]
    graphs = np.where(graph > 0, graph, node >> 32)
    return {"graph_nodes": {"event": rows, "graph": graphs, "node": node}}


def _distinct(values: Ints) -> tuple[list[int], Ints]:
    """The distinct values, and which of them each value is."""
    distinct, rows = np.unique(values, return_inverse=True)
    return distinct.tolist(), rows.reshape(-1).astype(np.int64)


def _coded(names: Sequence[str]) -> tuple[Ints, list[str]]:
    """Codes of these names, and the distinct ones."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(n, len(codes)) for n in names], dtype=np.int64), list(codes)


def _zeros(found: dict[str, Ints]) -> Ints:
    return np.zeros(found["start"].size, dtype=np.int64)
