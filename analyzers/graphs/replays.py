"""Graph replays to the nodes of their capture: node n of a replay is the n-th captured launch.

A replay runs all its nodes under one launch, in the order of capture on each stream. A capture is
believed only when the number of nodes, their kinds and the kernels that are known agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import Host, Launches
from tracer.analyzers.graphs.captures import (
    KERNEL,
    MEMCPY,
    MEMSET,
    Capture,
    Texts,
    find_captures,
    saved_captures,
)
from tracer.analyzers.graphs.order import merge_streams
from tracer.analyzers.intervals import NONE, Longs, lookup, nowhere, take
from tracer.analyzers.names.kernel_table import describe
from tracer.events import KIND_CODE, Note, Trace

# Share of the kernels known from other evidence than the launch itself that may be others: a
# library can choose another kernel when it is captured.
_OTHER_KERNELS = 0.1
_PRODUCTS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv")
)
_PRODUCT_TOKENS = frozenset(("GEMM", "SPLITK", "GEMM_AUX", "FILL", "COPY", "OTHER", "CONV"))
# These launch no matrix product, whatever library serves them.
_NO_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("add", "add_", "mul", "mul_", "copy_", "cat", "silu", "gelu", "embedding", "rsqrt")
)
_NODE = 0xFFFFFFFF  # the low half of a node number; the high one is the graph


@dataclass(frozen=True)
class GraphMap:
    """`site`: for each piece of work of a replay the captured launch it comes from; `node`: the row
    of `captured_nodes`, for captures seen elsewhere. -1 else."""

    site: Longs
    node: Longs
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class _Replay:
    """One replay: its work in the order of nodes. sure: that order is certain."""

    rows: Longs
    kinds: NDArray[np.int8]
    names: Texts
    codes: Longs  # of the names, in this recording
    begin_ns: int
    graph: int  # the number that the format gives the graph; -1 unknown
    stream: Longs
    sure: bool

    @property
    def key(self) -> bytes:
        """The same for replays that look alike."""
        lanes = b"" if self.sure else self.stream.tobytes()
        return lanes + self.kinds.tobytes() + self.codes.tobytes()


def map_replays(host: Host, launches: Launches, event: Longs, launch: Longs) -> GraphMap:
    """Find for each replay the capture it can only come from, and pair their nodes in order."""
    nothing = nowhere(event.size)
    rows = np.flatnonzero(take(launches.graph.astype(np.int64), launch) == 1)
    if not rows.size:
        return GraphMap(nothing, nothing, ())
    captures = [*saved_captures(host.trace), *find_captures(host, launches)]
    if not captures:
        return GraphMap(nothing, nothing, ())
    search = _Search(captures)
    site, node = nothing.copy(), nothing.copy()
    for members in _by_launch(rows, launch):
        replay = _read_replay(host.trace, event, members, launch)
        capture, order = search.find(replay)
        if capture is not None:
            (node if capture.elsewhere else site)[replay.rows[order]] = capture.rows
    return GraphMap(site, node, search.notes())


def _by_launch(rows: Longs, launch: Longs) -> list[Longs]:
    """Replays in order of launch."""
    order = rows[np.argsort(launch[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(launch[order])) + 1
    return [part.astype(np.int64) for part in np.split(order, bounds)]


def _read_replay(trace: Trace, event: Longs, rows: Longs, launch: Longs) -> _Replay:
    """By node number where recorded, else by start, which is certain on one stream."""
    table = trace.table("graph_nodes")
    at = lookup(table["event"].to_numpy(), event[rows])
    numbered = bool(len(table)) and bool((at != NONE).all())
    stream = trace.events["stream"].to_numpy()[event[rows]]
    if numbered:
        order = np.argsort(table["node"].to_numpy()[at] & _NODE, kind="stable")
    else:
        order = np.lexsort((event[rows], trace.start_ns[event[rows]]))
    rows = rows[order]
    codes = trace.name_codes[event[rows]]
    names = np.array([trace.names[code] for code in codes.tolist()], dtype=object)
    return _Replay(
        rows,
        _work_kinds(trace, event[rows]),
        names,
        codes,
        int(trace.start_ns[launch[rows[0]]]),
        int(table["node"].to_numpy()[at[0]] >> 32) if numbered else NONE,
        stream[order],
        numbered or np.unique(stream).size == 1,
    )


def _work_kinds(trace: Trace, events: Longs) -> NDArray[np.int8]:
    kinds = trace.kind_codes[events]
    copies, sets = KIND_CODE["memcpy"], KIND_CODE["memset"]
    return np.where(kinds == copies, MEMCPY, np.where(kinds == sets, MEMSET, KERNEL)).astype(
        np.int8
    )


@dataclass
class _Search:
    """Which capture each replay comes from, and what must be said of it."""

    captures: list[Capture]
    of_graph: dict[int, Capture] = field(default_factory=dict)
    last: Capture | None = None
    unmatched: int = 0
    disagreeing: int = 0
    ambiguous: int = 0
    positional: int = 0
    by_order: int = 0
    alike: int = 0
    elsewhere: int = 0

    def find(self, replay: _Replay) -> tuple[Capture | None, Longs]:
        """The capture of a replay, and the order of its rows that fits."""
        straight = np.arange(replay.rows.size)
        known = self.of_graph.get(replay.graph)
        fitting = [c for c in self.captures if c.rows.size == replay.rows.size]
        fitting = [c for c in fitting if c.elsewhere or c.end_ns <= replay.begin_ns]
        fitting = [known] if known is not None and known in fitting else fitting
        agreeing = [(c, o) for c in fitting if (o := _order_of(c, replay)) is not None]
        self.unmatched += not fitting
        self.disagreeing += bool(fitting) and not agreeing
        if not agreeing:
            return None, straight
        chosen = self._choose([capture for capture, _ in agreeing])
        if chosen is None:
            self.ambiguous += 1
            return None, straight
        self._keep(replay, chosen)
        return chosen, next(order for capture, order in agreeing if capture is chosen)

    def _choose(self, agreeing: Sequence[Capture]) -> Capture | None:
        """Captures of this recording before others, the last of them first; where they were made
        for different purposes, the one that was captured after the capture replayed before; else
        the last of those that differ only in whose modules they name."""
        here = [c for c in agreeing if not c.elsewhere]
        found = here or list(agreeing)
        if len({capture.purpose for capture in found}) == 1:
            return self._following(found) or found[-1]
        following = self._following(found)
        self.by_order += following is not None
        if following is None and len({capture.likeness for capture in found}) == 1:
            self.alike += 1
            return found[-1]
        return following

    def _following(self, found: Sequence[Capture]) -> Capture | None:
        if self.last is None:
            return None
        after = (self.last.elsewhere, self.last.order + 1)
        return next((c for c in found if (c.elsewhere, c.order) == after), None)

    def _keep(self, replay: _Replay, chosen: Capture) -> None:
        self.last = chosen
        self.positional += not replay.sure
        self.elsewhere += chosen.elsewhere
        if replay.graph > 0:
            self.of_graph[replay.graph] = chosen

    def notes(self) -> tuple[Note, ...]:
        """What the reader must know of the pairing."""
        said = (
            ("trace.graph_without_capture", self.unmatched, _UNMATCHED),
            ("trace.graph_disagrees", self.disagreeing, _DISAGREEING),
            ("trace.graph_ambiguous", self.ambiguous, _AMBIGUOUS),
            ("trace.graph_positional", self.positional, _POSITIONAL),
            ("trace.graph_by_order", self.by_order, _BY_ORDER),
            ("trace.graph_alike", self.alike, _ALIKE),
            ("trace.graph_map_reused", self.elsewhere, _ELSEWHERE),
        )
        return tuple(Note(rule, f"{count} {text}", count) for rule, count, text in said if count)


_INSTEAD = "their kernels are attributed by position and name"
_UNMATCHED = f"graph replays match no capture by their number of nodes: {_INSTEAD}"
_DISAGREEING = (
    "graph replays have as many nodes as a capture, but other kernels than it was made of: "
    f"{_INSTEAD}"
)
_AMBIGUOUS = f"graph replays fit several captures that were made for different modules: {_INSTEAD}"
_POSITIONAL = (
    "graph replays run on several streams without node numbers: their nodes are paired with the "
    "capture in order on each stream, by kernels and start"
)
_BY_ORDER = "graph replays fit several captures: they are paired in the order of capture"
_ALIKE = (
    "graph replays fit captures of several modules that are alike: groups and parts are the same "
    "in each; the modules named are those of the last capture"
)
_ELSEWHERE = (
    "graph replays come from captures outside this recording: numbers, kinds and known kernels of "
    "their nodes agree"
)


def _order_of(capture: Capture, replay: _Replay) -> Longs | None:
    """The order of the replay's rows in which they agree with the capture; None for none. Most
    replays look like one before."""
    key = replay.key
    if key not in capture.orders:
        order: Longs = np.arange(replay.rows.size)
        if not replay.sure:
            order = merge_streams(_scores(capture, replay), replay.stream)
        capture.orders[key] = order if _agrees(capture, replay, order) else None
    return capture.orders[key]


def _agrees(capture: Capture, replay: _Replay, order: Longs) -> bool:
    """Whether nothing that is known of the nodes speaks against it."""
    kinds, names = replay.kinds[order], replay.names[order]
    if not _same_kinds(capture, kinds, names):
        return False
    known = (capture.kernels != "") & (capture.kinds == KERNEL) & _comparable(capture, names)
    other = known & (capture.kernels != names)
    if bool((other & capture.exact).any()):
        return False
    loose = int((known & ~capture.exact).sum())
    against = int((other & ~capture.exact).sum()) + int(_other_products(capture, names).sum())
    return against <= _OTHER_KERNELS * max(loose, 0.2 * names.size)


def _same_kinds(capture: Capture, kinds: NDArray[np.int8], names: Texts) -> bool:
    """Kernels are kernels; a copy or a set may be carried out by a kernel of the driver's."""
    differ = kinds != capture.kinds
    if not bool(differ.any()):
        return True
    by_kernel = (kinds == KERNEL) & np.array(["rocclr" in name for name in names], dtype=bool)
    return bool((~differ | by_kernel).all())


