"""The rung `position`: group and part by the place in the layer's repeating pattern."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS, GROUPS
from tracer.analyzers.attribution import (
    HOW_CODE,
    TRANSFER_CLASS,
    Attribution,
    Work,
)
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.layer_blocks import LEFT
from tracer.analyzers.layer_letters import letter_of
from tracer.analyzers.layer_pattern import Solution, solve
from tracer.analyzers.roles import Roles

LEAST_CONFIDENCE = 0.6
_FORWARD = (0, 1)  # directions: no training, forward
_BACKWARD = (2,)
_BLOCK_GROUPS = tuple(
    code for code, (group, _) in enumerate(BUCKETS) if group in ("attention", "ffn")
)
# What lies between the operators of a block in the backward pass: layout, sums of gradients.
_GLUE = ("COPY", "CAT", "FILL", "ADD", "ELEMENTWISE")


def by_position(work: Work, roles: Roles, out: Attribution) -> None:
    """Fill what the place in the layer tells."""
    if work.cpu_only or not out.open.size:
        return
    for rows in launch_sequences(work, out, _FORWARD):
        text = _letters(work, out, rows)
        solution = solve(text.tobytes(), _step_edges(out.step[rows]).tolist())
        _fill(out, rows, solution)
        if solution.pattern is not None:
            out.patterns.append(solution.pattern)
    if out.patterns:
        _follow_forward(work, out)
        _fill_between(work, out)


def launch_sequences(work: Work, out: Attribution, directions: tuple[int, ...]) -> list[Longs]:
    """Rows of device work of these directions in order, for each stream of each device; no copies
    from or to the host."""
    events = work.trace.events
    device = events["device"].to_numpy()[work.event]
    stream = events["stream"].to_numpy()[work.event]
    rows = np.flatnonzero((work.work_class != TRANSFER_CLASS) & np.isin(out.direction, directions))
    order = np.lexsort((work.trace.start_ns[work.event[rows]], stream[rows], device[rows]))
    rows = rows[order]
    edges = np.flatnonzero((np.diff(device[rows]) != 0) | (np.diff(stream[rows]) != 0)) + 1
    return [part for part in np.split(rows, edges) if part.size]


def _letters(work: Work, out: Attribution, rows: Longs) -> NDArray[np.uint8]:
    table = np.array([ord(letter_of(name)) for name in work.names], dtype=np.uint8)
    letters: NDArray[np.uint8] = table[work.name_code[rows]]
    core = (out.bucket[rows] == BUCKET_CODE["attention", "core"]) & (
        out.how[rows] != HOW_CODE["name"]
    )
    heavy = np.isin(letters, list(b"G?xVye"))
    letters[core & heavy] = ord("K")
    return letters


def _step_edges(step: Longs) -> Longs:
    """Where in a sequence a step ends or another begins; work of no step between two of one step
    is no edge."""
    inside = np.flatnonzero(step != NONE)
    changed = np.flatnonzero(np.diff(step[inside]) != 0)
    edges: Longs = np.unique(np.concatenate([inside[changed] + 1, inside[changed + 1]]))
    return edges


def _fill(out: Attribution, rows: Longs, solution: Solution) -> None:
    known = (solution.labels != LEFT) & (solution.confidence >= LEAST_CONFIDENCE)
    bucket = np.where(known, solution.labels.astype(np.int16), np.int16(-1))
    for confidence in np.unique(solution.confidence[known]):
        chosen = known & (solution.confidence == confidence)
        out.fill(rows[chosen], bucket[chosen], "position", float(confidence))


def _follow_forward(work: Work, out: Attribution) -> None:
    """The backward pass of an operator belongs where its forward pass was found to be."""
    rows = out.open[work.forward[out.open] != NONE]
    if not rows.size:
        return
    wanted = np.zeros(len(work.trace.events), dtype=bool)
    wanted[work.forward[rows]] = True
    placed = np.flatnonzero((out.how == HOW_CODE["position"]) & (work.site != NONE))
    holder = work.host.nearest(wanted)[work.site[placed]]
    placed, holder = placed[holder != NONE], holder[holder != NONE]
    bucket = np.full(wanted.size, NONE, dtype=np.int16)
    duration = work.trace.end_ns[work.event[placed]] - work.trace.start_ns[work.event[placed]]
    order = np.argsort(duration, kind="stable")  # the longest kernel of an operator speaks last
    bucket[holder[order]] = out.bucket[placed[order]]
    out.fill(rows, bucket[work.forward[rows]], "position", 0.8)


def _fill_between(work: Work, out: Attribution) -> None:
    """Backward work that no forward operator claims, between two pieces of one block, is its."""
    glue = np.array([name.token in _GLUE for name in work.names], dtype=bool)
    group = np.array([GROUPS.index(group) for group, _ in BUCKETS])
    for rows in launch_sequences(work, out, _BACKWARD):
        bucket = out.bucket[rows]
        place = np.arange(rows.size)
        known = bucket != NONE
        before = np.maximum.accumulate(np.where(known, place, NONE))
        after = np.minimum.accumulate(np.where(known, place, rows.size)[::-1])[::-1]
        inside = ~known & (before != NONE) & (after < rows.size) & glue[work.name_code[rows]]
        at = np.flatnonzero(inside)
        left, right = bucket[before[at]], bucket[after[at]]
        alike = (group[left] == group[right]) & np.isin(left, _BLOCK_GROUPS)
        out.fill(rows[at[alike]], left[alike], "position", 0.7)
