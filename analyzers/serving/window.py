"""From readings to a window: what was counted in it, and the times of its requests.

Everything is the difference between readings, never a total since the engine's start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from tracer.serving import (
    Histogram,
    Level,
    Quantile,
    Reading,
    SeriesKey,
    ServingWindow,
    Stages,
    Times,
)

_Value = TypeVar("_Value")
# Of a server with several engines the fullest tells, not the sum.
_RATIOS = ("kv_cache_usage", "prefix_cache_hit", "acceptance")
STAGES = ("queue_time", "prefill_time", "decode_time")


def make_window(readings: Sequence[Reading]) -> ServingWindow:
    """What the engine did from the first of at least two readings to the last."""
    restarted = [restarts(*pair) for pair in pairwise(readings)]
    times = _times(readings, restarted)
    return ServingWindow(
        readings[-1].at_ns - readings[0].at_ns,
        _levels(readings),
        _counts(readings, restarted),
        times,
        make_stages(times),
        sum(restarted),
        _level("running", [r.gauges["running"] for r in readings if _has_queue(r)]),
    )


def _has_queue(reading: Reading) -> bool:
    return "running" in reading.gauges and math.fsum(reading.gauges.get("waiting", ())) >= 1


def restarts(before: Reading, after: Reading) -> bool:
    """Whether the engine began to count anew: its process is another, or a count fell."""
    if before.started_s is not None and after.started_s is not None:
        return after.started_s != before.started_s
    old, new = _totals(before), _totals(after)
    return any(new.get(key, math.inf) < count for key, count in old.items())


def _totals(reading: Reading) -> dict[tuple[str, SeriesKey], float]:
    counted = {(c, k): v for c, series in reading.counters.items() for k, v in series.items()}
    for concept, series in reading.histograms.items():
        counted |= {(concept, key): histogram.count for key, histogram in series.items()}
    return counted


def _levels(readings: Sequence[Reading]) -> dict[str, Level]:
    names = {name for reading in readings for name in reading.gauges}
    levels = {
        name: _level(name, [r.gauges[name] for r in readings if name in r.gauges]) for name in names
    }
    return {name: level for name, level in levels.items() if level is not None}


def _level(name: str, values: Sequence[tuple[float, ...]]) -> Level | None:
    if not values:
        return None
    seen = [max(v) if name in _RATIOS else math.fsum(v) for v in values]
    return Level(seen[-1], math.fsum(seen) / len(seen), min(seen), max(seen))


def _counts(readings: Sequence[Reading], restarted: Sequence[bool]) -> dict[str, float]:
    names = {name for reading in readings for name in reading.counters}
    return {
        name: math.fsum(
            grown - began
            for began, grown in _grown(
                [reading.counters.get(name, {}) for reading in readings],
                readings,
                restarted,
                lambda value: value,
                0.0,
            )
        )
        for name in names
    }


def _grown(
    series: Sequence[Mapping[SeriesKey, _Value]],
    readings: Sequence[Reading],
    restarted: Sequence[bool],
    count: Callable[[_Value], float],
    nothing: _Value,
) -> list[tuple[_Value, _Value]]:
    """What each series grew from and to, reading by reading. It begins at nothing where the engine
    restarted, and where it appears: unless a damaged answer before may have hidden it."""
    known: dict[SeriesKey, _Value] = dict(series[0])
    hidden = bool(readings[0].damaged_lines)
    pairs: list[tuple[_Value, _Value]] = []
    for now, reading, anew in zip(series[1:], readings[1:], restarted, strict=True):
        for key, value in now.items():
            before = nothing if anew else known.get(key, value if hidden else nothing)
            fell = count(value) < count(before)
            pairs.append((nothing if fell else before, value))
        known = dict(now) if anew else {**known, **now}
        hidden = hidden or bool(reading.damaged_lines)
    return pairs


def _times(readings: Sequence[Reading], restarted: Sequence[bool]) -> dict[str, Times | None]:
    names = {name for reading in readings for name in reading.histograms}
    none = Histogram(0, 0)
    return {
        name: _summed(
            _grown(
                [reading.histograms.get(name, {}) for reading in readings],
                readings,
                restarted,
                lambda histogram: histogram.count,
                none,
            )
        )
        for name in names
    }


def _summed(pairs: Iterable[tuple[Histogram, Histogram]]) -> Times | None:
    """The values that came; None for none."""
    grown = [(old, new) for old, new in pairs if new.count > old.count]
    count = round(sum(new.count - old.count for old, new in grown))
    if not count:
        return None
    sum_ns = math.fsum(new.sum_ns - old.sum_ns for old, new in grown)
    bounds = grown[0][1].bounds_ns
    alike = all(new.bounds_ns == bounds and old.bounds_ns in ((), bounds) for old, new in grown)
    told = alike and all(old.bounds_ns or not old.count for old, _ in grown)
    if not bounds or not told:
        return Times(count, round(sum_ns))
    at_most = [_bucket(grown, i) for i in range(len(bounds))]
    return Times(
        count, round(sum_ns), quantile(0.5, bounds, at_most), quantile(0.95, bounds, at_most)
    )


def _bucket(grown: Sequence[tuple[Histogram, Histogram]], at: int) -> float:
    return math.fsum(
        new.at_most[at] - (old.at_most[at] if old.at_most else 0) for old, new in grown
    )


def quantile(share: float, bounds_ns: Sequence[float], at_most: Sequence[float]) -> Quantile:
    """The value below which a share of all lies, in proportion within its bucket; in the last
    bucket, which has no end, where it begins."""
    rank = share * at_most[-1]
    at = next(i for i, count in enumerate(at_most) if count >= rank)
    low, below = (bounds_ns[at - 1], at_most[at - 1]) if at else (0.0, 0.0)
    if math.isinf(bounds_ns[at]):
        return Quantile(round(low), round(low), None)
    inside = (rank - below) / max(at_most[at] - below, 1e-9)
    ns = low + (bounds_ns[at] - low) * min(max(inside, 0.0), 1.0)
    return Quantile(round(ns), round(low), round(bounds_ns[at]))


def make_stages(times: Mapping[str, Times | None]) -> Stages | None:
    """A request in parts; None where none ended, or the engine times no part of it."""
    whole = times.get("end_to_end")
    if whole is None:
        return None
    parts, basis = _parts(times, whole.mean_ns)
    if not parts:
        return None
    told = sum(parts.values())
    total = max(whole.mean_ns, told)
    return Stages(total, {**parts, "other": total - told}, basis, whole.count)


def _parts(times: Mapping[str, Times | None], whole_ns: int) -> tuple[dict[str, int], str]:
    """As the engine times them, else from the queue, the first token and the end."""
    timed = {name: found.mean_ns for name in STAGES if (found := times.get(name)) is not None}
    if len(timed) == len(STAGES):
        return timed, "engine"
    first = times.get("time_to_first_token")
    if first is None or first.mean_ns > whole_ns:  # those that began are not those that ended
        return timed, "engine"
    queue_ns = min(timed.get("queue_time", 0), first.mean_ns)
    parts = {"prefill_time": first.mean_ns - queue_ns}
    if "queue_time" in timed:
        parts = {"queue_time": queue_ns, **parts}
    return {**parts, "decode_time": whole_ns - first.mean_ns}, "derived"
