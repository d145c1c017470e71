"""How much detail leaves: which spans there are, and which is the parent of which.

The default must open in a viewer that lists a few hundred rows comfortably, and lose no total. It
takes the first of these that fits the budget (each layer for itself only where that stays short):

    layers  step > block of each layer > kernels by name
    blocks  step > block, repeated layers as one > kernels by name
    steps   step > block;  kernels by name once for the whole run
    run     step;          kernels by name once for the whole run
    ranges  consecutive steps of one phase as one;  kernels by name once for the whole run
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tracer.analysis import BUCKET_CODE, BUCKETS, Analysis
from tracer.exporters.levels import IDLE_PARTS
from tracer.exporters.otlp.cells import (
    Blocks,
    Cells,
    Groups,
    Ints,
    Sums,
    exact_blocks,
    folded_blocks,
    part_by,
)
from tracer.exporters.otlp.pauses import NO_PAUSES, Pauses, named_pauses

Level = Literal["kernels", "layers", "blocks", "steps", "run", "ranges"]
DEFAULT_MAX_SPANS = 4000
MIN_MAX_SPANS = 200
COMFORTABLE_SPANS = 1000  # that a person scrolls through
KEPT_WHOLE = 50
_IDLE_BUCKETS = np.array([BUCKET_CODE["overhead", part] for part in IDLE_PARTS], dtype=np.int64)
RUN = -2  # the step code of what hangs on the run itself; -1 is the time outside any step


@dataclass(frozen=True)
class Nodes:
    """Spans of one level of the tree. `cells` tells which work each stands for."""

    groups: Groups
    sums: Sums

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True)
class StepNodes:
    """Step spans: each stands for `count` steps from `first` on. `of_step` maps a step to its."""

    first: Ints
    count: Ints
    of_step: Ints

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Idle:
    """Idle time of each step node and cause. `step` -1: outside steps, RUN: of the whole run."""

    step: Ints
    bucket: Ints
    ns: Ints
    count: Ints  # -1: the recording does not tell
    first_ns: Ints
    last_ns: Ints

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Layout:
    """The tree of spans of one recording."""

    level: Level
    cells: Cells
    steps: StepNodes
    outside: bool  # whether there is work or idle time outside any step
    blocks: Blocks
    step_of_cell: Ints  # step node; -1 outside
    block_of_cell: Ints  # code: a bucket, or len(BUCKETS) + a block of `blocks`
    directions: Nodes | None  # forward, backward, ... inside steps
    step_blocks: Nodes | None
    leaves: Nodes | None  # None: each kernel is a span of its own
    leaf_parents: Nodes | None  # nodes on the run that hold the leaves; None: `step_blocks` do
    idle: Idle
    whole: Ints  # rows of `cells.work_rows` that are spans of their own
    pauses: Pauses  # idle that is a span of its own

    @property
    def count(self) -> int:
        """Spans in all, the run's own included."""
        nodes = (self.directions, self.step_blocks, self.leaves, self.leaf_parents)
        spans = sum(len(n) for n in nodes if n is not None)
        spans += len(self.whole) + len(self.pauses)
        return 1 + len(self.steps) + int(self.outside) + len(self.idle) + spans


def plan_layout(
    analysis: Analysis, cells: Cells, detail: Literal["folded", "kernels"], max_spans: int
) -> Layout:
    """The finest layout that the detail and the budget allow."""
    if detail == "kernels":
        return _keep_pauses(analysis, _layout(analysis, cells, "kernels", max_spans), KEPT_WHOLE)
    candidates = _candidates(analysis, cells, max_spans)
    layout = next((c for c in candidates if c.count <= _room(c.level, max_spans)), None)
    if layout is None:
        layout = _layout(analysis, cells, "ranges", max_spans)
    layout = _keep_pauses(analysis, layout, min(max_spans - layout.count, KEPT_WHOLE))
    return _keep_longest(layout, max_spans)


def _room(level: Level, max_spans: int) -> int:
    return min(max_spans, COMFORTABLE_SPANS) if level == "layers" else max_spans


def _candidates(analysis: Analysis, cells: Cells, max_spans: int) -> Iterator[Layout]:
    levels: tuple[Level, ...] = ("layers", "blocks", "steps", "run")
    for level in levels:
        yield _layout(analysis, cells, level, max_spans)


