"""Work of compiled code to the calls of its graph, and to the modules that those serve.

A compiled graph calls its kernels in a fixed order. Host rows right under its range, or the nodes
of a CUDA graph that it replays, are laid beside that order; the names of generated kernels hold
them in place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.compiled_order import align_kernels, align_operators
from tracer.analyzers.facts.host import Host, Launches
from tracer.analyzers.facts.modules import ModuleTree, rows_of_paths
from tracer.analyzers.intervals import NONE, Longs, distinct, nowhere, take
from tracer.events import Note, Trace

_REGION = "## Call CompiledFxGraph"
_TIMED = "(dynamo_timed)"
_KEY = re.compile(r"## Call CompiledFxGraph (\S+) ##")
# Generated kernels that ran and stand in the graph at their place: below this share the graph is
# another one.
_ENOUGH = 0.9


@dataclass(frozen=True)
class CallSource:
    """A module that a call serves: its row in the tree, and what the call does for it."""

    module: int
    operators: tuple[str, ...]


@dataclass(frozen=True)
class CompiledWork:
    """`call`: for each piece of work the row of `compiled_calls`; -1 for other work. `case`: which
    of `cases` it is: a call as it ran below one module of the tree. `region`: the range of the
    compiled graph around it; -1 outside. `silent`: modules that a call serves which left no work,
    as kernels for CPUs do without ranges, and the host event that it came after."""

    call: Longs
    case: Longs
    cases: tuple[tuple[CallSource, ...], ...]
    region: Longs
    notes: tuple[Note, ...] = ()
    silent: Mapping[int, int] = field(default_factory=dict)

    @property
    def module(self) -> Longs:
        """The first module of each call; -1 where none is known."""
        first = [sources[0].module if sources else NONE for sources in self.cases]
        return take(np.array(first, dtype=np.int64), self.case)


@dataclass(frozen=True)
class _Graph:
    """A compiled graph: the rows of its calls, and what they call."""

    rows: Longs
    kernels: list[str]
    generated: frozenset[str]
    root: str
    root_type: str
    orders: dict[tuple[str, ...], list[int]] = field(default_factory=dict)


def map_compiled(
    host: Host, launches: Launches, tree: ModuleTree, event: Longs, site: Longs, launch: Longs
) -> CompiledWork:
    """Find the call behind each piece of work that compiled code launched."""
    nothing = nowhere(event.size)
    regions = host.trace.named(lambda name: name.startswith(_REGION), "annotation", "operator")
    if not regions.any():
        return CompiledWork(nothing, nothing, (), nothing)
    around = host.nearest(regions)
    region = take(around, site)
    graphs = _read_graphs(host.trace)
    if not graphs:
        return CompiledWork(nothing, nothing, (), region)
    reader = _Reader(host, graphs, regions)
    replayed = (take(launches.graph.astype(np.int64), launch) == 1) & (site == launch)
    replayed &= region != NONE
    call = reader.of_rows(site, np.where(replayed, NONE, event))
    call[replayed] = reader.of_replays(region[replayed], event[replayed])
    reading = _Cases(host, tree, graphs)
    case, cases = reading.of(call, region)
    silent = reading.silent(np.where(replayed, NONE, call), region, site)
    return CompiledWork(call, case, cases, region, reader.notes(), silent)


def _read_graphs(trace: Trace) -> dict[str, list[_Graph]]:
    """Graphs by the key in their ranges. Several share a key only where there is none."""
    graphs, calls = trace.table("compiled_graphs"), trace.table("compiled_calls")
    owner = calls["graph"].to_numpy()
    kernels = calls["kernel"].astype(str).tolist()
    generated = (calls["form"] == "generated").to_numpy()
    out: dict[str, list[_Graph]] = {}
    for row in graphs.to_dict("records"):
        rows = np.flatnonzero(owner == row["graph"]).astype(np.int64)
        mine = [kernels[place] for place in rows.tolist()]
        own = frozenset(kernels[place] for place in rows[generated[rows]].tolist())
        graph = _Graph(rows, mine, own, str(row["root"]), str(row["root_type"]))
        out.setdefault(str(row["key"]), []).append(graph)
    return out


class _Reader:
    """Lays what ran beside what graphs call."""

    def __init__(
        self, host: Host, graphs: dict[str, list[_Graph]], regions: NDArray[np.bool_]
    ) -> None:
        self.host, self.trace, self.graphs = host, host.trace, graphs
        self.regions = regions
        self.unknown = self.other = 0

    def of_rows(self, site: Longs, event: Longs) -> Longs:
        """The call of each host row that lies under an operator of a compiled graph, or launches
        its `event` itself: not every launcher writes an operator."""
        # Python frames of the generated code lie between, and what the compiler times of itself:
        # it records a CUDA graph under such a range.
        timed = self.trace.named(lambda name: name.endswith(_TIMED), "operator", "annotation")
        between = timed | self.host.of_kind("frame")
        parent = take(self.host.nearest(~between), self.host.parent)
        names = self._called(site, event)
        operators = self.host.of_kind("operator") & ~timed
        child = (operators | (names != self.trace.name_codes)) & (parent != NONE)
        child &= self.regions[np.maximum(parent, 0)]
        rows = np.flatnonzero(child)
        calls = np.full(len(self.trace.events), NONE, dtype=np.int64)
        for members in _grouped(rows, parent[rows]):
            graph = self._graph_at(int(parent[members[0]]))
            calls[members] = self._laid(graph, self._words(names[members]), align_operators)
        return take(calls, take(self.host.nearest(child), site))

    def _called(self, site: Longs, event: Longs) -> Longs:
        """The name of each host row; of one that launches a kernel, the kernel's."""
        names = self.trace.name_codes.astype(np.int64)
        launches = self.host.of_kind("runtime")
        own = np.flatnonzero((site != NONE) & (event != NONE))
        own = own[launches[site[own]]]
        names[site[own]] = names[event[own]]
        return names

    def of_replays(self, region: Longs, event: Longs) -> Longs:
        """The call of each node of CUDA graphs that a compiled graph replays."""
        out = np.full(event.size, NONE, dtype=np.int64)
        order = np.lexsort((self.trace.start_ns[event], region))
        for members in _grouped(order, region[order]):
            names = self._words(self.trace.name_codes[event[members]])
            graph = self._graph_at(int(region[members[0]]))
            out[members] = self._laid(graph, names, align_kernels)
        return out

    def _words(self, codes: NDArray[np.integer]) -> tuple[str, ...]:
        return tuple(self.trace.names[code] for code in codes.tolist())

    def _graph_at(self, region: int) -> list[_Graph]:
        match = _KEY.match(self.trace.names[self.trace.name_codes[region]])
        found = self.graphs.get(match[1], []) if match else []
        self.unknown += not found
        return found

    def _laid(self, graphs: list[_Graph], names: tuple[str, ...], align: _Align) -> Longs:
        for graph in graphs:
            if names not in graph.orders:
                graph.orders[names] = align(graph.kernels, graph.generated, names)
            order = np.array(graph.orders[names], dtype=np.int64)
            if _share_in_place(graph, names, order) >= _ENOUGH:
                return take(graph.rows, order)
        # What holds no generated kernel, and no call of the graph, is what prepares a replay.
        self.other += bool(graphs) and any(map(_is_generated, names))
        return np.full(len(names), NONE, dtype=np.int64)

    def notes(self) -> tuple[Note, ...]:
        """What could not be laid beside a graph."""
        said = (
            ("trace.compiled_unknown", self.unknown, _UNKNOWN),
            ("trace.compiled_disagrees", self.other, _OTHER),
        )
        return tuple(Note(rule, f"{count} {text}", count) for rule, count, text in said if count)


