"""Work gathered by what it is and where it belongs, so that spans can be folded and still add up.

A `kind` is work that is alike in all but step and time: one kernel name in one bucket, module,
device and stream. A cell is the work of one kind in one step and direction. Every level of detail
is a sum of cells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import Analysis

Ints = NDArray[np.int64]

# Modules that a reader looks for. The outermost of them around a kernel is its block.
BLOCK_ROLES = (
    *("attention", "mixer", "ffn", "norm", "residual", "embedding", "lm_head", "loss"),
    "sampling",
)
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Sums:
    """What can be added up: aligned arrays, one entry for each group of work."""

    count: Ints
    total_ns: Ints
    charged_ns: Ints
    longest_ns: Ints
    first_ns: Ints
    last_ns: Ints

    def __len__(self) -> int:
        return len(self.count)

    def gather(self, groups: Groups) -> Sums:
        """The sums over each group."""
        order, starts = groups.order, groups.starts
        if not len(starts):
            return self
        return Sums(
            np.add.reduceat(self.count[order], starts),
            np.add.reduceat(self.total_ns[order], starts),
            np.add.reduceat(self.charged_ns[order], starts),
            np.maximum.reduceat(self.longest_ns[order], starts),
            np.minimum.reduceat(self.first_ns[order], starts),
            np.maximum.reduceat(self.last_ns[order], starts),
        )


@dataclass(frozen=True)
class Groups:
    """Rows parted by key. `of_row` is the group of each row, `first` a row of each group."""

    of_row: Ints
    first: Ints
    order: Ints  # rows, sorted by group
    starts: Ints  # where each group begins in `order`

    def __len__(self) -> int:
        return len(self.first)


def part_by(*keys: Ints) -> Groups:
    """Groups of rows with equal keys, in the order of the keys."""
    packed: Ints = np.zeros(len(keys[0]), dtype=np.int64)
    size = 1
    for key in keys:
        shifted = key.astype(np.int64) - (int(key.min()) if len(key) else 0)
        width = int(shifted.max()) + 1 if len(key) else 1
        if size * width >= 2**62:
            packed = np.unique(packed, return_inverse=True)[1].astype(np.int64)
            size = int(packed.max()) + 1
        packed, size = packed * width + shifted, size * width
    order = np.argsort(packed, kind="stable")
    ordered = packed[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    lengths = np.diff(np.append(starts, len(ordered)))
    of_row = np.empty(len(packed), dtype=np.int64)
    of_row[order] = np.repeat(np.arange(len(starts)), lengths)
    return Groups(of_row, order[starts], order, starts)


@dataclass(frozen=True)
class Kinds:
    """Work that is alike in all but step and time. Columns hold codes."""

    name: Ints
    bucket: Ints
    how: Ints
    device: Ints
    stream: Ints
    module: Ints  # row of `modules`; -1: none

    def __len__(self) -> int:
        return len(self.name)

    def columns(self) -> tuple[Ints, ...]:
        return (self.bucket, self.name, self.how, self.device, self.stream, self.module)


@dataclass(frozen=True)
class Cells:
    """The work of each kind in each step and direction."""

    kinds: Kinds
    how_names: Sequence[str]
    directions: Sequence[str]  # names of the codes in `direction`; "" for none
    step: Ints
    direction: Ints
    kind: Ints
    sums: Sums
    work_rows: Ints  # rows of `work` that the cells hold
    cell_of_work: Ints  # aligned with `work_rows`, as is `duration_ns`
    duration_ns: Ints


def _codes(column: Any) -> tuple[Ints, list[str]]:
    categorical = (
        column if isinstance(column.dtype, pd.CategoricalDtype) else column.astype("category")
    )
    names = [str(name) for name in categorical.cat.categories]
    return np.asarray(categorical.cat.codes, dtype=np.int64), names


def make_cells(analysis: Analysis) -> Cells:
    """Gather the work of the window."""
    trace, rows = analysis.trace, _rows_in_window(analysis)
    work = analysis.work.iloc[rows]
    event = work["event"].to_numpy()
    hows, how_names = _codes(work["how"])
    direction, directions = _codes(work["direction"])
    stream = trace.events["stream"].to_numpy()[event]
    whole = Kinds(
        name=trace.name_codes[event].astype(np.int64),
        bucket=work["bucket"].to_numpy().astype(np.int64),
        how=hows,
        device=work["device"].to_numpy().astype(np.int64),
        stream=stream,
        module=work["module"].to_numpy(),
    )
    kinds = part_by(*whole.columns())
    step = work["step"].to_numpy()
    cells = part_by(step, direction, kinds.of_row)
    start, end = trace.start_ns[event], trace.end_ns[event]
    charged = work["charged_ns"].to_numpy()
    each = Sums(np.ones(len(rows), np.int64), end - start, charged, end - start, start, end)
    return Cells(
        kinds=_take(whole, kinds.first),
        how_names=how_names,
        directions=directions,
        step=step[cells.first],
        direction=direction[cells.first],
        kind=kinds.of_row[cells.first],
        sums=each.gather(cells),
        work_rows=rows,
        cell_of_work=cells.of_row,
        duration_ns=end - start,
    )


def _take(kinds: Kinds, rows: Ints) -> Kinds:
    return Kinds(
        kinds.name[rows],
        kinds.bucket[rows],
        kinds.how[rows],
        kinds.device[rows],
        kinds.stream[rows],
        kinds.module[rows],
    )


def _rows_in_window(analysis: Analysis) -> Ints:
    """Rows of `work` that touch the window; the report counts the same."""
    event = analysis.work["event"].to_numpy()
    start, end = analysis.trace.start_ns[event], analysis.trace.end_ns[event]
    window = analysis.window
    return np.flatnonzero((start < window.end_ns) & (end > window.start_ns))


@dataclass(frozen=True)
class Blocks:
    """The blocks that modules belong to. `of_module` gives the block of each module row."""

    names: list[str]
    of_module: Ints
    module: Ints  # a module row of each block


def exact_blocks(analysis: Analysis) -> Blocks:
    """One block for each module that a reader looks for: each layer's attention, ffn, ..."""
    of_module = _block_rows(analysis)
    rows, codes = np.unique(of_module, return_inverse=True)
    paths = analysis.modules["path"].astype(str).tolist()
    return Blocks([paths[row] or "(model)" for row in rows.tolist()], codes.astype(np.int64), rows)


