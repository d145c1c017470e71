"""Ranks beside each other in the explorer: the comparison of `tracer ranks` on what is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracer.errors import InputError
from tracer.rank_analysis import Alignment, Doings, Interval, RankAnalysis, RankSummary, Rows
from tracer.tui.session import Comparison, Session

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.analyzers.ranks.match import JoinedLane


@dataclass(frozen=True)
class _Kept:
    """The collectives of all ranks, which are in memory here."""

    kept: Mapping[int, Rows]

    def rows(self, rank: int, begin: int, end: int) -> Rows:
        """Rows begin to end of one rank."""
        return self.kept[rank][begin:end]


def compare_open(session: Session) -> Comparison | None:
    """Compare the open recordings, when they are ranks of one run; None when they are not."""
    from tracer.analyzers.ranks.compare import compare_ranks
    from tracer.analyzers.ranks.summary import summarise_rank
    from tracer.exporters.sentence import verdict

    numbers = ranks_of(session)
    if len(numbers) < 2:
        return None
    analyses = {rank: _analysis(session, number) for rank, number in numbers.items()}
    pairs = {
        rank: summarise_rank(analysis, rank, session.recordings[numbers[rank]].name)
        for rank, analysis in analyses.items()
    }
    summaries = {
        rank: replace(summary, answer=verdict(analyses[rank]))
        for rank, (summary, _) in pairs.items()
    }
    store = _Kept({rank: rows for rank, (_, rows) in pairs.items()})

    def describe(questions: Sequence[tuple[int, Sequence[Interval]]]) -> list[Doings]:
        return [_doings(analyses[rank], intervals) for rank, intervals in questions]

    found = compare_ranks(summaries, store, describe)
    steps = {rank: len(analysis.steps) for rank, analysis in analyses.items()}
    return Comparison(found, step_waits(found, summaries, store, steps), numbers)


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


def _doings(analysis: Analysis, intervals: Sequence[Interval]) -> Doings:
    """How a rank spent some intervals."""
    from tracer.analyzers.facts.places import Places
    from tracer.analyzers.pipeline import understand
    from tracer.analyzers.ranks.before import describe_doings

    return describe_doings(analysis, intervals, Places(understand(analysis.trace).work))


def step_waits(
    found: RankAnalysis,
    summaries: Mapping[int, RankSummary],
    store: _Kept,
    steps: Mapping[int, int],
) -> dict[int, NDArray[np.int64]]:
    """How long each rank waited for others in each of its steps; empty without an alignment."""
    from tracer.analyzers.ranks.match import join_lanes
    from tracer.analyzers.ranks.waits import begins_window

    if found.alignment is None:
        return {}
    waits: dict[int, NDArray[np.int64]] = {
        rank: np.zeros(count, dtype=np.int64) for rank, count in steps.items()
    }
    lanes = join_lanes(summaries, store)
    begins = begins_window(lanes, summaries, store)
    cpu_only = {rank for rank, summary in summaries.items() if summary.cpu_only}
    for lane in lanes:
        _add_waits(waits, lane, store, found.alignment, begins[lane.key], cpu_only)
    return waits


def _add_waits(
    waits: Mapping[int, NDArray[np.int64]],
    lane: JoinedLane,
    store: _Kept,
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
