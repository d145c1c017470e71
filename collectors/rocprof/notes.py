"""What a reader of the report must know about a recording of rocprofv3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.collectors.kineto.notes import rank_note
from tracer.events import KIND_CODE, NONE, Note

_NAMED = 4
_FEW_MISSING = 0.01


@dataclass
class Remarks:
    """What was noticed while the files were read. `unread`: rows by domain that are not read."""

    cut: list[str] = field(default_factory=list)  # names of files whose end is missing
    lost: int = 0  # rows that could not be read
    timeless: int = 0
    unread: dict[str, int] = field(default_factory=dict)
    files: Sequence[str] = ()  # read together
    strangers: Sequence[str] = ()  # beside them, of another process or of a kind that is there
    processes: Sequence[int] = ()
    kernels: int = 0  # rows of kernels
    dispatches: int = 0  # how many were put on queues from the first of them to the last

    def dispatched(self, numbers: NDArray[np.int64]) -> None:
        """Count kernels by the numbers that the runtime of their process gave them, one by one."""
        known = np.unique(numbers[numbers != NONE])
        if known.size:
            self.kernels += known.size
            self.dispatches += int(known[-1] - known[0]) + 1

    @property
    def is_thinned(self) -> bool:
        """Whether more than a few kernels between the first and the last have no row."""
        return self.dispatches - self.kernels > _FEW_MISSING * self.dispatches

    def leave(self, domain: str, rows: int) -> None:
        """Count rows of a domain that is not read."""
        if rows:
            self.unread[domain] = self.unread.get(domain, 0) + rows


def notes_of(remarks: Remarks, events: pd.DataFrame, rank: int | None) -> tuple[Note, ...]:
    """Notes on how the files were read and what they hold."""
    read = (*_damage(remarks, len(events)), *_thinned(remarks), *_content(remarks))
    return (*read, *_missing(events), *rank_note(rank))


def _damage(remarks: Remarks, events: int) -> Iterator[Note]:
    if remarks.cut:
        text = f"the end of {_listed(remarks.cut)} is missing: {events:,} events were read"
        yield Note("trace.truncated", text, events, partial=True)
    if remarks.lost:
        text = f"{remarks.lost:,} rows cannot be read and are left out"
        yield Note("trace.invalid_event", text, remarks.lost, partial=True)
    if remarks.timeless:
        text = f"{remarks.timeless:,} rows have no start and end and are left out"
        yield Note("trace.no_times", text, remarks.timeless, partial=True)


def _thinned(remarks: Remarks) -> Iterator[Note]:
    missing = remarks.dispatches - remarks.kernels
    if missing > 0:
        text = (
            f"{missing:,} of {remarks.dispatches:,} kernels between the first and the last have no "
            "row, as where some were chosen by name or the file was thinned: the device may have "
            "been busy with them where it seems idle"
        )
        yield Note("trace.kernels_missing", text, missing, partial=True)


def _content(remarks: Remarks) -> Iterator[Note]:
    if len(remarks.files) > 1:
        text = f"one recording in {len(remarks.files)} files, read together: "
        files = list(remarks.files)
        yield Note("trace.files", text + ", ".join(files), len(files), {"files": files})
    if remarks.strangers:
        text = f"left out, of another process or a second one: {_listed(remarks.strangers)}"
        yield Note("trace.other_process", text, len(remarks.strangers))
    if len(remarks.processes) > 1:
        text = (
            f"{len(remarks.processes)} processes in one file are reported together: their device "
            "work shares the devices"
        )
        pids = list(remarks.processes)
        yield Note("trace.processes", text, len(pids), {"pids": pids})
    if remarks.unread:
        count = sum(remarks.unread.values())
        text = f"{count:,} rows are of domains that this build does not read: "
        domains = dict(remarks.unread)
        yield Note("trace.unread_domain", text + _listed(domains), count, {"domains": domains})
    text = (
        "times are those of the machine's clock since it booted: they cannot be joined with others"
    )
    yield Note("trace.no_timestamps_base", text)


def _missing(events: pd.DataFrame) -> Iterator[Note]:
    """What the tool was not asked to trace, and calls that are not among those recorded."""
    switches = _not_traced(events)
    if switches:
        text = "; ".join(f"{lack}: rocprofv3 {switch} records them" for switch, lack in switches)
        yield Note(
            "trace.not_traced", text, detail={"switches": [switch for switch, _ in switches]}
        )
    count, total = unlaunched(events)
    if count:
        text = (
            f"the calls that launched {count:,} of {total:,} kernels and copies are missing among "
            "those recorded, though calls before them are there: what the host did is known in part"
        )
        yield Note("trace.calls_missing", text, count, {"device_events": total})


def _not_traced(events: pd.DataFrame) -> list[tuple[str, str]]:
    """Switches of the tool, and what is absent for want of them."""
    kinds = events["kind"].cat.codes.to_numpy()
    calls = kinds == KIND_CODE["runtime"]
    lacks = []
    if not calls.any():
        lacks.append(("--hip-trace", "no calls of HIP, which tell why the device was idle"))
    if not (kinds == KIND_CODE["kernel"]).any():
        lacks.append(("--kernel-trace", "no kernels"))
    correlation = events["correlation"].to_numpy()
    names = events["name"].cat
    copying = np.array([str(name).startswith("hipMemcpy") for name in names.categories], dtype=bool)
    asked = correlation[calls & copying[names.codes.to_numpy()]]
    worked = np.isin(kinds, [KIND_CODE["kernel"], KIND_CODE["memcpy"]])
    # A copy may be the work of a kernel.
    if asked.size and not np.isin(asked, correlation[worked]).any():
        lacks.append(("--memory-copy-trace", "calls that copy and no copies"))
    return lacks


def unlaunched(events: pd.DataFrame) -> tuple[int, int]:
    """How many rows of device work lack a call that was made after the first one recorded, and how
    many rows there are. Correlations count calls in the order in which they began."""
    kinds = events["kind"].cat.codes.to_numpy()
    correlation = events["correlation"].to_numpy()
    work = correlation[(kinds == KIND_CODE["kernel"]) | (kinds == KIND_CODE["memcpy"])]
    calls = correlation[(kinds == KIND_CODE["runtime"]) & (correlation != NONE)]
    if not calls.size or not work.size:
        return 0, int(work.size)
    missing = ~np.isin(work, calls) & (work > calls.min())
    return int(missing.sum()), int(work.size)


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    named = list(names)[:_NAMED]
    more = len(names) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")
