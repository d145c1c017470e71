"""The tables of rocprofv3 (`--output-format csv`), read into one `Trace`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.agents import Gpu
from tracer.collectors.rocprof.batches import Process, Texts, Times
from tracer.collectors.rocprof.content import Progress
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
from tracer.collectors.rocprof.siblings import Sibling, tables_beside
from tracer.collectors.rocprof.tables import (
    AGENTS,
    ALLOCATIONS,
    CALLS,
    COPIES,
    COUNTERS,
    KERNELS,
    SCRATCH,
    Table,
    hexadecimal,
    label_number,
    may_be_of_one_process,
    read_table,
)
from tracer.collectors.rocprof.trace import Recording, make_trace
from tracer.collectors.rocprof.words import copy_direction
from tracer.collectors.sniff import READS, read_head
from tracer.errors import NotATraceError
from tracer.events import NONE, Trace

_AGENT_COLUMNS = ("Agent_Id", "Source_Agent_Id", "Destination_Agent_Id")


def read_rocprof_csv(path: str | PathLike[str], *, progress: Progress | None = None) -> Trace:
    """Read a table of rocprofv3 and those of the same recording beside it, plain or gzipped."""
    read_head(path)  # raises what a user must know when it cannot be read
    given = tables_beside(Path(path))
    if not given:
        raise NotATraceError(f"{path}: no table with the columns of rocprofv3; {READS}")
    return make_trace(_recording(path, given, progress))


def _recording(
    path: str | PathLike[str], given: Sequence[Sibling], progress: Progress | None
) -> Recording:
    remarks = Remarks()
    tables = list(_same_process(_read_all(given, progress), remarks).values())
    recording = Recording(fspath(path), remarks)
    agents = _agents(tables, recording)
    for part in _by_recording(tables):
        _Reader(part, agents, recording).read()
    return recording


def _read_all(siblings: Sequence[Sibling], progress: Progress | None) -> dict[str, Table]:
    """The tables by the names of their files, the one that was asked for first."""
    total = sum(sibling.path.stat().st_size for sibling in siblings)
    done = 0
    tables: dict[str, Table] = {}
    for sibling in siblings:
        tables[sibling.path.name] = read_table(sibling.path, _shifted(progress, done, total))
        done += sibling.path.stat().st_size
    return tables


def _shifted(progress: Progress | None, begin: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _size: progress(begin + done, total)


def _same_process(tables: dict[str, Table], remarks: Remarks) -> dict[str, Table]:
    """The tables of the process that the first ones are of, one of each kind, but for calls. Tables
    that say neither process nor thread belong to it by their names."""
    kept: dict[str, Table] = {}
    for name, table in tables.items():
        kinds = {other.kind for other in kept.values()} - {CALLS}
        of_one = all(may_be_of_one_process(other, table) for other in kept.values())
        if of_one and table.kind not in kinds:
            kept[name] = table
    remarks.strangers = [name for name in tables if name not in kept]
    remarks.files = list(kept)
    remarks.lost = sum(table.lost for table in kept.values())
    remarks.cut = [name for name, table in kept.items() if table.cut]
    return kept


def _by_recording(tables: Sequence[Table]) -> Iterator[list[Table]]:
    """The tables of each process: a conversion of several databases names each by its Guid."""
    if not all(table.has("Guid") for table in tables):
        yield list(tables)
        return
    guids = dict.fromkeys(guid for table in tables for guid in table.texts("Guid").said())
    for guid in guids:
        yield [table.chosen("Guid", guid) for table in tables]


@dataclass(frozen=True)
class _Agents:
    """Device numbers of the labels of agents."""

    number: dict[str, int]

    def of(self, labels: Texts) -> Ints:
        numbers = [self.number.get(label, NONE) for label in labels.values]
        return np.array(numbers, dtype=np.int64)[labels.codes]


class _Reader:
    """Reads the tables of one process into the recording."""

    def __init__(self, tables: Sequence[Table], agents: _Agents, recording: Recording) -> None:
        self._tables, self._agents, self._recording = tables, agents, recording
        self._process = Process(_pid(tables))

    def read(self) -> None:
        """All tables; counters have no timeline."""
        calls = self._calls()
        if calls is not None:
            add_calls(self._process, calls)
            calls = calls if calls.hsa.size else None  # only those of HSA are asked for again
        for table in self._tables:
            if table.kind == KERNELS:
                self._add_all_kernels(table, calls)
            elif table.kind == COPIES:
                self._add_copies(table, calls)
            elif table.kind == ALLOCATIONS:
                self._add_allocations(table)
            elif table.kind == SCRATCH:
                self._process.add("overhead", table.texts("Operation"), _times(table), {})
            elif table.kind == COUNTERS:
                self._recording.remarks.leave("counter_collection", len(table))
        pid = self._process.pid
        self._recording.add(self._process, {"pid": pid if pid != NONE else None})

    def _calls(self) -> Calls | None:
        parts = [
            Calls(
                table.texts("Domain"),
                table.texts("Function"),
                _times(table),
                table.numbers("Thread_Id"),
                table.numbers("Correlation_Id"),
            )
            for table in self._tables
            if table.kind == CALLS and len(table)
        ]
        return Calls.joined(parts) if parts else None

    def _placed(self, table: Table, agents: str, calls: Calls | None) -> Placed:
        correlation = table.numbers("Correlation_Id")
        return Placed(
            _times(table),
            self._agents.of(table.texts(agents)),
            table.numbers("Stream_Id", "Queue_Id"),
            correlation if calls is None else asked_by_hip(calls, correlation),
        )

    def _add_all_kernels(self, table: Table, calls: Calls | None) -> None:
        self._recording.remarks.dispatched(table.numbers("Dispatch_Id"))
        for part in table.in_parts():
            self._add_kernels(part, calls)

    def _add_kernels(self, table: Table, calls: Calls | None) -> None:
        grid, group = (
            np.array([table.numbers(f"{size}_Size_{axis}") for axis in "XYZ"])
            for size in ("Grid", "Workgroup")
        )
        shared = table.numbers("LDS_Block_Size", "Group_Segment_Size")
        shape = Shape(grid, group, table.numbers("VGPR_Count"), shared)
        placed = self._placed(table, "Agent_Id", calls)
        add_kernels(self._process, placed, table.texts("Kernel_Name"), shape)

    def _add_copies(self, table: Table, calls: Calls | None) -> None:
        words = table.texts("Direction")
        direction = Texts(words.codes, [copy_direction(word) for word in words.values])
        placed = self._placed(table, "Source_Agent_Id", calls)
        ends = placed.device, self._agents.of(table.texts("Destination_Agent_Id"))
        size = np.full(len(table), NONE, dtype=np.int64)  # no table of rocprofv3 tells it
        add_copies(self._process, placed, direction, ends, size)

    def _add_allocations(self, table: Table) -> None:
        addresses = table.texts("Address")
        numbers = np.array([hexadecimal(text) for text in addresses.values], dtype=np.int64)
        found = Allocated(
            table.texts("Operation"),
            _times(table),
            table.numbers("Thread_Id"),
            self._agents.of(table.texts("Agent_Id")),
            table.numbers("Allocation_Size"),
            numbers[addresses.codes],
        )
        add_allocations(self._process, found)


def _times(table: Table) -> Times:
    return Times(table.numbers("Start_Timestamp"), table.numbers("End_Timestamp"))


def _pid(tables: Sequence[Table]) -> int:
    """The process that the tables name; -1 where none does."""
    pids = [pid for table in tables for pid in table.distinct("Process_Id")]
    return pids[0] if pids else NONE


def _agents(tables: Sequence[Table], recording: Recording) -> _Agents:
    """The devices: the GPUs that the table of agents describes, and those that only kernels and
    copies name."""
    labels = sorted(sorted(_gpu_labels(tables)), key=label_number)
    described = next((table for table in tables if table.kind == AGENTS and len(table)), None)
    number = {} if described is None else _described(described, labels, recording)
    for label in labels:
        if label not in number:
            number[label] = recording.add_gpu(Gpu())
    return _Agents(number)


def _gpu_labels(tables: Sequence[Table]) -> set[str]:
    """What the rows call agents that are GPUs."""
    found: set[str] = set()
    for table in tables:
        if table.kind == KERNELS:
            found.update(table.texts("Agent_Id").said())
        if table.kind == COPIES:
            directions = table.texts("Direction")
            for column, host in (
                ("Source_Agent_Id", "HOST_TO"),
                ("Destination_Agent_Id", "TO_HOST"),
            ):
                of_host = np.array([host in word for word in directions.values], dtype=bool)
                found.update(table.texts(column)[~of_host[directions.codes]].said())
    return found - {""}


def _described(agents: Table, labels: Sequence[str], recording: Recording) -> dict[str, int]:
    """Devices by label. Labels are numbers among all agents as the tool counts them or as the
    machine does, or, after "GPU", among the GPUs."""
    order = np.argsort(agents.numbers("Logical_Node_Id", "Node_Id"), kind="stable").tolist()
    kinds, nodes = agents.texts("Agent_Type").listed(), agents.numbers("Node_Id")
    # Tables of several processes describe each agent several times.
    gpus = [row for row in order if kinds[row] == "GPU" and row == np.argmax(nodes == nodes[row])]
    devices = [recording.add_gpu(_gpu(agents, row)) for row in gpus]
    numbered = [label_number(label) for label in labels if not label.upper().startswith("GPU")]
    counted = [agents.numbers(column)[gpus].tolist() for column in ("Logical_Node_Id", "Node_Id")]
    fitting = next((found for found in counted if set(numbered) <= set(found)), counted[0])
    number = {f"GPU {i}": device for i, device in enumerate(devices)}
    for node, device in zip(fitting, devices, strict=True):
        number |= {f"Agent {node}": device, str(node): device}
    return number


def _gpu(agents: Table, row: int) -> Gpu:
    name = agents.texts("Product_Name").listed()[row] or agents.texts("Name").listed()[row]
    memory = int(agents.numbers("Local_Mem_Size")[row])
    units, target = (int(agents.numbers(c)[row]) for c in ("Cu_Count", "Gfx_Target_Version"))
    return Gpu(name, memory if memory > 0 else NONE, units, target)
