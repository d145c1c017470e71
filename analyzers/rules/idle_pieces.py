"""Idle in its pieces, by cause and by place: what the rules `gap.*` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.facts.samples import Called, Sampled, Samples
from tracer.analyzers.gaps import CAUSE_CODE, PAUSES
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.judging import between_steps
from tracer.findings import Where

# Host work is one block, and not the pauses between operators, from this many usual paces on,
# or, where no pace is known, from this share of a step; in any case from the larger share on.
_BLOCK_PACES, _BLOCK_SHARE, _LARGE_SHARE = 4, 0.005, 0.25
# Pieces looked at for the events to show.
_EVIDENCE = 400
# A place is named when it costs this share of the window.
NAMED_SHARE = 0.002


class IdlePieces:
    """Idle with its causes, and the views that the rules of this file share."""

    def __init__(self, context: Context) -> None:
        self.context, self.gaps = context, context.gaps
        self.work, self.trace = context.work, context.work.trace
        self.places = context.work.once(Places)
        self.length: Longs = self.gaps.end_ns - self.gaps.start_ns
        self.pace_ns = context.gaps.pace_ns

    @cached_property
    def compiling(self) -> Longs:
        """The compile range around each event."""
        work = self.work
        calls = work.calls
        return work.host.nearest(calls.compiling)

    @cached_property
    def fetching(self) -> Longs:
        """The outermost loader or tokenizer around each event."""
        work = self.work
        calls = work.calls
        return work.host.outermost(calls.input)

    def main_place(self, rows: Longs) -> Where:
        """The function that most of this idle lies in, whatever operators it calls."""
        cost: dict[Where, int] = {}
        for where, mine in self.by_place(rows).items():
            place = replace(where, operator=None, module=None)
            cost[place] = cost.get(place, 0) + int(self.length[mine].sum())
        named = {place: ns for place, ns in cost.items() if place.function is not None}
        chosen = named or cost
        return max(chosen, key=lambda place: chosen[place]) if chosen else Where()

    @cached_property
    def stretch_ns(self) -> Longs:
        """Length of the unbroken stretch of one cause that each piece is part of."""
        gaps = self.gaps
        new = np.ones(self.length.size, dtype=bool)
        new[1:] = (gaps.start_ns[1:] != gaps.end_ns[:-1]) | (gaps.cause[1:] != gaps.cause[:-1])
        run = np.cumsum(new) - 1
        if not run.size:
            return self.length
        total = np.bincount(run, weights=self.length).astype(np.int64)
        whole: Longs = total[run]
        return whole

    def of_cause(self, cause: str) -> Longs:
        """Pieces with this cause."""
        return np.flatnonzero(self.gaps.cause == CAUSE_CODE[cause])

    def steps_of(self, rows: Longs) -> tuple[int, ...]:
        """Steps that these pieces lie in."""
        return self.context.plan.touched(self.gaps.step[rows], self.gaps.start_ns[rows])

    def between_steps(self, rows: Longs) -> dict[str, int]:
        """The detail of a finding that tells how much of these pieces lies between steps."""
        return between_steps(self.gaps.step[rows], self.length[rows])

    def by_place(self, rows: Longs) -> dict[Where, Longs]:
        """Pieces grouped by the place of their event, layers folded; where no function is known of
        it, by what samples of the stacks saw."""
        keys: dict[int, Where] = {}
        for event in self.gaps.event[rows].tolist():
            if event not in keys:
                keys[event] = self._place(event)
        places = self._sampled(rows, [keys[event] for event in self.gaps.event[rows].tolist()])
        groups: dict[Where, list[int]] = {}
        for row, place in zip(rows.tolist(), places, strict=True):
            groups.setdefault(place, []).append(row)
        return {where: np.array(found, dtype=np.int64) for where, found in groups.items()}

    def _sampled(self, rows: Longs, places: list[Where]) -> list[Where]:
        """The places, the unnamed ones with the function, or the line alone, of the samples."""
        if not len(self.samples):
            return places
        out = list(places)
        numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
        alike = np.array([numbers[place] for place in places], dtype=np.int64)
        unnamed = np.array([place.file is None for place in places], dtype=bool)
        for device in np.unique(self.gaps.device[rows]).tolist():
            mine = np.flatnonzero(unnamed & (self.gaps.device[rows] == device))
            own = rows[mine]
            seen = self.samples.explain(self.gaps.start_ns[own], self.gaps.end_ns[own], alike[mine])
            for at, place in zip(mine.tolist(), seen, strict=True):
                out[at] = places[at] if place is None else _with_sample(places[at], place)
        return out

    @cached_property
    def samples(self) -> Samples:
        """Samples of the stacks, as they explain the idle."""
        paused = np.isin(self.gaps.cause, PAUSES)
        return Samples(self.trace, self.gaps.start_ns[paused], self.gaps.end_ns[paused])

    def called(self, rows: Longs, where: Where) -> Called | None:
        """What a place calls for most of these pieces, by samples of the stacks."""
        return self.samples.called(self.gaps.start_ns[rows], self.gaps.end_ns[rows], where)

    def _place(self, event: int) -> Where:
        if event == NONE:
            return Where()
        where = self.places.of(event)
        return replace(where, module=folded(where.module) if where.module else None)

    def evidence(self, rows: Longs) -> tuple[int, ...]:
        """Events of these pieces, the longest first, at most a hundred."""
        longest = rows
        if rows.size > _EVIDENCE:
            longest = rows[np.argpartition(-self.length[rows], _EVIDENCE)[:_EVIDENCE]]
        order = longest[np.argsort(-self.length[longest], kind="stable")]
        events = dict.fromkeys(e for e in self.gaps.event[order].tolist() if e != NONE)
        return tuple(list(events)[:100])


def _with_sample(place: Where, seen: Sampled) -> Where:
    where = seen.where
    function = None if seen.kind == "line" else where.function
    return Where(where.file, where.line, function, place.module)


Words = Callable[[IdlePieces, Where, str], tuple[str, str]]


def is_block(pieces: IdlePieces, analysis: Analysis) -> NDArray[np.bool_]:
    """Pieces of an unbroken stretch of one cause that is long enough to be a piece of work of the
    host, and not a pause between operators; many small functions can make one stretch."""
    walls = analysis.steps["wall_ns"].to_numpy()
    step = float(np.median(walls)) if walls.size else 0.0
    usual = _BLOCK_PACES * pieces.pace_ns or _BLOCK_SHARE * step
    block: NDArray[np.bool_] = pieces.stretch_ns > min(usual, _LARGE_SHARE * step)
    return block
