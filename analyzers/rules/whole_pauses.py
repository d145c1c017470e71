"""Pauses between the steps of a CPU as a whole.

Who saves a model or computes a metric between two steps runs operators as well: what one loses by
it is the time of both. Samples of the stacks tell how far the function of a pause reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.context import Context
from tracer.analyzers.facts.samples import Samples
from tracer.analyzers.intervals import NONE, Longs
from tracer.findings import Where

# What its pieces fill of the time between two steps is all of it where no sample saw another place.
_MOST = 0.5


@dataclass(frozen=True)
class WholePauses:
    """One place between two steps. `of_piece`: which of them each piece of idle is in, -1 none;
    from and to: how far it reaches."""

    of_piece: Longs
    start_ns: Longs
    end_ns: Longs

    def lengths(self, gap: Longs, length_ns: Longs) -> Longs:
        """How long each pause is, by its pieces: in which whole gap each is, as a step may begin in
        the middle of it, and how long."""
        # What of such a gap lies in a step is of the same pause.
        owners = dict(zip(gap.tolist(), self.of_piece.tolist(), strict=True))
        own = self.of_piece != NONE
        owners |= dict(zip(gap[own].tolist(), self.of_piece[own].tolist(), strict=True))
        owner = np.array([owners[one] for one in gap.tolist()], dtype=np.int64)
        inside = np.flatnonzero(~own & (owner != NONE))
        whole = self.end_ns - self.start_ns
        np.add.at(whole, owner[inside], length_ns[inside])
        alone = owner == NONE
        _, of = np.unique(gap[alone], return_inverse=True)
        others = np.bincount(of, weights=length_ns[alone]).astype(np.int64)
        return np.concatenate([whole, others])


def whole_pauses(
    context: Context, rows: Longs, others: Longs, place: tuple[Where, bool] | None
) -> WholePauses:
    """How far the place of these pieces of idle reaches between the steps. `others`: pieces that
    have another cause; `place`: the place, and whether its line alone is it; None: not known."""
    gaps, plan = context.gaps, context.plan
    samples = Samples(context.work.trace, gaps.start_ns[rows], gaps.end_ns[rows])
    where, by_line = place or (Where(), False)
    times, mine = samples.at_place(where, by_line=by_line)
    foreign = np.concatenate([times[~mine], gaps.start_ns[others]])
    turn = np.searchsorted(plan.end_ns, gaps.start_ns[rows], side="right") - 1
    inside = (gaps.step[rows] != NONE) | (turn >= plan.start_ns.size - 1)
    turn[inside | (place is None)] = NONE
    of_piece, spans = np.full(rows.size, NONE, dtype=np.int64), list[tuple[int, int]]()
    for before in np.unique(turn[turn != NONE]).tolist():
        pieces = rows[turn == before]
        edges = int(plan.end_ns[before]), int(plan.start_ns[before + 1])
        span = _reach(edges, gaps.start_ns[pieces], gaps.end_ns[pieces], times[mine], foreign)
        if span is not None:
            of_piece[turn == before] = len(spans)
            spans.append(span)
    reach = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return WholePauses(of_piece, reach[:, 0], reach[:, 1])


def _reach(
    edges: tuple[int, int], starts: Longs, ends: Longs, seen: Longs, foreign: Longs
) -> tuple[int, int] | None:
    """From where to where between two steps a place reaches: up to them where nothing else was seen
    on the way; None where something else was seen in the middle."""
    seen, foreign = _between(seen, edges), _between(foreign, edges)
    if not seen.size and (ends - starts).sum() < _MOST * (edges[1] - edges[0]):
        return None
    first = int(np.concatenate([starts, seen]).min())
    last = int(np.concatenate([ends, seen]).max())
    if _between(foreign, (first, last)).size:
        return None
    return (
        first if (foreign < first).any() else edges[0],
        last if (foreign >= last).any() else edges[1],
    )


def _between(times: Longs, edges: tuple[int, int]) -> Longs:
    inside: NDArray[np.bool_] = (times >= edges[0]) & (times < edges[1])
    return times[inside]
