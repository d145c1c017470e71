"""The JSON of rocprofv3 (`--output-format json`), read into a `Trace`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from tracer.collectors.batches import Ints
from tracer.collectors.kineto.stream import open_source
from tracer.collectors.rocprof.agents import Devices, Gpu
from tracer.collectors.rocprof.batches import Process, Texts, Times, distinct_of, long_of
from tracer.collectors.rocprof.content import Progress
from tracer.collectors.rocprof.json_columns import Part, longs_of
from tracer.collectors.rocprof.json_forms import FORMS
from tracer.collectors.rocprof.json_lists import Split, split_lists
from tracer.collectors.rocprof.json_records import (
    EMPTY,
    Agent,
    Document,
    Domain,
    Recorded,
    Strings,
    Symbol,
)
from tracer.collectors.rocprof.json_text import Records, closed, length_of, part_of, readable
from tracer.collectors.rocprof.notes import Remarks
from tracer.collectors.rocprof.rows import (
    Allocated,
    Calls,
    Placed,
    Shape,
    add_allocations,
    add_calls,
    add_copies,
    add_kernels,
    asked_by_hip,
)
from tracer.collectors.rocprof.trace import Recording, make_trace
from tracer.collectors.rocprof.words import copy_direction
from tracer.errors import NotATraceError
from tracer.events import NONE, Trace
from tracer.held_ranks import place_of

_GPU = 2
_PIECE_BYTES = 1 << 20
_KEY_BYTES = 64
_RECORDS_KEY = b'"buffer_records"'
_OF_A_PROCESS = re.compile(_RECORDS_KEY + rb"\s*:\s*\{")
_NO_ROWS = np.empty(0, dtype=np.int64)
_CALLS = ("hip_api", "hsa_api", "rccl_api", "marker_api")


@dataclass(frozen=True)
class _File:
    """What a file holds: its processes, whose long lists are in `split`."""

    processes: list[Recorded]
    split: Split


def read_rocprof_json(
    path: str | PathLike[str], *, progress: Progress | None = None, rank: int | None = None
) -> Trace:
    """Read a JSON of rocprofv3, plain or gzipped; with `rank`, one of those it holds. A file that
    is cut gives what comes before."""
    recording, of = _recorded(path, rank, progress)
    return make_trace(recording, rank, of)


def _recorded(
    path: str | PathLike[str], rank: int | None, progress: Progress | None
) -> tuple[Recording, int]:
    """What is to be told of a file, and how many processes it holds."""
    remarks = Remarks()
    found = _read(path, remarks, progress)
    of = len(found.processes)
    if rank is not None:
        path = place_of(Path(path), rank)
        found = replace(found, processes=found.processes[rank : rank + 1])
    return _recording(path, found, remarks), of


def ranks_in(path: str | PathLike[str]) -> list[int]:
    """The ranks in a file: its processes, where each ran kernels on devices of its own."""
    stat = os.stat(path)
    return list(range(_ranks_in(fspath(path), stat.st_mtime_ns, stat.st_size)))


@lru_cache(maxsize=64)
def _ranks_in(path: str, _modified_ns: int, _size: int) -> int:
    """How many; kept while the file is the same."""
    if not _may_hold_several(path):
        return 0
    remarks = Remarks()
    found = _read(path, remarks, None)
    if len(found.processes) < 2:
        return 0
    devices = [process.devices() for process in _recording(path, found, remarks).processes]
    alone = sum(map(len, devices)) == len(set().union(*devices))
    return len(devices) if alone and all(devices) else 0


def _may_hold_several(path: str) -> bool:
    """Whether a file may hold more than one process: the records of each stand under a key."""
    keys, rest = 0, b""
    piece = memoryview(bytearray(_PIECE_BYTES))
    with open_source(path) as (source, _):
        while keys < 2 and (got := source.read_into(piece)):
            text = rest + piece[:got]
            found = _OF_A_PROCESS.finditer(text) if _RECORDS_KEY in text else ()
            ends = [key.end() for key in found]
            keys += len(ends)
            rest = text[max([len(text) - _KEY_BYTES, *ends]) :]
    return keys > 1


def _read(path: str | PathLike[str], remarks: Remarks, progress: Progress | None) -> _File:
    with open_source(path) as (source, size):
        after_read = None if progress is None else lambda: progress(source.position(), size)
        split = split_lists(source, after_read)
        if source.cut:
            remarks.cut.append(Path(path).name)
    document = _document(path, readable(split.text), remarks)
    found: list[Recorded] | None = part_of(document.processes, list[Recorded], None)
    if found is None:
        found = [part_of(document.processes, Recorded, Recorded())]
    return _File(found, split)


def _recording(path: str | PathLike[str], found: _File, remarks: Remarks) -> Recording:
    recording = Recording(fspath(path), remarks)
    for process in found.processes:
        _Reader(process, found.split, recording).read()
    return recording


def _document(path: str | PathLike[str], text: bytes, remarks: Remarks) -> Document:
    try:
        return msgspec.json.decode(text, type=Document)
    except msgspec.ValidationError:
        raise NotATraceError(f"{path}: JSON without records of rocprofv3") from None
    except msgspec.DecodeError as error:
        closing = closed(text, error)
    if not remarks.cut:
        remarks.cut.append(Path(path).name)
    if closing is None:
        return Document()
    return msgspec.json.decode(closing, type=Document)


def _times(part: Part) -> Times:
    return Times(part.ints("start_timestamp"), part.ints("end_timestamp"))


@dataclass(frozen=True)
class _Names:
    """What numbers in the records of a process stand for."""

    domains: Sequence[Domain]
    messages: Mapping[int, str]
    symbols: Mapping[int, Symbol]

    def domain(self, kind: int, otherwise: str) -> str:
        known = self.domains[kind].kind if 0 <= kind < len(self.domains) else ""
        return known or otherwise.upper()

    def operation(self, kind: int, operation: int) -> str:
        operations = self.domains[kind].operations if 0 <= kind < len(self.domains) else []
        known = operations[operation] if 0 <= operation < len(operations) else ""
        return known or f"operation {operation}"

    def operations(self, kinds: Ints, operations: Ints) -> Texts:
        """The names of these operations."""
        key = kinds << 32 | operations
        distinct, place = distinct_of(key)
        names = [self.operation(one >> 32, one & 0xFFFFFFFF) for one in distinct]
        return Texts.of(names)[place]

    def kernels(self, numbers: Ints) -> Texts:
        """The names of these kernels."""
        distinct, place = distinct_of(numbers)
        found = [self.symbols.get(number) for number in distinct]
        names = [
            f"kernel {number}" if symbol is None else symbol.name()
            for number, symbol in zip(distinct, found, strict=True)
        ]
        return Texts.of(names)[place]

    def registers(self, numbers: Ints) -> Ints:
        """Vector registers that each kernel uses; -1 unknown."""
        distinct, place = distinct_of(numbers)
        found = [self.symbols.get(number) for number in distinct]
        counts = [NONE if symbol is None else symbol.arch_vgpr_count for symbol in found]
        return longs_of(counts)[place]


class _Reader:
    """Reads one process of a file into the recording."""

    def __init__(self, process: Recorded, split: Split, recording: Recording) -> None:
        self._split = split
        self._recording = recording
        self._remarks = recording.remarks
        self._lists: dict[str, Raw] = part_of(process.buffer_records, dict[str, Raw], {})
        self._callbacks: dict[str, Raw] = part_of(process.callback_records, dict[str, Raw], {})
        self._metadata: dict[str, Any] = part_of(process.metadata, dict[str, Any], {})
        self._names = _names(process)
        pid = self._metadata.get("pid")
        self._process = Process(long_of(pid) if isinstance(pid, int) else NONE)
        agents = [a for part in Records(Agent).read(process.agents) for a in part]
        gpus = sorted((a for a in agents if a.type == _GPU), key=_logical_order)
        begin = recording.add_gpus(self._machine(), [agent.gpu() for agent in gpus])
        handles = [long_of(agent.id.handle) for agent in gpus]
        self._devices = Devices({handle: begin + i for i, handle in enumerate(handles)})
        self._dispatches: list[Ints] = [_NO_ROWS]

    def _machine(self) -> str:
        node = self._metadata.get("node")
        return str(node.get("machine_id", "")) if isinstance(node, dict) else ""

    def read(self) -> None:
        """All domains that are known; the others are counted."""
        calls = self._calls()
        if calls is not None:
            add_calls(self._process, calls)
            calls = calls if calls.hsa.size else None  # only those of HSA are asked for again
        for kernels in self._parts("kernel_dispatch"):
            self._add_kernels(kernels, calls)
        self._remarks.dispatched(np.concatenate(self._dispatches))
        for copies in self._parts("memory_copy"):
            self._add_copies(copies, calls)
        self._add_allocations(list(self._parts("memory_allocation")))
        for scratch in self._parts("scratch_memory"):
            self._process.add("overhead", self._operations(scratch), _times(scratch), {})
        for domain, text in {**self._callbacks, **self._lists}.items():
            if domain not in FORMS:
                self._remarks.leave(domain, length_of(text))
        self._recording.add(self._process, self._metadata)

    def _parts(self, domain: str) -> Iterator[Part]:
        records = self._split.records(domain, self._lists.get(domain, EMPTY))
        self._remarks.lost += records.lost
        yield from records.parts

    def _calls(self) -> Calls | None:
        parts = [
            self._part_of_calls(domain, part) for domain in _CALLS for part in self._parts(domain)
        ]
        return Calls.joined(parts) if parts else None

    def _part_of_calls(self, domain: str, part: Part) -> Calls:
        kinds, operations = part.ints("kind"), part.ints("operation")
        correlation = part.ints("correlation_id.internal")
        distinct, place = distinct_of(kinds)
        words = [self._names.domain(kind, domain) for kind in distinct]
        name = self._names.operations(kinds, operations)
        if domain == "marker_api":
            name = self._messages(name, correlation)
        return Calls(
            Texts.of(words)[place], name, _times(part), part.ints("thread_id"), correlation
        )

    def _messages(self, name: Texts, correlation: Ints) -> Texts:
        """What the program called its ranges, where that was kept."""
        said = self._names.messages
        pairs = zip(name.listed(), correlation.tolist(), strict=True)
        return Texts.of(said.get(number, operation) for operation, number in pairs)

    def _operations(self, part: Part) -> Texts:
        return self._names.operations(part.ints("kind"), part.ints("operation"))

    def _placed(self, part: Part, agents: str, calls: Calls | None) -> Placed:
        correlation = part.ints("correlation_id.internal")
        return Placed(
            _times(part),
            self._devices.of(part.ints(agents)),
            part.ints("stream_id.handle"),
            correlation if calls is None else asked_by_hip(calls, correlation),
        )

    def _add_kernels(self, part: Part, calls: Calls | None) -> None:
        numbers = part.ints("dispatch_info.kernel_id")
        self._dispatches.append(part.ints("dispatch_info.dispatch_id"))
        grid, group = (
            np.array([part.ints(f"dispatch_info.{size}.{axis}") for axis in "xyz"])
            for size in ("grid_size", "workgroup_size")
        )
        shared = part.ints("dispatch_info.group_segment_size")
        for agent in distinct_of(part.ints("dispatch_info.agent_id.handle"))[0]:
            if agent not in self._devices.number:
                self._devices.number[agent] = self._recording.add_gpu(Gpu())
        placed = self._placed(part, "dispatch_info.agent_id.handle", calls)
        placed = placed.on_queues(part.ints("dispatch_info.queue_id.handle"))
        shape = Shape(grid, group, self._names.registers(numbers), shared)
        add_kernels(self._process, placed, self._names.kernels(numbers), shape)

    def _add_copies(self, part: Part, calls: Calls | None) -> None:
        words = self._operations(part)
        direction = Texts(words.codes, [copy_direction(word) for word in words.values])
        placed = self._placed(part, "src_agent_id.handle", calls)
        ends = placed.device, self._devices.of(part.ints("dst_agent_id.handle"))
        add_copies(self._process, placed, direction, ends, part.ints("bytes"))

    def _add_allocations(self, parts: Sequence[Part]) -> None:
        def ints(path: str) -> Ints:
            return np.concatenate([_NO_ROWS, *(part.ints(path) for part in parts)])

        found = Allocated(
            self._names.operations(ints("kind"), ints("operation")),
            Times(ints("start_timestamp"), ints("end_timestamp")),
            ints("thread_id"),
            self._devices.of(ints("agent_id.handle")),
            ints("allocation_size"),
            ints("address"),
        )
        add_allocations(self._process, found)


def _names(process: Recorded) -> _Names:
    strings: Strings = part_of(process.strings, Strings, Strings())
    symbols = [s for part in Records(Symbol).read(process.kernel_symbols) for s in part]
    return _Names(
        part_of(strings.buffer_records, list[Domain], []),
        _messages(part_of(strings.marker_api, Any, [])),
        {long_of(symbol.kernel_id): symbol for symbol in symbols},
    )


def _messages(found: Any) -> dict[int, str]:
    """The messages by correlation, as a list of pairs or as an object."""
    pairs: list[tuple[Any, Any]] = list(found.items()) if isinstance(found, dict) else []
    if isinstance(found, list):
        pairs = [(pair.get("key"), pair.get("value")) for pair in found if isinstance(pair, dict)]
    return {int(str(key)): str(value) for key, value in pairs if str(key).isdigit()}


def _logical_order(agent: Agent) -> tuple[int, int, int]:
    return agent.logical_node_type_id, agent.logical_node_id, agent.node_id
