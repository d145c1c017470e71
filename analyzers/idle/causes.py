"""Why each idle nanosecond was: the causes of the gaps (DESIGN 6).

A gap lies between the end of the last device work and the next work K, launched by L. When L was
done before the gap began, the device waited for itself. When L began after, the host was late, and
each slice of the time until L belongs to whatever the host's thread was doing in it. Thresholds
come from the recording itself. The parts of a gap add up to it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.context import Context
from tracer.analyzers.gaps import CAUSE_CODE, Gaps
from tracer.analyzers.intervals import (
    NONE,
    Longs,
    Rows,
    covered,
    merged_times,
    places_between,
    take,
    union,
)

LAUNCH, SYNC, HOST = (CAUSE_CODE[c] for c in ("launch", "sync", "host"))
INPUT, ALLOCATOR, COMPILE = (CAUSE_CODE[c] for c in ("input", "allocator", "compile"))
GC, GRAPH, DEVICE = (CAUSE_CODE[c] for c in ("gc", "graph_launch", "device"))
PROFILER, UNEXPLAINED = (CAUSE_CODE[c] for c in ("profiler", "unexplained"))

# A graph launch that costs the host more than this many nanoseconds a node, beyond the latency of
# a launch, is slowed by the profiler: unprofiled it is about 50 (90 us for 1,756 nodes), profiled
# 1,200 to 3,600.
_GRAPH_NODE_NS = 60
# An operator is far longer than its like from this many times their median, when it also takes
# this share of a step.
_FAR_LONGER, _SHARE_OF_STEP = 20, 0.01
# From this many samples on a median is taken.
_ENOUGH = 8
# No launch takes longer to reach an idle device than this many launch calls take the host; what
# seems longer waited for work that was not recorded.
_CALLS_A_LATENCY = 20
# The first work of a stream waited behind other work from this share of a step on.
_LONG_WAIT = 0.05
# What is left after a launch call returned still counts as its latency up to this many medians.
_SHORT_REST = 3


@dataclass(frozen=True)
class Learned:
    """Thresholds of one recording, nanoseconds. floor: the gap between back-to-back kernels (99th
    percentile); latency: from a late launch to its kernel; pace: from a launch to the next."""

    floor_ns: int
    latency_ns: int
    pace_ns: int


@dataclass(frozen=True)
class Pieces:
    """Parts of gaps: the piece of idle each came from, its bounds, cause and causing event."""

    source: Rows
    start_ns: Longs
    end_ns: Longs
    cause: NDArray[np.int8]
    event: Rows


def explain_idle(context: Context) -> Gaps:
    """Give each piece of idle its cause."""
    view = GapView(context)
    parts = [
        view.whole(view.unlinked, UNEXPLAINED),
        view.whole(view.device_side, DEVICE),
        *view.host_late(),
    ]
    return _merged(view, parts)


class GapView:
    """The gaps of one recording beside the host's side of them."""

    def __init__(self, context: Context) -> None:
        self.context, self.gaps = context, context.gaps
        work = context.work
        self.trace, self.host = work.trace, work.host
        self.calls = work.calls
        self.launch = take(work.launch, self.gaps.after)
        self.begin, self.finish = self._whole_bounds()
        self.launch_start = self._time_of(self.trace.start_ns)
        self.launch_end = self._time_of(self.trace.end_ns)
        same = take(work.launch, self.gaps.before) == self.launch
        self.in_graph = same & (self.launch != NONE)
        tail = self.gaps.after == NONE
        has_host = bool(work.host.rows.size)
        self.unlinked = ((self.launch == NONE) & ~tail & ~self.early) | (tail & (not has_host))
        linked = ~self.unlinked & ~tail
        self.device_side = linked & (self.early | self.in_graph | (self.launch_end <= self.begin))
        self.late = (linked & ~self.device_side) | (tail & has_host)
        self.learned = self._learn()
        of_event = self.trace.events["thread"].to_numpy()
        launching = of_event[work.launches.launching]
        self.main = int(np.bincount(launching).argmax()) if launching.size else 0
        wall = context.plan.end_ns - context.plan.start_ns
        self.step_ns = float(np.median(wall)) if wall.size else 0.0
        self.is_operator = work.host.of_kind("operator")
        self.is_range = work.host.of_kind("annotation") | work.host.of_kind("module")
        self.outer_operator = work.host.outer_operator
        collections = self.trace.table("collections")
        compiled = self.trace.table("compile_events")
        # Ranges of time whose cause is known whatever the thread shows.
        self.forced = (
            ((compiled["start_ns"].to_numpy(), compiled["end_ns"].to_numpy()), COMPILE),
            (self.calls.overhead_ranges(compiles=True), COMPILE),
            (self.calls.overhead_ranges(compiles=False), PROFILER),
            ((collections["start_ns"].to_numpy(), collections["end_ns"].to_numpy()), GC),
        )

    def next_launch(self, time: Longs) -> Longs:
        """The start of the first launch at or after each time."""
        starts = self.trace.start_ns[self.context.work.launches.launching]
        return np.append(starts, _NEVER)[np.searchsorted(starts, time)]

    @cached_property
    def early(self) -> NDArray[np.bool_]:
        """The next work was launched before the recording, so the host was in time."""
        early: NDArray[np.bool_] = (
            take(self.context.work.orphaned.astype(np.int64), self.gaps.after) == 1
        )
        return early

    @cached_property
    def unrecorded(self) -> NDArray[np.bool_]:
        """What the next work waited for has no rows: it was launched before the recording, or is
        the first of its stream, was launched long before it starts, and no launch takes that long:
        the stream held work that the recording does not."""
        lanes = self.context.lanes
        _, of_stream = np.unique(lanes.stream, return_inverse=True)
        of_lane = of_stream * (int(lanes.device.max(initial=0)) + 2) + lanes.device + 1
        starts = lanes.start_ns
        first_start = np.full(int(of_lane.max(initial=-1)) + 1, _NEVER)
        np.minimum.at(first_start, of_lane, starts)
        opens = (starts == first_start[of_lane]).astype(np.int64)
        waited = self.finish - np.maximum(self.launch_end, self.begin)
        first = (take(opens, self.gaps.after) == 1) & (self.launch != NONE)
        long = max(_CALLS_A_LATENCY * self._call_cost(), _LONG_WAIT * self.step_ns)
        unseen: NDArray[np.bool_] = self.early | (first & ~self.in_graph & (waited > long))
        return unseen

    @cached_property
    def launches_inside(self) -> NDArray[np.bool_]:
        """Host rows that hold a launch."""
        rows, stop = self.host.rows, self.host.forest.stop
        launches = np.append(False, self.context.work.launches.launching[rows])
        before = np.cumsum(launches, dtype=np.int32)
        marked = np.zeros(len(self.trace.events), dtype=bool)
        marked[rows[before[stop] > before[1:]]] = True
        return marked

    @cached_property
    def cause_of_row(self) -> NDArray[np.int8]:
        """What idle means while each host row is the innermost."""
        calls = self.calls
        out = np.full(len(self.trace.events), HOST, dtype=np.int8)
        out[self.is_operator | self.host.of_kind("runtime")] = LAUNCH
        out[calls.module_load] = COMPILE
        out[self.context.work.launches.graph] = GRAPH
        out[self.host.nearest(calls.input) != NONE] = INPUT
        out[self.host.nearest(calls.collecting) != NONE] = GC
        out[calls.allocator] = ALLOCATOR
        out[calls.blocking] = SYNC
        out[self.host.nearest(calls.compiling) != NONE] = COMPILE
        return out

    def _whole_bounds(self) -> tuple[Longs, Longs]:
        """Start and end of the whole gap that each piece is part of."""
        size = int(self.gaps.gap.max()) + 1 if self.gaps.gap.size else 0
        start = np.full(size, np.iinfo(np.int64).max)
        end = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(start, self.gaps.gap, self.gaps.start_ns)
        np.maximum.at(end, self.gaps.gap, self.gaps.end_ns)
        return start[self.gaps.gap], end[self.gaps.gap]

    def _time_of(self, times: Longs) -> Longs:
        """Of the launch; of the end of the gap where nothing was launched after it."""
        return np.where(self.launch == NONE, self.finish, times[np.maximum(self.launch, 0)])

    def _learn(self) -> Learned:
        launches = self.context.work.launches
        length = self.finish - self.begin
        back_to_back = length[self.device_side & ~self.in_graph]
        graph = take(launches.graph.astype(np.int64), self.launch) == 1
        first = self.late & ~graph & (self.launch != NONE) & (self.launch_start > self.begin)
        latency = (self.finish - self.launch_start)[first]
        return Learned(
            int(np.percentile(back_to_back, 99)) if back_to_back.size >= 30 else 0,
            min(
                int(np.median(latency)) if latency.size >= _ENOUGH else self._least_delay(),
                _CALLS_A_LATENCY * self._call_cost(),
            ),
            self._pace(),
        )

    def _call_cost(self) -> int:
        """Median time that a launch holds the host."""
        launches = self.context.work.launches
        rows = np.flatnonzero(launches.launching & ~launches.graph)
        cost = self.trace.end_ns[rows] - self.trace.start_ns[rows]
        return int(np.median(cost)) if cost.size else 0

    def _least_delay(self) -> int:
        """With few late launches: the shortest time from any launch to its work."""
        work = self.context.work
        linked = take(work.launches.graph.astype(np.int64), work.launch) == 0
        delay = self.trace.start_ns[work.event[linked]] - self.trace.start_ns[work.launch[linked]]
        return int(delay[delay > 0].min()) if (delay > 0).any() else 0

    def _pace(self) -> int:
        """95th percentile of the time from one launch to the next on a thread and in a step,
        without a wait in between, where it is not far above the usual; 0 when there are none."""
        rows = np.flatnonzero(self.context.work.launches.launching)
        thread = self.trace.events["thread"].to_numpy()[rows]
        order = np.argsort(thread, kind="stable")
        rows, thread = rows[order], thread[order]
        if rows.size < 2:
            return 0
        waits = np.sort(self.trace.start_ns[self.calls.blocking])
        before, after = self.trace.end_ns[rows[:-1]], self.trace.start_ns[rows[1:]]
        waited = np.searchsorted(waits, before) != np.searchsorted(waits, after)
        usable = (thread[1:] == thread[:-1]) & ~waited & (after >= before)
        if self.context.plan.found:
            begins = [step.start_ns for step in self.context.plan.host]
            usable &= np.searchsorted(begins, before, "right") == np.searchsorted(
                begins, after, "right"
            )
        if not usable.any():
            return 0
        usual, slow = np.percentile((after - before)[usable], (50, 95))
        return int(min(slow, _FAR_LONGER * usual))

    def whole(self, chosen: NDArray[np.bool_], cause: int) -> Pieces:
        """These pieces as they are, with one cause."""
        source = _rows_of(chosen)
        return Pieces(
            source,
            self.gaps.start_ns[source],
            self.gaps.end_ns[source],
            np.full(source.size, cause, dtype=np.int8),
            self.launch[source],
        )

    def host_late(self) -> list[Pieces]:
        """Pieces before a launch that came late: what the thread did until it, then the call."""
        source = _rows_of(self.late)
        start, end = self.gaps.start_ns[source], self.gaps.end_ns[source]
        split = np.clip(self.launch_start[source], start, end)
        waiting = _bounded(source, start, split)
        calling = _bounded(source, split, end)
        return [*self._by_owner(waiting), *self._in_call(calling)]

    def _in_call(self, piece: Pieces) -> list[Pieces]:
        """From the start of the launch call on: up to its usual latency the launch, then whatever
        the call did, and once it is over, unless the rest is short, the device itself."""
        launch = self.launch[piece.source]
        graph = take(self.context.work.launches.graph.astype(np.int64), launch) == 1
        latency = self.learned.latency_ns
        usual = latency + np.where(graph, self._nodes(launch) * _GRAPH_NODE_NS, 0)
        begin = np.maximum(self.launch_start[piece.source], self.begin[piece.source])
        split = np.clip(begin + usual, piece.start_ns, piece.end_ns)
        over = np.clip(self.launch_end[piece.source], split, piece.end_ns)
        soon = self.finish[piece.source] - over <= _SHORT_REST * latency
        first = np.where(graph, GRAPH, LAUNCH).astype(np.int8)
        head = replace(piece, end_ns=split, cause=first, event=launch)
        during = np.where(graph, PROFILER, LAUNCH).astype(np.int8)
        call = replace(piece, start_ns=split, end_ns=over, cause=during, event=launch)
        rest = np.where(soon, first, DEVICE).astype(np.int8)
        after = replace(piece, start_ns=over, cause=rest, event=launch)
        return [_lasting(head), self._loading(_lasting(call)), _lasting(after)]

    def _nodes(self, launch: Longs) -> Longs:
        """Device rows of each launch."""
        launched = self.context.work.launch
        count = np.bincount(
            np.maximum(launched[launched != NONE], 0), minlength=len(self.trace.events)
        )
        return np.where(launch == NONE, 0, count[np.maximum(launch, 0)])

    def _loading(self, piece: Pieces) -> Pieces:
        """A call that outlasts its usual latency while the driver loads code is compilation."""
        loads = union(*self.calls.overhead_ranges(compiles=True))
        loaded = covered(piece.start_ns, piece.end_ns, *loads) * 2 > piece.end_ns - piece.start_ns
        profiled = union(*self.calls.overhead_ranges(compiles=False))
        flushed = (
            covered(piece.start_ns, piece.end_ns, *profiled) * 2 > piece.end_ns - piece.start_ns
        )
        cause = np.where(flushed, PROFILER, np.where(loaded, COMPILE, piece.cause))
        return replace(piece, cause=cause.astype(np.int8))

    def _by_owner(self, piece: Pieces) -> list[Pieces]:
        """Cut each piece where the innermost host row of its thread changes, and name the cause
        of each part by that row."""
        threads = self._threads(piece.source)
        return [
            self._of_thread(_chosen(piece, threads == thread), thread)
            for thread in np.unique(threads).tolist()
        ]

    def _threads(self, source: Rows) -> NDArray[np.int32]:
        """The thread whose lateness each piece waited for: of its launch, else of its step, else
        the one that launched most."""
        thread = take(self.trace.events["thread"].to_numpy(), self.launch[source])
        of_step = np.array([s.thread for s in self.context.plan.host], dtype=np.int32)
        thread = np.where(thread == NONE, take(of_step, self.gaps.step[source]), thread)
        return np.where(thread == NONE, self.main, thread)

    def _of_thread(self, piece: Pieces, thread: int) -> Pieces:
        segments = Segments.of(self, thread)
        first = np.searchsorted(segments.start_ns, piece.start_ns, side="right") - 1
        last = np.searchsorted(segments.start_ns, piece.end_ns, side="left")
        place, row = places_between(first, last)
        source, cause = piece.source[row], segments.cause[place]
        return Pieces(
            source,
            np.maximum(segments.start_ns[place], piece.start_ns[row]),
            np.minimum(segments.end_ns(place), piece.end_ns[row]),
            cause,
            np.where(cause == LAUNCH, self.launch[source], segments.event[place]),
        )


