"""What a generation does between its calls of a model: it chooses tokens, judges whether to stop,
and prepares the next call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs

CONFIDENCE = 0.7


def by_generation(work: Work, roles: Roles, out: Attribution) -> None:
    """Work asked for between two calls of one generation serves the choice of tokens, where no
    operator says otherwise; behind its last call, for as long as between the others."""
    rows = out.open[work.site[out.open] != NONE]
    site = work.site[rows]
    asked = _threads_of(work)[work.trace.events["thread"].to_numpy()[site]]
    calls = work.trace.table("root_calls")
    for thread in np.unique(calls["thread"][calls["generation"] >= 0]).tolist():
        mine = calls[calls["thread"] == thread].sort_values("start_ns")
        here = rows[asked == thread]
        columns = (mine[name].to_numpy() for name in ("start_ns", "end_ns", "generation"))
        here = here[_between(work.trace.start_ns[work.site[here]], *columns)]
        sampling = np.full(here.size, BUCKET_CODE["other", "sampling"], dtype=np.int16)
        out.fill(here, sampling, "operator", CONFIDENCE)


def _threads_of(work: Work) -> Longs:
    """The system's number of each thread, by its place in the table of threads; -1 behind all."""
    numbers = work.trace.table("threads")["tid"].to_numpy().astype(np.int64)
    return np.append(numbers, NONE)


def _between(time: Longs, start: Longs, end: Longs, generation: Longs) -> NDArray[np.bool_]:
    """Which moments lie between calls of a generation. The calls come one after another."""
    before = np.searchsorted(start, time, side="right") - 1
    follows = np.append(generation[1:] == generation[:-1], False)
    pause = np.where(follows, np.append(start[1:], 0) - end, 0)
    longest = np.zeros(int(generation.max()) + 2, dtype=np.int64)
    np.maximum.at(longest, generation, pause)
    until = end + np.where(follows, pause, longest[generation])
    pausing = (time >= end[before]) & (time < until[before])
    inside: NDArray[np.bool_] = pausing & (before != NONE) & (generation[before] >= 0)
    return inside
