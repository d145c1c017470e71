"""A compilation as a finding: what was compiled, how long it took, whether it returns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.intervals import Longs, covered, union
from tracer.analyzers.rules.judging import counted, milliseconds, ratio_of, severity_of
from tracer.events import Trace
from tracer.findings import Finding, Where

# So many of the compiler's parts are named, each of at least this share of the whole.
_PARTS, _PART_SHARE = 3, 0.05
_AGAIN = {
    "compile": (
        "It compiles again in most steps{part}: keep shapes fixed or mark them dynamic "
        "(torch._dynamo.mark_dynamic), and look at the recompile reasons (TORCH_LOGS=recompiles)."
    ),
    "autotune": "Tune once and keep the result: fix the shapes, or reuse the autotuner's cache.",
}
_WHAT = {"compile": "compiling", "autotune": "measuring variants of kernels"}


def compiled_in(trace: Trace, start_ns: int, end_ns: int) -> Where:
    """The function whose compilation covers most of a pause, where the compiler told it."""
    table = trace.table("compile_events")
    overlap = np.minimum(table["end_ns"].to_numpy(), end_ns) - np.maximum(
        table["start_ns"].to_numpy(), start_ns
    )
    named = (table["function"].astype(str) != "").to_numpy() & (overlap > 0)
    named &= (table["kind"] != "recompile_limit").to_numpy()  # by which nothing was compiled
    if not named.any():
        return Where()
    chosen = table.iloc[int(np.where(named, overlap, -1).argmax())]
    line = int(chosen["line"])
    return Where(str(chosen["file"]) or None, line if line > 0 else None, str(chosen["function"]))


def again_ns(trace: Trace, where: Where, start_ns: Longs, end_ns: Longs) -> int | None:
    """How much of these pauses went to what had been compiled before: the first compilation of a
    function and the first of its backward cannot be spared. None where the compiler did not tell
    what it compiled."""
    if where.function is None:
        return None
    table = trace.table("compile_events")
    again = table.duplicated(["kind", "file", "line", "function"])
    first = (table["kind"].isin(["compile", "backward"]) & ~again).to_numpy()
    mine = table["kind"].isin(["compile", "recompile", "backward"]).to_numpy() & ~first
    start, end = union(table["start_ns"].to_numpy()[mine], table["end_ns"].to_numpy()[mine])
    return int(covered(start_ns, end_ns, start, end).sum())


def returns_in(steps: tuple[int, ...], analysis: Analysis) -> bool:
    """Whether a cost comes back in most steps."""
    return len(steps) > 1 and len(steps) > len(analysis.steps) / 2


def first_use_advice(analysis: Analysis) -> str:
    """What to do about a cost that is paid once, as far as the steps tell."""
    if len(analysis.steps) > 1:
        return "Paid once: run a warm-up step before measuring or serving."
    return (
        "One step does not tell whether this returns: run a warm-up step before it, which pays "
        "what is paid once."
    )


def compilation(
    analysis: Analysis,
    kind: str,
    where: Where,
    cost_ns: int,
    steps: tuple[int, ...],
    *,
    again: int | None = None,
    parts: Mapping[str, int] | None = None,
    events: tuple[int, ...] = (),
) -> Finding:
    """One finding for all that was compiled (or tuned) for a function. `kind`: compile or autotune.
    `again`: nanoseconds of it that were not the first time, where that is known. `parts`:
    nanoseconds of each part of the compiler."""
    again = cost_ns if again is None else min(again, cost_ns)
    returns = returns_in(steps, analysis) and again > 0
    longest = sorted((parts or {}).items(), key=lambda part: -part[1])
    most = [part for part in longest[:_PARTS] if part[1] >= _PART_SHARE * cost_ns]
    of = f" {where.function}" if where.function and kind == "compile" else ""
    return Finding(
        rule="gap.compile" if returns else "warmup.first_use",
        severity=severity_of(cost_ns, analysis) if returns else "info",
        title=f"{_WHAT[kind]}{of} takes {milliseconds(cost_ns)}{_most(most)}, "
        + (
            f"in {len(steps)} of {counted(len(analysis.steps), 'step')}"
            if steps
            else "outside the steps"
        ),
        count=max(len(steps), 1),
        cost_ns=cost_ns,
        ratio=ratio_of(cost_ns, analysis),
        steps=steps,
        where=where,
        detail={
            "kind": kind,
            "operator": None,
            "each_ns": cost_ns // max(len(steps), 1),
            "parts": dict(longest),
        },
        advice=_again_advice(kind, again, cost_ns) if returns else first_use_advice(analysis),
        gain_ns=again if returns else None,
        events=events,
    )


def _again_advice(kind: str, again: int, cost_ns: int) -> str:
    part = f" ({milliseconds(again)} of this)" if again < cost_ns else ""
    return _AGAIN[kind].format(part=part)


def _most(parts: list[tuple[str, int]]) -> str:
    if len(parts) < 2:
        return ""
    named = ", ".join(f"{name} {milliseconds(ns)}" for name, ns in parts)
    return f" (most of it: {named})"
