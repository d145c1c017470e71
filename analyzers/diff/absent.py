"""What the side without a finding may have of it all the same: a rule names what costs enough of
the window, so that the same cost may be named in the shorter window alone."""

from __future__ import annotations

import numpy as np

from tracer.analysis import BUCKET_CODE, Analysis
from tracer.analyzers.intervals import NONE
from tracer.analyzers.wording import milliseconds
from tracer.diff_analysis import FindingChange
from tracer.findings import Finding

# From which share of the window on pauses are named: without a device, with one, and short ones of
# one function together.
_NAMED_ON_CPU, _NAMED, _NAMED_SHORT = 0.02, 0.002, 0.1
_IDLE = {"gap.host": "host", "gap.input": "input", "gap.gc": "gc"}
_SHORT = ("reads", "samples")
_BETWEEN = "loop.between"
# Absent is what is less than this share of the cost on the other side, as it was measured there; or
# what cannot be more than this share, where it was not.
_ABSENT_RATIO, _AT_MOST_RATIO = 0.25, 0.5


def alone(
    there: Analysis, finding: Finding, other: Analysis, looked: tuple[str, str], side: str
) -> FindingChange:
    """A finding of one side. looked: why the other could not be looked at, and why in part; side:
    that where it is."""
    below, measured = ("", None) if looked[0] else _below(there, finding, other, side)
    ours, theirs = (finding, None) if side == "A" else (None, finding)
    return FindingChange(ours, theirs, *looked, below=below, other_ns=measured)


def _below(there: Analysis, finding: Finding, other: Analysis, side: str) -> tuple[str, int | None]:
    """Why it may be on the other side too, and what it costs there where that was measured."""
    name = "B" if side == "A" else "A"
    each = (finding.cost_ns or 0) / _steps_like(there, there, finding)
    if finding.rule == _BETWEEN:
        measured = _between_ns(other)
        if measured / _steps_like(other, there, finding) <= _ABSENT_RATIO * each:
            return "", None
        return f"{name} has {milliseconds(measured)} of it in all, too little to be named", measured
    most = _unnamed_ns(other, finding)
    if not each or most / _steps_like(other, there, finding) <= _AT_MOST_RATIO * each:
        return "", None
    return f"{name} may have as much of it: up to {milliseconds(most)} in all is not named", None


def _steps_like(analysis: Analysis, there: Analysis, finding: Finding) -> int:
    """How many steps it has of the phases that a finding lies in."""
    phases = there.steps["phase"].astype(str).to_numpy()
    touched = {phases[step] for step in finding.steps if 0 <= step < phases.size}
    alike = analysis.steps["phase"].astype(str).isin(touched).to_numpy()
    return int(alike.sum()) or max(len(analysis.steps), 1)


def _between_ns(analysis: Analysis) -> int:
    """Operators or device work in no step."""
    outside = (analysis.work["step"] == NONE).to_numpy()
    return int(analysis.work["charged_ns"].to_numpy()[outside].sum())


def _unnamed_ns(analysis: Analysis, finding: Finding) -> int:
    """The most that idle of this cause may cost without being named; 0 for other rules."""
    if finding.rule not in _IDLE:
        return 0
    share = _NAMED_ON_CPU if analysis.cpu_only else _NAMED
    share = _NAMED_SHORT if any(key in finding.detail for key in _SHORT) else share
    cause = "host" if analysis.cpu_only else _IDLE[finding.rule]
    charges = analysis.charges
    mine = charges["bucket"].to_numpy() == BUCKET_CODE["overhead", cause]
    whole = int(np.sum(charges["ns"].to_numpy()[mine]))
    return min(whole, int(share * analysis.window.capacity_ns))
