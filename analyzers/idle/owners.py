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
    segments.cause = _causes(side, segments)
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
    blamed = (owner == NONE) | side.is_range[owner] | (segments.start_ns[place] < stop[wait])
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


def _causes(side: HostSide, segments: Segments) -> NDArray[np.int8]:
    """What each segment means by the row that is innermost in it."""
    owner = segments.event
    length = np.diff(segments.start_ns, append=segments.start_ns[-1:])
    length[0] = 0
    cause = side.cause_of_row.take(owner)
    # Without operators in the recording a thread that only launches is dispatching in between.
    paced = (not side.is_operator.any()) & (length <= side.pace_ns)
    silent = owner == NONE
    cause[silent] = np.where(paced, np.int8(LAUNCH), np.int8(HOST))[silent]
    dispatching = cause == LAUNCH
    for long, other in (
        (_library_work(side, length, owner), COMPILE),
        (_host_operators(side, length, owner), HOST),
    ):
        cause[long[dispatching[long]]] = other
    return cause


def _library_work(side: HostSide, length: Longs, owner: Rows) -> Longs:
    """Stretches of an operator without a call inside that are far longer than those of its like,
    or, when it has no like, than those of operators at all; it must launch something after."""
    long = _longer(length, owner, _SHARE_OF_STEP * side.step_ns)
    long = long[side.is_operator[owner[long]] & side.launches_inside[owner[long]]]
    if not long.size:
        return long
    overall = _overall_stretch(side, length, owner)
    name = np.where(owner == NONE, NONE, side.trace.name_codes.take(owner))
    least = {}
    for code in set(name[long].tolist()):
        mine = np.flatnonzero(name == code)
        longest = _longest_of_each(length[mine], owner[mine])
        usual = float(np.median(longest)) if longest.size > 1 else overall
        least[code] = FAR_LONGER * max(usual, overall / 4)
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


def _overall_stretch(side: HostSide, length: Longs, owner: Rows) -> float:
    """Median of all stretches of operators without a call inside."""
    stretches = length[(owner != NONE) & side.is_operator.take(owner)]
    return float(np.median(stretches, overwrite_input=True)) if stretches.size else 0.0


def _host_operators(side: HostSide, length: Longs, owner: Rows) -> Longs:
    """Operators that put nothing on a device and take long themselves: work of the host."""
    long = _longer(length, owner, _SHARE_OF_STEP * side.step_ns / 4)
    long = long[side.is_operator[owner[long]]]
    idle: Longs = long[~side.launches_inside[side.host.outer_operator[owner[long]]]]
    return idle
