"""Rules gap.compile and warmup.first_use: compilation, plans of libraries, first uses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.facts.calls import is_autotune
from tracer.analyzers.facts.places import folded
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.compilations import (
    again_ns,
    compilation,
    compiled_in,
    first_use_advice,
    returns_in,
)
from tracer.analyzers.rules.idle_pieces import NAMED_SHARE, IdlePieces
from tracer.analyzers.rules.judging import (
    milliseconds,
    ratio_of,
    severity_of,
)
from tracer.findings import Finding, Where

_PLAN = "library-plan"
# How the compiler ends the names of the ranges that it writes.
_TIMED = " (dynamo_timed)"


def compile_idle(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    """gap.compile for what returns in most steps, warmup.first_use for what does not: one finding
    for each function that is compiled or tuned, and for each operator that a library prepares."""
    rows = pieces.of_cause("compile")
    groups: dict[tuple[str, str, Where], list[int]] = {}
    for row, event in zip(rows.tolist(), pieces.gaps.event[rows].tolist(), strict=True):
        groups.setdefault(_group(pieces, row, event), []).append(row)
    out = []
    for (kind, subject, where), members in groups.items():
        mine = np.array(members, dtype=np.int64)
        if int(pieces.length[mine].sum()) < NAMED_SHARE * analysis.window.capacity_ns:
            continue
        if kind == _PLAN:
            out.append(_plan_finding(pieces, analysis, subject, mine))
        else:
            out.append(_compile_finding(pieces, analysis, kind, where, mine))
    return sorted(out, key=lambda finding: -(finding.cost_ns or 0))


def _group(pieces: IdlePieces, row: int, event: int) -> tuple[str, str, Where]:
    kind = _kind(pieces, event)
    if kind == _PLAN:
        return kind, _subject(pieces, event), Where()
    gaps = pieces.gaps
    return kind, "", compiled_in(pieces.trace, int(gaps.start_ns[row]), int(gaps.end_ns[row]))


def _kind(pieces: IdlePieces, event: int) -> str:
    """compile and autotune where a range around the event says so, else a library's own work."""
    around = int(pieces.compiling[event]) if event != NONE else NONE
    if around == NONE:
        return _PLAN
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
    pieces: IdlePieces, analysis: Analysis, kind: str, where: Where, rows: Longs
) -> Finding:
    event, gaps = pieces.evidence(rows), pieces.gaps
    again = again_ns(pieces.trace, where, gaps.start_ns[rows], gaps.end_ns[rows])
    if where.function is None and event:  # the line of the program that had it compiled
        place = pieces.places.of(event[0])
        where = replace(place, module=folded(place.module) if place.module else None)
    parts: dict[str, int] = {}
    for row in rows.tolist():
        name = _part(pieces, int(pieces.gaps.event[row]))
        parts[name] = parts.get(name, 0) + int(pieces.length[row])
    cost, steps = int(pieces.length[rows].sum()), pieces.steps_of(rows)
    return compilation(analysis, kind, where, cost, steps, again=again, parts=parts, events=event)


def _part(pieces: IdlePieces, event: int) -> str:
    """What the compiler itself calls its innermost range around an event, without arguments."""
    return _name(pieces, int(pieces.compiling[event])).removesuffix(_TIMED).partition(":")[0]


def _plan_finding(pieces: IdlePieces, analysis: Analysis, subject: str, rows: Longs) -> Finding:
    cost = int(pieces.length[rows].sum())
    steps = pieces.steps_of(rows)
    returns = returns_in(steps, analysis)
    event = pieces.evidence(rows)
    operator = int(pieces.work.host.operator[event[0]]) if event else NONE
    usual = _usual_ns(pieces, operator)
    calls = int(np.unique(take(pieces.work.host.operator, pieces.gaps.event[rows])).size)
    each = milliseconds(cost / max(calls, 1))
    like = f", its like {milliseconds(usual)}" if usual else ""
    where = pieces.places.of(event[0]) if event else Where()
    return Finding(
        rule="gap.compile" if returns else "warmup.first_use",
        severity=severity_of(cost, analysis) if returns else "info",
        title=f"{subject} takes {each}{like}: {_WHY}, {_when(steps, analysis)}",
        count=calls,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=replace(where, module=folded(where.module) if where.module else None),
        detail={
            "kind": _PLAN,
            "operator": subject,
            "each_ns": cost // max(calls, 1),
            "like_ns": usual,
            **pieces.between_steps(rows),
        },
        advice=_PLAN_ADVICE if returns else first_use_advice(analysis),
        gain_ns=cost if returns else None,
        events=event,
    )


_WHY = "a library builds a plan or loads a kernel that it had not used before"
_PLAN_ADVICE = (
    "Each new shape costs this once. Keep shapes the same from step to step (a static KV "
    "cache, padded lengths), or choose another backend for this operator "
    "(torch.nn.attention.sdpa_kernel)."
)


def _when(steps: tuple[int, ...], analysis: Analysis) -> str:
    return f"in {len(steps)} of {len(analysis.steps)} steps" if steps else "outside the steps"


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
