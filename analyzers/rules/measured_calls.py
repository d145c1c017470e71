"""How long calls of a model take as a user would measure it, and which work belongs to each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tracer.analyzers.accounting import settle_steps, steps_at
from tracer.analyzers.context import Context
from tracer.analyzers.intervals import NONE, Longs


class MeasuredCalls(NamedTuple):
    """Aligned with the calls: begin and end with the work on the device. of: the call of each piece
    of work, -1 for none."""

    start_ns: Longs
    end_ns: Longs
    of: Longs


def measure_calls(context: Context, calls: pd.DataFrame) -> MeasuredCalls:
    """Calls of `root_calls`, in whatever order, none within another."""
    work = context.work
    host, host_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    order = np.argsort(host, kind="stable")
    asked = work.site if work.cpu_only else work.launch
    times = work.trace.start_ns[np.maximum(asked, 0)]
    at = steps_at(times, host[order], host_end[order])
    at = np.where((asked == NONE) | work.orphaned, NONE, at)
    settled = settle_steps(host[order], host_end[order], at, context.lanes.end_ns)
    start, end = (np.empty(order.size, dtype=np.int64) for _ in settled)
    start[order], end[order] = settled
    return MeasuredCalls(start, end, np.where(at == NONE, NONE, order[np.maximum(at, 0)]))
