"""What the cursor is on, and the ways from it: launch, operator, module, neighbour, the largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracer.analysis import PARTS
from tracer.analyzers.intervals import NONE, Longs
from tracer.events import KINDS
from tracer.tui.model.lanes import MODULE_FRAME, Lanes, Pieces, StreamLane, ThreadLanes
from tracer.tui.model.places import Moment
from tracer.tui.model.spans import Spans

LaneKind = Literal[
    "ranges", "module", "operator", "launches", "work", "idle", "copies", "collectives", "rank"
]
_MOST_BIGGEST = 32


@dataclass(frozen=True)
class LaneKey:
    """One lane. `first`: device or host thread; `second`: stream."""

    kind: LaneKind
    first: int = 0
    second: int = 0


@dataclass(frozen=True)
class Selection:
    """Something with a start and an end. `row`: of `work`, of the whole gaps, or of `events`."""

    kind: Literal["work", "gap", "event"]
    row: int
    start_ns: int
    end_ns: int
    lane: LaneKey

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def lane_keys(lanes: Lanes) -> list[LaneKey]:
    """All lanes from top to bottom: host, streams with their device's idle, copies, collectives,
    other ranks."""
    keys = [key for thread in lanes.threads for key in _thread_keys(thread, lanes)]
    shown: set[int] = set()
    for lane in _streams_in_order(lanes):
        keys.append(LaneKey("work", lane.device, lane.stream))
        if lane.device not in shown and lane.device in lanes.idle:
            shown.add(lane.device)
            keys.append(LaneKey("idle", lane.device))
    if lanes.copies.rows.size:
        keys.append(LaneKey("copies"))
    if lanes.collectives.rows.size:
        keys.append(LaneKey("collectives"))
    return keys + [LaneKey("rank", other.rank) for other in lanes.others]


def _streams_in_order(lanes: Lanes) -> list[StreamLane]:
    """Streams by device, the busiest of each first."""
    return sorted(lanes.streams, key=lambda lane: (lane.device, -lane.busy.total_ns))


def _thread_keys(thread: ThreadLanes, lanes: Lanes) -> Iterator[LaneKey]:
    first = thread is lanes.threads[0]
    if len(thread.modules):
        yield LaneKey("module", thread.thread)
    elif len(thread.ranges) and first:
        yield LaneKey("ranges", thread.thread)
    if len(thread.operators):
        yield LaneKey("operator", thread.thread)
    if thread.calls.rows.size:
        yield LaneKey("launches", thread.thread)


def stream_of(lanes: Lanes, key: LaneKey) -> StreamLane | None:
    """The stream of a lane; for an idle lane the busiest of its device."""
    mine = [lane for lane in lanes.streams if lane.device == key.first]
    if key.kind == "work":
        return next((lane for lane in mine if lane.stream == key.second), None)
    return max(mine, key=lambda lane: lane.busy.total_ns, default=None)


def thread_of(lanes: Lanes, key: LaneKey) -> ThreadLanes | None:
    """The host thread of a lane."""
    return next((lane for lane in lanes.threads if lane.thread == key.first), None)


def spans_at(lanes: Lanes, key: LaneKey) -> Spans | None:
    """The spans of a host lane."""
    thread = thread_of(lanes, key)
    if thread is None:
        return None
    kinds = {"ranges": thread.ranges, "module": thread.modules, "operator": thread.operators}
    return kinds.get(key.kind)


def work_selection(lanes: Lanes, row: int) -> Selection:
    """A kernel, copy or set."""
    event = int(lanes.analysis.work["event"].iloc[row])
    device = int(lanes.analysis.work["device"].iloc[row])
    stream = int(lanes.trace.events["stream"].iloc[event])
    start, end = int(lanes.work_start_ns[row]), int(lanes.work_end_ns[row])
    return Selection("work", row, start, end, LaneKey("work", device, stream))


def gap_selection(lanes: Lanes, gap: int) -> Selection:
    """A whole gap."""
    gaps = lanes.gaps
    key = LaneKey("idle", int(gaps.device[gap]))
    return Selection("gap", gap, int(gaps.start_ns[gap]), int(gaps.end_ns[gap]), key)


def event_selection(lanes: Lanes, event: int) -> Selection:
    """Any event; device work is selected as work."""
    row = int(lanes.work_of_event[event])
    if row != NONE:
        return work_selection(lanes, row)
    trace = lanes.trace
    lane = _lane_of_kind(lanes, event)
    thread = int(trace.events["thread"].iloc[event])
    start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
    return Selection("event", event, start, end, LaneKey(lane, thread))


def _lane_of_kind(lanes: Lanes, event: int) -> LaneKind:
    kind = KINDS[int(lanes.trace.kind_codes[event])]
    if kind == "module" or lanes.name(event).startswith(MODULE_FRAME):
        return "module"
    if kind == "annotation":
        return "ranges"
    return "launches" if kind == "runtime" else "operator"


def is_module(lanes: Lanes, event: int) -> bool:
    """Whether a host row is the range, or the frame, of a module."""
    return _lane_of_kind(lanes, event) == "module"


def select_at(lanes: Lanes, key: LaneKey, time_ns: int, cell: tuple[int, int]) -> Selection | None:
    """What is under the cursor on a lane: what covers most of the cell."""
    if key.kind in ("work", "copies", "collectives"):
        pieces = _work_pieces(lanes, key)
        row = _most_in(pieces, cell)
        if row != NONE:
            return work_selection(lanes, row)
        return _gap_in(lanes, key.first, time_ns, cell) if key.kind == "work" else None
    if key.kind == "idle":
        return _gap_in(lanes, key.first, time_ns, cell)
    if key.kind == "rank":
        return None  # what another rank does is on its own timeline
    if key.kind == "launches":
        thread = thread_of(lanes, key)
        event = NONE if thread is None else _most_in(thread.calls, cell)
        return None if event == NONE else event_selection(lanes, event)
    return _span_in(lanes, key, time_ns, cell)


def _work_pieces(lanes: Lanes, key: LaneKey) -> Pieces:
    if key.kind == "copies":
        return lanes.copies
    if key.kind == "collectives":
        return lanes.collectives
    stream = stream_of(lanes, key)
    return lanes.copies if stream is None else stream.pieces


def _most_in(pieces: Pieces, cell: tuple[int, int]) -> int:
    """The row that has most of the cell's time; -1 when none is in it."""
    at = pieces.overlapping(*cell)
    if not at.size:
        return NONE
    shared = np.minimum(pieces.end_ns[at], cell[1]) - np.maximum(pieces.start_ns[at], cell[0])
    return int(pieces.rows[at[int(shared.argmax())]])


