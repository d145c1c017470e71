"""The phases of training steps: preparation, forward, recompute, backward, gradient communication,
optimizer.

A step is cut where work of one direction follows work of another; idle time counts for the work
that ends it. What comes before the model is called, such as tokenizing, prepares the forward pass.
The parts of a step add up to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, GROUPS, Phase
from tracer.analyzers.accounting import Lanes
from tracer.analyzers.evidence.directions import DIRECTIONS
from tracer.analyzers.facts.work import COLLECTIVE, Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.tables import percentile

TRAINING = "training"
PREPARATION, FORWARD, RECOMPUTE, BACKWARD, COMMUNICATION, OPTIMIZER = range(6)
PARTS: tuple[str, ...] = (
    "preparation", "forward", "recompute", "backward", "gradient_communication", "optimizer",
)  # fmt: skip
# Direction of work -> part of the step.
_OF_DIRECTION = {
    "": FORWARD,
    "forward": FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "recompute": RECOMPUTE,
}
# Preparing is a part of its own from this share of the usual step on, or this one of all steps.
_PREPARING_RATIO, _PREPARING_IN_ALL_RATIO = 0.03, 0.2
# What wraps a model works before it calls it.
_WRAPPER = re.compile(r"(?:DistributedDataParallel|FullyShardedDataParallel)\.|FSDP::")
_TO_PART = np.array([_OF_DIRECTION[direction] for direction in DIRECTIONS], dtype=np.int8)
_COMMUNICATES = np.array([group == "communication" for group, _ in BUCKETS])


@dataclass(frozen=True)
class _Worked:
    """Work as the cuts need it: its part, and when the call of a model began that it lies in (-1:
    in none)."""

    lanes: Lanes
    part: NDArray[np.int8]
    called_ns: Longs


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
    work: Work,
    work_step: Longs,
    direction: NDArray[np.int8],
) -> tuple[Phase, ...]:
    """The parts of the steady training steps that took time, in their order; empty where nothing
    was trained."""
    chosen = _steady(steps)
    if not chosen.size or not (direction > 1).any():
        return ()
    worked = _Worked(lanes, _TO_PART[direction], _called_ns(work))
    sums = _sums(slices, worked, work_step, chosen)
    if not _prepares(sums.sum(axis=2)):
        sums[:, FORWARD] += sums[:, PREPARATION]
        sums[:, PREPARATION] = 0
    devices = max(int(slices["device"].nunique()), 1)
    taken = set(steps["phase"].astype(str))
    return tuple(
        _phase(name if name not in taken else f"{TRAINING}.{name}", sums[:, part], devices)
        for part, name in enumerate(PARTS)
        if sums[:, part].any()
    )


def _prepares(sums: Longs) -> bool:
    """Whether preparing takes a share that is worth a part, by step and part."""
    preparing, whole = sums[:, PREPARATION], np.maximum(sums.sum(axis=1), 1)
    usual = float(np.median(preparing / whole))
    in_all = float(preparing.sum() / whole.sum())
    return usual >= _PREPARING_RATIO or in_all >= _PREPARING_IN_ALL_RATIO


def _called_ns(work: Work) -> Longs:
    trace = work.trace
    calls = trace.of_kind("module") | trace.named(_WRAPPER.match, "annotation", "operator")
    around = take(work.host.outermost(calls), work.site)
    return np.where(around == NONE, NONE, take(trace.start_ns, around))


def _steady(steps: pd.DataFrame) -> Longs:
    training = (steps["phase"] == TRAINING).to_numpy()
    steady = training & ~steps["warmup"].to_numpy()
    return np.flatnonzero(steady if steady.any() else training)


def _sums(slices: pd.DataFrame, worked: _Worked, work_step: Longs, chosen: Longs) -> Longs:
    """Nanoseconds by step, part and bucket."""
    lanes = worked.lanes
    out = np.zeros((chosen.size, len(PARTS), len(BUCKETS)), dtype=np.int64)
    order = np.argsort(work_step, kind="stable")
    bounds = np.searchsorted(work_step[order], np.stack([chosen, chosen + 1]))
    of_step, of_device = slices["step"].to_numpy(), slices["device"].to_numpy()
    for place, step in enumerate(chosen.tolist()):
        inside = np.flatnonzero(of_step == step)
        works = order[bounds[0, place] : bounds[1, place]]
        for device in np.unique(of_device[inside]).tolist():
            rows = inside[of_device[inside] == device]
            cuts = _cut(worked, works[lanes.device[works] == device])
            _charge(out[place], slices.iloc[rows], cuts)
    return out


def _charge(out: Longs, slices: pd.DataFrame, cuts: _Cuts) -> None:
    """Add these slices to the parts that they begin in; one in which the model is called is shared
    with what is called."""
    bucket, charged = slices["bucket"].to_numpy(), slices["charged_ns"].to_numpy()
    piece = np.searchsorted(cuts.time_ns, slices["start_ns"].to_numpy(), side="right")
    at, until = cuts.part[piece], np.append(cuts.time_ns, np.iinfo(np.int64).max)[piece]
    within = np.clip(slices["end_ns"].to_numpy() - until, 0, charged)
    within[at != PREPARATION] = 0
    communicates = _COMMUNICATES[bucket]
    at = np.where(communicates & (at == PREPARATION), FORWARD, at)  # of weights that it needs
    at = np.where(communicates & (at != FORWARD), COMMUNICATION, at)
    np.add.at(out, (at, bucket), charged - within)
    np.add.at(out[FORWARD], bucket, within)


def _cut(worked: _Worked, rows: Longs) -> _Cuts:
    """The changes among these pieces of work. A part begins where its first work ends a gap."""
    lanes = worked.lanes
    rows = rows[lanes.work_class[rows] != COLLECTIVE]
    rows = rows[np.argsort(lanes.start_ns[rows], kind="stable")]
    if not rows.size:
        return _Cuts(rows, np.array([FORWARD], dtype=np.int8))
    mine = _after_backward(worked.part[rows])
    change = np.flatnonzero(np.diff(mine) != 0) + 1
    reach = np.maximum.accumulate(lanes.end_ns[rows])
    times = np.maximum.accumulate(np.minimum(reach[change - 1], lanes.start_ns[rows[change]]))
    first = np.concatenate([[0], change])
    calls = _first_calls(worked, rows, first, mine[first])
    at = np.array(list(calls), dtype=np.int64)
    begun = np.array(list(calls.values()), dtype=np.int64)
    after = np.where(at > 0, times[at - 1], begun) if times.size else begun
    return _Cuts(
        np.insert(times, at, np.maximum(begun, after)), np.insert(mine[first], at, PREPARATION)
    )


def _first_calls(
    worked: _Worked, rows: Longs, first: Longs, parts: NDArray[np.int8]
) -> dict[int, int]:
    """The forward parts of these that call a model, and when what comes before the call is over."""
    lanes, calls = worked.lanes, {}
    ends = np.append(first[1:], rows.size)
    for part in np.flatnonzero(parts == FORWARD).tolist():
        mine = rows[first[part] : ends[part]]
        inside = np.flatnonzero(worked.called_ns[mine] != NONE)
        if inside.size:
            before, call = mine[: inside[0]], mine[inside[0]]
            over = max(int(worked.called_ns[call]), *lanes.end_ns[before].tolist(), 0)
            calls[part] = min(over, int(lanes.start_ns[call]))
    return calls


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
