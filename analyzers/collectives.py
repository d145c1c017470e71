"""Collectives as rows: operation, group, bytes, time exposed and hidden."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.analysis import BUCKETS, TABLES
from tracer.analyzers.attribution import COLLECTIVE, Attribution, Work
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.events import make_table

# Sizes of the types that torch.distributed and NCCL name, in bytes.
ITEM_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "uint64": 8, "float": 4, "float32": 4,
    "int": 4, "int32": 4, "uint32": 4, "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_SIZED_BY_OUTPUT = ("all_gather",)


def tabulate_collectives(
    work: Work, attribution: Attribution, exposed: Longs, overlapped: Longs, step: Longs
) -> pd.DataFrame:
    """The table `collectives` of an analysis; wait and wire are not known from one rank."""
    rows = np.flatnonzero(work.work_class == COLLECTIVE)
    recorded = work.trace.table("collectives")
    at = _metadata_rows(work, rows)
    ops = [BUCKETS[code][1] for code in attribution.bucket[rows].tolist()]

    def text(column: str) -> list[str]:
        values = recorded[column].astype(str).tolist()
        return [values[i] if i != NONE else "" for i in at.tolist()]

    def number(column: str) -> Longs:
        return take(recorded[column].to_numpy(), at)

    dtype = text("dtype")
    return make_table(
        TABLES["collectives"],
        {
            "work": rows,
            "op": ops,
            "group": text("group"),
            "group_size": number("group_size"),
            "sequence": number("sequence"),
            "bytes": _bytes(ops, dtype, number("in_elements"), number("out_elements")),
            "dtype": dtype,
            "start_ns": work.trace.start_ns[work.event[rows]],
            "end_ns": work.trace.end_ns[work.event[rows]],
            "exposed_ns": exposed[rows],
            "overlapped_ns": overlapped[rows],
            "step": step[rows],
            "module": work.module[rows],
        },
    )


def _metadata_rows(work: Work, rows: Longs) -> Longs:
    """Row of the side table that describes each collective: its own, or that of the host range
    around its launch."""
    described = work.trace.table("collectives")["event"].to_numpy()
    own = lookup(described, work.event[rows])
    mask = np.zeros(len(work.trace.events), dtype=bool)
    mask[described] = True
    around = take(work.host.nearest(mask), work.site[rows])
    return np.where(own == NONE, lookup(described, around), own)


def _bytes(ops: list[str], dtype: list[str], inputs: Longs, outputs: Longs) -> list[int]:
    """Bytes as bandwidth counts them (nccl-tests): the output of a gather, else the input."""
    out = []
    for op, kind, given, made in zip(ops, dtype, inputs.tolist(), outputs.tolist(), strict=True):
        elements = made if op in _SIZED_BY_OUTPUT else given
        size = ITEM_BYTES.get(kind.lower(), 0)
        out.append(elements * size if elements >= 0 and size else NONE)
    return out
