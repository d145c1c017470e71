"""What each part of a thread's time means for a device that waits: whom to blame for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.gaps import COMPILE, HOST, LAUNCH, SYNC
from tracer.analyzers.idle.host_side import HostSide
from tracer.analyzers.idle.segments import NEVER, Segments, timeline
from tracer.analyzers.idle.thresholds import FAR_LONGER
from tracer.analyzers.intervals import NONE, Longs, Rows, merged_times, places_between

# An operator is far longer than its like when it also takes this share of a step.
_SHARE_OF_STEP = 0.01


def thread_segments(side: HostSide, thread: int) -> Segments:
    """The time of a thread, each part with its cause."""
    segments = timeline(side.host, thread)
    if thread != side.main:
        segments.fill_from(timeline(side.host, side.main))
    drained = _drain(side, segments, thread)
    _name_causes(side, segments)
    segments.cause[drained] = SYNC
    segments.join_alike()
    for ranges, forced in side.forced:
        segments.force(ranges, forced)
    return segments


def _drain(side: HostSide, segments: Segments, thread: int) -> Longs:
    """The segments that a wait is to blame for. After it the queue is empty: up to the usual pace
    of launches, and where nothing else is recorded further, but no longer than the host would have
    run ahead without it. The blame ends at the next launch."""
    trace, pace = side.trace, side.pace_ns
    waits = np.flatnonzero(side.calls.blocking & (trace.events["thread"].to_numpy() == thread))
    if not waits.size:
        return waits
    waits = waits[np.argsort(trace.end_ns[waits], kind="stable")]
    begin = trace.end_ns[waits]
    limit = np.minimum(side.next_launch(begin), np.append(begin[1:], NEVER))
    limit = np.where(limit == NEVER, begin, np.maximum(limit, begin))
    far = np.minimum(begin + _run_ahead(side, waits), limit)
    stop = np.minimum(begin + pace, far)
    segments.cut_at(merged_times(begin, stop, far))
    place, wait = places_between(*np.searchsorted(segments.start_ns, [begin, far]))
    owner = segments.event[place]
    blamed = (owner == NONE) | side.is_range(owner) | (segments.start_ns[place] < stop[wait])
    drained: Longs = place[blamed]
    segments.event[drained] = waits[wait[blamed]]
    return drained


def _run_ahead(side: HostSide, waits: Longs) -> Longs:
    """How far the host would be without these waits, in order of time: what they held it while a
    device worked, those since the last launch together. On an idle device a wait drains nothing."""
    start, end = side.trace.start_ns[waits], side.trace.end_ns[waits]
    held = np.cumsum(end - start - side.all_idle(start, end))
    launches = side.launches_before(start)
    first = np.searchsorted(launches, launches)
    ahead: Longs = held - np.append(0, held[:-1])[first]
    return ahead


def _name_causes(side: HostSide, segments: Segments) -> None:
    """What each segment means by the row that is innermost in it."""
    library, idle = _library_work(side, segments), _host_operators(side, segments)
    # Without operators in the recording a thread that only launches is dispatching in between.
    dispatches = not side.is_operator.any()
    for rows, owner, length in segments.parts():
        paced = dispatches & (length <= side.pace_ns)
        silent = np.where(paced, np.int8(LAUNCH), np.int8(HOST))
        segments.cause[rows] = np.where(owner == NONE, silent, side.cause_of_row.take(owner))
    library, idle = (long[segments.cause[long] == LAUNCH] for long in (library, idle))
    segments.cause[library], segments.cause[idle] = COMPILE, HOST


def _library_work(side: HostSide, segments: Segments) -> Longs:
    """Stretches of an operator without a call inside that are far longer than those of its like,
    or, when it has no like, than those of operators at all; it must launch something after: what
    comes after its launches prepares none, as the wait for a lock of NCCL's watchdog."""
    long, length = _longer(segments, _SHARE_OF_STEP * side.step_ns)
    owner = segments.event[long]
    launching = side.is_operator[owner] & side.launches_inside[owner]
    launching &= side.next_launch(segments.end_ns(long)) < side.trace.end_ns[owner]
    long, length, owner = long[launching], length[launching], owner[launching]
    if not long.size:
        return long
    name = side.trace.name_codes[owner]
    least = _far_longer(side, segments, sorted(set(name.tolist())))
    return long[length > np.array([least[code] for code in name.tolist()])]


def _far_longer(side: HostSide, segments: Segments, names: list[int]) -> dict[int, float]:
    """For each of these names, from what time on a stretch of it is far longer than its like."""
    overall = _overall_stretch(side, segments)
    of_name = np.zeros(len(side.trace.names), dtype=bool)
    of_name[names] = True
    owner, length = _stretches(segments, of_name[side.trace.name_codes])
    name = side.trace.name_codes[owner]
    least = {}
    for code in names:
        mine = np.flatnonzero(name == code)
        longest = _longest_of_each(length[mine], owner[mine])
        usual = float(np.median(longest)) if longest.size > 1 else overall
        least[code] = FAR_LONGER * max(usual, overall / 4)
    return least


def _longest_of_each(length: Longs, owner: Rows) -> Longs:
    rows, place = np.unique(owner, return_inverse=True)
    longest = np.zeros(rows.size, dtype=np.int64)
    np.maximum.at(longest, place, length)
    return longest


def _longer(segments: Segments, least: float) -> tuple[Longs, Longs]:
    """Segments of host rows that take longer than that, and how long they are."""
    places, lengths = [], []
    for rows, owner, length in segments.parts():
        long = np.flatnonzero((length > least) & (owner != NONE))
        places.append(long + rows.start)
        lengths.append(length[long])
    return np.concatenate(places), np.concatenate(lengths)


def _stretches(segments: Segments, wanted: NDArray[np.bool_]) -> tuple[Rows, Longs]:
    """The wanted host rows, each as often as it is innermost, and for how long it is."""
    owners, lengths = [], []
    for _, owner, length in segments.parts():
        mine = (owner != NONE) & wanted.take(owner)
        owners.append(owner[mine])
        lengths.append(length[mine])
    return np.concatenate(owners), np.concatenate(lengths)


def _overall_stretch(side: HostSide, segments: Segments) -> float:
    """Median of all stretches of operators without a call inside."""
    stretches, count = np.empty(segments.event.size, dtype=np.int64), 0
    for _, owner, length in segments.parts():
        mine = length[(owner != NONE) & side.is_operator.take(owner)]
        stretches[count : count + mine.size] = mine
        count += mine.size
    return float(np.median(stretches[:count], overwrite_input=True)) if count else 0.0


def _host_operators(side: HostSide, segments: Segments) -> Longs:
    """Operators that put nothing on a device and take long themselves: work of the host."""
    long, _ = _longer(segments, _SHARE_OF_STEP * side.step_ns / 4)
    long = long[side.is_operator[segments.event[long]]]
    outer = side.outer_operator[segments.event[long]]
    idle: Longs = long[~side.launches_inside[outer]]
    return idle
