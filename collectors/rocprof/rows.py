"""Rows of what rocprofv3 records, made from columns: the same for its JSON and its CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.batches import (
    Columns,
    Process,
    Texts,
    Times,
    distinct_of,
    joined_texts,
)
from tracer.collectors.rocprof.words import (
    COPY_NAMES,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    HOST_TO_HOST,
    PEER_TO_PEER,
    UNKNOWN,
    Called,
    host_call,
    is_hsa,
)
from tracer.events import KIND_CODE, KINDS, NONE

_HIP_DEVICE_TYPE = 20  # as in c10
_MEMORY_OF = {
    HOST_TO_DEVICE: (UNKNOWN, "device"),
    DEVICE_TO_HOST: ("device", UNKNOWN),
    DEVICE_TO_DEVICE: ("device", "device"),
    PEER_TO_PEER: ("device", "device"),
}


@dataclass(frozen=True)
class Calls:
    """Host calls and ranges as they were recorded; arrays aligned."""

    domain: Texts
    name: Texts
    times: Times
    thread: Ints
    correlation: Ints

    @staticmethod
    def joined(parts: Sequence[Calls]) -> Calls:
        """The calls of all parts, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        return Calls(
            joined_texts([part.domain for part in parts]),
            joined_texts([part.name for part in parts]),
            Times(
                np.concatenate([part.times.start_ns for part in parts]),
                np.concatenate([part.times.end_ns for part in parts]),
            ),
            np.concatenate([part.thread for part in parts]),
            np.concatenate([part.correlation for part in parts]),
        )

    @cached_property
    def hsa(self) -> Ints:
        """The rows of calls of the HSA runtime."""
        return self.domain.rows_of(is_hsa)

    @cached_property
    def hip(self) -> Ints:
        """The rows of calls of HIP."""
        return self.domain.rows_of(lambda word: word.startswith("HIP"))


