"""The JSON of rocprofv3 (`--output-format json`), read into a `Trace`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.agents import Devices, Gpu
from tracer.collectors.rocprof.batches import Process, Texts, Times, long_of
from tracer.collectors.rocprof.content import Progress, read_content
from tracer.collectors.rocprof.json_records import (
    EMPTY,
    Agent,
    Allocation,
    Copy,
    Document,
    Domain,
    Kernel,
    Recorded,
    Row,
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
_CALLS = ("hip_api", "hsa_api", "rccl_api", "marker_api")
_READ = (*_CALLS, "kernel_dispatch", "memory_copy", "memory_allocation", "scratch_memory")


One = TypeVar("One", bound=Row)


def read_rocprof_json(
    path: str | PathLike[str], *, progress: Progress | None = None, rank: int | None = None
) -> Trace:
    """Read a JSON of rocprofv3, plain or gzipped; with `rank`, one of those it holds. A file that
    is cut gives what comes before."""
    remarks = Remarks()
    found = _processes(path, remarks, progress)
    of = len(found)
    if rank is not None:
        path, found = place_of(Path(path), rank), found[rank : rank + 1]
    return make_trace(_recording(path, found, remarks), rank, of)


def ranks_in(path: str | PathLike[str]) -> list[int]:
    """The ranks in a file: its processes, where each ran kernels on devices of its own."""
    stat = os.stat(path)
    return list(range(_ranks_in(fspath(path), stat.st_mtime_ns, stat.st_size)))


@lru_cache(maxsize=64)
def _ranks_in(path: str, _modified_ns: int, _size: int) -> int:
    """How many; kept while the file is the same."""
    remarks = Remarks()
    found = _processes(path, remarks, None)
    if len(found) < 2:
        return 0
    devices = [process.devices() for process in _recording(path, found, remarks).processes]
    alone = sum(map(len, devices)) == len(set().union(*devices))
    return len(found) if alone and all(devices) else 0


def _processes(
    path: str | PathLike[str], remarks: Remarks, progress: Progress | None
) -> list[Recorded]:
    content = read_content(path, progress)
    if content.cut:
        remarks.cut.append(Path(path).name)
    document = _document(path, readable(content.text), remarks)
    found: list[Recorded] | None = part_of(document.processes, list[Recorded], None)
    return [part_of(document.processes, Recorded, Recorded())] if found is None else found


def _recording(
    path: str | PathLike[str], processes: Sequence[Recorded], remarks: Remarks
) -> Recording:
    recording = Recording(fspath(path), remarks)
    for process in processes:
        _Reader(process, recording).read()
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


def _times(records: Sequence[Row]) -> Times:
    return Times(_ints(records, "start_timestamp"), _ints(records, "end_timestamp"))


def _ints(records: Sequence[Any], field: str) -> Ints:
    return _longs(list(map(attrgetter(field), records)))


def _longs(values: list[int]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(list(map(long_of, values)), dtype=np.int64)


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
        distinct, place = np.unique(key, return_inverse=True)
        names = [self.operation(one >> 32, one & 0xFFFFFFFF) for one in distinct.tolist()]
        return Texts.of(names)[place]

    def kernels(self, numbers: Ints) -> Texts:
        """The names of these kernels."""
        distinct, place = np.unique(numbers, return_inverse=True)
        found = [self.symbols.get(number) for number in distinct.tolist()]
        names = [
            f"kernel {number}" if symbol is None else symbol.name()
            for number, symbol in zip(distinct.tolist(), found, strict=True)
        ]
        return Texts.of(names)[place]

    def registers(self, numbers: Ints) -> Ints:
        """Vector registers that each kernel uses; -1 unknown."""
        distinct, place = np.unique(numbers, return_inverse=True)
        found = [self.symbols.get(number) for number in distinct.tolist()]
        counts = [NONE if symbol is None else symbol.arch_vgpr_count for symbol in found]
        return _longs(counts)[place]


class _Reader:
    """Reads one process of a file into the recording."""

    def __init__(self, process: Recorded, recording: Recording) -> None:
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
        self._dispatches: list[Ints] = [np.empty(0, dtype=np.int64)]

    def _machine(self) -> str:
        node = self._metadata.get("node")
        return str(node.get("machine_id", "")) if isinstance(node, dict) else ""

    def read(self) -> None:
        """All domains that are known; the others are counted."""
        calls = self._calls()
        if calls is not None:
            add_calls(self._process, calls)
        for kernels in self._parts("kernel_dispatch", Kernel):
            self._add_kernels(kernels, calls)
        self._remarks.dispatched(np.concatenate(self._dispatches))
        for copies in self._parts("memory_copy", Copy):
            self._add_copies(copies, calls)
        self._add_allocations([a for p in self._parts("memory_allocation", Allocation) for a in p])
        for scratch in self._parts("scratch_memory", Row):
            self._process.add("overhead", self._operations(scratch), _times(scratch), {})
        for domain, text in {**self._callbacks, **self._lists}.items():
            if domain not in _READ:
                self._remarks.leave(domain, length_of(text))
        self._recording.add(self._process, self._metadata)

    def _parts(self, domain: str, form: type[One]) -> Iterator[list[One]]:
        records: Records[One] = Records(form)
        yield from filter(None, records.read(self._lists.get(domain, EMPTY)))
        self._remarks.lost += records.lost

    def _calls(self) -> Calls | None:
        parts = [
            self._part_of_calls(domain, part)
            for domain in _CALLS
            for part in self._parts(domain, Row)
        ]
        return Calls.joined(parts) if parts else None

    def _part_of_calls(self, domain: str, part: Sequence[Row]) -> Calls:
        kinds, operations = _ints(part, "kind"), _ints(part, "operation")
        correlation = _ints(part, "correlation_id.internal")
        words = [self._names.domain(kind, domain) for kind in np.unique(kinds).tolist()]
        _, place = np.unique(kinds, return_inverse=True)
        name = self._names.operations(kinds, operations)
        if domain == "marker_api":
            name = self._messages(name, correlation)
        return Calls(
            Texts.of(words)[place], name, _times(part), _ints(part, "thread_id"), correlation
        )

    def _messages(self, name: Texts, correlation: Ints) -> Texts:
        """What the program called its ranges, where that was kept."""
        said = self._names.messages
        pairs = zip(name.listed(), correlation.tolist(), strict=True)
        return Texts.of(said.get(number, operation) for operation, number in pairs)

    def _operations(self, part: Sequence[Row]) -> Texts:
        return self._names.operations(_ints(part, "kind"), _ints(part, "operation"))

    def _placed(
        self, part: Sequence[Kernel] | Sequence[Copy], agents: str, calls: Calls | None
    ) -> Placed:
        correlation = _ints(part, "correlation_id.internal")
        streams = [NONE if r.stream_id is None else r.stream_id.handle for r in part]
        return Placed(
            _times(part),
            self._devices.of(_ints(part, agents)),
            _longs(streams),
            correlation if calls is None else asked_by_hip(calls, correlation),
        )

    def _add_kernels(self, part: Sequence[Kernel], calls: Calls | None) -> None:
        numbers = _ints(part, "dispatch_info.kernel_id")
        self._dispatches.append(_ints(part, "dispatch_info.dispatch_id"))
        grid, group = (
            np.array([_ints(part, f"dispatch_info.{size}.{axis}") for axis in "xyz"])
            for size in ("grid_size", "workgroup_size")
        )
        shared = _ints(part, "dispatch_info.group_segment_size")
        for agent in np.unique(_ints(part, "dispatch_info.agent_id.handle")).tolist():
            if agent not in self._devices.number:
                self._devices.number[agent] = self._recording.add_gpu(Gpu())
        placed = self._placed(part, "dispatch_info.agent_id.handle", calls)
        placed = placed.on_queues(_ints(part, "dispatch_info.queue_id.handle"))
        shape = Shape(grid, group, self._names.registers(numbers), shared)
        add_kernels(self._process, placed, self._names.kernels(numbers), shape)

    def _add_copies(self, part: Sequence[Copy], calls: Calls | None) -> None:
        words = self._operations(part)
        direction = Texts(words.codes, [copy_direction(word) for word in words.values])
        placed = self._placed(part, "src_agent_id.handle", calls)
        ends = placed.device, self._devices.of(_ints(part, "dst_agent_id.handle"))
        add_copies(self._process, placed, direction, ends, _ints(part, "bytes"))

    def _add_allocations(self, rows: Sequence[Allocation]) -> None:
        found = Allocated(
            self._operations(rows),
            _times(rows),
            _ints(rows, "thread_id"),
            self._devices.of(_ints(rows, "agent_id.handle")),
            _ints(rows, "allocation_size"),
            np.array([_address(row.address) for row in rows], dtype=np.int64),
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


def _address(value: Any) -> int:
    """A number of 64 bits, as a number, in hexadecimal or as a handle."""
    if isinstance(value, dict):
        value = value.get("handle")
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        return NONE
    return long_of(number)
