"""What all rules share: severity from cost, findings grouped by place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.intervals import Longs, Rows
from tracer.analyzers.wording import counted as counted
from tracer.analyzers.wording import milliseconds as milliseconds
from tracer.findings import Check, CheckStatus, Finding, Severity

CALLS_MISSING = "calls are missing between those recorded"
# Shares of the window at which a cost is worth acting on, and at which it is the thing to act on.
WARNING_RATIO, CRITICAL_RATIO = 0.005, 0.10
_MOST_PAUSES = 100


def ratio_of(cost_ns: int | None, analysis: Analysis) -> float | None:
    """Cost as a share of window x devices; None when either is not known."""
    capacity = analysis.window.capacity_ns
    return None if cost_ns is None or not capacity else cost_ns / capacity


def severity_of(
    cost_ns: int | None, analysis: Analysis, warning_ratio: float = WARNING_RATIO
) -> Severity:
    """info below half a percent of the window (or what the rule says), critical from a tenth on."""
    ratio = ratio_of(cost_ns, analysis) or 0.0
    if ratio >= CRITICAL_RATIO:
        return "critical"
    return "warning" if ratio >= warning_ratio else "info"


def verdict(rule: str, findings: Iterable[Finding], reason: str = "") -> Check:
    """found or clear, by whether the rule found something."""
    status: CheckStatus = "found" if any(f.rule == rule for f in findings) else "clear"
    return Check(rule, status, reason)


def as_far_as_seen(check: Check, calls_missing: bool) -> Check:
    """The check, in part only where calls that it looks for may be missing."""
    if not calls_missing or check.status != "clear":
        return check
    return Check(check.rule, "partial", CALLS_MISSING)


def steady_steps(analysis: Analysis) -> list[int]:
    """Steps that are not warm-up; all of them when there is nothing else."""
    warm = analysis.steps["warmup"].to_numpy()
    rows: list[int] = np.flatnonzero(~warm).tolist()
    return rows or list(range(warm.size))


def between_steps(steps: Rows, length_ns: Longs) -> dict[str, int]:
    """A detail: how much of what a finding costs lies between steps, by the step of each piece."""
    between = int(length_ns[steps < 0].sum())
    return {"between_steps_ns": between} if between else {}


def longest_first(rows: Longs, length_ns: Longs) -> tuple[int, ...]:
    """The longest of these pieces, as many as are worth a look each."""
    order = np.argsort(-length_ns, kind="stable")[:_MOST_PAUSES]
    longest: list[int] = rows[order].tolist()
    return tuple(longest)


def is_of_transformers(analysis: Analysis, model_type: str = "") -> bool:
    """Whether a model of this class, or any, is one of the library's. That a program loaded the
    library tells nothing of the models of its own."""
    models = analysis.facts.get("models") or ()
    named = (model for model in models if model_type in ("", model.get("type")))
    return any(model.get("model_type") for model in named)
