"""The rung of what needs no evidence: communication and copies, which their kind decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, TRANSFER
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import COLLECTIVE, TRANSFER_CLASS, Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.operations import normal_operation, range_operation


def by_kind(work: Work, roles: Roles, out: Attribution) -> None:
    transfers = np.flatnonzero(work.work_class == TRANSFER_CLASS)
    out.fill(transfers, np.full(transfers.size, TRANSFER, dtype=np.int16), "operator", 1.0)
    rows = np.flatnonzero(work.work_class == COLLECTIVE)
    ops, recorded = collective_ops(work, rows)
    codes = np.array([BUCKET_CODE["communication", op] for op in ops], dtype=np.int16)
    out.fill(rows[recorded], codes[recorded], "operator", 1.0)
    out.fill(rows, codes, "name", 0.9)


def collective_ops(work: Work, rows: Longs) -> tuple[list[str], NDArray[np.bool_]]:
    """The operation of each collective, and whether metadata or a range said it."""
    by_metadata = _recorded_ops(work)
    ops, recorded = [], np.zeros(rows.size, dtype=bool)
    for place, row in enumerate(rows.tolist()):
        said = by_metadata.get(row, "")
        recorded[place] = bool(said)
        ops.append(said or work.names[work.name_code[row]].op or "other")
    return ops, recorded


def _recorded_ops(work: Work) -> dict[int, str]:
    """Work row -> operation, from the row's own metadata or the host range around its launch."""
    table = work.trace.table("collectives")
    said = dict(zip(table["event"].tolist(), table["op"].astype(str), strict=True))
    ranges = work.trace.named(range_operation, "operator", "annotation")
    ranges[list(said)] = True
    around = take(work.host.nearest(ranges), work.site)
    out: dict[int, str] = {}
    for row in np.flatnonzero(work.work_class == COLLECTIVE).tolist():
        event, holder = int(work.event[row]), int(around[row])
        name = work.trace.names[work.trace.name_codes[holder]] if holder != NONE else ""
        own = work.trace.names[work.trace.name_codes[event]]
        op = normal_operation(said.get(event, "") or said.get(holder, ""))
        op = op or range_operation(name) or (range_operation(own) if work.cpu_only else "")
        if op:
            out[row] = op
    return out
