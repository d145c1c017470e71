"""The time of one host thread, cut where its innermost row changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import Host
from tracer.analyzers.gaps import HOST, LAUNCH
from tracer.analyzers.intervals import (
    NONE,
    Longs,
    Rows,
    blocks,
    merged_times,
    packed,
    places_between,
    take,
    union,
)

NEVER = np.iinfo(np.int64).max


@dataclass
class Segments:
    """The parts of a thread's time, with what each means for a device that waits. The first begins
    before everything, the last never ends.

    They are by far the most rows of an analysis, so each column changes where it stands."""

    start_ns: Longs
    event: Rows  # the innermost row; -1 for none
    cause: NDArray[np.int8]

    def end_ns(self, places: Rows) -> Longs:
        """Where these end."""
        last = self.start_ns.size - 1
        ends: Longs = self.start_ns.take(np.minimum(places + 1, last))
        ends[places == last] = NEVER
        return ends

    def parts(self) -> Iterator[tuple[slice, Rows, Longs]]:
        """A few rows at a time: which these are, the innermost host row of each and how long it is.
        The first and the last are no stretches of any row: 0."""
        for rows in blocks(self.event.size):
            bounds = self.start_ns[rows.start : rows.stop + 1]
            length = np.diff(bounds, append=bounds[-1:])[: rows.stop - rows.start]
            length[: int(rows.start == 0)] = 0
            yield rows, self.event[rows], length

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
            # The widest first: the others then find room where it stood.
            self.start_ns = np.insert(self.start_ns, at, times)
            self.event = np.insert(self.event, at, self.event[at - 1])
            self.cause = np.insert(self.cause, at, self.cause[at - 1])

    def join_alike(self) -> None:
        """Neighbours of one cause and event joined. Which operator dispatched does not matter: what
        comes of it is the next launch."""
        self.event[self.cause == LAUNCH] = NONE
        new = np.ones(self.event.size, dtype=bool)
        new[1:] = (self.cause[1:] != self.cause[:-1]) | (self.event[1:] != self.event[:-1])
        self.event, self.cause = packed(self.event, new), packed(self.cause, new)
        self.start_ns = packed(self.start_ns, new)

    def force(self, ranges: tuple[Longs, Longs], cause: int) -> None:
        """Inside these ranges of time this is the cause, whatever the thread says."""
        begin, stop = union(*ranges)
        self.cut_at(merged_times(begin, stop))
        inside, _ = places_between(*np.searchsorted(self.start_ns, [begin, stop]))
        self.cause[inside] = cause


def timeline(host: Host, thread: int) -> Segments:
    """Times at which the innermost row of a thread changes, and the row from there on."""
    places = host.places_of(thread)
    time, owner = _walked(host, places)
    if (time[1:] < time[:-1]).any():  # rows that overlap and do not nest
        time, owner = _in_turn(host, places)
    last = np.append(time[1:] != time[:-1], True)
    owner = packed(owner, last)
    return Segments(packed(time, last), owner, np.full(owner.size, HOST, dtype=np.int8))


def _walked(host: Host, places: slice) -> tuple[Longs, Rows]:
    """A walk down the trees enters and leaves each row that lasts: where in the walk follows from
    what it passed before."""
    trace, forest, rows = host.trace, host.forest, host.rows[places]
    lasts = trace.events["duration_ns"].to_numpy()[rows] > 0
    passed = np.cumsum(np.append(False, lasts), dtype=np.int32)
    time = np.full(2 * int(passed[-1]) + 1, np.iinfo(np.int64).min)
    owner = np.full(time.size, NONE, dtype=np.int32)
    for part in blocks(rows.size):
        own = np.flatnonzero(lasts[part]) + part.start
        entered, at = rows[own], own + places.start
        depth = forest.depth[at]
        enters = 2 * passed[own] + 1 - depth
        time[enters], owner[enters] = trace.start_ns[entered], entered
        leaves = 2 * passed[forest.stop[at] - places.start] - depth
        time[leaves], owner[leaves] = trace.end_ns[entered], take(host.rows, forest.parent[at])
    return time, owner


def _in_turn(host: Host, places: slice) -> tuple[Longs, Rows]:
    """The same by time: at one time the ends come first, the inner before the outer, then the
    starts, the outer first."""
    trace = host.trace
    rows, depth = host.rows[places], host.forest.depth[places]
    lasts = trace.end_ns[rows] > trace.start_ns[rows]
    rows, depth = rows[lasts], depth[lasts]
    ends = np.lexsort((-depth, trace.end_ns[rows]))
    before = np.iinfo(np.int64).min
    time = np.concatenate([[before], trace.end_ns[rows[ends]], trace.start_ns[rows]])
    owner = np.concatenate([np.array([NONE], np.int32), host.parent[rows[ends]], rows])
    order = np.argsort(time, kind="stable")
    return time[order], owner[order]
