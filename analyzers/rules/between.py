"""Rule loop.between: operators that a loop runs between its steps, where they take much of it.

Steps are calls of a model as a rule, and what their loop does besides is in none of them: copies of
what is kept from call to call, sampling, penalties. No other rule speaks of that work.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places
from tracer.analyzers.facts.samples import Samples
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.judging import (
    counted,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.findings import Check, Finding, Where

RULE = "loop.between"
# It is told from this share of the window on, and where it has so many times between steps to lie
# in: what comes once is set-up.
_NOTABLE, _FEWEST = 0.1, 3
# The host is where the work is, by samples of its stacks, when that fills so much of the time.
_MOSTLY = 0.5
_COPIES = re.compile(r"aten::(clone|copy_|_?to(_copy)?|contiguous|_?cat|stack|repeat\w*|pad)$")


def judge_between(context: Context, analysis: Analysis) -> RuleResult:
    """By the work whose launch, or on a CPU whose operator, lies in no step."""
    reason = "" if analysis.accounted else analysis.breakdown_reason
    if reason or not context.plan.found:
        return RuleResult(checks=(Check(RULE, "not_checked", reason or "no steps were found"),))
    own = analysis.work["charged_ns"].to_numpy()
    outside = (context.plan.work_step == NONE) & ~context.work.orphaned & (own > 0)
    rows = np.flatnonzero(outside)
    little = int(own[rows].sum()) < _NOTABLE * analysis.window.capacity_ns
    if little or len(_turns(context, rows)) < _FEWEST:
        return RuleResult(checks=(Check(RULE, "clear"),))
    finding = _finding(context, analysis, rows)
    return RuleResult((finding,), (verdict(RULE, (finding,)),))


def _turns(context: Context, rows: Longs) -> tuple[int, ...]:
    """The steps that this work follows."""
    asked = _asked(context)[rows]
    return context.plan.following(context.work.trace.start_ns[asked[asked != NONE]])


def _asked(context: Context) -> Longs:
    """The host event that asked for each piece of work."""
    work = context.work
    return work.site if work.cpu_only else work.launch


def _finding(context: Context, analysis: Analysis, rows: Longs) -> Finding:
    own = analysis.work["charged_ns"].to_numpy()
    cost, turns = int(own[rows].sum()), _turns(context, rows)
    name, mine, calls = _largest(context, rows, own)
    told = int(own[mine].sum())
    where = _place(context, mine, own, cost)
    copies = _COPIES.match(name) is not None
    most = "most of them" if 2 * told > cost else "the largest part"
    return Finding(
        rule=RULE,
        severity=severity_of(cost, analysis),
        title=(
            f"{milliseconds(cost)} of operators run between the steps, {most} {name}, "
            f"{milliseconds(told)} in {counted(calls, 'call')}"
        ),
        count=calls,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=turns,
        where=where,
        detail={"operator": name, "operator_ns": told, "between_steps_ns": cost},
        advice=_COPY_ADVICE if copies else _ADVICE,
        events=tuple(
            context.work.event[mine[np.argsort(-own[mine], kind="stable")[:100]]].tolist()
        ),
    )


_COPY_ADVICE = (
    "Keep what goes from one call to the next, such as the KV cache, in buffers that are allocated "
    "once, and write the new part in place: then nothing is copied."
)
_ADVICE = (
    "Take out of the loop what is not needed at each turn, and fuse the rest; a range around the "
    "turn (t.step(), record_function) takes it into the step."
)


def _largest(context: Context, rows: Longs, own: Longs) -> tuple[str, Longs, int]:
    """The outermost operator that most of this work belongs to, its work, and its calls."""
    work = context.work
    outer = take(work.host.outer_operator.astype(np.int64), work.operator[rows])
    events = np.where(outer == NONE, work.event[rows], outer)
    codes = work.trace.name_codes[events]
    code = int(np.argmax(np.bincount(codes, own[rows])))
    mine = codes == code
    return str(work.trace.names[code]), rows[mine], int(np.unique(events[mine]).size)


def _place(context: Context, mine: Longs, own: Longs, cost: int) -> Where:
    """The line: as recorded with the operators, else by samples of the stacks between the steps."""
    places, operators = context.work.once(Places), context.work.operator[mine]
    sums: Counter[Where] = Counter()
    for operator, spent in zip(operators.tolist(), own[mine].tolist(), strict=True):
        sums[places.of(operator) if operator != NONE else Where()] += spent
    recorded = sums.most_common(1)[0][0]
    seen = _sampled(context, cost) if recorded.file is None else None
    return recorded if seen is None else seen


def _sampled(context: Context, cost: int) -> Where | None:
    """Where the host is most of the time between the steps, if this work is what it does there. A
    device works while the host is elsewhere."""
    steps = context.plan.host
    starts = np.array([step.end_ns for step in steps[:-1]], dtype=np.int64)
    ends = np.array([step.start_ns for step in steps[1:]], dtype=np.int64)
    apart = ends > starts
    starts, ends = starts[apart], ends[apart]
    if not context.work.cpu_only or cost < _MOSTLY * int((ends - starts).sum()):
        return None
    alike = np.zeros(starts.size, dtype=np.int64)
    seen = Samples(context.work.trace, starts, ends).explain(starts, ends, alike)
    sums: Counter[Where] = Counter()
    for place, spent in zip(seen, (ends - starts).tolist(), strict=True):
        if place is not None:
            sums[place.where] += spent
    return sums.most_common(1)[0][0] if sums else None