@dataclass
class Segments:
    """The time of one host thread, cut where the innermost row changes, with what each part means
    for a device that waits. The first begins before everything, the last never ends.

    They are by far the most rows of an analysis, so each column is replaced as it changes."""

    start_ns: Longs
    event: Rows  # the innermost row; -1 for none
    cause: NDArray[np.int8]

    @staticmethod
    def of(view: GapView, thread: int) -> Segments:
        segments = _timeline(view, thread)
        if thread != view.main:
            segments.fill_from(_timeline(view, view.main))
        drained = _drain(view, segments, thread)
        segments.cause = _causes(view, segments)
        segments.cause[drained] = SYNC
        segments.join_alike()
        for ranges, forced in view.forced:
            segments.force(ranges, forced)
        return segments

    def end_ns(self, places: Rows) -> Longs:
        """Where these end."""
        last = self.start_ns.size - 1
        ends: Longs = self.start_ns.take(np.minimum(places + 1, last))
        ends[places == last] = _NEVER
        return ends

    def fill_from(self, other: Segments) -> None:
        """Where this thread does nothing, what the other does: the one waits for the other."""
        times = merged_times(self.start_ns, other.start_ns)
        mine = self.event[np.searchsorted(self.start_ns, times, side="right") - 1]
        theirs = other.event[np.searchsorted(other.start_ns, times, side="right") - 1]
        self.start_ns, self.event = times, np.where(mine == NONE, theirs, mine)
        self.cause = np.full(times.size, HOST, dtype=np.int8)

    def cut_at(self, times: Longs) -> None:
        """Also cut at these few times."""
        at = np.searchsorted(self.start_ns, times, side="right")
        new = self.start_ns[at - 1] != times
        if new.any():
            at, times = at[new], times[new]
            self.event = np.insert(self.event, at, self.event[at - 1])
            self.cause = np.insert(self.cause, at, self.cause[at - 1])
            self.start_ns = np.insert(self.start_ns, at, times)

    def join_alike(self) -> None:
        """Neighbours of one cause and event joined. Which operator dispatched does not matter: what
        comes of it is the next launch."""
        self.event = np.where(self.cause == LAUNCH, NONE, self.event)
        new = np.ones(self.event.size, dtype=bool)
        new[1:] = (self.cause[1:] != self.cause[:-1]) | (self.event[1:] != self.event[:-1])
        self.event, self.cause = self.event[new], self.cause[new]
        self.start_ns = self.start_ns[new]

    def force(self, ranges: tuple[Longs, Longs], cause: int) -> None:
        """Inside these ranges of time this is the cause, whatever the thread says."""
        begin, stop = union(*ranges)
        self.cut_at(merged_times(begin, stop))
        inside, _ = places_between(*np.searchsorted(self.start_ns, [begin, stop]))
        self.cause[inside] = cause


