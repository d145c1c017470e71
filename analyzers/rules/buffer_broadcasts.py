"""Broadcasts by which DistributedDataParallel makes the buffers of all ranks those of rank 0, at
the beginning of each forward pass."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.analyzers.context import Context
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take

Flags = NDArray[np.bool_]

_FORWARD = "DistributedDataParallel.forward"
_PACKING = "aten::flatten_dense_tensors"
# What packs buffers into one message, and unpacks them.
_PACKS = re.compile(r"aten::(un)?flatten_dense_tensors$|aten::(copy_|cat)$")
# Modules that keep statistics of what they have seen.
_WITH_STATISTICS = re.compile(r"(Sync)?BatchNorm|InstanceNorm")


class Buffers(NamedTuple):
    """sent: of each collective whether it sends buffers; packing_ns: the time of what packs and
    unpacks them; statistics: the classes of modules whose buffers change as they learn."""

    sent: Flags
    packing_ns: int
    statistics: tuple[str, ...]


def buffer_broadcasts(context: Context, analysis: Analysis) -> Buffers:
    """By the range that DistributedDataParallel writes: what lies in it and in no module is done
    before the model is called, or after it. Buffers are packed before; how gradients are put
    together, which it sends once, is not."""
    work, collectives = context.work, analysis.collectives
    beside = _beside_the_model(work)
    rows = collectives["work"].to_numpy()
    sent = (collectives["op"] == "broadcast").to_numpy() & beside[rows]
    sent[sent] = _after_packing(work, rows[sent])
    return Buffers(sent, _packing_ns(work, analysis, beside) if sent.any() else 0, _kept(work))


def _beside_the_model(work: Work) -> Flags:
    host, trace = work.host, work.trace
    forward = trace.named(lambda name: name == _FORWARD, "annotation", "operator")
    if not forward.any():
        return np.zeros(work.event.size, dtype=bool)
    site = np.where(work.site == NONE, work.operator, work.site)
    around = take(host.nearest(forward | host.of_kind("module")), site)
    beside: Flags = (around != NONE) & forward[np.maximum(around, 0)]
    return beside


def _after_packing(work: Work, rows: Longs) -> Flags:
    """Whether each of these broadcasts was asked for right after buffers were packed."""
    host, trace = work.host, work.trace
    outer = np.unique(host.outer_operator)
    outer = outer[outer != NONE].astype(np.int64)
    threads = trace.events["thread"].to_numpy()
    in_order = outer[np.lexsort((trace.start_ns[outer], threads[outer]))]
    before = np.full(len(trace.events), NONE, dtype=np.int64)
    alike = threads[in_order[1:]] == threads[in_order[:-1]]
    before[in_order[1:]] = np.where(alike, in_order[:-1], NONE)
    asked = take(before, take(host.outer_operator.astype(np.int64), work.site[rows]))
    packs = trace.names_matching(lambda name: name == _PACKING)
    packed: Flags = (asked != NONE) & packs[trace.name_codes[np.maximum(asked, 0)]]
    return packed


def _packing_ns(work: Work, analysis: Analysis, beside: Flags) -> int:
    outer = take(work.host.outer_operator.astype(np.int64), work.operator)
    packs = work.trace.names_matching(lambda name: _PACKS.match(name) is not None)
    mine = beside & (outer != NONE) & packs[work.trace.name_codes[np.maximum(outer, 0)]]
    mine[analysis.collectives["work"].to_numpy()] = False
    return int(analysis.work["charged_ns"].to_numpy()[mine].sum())


def _kept(work: Work) -> tuple[str, ...]:
    found = dict.fromkeys(kind for kind in work.tree.types if _WITH_STATISTICS.search(kind))
    listed = work.trace.table("model_modules")["type"].astype(str)
    found |= dict.fromkeys(kind for kind in listed.unique() if _WITH_STATISTICS.search(kind))
    return tuple(found)


def title_of_buffers(named: str, amount: str, packing: str) -> str:
    """`named`: the operation and its group."""
    return (
        "DistributedDataParallel sends the buffers of the model before each forward pass: "
        f"{named}, {amount}, and {packing} to pack and unpack them"
    )


def advice_on_buffers(statistics: tuple[str, ...]) -> str:
    """What to change, by whether the buffers change as the model learns."""
    switch = (
        "DistributedDataParallel(..., broadcast_buffers=False) (forward_sync_buffers=False where "
        "torch knows it)"
    )
    if not statistics:
        return (
            f"Leave it out: {switch}. No module that keeps statistics was seen, and tables such as "
            "those of rotary positions are the same on all ranks and do not change."
        )
    return (
        f"Leave it out: {switch}. They are the running statistics of {', '.join(statistics)}, "
        "which training does not read: each rank then keeps those of its own data, and rank 0's "
        "are saved as before. Where all ranks must have the same, torch.nn.SyncBatchNorm computes "
        "them together; a norm without such buffers (LayerNorm, GroupNorm) needs neither."
    )
