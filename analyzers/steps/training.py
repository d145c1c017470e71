"""The phases of training steps: forward, recompute, backward, gradient communication, optimizer.

A step is cut where work of one direction follows work of another; idle time counts for the work
that ends it. The parts of a step add up to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, GROUPS, Phase
from tracer.analyzers.accounting import Lanes
from tracer.analyzers.evidence.directions import DIRECTIONS
from tracer.analyzers.facts.work import COLLECTIVE
from tracer.analyzers.intervals import Longs
from tracer.analyzers.tables import percentile

TRAINING = "training"
FORWARD, RECOMPUTE, BACKWARD, COMMUNICATION, OPTIMIZER = range(5)
PARTS: tuple[str, ...] = (
    "forward", "recompute", "backward", "gradient_communication", "optimizer",
)  # fmt: skip
# Direction of work -> part of the step.
_OF_DIRECTION = {"": 0, "forward": 0, "backward": 2, "optimizer": 4, "recompute": 1}
_TO_PART = np.array([_OF_DIRECTION[direction] for direction in DIRECTIONS], dtype=np.int8)
_COMMUNICATES = np.array([group == "communication" for group, _ in BUCKETS])


@dataclass(frozen=True)
class _Cuts:
    """Where a step on one device changes from one part to the next: `part[0]` runs until
    `time_ns[0]`, and the last one to the end."""

    time_ns: Longs
    part: NDArray[np.int8]


def training_phases(
    steps: pd.DataFrame,
    slices: pd.DataFrame,
    lanes: Lanes,
    work_step: Longs,
    direction: NDArray[np.int8],
) -> tuple[Phase, ...]:
    """The parts of the steady training steps that took time, in their order; empty where nothing
    was trained."""
    chosen = _steady(steps)
    if not chosen.size or not (direction > 1).any():
        return ()
    sums = _sums(slices, lanes, work_step, _TO_PART[direction], chosen)
    devices = max(int(slices["device"].nunique()), 1)
    taken = set(steps["phase"].astype(str))
    return tuple(
        _phase(name if name not in taken else f"{TRAINING}.{name}", sums[:, part], devices)
        for part, name in enumerate(PARTS)
        if sums[:, part].any()
    )


def _steady(steps: pd.DataFrame) -> Longs:
    training = (steps["phase"] == TRAINING).to_numpy()
    steady = training & ~steps["warmup"].to_numpy()
    return np.flatnonzero(steady if steady.any() else training)


def _sums(
    slices: pd.DataFrame, lanes: Lanes, work_step: Longs, part: NDArray[np.int8], chosen: Longs
) -> Longs:
    """Nanoseconds by step, part and bucket."""
    out = np.zeros((chosen.size, len(PARTS), len(BUCKETS)), dtype=np.int64)
    order = np.argsort(work_step, kind="stable")
    bounds = np.searchsorted(work_step[order], np.stack([chosen, chosen + 1]))
    of_step, start = slices["step"].to_numpy(), slices["start_ns"].to_numpy()
    of_device, bucket = slices["device"].to_numpy(), slices["bucket"].to_numpy()
    charged = slices["charged_ns"].to_numpy()
    for place, step in enumerate(chosen.tolist()):
        inside = np.flatnonzero(of_step == step)
        works = order[bounds[0, place] : bounds[1, place]]
        for device in np.unique(of_device[inside]).tolist():
            rows = inside[of_device[inside] == device]
            cuts = _cut(lanes, works[lanes.device[works] == device], part)
            at = cuts.part[np.searchsorted(cuts.time_ns, start[rows], side="right")]
            exposed = _COMMUNICATES[bucket[rows]] & (at != FORWARD)
            at = np.where(exposed, COMMUNICATION, at)
            np.add.at(out[place], (at, bucket[rows]), charged[rows])
    return out


def _cut(lanes: Lanes, rows: Longs, part: NDArray[np.int8]) -> _Cuts:
    """The changes among these pieces of work. A part begins where its first work ends a gap."""
    rows = rows[lanes.work_class[rows] != COLLECTIVE]
    rows = rows[np.argsort(lanes.start_ns[rows], kind="stable")]
    if not rows.size:
        return _Cuts(rows, np.array([FORWARD], dtype=np.int8))
    mine = _after_backward(part[rows])
    change = np.flatnonzero(np.diff(mine) != 0) + 1
    reach = np.maximum.accumulate(lanes.end_ns[rows])
    times = np.minimum(reach[change - 1], lanes.start_ns[rows[change]])
    return _Cuts(np.maximum.accumulate(times), mine[np.concatenate([[0], change])])


def _after_backward(part: NDArray[np.int8]) -> NDArray[np.int8]:
    """What follows the last backward pass of a step (clipping, for one) is the optimizer's."""
    backward = np.flatnonzero(part == BACKWARD)
    if not backward.size:
        return part
    late = np.arange(part.size) > backward[-1]
    return np.where(late & (part == FORWARD), OPTIMIZER, part).astype(np.int8)


def _phase(name: str, sums: Longs, devices: int) -> Phase:
    """`sums`: nanoseconds by step and bucket, over all devices."""
    total = sums.sum(axis=0)
    wall = sums.sum(axis=1) // devices
    groups = dict.fromkeys(GROUPS, 0)
    for bucket, ns in enumerate(total.tolist()):
        groups[BUCKETS[bucket][0]] += ns
    return Phase(
        name=name,
        steps=int((wall > 0).sum()),
        median_ns=percentile(wall, 50),
        min_ns=int(wall.min()),
        p95_ns=percentile(wall, 95),
        p99_ns=percentile(wall, 99),
        groups={group: ns for group, ns in groups.items() if ns},
        wall_ns=int(wall.sum()),
        tokens_per_second=None,
        part_of=TRAINING,
        buckets={bucket: ns for bucket, ns in enumerate(total.tolist()) if ns},
    )
