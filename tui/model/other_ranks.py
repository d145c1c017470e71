"""The devices of other ranks as lanes on the clock of the rank that is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.intervals import Longs
from tracer.rank_analysis import Clock
from tracer.tui.model.coverage import Coverage, coverage_of
from tracer.tui.session import Session


@dataclass(frozen=True)
class OtherRank:
    """When any device of another rank worked, and when it was in a collective."""

    rank: int
    busy: Coverage
    collectives: Coverage


def other_ranks(session: Session) -> tuple[OtherRank, ...]:
    """The other ranks of the run whose clocks are aligned with the shown one's."""
    comparison = session.comparison
    alignment = None if comparison is None else comparison.ranks.alignment
    if comparison is None or alignment is None:
        return ()
    shown = next((r for r, n in comparison.numbers.items() if n == session.shown), None)
    if shown is None or shown not in alignment.clocks:
        return ()
    own = alignment.clocks[shown]
    found = []
    for rank, number in sorted(comparison.numbers.items()):
        analysis, clock = session.recordings[number].analysis, alignment.clocks.get(rank)
        same = alignment.references.get(rank) == alignment.references.get(shown)
        if rank != shown and analysis is not None and clock is not None and same:
            found.append(_other(rank, analysis, clock, own))
    return tuple(found)


def _other(rank: int, analysis: Analysis, clock: Clock, own: Clock) -> OtherRank:
    events = analysis.work["event"].to_numpy()
    start = on_clock(analysis.trace.start_ns[events], clock, own)
    end = on_clock(analysis.trace.end_ns[events], clock, own)
    collective = (analysis.work["work_class"] == "collective").to_numpy()
    return OtherRank(rank, coverage_of(start, end), coverage_of(start[collective], end[collective]))


def on_clock(times_ns: Longs, clock: Clock, own: Clock) -> Longs:
    """Times of one clock on another: through the reference of both, which drifts evenly."""
    if not times_ns.size:
        return times_ns
    reference = clock.aligned(times_ns)
    origin = int(reference[0])
    drifted = np.rint((reference - origin) * own.drift).astype(np.int64)
    moved: Longs = own.own(origin) + (reference - origin) + drifted
    return moved
