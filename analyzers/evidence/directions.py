"""Which way work of a training step goes: forward, backward, optimizer, recompute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import Host
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take

DIRECTIONS = ("", "forward", "backward", "optimizer", "recompute")


def find_directions(work: Work) -> NDArray[np.int8]:
    """Training only: which way each piece of work goes."""
    host, site = work.host, np.where(work.site == NONE, work.operator, work.site)
    node = take(host.backward_node, site)
    optimizer = _within(host, site, "Optimizer.")  # its step, and the gradients it clears
    learning = (node != NONE).any() or optimizer.any()
    out = np.full(site.size, 1 if learning else 0, dtype=np.int8)
    out[node != NONE] = 2
    inside = take(work.tree.range_event, site)
    recomputed = (node != NONE) & (inside != NONE)
    recomputed &= work.trace.start_ns[np.maximum(inside, 0)] >= work.trace.start_ns[node]
    again = take(_graded_operators(host), site)
    recomputed |= (node != NONE) & (again != NONE) & (again >= node)
    out[recomputed] = 4
    out[optimizer] = 3
    return _with_captured(work, out)


def _graded_operators(host: Host) -> Longs:
    """For each event the innermost operator around it that autograd recorded as a forward one:
    inside the backward pass that is a checkpoint, which computes it again."""
    sequences = host.trace.table("sequences")
    graded = np.zeros(len(host.trace.events), dtype=bool)
    graded[sequences["event"].to_numpy()[sequences["forward_thread"].to_numpy() <= 0]] = True
    return host.nearest(graded & host.of_kind("operator"))


def _with_captured(work: Work, directions: NDArray[np.int8]) -> NDArray[np.int8]:
    """Nodes of captures seen elsewhere go the way that they went there."""
    known = np.flatnonzero(work.node != NONE)
    if not known.size:
        return directions
    said = work.trace.table("captured_nodes")["direction"].astype(str)
    codes = said.map({way: code for code, way in enumerate(DIRECTIONS)}).to_numpy()
    out = directions.copy()
    out[known] = codes[work.node[known]]
    return out


def _within(host: Host, site: Longs, prefix: str) -> NDArray[np.bool_]:
    ranges = host.trace.named(lambda name: name.startswith(prefix), "annotation", "operator")
    inside: NDArray[np.bool_] = take(host.nearest(ranges), site) != NONE
    return inside