def _gap_in(lanes: Lanes, device: int, time_ns: int, cell: tuple[int, int]) -> Selection | None:
    idle = lanes.idle.get(device)
    if idle is None:
        return None
    gap = _most_in(idle.pieces, cell)
    return None if gap == NONE else gap_selection(lanes, gap)


def _span_in(lanes: Lanes, key: LaneKey, time_ns: int, cell: tuple[int, int]) -> Selection | None:
    spans = spans_at(lanes, key)
    if spans is None or not len(spans):
        return None
    least_ns = cell[1] - cell[0]
    wide = [at for at in spans.open_at(time_ns) if spans.end_ns[at] - spans.start_ns[at] > least_ns]
    at = wide[0] if wide else spans.first_from(*cell)
    return None if at == NONE else event_selection(lanes, int(spans.events[at]))


def resolve(lanes: Lanes, moment: Moment) -> Selection | None:
    """What a screen asked the timeline to show; None: the step as a whole."""
    if moment.event != NONE and moment.event < len(lanes.trace.events):
        return _pause_before(lanes, moment) or event_selection(lanes, moment.event)
    if moment.work != NONE:
        return work_selection(lanes, moment.work)
    if moment.gap != NONE:
        return gap_selection(lanes, moment.gap)
    if moment.cause:
        return largest_gap(lanes, moment.cause, moment.step)
    return None


