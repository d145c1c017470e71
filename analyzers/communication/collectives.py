"""Collectives as rows: operation, group, bytes, time exposed and hidden, and who asked for them.

A collective is one row however much device work it is made of: copies and kernels launched inside
one range of the communication library count together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, TABLES
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.facts.work import COLLECTIVE, Work
from tracer.analyzers.intervals import NONE, Longs, distinct, lookup, take
from tracer.analyzers.names.operations import range_operation
from tracer.events import make_table

# Sizes of the types that torch.distributed, NCCL and the profiler's shapes name, in bytes.
ITEM_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "uint64": 8, "long int": 8, "float": 4,
    "float32": 4, "int": 4, "int32": 4, "uint32": 4, "half": 2, "float16": 2, "bfloat16": 2,
    "short": 2, "short int": 2, "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1,
    "unsigned char": 1, "signed char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
_SIZED_BY_OUTPUT = ("all_gather",)
# These carry metadata or name the operation, but their first tensor may be the output.
_OUTPUT_FIRST = ("c10d::", "_c10d_functional::")


@dataclass(frozen=True)
class Calls:
    """Work rows of collectives, and which of them make one call. `first`: place in `rows` of the
    first piece of each call; `of`: the call of each row."""

    rows: Longs
    first: Longs
    of: Longs


def find_calls(work: Work, rows: Longs, bucket: Longs) -> Calls:
    """The calls that collective work belongs to: one range of the library is one call."""
    holder = take(_library_ranges(work), work.site[rows])
    alone = holder == NONE
    first, of = distinct(
        np.where(alone, NONE, holder),
        np.where(alone, rows, NONE),
        # Replays of a graph share the captured range; their own launches differ.
        np.where(work.replayed[rows], work.launch[rows], NONE),
        work.trace.events["device"].to_numpy()[work.event[rows]],
        bucket,
    )
    order = np.argsort(first, kind="stable")
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    return Calls(rows, first[order].astype(np.int64), place[of])


def _library_ranges(work: Work) -> Longs:
    """The innermost range around each event that a communication library wrote."""
    return work.host.nearest(work.trace.named(range_operation, "operator", "annotation"))


def tabulate_collectives(
    work: Work, attribution: Attribution, exposed: Longs, overlapped: Longs, step: Longs
) -> pd.DataFrame:
    """The table `collectives` of an analysis; wait and wire are not known from one rank."""
    # What was launched before the recording is no communication of its steps.
    called = (work.work_class == COLLECTIVE) & ~work.orphaned & ~_only_waits(work)
    everything = np.flatnonzero(called)
    bucket = attribution.bucket[everything].astype(np.int64)
    calls = find_calls(work, everything, bucket)
    rows = calls.rows[calls.first]
    said = _Recorded(work, rows)
    ops = [BUCKETS[code][1] for code in bucket[calls.first].tolist()]
    inputs, outputs = said.number("in_elements"), said.number("out_elements")
    dtype = said.text("dtype")
    sizes = _bytes(ops, dtype, inputs, outputs)
    shaped, shaped_types = _shaped_bytes(work, rows, sizes == NONE)
    group, members = _known_group(work, said.text("group"), said.number("group_size"))
    return make_table(
        TABLES["collectives"],
        {
            "work": rows,
            "op": ops,
            "group": group,
            "group_size": members,
            "sequence": said.number("sequence"),
            "bytes": np.where(sizes == NONE, shaped, sizes),
            "dtype": [one or other for one, other in zip(dtype, shaped_types, strict=True)],
            "start_ns": _by_call(np.minimum, calls, work.trace.start_ns[work.event[calls.rows]]),
            "end_ns": _by_call(np.maximum, calls, work.trace.end_ns[work.event[calls.rows]]),
            "exposed_ns": _by_call(np.add, calls, exposed[calls.rows]),
            "overlapped_ns": _by_call(np.add, calls, overlapped[calls.rows]),
            "step": step[rows],
            "module": work.module[rows],
            "ranks": said.text("ranks"),
            "peer": said.number("peer"),
            "direction": _directions(work, rows, said.text("op")),
            "in_elements": inputs,
            "out_elements": outputs,
        },
    )


def _only_waits(work: Work) -> NDArray[np.bool_]:
    """Rows of a host that waits for a collective: the call is another row."""
    waits = work.trace.names_matching(lambda name: name.endswith("::wait_tensor"))
    mask: NDArray[np.bool_] = waits[work.trace.name_codes[work.event]]
    return mask


def _directions(work: Work, rows: Longs, recorded: list[str]) -> list[str]:
    """send or recv, by the recorded operation or the range around the launch."""
    around = take(_library_ranges(work), work.site[rows])
    own = work.event[rows] if work.cpu_only else np.where(around == NONE, work.event[rows], around)
    names = [work.trace.names[code] for code in work.trace.name_codes[own].tolist()]
    return [_direction(op or name) for op, name in zip(recorded, names, strict=True)]


@lru_cache(maxsize=4096)
def _direction(name: str) -> str:
    lower = name.lower()
    sends, receives = "send" in lower, "recv" in lower
    if sends == receives:
        return ""
    return "send" if sends else "recv"


def _by_call(fold: np.ufunc, calls: Calls, values: Longs) -> Longs:
    """The values of the pieces of each call, folded into one."""
    if not calls.first.size:
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(calls.of, kind="stable")
    starts = np.flatnonzero(np.diff(calls.of[order], prepend=-1))
    folded: Longs = fold.reduceat(values[order], starts)
    return folded


class _Recorded:
    """The metadata of some collectives: their own, else that of the host range around the launch,
    field by field."""

    def __init__(self, work: Work, rows: Longs) -> None:
        self._table = work.trace.table("collectives")
        described = self._table["event"].to_numpy()
        self._own = lookup(described, work.event[rows])
        mask = np.zeros(len(work.trace.events), dtype=bool)
        mask[described] = True
        around = take(work.host.nearest(mask), work.site[rows])
        self._around = lookup(described, around)

    def number(self, column: str) -> Longs:
        """A field of integers; -1 where nothing said it."""
        values = self._table[column].to_numpy()
        own = take(values, self._own)
        return np.where(own == NONE, take(values, self._around), own)

    def text(self, column: str) -> list[str]:
        """A field of text; "" where nothing said it."""
        codes = self._table[column].cat.codes.to_numpy().astype(np.int64)
        texts = [str(text) for text in self._table[column].cat.categories]
        own, around = take(codes, self._own).tolist(), take(codes, self._around).tolist()
        return [
            (texts[a] if a != NONE else "") or (texts[b] if b != NONE else "")
            for a, b in zip(own, around, strict=True)
        ]


def _known_group(work: Work, group: list[str], members: Longs) -> tuple[list[str], Longs]:
    """Group and size of each collective. A process that belongs to one group alone needs none
    written beside each."""
    groups = [found for found in work.trace.meta.process_groups if _size_of(found) > 1]
    if len(groups) != 1:
        return group, members
    name, size = str(groups[0].get("pg_name", "")), _size_of(groups[0])
    unnamed = np.array([not one for one in group], dtype=bool)
    filled = [one or name for one in group]
    return filled, np.where(unnamed & (members == NONE), size, members)


def _size_of(group: Any) -> int:
    size = group.get("pg_size")
    return size if isinstance(size, int) else 0


def _bytes(ops: list[str], dtype: list[str], inputs: Longs, outputs: Longs) -> Longs:
    """Bytes as bandwidth counts them (nccl-tests): the output of a gather, else the input."""
    gathers = np.array([op in _SIZED_BY_OUTPUT for op in ops], dtype=bool)
    elements = np.where(gathers, outputs, inputs)
    size = np.array([ITEM_BYTES.get(kind.lower(), 0) for kind in dtype], dtype=np.int64)
    return np.where((elements >= 0) & (size > 0), elements * size, NONE).astype(np.int64)


def _shaped_bytes(
    work: Work, rows: Longs, wanted: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], list[str]]:
    """Bytes and type of the first tensor that the operator around each call was given."""
    shapes = work.trace.table("shapes")
    sizes, types = np.full(rows.size, NONE, dtype=np.int64), [""] * rows.size
    if not len(shapes) or not wanted.any():
        return sizes, types
    usable = work.trace.names_matching(lambda name: not name.startswith(_OUTPUT_FIRST))
    mask = np.zeros(len(work.trace.events), dtype=bool)
    mask[shapes["event"].to_numpy()] = True
    around = take(work.host.nearest(mask & usable[work.trace.name_codes]), work.site[rows])
    at = lookup(shapes["event"].to_numpy(), around)
    dims, kinds = shapes["input_shapes"], shapes["input_types"]
    for place in np.flatnonzero(wanted & (at != NONE)).tolist():
        row = int(at[place])
        sizes[place], types[place] = _first_tensor(str(dims.iloc[row]), str(kinds.iloc[row]))
    return sizes, types


@lru_cache(maxsize=4096)
def _first_tensor(dims: str, kinds: str) -> tuple[int, str]:
    """Bytes and type of the first tensor in shapes as the profiler writes them; -1 if unknown."""
    try:
        shapes, types = json.loads(dims), json.loads(kinds)
    except ValueError:
        return NONE, ""
    for shape, kind in zip(shapes, types, strict=False):
        item = ITEM_BYTES.get(str(kind).rpartition("::")[2].lower())
        if shape and item and all(isinstance(length, int) for length in shape):
            size = int(np.prod([int(length) for length in shape], dtype=np.int64)) * item
            return size, str(kind).rpartition("::")[2]
    return NONE, ""
