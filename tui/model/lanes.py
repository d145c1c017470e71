"""The recording as lanes of a timeline: streams, idle by cause, copies, collectives, threads.

Built once for a recording. Everything is ordered by time, so that any stretch of it is found by
binary search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, GROUPS, WORK_CLASSES, Analysis
from tracer.analyzers.facts.host import Host, is_launch, read_host
from tracer.analyzers.intervals import NONE, Longs
from tracer.events import KIND_CODE, Trace
from tracer.tui.model.coverage import Coverage, coverage_of
from tracer.tui.model.other_ranks import OtherRank
from tracer.tui.model.spans import Spans, spans_of

# Threads beyond these, by what they launch and run, are named and not drawn.
MOST_THREADS = 8
MODULE_FRAME = "nn.Module: "
_GROUP_OF_BUCKET = np.array([GROUPS.index(group) for group, _ in BUCKETS], dtype=np.int8)


@dataclass(frozen=True)
class Pieces:
    """Rows of a table that lie in time, ordered by start. `reach_ns`: latest end so far."""

    rows: Longs
    start_ns: Longs
    end_ns: Longs

    @cached_property
    def reach_ns(self) -> Longs:
        return np.maximum.accumulate(self.end_ns) if self.end_ns.size else self.end_ns

    def overlapping(self, start_ns: int, end_ns: int) -> NDArray[np.int64]:
        """Positions of the pieces that share time with a stretch."""
        last = int(np.searchsorted(self.start_ns, end_ns))
        first = int(np.searchsorted(self.reach_ns, start_ns, side="right"))
        found = np.arange(first, last)
        return found[self.end_ns[first:last] > start_ns]

    def next_after(self, time_ns: int) -> int:
        """Position of the first that begins after a moment; -1 if none does."""
        at = int(np.searchsorted(self.start_ns, time_ns, side="right"))
        return at if at < self.rows.size else NONE

    def last_before(self, time_ns: int) -> int:
        """Position of the last that begins before a moment; -1 if none does."""
        return int(np.searchsorted(self.start_ns, time_ns)) - 1


def pieces_of(rows: Longs, start_ns: Longs, end_ns: Longs) -> Pieces:
    """Order rows by start."""
    order = np.argsort(start_ns, kind="stable")
    return Pieces(rows[order], start_ns[order], end_ns[order])


@dataclass(frozen=True)
class StreamLane:
    """The work of one stream; `groups` aligned with GROUPS."""

    device: int
    stream: int
    busy: Coverage
    groups: tuple[Coverage, ...]
    pieces: Pieces


@dataclass(frozen=True)
class IdleLane:
    """Idle of one device by cause; the whole gaps in `pieces` are rows of `WholeGaps`."""

    device: int
    causes: tuple[str, ...]
    coverages: tuple[Coverage, ...]
    pieces: Pieces


@dataclass(frozen=True)
class WholeGaps:
    """Gaps with their pieces joined. `first`, `last`: their rows in `gaps`."""

    first: Longs
    last: Longs
    start_ns: Longs
    end_ns: Longs
    device: Longs
    largest_piece: Longs  # the row of `gaps` that is the longest piece

    @cached_property
    def lengths_ns(self) -> Longs:
        return self.end_ns - self.start_ns

    @cached_property
    def ordered_lengths_ns(self) -> Longs:
        return np.sort(self.lengths_ns)

    def longer_than(self, length_ns: int) -> int:
        """How many gaps are longer."""
        at = int(np.searchsorted(self.ordered_lengths_ns, length_ns, side="right"))
        return int(self.ordered_lengths_ns.size) - at

    def of_piece(self, row: int) -> int:
        """The whole gap that a row of `gaps` is a piece of."""
        return int(np.searchsorted(self.first, row, side="right")) - 1


@dataclass(frozen=True)
class ThreadLanes:
    """What one host thread did. `calls`: launching runtime calls."""

    thread: int
    name: str
    ranges: Spans
    modules: Spans
    operators: Spans
    calls: Pieces
    call_coverage: Coverage


@dataclass(frozen=True)
class Lanes:
    """All lanes of a recording."""

    analysis: Analysis
    host: Host
    streams: tuple[StreamLane, ...]
    idle: Mapping[int, IdleLane]
    gaps: WholeGaps
    copies: Pieces
    copy_coverage: Coverage
    collectives: Pieces
    collective_coverage: Coverage
    exposed: Coverage
    threads: tuple[ThreadLanes, ...]
    work_start_ns: Longs
    work_end_ns: Longs
    work_of_event: Longs  # event -> row of `work`; -1
    others: tuple[OtherRank, ...] = ()

    @property
    def trace(self) -> Trace:
        return self.analysis.trace

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """First and last moment of anything recorded, or of the window."""
        window = self.analysis.window
        starts = [window.start_ns, *self.work_start_ns[:1].tolist()]
        ends = [window.end_ns, int(self.work_end_ns.max(initial=window.end_ns))]
        starts += [int(t.operators.start_ns[0]) for t in self.threads if len(t.operators)]
        return min(starts), max(max(ends), min(starts) + 1)

    @cached_property
    def launches_by_event(self) -> tuple[Longs, Longs]:
        """Launch events in order, and the rows of `work` they launched."""
        launch = self.analysis.work["launch"].to_numpy()
        order = np.argsort(launch, kind="stable")
        return launch[order], order

    def launched_by(self, event: int) -> Longs:
        """Rows of `work` that a runtime call launched, in order."""
        events, rows = self.launches_by_event
        first, last = np.searchsorted(events, [event, event + 1])
        return np.sort(rows[first:last])

    def name(self, event: int) -> str:
        return self.trace.names[int(self.trace.name_codes[event])]


def build_lanes(analysis: Analysis) -> Lanes:
    """Everything a timeline needs of an analysis."""
    trace, work = analysis.trace, analysis.work
    events = work["event"].to_numpy()
    start, end = trace.start_ns[events], trace.end_ns[events]
    gaps = _whole_gaps(analysis)
    classes = np.asarray(work["work_class"].cat.set_categories(list(WORK_CLASSES)).cat.codes)
    copying = classes == WORK_CLASSES.index("transfer")
    communicating = classes == WORK_CLASSES.index("collective")
    work_of_event = np.full(len(trace.events), NONE, dtype=np.int64)
    work_of_event[events] = np.arange(events.size)
    exposed_slices = _slices_of(analysis, communicating)
    return Lanes(
        analysis,
        read_host(trace),
        _streams(analysis, start, end),
        _idle(analysis, gaps),
        gaps,
        _pieces(np.flatnonzero(copying), start, end),
        coverage_of(start[copying], end[copying]),
        _pieces(np.flatnonzero(communicating), start, end),
        coverage_of(start[communicating], end[communicating]),
        coverage_of(*exposed_slices),
        _threads(analysis),
        start,
        end,
        work_of_event,
    )


def _pieces(rows: Longs, start: Longs, end: Longs) -> Pieces:
    return pieces_of(rows, start[rows], end[rows])


def _slices_of(analysis: Analysis, wanted: NDArray[np.bool_]) -> tuple[Longs, Longs]:
    slices = analysis.slices
    work = slices["work"].to_numpy()
    chosen = np.zeros(work.size, dtype=bool)
    if wanted.size:
        chosen = (work != NONE) & wanted[np.maximum(work, 0)]
    return slices["start_ns"].to_numpy()[chosen], slices["end_ns"].to_numpy()[chosen]


def _streams(analysis: Analysis, start: Longs, end: Longs) -> tuple[StreamLane, ...]:
    work = analysis.work
    events = work["event"].to_numpy()
    device = work["device"].to_numpy().astype(np.int64)
    stream = analysis.trace.events["stream"].to_numpy()[events]
    group = _GROUP_OF_BUCKET[work["bucket"].to_numpy()]
    keys = np.unique(np.stack([device, stream], axis=1), axis=0) if events.size else []
    lanes: list[StreamLane] = []
    for one_device, one_stream in np.asarray(keys, dtype=np.int64).reshape(-1, 2).tolist():
        rows = np.flatnonzero((device == one_device) & (stream == one_stream))
        by_group = [rows[group[rows] == code] for code in range(len(GROUPS))]
        lanes.append(
            StreamLane(
                one_device,
                one_stream,
                coverage_of(start[rows], end[rows]),
                tuple(coverage_of(start[some], end[some]) for some in by_group),
                _pieces(rows, start, end),
            )
        )
    return tuple(lanes)


def _whole_gaps(analysis: Analysis) -> WholeGaps:
    gaps = analysis.gaps
    number = gaps["gap"].to_numpy()
    device = gaps["device"].to_numpy().astype(np.int64)
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    changes = (np.diff(number) != 0) | (np.diff(device) != 0)
    first = np.concatenate([[0], np.flatnonzero(changes) + 1]) if number.size else number
    last = np.concatenate([first[1:] - 1, [number.size - 1]]) if number.size else number
    return WholeGaps(
        first, last, start[first], end[last], device[first], _longest_pieces(first, end - start)
    )


def _longest_pieces(first: Longs, lengths: Longs) -> Longs:
    """For each run of rows the row with the greatest length."""
    if not first.size:
        return first
    longest = np.repeat(
        np.maximum.reduceat(lengths, first), np.diff(np.append(first, lengths.size))
    )
    candidates = np.flatnonzero(lengths == longest)
    return candidates[np.searchsorted(candidates, first)]


def _idle(analysis: Analysis, whole: WholeGaps) -> dict[int, IdleLane]:
    gaps = analysis.gaps
    names = [str(name) for name in gaps["cause"].cat.categories]
    cause = np.asarray(gaps["cause"].cat.codes)
    device = gaps["device"].to_numpy()
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    lanes: dict[int, IdleLane] = {}
    for one in np.unique(device).tolist():
        mine = device == one
        present = [code for code in range(len(names)) if bool((mine & (cause == code)).any())]
        masks = [mine & (cause == code) for code in present]
        rows = np.flatnonzero(whole.device == one)
        lanes[int(one)] = IdleLane(
            int(one),
            tuple(names[code] for code in present),
            tuple(coverage_of(start[mask], end[mask]) for mask in masks),
            pieces_of(rows, whole.start_ns[rows], whole.end_ns[rows]),
        )
    return lanes


def _threads(analysis: Analysis) -> tuple[ThreadLanes, ...]:
    """Host threads that ran operators or launched something, the busiest launcher first."""
    trace = analysis.trace
    thread = trace.events["thread"].to_numpy()
    launching = trace.names_matching(is_launch)[trace.name_codes]
    launching &= trace.kind_codes == KIND_CODE["runtime"]
    counted = (launching | (trace.kind_codes == KIND_CODE["operator"])) & (thread != NONE)
    counts = np.bincount(thread[counted]) if bool(counted.any()) else np.zeros(0, dtype=np.int64)
    busiest = np.argsort(-counts, kind="stable")[:MOST_THREADS]
    lanes = [_thread(trace, t, thread == t, launching) for t in busiest.tolist() if counts[t]]
    lanes.sort(key=lambda lane: (-lane.calls.rows.size, -len(lane.operators)))
    return tuple(lanes)


def _thread(
    trace: Trace, thread: int, mine: NDArray[np.bool_], launching: NDArray[np.bool_]
) -> ThreadLanes:
    def of_kind(kind: str) -> Spans:
        return spans_of(trace, np.flatnonzero(mine & (trace.kind_codes == KIND_CODE[kind])))

    modules = of_kind("module")
    if not len(modules):
        framed = trace.names_matching(lambda name: name.startswith(MODULE_FRAME))
        framed = framed[trace.name_codes] & (trace.kind_codes == KIND_CODE["frame"])
        modules = spans_of(trace, np.flatnonzero(mine & framed))
    calls = np.flatnonzero(mine & launching)
    start, end = trace.start_ns[calls], trace.end_ns[calls]
    table = trace.table("threads")
    name = str(table["name"].iloc[thread]) if thread < len(table) else ""
    return ThreadLanes(
        thread,
        name or f"thread {thread}",
        of_kind("annotation"),
        modules,
        of_kind("operator"),
        pieces_of(calls, start, end),
        coverage_of(start, end),
    )
