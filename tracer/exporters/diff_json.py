"""What changed as JSON: schema `tracer.diff/1`, described by `diff.schema.json` beside this."""

from __future__ import annotations

from typing import Any

from tracer.analysis import Analysis
from tracer.diff_analysis import (
    DiffAnalysis,
    Difference,
    MeanTurn,
    Measure,
    Named,
    PhaseChange,
    Side,
)
from tracer.exporters.diff_findings import CostChange, cost_changes, rank_cost_changes, wait_ns
from tracer.exporters.diff_levels import Bucket, buckets_of
from tracer.exporters.diff_promises import Prediction
from tracer.exporters.diff_verdict import diff_verdict
from tracer.exporters.job_verdict import job_verdict
from tracer.exporters.json_report import finding_json, plain, source_json
from tracer.job_diff import JobDiff, JobPhase, RankChange
from tracer.rank_analysis import RankAnalysis
from tracer.version import VERSION

SCHEMA = "tracer.diff/1"
_PARTS = "of parts of a step the medians alone are known"


def to_job_diff(job: JobDiff) -> dict[str, Any]:
    """The comparison of two jobs: that of the rank that tells most, and of all beside it."""
    change = job.change
    across = rank_cost_changes(change)
    return {
        **to_diff(job.detail),
        "answer": job_verdict(job, cost_changes(job.detail), across),
        "comparable": job.comparable,
        "job": {
            "before": _job(job.before, change.before),
            "after": _job(job.after, change.after),
            "rank": change.led,
            "why": change.why,
            "phases": [_job_phase(phase) for phase in change.phases],
            "ranks": [_rank(rank) for rank in change.ranks],
            "only_before": list(change.only_before),
            "only_after": list(change.only_after),
            "findings": [_finding(row) for row in across],
        },
    }


def _job(path: str, analysis: RankAnalysis) -> dict[str, Any]:
    return {
        "path": path,
        "ranks": [rank.summary.rank for rank in analysis.ranks],
        "integrity": analysis.integrity_status,
    }


def _job_phase(phase: JobPhase) -> dict[str, Any]:
    return {
        "phase": _phase_name(phase.phase),
        "slowest_before": phase.slowest[0],
        "slowest_after": phase.slowest[1],
        "step": _measure(phase.step),
    }


def _rank(rank: RankChange) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "before_path": rank.before.summary.path,
        "after_path": rank.after.summary.path,
        "phases": [
            {"phase": _phase_name(phase), "step": _measure(step)}
            for phase, step in rank.steps.items()
        ],
        "before_wait_ns": _rounded(wait_ns(rank.before)),
        "after_wait_ns": _rounded(wait_ns(rank.after)),
    }


def _phase_name(phase: str | None) -> str | None:
    return phase or ("step" if phase == "" else None)


def to_diff(diff: DiffAnalysis) -> dict[str, Any]:
    """The comparison, ready for `json.dumps`. Times are of one step, in whole nanoseconds."""
    return {
        "schema": SCHEMA,
        "tracer": VERSION,
        "answer": diff_verdict(diff, cost_changes(diff)),
        "before": _recording(diff.before),
        "after": _recording(diff.after),
        "comparable": diff.comparable,
        "reason": diff.reason or None,
        "differences": [_difference(difference) for difference in diff.differences],
        "phases": [_phase(diff, change) for change in diff.phases],
        "only_before": list(diff.only_before),
        "only_after": list(diff.only_after),
        "findings": [_finding(row) for row in cost_changes(diff)],
        "job": None,
    }


def _recording(analysis: Analysis) -> dict[str, Any]:
    window = analysis.window
    return {
        **source_json(analysis),
        "integrity": analysis.integrity_status,
        "wall_ns": window.wall_ns,
        "inflation_ratio": None if analysis.observer is None else analysis.observer.inflation_ratio,
        "unprofiled_step_ns": None
        if analysis.observer is None
        else analysis.observer.unprofiled_step_ns,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "rule": difference.rule,
        "message": difference.message,
        "before": plain(difference.before),
        "after": plain(difference.after),
        "breaks": difference.breaks,
    }


def _phase(diff: DiffAnalysis, change: PhaseChange) -> dict[str, Any]:
    buckets = buckets_of(change)
    return {
        "phase": _phase_name(change.phase),
        "basis": _basis(change),
        "before": _side(change.before),
        "after": _side(change.after),
        "step": _measure(change.step),
        "turn": None if change.turn is None else _measure(change.turn),
        "mean_turn": None if change.mean_turn is None else _mean_turn(change, change.mean_turn),
        "all_operators_ratio": plain(change.pace),
        "breakdown": _breakdown(change, buckets) if buckets else None,
        "breakdown_reason": None if buckets else _unaccounted(diff),
        "parts": [
            {"name": part.name, **_measure(Measure(part.before_ns, part.after_ns, None, _PARTS))}
            for part in change.parts
        ],
        "modules_by": change.modules_by or None,
        "modules": [_module(change, row) for row in change.modules],
        "kernels": [_kernel(change, row) for row in change.kernels],
    }


