"""The records in a JSON of rocprofv3, by their names there. What is absent has its default."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from tracer.collectors.rocprof.agents import Gpu
from tracer.collectors.rocprof.words import kernel_name
from tracer.events import NONE

EMPTY = Raw(b"")


class Handle(Struct, gc=False):
    """An opaque number of rocprofiler."""

    handle: int = NONE


class Size(Struct, gc=False):
    """Three dimensions."""

    x: int = NONE
    y: int = NONE
    z: int = NONE


class Correlation(Struct, gc=False):
    """Joins device work and the call that asked for it."""

    internal: int = NONE


class Row(Struct, gc=False):
    """What the records of all domains have."""

    kind: int = 0
    operation: int = 0
    thread_id: int = NONE
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    start_timestamp: int = NONE
    end_timestamp: int = NONE


class Dispatched(Struct, gc=False):
    """Where and how a kernel was put on a queue."""

    agent_id: Handle = msgspec.field(default_factory=Handle)
    queue_id: Handle = msgspec.field(default_factory=Handle)
    kernel_id: int = NONE
    dispatch_id: int = NONE
    group_segment_size: int = NONE
    workgroup_size: Size = msgspec.field(default_factory=Size)
    grid_size: Size = msgspec.field(default_factory=Size)


class Kernel(Row, gc=False):
    """A record of `kernel_dispatch`."""

    dispatch_info: Dispatched = msgspec.field(default_factory=Dispatched)
    stream_id: Handle | None = None


class Copy(Row, gc=False):
    """A record of `memory_copy`."""

    src_agent_id: Handle = msgspec.field(default_factory=Handle)
    dst_agent_id: Handle = msgspec.field(default_factory=Handle)
    bytes: int = NONE
    stream_id: Handle | None = None


class Allocation(Row, gc=False):
    """A record of `memory_allocation`."""

    agent_id: Handle = msgspec.field(default_factory=Handle)
    address: Any = None
    allocation_size: int = 0


class Agent(Struct, gc=False):
    """A processor."""

    id: Handle = msgspec.field(default_factory=Handle)
    type: int = 0
    name: str = ""
    product_name: str = ""
    node_id: int = NONE
    logical_node_id: int = NONE
    logical_node_type_id: int = NONE
    cu_count: int = NONE
    gfx_target_version: int = NONE
    mem_banks: Any = None

    def memory_bytes(self) -> int:
        """All of its memory; -1 unknown."""
        banks = self.mem_banks if isinstance(self.mem_banks, list) else []
        sizes = [bank.get("size_in_bytes") for bank in banks if isinstance(bank, dict)]
        return sum(size for size in sizes if isinstance(size, int)) or NONE

    def gpu(self) -> Gpu:
        """What the report says of it."""
        name = self.product_name or self.name
        return Gpu(name, self.memory_bytes(), self.cu_count, self.gfx_target_version)


class Symbol(Struct, gc=False):
    """A kernel in a code object."""

    kernel_id: int = NONE
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    arch_vgpr_count: int = NONE

    def name(self) -> str:
        """The full name; the formatted one may be cut short by an option of the tool."""
        full = self.demangled_kernel_name or self.formatted_kernel_name or self.kernel_name
        return kernel_name(full)


class Domain(Struct):
    """The names of a kind of records and of its operations."""

    kind: str = ""
    operations: list[str] = msgspec.field(default_factory=list)


class Strings(Struct):
    """Texts that records point to."""

    buffer_records: Raw = EMPTY
    marker_api: Raw = EMPTY


class Recorded(Struct):
    """One process, its parts unread."""

    metadata: Raw = EMPTY
    agents: Raw = EMPTY
    strings: Raw = EMPTY
    kernel_symbols: Raw = EMPTY
    buffer_records: Raw = EMPTY
    callback_records: Raw = EMPTY


class Document(Struct, rename={"processes": "rocprofiler-sdk-tool"}):
    """The whole file."""

    processes: Raw = EMPTY
