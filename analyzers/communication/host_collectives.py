"""Collectives that the host itself carries out (gloo, MPI, UCC): ranges on the library's threads.

The operator that asked for one returns at once; the range shows how long it took.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import Host
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.names.operations import range_operation

_ASKING = "c10d::"
# Ranges of NCCL and its like on the host are the launch alone.
_ON_HOST = ("gloo:", "mpi:", "ucc:")


def host_work(host: Host) -> tuple[Longs, Longs]:
    """What fills the time of a recording without a device: its leaf operators and the ranges of
    collectives, and for each the host row that stands for it, the operator that asked."""
    ranges, asked = host_collectives(host)
    leaves = host.leaf_operators
    if not ranges.size:
        return leaves, leaves
    # An operator that only asked for a collective is not work of its own.
    leaves = leaves[~_asking(host)[leaves] | ~np.isin(_operations(host)[leaves], _present(host))]
    event = np.concatenate([leaves, ranges])
    site = np.concatenate([leaves, asked])
    order = np.argsort(event, kind="stable")
    return event[order], site[order]


def host_collectives(host: Host) -> tuple[Longs, Longs]:
    """The ranges of collectives, and the operator that asked for each, or else the range itself."""
    ranges = _ranges(host)
    operators = np.flatnonzero(_asking(host) & host.of_kind("operator"))
    codes = _operations(host)
    site = ranges.copy()
    for code in np.unique(codes[ranges]).tolist():
        ran = np.flatnonzero(codes[ranges] == code)
        askers = operators[codes[operators] == code]
        # The library carries them out in the order in which they were asked for.
        if askers.size == ran.size:
            site[ran] = askers
    return ranges, site


def _ranges(host: Host) -> Longs:
    """Outermost ranges that name a collective and lie in no operator that asked for one."""
    named = host.trace.named(lambda name: name.startswith(_ON_HOST), "annotation", "operator")
    named &= _operations(host) >= 0
    rows = np.flatnonzero(named)
    outer: Longs = rows[host.outermost(named)[rows] == rows]
    return outer


def _present(host: Host) -> Longs:
    return np.unique(_operations(host)[_ranges(host)])


def _asking(host: Host) -> NDArray[np.bool_]:
    trace = host.trace
    asking = trace.names_matching(lambda name: name.startswith(_ASKING))
    mask: NDArray[np.bool_] = asking[trace.name_codes]
    return mask


def _operations(host: Host) -> Longs:
    """A number for the operation that each event names; -1 for none."""
    names = [range_operation(name) for name in host.trace.names]
    kinds = {name: code for code, name in enumerate(sorted(set(names) - {""}))}
    codes = np.array([kinds.get(name, NONE) for name in names], dtype=np.int64)
    found: Longs = codes[host.trace.name_codes] if codes.size else np.zeros(0, dtype=np.int64)
    return found
