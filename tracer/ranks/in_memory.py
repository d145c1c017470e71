"""Ranks beside each other whose recordings are understood already, and in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracer.rank_analysis import Doings, Interval, RankAnalysis, RankSummary, Rows

if TYPE_CHECKING:
    from tracer.analysis import Analysis


@dataclass(frozen=True)
class Kept:
    """The collectives of all ranks."""

    kept: Mapping[int, Rows]

    def rows(self, rank: int, begin: int, end: int) -> Rows:
        """Rows begin to end of one rank."""
        return self.kept[rank][begin:end]


@dataclass(frozen=True)
class Compared:
    """What was found out about the ranks, and what it was found from."""

    found: RankAnalysis
    summaries: Mapping[int, RankSummary]
    store: Kept


def compare_analyses(analyses: Mapping[int, Analysis], names: Mapping[int, str]) -> Compared:
    """Compare the ranks of one job. names: where the recording of each is."""
    from tracer.analyzers.ranks.compare import compare_ranks
    from tracer.analyzers.ranks.summary import summarise_rank
    from tracer.exporters.sentence import verdict

    pairs = {
        rank: summarise_rank(analysis, rank, names[rank]) for rank, analysis in analyses.items()
    }
    summaries = {
        rank: replace(summary, answer=verdict(analyses[rank]))
        for rank, (summary, _) in pairs.items()
    }
    store = Kept({rank: rows for rank, (_, rows) in pairs.items()})

    def describe(questions: Sequence[tuple[int, Sequence[Interval]]]) -> list[Doings]:
        return [_doings(analyses[rank], intervals) for rank, intervals in questions]

    return Compared(compare_ranks(summaries, store, describe), summaries, store)


def _doings(analysis: Analysis, intervals: Sequence[Interval]) -> Doings:
    """How a rank spent some intervals."""
    from tracer.analyzers.facts.places import Places
    from tracer.analyzers.pipeline import work_of
    from tracer.analyzers.ranks.before import describe_doings

    return describe_doings(analysis, intervals, Places(work_of(analysis.trace)))
