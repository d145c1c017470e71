"""The observer effect: what the profiler added to a step, and the step without it (DESIGN 2)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.analysis import BUCKETS, Observer
from tracer.events import Trace

NOT_OBSERVED = (
    "no steps of this loop were measured without the profiler: a schedule with wait steps, or "
    "trace(calibrate=True), measures some"
)
# Idle that the host caused, which is what the profiler makes longer. Device work is not touched.
_HOST_CAUSED = (
    "launch", "sync", "host", "input", "allocator", "gc", "graph_launch", "profiler",
)  # fmt: skip


def observe(trace: Trace, steps: pd.DataFrame, charges: pd.DataFrame) -> Observer | None:
    """Compare the steady steps of the commonest phase with the same steps run unprofiled."""
    table = trace.table("unprofiled_steps")
    steady = steps[~steps["warmup"].to_numpy()]
    if not len(table) or not len(steady):
        return None
    phases = steady["phase"].astype(str)
    phase = str(phases.mode().iloc[0])
    rows = steady.index[phases == phase]
    profiled = int(np.median(steps["wall_ns"].to_numpy()[rows]))
    unprofiled = int(np.median((table["end_ns"] - table["start_ns"]).to_numpy()))
    if profiled <= 0 or unprofiled <= 0:
        return None
    mean = _mean_step(charges, rows.to_numpy())
    factor = _factor(mean, unprofiled)
    return Observer(
        profiled_step_ns=profiled,
        unprofiled_step_ns=unprofiled,
        inflation_ratio=profiled / unprofiled,
        basis=f"median of {len(rows)} profiled and {len(table)} unprofiled steps of this loop",
        phase=phase,
        host_idle_factor=factor,
        scaled={} if factor is None else _scaled(mean, factor, unprofiled),
    )


def _mean_step(charges: pd.DataFrame, rows: np.typing.NDArray[np.int64]) -> dict[int, float]:
    """Nanoseconds of each bucket in the mean of these steps."""
    mine = charges[np.isin(charges["step"].to_numpy(), rows)]
    sums = np.bincount(mine["bucket"].to_numpy(), weights=mine["ns"].to_numpy())
    return {bucket: float(ns) / rows.size for bucket, ns in enumerate(sums.tolist()) if ns}


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