def add_calls(process: Process, calls: Calls) -> None:
    """Host calls and ranges. The calls of HSA are those of the runtime where HIP's are not."""
    called, place = _called(calls)
    keys = np.array([_key(call) for call in called], dtype=np.int16)[place]
    if calls.hsa.size and not calls.hip.size:
        keys[calls.hsa] = KIND_CODE["runtime"] * 4
    texts = Texts.of(call.name for call in called)
    codes = texts.codes[place]
    for key in distinct_of(keys)[0]:
        rows = np.flatnonzero(keys == key)
        kind = KINDS[key // 4]
        thread = calls.thread[rows]
        columns = {"thread": np.where(thread == NONE, 0, thread)}  # all unknown ones are one
        if kind == "runtime":
            columns["correlation"] = calls.correlation[rows]
        names = Texts(codes[rows], texts.values)
        times = Times(calls.times.start_ns[rows], calls.times.end_ns[rows])
        process.add(kind, names, times, columns, _sides(key, called, place[rows]))


def _key(call: Called) -> int:
    """Calls of one key have the same kind and the same side tables."""
    return KIND_CODE[call.kind] * 4 + (call.sequence != NONE) * 2 + (call.sizes != "")


def _sides(key: int, called: Sequence[Called], place: Ints) -> dict[str, Columns]:
    """What is known of calls of this key beside their names."""
    sides: dict[str, Columns] = {}
    if key & 2:
        sequence = np.array([call.sequence for call in called], dtype=np.int64)
        # Autograd's own ranges are of the backward pass.
        backward = np.array(["Backward" in call.name for call in called])
        sides["sequences"] = {"sequence": sequence[place], "forward_thread": backward[place]}
    if key & 1:
        sizes = np.array([call.sizes for call in called], dtype=object)
        sides["shapes"] = {"input_shapes": sizes[place]}
    return sides


def _called(calls: Calls) -> tuple[list[Called], Ints]:
    """What the distinct calls are, and which of them each row is."""
    domains, names = calls.domain.values, calls.name.values
    instant = calls.times.start_ns == calls.times.end_ns
    key = calls.domain.codes.astype(np.int64) * len(names) + calls.name.codes
    distinct, place = distinct_of(key * 2 + instant)
    called = [
        host_call(
            domains[one // 2 // len(names)], names[one // 2 % len(names)], instant=one % 2 > 0
        )
        for one in distinct
    ]
    operators = {call.name for call in called if call.kind == "operator"}
    return [_settled(call, operators) for call in called], place


def _settled(call: Called, operators: set[str]) -> Called:
    """A range by the bare name of an operator, such as `detach_` inside `aten::detach_`, is that
    operator's, not the program's."""
    bare = call.kind == "annotation" and f"aten::{call.name}" in operators
    return call._replace(kind="operator") if bare else call


def asked_by_hip(calls: Calls, correlation: Ints) -> Ints:
    """The correlations of device work, those of an HSA call replaced by that of the HIP call around
    it on its thread."""
    hip, hsa = calls.hip, calls.hsa
    asking = hsa[np.isin(calls.correlation[hsa], correlation)]
    if not hip.size or not asking.size:
        return correlation
    hip = hip[np.lexsort((calls.times.start_ns[hip], calls.thread[hip]))]
    outer = {
        int(calls.correlation[row]): int(calls.correlation[around])
        for row, around in zip(asking.tolist(), _around(calls, hip, asking), strict=True)
        if around != NONE
    }
    own = set(calls.correlation[hip].tolist())
    distinct, place = distinct_of(correlation)
    replaced = [one if one in own else outer.get(one, one) for one in distinct]
    return np.array(replaced, dtype=np.int64)[place]


def _around(calls: Calls, hip: Ints, rows: Ints) -> list[int]:
    """The last of the sorted HIP calls that begins before each row, if it ends after it."""
    start, end = calls.times.start_ns, calls.times.end_ns
    found = np.full(rows.size, NONE, dtype=np.int64)
    for thread in np.unique(calls.thread[hip]).tolist():
        own = hip[calls.thread[hip] == thread]
        mine = np.flatnonzero(calls.thread[rows] == thread)
        at = np.searchsorted(start[own], start[rows[mine]], side="right") - 1
        around = own[np.maximum(at, 0)]
        holds = (at >= 0) & (end[around] >= end[rows[mine]])
        found[mine] = np.where(holds, around, NONE)
    return found.tolist()


@dataclass(frozen=True)
class Placed:
    """Times of device work, where it ran, and what asked for it."""

    times: Times
    device: Ints
    stream: Ints
    correlation: Ints

    def on_queues(self, queue: Ints) -> Placed:
        """These rows, those without a stream on that of their queue."""
        return replace(self, stream=np.where(self.stream == NONE, queue, self.stream))

    def of(self, rows: Ints) -> Placed:
        """Some of these rows."""
        return Placed(
            Times(self.times.start_ns[rows], self.times.end_ns[rows]),
            self.device[rows],
            self.stream[rows],
            self.correlation[rows],
        )

    def columns(self) -> dict[str, Ints]:
        """The links of these rows."""
        return {"device": self.device, "stream": self.stream, "correlation": self.correlation}


@dataclass(frozen=True)
class Shape:
    """How kernels were launched: sizes of the grid in work items and of the work group, each a row
    for x, y and z; -1 unknown."""

    grid: Ints
    group: Ints
    registers: Ints
    shared_bytes: Ints


def add_kernels(process: Process, placed: Placed, name: Texts, shape: Shape) -> None:
    """Kernels. Grids are counted in work items: their blocks are the work groups that they fill."""
    known = ((shape.grid > 0) & (shape.group > 0)).all(axis=0)
    blocks = -(-shape.grid // np.maximum(shape.group, 1))
    geometry = {
        "blocks": np.where(known, blocks.prod(axis=0), NONE),
        "threads_per_block": np.where(known, shape.group.prod(axis=0), NONE),
        "registers_per_thread": shape.registers,
        "shared_memory_bytes": shape.shared_bytes,
    }
    process.add("kernel", name, placed.times, placed.columns(), {"geometry": geometry})


def add_copies(
    process: Process, placed: Placed, direction: Texts, ends: tuple[Ints, Ints], size: Ints
) -> None:
    """Copies; `ends`: the devices they go from and to, -1 for the host. A copy within the host is
    no work of a device."""
    source, target = ends
    words = np.array(direction.listed(), dtype=object)
    apart = (source != NONE) & (target != NONE) & (source != target)
    words[(words == DEVICE_TO_DEVICE) & apart] = PEER_TO_PEER
    device = np.where((words == HOST_TO_DEVICE) | (source == NONE), target, source)
    names = Texts.of(COPY_NAMES[word] for word in words)
    on_device = (words != HOST_TO_HOST) & (device != NONE)
    rows, rest = np.flatnonzero(on_device), np.flatnonzero(~on_device)
    process.add("other", names[rest], placed.of(rest).times, {})
    memories = [_MEMORY_OF.get(word, (UNKNOWN, UNKNOWN)) for word in words[rows]]
    copies = {
        "bytes": size[rows],
        "direction": words[rows],
        "source": np.array([first for first, _ in memories], dtype=object),
        "target": np.array([second for _, second in memories], dtype=object),
    }
    work = replace(placed, device=device).of(rows)
    process.add("memcpy", names[rows], work.times, work.columns(), {"copies": copies})


@dataclass(frozen=True)
class Allocated:
    """Memory taken from the driver or given back; `device` -1 for the host."""

    name: Texts
    times: Times
    thread: Ints
    device: Ints
    size: Ints
    address: Ints


def add_allocations(process: Process, found: Allocated) -> None:
    """A release names no size: it is that of the allocation at its address."""
    size, device = _released(found)
    memory = {
        "bytes": size,
        "address": found.address,
        "device_type": np.where(device == NONE, 0, _HIP_DEVICE_TYPE),
        "device": device,
        "allocated_bytes": np.full(size.size, NONE, dtype=np.int64),
        "reserved_bytes": np.full(size.size, NONE, dtype=np.int64),
    }
    process.add("memory", found.name, found.times, {"thread": found.thread}, {"memory": memory})


def _released(found: Allocated) -> tuple[Ints, Ints]:
    """Sizes and devices; what was allocated before the recording is released as 0 bytes."""
    freed = np.array(["FREE" in word for word in found.name.values], dtype=bool)[found.name.codes]
    size, device = found.size.copy(), found.device.copy()
    taken: dict[int, int] = {}
    for row in np.argsort(found.times.start_ns, kind="stable").tolist():
        address = int(found.address[row])
        if not freed[row]:
            taken[address] = row
            continue
        before = taken.pop(address, None)
        size[row] = 0 if before is None else -found.size[before]
        device[row] = NONE if before is None else found.device[before]
    return size, device
