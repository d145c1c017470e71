"""Whether a late rank computes longer because it has more tokens than another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracer.rank_analysis import RankSummary

# Shares that differ by less are equal.
_EQUAL = 0.02
# More tokens explain more work if they are more by this share of what the work is more by.
_EXPLAINS = 0.5


@dataclass(frozen=True)
class Shares:
    """Mean tokens a step of a late rank and of one beside it in the same steps, and how many times
    as long the late one computes in them."""

    late: float
    beside: float
    work: float

    @property
    def ratio(self) -> float:
        """How many times as many tokens the late rank has."""
        return self.late / self.beside

    @property
    def equal(self) -> bool:
        """Whether it has no more tokens than the other."""
        return self.ratio <= 1 + _EQUAL

    @property
    def explain(self) -> bool:
        """Whether it computes longer because it has more tokens."""
        return not self.equal and self.ratio - 1 >= _EXPLAINS * (self.work - 1)


def share_of_work(
    summaries: Mapping[int, RankSummary], late: int, beside: int | None
) -> Shares | None:
    """The tokens of a late rank beside another's, the k-th step of one beside the k-th of the
    other; None where they are not known of all."""
    if beside is None:
        return None
    ranks = [summaries[rank] for rank in (late, beside)]
    count = min(len(rank.step_tokens) for rank in ranks)
    if not count or any((rank.step_tokens[:count] <= 0).any() for rank in ranks):
        return None
    tokens = [float(rank.step_tokens[:count].mean()) for rank in ranks]
    work = [float(rank.step_times[:count, 1].mean()) for rank in ranks]
    return Shares(tokens[0], tokens[1], work[0] / max(work[1], 1.0))
