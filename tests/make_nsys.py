"""Exports of Nsight Systems, written for tests: by hand, or from another recording."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracer.analyzers.facts.modules import split_range_name
from tracer.events import Trace

EPOCH_NS = 1_750_000_000_000_000_000
DEVICE = "deviceId contextId streamId correlationId globalPid"
TABLES: dict[str, str] = {
    "StringIds": "id value",
    "META_DATA_EXPORT": "name value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "TARGET_INFO_GPU": "id name totalMemory smCount computeMajor computeMinor",
    "ThreadNames": "nameId globalTid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"start end {DEVICE} demangledName shortName gridX gridY gridZ "
    "blockX blockY blockZ registersPerThread staticSharedMemory dynamicSharedMemory graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"start end {DEVICE} graphId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"start end {DEVICE} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"start end {DEVICE} bytes memKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"start end {DEVICE} syncType",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end globalTid nameId overheadType",
    "NVTX_EVENTS": "start end eventType globalTid endGlobalTid text textId domainId",
}
COPY_KINDS = {
    "host_to_device": 1,
    "device_to_host": 2,
    "device_to_device": 8,
    "host_to_host": 9,
    "peer_to_peer": 10,
}
MEMORY_KINDS = {"pageable": 0, "pinned": 1, "device": 2, "managed": 4}
OVERHEAD_KINDS = {"Buffer Flush": 3, "Lazy Function Loading": 7, "Command Buffer Full": 8}


def process(pid: int) -> int:
    """The global id of a process."""
    return 1 << 48 | pid << 24


def thread(pid: int, tid: int) -> int:
    """The global id of a thread."""
    return process(pid) | tid


@dataclass
class Export:
    """Rows of the tables of an export. A table without a row is not written, as Nsight does it."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    dropped: Mapping[str, Sequence[str]] = field(default_factory=dict)  # columns of a table

    def add(self, table: str, **values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def call(self, name: str, start: int, end: int, correlation: int, on: int) -> None:
        values = {"start": start, "end": end, "globalTid": on, "correlationId": correlation}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **values, nameId=self.string(name))

    def kernel(
        self, name: str, start: int, end: int, correlation: int, pid: int, **more: Any
    ) -> None:
        said = {"demangledName": self.string(name), "shortName": self.string(name.split("(")[0])}
        self.device("KERNEL", start, end, correlation, pid, **said, **more)

    def device(
        self, table: str, start: int, end: int, correlation: int, pid: int, **more: Any
    ) -> None:
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process(pid)}
        values = {"start": start, "end": end, "correlationId": correlation, **place, **more}
        self.add(f"CUPTI_ACTIVITY_KIND_{table}", **values)

    def range(self, text: str | None, start: int, end: int | None, on: int, **more: Any) -> None:
        values = {"start": start, "end": end, "eventType": 59, "globalTid": on, "domainId": 0}
        self.add("NVTX_EVENTS", **{**values, "text": text, **more})

    def write(self, path: Path) -> Path:
        """Write the database."""
        self.rows["StringIds"] = [{"id": n, "value": text} for text, n in self.strings.items()]
        with sqlite3.connect(path) as connection:
            for table, rows in self.rows.items():
                columns = [c for c in TABLES[table].split() if c not in self.dropped.get(table, ())]
                connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                marks = ", ".join("?" * len(columns))
                values = [[row.get(column) for column in columns] for row in rows]
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        connection.close()
        return path


def header(export: Export) -> None:
    """What every export says of its session."""
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
    export.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2026.1.1")


def exported(trace: Trace, pid: int = 4321) -> Export:
    """The same recording as Nsight Systems would have written it: operators as ranges of
    `emit_nvtx`, modules as those of NVIDIA's hooks for layers."""
    export = Export()
    header(export)
    add_process(export, trace, pid, int(trace.start_ns.min()))
    return export


