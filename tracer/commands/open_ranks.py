"""Ranks beside each other in the explorer: the comparison of `tracer ranks` on what is open."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracer.errors import InputError
from tracer.rank_analysis import Alignment
from tracer.ranks.in_memory import Compared, Kept, compare_analyses
from tracer.tui.session import Comparison, Session

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.analyzers.ranks.match import JoinedLane


def compare_open(session: Session) -> Comparison | None:
    """Compare the open recordings, when they are ranks of one run; None when they are not."""
    numbers = ranks_of(session)
    if len(numbers) < 2:
        return None
    analyses = {rank: _analysis(session, number) for rank, number in numbers.items()}
    names = {rank: session.recordings[number].name for rank, number in numbers.items()}
    compared = compare_analyses(analyses, names)
    steps = {rank: len(analysis.steps) for rank, analysis in analyses.items()}
    return Comparison(compared.found, step_waits(compared, steps), numbers)


def _analysis(session: Session, number: int) -> Analysis:
    analysis = session.recordings[number].analysis
    assert analysis is not None
    return analysis


def ranks_of(session: Session) -> dict[int, int]:
    """Rank -> number of its recording; empty when the recordings are not ranks of one run."""
    from tracer.ranks.identity import find_ranks

    read = [n for n, r in enumerate(session.recordings) if r.analysis is not None]
    by_name = {session.recordings[number].name: number for number in read}
    try:
        found = find_ranks(list(by_name))
    except InputError:
        return {}
    if len(found.runs) != 1:
        return {}
    known = [source for source in found.runs[0] if source.rank is not None]
    ranks = {source.rank: by_name[source.place] for source in known if source.rank is not None}
    return ranks if len(ranks) == len(known) else {}


def step_waits(compared: Compared, steps: Mapping[int, int]) -> dict[int, NDArray[np.int64]]:
    """How long each rank waited for others in each of its steps; empty without an alignment."""
    from tracer.analyzers.ranks.match import join_lanes
    from tracer.analyzers.ranks.waits import begins_window

    summaries, store, alignment = compared.summaries, compared.store, compared.found.alignment
    if alignment is None:
        return {}
    waits: dict[int, NDArray[np.int64]] = {
        rank: np.zeros(count, dtype=np.int64) for rank, count in steps.items()
    }
    lanes = join_lanes(summaries, store)
    begins = begins_window(lanes, summaries, store)
    cpu_only = {rank for rank, summary in summaries.items() if summary.cpu_only}
    for lane in lanes:
        _add_waits(waits, lane, store, alignment, begins[lane.key], cpu_only)
    return waits


def _add_waits(
    waits: Mapping[int, NDArray[np.int64]],
    lane: JoinedLane,
    store: Kept,
    alignment: Alignment,
    begins: bool,
    cpu_only: Set[int],
) -> None:
    from tracer.analyzers.ranks.waits import arrivals

    for found in arrivals(lane, store, alignment, begins):
        steps = found.calls.take("step")
        for place, rank in enumerate(found.calls.ranks):
            # What was waited in the call that ranks enter as they begin is no rank's fault.
            counted = found.calls.present[place] & (steps[place] >= 0) & ~found.entered
            waited = found.lost_ns(place) if rank in cpu_only else found.wait_ns[place]
            times = np.maximum(waited[counted], 0)
            np.add.at(waits[rank], steps[place][counted], times)
