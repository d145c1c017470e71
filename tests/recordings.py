"""The shared recordings that are timelines, and the truth that lies beside some of them."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.conftest import SHARED
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze
from tracer.collectors.kineto.trace import read_kineto


def kineto_files(*folders: str) -> list[Path]:
    """Every file of these folders that could be a Kineto timeline, by name."""
    files = [path for folder in folders for path in sorted((SHARED / folder).glob("*.json.gz"))]
    return [path for path in files if ".truth." not in path.name]


@lru_cache(maxsize=4)
def analysis_of(path: Path) -> Analysis:
    """The analysis of one recording; a few are kept."""
    return analyze(read_kineto(path))


def truth_of(name: str) -> dict[str, Any]:
    """Correlation -> group, or a list of groups in launch order for a graph replay."""
    with gzip.open(SHARED / "h200" / f"{name}.truth.json.gz") as file:
        truth: dict[str, Any] = json.load(file)["by_correlation"]
    return truth


def score(analysis: Analysis, truth: dict[str, Any]) -> tuple[float, float, list[str]]:
    """Nanoseconds with the right group, nanoseconds with a truth, and what was wrong."""
    trace, work = analysis.trace, analysis.work
    events = work["event"].to_numpy()
    correlations = trace.events["correlation"].to_numpy()[events].tolist()
    durations = trace.events["duration_ns"].to_numpy()[events].tolist()
    replayed: dict[int, int] = {}
    right = total = 0
    wrong: list[str] = []
    rows = zip(correlations, durations, work["bucket"].tolist(), events.tolist(), strict=True)
    for correlation, duration, bucket, event in rows:
        wanted = truth.get(str(correlation))
        if isinstance(wanted, list):
            place = replayed.get(correlation, 0)
            replayed[correlation] = place + 1
            wanted = wanted[place]
        if wanted is None:
            continue
        wanted = {"mixer": "attention", "attention": "attention", "ffn": "ffn"}.get(wanted, "other")
        total += duration
        if BUCKETS[bucket][0] == wanted:
            right += duration
        else:
            wrong.append(f"{trace.names[trace.name_codes[event]][:60]}: {BUCKETS[bucket]}")
    return right, total, wrong
