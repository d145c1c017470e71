"""Which sums of gradients over the ranks a step could do without: where it accumulates gradients
over several backward passes, only those of the last pass are needed."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analyzers.context import Context
from tracer.analyzers.evidence.directions import DIRECTIONS
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take

Flags = NDArray[np.bool_]

_SUMS = ("all_reduce", "reduce_scatter")
# Where DDP and FSDP reduce gradients. What tensor parallelism sums within a layer's backward lies
# in nodes of its own.
_GRADIENT_NODE = re.compile(r"AccumulateGrad$|RegisterPostBackward")
_GRADIENT_RANGE = re.compile(r"FSDP::post_backward")
_OPTIMIZER = DIRECTIONS.index("optimizer")
_BACKWARD = (DIRECTIONS.index("backward"), DIRECTIONS.index("recompute"))
# A pass reduces as the last one of its update does from this share of the calls on.
_LIKE_THE_LAST = 0.5


class Spared(NamedTuple):
    """needless: of each collective whether the last pass of an update repeats it; passes: backward
    passes of the usual update, 0 where none of them repeats anything."""

    needless: Flags
    passes: int


def needless_sums(context: Context, collectives: pd.DataFrame) -> Spared:
    """By the order in which the host issued forward, backward and optimizer work."""
    rows = collectives["work"].to_numpy()
    none = Spared(np.zeros(rows.size, dtype=bool), 0)
    sums = collectives["op"].isin(_SUMS).to_numpy() & _of_gradients(context.work, rows)
    if not sums.any():
        return none
    backward, update = _order(context)
    needless = np.zeros(rows.size, dtype=bool)
    passes: list[int] = []
    # Of an update that is not in the recording it is not known which pass will be the last.
    for one in np.unique(update[context.attribution.direction == _OPTIMIZER]).tolist():
        mine = np.flatnonzero(sums & (update[rows] == one))
        each, counts = np.unique(backward[rows[mine]], return_counts=True)
        like = each[counts >= _LIKE_THE_LAST * counts[-1]] if each.size else each
        needless[mine] = np.isin(backward[rows[mine]], like[:-1])
        passes.append(like.size)
    usual = int(np.median(passes)) if passes else 0
    return Spared(needless, usual) if usual > 1 else none


def _of_gradients(work: Work, rows: Longs) -> Flags:
    site, names = work.site[rows], work.trace.name_codes
    node = take(work.host.backward_node, site)
    of_node = work.trace.names_matching(lambda name: _GRADIENT_NODE.search(name) is not None)
    ranges = work.trace.named(lambda name: _GRADIENT_RANGE.search(name) is not None, "annotation")
    inside = take(work.host.nearest(ranges), site) != NONE
    found: Flags = ((node != NONE) & of_node[names[np.maximum(node, 0)]]) | inside
    return found


def _order(context: Context) -> tuple[Longs, Longs]:
    """For each piece of work how many backward passes have begun when the host issues it, and how
    many updates of the weights are over."""
    work, direction = context.work, context.attribution.direction
    issued = np.where(work.site == NONE, work.event, work.site)
    order = np.argsort(work.trace.start_ns[issued], kind="stable")
    told = direction[order]
    told = told[np.maximum.accumulate(np.where(told > 0, np.arange(told.size), 0))]
    returns = np.isin(told, _BACKWARD)
    backward, update = np.zeros(order.size, dtype=np.int64), np.zeros(order.size, dtype=np.int64)
    backward[order] = np.cumsum(np.diff(returns.astype(np.int8), prepend=0) > 0)
    update[order] = np.cumsum(np.diff((told == _OPTIMIZER).astype(np.int8), prepend=0) < 0)
    return backward, update