_NEVER = np.iinfo(np.int64).max


def _timeline(view: GapView, thread: int) -> Segments:
    """Times at which the innermost row of a thread changes, and the row from there on."""
    places = view.host.places_of(thread)
    time, owner = _walked(view, places)
    if (time[1:] < time[:-1]).any():  # rows that overlap and do not nest
        time, owner = _in_turn(view, places)
    last = np.append(time[1:] != time[:-1], True)
    owner = owner[last]
    return Segments(time[last], owner, np.full(owner.size, HOST, dtype=np.int8))


def _walked(view: GapView, places: slice) -> tuple[Longs, Rows]:
    """A walk down the trees enters and leaves each row that lasts: where in the walk follows from
    what it passed before."""
    host, trace = view.host, view.trace
    rows = host.rows[places]
    lasts = trace.end_ns[rows] > trace.start_ns[rows]
    passed = np.cumsum(np.append(False, lasts), dtype=np.int32)
    rows, depth = rows[lasts], host.forest.depth[places][lasts]
    time = np.full(2 * rows.size + 1, np.iinfo(np.int64).min)
    owner = np.full(time.size, NONE, dtype=np.int32)
    enters = 2 * np.arange(rows.size, dtype=np.int32) + 1 - depth
    time[enters], owner[enters] = trace.start_ns[rows], rows
    leaves = 2 * passed[host.forest.stop[places][lasts] - places.start] - depth
    time[leaves] = trace.end_ns[rows]
    owner[leaves] = take(host.rows, host.forest.parent[places][lasts])
    return time, owner


