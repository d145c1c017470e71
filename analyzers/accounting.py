"""The exact accounting (DESIGN 4): every nanosecond of the window goes to one bucket.

For each device the window is cut at every start and end of device work and of a step. A slice
goes to the compute that runs in it (several share it equally), else to the collectives, else to
the copies between host and device, else it is idle. Odd nanoseconds go to the first by start,
stream and correlation, so that sums stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import (
    NONE,
    Longs,
    Rows,
    covered,
    merged_times,
    places_between,
    union,
)

COMPUTE, COLLECTIVE, TRANSFER = 0, 1, 2


@dataclass(frozen=True)
class Lanes:
    """Device work as the accounting sees it; arrays are aligned."""

    device: NDArray[np.int32]
    start_ns: Longs
    end_ns: Longs
    work_class: NDArray[np.int8]
    stream: Longs
    correlation: Longs


@dataclass(frozen=True)
class Slices:
    """Pieces of the window. work -1: idle. A slice shared by several has a row for each."""

    device: NDArray[np.int32]
    start_ns: Longs
    end_ns: Longs
    step: Rows
    work: Rows
    charged_ns: Longs

    @property
    def busy(self) -> Slices:
        """Those in which work runs."""
        held = self.work != NONE
        columns = (self.device, self.start_ns, self.end_ns, self.step, self.work, self.charged_ns)
        return Slices(*(column[held] for column in columns))


def cut_window(
    lanes: Lanes,
    devices: NDArray[np.int32],
    start_ns: int,
    end_ns: int,
    step_start_ns: Longs,
    step_end_ns: Longs,
) -> Slices:
    """Cut the window of each device into slices. Steps are in order and do not overlap."""
    pieces = [
        _cut_device(lanes, int(device), start_ns, end_ns, step_start_ns, step_end_ns)
        for device in devices.tolist()
    ]
    if not pieces:
        none, rows = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return Slices(rows, none, none, rows, rows, none)
    if len(pieces) == 1:
        return pieces[0]
    return Slices(
        *(np.concatenate([getattr(p, column.name) for p in pieces]) for column in fields(Slices))
    )


def _cut_device(
    lanes: Lanes, device: int, begin: int, end: int, step_start: Longs, step_end: Longs
) -> Slices:
    runs = (lanes.device == device) & (lanes.end_ns > lanes.start_ns)
    rows = np.flatnonzero(runs).astype(np.int32)
    starts = np.clip(lanes.start_ns[rows], begin, end)
    ends = np.clip(lanes.end_ns[rows], begin, end)
    inside = ends > starts
    if not inside.all():
        rows, starts, ends = rows[inside], starts[inside], ends[inside]
    bounds = np.array([begin, end], dtype=np.int64)
    edges = merged_times(starts, np.sort(ends, kind="stable"), step_start, step_end, bounds)
    edges = edges[(edges >= begin) & (edges <= end)]
    first, last = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    place, work = _winners(first, last, lanes.work_class[rows], rows, edges.size - 1)
    charged = _share(edges, place, work, lanes)
    return Slices(
        np.full(place.size, device, dtype=np.int32),
        edges[place],
        edges[place + 1],
        steps_at(edges[place], step_start, step_end),
        work,
        charged,
    )


def _winners(
    first: Longs, last: Longs, work_class: NDArray[np.int8], rows: Rows, count: int
) -> tuple[Rows, Rows]:
    """Pairs (slice, work) of the work that counts in each slice; work -1 where none runs."""
    owner = np.full(count, NONE, dtype=np.int32)
    pairs: list[tuple[Rows, Rows]] = []
    for wanted in (COMPUTE, COLLECTIVE, TRANSFER):
        of_class = np.flatnonzero(work_class == wanted)
        place, of = places_between(first[of_class], last[of_class])
        work = rows[of_class][of]
        free = owner[place] == NONE
        place, work = place[free], work[free]
        pairs.append((place, work))
        owner[place] = work
    idle = np.flatnonzero(owner == NONE).astype(np.int32)
    pairs.append((idle, np.full(idle.size, NONE, dtype=np.int32)))
    place = np.concatenate([p for p, _ in pairs])
    work = np.concatenate([w for _, w in pairs])
    order = np.argsort(place, kind="stable")
    return place[order], work[order]


def _share(edges: Longs, place: Longs, work: Longs, lanes: Lanes) -> Longs:
    """Equal shares of each slice; what does not divide goes to the first of those that share."""
    length = edges[place + 1] - edges[place]
    count = np.bincount(place, minlength=edges.size - 1)[place]
    charged: Longs = length // count
    shared = np.flatnonzero(count > 1)
    if shared.size:
        rows = work[shared]
        keys = (
            lanes.correlation[rows],
            lanes.stream[rows],
            lanes.start_ns[rows],
            place[shared],
        )
        order = shared[np.lexsort(keys)]
        leads = order[np.concatenate([[True], place[order][1:] != place[order][:-1]])]
        charged[leads] += length[leads] - charged[leads] * count[leads]
    return charged


def steps_at(time: Longs, step_start: Longs, step_end: Longs) -> Rows:
    """The step each time lies in, its start counted and its end not; -1 between steps."""
    at = (np.searchsorted(step_start, time, side="right") - 1).astype(np.int32)
    if step_end.size:
        at[time >= step_end.take(at, mode="clip")] = NONE
    return at


def settle_steps(
    announced_ns: Longs, host_end_ns: Longs, work_step: Longs, work_end_ns: Longs
) -> tuple[Longs, Longs]:
    """Start and end of each step as a user would measure it (DESIGN 4).

    From the end of the device work of the steps before, or its own announcement if that is later,
    to the end of its own range on the host or of its device work, whichever is later.
    """
    device_end = np.full(announced_ns.size, np.iinfo(np.int64).min)
    held = work_step != NONE
    np.maximum.at(device_end, work_step[held], work_end_ns[held])
    end = np.maximum(host_end_ns, device_end)
    before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(device_end)[:-1]])
    start = np.maximum(announced_ns, before[: announced_ns.size])
    # A step whose device work ended before that of an earlier one takes no time of its own.
    end = np.maximum(end, start)
    start = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
    return start, np.maximum(end, start)


def exposure(lanes: Lanes, begin: int, end: int) -> tuple[Longs, Longs]:
    """For each collective how long it ran beside compute of its device, and how long not, within
    the window; zeros for other work."""
    overlapped = np.zeros(lanes.start_ns.size, dtype=np.int64)
    exposed = np.zeros(lanes.start_ns.size, dtype=np.int64)
    start, finish = np.clip(lanes.start_ns, begin, end), np.clip(lanes.end_ns, begin, end)
    for device in np.unique(lanes.device).tolist():
        on = lanes.device == device
        compute = on & (lanes.work_class == COMPUTE)
        rows = np.flatnonzero(on & (lanes.work_class == COLLECTIVE))
        if not rows.size:
            continue
        busy = union(start[compute], finish[compute])
        overlapped[rows] = covered(start[rows], finish[rows], *busy)
        exposed[rows] = finish[rows] - start[rows] - overlapped[rows]
    return exposed, overlapped


def overlapped_total(lanes: Lanes, begin: int, end: int) -> int:
    """Time in which some collective ran under compute, over all devices."""
    start, finish = np.clip(lanes.start_ns, begin, end), np.clip(lanes.end_ns, begin, end)
    out = 0
    for device in np.unique(lanes.device).tolist():
        on = lanes.device == device
        compute = on & (lanes.work_class == COMPUTE)
        collective = on & (lanes.work_class == COLLECTIVE)
        if not collective.any():
            continue
        busy = union(start[compute], finish[compute])
        lanes_of = union(start[collective], finish[collective])
        out += int(covered(*lanes_of, *busy).sum())
    return out
