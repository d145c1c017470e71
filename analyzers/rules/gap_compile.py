"""Rules gap.compile and warmup.first_use: compilation, plans of libraries, first uses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.facts.calls import is_autotune
from tracer.analyzers.facts.places import folded
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.idle_pieces import NAMED_SHARE, IdlePieces
from tracer.analyzers.rules.judging import (
    milliseconds,
    ratio_of,
    severity_of,
)
from tracer.findings import Finding, Where


def compile_idle(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    """gap.compile for what returns in most steps, warmup.first_use for what does not."""
    rows = pieces.of_cause("compile")
    groups: dict[tuple[str, str], list[int]] = {}
    for row, event in zip(rows.tolist(), pieces.gaps.event[rows].tolist(), strict=True):
        groups.setdefault((_kind(pieces, event), _subject(pieces, event)), []).append(row)
    out = []
    for (kind, subject), members in groups.items():
        mine = np.array(members, dtype=np.int64)
        cost = int(pieces.length[mine].sum())
        if cost >= NAMED_SHARE * analysis.window.capacity_ns:
            out.append(_compile_finding(pieces, analysis, kind, subject, mine))
    return sorted(out, key=lambda finding: -(finding.cost_ns or 0))


def _kind(pieces: IdlePieces, event: int) -> str:
    """compile and autotune where a range around the event says so, else a library's own work."""
    around = int(pieces.compiling[event]) if event != NONE else NONE
    if around == NONE:
        return "library-plan"
    return "autotune" if is_autotune(_name(pieces, around)) else "compile"


def _name(pieces: IdlePieces, event: int) -> str:
    return str(pieces.trace.names[pieces.trace.name_codes[event]])


def _subject(pieces: IdlePieces, event: int) -> str:
    """The operator or range that did the one-time work."""
    if event == NONE:
        return "the driver"
    operator = int(pieces.work.host.operator[event])
    row = operator if operator != NONE else event
    return _name(pieces, row)


def _compile_finding(
    pieces: IdlePieces, analysis: Analysis, kind: str, subject: str, rows: Longs
) -> Finding:
    cost = int(pieces.length[rows].sum())
    steps = pieces.steps_of(rows)
    returns = len(steps) > 1 and len(steps) > len(analysis.steps) / 2
    event = pieces.evidence(rows)
    operator = int(pieces.work.host.operator[event[0]]) if event else NONE
    usual = _usual_ns(pieces, operator)
    calls = int(np.unique(take(pieces.work.host.operator, pieces.gaps.event[rows])).size)
    each = milliseconds(cost / max(calls, 1))
    like = f", its like {milliseconds(usual)}" if usual else ""
    what = f"{subject} takes {each}{like}: {_WHY[kind]}"
    where = pieces.places.of(event[0]) if event else Where()
    return Finding(
        rule="gap.compile" if returns else "warmup.first_use",
        severity=severity_of(cost, analysis) if returns else "info",
        title=f"{what}, {_when(steps, analysis)}",
        count=calls,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=replace(where, module=folded(where.module) if where.module else None),
        detail={
            "kind": kind,
            "operator": subject,
            "each_ns": cost // max(calls, 1),
            "like_ns": usual,
        },
        advice=_COMPILE_ADVICE[kind] if returns else _first_use_advice(analysis),
        gain_ns=cost if returns else None,
        events=event,
    )


_WHY = {
    "compile": "code is compiled",
    "autotune": "variants of a kernel are measured",
    "library-plan": "a library builds a plan or loads a kernel that it had not used before",
}
_COMPILE_ADVICE = {
    "compile": (
        "It compiles again in most steps: keep shapes fixed or mark them dynamic "
        "(torch._dynamo.mark_dynamic), and look at the recompile reasons (TORCH_LOGS=recompiles)."
    ),
    "autotune": "Tune once and keep the result: fix the shapes, or reuse the autotuner's cache.",
    "library-plan": (
        "Each new shape costs this once. Keep shapes the same from step to step (a static KV "
        "cache, padded lengths), or choose another backend for this operator "
        "(torch.nn.attention.sdpa_kernel)."
    ),
}


def _when(steps: tuple[int, ...], analysis: Analysis) -> str:
    return f"in {len(steps)} of {len(analysis.steps)} steps" if steps else "outside the steps"


def _first_use_advice(analysis: Analysis) -> str:
    if len(analysis.steps) > 1:
        return "Paid once: run a warm-up step before measuring or serving."
    return (
        "One step does not tell whether this returns: run a warm-up step before it, which pays "
        "what is paid once."
    )


def _usual_ns(pieces: IdlePieces, operator: int) -> int | None:
    """Median duration of the operators of that name; None when there is no other."""
    if operator == NONE:
        return None
    trace = pieces.trace
    like = np.flatnonzero(trace.name_codes == trace.name_codes[operator])
    like = like[pieces.work.host.of_kind("operator")[like]]
    if like.size < 3:
        return None
    return int(np.median(trace.end_ns[like] - trace.start_ns[like]))
