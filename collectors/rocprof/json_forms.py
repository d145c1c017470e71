"""What is kept of the records of each domain: whole numbers, by their paths in a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from tracer.collectors.rocprof.json_records import Allocation, Copy, Kernel, Row
from tracer.events import NONE

Getter = Callable[[Any], int]


@dataclass(frozen=True)
class Form:
    """The records of a domain. `numbers`: what is kept of them, by its path, and how a decoded
    record gives it."""

    record: type[Row]
    numbers: Mapping[str, Getter]

    @cached_property
    def absent(self) -> Mapping[str, int]:
        """What the numbers are where a record does not tell them."""
        return self.of(self.record())

    def of(self, record: Row) -> dict[str, int]:
        """The numbers of a decoded record."""
        return {path: get(record) for path, get in self.numbers.items()}


def _stream(record: Kernel | Copy) -> int:
    return NONE if record.stream_id is None else record.stream_id.handle


def _address(record: Allocation) -> int:
    """Written as a number, in hexadecimal or as a handle."""
    value: Any = record.address
    if isinstance(value, dict):
        value = value.get("handle")
    try:
        return int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        return NONE


def _form(record: type[Row], paths: str, others: Mapping[str, Getter] | None = None) -> Form:
    paths += " kind operation thread_id correlation_id.internal start_timestamp end_timestamp"
    return Form(record, {path: attrgetter(path) for path in paths.split()} | dict(others or {}))


_CALLS = _form(Row, "")
_KERNELS = _form(
    Kernel,
    "dispatch_info.agent_id.handle dispatch_info.queue_id.handle dispatch_info.kernel_id "
    "dispatch_info.dispatch_id dispatch_info.group_segment_size "
    "dispatch_info.workgroup_size.x dispatch_info.workgroup_size.y dispatch_info.workgroup_size.z "
    "dispatch_info.grid_size.x dispatch_info.grid_size.y dispatch_info.grid_size.z",
    {"stream_id.handle": _stream},
)
_COPIES = _form(
    Copy, "src_agent_id.handle dst_agent_id.handle bytes", {"stream_id.handle": _stream}
)
_ALLOCATIONS = _form(Allocation, "agent_id.handle allocation_size", {"address": _address})
FORMS: Mapping[str, Form] = {
    "hip_api": _CALLS,
    "hsa_api": _CALLS,
    "rccl_api": _CALLS,
    "marker_api": _CALLS,
    "kernel_dispatch": _KERNELS,
    "memory_copy": _COPIES,
    "memory_allocation": _ALLOCATIONS,
    "scratch_memory": _CALLS,
}