def _comparable(capture: Capture, names: Texts) -> NDArray[np.bool_]:
    """Names of which one is mangled and the other is not say nothing."""
    mangled = np.array([name.startswith("_Z") for name in names], dtype=bool)
    own = np.array([name.startswith("_Z") for name in capture.kernels], dtype=bool)
    alike: NDArray[np.bool_] = mangled == own
    return alike


def _other_products(capture: Capture, names: Texts) -> NDArray[np.bool_]:
    """Nodes whose operator multiplies matrices and whose kernel does not, or the reverse."""
    tokens = [describe(name).token for name in names]
    return np.array(
        [
            (operator in _PRODUCTS and token not in _PRODUCT_TOKENS)
            or (operator in _NO_PRODUCTS and token == "GEMM")
            for operator, token in zip(capture.operators.tolist(), tokens, strict=True)
        ],
        dtype=bool,
    )


def _scores(capture: Capture, replay: _Replay) -> NDArray[np.float64]:
    """How well each row of a replay fits each node."""
    distinct, at = np.unique(replay.codes, return_inverse=True)
    first = [int(np.argmax(at == number)) for number in range(distinct.size)]
    columns = [_fit(capture, str(replay.names[row])) for row in first]
    scores = np.stack(columns, axis=1)[:, at]
    scores[capture.kinds[:, None] != replay.kinds[None, :]] = -4.0
    return scores


def _fit(capture: Capture, name: str) -> NDArray[np.float64]:
    """How well a kernel of this name fits each node."""
    known, same = capture.kernels != "", capture.kernels == name
    names = np.full(capture.rows.size, name, dtype=object)
    fit: NDArray[np.float64] = np.where(same, 2.0, np.where(known, -1.0, 0.0))
    return fit - 2.0 * _other_products(capture, names)