def folded_blocks(analysis: Analysis) -> Blocks:
    """The same with repeated layers as one: `model.layers.*.mlp`."""
    exact = exact_blocks(analysis)
    types = analysis.modules["type"].astype(str).to_numpy()[exact.module].tolist()
    folded = [_fold_name(name, kind) for name, kind in zip(exact.names, types, strict=True)]
    names = list(dict.fromkeys(folded))
    place = {name: code for code, name in enumerate(names)}
    codes = np.array([place[name] for name in folded], dtype=np.int64)
    module = np.array([exact.module[folded.index(name)] for name in names], dtype=np.int64)
    of_module = codes[exact.of_module] if len(codes) else exact.of_module
    return Blocks(names, of_module, module)


def _fold_name(path: str, kind: str) -> str:
    """The path without numbers of layers; the class of a name by order of call (`MLP_3`)."""
    if kind and re.fullmatch(rf"{re.escape(kind)}_\d+", path):
        return kind
    return _NUMBER.sub("*", path)


def _block_rows(analysis: Analysis) -> Ints:
    """For each module the outermost module around it with a role of a block, else itself."""
    roles = analysis.modules["role"].astype(str).tolist()
    parents = analysis.modules["parent"].to_numpy().tolist()
    found: list[int] = []
    for row in range(len(roles)):
        best, at = row, row
        while at >= 0:
            best = at if roles[at] in BLOCK_ROLES else best
            at = parents[at]
        found.append(best)
    return np.array(found, dtype=np.int64)
