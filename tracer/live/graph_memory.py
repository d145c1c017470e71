"""Maps of captured graphs that this process remembers: a graph captured under one trace is
understood when a later trace sees it replayed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.events import SIDE_TABLES, Trace, make_table
from tracer.live.notes import failed

if TYPE_CHECKING:
    import pandas as pd

ORIGIN = "an earlier trace of this process"
# Captures are small, but a server may capture one graph for each batch size, again and again.
MOST_NODES = 500_000

_log = logging.getLogger("tracer")
_lock = threading.RLock()
_maps: list[Mapping[str, pd.DataFrame]] = []
_unread: list[Callable[[], object]] = []


def expect(read: Callable[[], object]) -> None:
    """A trace that saw captures has ended: `read` makes it, and so remembers its graphs."""
    with _lock:
        _unread.append(read)


def settle(read: Callable[[], object] | None = None) -> None:
    """Read what still waits, or take `read` from the list because it is being read now."""
    with _lock:
        waiting = [known for known in _unread if read is None or known == read]
        _unread[:] = [known for known in _unread if known not in waiting]
    for one in waiting if read is None else ():
        try:
            one()
        except Exception as error:  # the border to the traced program: its next trace begins anyway
            _log.warning("tracer: the graphs of an earlier trace are not known: %s", error)


def with_graphs(trace: Trace, annotations: Mapping[int, str]) -> Trace:
    """The trace with all that is known of its graphs. What fails there loses nothing else."""
    try:
        return with_known_graphs(with_annotations(trace, annotations))
    except Exception as error:  # the recording is worth more than the maps
        note = failed("the maps of captured graphs", error)
        return replace(trace, notes=(*trace.notes, note))


def with_known_graphs(trace: Trace) -> Trace:
    """The trace with the maps of its own captures, which are remembered, and with those
    remembered before where it replays graphs."""
    captures = _has_call(trace, "StreamBeginCapture")
    known = list(_maps) if _has_call(trace, "GraphLaunch") else []
    if not captures and not known:
        return trace
    from tracer.analyzers.graphs.maps import map_captures, with_maps

    if known:
        trace = with_maps(trace, [(ORIGIN, tables) for tables in known])
    if not captures:
        return trace
    own = map_captures(trace)
    _remember(own)
    return with_maps(trace, [("", own)]) if own else trace


def _has_call(trace: Trace, word: str) -> bool:
    return bool(trace.names_matching(lambda name: word in name).any())


def _remember(tables: Mapping[str, pd.DataFrame]) -> None:
    with _lock:
        if tables:
            _maps.append(tables)
        while len(_maps) > 1 and sum(len(t["captured_nodes"]) for t in _maps) > MOST_NODES:
            _maps.pop(0)


def forget() -> None:
    """Remember nothing."""
    with _lock:
        _maps.clear()
        _unread.clear()


def with_annotations(trace: Trace, annotations: Mapping[int, str]) -> Trace:
    """The trace with what torch's marks say of nodes of graphs that it holds."""
    nodes = trace.table("graph_nodes")
    said = nodes[nodes["node"].isin(list(annotations))]
    if not len(said):
        return trace
    values: dict[str, Any] = {
        "event": said["event"].to_numpy(),
        "annotation": np.array([annotations[n] for n in said["node"].tolist()], dtype=object),
    }
    table = make_table(SIDE_TABLES["graph_annotations"], values)
    return replace(trace, tables={**trace.tables, "graph_annotations": table})