_Align = Callable[[Sequence[str], frozenset[str], tuple[str, ...]], list[int]]
_INSTEAD = "their kernels are attributed by position and name"
_UNKNOWN = f"calls of compiled graphs whose contents were not seen: {_INSTEAD}"
_OTHER = f"calls of compiled graphs launched other kernels than the graph holds: {_INSTEAD}"


def _grouped(rows: Longs, keys: Longs) -> list[Longs]:
    """Rows by key, in the order that they have."""
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    return [part for part in np.split(rows[order], bounds) if part.size]


def _share_in_place(graph: _Graph, names: tuple[str, ...], order: Longs) -> float:
    """Of the generated kernels that ran, those that the graph has at their place."""
    generated = np.array([name in graph.generated or _is_generated(name) for name in names])
    if not generated.any():
        return float((order != NONE).any()) if order.size else 0.0
    return float((order[generated] != NONE).mean())


@lru_cache(maxsize=65536)
def _is_generated(name: str) -> bool:
    return name.startswith(("triton_", "cpp_fused"))


class _Cases:
    """The modules that calls serve where they run: code compiled for one layer also serves its
    like, and then its modules are those of the layer that called it."""

    def __init__(self, host: Host, tree: ModuleTree, graphs: dict[str, list[_Graph]]) -> None:
        self.host, self.tree, self.trace = host, tree, host.trace
        self.roots: dict[int, tuple[str, str]] = {
            int(row): (graph.root, graph.root_type)
            for several in graphs.values()
            for graph in several
            for row in graph.rows.tolist()
        }

    def of(self, call: Longs, region: Longs) -> tuple[Longs, tuple[tuple[CallSource, ...], ...]]:
        """For each piece of work the number of its case, and the cases."""
        holder = take(self.tree.of_event, region)
        known = np.flatnonzero(call != NONE)
        first, place = distinct(call[known], holder[known])
        case = np.full(call.size, NONE, dtype=np.int64)
        case[known] = place
        pairs = zip(call[known[first]].tolist(), holder[known[first]].tolist(), strict=True)
        return case, tuple(self._sources(row, around) for row, around in pairs)

    def silent(self, call: Longs, region: Longs, site: Longs) -> dict[int, int]:
        """Modules of the calls that left no work in a range of a graph where others did, and the
        host event before each."""
        known = np.flatnonzero(call != NONE)
        holder = take(self.tree.of_event, region[known])
        first, _ = distinct(self._graph[call[known]], holder)
        out: dict[int, int] = {}
        for place in first.tolist():
            mine = known[region[known] == region[known[place]]][::-1]
            ran = dict(zip(call[mine].tolist(), site[mine].tolist(), strict=True))
            last = int(region[known[place]])
            for row in np.flatnonzero(self._graph == self._graph[call[known[place]]]).tolist():
                last = ran.get(row, last)
                sources = () if row in ran else self._sources(row, int(holder[place]))
                for source in sources:
                    out.setdefault(source.module, last)
        return out

    @cached_property
    def _graph(self) -> Longs:
        """The graph of each row of `compiled_calls`, which stand in the order of the calls."""
        return self.trace.table("compiled_calls")["graph"].to_numpy().astype(np.int64)

    def _sources(self, row: int, holder: int) -> tuple[CallSource, ...]:
        paths = [self._moved(path, row, holder) for path, _ in self._said.get(row, [])]
        rows = rows_of_paths(self.tree, paths)
        found = [
            CallSource(int(module), operators)
            for module, (_, operators) in zip(rows.tolist(), self._said.get(row, []), strict=True)
            if module != NONE
        ]
        return tuple(sorted(found, key=self._rank, reverse=True))

    def _rank(self, source: CallSource) -> tuple[int, int]:
        """The module that the call does most for, the innermost among equals."""
        return len(source.operators), self.tree.paths[source.module].count(".")

    def _moved(self, path: str, row: int, holder: int) -> str:
        """The path below the module that called, where that is another one of the same class."""
        root, kind = self.roots.get(row, ("", ""))
        if holder == NONE or not kind or self.tree.types[holder] != kind:
            return path
        caller = self.tree.paths[holder]
        if caller == root or not (path == root or path.startswith(f"{root}.")):
            return path
        return caller + path[len(root) :]

    @cached_property
    def _said(self) -> dict[int, list[tuple[str, tuple[str, ...]]]]:
        """Row of a call -> paths and operators of its modules."""
        calls, modules = self.trace.table("compiled_calls"), self.trace.table("compiled_modules")
        row_of = {
            key: row for row, key in enumerate(zip(calls["graph"], calls["call"], strict=True))
        }
        out: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
        for graph, call, path, operators in zip(
            modules["graph"], modules["call"], modules["path"], modules["operators"], strict=True
        ):
            if call >= 0:
                told = tuple(json.loads(operators or "[]"))
                out.setdefault(row_of[graph, call], []).append((str(path), told))
        return out