def _mean_turn(change: PhaseChange, mean: MeanTurn) -> dict[str, Any]:
    return {**_measure(mean.measure), "tells_more": change.mean_tells}


def _basis(change: PhaseChange) -> str:
    """What the sums of this phase are about."""
    if change.phase is None:
        return "window"
    return "middle_half" if change.middle else "mean_step"


def _unaccounted(diff: DiffAnalysis) -> str:
    return diff.before.breakdown_reason or diff.after.breakdown_reason


def _side(side: Side) -> dict[str, Any]:
    return {
        "steps": side.steps,
        "warmup_steps": side.warmup_steps,
        "batch": None if side.batch < 0 else side.batch,
        "tokens": None if side.tokens < 0 else side.tokens,
        "tokens_per_second": plain(side.tokens_per_second),
        "devices": side.devices,
        "between_steps_ns": round(side.between_ns / side.followed) if side.followed else None,
    }


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "before_ns": measure.before_ns,
        "after_ns": measure.after_ns,
        "change_ns": measure.change_ns,
        "change_ratio": measure.change_ratio,
        "scatter_ns": measure.scatter_ns,
        "within_scatter": measure.within_scatter,
        "reason": measure.reason or None,
    }


def _breakdown(change: PhaseChange, buckets: list[Bucket]) -> dict[str, Any]:
    """Groups and their parts, whose times and changes add up to `sum`, that of the steps."""
    groups: dict[str, Any] = {}
    for bucket in buckets:
        median = change.medians.get((bucket.group, bucket.part))
        times = {**_bucket(bucket), "median": None if median is None else _measure(median)}
        if not bucket.part:
            groups[bucket.group] = {**times, "parts": {}}
        elif bucket.before_ns or bucket.after_ns:
            groups[bucket.group]["parts"][bucket.part] = times
    sides = (change.before, change.after)
    ours, theirs = (round(s.wall_ns * max(s.devices, 1) / s.count) for s in sides)
    return {"sum": _bucket(Bucket("", "", ours, theirs)), "groups": groups}


def _bucket(bucket: Bucket) -> dict[str, int]:
    return {
        "before_ns": bucket.before_ns,
        "after_ns": bucket.after_ns,
        "change_ns": bucket.change_ns,
    }


def _module(change: PhaseChange, row: Named) -> dict[str, Any]:
    return {
        "path" if change.modules_by == "path" else "role": row.name,
        **({"role": row.kind or None} if change.modules_by == "path" else {}),
        "device": _per_step(change, row.before_ns, row.after_ns),
        "self": _per_step(change, row.self_before_ns, row.self_after_ns),
        "kernels": _counts(change, row),
        "status": _status(row),
    }


def _kernel(change: PhaseChange, row: Named) -> dict[str, Any]:
    group, _, part = row.kind.partition(".")
    return {
        "name": row.name,
        "group": group or None,
        "part": part or None,
        "total": _per_step(change, row.before_ns, row.after_ns),
        "calls": _counts(change, row),
        "status": _status(row),
    }


def _per_step(change: PhaseChange, before_ns: int, after_ns: int) -> dict[str, int]:
    ours, theirs = round(before_ns / change.before.count), round(after_ns / change.after.count)
    return {"before_ns": ours, "after_ns": theirs, "change_ns": theirs - ours}


def _counts(change: PhaseChange, row: Named) -> dict[str, float]:
    return {
        "before": row.before_count / change.before.count,
        "after": row.after_count / change.after.count,
    }


def _status(row: Named) -> str:
    """Whether one side alone has it."""
    if row.before_count and not row.after_count:
        return "gone"
    return "new" if row.after_count and not row.before_count else "still"


def _finding(row: CostChange) -> dict[str, Any]:
    change = row.change
    return {
        "rule": change.finding.rule,
        "status": change.status,
        "reason": change.unseen or change.below or change.unsure or None,
        "each_step": row.each_step,
        "before_cost_ns": _rounded(row.before_ns),
        "after_cost_ns": _rounded(row.after_ns),
        "change_ns": _rounded(row.change_ns),
        "before": None if change.before is None else finding_json(change.before),
        "after": None if change.after is None else finding_json(change.after),
        "predicted": None if row.prediction is None else _prediction(row.prediction),
    }


def _rounded(ns: float | None) -> int | None:
    return None if ns is None else round(ns)


def _prediction(prediction: Prediction) -> dict[str, Any]:
    about = prediction.about
    return {
        "phase": prediction.phase or "step",
        "from_start_to_start": prediction.turn,
        "before_ns": prediction.before_ns,
        "predicted_ns": prediction.predicted_ns,
        "measured_ns": prediction.measured_ns,
        "predicted_gain_ns": prediction.predicted_gain_ns,
        "measured_gain_ns": prediction.measured_gain_ns,
        "about": None if about is None else about.part or about.group,
        "about_change_ns": None if about is None else about.change_ns,
        "all_else_ns": prediction.all_else_ns,
        "else_changed": prediction.else_changed,
        "among": prediction.among,
        "basis": prediction.basis,
    }
