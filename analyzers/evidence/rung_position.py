"""The rung `position`: group and part by the place in the layer's repeating pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS, GROUPS
from tracer.analyzers.evidence.attribution import HOW_CODE, OPEN, Attribution
from tracer.analyzers.evidence.operator_order import (
    as_on_device,
    fill_silent,
    in_layers,
    silent,
)
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.evidence.side_streams import fill_side_streams, joined_streams
from tracer.analyzers.facts.work import TRANSFER_CLASS, Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.layers.blocks import LEFT
from tracer.analyzers.layers.letters import letter_of
from tracer.analyzers.layers.pattern import LayerPattern, Solution, solve
from tracer.events import Note

LEAST_CONFIDENCE = 0.6
_NORM = BUCKET_CODE["other", "norm"]
_EMBEDDING = BUCKET_CODE["other", "embedding"]
_ATTENTION_NORM = BUCKET_CODE["attention", "norm"]
_LOOKED_UP = (BUCKET_CODE["attention", "core"], BUCKET_CODE["attention", "rope"])
_FORWARD = (0, 1)  # directions: no training, forward
_BACKWARD = (2,)
_BLOCK_GROUPS = tuple(
    code for code, (group, _) in enumerate(BUCKETS) if group in ("attention", "ffn")
)
# What lies between the operators of a block in the backward pass: layout, sums of gradients.
_GLUE = ("COPY", "CAT", "FILL", "ADD", "EXP", "ELEMENTWISE")


def by_position(work: Work, roles: Roles, out: Attribution) -> None:
    """Fill what the place in the layer tells."""
    if not out.open.size:
        return
    sequences = launch_sequences(work, out, _FORWARD)
    solved = [(rows, _solve(work, out, rows)) for rows in sequences]
    for rows, solution in solved:
        _fill(out, rows, solution)
    found = [s.pattern for _, s in solved if s.pattern is not None]
    out.patterns += sorted(found, key=lambda p: p.attention_calls * p.passes, reverse=True)
    if out.patterns:
        _beside(work, out, solved)
        fill_silent(work, out, _FORWARD)
        _follow_forward(work, out)
        _fill_between(work, out)
        fill_silent(work, out, _BACKWARD)
    else:
        out.notes += _too_few(work, out, sum(solution.cores for _, solution in solved))


def _solve(work: Work, out: Attribution, rows: Longs) -> Solution:
    text = _letters(work, out, rows).tobytes()
    return solve(text, _step_edges(out.step[rows]).tolist())


def _beside(work: Work, out: Attribution, solved: Sequence[tuple[Longs, Solution]]) -> None:
    """Streams beside the one that runs the most layers of its device."""
    device = work.trace.events["device"].to_numpy()[work.event]
    for index in np.unique([device[rows[0]] for rows, _ in solved]):
        here = [(rows, s.pattern) for rows, s in solved if device[rows[0]] == index]
        main = max(here, key=lambda pair: _passed(pair[1]))
        side = [rows for rows, pattern in here if pattern is None]
        if main[1] is not None and side:
            fill_side_streams(work, out, main[0], side, _passed(main[1]))


def _passed(pattern: LayerPattern | None) -> int:
    """How many layers a sequence ran through."""
    return 0 if pattern is None else pattern.layers * pattern.passes


def _too_few(work: Work, out: Attribution, cores: int) -> list[Note]:
    """What is left open because too little of a model was recorded to see its layers."""
    products = np.array([name.token == "GEMM" for name in work.names], dtype=bool)
    count = int(products[work.name_code[out.open]].sum())
    if not cores or not count:
        return []
    text = (
        f"{cores} attention cores were recorded, too few to see the pattern of a layer: {count} "
        "matrix multiplications without other evidence are unattributed"
    )
    return [Note("trace.no_layer_pattern", text, count)]


def launch_sequences(work: Work, out: Attribution, directions: tuple[int, ...]) -> list[Longs]:
    """Rows of device work of these directions in order, for each stream of each device; no copies
    from or to the host. On a CPU what operators compute, for each thread."""
    events = work.trace.events
    device = events["device"].to_numpy()[work.event]
    stream = events["thread" if work.cpu_only else "stream"].to_numpy()[work.event]
    of_order = (work.work_class != TRANSFER_CLASS) & ~silent(work)
    rows = np.flatnonzero(of_order & np.isin(out.direction, directions))
    stream = joined_streams(work, rows, stream)
    order = np.lexsort((work.trace.start_ns[work.event[rows]], stream[rows], device[rows]))
    rows = rows[order]
    edges = np.flatnonzero((np.diff(device[rows]) != 0) | (np.diff(stream[rows]) != 0)) + 1
    return [part for part in np.split(rows, edges) if part.size]


def _letters(work: Work, out: Attribution, rows: Longs) -> NDArray[np.uint8]:
    table = np.array([ord(letter_of(name)) for name in work.names], dtype=np.uint8)
    letters: NDArray[np.uint8] = table[work.name_code[rows]]
    letters = as_on_device(work, letters, rows) if work.cpu_only else in_layers(work, letters, rows)
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
    _open(out, rows[known & (solution.labels == _ATTENTION_NORM)], _NORM)
    _open(out, rows[known & np.isin(solution.labels, _LOOKED_UP)], _EMBEDDING)
    bucket = np.where(known, solution.labels.astype(np.int16), np.int16(-1))
    for confidence in np.unique(solution.confidence[known]):
        chosen = known & (solution.confidence == confidence)
        out.fill(rows[chosen], bucket[chosen], "position", float(confidence))


def _open(out: Attribution, rows: Longs, bucket: int) -> None:
    """Of a norm, and of rows of a table, the operator tells what it does, and the place whose it
    is: attention looks up what it adds for the distance of two tokens."""
    said = (out.bucket[rows] == bucket) & (out.how[rows] == HOW_CODE["operator"])
    out.bucket[rows[said]] = OPEN


def _follow_forward(work: Work, out: Attribution) -> None:
    """The backward pass of an operator belongs where its forward pass was found to be."""
    told = (out.bucket == OPEN) | np.isin(out.bucket, (_NORM, _EMBEDDING))
    rows = np.flatnonzero(told & (work.forward != NONE))
    if not rows.size:
        return
    found = _found_forward(work, out, rows)
    _open(out, rows[found == _ATTENTION_NORM], _NORM)
    _open(out, rows[np.isin(found, _LOOKED_UP)], _EMBEDDING)
    still = out.bucket[rows] == OPEN
    out.fill(rows[still], found[still], "position", 0.8)


def _found_forward(work: Work, out: Attribution, rows: Longs) -> NDArray[np.int16]:
    """The bucket that its place gave to the forward operator of each of these rows; where it
    launched nothing itself, to those around it or to what ran right before and after it."""
    forward = work.forward[rows]
    found = _held(work, out, forward)
    silent = np.flatnonzero(found == NONE)
    aten = work.trace.named(lambda name: name.startswith("aten::"), "operator")
    for around in (work.host.nearest(aten), work.host.outermost(aten)):
        silent = silent[found[silent] == NONE]
        found[silent] = _held(work, out, take(around, take(work.host.parent, forward[silent])))
    silent = np.flatnonzero(found == NONE)
    found[silent] = _surrounded(work, out, forward[silent])
    return found


def _held(work: Work, out: Attribution, operators: Longs) -> NDArray[np.int16]:
    """The bucket that its place gave to the longest work in each of these; -1 for none."""
    wanted = np.zeros(len(work.trace.events), dtype=bool)
    wanted[operators[operators != NONE]] = True
    placed = np.flatnonzero((out.how == HOW_CODE["position"]) & (work.site != NONE))
    holder = work.host.nearest(wanted)[work.site[placed]]
    placed, holder = placed[holder != NONE], holder[holder != NONE]
    bucket = np.full(wanted.size + 1, NONE, dtype=np.int16)  # the last is that of no operator
    duration = work.trace.end_ns[work.event[placed]] - work.trace.start_ns[work.event[placed]]
    order = np.argsort(duration, kind="stable")  # the longest kernel of an operator speaks last
    bucket[holder[order]] = out.bucket[placed[order]]
    found: NDArray[np.int16] = bucket[operators]
    return found


def _surrounded(work: Work, out: Attribution, operators: Longs) -> NDArray[np.int16]:
    """The bucket of the work launched right before each of these, where that after it is of the
    same block; -1 elsewhere."""
    thread = work.trace.events["thread"].to_numpy()
    forward = (out.bucket != OPEN) & (work.site != NONE) & np.isin(out.direction, _FORWARD)
    known = np.flatnonzero(forward)
    found = np.full(operators.size, NONE, dtype=np.int16)
    for one in np.unique(thread[operators]):
        here = known[thread[work.site[known]] == one]
        starts = work.trace.start_ns[work.site[here]]
        here, starts = here[np.argsort(starts, kind="stable")], np.sort(starts)
        asked = np.flatnonzero(thread[operators] == one)
        after = np.searchsorted(starts, work.trace.start_ns[operators[asked]])
        inside = (after > 0) & (after < starts.size)
        asked, after = asked[inside], after[inside]
        left, right = out.bucket[here[after - 1]], out.bucket[here[after]]
        found[asked] = np.where(_of_one_block(left, right), left, NONE)
    return found


def _of_one_block(left: NDArray[np.int16], right: NDArray[np.int16]) -> NDArray[np.bool_]:
    group = np.array([GROUPS.index(group) for group, _ in BUCKETS])
    alike: NDArray[np.bool_] = (group[left] == group[right]) & np.isin(left, _BLOCK_GROUPS)
    return alike


def _fill_between(work: Work, out: Attribution) -> None:
    """Backward work that no forward operator claims, between two pieces of one block, is its."""
    glue = np.array([name.token in _GLUE for name in work.names], dtype=bool)
    for rows in launch_sequences(work, out, _BACKWARD):
        bucket = out.bucket[rows]
        place = np.arange(rows.size)
        known = bucket != NONE
        before = np.maximum.accumulate(np.where(known, place, NONE))
        after = np.minimum.accumulate(np.where(known, place, rows.size)[::-1])[::-1]
        inside = ~known & (before != NONE) & (after < rows.size) & glue[work.name_code[rows]]
        at = np.flatnonzero(inside)
        left, right = bucket[before[at]], bucket[after[at]]
        alike = _of_one_block(left, right)
        out.fill(rows[at[alike]], left[alike], "position", 0.7)