def _pause_before(lanes: Lanes, moment: Moment) -> Selection | None:
    """The pause that a finding is about: without a device its evidence is what came after it."""
    analysis = lanes.analysis
    work = int(lanes.work_of_event[moment.event])
    if moment.finding == NONE or work == NONE or not analysis.cpu_only:
        return None
    if not analysis.findings[moment.finding].rule.startswith("gap."):
        return None
    pieces = np.flatnonzero(analysis.gaps["after"].to_numpy() == work)
    return gap_selection(lanes, lanes.gaps.of_piece(int(pieces[-1]))) if pieces.size else None


def largest_gap(lanes: Lanes, cause: str, step: int) -> Selection | None:
    """The gap with the longest piece of this cause, in a step if one is given."""
    gaps = lanes.analysis.gaps
    wanted = (gaps["cause"] == cause).to_numpy() & (gaps["step"].to_numpy() >= 0)
    if step != NONE:
        wanted &= gaps["step"].to_numpy() == step
    rows = np.flatnonzero(wanted)
    if not rows.size:
        return None
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()[rows]
    return gap_selection(lanes, lanes.gaps.of_piece(int(rows[int(lengths.argmax())])))


def biggest(lanes: Lanes, start_ns: int, end_ns: int) -> list[Selection]:
    """The gaps and works with most time in a stretch, the largest first."""
    found: list[tuple[int, Selection]] = []
    for idle in lanes.idle.values():
        found += [
            (shared, gap_selection(lanes, row))
            for shared, row in _largest_in(idle.pieces, start_ns, end_ns)
        ]
    for stream in lanes.streams:
        found += [
            (shared, work_selection(lanes, row))
            for shared, row in _largest_in(stream.pieces, start_ns, end_ns)
        ]
    found.sort(key=lambda item: -item[0])
    return [selection for _, selection in found[:_MOST_BIGGEST]]