def _in_turn(view: GapView, places: slice) -> tuple[Longs, Rows]:
    """The same by time: at one time the ends come first, the inner before the outer, then the
    starts, the outer first."""
    host, trace = view.host, view.trace
    rows, depth = host.rows[places], host.forest.depth[places]
    lasts = trace.end_ns[rows] > trace.start_ns[rows]
    rows, depth = rows[lasts], depth[lasts]
    ends = np.lexsort((-depth, trace.end_ns[rows]))
    before = np.iinfo(np.int64).min
    time = np.concatenate([[before], trace.end_ns[rows[ends]], trace.start_ns[rows]])
    owner = np.concatenate([np.array([NONE], np.int32), host.parent[rows[ends]], rows])
    order = np.argsort(time, kind="stable")
    return time[order], owner[order]


def _drain(view: GapView, segments: Segments, thread: int) -> Longs:
    """The segments that a wait is to blame for. After it the queue is empty: up to the usual pace
    of launches, and where nothing else is recorded up to the time it held the host, which that much
    would have run ahead without it. The blame ends at the next launch."""
    trace, pace = view.trace, view.learned.pace_ns
    waits = np.flatnonzero(view.calls.blocking & (trace.events["thread"].to_numpy() == thread))
    if not waits.size:
        return waits
    waits = waits[np.argsort(trace.end_ns[waits], kind="stable")]
    begin = trace.end_ns[waits]
    limit = np.minimum(view.next_launch(begin), np.append(begin[1:], _NEVER))
    stop = np.minimum(begin + pace, np.maximum(limit, begin))
    held = np.where(limit == _NEVER, 0, trace.end_ns[waits] - trace.start_ns[waits])
    far = np.minimum(begin + np.maximum(held, pace), np.maximum(limit, begin))
    segments.cut_at(merged_times(begin, stop, far))
    place, wait = places_between(*np.searchsorted(segments.start_ns, [begin, far]))
    owner = segments.event[place]
    blamed = (owner == NONE) | view.is_range[owner] | (segments.start_ns[place] < stop[wait])
    drained: Longs = place[blamed]
    segments.event[drained] = waits[wait[blamed]]
    return drained


