"""The observer effect: what the profiler added to a step, and the step without it (DESIGN 2)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.analysis import BUCKET_CODE, BUCKETS, Observer
from tracer.analyzers.intervals import Longs
from tracer.events import Trace

NOT_OBSERVED = (
    "no steps of this loop were measured without the profiler: a schedule with wait steps, or "
    "trace(calibrate=True), measures some"
)
# Idle that the host caused, which is what the profiler makes longer. Device work is not touched.
_HOST = BUCKET_CODE["overhead", "host"]
_HOST_CAUSED = (
    "launch", "sync", "host", "input", "allocator", "gc", "graph_launch", "profiler",
)  # fmt: skip


def observe(trace: Trace, steps: pd.DataFrame, charges: pd.DataFrame) -> Observer | None:
    """Compare the steady steps of the commonest phase with the same steps run unprofiled."""
    steady = steps[~steps["warmup"].to_numpy()]
    if not len(trace.table("unprofiled_steps")) or not len(steady):
        return None
    phases = steady["phase"].astype(str)
    phase = str(phases.mode().iloc[0])
    rows = steady.index[phases == phase].to_numpy()
    times = _unprofiled_times(trace, steps, rows, phase)
    if not times.size:
        return None
    between = _between_ns(steps, rows)
    profiled = int(np.median(steps["wall_ns"].to_numpy()[rows])) + between
    unprofiled = int(np.median(times))
    if profiled <= 0 or unprofiled <= 0:
        return None
    mean = _mean_step(steps, charges, rows, between)
    factor = _factor(mean, unprofiled)
    return Observer(
        profiled_step_ns=profiled,
        unprofiled_step_ns=unprofiled,
        inflation_ratio=profiled / unprofiled,
        basis=f"median of {len(rows)} profiled and {times.size} unprofiled steps of this loop",
        phase=phase,
        host_idle_factor=factor,
        scaled={} if factor is None else _scaled(mean, factor, unprofiled),
    )


def not_observed(trace: Trace, observer: Observer | None) -> str:
    """Why there is no observer."""
    if observer is not None:
        return ""
    if len(trace.table("unprofiled_steps")):
        return "the steps measured without the profiler are of another phase than those recorded"
    return NOT_OBSERVED


def _unprofiled_times(trace: Trace, steps: pd.DataFrame, rows: Longs, phase: str) -> Longs:
    """Lengths of unprofiled steps of that phase. A step that holds several calls of a model lasts
    as long as so many of them."""
    table = trace.table("unprofiled_steps")
    length = (table["end_ns"] - table["start_ns"]).to_numpy()
    same = table["phase"].isin(["", phase, *_CALLED.get(phase, ())]).to_numpy() | (phase == "")
    calls = _calls_in(trace, steps, rows) if (table["calls"] == 1).any() else 1
    if calls < 2:
        found: Longs = length[same]
        return found
    if not same.all() or length.size < calls:
        return length[:0]
    sums: Longs = np.convolve(length, np.ones(calls, dtype=np.int64), mode="valid")
    return sums


# What the calls of a model are in steps of a phase.
_CALLED = {"training": ("forward",)}


def _calls_in(trace: Trace, steps: pd.DataFrame, rows: Longs) -> int:
    """How many calls of a model a step holds."""
    calls = np.sort(trace.table("root_calls")["start_ns"].to_numpy())
    begin = steps["announced_ns"].to_numpy()[rows]
    end = steps["host_end_ns"].to_numpy()[rows]
    held = np.searchsorted(calls, end) - np.searchsorted(calls, begin)
    return int(np.median(held)) if held.size else 1


def _between_ns(steps: pd.DataFrame, rows: Longs) -> int:
    """The usual time from the end of a step to the beginning of the next, of which a stopwatch
    around the loop sees as much."""
    start = steps["start_ns"].to_numpy()
    end = start + steps["wall_ns"].to_numpy()
    followed = rows[np.isin(rows + 1, rows)]
    gaps = start[followed + 1] - end[followed]
    return int(np.median(gaps)) if gaps.size else 0


def _mean_step(
    steps: pd.DataFrame, charges: pd.DataFrame, rows: Longs, between_ns: int
) -> dict[int, float]:
    """Nanoseconds of each bucket in the mean of these steps, of one device; what lies between
    steps is the host's."""
    mine = charges[np.isin(charges["step"].to_numpy(), rows)]
    sums = np.bincount(mine["bucket"].to_numpy(), weights=mine["ns"].to_numpy())
    wall = int(steps["wall_ns"].to_numpy()[rows].sum())
    devices = max(round(float(sums.sum()) / wall), 1) if wall else 1
    mean = {b: float(ns) / rows.size / devices for b, ns in enumerate(sums.tolist()) if ns}
    mean[_HOST] = mean.get(_HOST, 0.0) + between_ns
    return mean


def _is_host_caused(bucket: int) -> bool:
    group, part = BUCKETS[bucket]
    return group == "overhead" and part in _HOST_CAUSED


def _factor(mean: dict[int, float], unprofiled_ns: int) -> float | None:
    """One factor on host-caused idle that makes the step as long as it is unprofiled."""
    host = sum(ns for bucket, ns in mean.items() if _is_host_caused(bucket))
    rest = sum(mean.values()) - host
    if host <= 0 or unprofiled_ns < rest:
        return None
    return min((unprofiled_ns - rest) / host, 1.0)


def _scaled(mean: dict[int, float], factor: float, unprofiled_ns: int) -> dict[str, int]:
    """Groups of the unprofiled step; rounding goes to overhead, so that they add up to it."""
    groups: dict[str, float] = {}
    for bucket, ns in mean.items():
        scale = factor if _is_host_caused(bucket) else 1.0
        group = BUCKETS[bucket][0]
        groups[group] = groups.get(group, 0.0) + ns * scale
    whole = {group: round(ns) for group, ns in groups.items()}
    if factor < 1.0:
        whole["overhead"] = whole.get("overhead", 0) + unprofiled_ns - sum(whole.values())
    return whole
