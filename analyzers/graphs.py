"""Graph replays to the launches of their capture: node n of a replay is the n-th captured launch.

While a stream is captured nothing runs: the launches between its begin and end are recorded on the
host, inside their modules and operators. A replay runs them all under one launch, in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.host import Host, Launches
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.events import Note, Trace


@dataclass(frozen=True)
class Capture:
    """One capture: its launches in order, and the time at which it ended."""

    launches: Longs
    end_ns: int


@dataclass(frozen=True)
class GraphMap:
    """`site`: for each piece of work of a replay the captured launch it comes from; -1 else."""

    site: Longs
    notes: tuple[Note, ...]


def find_captures(host: Host, launches: Launches) -> list[Capture]:
    """Captures of a recording in order. A capture without a launch is none."""
    trace = host.trace
    thread = trace.events["thread"].to_numpy()
    launching = np.flatnonzero(launches.launching & ~launches.graph)
    out = []
    for begin, end in _capture_calls(host):
        inside = launching[
            (trace.start_ns[launching] >= trace.start_ns[begin])
            & (trace.start_ns[launching] < trace.end_ns[end])
            & (thread[launching] == thread[begin])
        ]
        if inside.size:
            out.append(Capture(inside, int(trace.end_ns[end])))
    return out


def _capture_calls(host: Host) -> list[tuple[int, int]]:
    """Pairs of the calls that begin and end a capture on one thread."""
    trace = host.trace
    thread = trace.events["thread"].to_numpy()
    runtime = host.of_kind("runtime")
    begins = trace.names_matching(lambda n: "StreamBeginCapture" in n)[trace.name_codes]
    ends = trace.names_matching(lambda n: "StreamEndCapture" in n)[trace.name_codes]
    stops = np.flatnonzero(ends & runtime)
    pairs = []
    for begin in np.flatnonzero(begins & runtime).tolist():
        after = stops[(stops > begin) & (thread[stops] == thread[begin])]
        if after.size:
            pairs.append((begin, int(after[0])))
    return pairs


def map_replays(host: Host, launches: Launches, event: Longs, launch: Longs) -> GraphMap:
    """Find for each replay the capture it can only come from, and pair their nodes in order."""
    site = np.full(event.size, NONE, dtype=np.int64)
    captures = find_captures(host, launches)
    rows = np.flatnonzero(take(launches.graph.astype(np.int64), launch) == 1)
    if not captures or not rows.size:
        return GraphMap(site, ())
    unmatched = positional = 0
    for members in _by_launch(rows, launch):
        ordered, sure = _node_order(host.trace, event, members)
        capture = _capture_for(host.trace, captures, ordered, launch)
        if capture is None:
            unmatched += 1
            continue
        positional += not sure
        site[ordered] = capture.launches
    return GraphMap(site, _notes(unmatched, positional))


def _by_launch(rows: Longs, launch: Longs) -> list[Longs]:
    order = rows[np.argsort(launch[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(launch[order])) + 1
    return [part.astype(np.int64) for part in np.split(order, bounds)]


def _node_order(trace: Trace, event: Longs, rows: Longs) -> tuple[Longs, bool]:
    """The rows of one replay in the order of capture, and whether that order is certain: by node
    number where recorded, else by start, which is certain on one stream."""
    table = trace.table("graph_nodes")
    at = lookup(table["event"].to_numpy(), event[rows])
    if table.shape[0] and bool((at != NONE).all()):
        node = table["node"].to_numpy()[at] & 0xFFFFFFFF
        return rows[np.argsort(node, kind="stable")], True
    streams = np.unique(trace.events["stream"].to_numpy()[event[rows]])
    order = np.lexsort((event[rows], trace.start_ns[event[rows]]))
    return rows[order], streams.size == 1


def _capture_for(
    trace: Trace, captures: list[Capture], rows: Longs, launch: Longs
) -> Capture | None:
    """The last capture before the replay that has as many nodes; when several do, they must agree
    on what each node was launched for."""
    begin = trace.start_ns[launch[rows[0]]]
    fitting = [c for c in captures if c.launches.size == rows.size and c.end_ns <= begin]
    return fitting[-1] if fitting else None


def _notes(unmatched: int, positional: int) -> tuple[Note, ...]:
    notes = []
    if unmatched:
        text = (
            f"{unmatched} graph replays match no capture in this recording by their number of "
            "nodes: their kernels are attributed by position and name"
        )
        notes.append(Note("trace.graph_without_capture", text, unmatched))
    if positional:
        text = (
            f"{positional} graph replays run on several streams without node numbers: their nodes "
            "are paired with the capture in order of start"
        )
        notes.append(Note("trace.graph_positional", text, positional))
    return tuple(notes)


def captured_rows(captures: list[Capture], size: int) -> NDArray[np.bool_]:
    """Marks the launches of captures: they put nothing on the device when called."""
    marked = np.zeros(size, dtype=bool)
    for capture in captures:
        marked[capture.launches] = True
    return marked