def _layout(analysis: Analysis, cells: Cells, level: Level, max_spans: int) -> Layout:
    exact = level in ("kernels", "layers")
    blocks = exact_blocks(analysis) if exact else folded_blocks(analysis)
    per_step = level in ("kernels", "layers", "blocks")
    steps = _step_nodes(analysis, max_spans // 4 if level == "ranges" else None)
    step = _map_steps(cells.step, steps)
    block = _block_codes(cells, blocks)
    bucket, kind = cells.kinds.bucket[cells.kind], cells.kind
    detailed = level not in ("run", "ranges") and len(cells.kind) > 0
    leaf = _leaf_codes(cells)[kind]
    held = (step, cells.direction, block) if per_step else (bucket,)
    idle = _idle(analysis, steps, per_step)
    leaves = None if level == "kernels" else _nodes(cells, *held, leaf)
    return Layout(
        level=level,
        cells=cells,
        steps=steps,
        outside=bool((detailed and (step == -1).any()) or (idle.step == -1).any()),
        blocks=blocks,
        step_of_cell=step,
        block_of_cell=block,
        directions=_nodes(cells, step, cells.direction) if detailed and _trains(cells) else None,
        step_blocks=_nodes(cells, step, cells.direction, block) if detailed else None,
        leaves=_fold_tail(cells, leaves, max_spans // 2) if level == "ranges" else leaves,
        leaf_parents=None if per_step else _nodes(cells, bucket),
        idle=idle,
        whole=np.arange(len(cells.work_rows)) if level == "kernels" else np.zeros(0, np.int64),
        pauses=NO_PAUSES,
    )


def _trains(cells: Cells) -> bool:
    return any(cells.directions[code] for code in np.unique(cells.direction).tolist() if code >= 0)


def _nodes(cells: Cells, *keys: Ints) -> Nodes | None:
    if not len(cells.kind):
        return None
    groups = part_by(*keys)
    return Nodes(groups, cells.sums.gather(groups))


def _block_codes(cells: Cells, blocks: Blocks) -> Ints:
    """Block of each cell: of its module where it has one, else its bucket."""
    module, bucket = cells.kinds.module[cells.kind], cells.kinds.bucket[cells.kind]
    if not len(blocks.of_module):
        return bucket
    of_module = len(BUCKETS) + blocks.of_module[np.maximum(module, 0)]
    return np.where(module >= 0, of_module, bucket)


def _leaf_codes(cells: Cells) -> Ints:
    """Kinds that differ in nothing but their module share a leaf."""
    kinds = cells.kinds
    if not len(kinds):
        return np.zeros(0, dtype=np.int64)
    return part_by(*kinds.columns()[:-1]).of_row


def _step_nodes(analysis: Analysis, most: int | None) -> StepNodes:
    """A node a step; with `most`, runs of consecutive steps of one phase share one."""
    total = len(analysis.steps)
    rows = np.arange(total)
    if most is None or total <= most:
        return StepNodes(rows, np.ones(total, dtype=np.int64), rows)
    _, phase = np.unique(analysis.steps["phase"].astype(str).to_numpy(), return_inverse=True)
    changed = np.flatnonzero(np.concatenate([[True], phase[1:] != phase[:-1]]))
    since = rows - changed[np.searchsorted(changed, rows, side="right") - 1]
    width = 2
    while True:
        begins = (since % width == 0) if len(changed) <= most else (rows % width == 0)
        if int(begins.sum()) <= most:
            break
        width *= 2
    first = np.flatnonzero(begins)
    return StepNodes(first, np.diff(np.append(first, total)), np.cumsum(begins) - 1)


def _map_steps(step: Ints, nodes: StepNodes) -> Ints:
    if not len(nodes.of_step):
        return step
    return np.where(step >= 0, nodes.of_step[np.maximum(step, 0)], step)


def _idle(analysis: Analysis, steps: StepNodes, per_step: bool) -> Idle:
    """Idle time by cause, from the charges, so that it adds up with the breakdown."""
    charges = analysis.charges
    rows = np.flatnonzero(np.isin(charges["bucket"].to_numpy(), _IDLE_BUCKETS))
    step = _map_steps(charges["step"].to_numpy()[rows], steps)
    step = step if per_step else np.full(len(rows), RUN)
    bucket = charges["bucket"].to_numpy()[rows].astype(np.int64)
    ns = charges["ns"].to_numpy()[rows]
    rows = np.flatnonzero(ns > 0)
    step, bucket, ns = step[rows], bucket[rows], ns[rows]
    if not len(rows):
        return Idle(step, bucket, ns, ns, ns, ns)
    groups = part_by(step, bucket)
    total = np.add.reduceat(ns[groups.order], groups.starts)
    step, bucket = step[groups.first], bucket[groups.first]
    count, first, last = _gap_extents(analysis, steps, step, bucket)
    return Idle(step, bucket, total, count, first, last)


def _gap_extents(
    analysis: Analysis, steps: StepNodes, step: Ints, bucket: Ints
) -> tuple[Ints, Ints, Ints]:
    """Number and place of the gaps behind each idle entry; without gaps, the step itself."""
    run = bool((step == RUN).any())
    known = _gaps_by_place(analysis, steps, run)
    window = (-1, analysis.window.start_ns, analysis.window.end_ns)
    start, end = step_extents(analysis, steps)
    whole = [(-1, *extent) for extent in zip(start.tolist(), end.tolist(), strict=True)]
    found = [
        known.get(place) or (window if place[0] < 0 else whole[place[0]])
        for place in zip(step.tolist(), bucket.tolist(), strict=True)
    ]
    count, first, last = np.array(found, dtype=np.int64).T
    return count, first, last


def _gaps_by_place(
    analysis: Analysis, steps: StepNodes, run: bool
) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Count, first start and last end of the gaps of each step node and bucket."""
    gaps = analysis.gaps
    if not len(gaps):
        return {}
    step, bucket = _gap_places(analysis, steps, run)
    place = part_by(step, bucket)
    whole = part_by(place.of_row, gaps["device"].to_numpy(), gaps["gap"].to_numpy())
    count = np.bincount(place.of_row[whole.first], minlength=len(place))
    first = np.minimum.reduceat(gaps["start_ns"].to_numpy()[place.order], place.starts)
    last = np.maximum.reduceat(gaps["end_ns"].to_numpy()[place.order], place.starts)
    keys = zip(step[place.first].tolist(), bucket[place.first].tolist(), strict=True)
    return dict(
        zip(keys, zip(count.tolist(), first.tolist(), last.tolist(), strict=True), strict=True)
    )


def _gap_places(analysis: Analysis, steps: StepNodes, run: bool) -> tuple[Ints, Ints]:
    """The step node and the bucket of each gap."""
    gaps = analysis.gaps
    names = [str(name) for name in gaps["cause"].cat.categories]
    codes = np.array([BUCKET_CODE["overhead", name] for name in names], dtype=np.int64)
    bucket = codes[np.asarray(gaps["cause"].cat.codes, dtype=np.int64)]
    step = _map_steps(gaps["step"].to_numpy(), steps)
    return np.full(len(gaps), RUN) if run else step, bucket


def step_extents(analysis: Analysis, steps: StepNodes) -> tuple[Ints, Ints]:
    """Start and end of each step span."""
    start = analysis.steps["start_ns"].to_numpy()
    end = start + analysis.steps["wall_ns"].to_numpy()
    return start[steps.first], end[steps.first + steps.count - 1]


def _fold_tail(cells: Cells, leaves: Nodes | None, most: int) -> Nodes | None:
    """Keep the leaves that took the most time; of the others one for each bucket."""
    if leaves is None or len(leaves) <= most:
        return leaves
    rank = np.empty(len(leaves), dtype=np.int64)
    rank[np.argsort(-leaves.sums.total_ns, kind="stable")] = np.arange(len(leaves))
    room = max(most - len(BUCKETS), 1)
    tail = rank[leaves.groups.of_row] >= room
    bucket = cells.kinds.bucket[cells.kind]
    leaf = np.where(tail, -1, leaves.groups.of_row)
    return _nodes(cells, bucket, leaf)


def _keep_longest(layout: Layout, max_spans: int) -> Layout:
    """Spend what is left of the budget on the longest kernels, whole, under their folded span."""
    leaves, cells = layout.leaves, layout.cells
    room = min(max_spans - layout.count, KEPT_WHOLE)
    if leaves is None or room <= 0:
        return layout
    leaf_of_work = leaves.groups.of_row[cells.cell_of_work]
    folded = np.flatnonzero(leaves.sums.count[leaf_of_work] > 1)
    order = np.argsort(-cells.duration_ns[folded], kind="stable")
    return replace(layout, whole=np.sort(folded[order[:room]]))


def _keep_pauses(analysis: Analysis, layout: Layout, room: int) -> Layout:
    """The layout with the longest pauses that findings name, each under the idle it is part of."""
    idle, pauses = layout.idle, named_pauses(analysis.findings)
    if not len(pauses) or room <= 0:
        return layout
    places = zip(idle.step.tolist(), idle.bucket.tolist(), strict=True)
    entries = {place: entry for entry, place in enumerate(places)}
    step, bucket = _gap_places(analysis, layout.steps, run=bool((idle.step == RUN).any()))
    own = zip(step[pauses.row].tolist(), bucket[pauses.row].tolist(), strict=True)
    above = np.array([entries.get(place, -1) for place in own], dtype=np.int64)
    length = (analysis.gaps["end_ns"] - analysis.gaps["start_ns"]).to_numpy()[pauses.row]
    known = np.flatnonzero(above >= 0)
    kept = np.sort(known[np.argsort(-length[known], kind="stable")][:room])
    return replace(layout, pauses=Pauses(pauses.row[kept], pauses.finding[kept], above[kept]))
