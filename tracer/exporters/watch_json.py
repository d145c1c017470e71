"""A watched server as JSON: schema `tracer.watch/1`, described by `watch.schema.json`."""

from __future__ import annotations

from typing import Any

from tracer.exporters.json_report import finding_json, plain
from tracer.exporters.watch_words import watch_answer, watch_notes
from tracer.serving import LATENCIES, Level, Quantile, ServingAnalysis, Times
from tracer.version import VERSION

SCHEMA = "tracer.watch/1"
_COUNTS = ("prompt_tokens", "generated_tokens", "finished", "aborted", "preemptions")


def to_watch(analysis: ServingAnalysis, capture: Any = None) -> dict[str, Any]:
    """The document, ready for `json.dumps`; `capture` is that of `capture_json`, or None."""
    return {
        "schema": SCHEMA,
        "tracer": VERSION,
        "answer": watch_answer(analysis),
        "source": {
            "url": analysis.readings.url,
            "engine": analysis.readings.engine.name,
            "models": list(analysis.readings.readings[-1].models),
        },
        "integrity": {
            "status": "partial" if analysis.damaged else "complete",
            "notes": watch_notes(analysis),
        },
        "window": _window(analysis),
        "serving": serving_json(analysis),
        "findings": [finding_json(finding) for finding in analysis.findings],
        "checks": [
            {"rule": check.rule, "status": check.status, "reason": check.reason or None}
            for check in analysis.checks
        ],
        "capture": capture,
    }


def _window(analysis: ServingAnalysis) -> dict[str, Any]:
    readings = analysis.readings
    return {
        "start_unix_ns": readings.started_unix_ns,
        "wall_ns": analysis.window.wall_ns,
        "readings": len(readings.readings),
        "missed": readings.missed,
        "damaged_lines": analysis.damaged_lines,
        "restarts": analysis.window.restarts,
    }


def serving_json(analysis: ServingAnalysis) -> dict[str, Any]:
    """What DESIGN calls `serving`: null is what was not told, and `absent` names it."""
    window = analysis.window
    return {
        "engine": analysis.readings.engine.key,
        "idle": analysis.idle,
        **{name: _level(window.levels.get(name)) for name in ("running", "waiting")},
        "kv_cache_usage_ratio": _level(window.levels.get("kv_cache_usage")),
        **{name: _whole(window.counts.get(name)) for name in _COUNTS},
        **{f"{name}_per_second": plain(window.per_second(name)) for name in _COUNTS[:3]},
        "prefix_cache_hit_ratio": plain(analysis.prefix_cache_hit_ratio),
        "speculative_acceptance_ratio": plain(analysis.acceptance_ratio),
        "queue_of_first_token_ratio": plain(analysis.queue_of_first_token_ratio),
        "prefill_ratio": plain(analysis.prefill_ratio),
        "decode_ratio": plain(analysis.decode_ratio),
        "request": _stages(analysis),
        **{name: _times(window.times.get(name)) for name in LATENCIES},
        "absent": list(analysis.absent),
    }


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


def _level(level: Level | None) -> dict[str, Any] | None:
    if level is None:
        return None
    return plain({"last": level.last, "mean": level.mean, "min": level.low, "max": level.high})  # type: ignore[no-any-return]


def _stages(analysis: ServingAnalysis) -> dict[str, Any] | None:
    stages = analysis.window.stages
    if stages is None:
        return None
    parts = {f"{name.removesuffix('_time')}_ns": ns for name, ns in stages.parts.items()}
    return {
        "requests": stages.requests,
        "basis": stages.basis,
        "total_ns": stages.total_ns,
        **parts,
    }


def _times(times: Times | None) -> dict[str, Any] | None:
    """None where the engine does not tell it, or nothing came; `absent` tells which."""
    if times is None:
        return None
    return {
        "count": times.count,
        "mean_ns": times.mean_ns,
        "p50_ns": None if times.p50 is None else times.p50.ns,
        "p95_ns": None if times.p95 is None else times.p95.ns,
        "p50_bucket_ns": _bucket(times.p50),
        "p95_bucket_ns": _bucket(times.p95),
    }


def _bucket(quantile: Quantile | None) -> list[int | None] | None:
    """Its bounds; the upper one is null for the last bucket, which has none."""
    return None if quantile is None else [quantile.low_ns, quantile.high_ns]