def add_process(export: Export, trace: Trace, pid: int, base: int) -> None:
    """Add a recording as one process of an export, whose session begins at `base`."""
    events = trace.events
    threads = trace.table("threads")
    sides = {name: trace.table(name).set_index("event") for name in _SIDES}
    rows = zip(
        range(len(events)),
        events["kind"].tolist(),
        events["name"].tolist(),
        (trace.start_ns - base).tolist(),
        (trace.end_ns[:] - base).tolist(),
        events["thread"].tolist(),
        events["device"].tolist(),
        events["stream"].tolist(),
        events["correlation"].tolist(),
        strict=True,
    )
    for row, kind, name, start, end, on_thread, device, stream, correlation in rows:
        on = thread(pid, int(threads["tid"].iloc[on_thread]) & 0xFFFFFF) if on_thread >= 0 else None
        place = {"deviceId": device, "streamId": stream}
        if kind == "runtime":
            export.call(f"{name}_v7000", start, end, correlation, on or 0)
        elif kind == "kernel":
            more = {**place, **_node(sides, row), **_geometry(sides, row)}
            export.kernel(name, start, end, correlation, pid, **more)
        elif kind in ("memcpy", "memset"):
            more = {**place, **_node(sides, row), **_copy(sides, row)}
            export.device(kind.upper(), start, end, correlation, pid, **more)
        elif kind == "overhead":
            kinds = {"overheadType": OVERHEAD_KINDS.get(name, 0), "nameId": export.string(name)}
            export.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=start, end=end, globalTid=on, **kinds)
        elif kind in ("operator", "annotation", "module") and on is not None:
            export.range(range_text(kind, name, sides, row), start, end, on)
    for number, device_row in enumerate(trace.table("devices").itertuples()):
        export.add(
            "TARGET_INFO_GPU",
            id=number,
            name=device_row.name,
            totalMemory=device_row.memory_bytes,
            smCount=device_row.sm_count,
            computeMajor=device_row.major,
            computeMinor=device_row.minor,
        )


_SIDES = ("sequences", "shapes", "graph_nodes", "copies", "geometry")


def range_text(kind: str, name: str, sides: Mapping[str, Any], row: int) -> str:
    """What a range says: an operator as `emit_nvtx` writes it, a module as hooks for layers do."""
    if kind == "module":
        path, _ = split_range_name(name)
        return str({"Module": path, "Inputs": [[1, 1]]})
    if kind == "annotation":
        return name
    sequences, shapes = sides["sequences"], sides["shapes"]
    said = name
    if row in sequences.index:
        said += f", seq = {sequences['sequence'][row]}"
    said += f", op_id = {row + 1}"
    if row in shapes.index:
        said += f", sizes = {shapes['input_shapes'][row]}"
    return said


def _node(sides: Mapping[str, Any], row: int) -> dict[str, int]:
    nodes = sides["graph_nodes"]
    return {"graphNodeId": int(nodes["node"][row])} if row in nodes.index else {}


def _geometry(sides: Mapping[str, Any], row: int) -> dict[str, int]:
    table = sides["geometry"]
    if row not in table.index:
        return {}
    found = table.loc[row]
    grid = {"gridX": int(found["blocks"]), "gridY": 1, "gridZ": 1}
    block = {"blockX": int(found["threads_per_block"]), "blockY": 1, "blockZ": 1}
    used = {
        "registersPerThread": int(found["registers_per_thread"]),
        "staticSharedMemory": 0,
        "dynamicSharedMemory": int(found["shared_memory_bytes"]),
    }
    return {**grid, **block, **used}


def _copy(sides: Mapping[str, Any], row: int) -> dict[str, int]:
    found = sides["copies"].loc[row]
    values = {"bytes": int(found["bytes"]), "copyKind": COPY_KINDS.get(found["direction"], 0)}
    for column, ours in (("srcKind", "source"), ("dstKind", "target")):
        values[column] = MEMORY_KINDS.get(found[ours], 7)
    values["memKind"] = values["dstKind"]
    return values