def _largest_in(pieces: Pieces, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    at = pieces.overlapping(start_ns, end_ns)
    shared = np.minimum(pieces.end_ns[at], end_ns) - np.maximum(pieces.start_ns[at], start_ns)
    if at.size > _MOST_BIGGEST:
        top = np.argpartition(-shared, _MOST_BIGGEST)[:_MOST_BIGGEST]
        at, shared = at[top], shared[top]
    return list(zip(shared.tolist(), pieces.rows[at].tolist(), strict=True))


def neighbour_gap(
    lanes: Lanes, device: int, time_ns: int, forward: bool, least_ns: int
) -> Selection | None:
    """The next gap before or after a moment that is long enough to be seen; else the next one."""
    idle = lanes.idle.get(device)
    if idle is None or not idle.pieces.rows.size:
        return None
    seen = np.flatnonzero(idle.pieces.end_ns - idle.pieces.start_ns >= least_ns)
    row = _neighbour(idle.pieces, seen, time_ns, forward)
    if row == NONE:
        row = _neighbour(idle.pieces, np.arange(idle.pieces.rows.size), time_ns, forward)
    return None if row == NONE else gap_selection(lanes, row)


def neighbour_work(
    lanes: Lanes, stream: StreamLane, time_ns: int, forward: bool
) -> Selection | None:
    """The next kernel, copy or set of a stream before or after a moment."""
    every = np.arange(stream.pieces.rows.size)
    row = _neighbour(stream.pieces, every, time_ns, forward)
    return None if row == NONE else work_selection(lanes, row)


def _neighbour(pieces: Pieces, among: Longs, time_ns: int, forward: bool) -> int:
    starts = pieces.start_ns[among]
    at = int(np.searchsorted(starts, time_ns, side="right" if forward else "left"))
    at = at if forward else at - 1
    return int(pieces.rows[among[at]]) if 0 <= at < among.size else NONE


def launch_of(lanes: Lanes, selection: Selection) -> Selection | None:
    """From work to the call that launched it, from a gap to the launch that ended it, from a call
    to the work it launched."""
    work = lanes.analysis.work
    if selection.kind == "work":
        event = int(work["launch"].iloc[selection.row])
        return None if event == NONE else event_selection(lanes, event)
    if selection.kind == "gap":
        after = int(lanes.analysis.gaps["after"].iloc[int(lanes.gaps.first[selection.row])])
        event = NONE if after == NONE else int(work["launch"].iloc[after])
        return None if event == NONE else event_selection(lanes, event)
    launched = lanes.launched_by(selection.row)
    if not launched.size:
        launched = _launched_within(lanes, selection)
    return work_selection(lanes, int(launched[0])) if launched.size else None


def _launched_within(lanes: Lanes, selection: Selection) -> Longs:
    thread = thread_of(lanes, selection.lane)
    if thread is None:
        return np.zeros(0, dtype=np.int64)
    calls = thread.calls
    first, last = np.searchsorted(calls.start_ns, [selection.start_ns, selection.end_ns])
    for event in calls.rows[first:last].tolist():
        launched = lanes.launched_by(event)
        if launched.size:
            return launched
    return np.zeros(0, dtype=np.int64)


def operator_of(lanes: Lanes, selection: Selection) -> Selection | None:
    """The operator around something; from an operator the one around that."""
    if selection.kind == "work":
        event = int(lanes.analysis.work["operator"].iloc[selection.row])
        return None if event == NONE else event_selection(lanes, event)
    return _around(lanes, selection, "operator")


def module_of(lanes: Lanes, selection: Selection) -> Selection | None:
    """The module range around something; from a module the one around that."""
    return _around(lanes, selection, "module")


def host_event(lanes: Lanes, selection: Selection) -> int:
    """The host row that stands for a selection: itself, its launch, or the cause of the gap."""
    work = lanes.analysis.work
    if selection.kind == "event":
        return selection.row
    if selection.kind == "work":
        launch = int(work["launch"].iloc[selection.row])
        own = int(work["event"].iloc[selection.row])
        return own if launch == NONE and lanes.analysis.cpu_only else launch
    row = int(lanes.gaps.largest_piece[selection.row])
    cause = int(lanes.analysis.gaps["event"].iloc[row])
    if cause != NONE:
        return cause
    ending = launch_of(lanes, selection)
    return NONE if ending is None else ending.row


def _around(lanes: Lanes, selection: Selection, lane: LaneKind) -> Selection | None:
    parents = lanes.host.parent
    at = host_event(lanes, selection)
    if selection.kind == "event" and at != NONE:
        at = int(parents[at])
    while at != NONE and not _belongs(lanes, at, lane):
        at = int(parents[at])
    return None if at == NONE else event_selection(lanes, at)


def _belongs(lanes: Lanes, event: int, lane: LaneKind) -> bool:
    kind = KINDS[int(lanes.trace.kind_codes[event])]
    return is_module(lanes, event) if lane == "module" else kind == lane


def cause_shares(lanes: Lanes, gap: int) -> list[tuple[str, int]]:
    """Causes of a whole gap with their time, in the order of the causes' time."""
    rows = slice(int(lanes.gaps.first[gap]), int(lanes.gaps.last[gap]) + 1)
    pieces = lanes.analysis.gaps.iloc[rows]
    causes = pieces["cause"].astype(str).tolist()
    lengths = (pieces["end_ns"] - pieces["start_ns"]).tolist()
    sums = dict.fromkeys(PARTS["overhead"], 0)
    for cause, length in zip(causes, lengths, strict=True):
        sums[cause] = sums.get(cause, 0) + length
    return sorted(((c, ns) for c, ns in sums.items() if ns), key=lambda item: -item[1])
