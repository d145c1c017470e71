"""Host activity as nested spans, and which of them a row of cells can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from tracer.analyzers.intervals import NONE, Longs, nest
from tracer.events import Trace
from tracer.tui.look import Look

# A span narrower than this is not drawn by itself: its parent, or a mark, stands for it.
_LEAST_CELLS = 3


@dataclass(frozen=True)
class Spans:
    """Spans of one thread in order of start, nested: `parent` is a position here, -1 for none."""

    events: Longs
    start_ns: Longs
    end_ns: Longs
    depth: Longs
    parent: Longs
    longest: Longs  # positions, the longest first
    shortness_ns: Longs  # their lengths as negative numbers, so that they ascend

    def __len__(self) -> int:
        return int(self.events.size)

    def open_at(self, time_ns: int) -> list[int]:
        """Positions of the spans that began before a moment and end after it, innermost first."""
        at = int(np.searchsorted(self.start_ns, time_ns, side="right")) - 1
        found: list[int] = []
        while at != NONE:
            if int(self.end_ns[at]) > time_ns:
                found.append(at)
            at = int(self.parent[at])
        return found

    def first_from(self, start_ns: int, end_ns: int) -> int:
        """Position of the first span that begins in a stretch of time; -1 if none does."""
        at = int(np.searchsorted(self.start_ns, start_ns))
        return at if at < len(self) and int(self.start_ns[at]) < end_ns else NONE

    def position(self, event: int) -> int:
        """Position of an event; -1 when it is none of these."""
        at = int(np.searchsorted(self.events, event))
        return at if at < len(self) and int(self.events[at]) == event else NONE


def spans_of(trace: Trace, events: Longs) -> Spans:
    """Nest the events of one thread; `events` are in order."""
    start, end = trace.start_ns[events], trace.end_ns[events]
    forest = nest(start, end, np.zeros(events.size, dtype=np.int32))
    shortness = start - end
    longest = np.argsort(shortness, kind="stable").astype(np.int64)
    return Spans(events, start, end, forest.depth, forest.parent, longest, shortness[longest])


@dataclass(frozen=True)
class Run:
    """Neighbouring cells of one span; `position` -1: of spans too short to tell apart."""

    first: int
    last: int
    position: int
    begins: bool  # the span's start is in its first cell


def visible_runs(spans: Spans, edges: Longs) -> list[Run]:
    """Which span owns which cells: the innermost that is wide enough to be seen."""
    owner = _owners(spans, edges)
    crowded = _has_start(spans, edges) & (owner == NONE)
    owner = np.where(crowded, -2, owner)
    bounds = np.flatnonzero(np.diff(owner)) + 1
    firsts = np.concatenate([[0], bounds]).tolist()
    lasts = np.concatenate([bounds, [owner.size]]).tolist()
    runs: list[Run] = []
    for first, last in zip(firsts, lasts, strict=True):
        position = int(owner[first])
        if position == NONE:
            continue
        begins = position >= 0 and int(spans.start_ns[position]) >= int(edges[first])
        runs.append(Run(first, last, max(position, NONE), begins))
    return runs


def _owners(spans: Spans, edges: Longs) -> Longs:
    owner = np.full(edges.size - 1, NONE, dtype=np.int64)
    cell_ns = (int(edges[-1]) - int(edges[0])) / owner.size
    shown = _wide_enough(spans, int(edges[0]), int(edges[-1]), _LEAST_CELLS * cell_ns)
    shown = shown[np.argsort(spans.depth[shown], kind="stable")]
    firsts = np.searchsorted(edges, spans.start_ns[shown], side="right") - 1
    lasts = np.searchsorted(edges, spans.end_ns[shown], side="left")
    for position, first, last in zip(
        shown.tolist(), np.maximum(firsts, 0).tolist(), lasts.tolist(), strict=True
    ):
        owner[first:last] = position
    return owner


def _wide_enough(spans: Spans, start_ns: int, end_ns: int, least_ns: float) -> Longs:
    first, last = np.searchsorted(spans.start_ns, [start_ns, end_ns]).tolist()
    count = int(np.searchsorted(spans.shortness_ns, -least_ns, side="right"))
    if count < last - first:
        # Seen from far, few spans of very many are wide enough: those are looked at alone.
        inside = np.sort(spans.longest[:count])
        inside = inside[(inside >= first) & (inside < last)]
    else:
        seen = spans.end_ns[first:last] - spans.start_ns[first:last]
        inside = np.flatnonzero(seen >= least_ns) + first
    around = [at for at in spans.open_at(start_ns - 1) if spans.end_ns[at] > start_ns]
    found: Longs = np.concatenate([np.array(around, dtype=np.int64), inside]).astype(np.int64)
    return found


def _has_start(spans: Spans, edges: Longs) -> NDArray[np.bool_]:
    begins: NDArray[np.bool_] = np.diff(np.searchsorted(spans.start_ns, edges)) > 0
    return begins


def draw_runs(look: Look, runs: list[Run], cells: int, label: Callable[[int, int], str]) -> str:
    """The runs as one row of text. `label(position, room)`: a name that fits, or nothing; a span
    in several runs is named in the widest."""
    row = [" "] * cells
    edge, fill, many = look.sign("▏", "|"), look.sign("─", "-"), look.sign("┄", "~")
    named = _widest(runs)
    for run in runs:
        room = run.last - run.first
        if run.position == NONE:
            row[run.first : run.last] = [many * room, *[""] * (room - 1)]
            continue
        text = edge if run.begins else ""
        if named[run.position] is run:
            text += label(run.position, room - len(text) - 1)
        row[run.first : run.last] = [text + fill * (room - cell_len(text)), *[""] * (room - 1)]
    return "".join(row)


def _widest(runs: list[Run]) -> dict[int, Run]:
    """For each span the run with most room for its name."""
    widest: dict[int, Run] = {}
    for run in runs:
        known = widest.get(run.position)
        if known is None or run.last - run.first > known.last - known.first:
            widest[run.position] = run
    return widest
