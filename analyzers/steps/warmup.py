"""Which steps are warm-up: those that hold one-time costs which most steps do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.gaps import CAUSE_CODE, Gaps
from tracer.analyzers.intervals import NONE, Longs

# A one-time cost sets a step apart from this share of its wall time on.
_NOTABLE = 0.05
# From this share of the steps on, a cost returns and is no warm-up.
_MOST = 0.5


@dataclass(frozen=True)
class FirstUse:
    """One-time work by step: compilation, library set-up, code loading, growth of the cache."""

    cost_ns: Longs  # of each step
    warmup: NDArray[np.bool_]
    returns: bool  # most steps hold such a cost


def find_first_use(gaps: Gaps, start_ns: Longs, end_ns: Longs) -> FirstUse:
    """Idle under compilation and set-up in each step, and the steps that it sets apart."""
    cost = np.zeros(start_ns.size, dtype=np.int64)
    mine = (gaps.cause == CAUSE_CODE["compile"]) & (gaps.step != NONE)
    np.add.at(cost, gaps.step[mine], (gaps.end_ns - gaps.start_ns)[mine])
    notable = cost > _NOTABLE * np.maximum(end_ns - start_ns, 1)
    returns = bool(notable.size) and float(notable.mean()) > _MOST
    one = start_ns.size < 2
    warmup = np.zeros(start_ns.size, dtype=bool) if returns or one else notable
    return FirstUse(cost, warmup, returns)
