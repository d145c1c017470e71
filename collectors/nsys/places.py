"""Where rows of an export lie: threads, devices and streams, and which launch they belong to.

Several processes can stand in one file; their numbers of streams and correlations repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.collectors.nsys.database import Database
from tracer.events import NONE, SIDE_TABLES, make_table

Ints = NDArray[np.int64]

_LOW = 0xFFFFFF
_DEVICE_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


def process_of(number: Any) -> Any:
    """The process id in a global id of a thread or a process."""
    return number >> 24 & _LOW


class Places:
    """Numbers of threads, devices and streams, as they come up. process: the global id of the only
    one that is read, None for all."""

    def __init__(self, database: Database, process: int | None = None) -> None:
        self._database, self.process = database, process
        self._threads: dict[int, int] = {}
        self._streams: dict[tuple[int, int], dict[int, int]] = {}

    def only(self, column: str) -> str:
        """What a row must be to be of the process that is read; `column` holds a global id."""
        return "1" if self.process is None else f"({column} >> 24) = {self.process >> 24}"

    def ranks(self) -> dict[int, int]:
        """Rank -> global id of its process, in order of their devices. None where processes share a
        device or use several: those are no ranks."""
        used = self._used()
        single = all(len(devices) == 1 for devices in used.values())
        if len(used) < 2 or not single or len(set().union(*used.values())) < len(used):
            return {}
        ordered = sorted((min(devices), process) for process, devices in used.items())
        return {rank: process for rank, (_, process) in enumerate(ordered)}

    def _used(self) -> dict[int, set[int]]:
        """For each process the devices on which it ran kernels."""
        found: dict[int, set[int]] = {}
        for name in ("KERNEL", "GRAPH_TRACE"):
            table = f"CUPTI_ACTIVITY_KIND_{name}"
            if {"globalPid", "deviceId"} <= self._database.columns(table):
                query = f'SELECT DISTINCT globalPid, deviceId FROM "{table}"'
                for process, ordinal in self._database.ask(query):
                    gpu = self._visible.get((process_of(process), ordinal), ordinal)
                    found.setdefault(process, set()).add(gpu)
        return found

    @cached_property
    def processes(self) -> list[int]:
        """Global ids of the processes that used a device, in order."""
        found: set[int] = set()
        for name in _DEVICE_TABLES:
            table = f"CUPTI_ACTIVITY_KIND_{name}"
            if "globalPid" in self._database.columns(table):
                rows = self._database.ask(f'SELECT DISTINCT globalPid FROM "{table}"')
                found.update(int(pid) for (pid,) in rows if pid is not None)
        return sorted(found)

    def threads(self, global_ids: Ints) -> Ints:
        """Rows of the table of threads."""
        distinct, rows = np.unique(global_ids, return_inverse=True)
        known = [self._threads.setdefault(int(g), len(self._threads)) for g in distinct]
        return np.array(known, dtype=np.int64)[rows.reshape(-1)]

    def thread_table(self) -> pd.DataFrame:
        """All threads met so far, with their names."""
        names = self._thread_names()
        values = {
            "pid": [process_of(thread) for thread in self._threads],
            "tid": [thread & _LOW for thread in self._threads],
            "name": [names.get(thread, "") for thread in self._threads],
        }
        return make_table(SIDE_TABLES["threads"], values)

    def _thread_names(self) -> dict[int, str]:
        if not {"globalTid", "nameId"} <= self._database.columns("ThreadNames"):
            return {}
        query = "SELECT globalTid, value FROM ThreadNames JOIN StringIds ON id = nameId"
        return {int(thread): str(name) for thread, name in self._database.ask(query)}

    def correlations(self, processes: Ints, numbers: Ints) -> Ints:
        """Correlations that no two processes share; -1 where there is none."""
        joined = numbers
        if len(self.processes) > 1:
            joined = np.searchsorted(np.array(self.processes), processes) << 32 | numbers
        return np.where(numbers > 0, joined, NONE)

    def devices(self, processes: Ints, ordinals: Ints) -> Ints:
        """Devices of the machine: a process numbers those that it may see."""
        out = ordinals.copy()
        for (process, ordinal), gpu in self._visible.items():
            out[(process_of(processes) == process) & (ordinals == ordinal)] = gpu
        return out

    @cached_property
    def _visible(self) -> Mapping[tuple[int, int], int]:
        table = "TARGET_INFO_CUDA_DEVICE"
        if not {"gpuId", "cudaId", "pid"} <= self._database.columns(table):
            return {}
        rows = self._database.ask(f"SELECT pid, cudaId, gpuId FROM {table}")
        return {(int(pid), int(cuda)): int(gpu) for pid, cuda, gpu in rows if gpu is not None}

    def streams(self, found: Mapping[str, Ints]) -> Ints:
        """Streams, numbered as recorded but where two contexts of a device use one number."""
        context = found["globalPid"] & ~_LOW | found["contextId"] & _LOW
        device = self.devices(found["globalPid"], found["deviceId"])
        keys = np.stack([device, found["streamId"], context], axis=1)
        distinct, rows = np.unique(keys, axis=0, return_inverse=True)
        known = [self._stream(*(int(part) for part in key)) for key in distinct]
        return np.array(known, dtype=np.int64)[rows.reshape(-1)]

    def _stream(self, device: int, stream: int, context: int) -> int:
        if stream == NONE:
            return NONE
        of_context = self._streams.setdefault((device, stream), {})
        at = of_context.setdefault(context, len(of_context))
        return stream if at == 0 else stream + at * _APART

    def device_table(self, seen: Ints) -> pd.DataFrame:
        """The devices that did something, with what the file says of them."""
        described = self._described()
        indices = sorted(int(device) for device in np.unique(seen) if device >= 0)
        rows = [{"device": index, **described.get(index, {})} for index in indices]
        columns = SIDE_TABLES["devices"]
        defaults = {name: "" if form == "text" else NONE for name, form in columns.items()}
        full = [{**defaults, **row} for row in rows]
        return make_table(columns, {name: [row[name] for row in full] for name in columns})

    def _described(self) -> dict[int, dict[str, Any]]:
        table = "TARGET_INFO_GPU"
        known = self._database.columns(table)
        columns = {ours: theirs for ours, theirs in _OF_GPU.items() if theirs in known}
        if "id" not in known or not columns:
            return {}
        query = f"SELECT id, {', '.join(columns.values())} FROM {table}"
        found = {}
        for index, *values in self._database.ask(query):
            given = zip(columns, values, strict=True)
            found[int(index)] = {name: value for name, value in given if value is not None}
        return found


# Two streams of one number in different contexts are told apart by this much.
_APART = 1 << 12
_OF_GPU = {
    "name": "name",
    "memory_bytes": "totalMemory",
    "sm_count": "smCount",
    "major": "computeMajor",
    "minor": "computeMinor",
}
