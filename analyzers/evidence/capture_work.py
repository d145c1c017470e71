"""Work that the capture of a graph does for itself: the seed and offset of its random numbers are
set right before the stream begins to record."""

from __future__ import annotations

import numpy as np

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE

_FILL = "aten::fill_"
_FILLS = 2  # seed and offset
_NEAR = 64  # operators of other threads that can stand between
CONFIDENCE = 0.7


def by_capture(work: Work, roles: Roles, out: Attribution) -> None:
    """Random numbers serve the choice of tokens; their state in a graph counts there."""
    trace, host = work.trace, work.host
    begins = trace.named(lambda name: "StreamBeginCapture" in name, "runtime")
    rows = out.open[work.site[out.open] != NONE]
    if not begins.any() or not rows.size:
        return
    operators = np.flatnonzero(host.of_kind("operator") & (host.outer_operator == host.operator))
    threads = trace.events["thread"].to_numpy()
    states = np.zeros(len(trace.events), dtype=bool)
    for begin in np.flatnonzero(begins).tolist():
        at = int(np.searchsorted(operators, begin))
        before = operators[max(at - _NEAR, 0) : at]
        last = before[threads[before] == threads[begin]][-_FILLS:]
        names = [trace.names[code] for code in trace.name_codes[last]]
        states[last] = names == [_FILL] * _FILLS
    mine = rows[states[np.maximum(host.operator[work.site[rows]], 0)]]
    sampling = BUCKET_CODE["other", "sampling"]
    out.fill(mine, np.full(mine.size, sampling, dtype=np.int16), "operator", CONFIDENCE)
