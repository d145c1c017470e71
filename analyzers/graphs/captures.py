"""Captures of graphs: which launches they hold, and what those were launched for.

While a stream is captured nothing runs: the launches between its begin and end are recorded on the
host, inside their modules and operators. What is known of each (kind, kernel, operator, module) is
what a replay is compared with before it is believed to come from this capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analyzers.facts.host import Host, Launches
from tracer.analyzers.facts.modules import split_range_name
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.events import Trace

KERNEL, MEMCPY, MEMSET = 0, 1, 2
KINDS = ("kernel", "memcpy", "memset")
Texts = NDArray[np.object_]


@dataclass(frozen=True)
class Capture:
    """One capture: its nodes in order. `rows` are its launches in `events` or, when it was seen
    elsewhere, rows of the table `captured_nodes`. Arrays are aligned with `rows`."""

    rows: Longs
    end_ns: int
    kinds: NDArray[np.int8]
    kernels: Texts  # names, "" where unknown
    exact: NDArray[np.bool_]  # the launch itself named its kernel
    operators: Texts
    modules: Texts  # what stands for the module, "" outside any
    elsewhere: bool = False
    order: int = 0  # among the captures of one origin
    # Looks of a replay -> the order of its rows that agrees, None when nothing does.
    orders: dict[bytes, Longs | None] = field(default_factory=dict, compare=False)

    @property
    def purpose(self) -> tuple[str, ...]:
        """What its nodes were launched for: two captures of one purpose say the same."""
        return (*self.operators.tolist(), *self.modules.tolist())

    @property
    def likeness(self) -> tuple[str, ...]:
        """The same for captures of modules that are alike, such as two models of one class: what
        each node was launched for, below the module that holds them all."""
        named = [split_range_name(name) for name in self.modules.tolist() if name]
        around = _common_path([path for path, _ in named])
        below = [f"{path[len(around) :].lstrip('.')}::{kind}" for path, kind in named]
        return (*self.operators.tolist(), *below)


def _common_path(paths: list[str]) -> str:
    """The longest path that is or holds each of these."""
    levels = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))


def find_captures(host: Host, launches: Launches) -> list[Capture]:
    """Captures of a recording in order. A capture without a launch is none."""
    calls = _capture_calls(host)
    if not calls:
        return []
    naming = _Naming(host, launches)
    rows = [_captured(host, launches, begin, end, calls) for begin, end in calls]
    ends = host.trace.end_ns
    return [
        naming.capture(found, int(ends[end]), order)
        for order, (found, (_, end)) in enumerate(zip(rows, calls, strict=True))
        if found.size
    ]


def _capture_calls(host: Host) -> list[tuple[int, int]]:
    """Pairs of the calls that begin and end a capture on one thread."""
    trace = host.trace
    thread = trace.events["thread"].to_numpy()
    begins = np.flatnonzero(trace.named(lambda name: "StreamBeginCapture" in name, "runtime"))
    stops = np.flatnonzero(trace.named(lambda name: "StreamEndCapture" in name, "runtime"))
    pairs = []
    for begin in begins.tolist():
        after = stops[(stops > begin) & (thread[stops] == thread[begin])]
        if after.size:
            pairs.append((begin, int(after[0])))
    return pairs


def _captured(
    host: Host, launches: Launches, begin: int, end: int, calls: list[tuple[int, int]]
) -> Longs:
    """Launches of a capture: those of its thread, and those of threads that capture nothing
    themselves (the backward pass runs on its own), unless they put work on the device at once."""
    trace = host.trace
    thread = trace.events["thread"].to_numpy()
    inside = launches.launching & ~launches.graph
    inside &= (trace.start_ns >= trace.start_ns[begin]) & (trace.start_ns < trace.end_ns[end])
    rows = np.flatnonzero(inside)
    capturing = [thread[other] for other, _ in calls if thread[other] != thread[begin]]
    rows = rows[~np.isin(thread[rows], capturing)]
    ran = np.zeros(len(trace.events), dtype=bool)
    ran[np.maximum(launches.launch[trace.device_rows], 0)] = True
    held: Longs = rows[~ran[rows]].astype(np.int64)
    return held


class _Naming:
    """What is known of the launches of one recording."""

    def __init__(self, host: Host, launches: Launches) -> None:
        self.host, self.trace = host, host.trace
        self.twins = _eager_kernels(host, launches)
        self.said = np.full(len(self.trace.events), "", dtype=object)
        for table in ("generated", "named_launches"):  # Triton's operators, ROCm's launches
            rows = self.trace.table(table)
            self.said[rows["event"].to_numpy()] = rows["kernel"].to_numpy(dtype=object)

    def capture(self, rows: Longs, end_ns: int, order: int) -> Capture:
        own, around = self.said[rows], self.host.operator[rows]
        said = np.where((own == "") & (around != NONE), self.said[around], own)
        exact = said != ""
        twin = self._texts(self.twins.find(self.host, rows))
        return Capture(
            rows,
            end_ns,
            launch_kinds(self.trace, rows),
            np.where(exact, said, twin),
            exact,
            self._texts(self._name(around)),
            self._texts(self._name(self.host.module[rows])),
            order=order,
        )

    def _name(self, events: Longs) -> Longs:
        return take(self.trace.name_codes.astype(np.int64), events)

    def _texts(self, codes: Longs) -> Texts:
        """Names of the recording by code; "" for -1."""
        texts: Texts = np.array([*self.trace.names, ""], dtype=object)[codes]
        return texts


def launch_kinds(trace: Trace, rows: Longs) -> NDArray[np.int8]:
    """What these runtime calls put on a stream."""
    copies = trace.names_matching(lambda name: "memcpy" in name.lower())
    sets = trace.names_matching(lambda name: "memset" in name.lower())
    codes = trace.name_codes[rows]
    return np.where(copies[codes], MEMCPY, np.where(sets[codes], MEMSET, KERNEL)).astype(np.int8)


# --- names from the same code run eagerly -------------------------------------------------------


@dataclass(frozen=True)
class _Twins:
    """Kernel names of launches that ran at once, by what they were launched for: module, operator
    and how many launches of that module's call came before. Captured code has usually run so."""

    keys: Longs
    names: Longs
    operators: int

    def find(self, host: Host, rows: Longs) -> Longs:
        """Name codes for these launches; -1 without a twin."""
        if not self.keys.size:
            return np.full(rows.size, NONE, dtype=np.int64)
        return take(self.names, lookup(self.keys, _purpose_keys(host, rows, self.operators)))


