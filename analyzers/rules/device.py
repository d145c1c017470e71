"""Rule device.throttled: clocks that heat or power hold down while the recording runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.counters import THROTTLE_REASONS, samples_of
from tracer.analyzers.names.throttles import POWER_CAP, SLOWDOWNS
from tracer.analyzers.rules.judging import verdict
from tracer.findings import Check, Finding, Severity

RULE = "device.throttled"
# Shares of the samples from which a reason is worth a word.
_SLOWED, _CAPPED = 0.1, 0.5


def judge_throttling(context: Context, analysis: Analysis) -> RuleResult:
    """By the samples taken in the window. What it costs is not known: no speed without it was."""
    window = analysis.window
    samples = samples_of(analysis.trace, window.start_ns, window.start_ns + window.wall_ns)
    masks = {d: v.astype(np.int64) for (d, name), v in samples.items() if name == THROTTLE_REASONS}
    if not masks:
        return RuleResult(checks=(Check(RULE, "not_checked", "no device counters were sampled"),))
    clocks = {d: v / 1e6 for (d, name), v in samples.items() if name == "sm_clock_hertz"}
    found = [_judged(d, mask, clocks.get(d, np.zeros(0))) for d, mask in masks.items()]
    findings = tuple(finding for finding in found if finding is not None)
    return RuleResult(findings, (verdict(RULE, findings),))


def _judged(device: int, mask: NDArray[np.int64], megahertz: NDArray[np.float64]) -> Finding | None:
    shares = {name: float((mask & bit > 0).mean()) for bit, name in SLOWDOWNS.items()}
    slowed = {name: share for name, share in shares.items() if share >= _SLOWED}
    capped = float((mask & POWER_CAP > 0).mean())
    if slowed:
        advice = "Check cooling and power: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER."
        return _finding(device, "warning", slowed, megahertz, mask.size, advice)
    if capped >= _CAPPED:
        advice = (
            "Usual under full load. A higher limit (nvidia-smi -pl) or less work a step is faster "
            "only where the products bound the step."
        )
        return _finding(device, "info", {"power limit": capped}, megahertz, mask.size, advice)
    return None


def _finding(
    device: int,
    severity: Severity,
    reasons: dict[str, float],
    megahertz: NDArray[np.float64],
    samples: int,
    advice: str,
) -> Finding:
    named = ", ".join(f"{name} in {share:.0%} of the samples" for name, share in reasons.items())
    clock = f"; the SM clock is at {megahertz.mean():,.0f} MHz" if megahertz.size else ""
    return Finding(
        rule=RULE,
        severity=severity,
        title=f"the clocks of device {device} are held down: {named}{clock}",
        count=samples,
        detail={
            "device": device,
            "reasons": reasons,
            "sm_clock_megahertz": float(megahertz.mean()) if megahertz.size else None,
        },
        advice=advice,
    )
