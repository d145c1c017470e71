"""Why each idle nanosecond was: the causes of the gaps (DESIGN 6).

A gap lies between the end of the last device work and the next work K, launched by L. When L was
done before the gap began, the device waited for itself. When L began after, the host was late, and
each slice of the time until L belongs to whatever the host's thread was doing in it. Thresholds
come from the recording itself. The parts of a gap add up to it exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.context import Context
from tracer.analyzers.gaps import (
    COMPILE,
    DEVICE,
    GRAPH,
    HOST,
    LAUNCH,
    PROFILER,
    UNEXPLAINED,
    Gaps,
)
from tracer.analyzers.idle.gap_view import GapView
from tracer.analyzers.idle.host_side import HostSide
from tracer.analyzers.idle.owners import thread_segments
from tracer.analyzers.idle.pieces import Pieces, bounded, chosen, joined, lasting, merged
from tracer.analyzers.intervals import NONE, Longs, Rows, covered, places_between, take, union

# A graph launch that costs the host more than this many nanoseconds a node, beyond the latency of
# a launch, is slowed by the profiler: unprofiled it is about 50 (90 us for 1,756 nodes), profiled
# 1,200 to 3,600.
_GRAPH_NODE_NS = 60
# What is left after a launch call returned still counts as its latency up to this many medians.
_SHORT_REST = 3


def explain_idle(context: Context) -> Gaps:
    """Give each piece of idle its cause."""
    return merged(context.gaps, *_explained(context))


def _explained(context: Context) -> tuple[Pieces, NDArray[np.bool_], int]:
    """The pieces of all gaps, of which gaps the recording lacks what they waited for, and the usual
    pace of launches."""
    view = GapView(context)
    side = HostSide(view)
    parts = [
        _whole(view, view.unlinked, UNEXPLAINED),
        _whole(view, view.device_side, DEVICE),
        *_host_late(view, side),
    ]
    return joined(parts), view.unrecorded, side.pace_ns


def _whole(view: GapView, these: NDArray[np.bool_], cause: int) -> Pieces:
    """These pieces as they are, with one cause."""
    source = _rows_of(these)
    return Pieces(
        source,
        view.gaps.start_ns[source],
        view.gaps.end_ns[source],
        np.full(source.size, cause, dtype=np.int8),
        view.launch[source],
    )


def _rows_of(these: NDArray[np.bool_]) -> Rows:
    return np.flatnonzero(these).astype(np.int32)


def _host_late(view: GapView, side: HostSide) -> list[Pieces]:
    """Pieces before a launch that came late: what the thread did until it, then the call."""
    waited = _by_owner(view, side, _before_launch(view))
    if view.context.work.calls_missing or view.context.work.kernels_missing:
        waited = [_without_pace(piece) for piece in waited]
    return [*waited, *_in_call(view, side, _from_launch(view))]


def _without_pace(piece: Pieces) -> Pieces:
    """Where calls are missing nobody knows whether the host launched or did something else."""
    untold = (piece.cause == LAUNCH) | (piece.cause == HOST)
    cause = np.where(untold, UNEXPLAINED, piece.cause).astype(np.int8)
    return replace(piece, cause=cause, event=np.where(untold, NONE, piece.event).astype(np.int32))


def _before_launch(view: GapView) -> Pieces:
    source, split = _at_launch(view)
    return bounded(source, view.gaps.start_ns[source], split)


def _from_launch(view: GapView) -> Pieces:
    source, split = _at_launch(view)
    return bounded(source, split, view.gaps.end_ns[source])


def _at_launch(view: GapView) -> tuple[Rows, Longs]:
    """The late pieces, and when in each the launch began."""
    source = _rows_of(view.late)
    start, end = view.gaps.start_ns[source], view.gaps.end_ns[source]
    return source, np.clip(view.launch_start[source], start, end)


def _in_call(view: GapView, side: HostSide, piece: Pieces) -> list[Pieces]:
    """From the start of the launch call on: up to its usual latency the launch, then whatever the
    call did, and once it is over, unless the rest is short, the device itself."""
    launch, graph = view.launch[piece.source], view.by_graph[piece.source]
    latency = view.latency_ns
    usual = latency + np.where(graph, _nodes(view, launch) * _GRAPH_NODE_NS, 0)
    begin = np.maximum(view.launch_start[piece.source], view.begin[piece.source])
    split = np.clip(begin + usual, piece.start_ns, piece.end_ns)
    over = np.clip(view.launch_end[piece.source], split, piece.end_ns)
    soon = view.finish[piece.source] - over <= _SHORT_REST * latency
    first = np.where(graph, GRAPH, LAUNCH).astype(np.int8)
    head = replace(piece, end_ns=split, cause=first, event=launch)
    during = np.where(graph, PROFILER, LAUNCH).astype(np.int8)
    call = replace(piece, start_ns=split, end_ns=over, cause=during, event=launch)
    rest = np.where(soon, first, DEVICE).astype(np.int8)
    after = replace(piece, start_ns=over, cause=rest, event=launch)
    return [lasting(head), _loading(side, lasting(call)), lasting(after)]


def _nodes(view: GapView, launch: Longs) -> Longs:
    """Device rows of each launch."""
    launched = view.context.work.launch
    rows = len(view.context.work.trace.events)
    count = np.bincount(np.maximum(launched[launched != NONE], 0), minlength=rows)
    return np.where(launch == NONE, 0, count[np.maximum(launch, 0)])


def _loading(side: HostSide, piece: Pieces) -> Pieces:
    """A call that outlasts its usual latency while the driver loads code is compilation, and while
    the profiler writes its own."""
    loaded = _mostly_in(piece, side.calls.overhead_ranges(compiles=True))
    flushed = _mostly_in(piece, side.calls.overhead_ranges(compiles=False))
    cause = np.where(flushed, PROFILER, np.where(loaded, COMPILE, piece.cause))
    return replace(piece, cause=cause.astype(np.int8))


def _mostly_in(piece: Pieces, ranges: tuple[Longs, Longs]) -> NDArray[np.bool_]:
    """Pieces of which these ranges of time cover more than half."""
    inside = covered(piece.start_ns, piece.end_ns, *union(*ranges))
    mostly: NDArray[np.bool_] = inside * 2 > piece.end_ns - piece.start_ns
    return mostly


def _by_owner(view: GapView, side: HostSide, piece: Pieces) -> list[Pieces]:
    """Cut each piece where the innermost host row of its thread changes, and name the cause of each
    part by that row."""
    threads = _threads(view, side, piece.source)
    return [
        _of_thread(view, side, chosen(piece, threads == thread), thread)
        for thread in np.unique(threads).tolist()
    ]


def _threads(view: GapView, side: HostSide, source: Rows) -> NDArray[np.int32]:
    """The thread whose lateness each piece waited for: of its launch, else of its step, else the
    one that launched most."""
    thread = take(side.trace.events["thread"].to_numpy(), view.launch[source])
    of_step = np.array([s.thread for s in view.context.plan.host], dtype=np.int32)
    thread = np.where(thread == NONE, take(of_step, view.gaps.step[source]), thread)
    return np.where(thread == NONE, side.main, thread)


def _of_thread(view: GapView, side: HostSide, piece: Pieces, thread: int) -> Pieces:
    segments = thread_segments(side, thread)
    first = np.searchsorted(segments.start_ns, piece.start_ns, side="right") - 1
    last = np.searchsorted(segments.start_ns, piece.end_ns, side="left")
    place, row = places_between(first, last)
    source, cause = piece.source[row], segments.cause[place]
    return Pieces(
        source,
        np.maximum(segments.start_ns[place], piece.start_ns[row]),
        np.minimum(segments.end_ns(place), piece.end_ns[row]),
        cause,
        np.where(cause == LAUNCH, view.launch[source], segments.event[place]),
    )
