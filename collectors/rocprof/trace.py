"""A recording of rocprofv3, collected from its files, and the trace that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer.collectors.rocprof.agents import Gpu, devices_table
from tracer.collectors.rocprof.batches import Process, join_processes
from tracer.collectors.rocprof.notes import Remarks, notes_of, unlaunched
from tracer.errors import EmptyTraceError, InputError
from tracer.events import Trace, TraceMeta


@dataclass
class Recording:
    """What was read of the files at `path` so far."""

    path: str
    remarks: Remarks
    processes: list[Process] = field(default_factory=list)
    gpus: dict[int, Gpu] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    _machines: dict[str, int] = field(default_factory=dict)

    def add(self, process: Process, metadata: Mapping[str, Any]) -> None:
        """One more process, and what its file says of it; of several the first is kept."""
        self.processes.append(process)
        for key, value in _described(metadata).items():
            self.extra.setdefault(key, value)

    def add_gpu(self, gpu: Gpu) -> int:
        """One more device; returns its number."""
        self.gpus[len(self.gpus)] = gpu
        return len(self.gpus) - 1

    def add_gpus(self, machine: str, gpus: Sequence[Gpu]) -> int:
        """The devices of a machine, known already or new; returns the number of the first."""
        begin = self._machines.setdefault(machine, len(self.gpus))
        for device, gpu in enumerate(gpus, begin):
            self.gpus.setdefault(device, gpu)
        return begin


def _described(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The command, the process and its machine."""
    node = metadata.get("node")
    host = node.get("hostname") if isinstance(node, dict) else None
    found = {"command": metadata.get("command"), "pid": metadata.get("pid"), "hostname": host}
    return {key: value for key, value in found.items() if value}


def make_trace(recording: Recording, rank: int | None = None, of: int = 1) -> Trace:
    """The trace of everything that was read, of one rank `of` several. Raises when that is
    nothing."""
    events, sides = join_processes(recording.processes)
    remarks = recording.remarks
    remarks.timeless = sum(process.timeless for process in recording.processes)
    remarks.processes = [process.pid for process in recording.processes if process.batches]
    if not len(events):
        raise _nothing(recording.path, remarks)
    sides["devices"] = devices_table(recording.gpus)
    meta = TraceMeta(
        source_kind="rocprof",
        path=recording.path,
        rank=rank,
        world_size=None if rank is None else of,
        clock="relative",
        recorded={
            "stacks": False,
            "modules": bool((events["kind"] == "module").any()),
            "shapes": "shapes" in sides,
            "memory": "memory" in sides,
            "every_launch": not unlaunched(events)[0],
            "every_kernel": not remarks.is_thinned,
        },
        extra=recording.extra,
    )
    kept = {name: table for name, table in sides.items() if len(table)}
    return Trace(events, kept, meta, notes_of(remarks, events, rank))


def _nothing(path: str, remarks: Remarks) -> InputError:
    if remarks.cut:
        return InputError(f"{path}: its end is missing, and nothing was recorded before it")
    if remarks.lost or remarks.timeless:
        return InputError(f"{path}: none of its {remarks.lost + remarks.timeless:,} rows is valid")
    if remarks.unread:
        domains = ", ".join(remarks.unread)
        return EmptyTraceError(
            f"{path}: it holds only what this build does not read ({domains}); trace the program "
            "with rocprofv3 --kernel-trace --hip-trace --memory-copy-trace"
        )
    return EmptyTraceError(
        f"{path}: nothing was recorded in it; trace the program with rocprofv3 --kernel-trace "
        "--hip-trace --memory-copy-trace"
    )