def _causes(view: GapView, segments: Segments) -> NDArray[np.int8]:
    """What each segment means by the row that is innermost in it."""
    owner = segments.event
    length = np.diff(segments.start_ns, append=segments.start_ns[-1:])
    length[0] = 0
    cause = view.cause_of_row.take(owner)
    # Without operators in the recording a thread that only launches is dispatching in between.
    paced = (not view.is_operator.any()) & (length <= view.learned.pace_ns)
    silent = owner == NONE
    cause[silent] = np.where(paced, np.int8(LAUNCH), np.int8(HOST))[silent]
    dispatching = cause == LAUNCH
    for long, other in (
        (_library_work(view, length, owner), COMPILE),
        (_host_operators(view, length, owner), HOST),
    ):
        cause[long[dispatching[long]]] = other
    return cause


def _library_work(view: GapView, length: Longs, owner: Rows) -> Longs:
    """Stretches of an operator without a call inside that are far longer than those of its like,
    or, when it has no like, than those of operators at all; it must launch something after."""
    long = _longer(length, owner, _SHARE_OF_STEP * view.step_ns)
    long = long[view.is_operator[owner[long]] & view.launches_inside[owner[long]]]
    if not long.size:
        return long
    overall = _overall_stretch(view, length, owner)
    name = np.where(owner == NONE, NONE, view.trace.name_codes.take(owner))
    least = {}
    for code in set(name[long].tolist()):
        mine = np.flatnonzero(name == code)
        longest = _longest_of_each(length[mine], owner[mine])
        usual = float(np.median(longest)) if longest.size > 1 else overall
        least[code] = _FAR_LONGER * max(usual, overall / 4)
    return long[length[long] > np.array([least[code] for code in name[long].tolist()])]


