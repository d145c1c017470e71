"""Why a value of the report is missing: one check for each thing that was not recorded."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis import Analysis
from tracer.findings import Check

FACTS: tuple[str, ...] = (
    "attention_implementation",
    "dtypes",
    "quantization",
    "compile_mode",
    "engine",
)


def all_checks(analysis: Analysis) -> tuple[Check, ...]:
    """The checks of the analysis, then one for each value that the report has to leave out."""
    known = {check.rule for check in analysis.checks}
    return analysis.checks + tuple(c for c in _absent(analysis) if c.rule not in known)


def _absent(analysis: Analysis) -> Iterator[Check]:
    live = analysis.trace.meta.source_kind == "live"
    if analysis.observer is None:
        yield _missing("capture.observer", analysis.observer_reason or _observer_reason(live))
    if not analysis.memory:
        yield _missing("capture.memory", "nothing counted the memory of a device")
    if not analysis.device_metrics:
        yield _missing("capture.device_metrics", "no device counters were sampled")
    if not analysis.requests and not analysis.serving:
        yield _missing("capture.serving", "no serving engine told of its requests")
    yield from _absent_facts(analysis)
    yield from _absent_sizes(analysis)
    if len(analysis.collectives) and bool((analysis.collectives["wait_ns"] < 0).any()):
        yield _missing("comm.straggler", "needs the recordings of the other ranks")


def _missing(rule: str, reason: str) -> Check:
    return Check(rule, "not_checked", reason)


def _observer_reason(live: bool) -> str:
    if live:
        return "no step of the same loop ran without the profiler"
    return "a file does not tell how long the same steps take without the profiler"


def _absent_facts(analysis: Analysis) -> Iterator[Check]:
    unknown = [fact for fact in FACTS if analysis.facts.get(fact) is None]
    if unknown:
        yield _missing("capture.facts", "the recording does not tell: " + ", ".join(unknown))


def _absent_sizes(analysis: Analysis) -> Iterator[Check]:
    steps = analysis.steps
    unknown = int(((steps["batch"] < 0) | (steps["tokens"] < 0)).sum())
    if unknown:
        reason = f"batch and tokens of {unknown} of {len(steps)} steps are not recorded"
        yield _missing("capture.step_sizes", reason)