def _eager_kernels(host: Host, launches: Launches) -> _Twins:
    trace = host.trace
    work = trace.device_rows
    launch = launches.launch[work]
    eager = (launch != NONE) & ~launches.graph[np.maximum(launch, 0)]
    eager &= host.module[np.maximum(launch, 0)] != NONE
    order = np.argsort(launch[eager], kind="stable")
    rows, ran = launch[eager][order], work[eager][order]
    size = len(trace.names) + 1
    keys = _purpose_keys(host, rows, size)
    return _Twins(keys, trace.name_codes[ran].astype(np.int64), size)


def _purpose_keys(host: Host, rows: Longs, operators: int) -> Longs:
    """One number for module, operator and place among the launches of the module's call; -1
    outside modules."""
    names = host.trace.name_codes.astype(np.int64)
    ranges = host.module[rows]
    operator = take(names, host.operator[rows]) + 1
    place = _place_in(ranges)
    keys = (take(names, ranges) * operators + operator) * _MOST_LAUNCHES + place
    outside = (ranges == NONE) | (place >= _MOST_LAUNCHES)
    return np.where(outside, NONE, keys)


_MOST_LAUNCHES = 4096  # of one module's call, its children's left out


def _place_in(ranges: Longs) -> Longs:
    """How many rows of the same range stand before each row."""
    order = np.argsort(ranges, kind="stable")
    ordered = ranges[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if ordered.size else ordered > 0
    starts = np.flatnonzero(first)
    place = np.arange(ordered.size) - np.repeat(starts, np.diff([*starts, ordered.size]))
    out = np.zeros(ranges.size, dtype=np.int64)
    out[order] = place
    return out


# --- captures seen elsewhere --------------------------------------------------------------------


def saved_captures(trace: Trace) -> list[Capture]:
    """Captures that the tables of this trace hold and its events do not."""
    captures, nodes = trace.table("graph_captures"), trace.table("captured_nodes")
    captures = captures[(captures["origin"] != "").to_numpy()]
    owner = nodes["capture"].to_numpy()
    out = []
    ends = captures["end_ns"].tolist()
    for order, number in enumerate(captures["capture"].tolist()):
        rows = np.flatnonzero(owner == number)
        rows = rows[np.argsort(nodes["node"].to_numpy()[rows], kind="stable")]
        out.append(_saved(nodes.iloc[rows], rows.astype(np.int64), ends[order], order))
    return out


def _saved(nodes: pd.DataFrame, rows: Longs, end_ns: int, order: int) -> Capture:
    def texts(column: str) -> Texts:
        return nodes[column].to_numpy(dtype=object)

    kinds = nodes["kind"].map({kind: code for code, kind in enumerate(KINDS)}).to_numpy()
    return Capture(
        rows,
        end_ns,
        kinds.astype(np.int8),
        texts("kernel"),
        nodes["exact"].to_numpy() == 1,
        texts("operator"),
        np.where(texts("type") == "", "", texts("path") + "::" + texts("type")),
        elsewhere=True,
        order=order,
    )