def _longest_of_each(length: Longs, owner: Rows) -> Longs:
    rows, place = np.unique(owner, return_inverse=True)
    longest = np.zeros(rows.size, dtype=np.int64)
    np.maximum.at(longest, place, length)
    return longest


def _longer(length: Longs, owner: Rows, least: float) -> Longs:
    """Segments of host rows that take longer than that."""
    long = np.flatnonzero(length > least)
    found: Longs = long[owner[long] != NONE]
    return found


def _overall_stretch(view: GapView, length: Longs, owner: Rows) -> float:
    """Median of all stretches of operators without a call inside."""
    stretches = length[(owner != NONE) & view.is_operator.take(owner)]
    return float(np.median(stretches, overwrite_input=True)) if stretches.size else 0.0


def _host_operators(view: GapView, length: Longs, owner: Rows) -> Longs:
    """Operators that put nothing on a device and take long themselves: work of the host."""
    long = _longer(length, owner, _SHARE_OF_STEP * view.step_ns / 4)
    long = long[view.is_operator[owner[long]]]
    idle: Longs = long[~view.launches_inside[view.outer_operator[owner[long]]]]
    return idle


def _rows_of(chosen: NDArray[np.bool_]) -> Rows:
    return np.flatnonzero(chosen).astype(np.int32)


def _bounded(source: Rows, start: Longs, end: Longs) -> Pieces:
    keep = end > start
    size = int(keep.sum())
    return Pieces(
        source[keep],
        start[keep],
        end[keep],
        np.full(size, UNEXPLAINED, dtype=np.int8),
        np.full(size, NONE, dtype=np.int32),
    )


def _lasting(piece: Pieces) -> Pieces:
    return _chosen(piece, piece.end_ns > piece.start_ns)


def _chosen(piece: Pieces, keep: NDArray[np.bool_]) -> Pieces:
    if keep.all():
        return piece
    return Pieces(
        piece.source[keep],
        piece.start_ns[keep],
        piece.end_ns[keep],
        piece.cause[keep],
        piece.event[keep],
    )


def _merged(view: GapView, parts: list[Pieces]) -> Gaps:
    """The pieces in order, neighbours of one cause and event joined."""
    gaps = view.gaps

    def joined(column: str) -> Any:
        return np.concatenate([getattr(part, column) for part in parts])

    start, source = joined("start_ns"), joined("source")
    order = np.argsort(start, kind="stable")  # which merges parts that are in order
    if gaps.device.size and gaps.device[0] != gaps.device[-1]:
        order = order[np.argsort(gaps.device[source[order]], kind="stable")]
    source, cause, event = source[order], joined("cause")[order], joined("event")[order]
    new = np.ones(source.size, dtype=bool)
    new[1:] = (source[1:] != source[:-1]) | (cause[1:] != cause[:-1]) | (event[1:] != event[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:] - 1, source.size - 1) if source.size else first
    kept = source[first]
    return Gaps(
        gaps.device[kept],
        start[order[first]],
        joined("end_ns")[order[last]],
        gaps.step[kept],
        gaps.before[kept],
        gaps.after[kept],
        cause[first],
        gaps.gap[kept],
        event[first],
        view.unrecorded[kept] & (cause[first] == DEVICE),
        view.learned.pace_ns,
    )
