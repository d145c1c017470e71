"""Rule fallback.compile: where torch.compile falls back. Graph breaks and recompilations with the
compiler's reason and the user's line, functions that it gave up on, CUDA graphs that it skipped."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import Longs, covered, union
from tracer.analyzers.rules.eager_cost import EagerCost, eager_cost
from tracer.analyzers.rules.judging import (
    counted,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.rules.recompile_reasons import reasons_by_count
from tracer.findings import Check, Finding, Severity, Where

RULE = "fallback.compile"
_REGION = re.compile(r"Torch-Compiled Region: (\S+)")
_LONGEST_REASON = 160
_MOST_REASONS = 8
# The compiler tries a shape as it is and then makes it dynamic: one recompilation is its way.
_USUAL_RECOMPILES = 1
_SHARED = "other functions reached a limit, too"


def judge_compile(context: Context, analysis: Analysis) -> RuleResult:
    """All findings on compilation of one recording."""
    events = _of_what_ran(context, analysis)
    found = [
        *_grouped(events, "graph_break", lambda rows: _break_finding(analysis, rows)),
        *_grouped(
            events, "recompile", lambda rows: _recompile_finding(context, analysis, events, rows)
        ),
        *_limits(context, analysis, events),
        *_grouped(events, "cudagraph_skip", lambda rows: _skip_finding(analysis, rows)),
    ]
    findings = tuple(finding for finding in found if finding is not None)
    return RuleResult(findings, (_check(context, analysis, findings),))


def _check(context: Context, analysis: Analysis, findings: tuple[Finding, ...]) -> Check:
    if findings or not _regions(context):
        return verdict(RULE, findings)
    if analysis.trace.meta.detail is None:
        return Check(RULE, "not_checked", "what the compiler did is recorded live only")
    if analysis.trace.meta.detail not in ("modules", "full"):
        return Check(RULE, "not_checked", "the compiler is watched at detail 'modules' and 'full'")
    return verdict(RULE, findings)


def _regions(context: Context) -> set[str]:
    """Ids of the compiled regions that ran: "0/0" is the first version of the first frame."""
    return {match[1] for name in context.work.trace.names if (match := _REGION.match(name))}


def _of_what_ran(context: Context, analysis: Analysis) -> pd.DataFrame:
    """What the compiler did in this recording, and before it for the code that ran here."""
    events = context.work.trace.table("compile_events")
    if not len(events):
        return events
    earlier = events["end_ns"].to_numpy() < analysis.window.start_ns
    ran = events["compile_id"].isin(list(_regions(context))).to_numpy()
    lasting = events["kind"].isin(["graph_break", "cudagraph_skip"]).to_numpy()
    given_up = (events["kind"] == "recompile_limit").to_numpy()  # and nothing of it need run here
    told = ["kind", "reason", "function"]
    here = set(events[~earlier][told].itertuples(index=False, name=None))
    known = [row in here for row in events[told].itertuples(index=False, name=None)]
    chosen: pd.DataFrame = events[
        ~earlier | given_up | (ran & lasting & ~np.array(known, dtype=bool))
    ]
    return chosen


Judge = Callable[[pd.DataFrame], Finding | None]


def _grouped(events: pd.DataFrame, kind: str, judge: Judge) -> list[Finding | None]:
    """A finding for each place and, of breaks and skips, each reason."""
    mine = events[(events["kind"] == kind).to_numpy()]
    keys = ["file", "line", "function", *(["reason"] if kind != "recompile" else [])]
    if not len(mine):
        return []
    groups = mine.groupby(keys, observed=True, sort=False)
    return [judge(rows) for _, rows in groups]


def _where(rows: pd.DataFrame) -> Where:
    first = rows.iloc[0]
    return Where(
        file=str(first["file"]) or None,
        line=int(first["line"]) if first["line"] > 0 else None,
        function=str(first["function"]) or None,
    )


def _place(where: Where) -> str:
    if where.file is None:
        return where.function or "a place that was not recorded"
    return f"{where.file}:{where.line}" if where.line else where.file


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"


def _steps_at(analysis: Analysis, rows: pd.DataFrame) -> tuple[int, ...]:
    """Steps in which it happened."""
    start = analysis.steps["start_ns"].to_numpy()
    end = start + analysis.steps["wall_ns"].to_numpy()
    at = np.searchsorted(start, rows["end_ns"].to_numpy(), side="right") - 1
    inside = (at >= 0) & (rows["start_ns"].to_numpy() < end[np.maximum(at, 0)])
    return tuple(int(step) for step in np.unique(at[inside]))


def _break_finding(analysis: Analysis, rows: pd.DataFrame) -> Finding:
    where, reason = _where(rows), _shortened(str(rows.iloc[0]["reason"]))
    return Finding(
        rule=RULE,
        severity="warning",
        title=f"torch.compile breaks the graph: {reason}",
        count=len(rows),
        steps=_steps_at(analysis, rows),
        where=where,
        detail={
            "cause": "graph-break",
            "reason": str(rows.iloc[0]["reason"]),
            "compile_ids": sorted(set(rows["compile_id"].astype(str))),
        },
        advice=(
            f"{_place(where)}: the code before and after it is compiled apart, and what stands "
            "between runs eagerly. Move it out of the compiled function, or write it in operators "
            "that the compiler can trace; fullgraph=True makes a break an error."
        ),
    )


@dataclass(frozen=True)
class _Cost:
    host_ns: int
    idle_ns: int


def _cost(context: Context, rows: pd.DataFrame) -> _Cost:
    """What these compilations took, and the idle of the devices meanwhile."""
    start, end = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    gaps = context.gaps
    idle = covered(gaps.start_ns, gaps.end_ns, start, end)
    host: Longs = end - start
    return _Cost(int(host.sum()), int(idle[gaps.cause == CAUSE_CODE["compile"]].sum()))


def _with_backwards(events: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """These compilations, and those of their backwards."""
    of_these = (events["kind"] == "backward") & events["compile_id"].isin(rows["compile_id"])
    return pd.concat([rows, events[of_these]])


def _recompile_finding(
    context: Context, analysis: Analysis, events: pd.DataFrame, rows: pd.DataFrame
) -> Finding | None:
    if len(rows) <= _USUAL_RECOMPILES:
        return None
    cost = _cost(context, _with_backwards(events, rows))
    where = _where(rows)
    reasons = reasons_by_count(rows["reason"].astype(str))
    most, told = reasons[0], [f"{r.times} of {len(rows)}: {r.text}" for r in reasons]
    name = where.function or "a function"
    return Finding(
        rule=RULE,
        severity=severity_of(cost.idle_ns, analysis),
        title=f"{name} is compiled again {len(rows)} times"
        + (f", {most.times} of them" if len(reasons) > 1 else "")
        + f": {_shortened(most.text)}",
        count=len(rows),
        cost_ns=cost.idle_ns,
        ratio=ratio_of(cost.idle_ns, analysis),
        steps=_steps_at(analysis, rows),
        where=where,
        detail={
            "cause": "recompile",
            "reason": most.text,
            "reasons": told[:_MOST_REASONS],
            "host_ns": cost.host_ns,
        },
        advice=(
            f"Compiling again took {milliseconds(cost.host_ns)}. Keep what the guards watch the "
            "same from call to call (shapes, types, Python values), or mark a dimension as dynamic "
            "(torch._dynamo.mark_dynamic, torch.compile(dynamic=True))."
            + (f" For another reason, {_shortened(told[1])}." if len(reasons) > 1 else "")
        ),
        gain_ns=cost.idle_ns,
    )


def _limits(context: Context, analysis: Analysis, events: pd.DataFrame) -> list[Finding | None]:
    limits = events[(events["kind"] == "recompile_limit").to_numpy()]
    alone = len(limits.drop_duplicates(["file", "line", "function", "reason"])) == 1
    return _grouped(
        limits, "recompile_limit", lambda rows: _limit_finding(context, analysis, rows, alone)
    )


def _limit_finding(
    context: Context, analysis: Analysis, rows: pd.DataFrame, alone: bool
) -> Finding:
    """A function that the compiler compiles no more: what fits none of its versions runs eagerly.
    Like steps with compiled code tell what that costs, unless it is not the only such function."""
    where, last = _where(rows), rows.iloc[-1]
    limit, _, guard = str(last["reason"]).partition("; ")
    failed = reasons_by_count([guard])[0].text
    title = f"{where.function or 'a function'} is compiled no more, {limit} was reached"
    since = _steps_since(analysis, int(last["start_ns"]))
    ran = _steps_running(context, analysis, str(last["compile_id"]))
    before = last["end_ns"] < analysis.window.start_ns
    called = not before or bool(ran)  # what was compiled earlier need not be called here
    eager = tuple(sorted(since - ran)) if called else ()
    when = " before this recording" if before else ""
    cost = eager_cost(context, analysis, eager, ran) if alone else EagerCost(reason=_SHARED)
    return Finding(
        rule=RULE,
        severity=_limit_severity(analysis, eager, cost),
        title=f"{title}{when}{_eagerly(eager, len(since))}{_slower(cost)}",
        count=len(rows),
        cost_ns=cost.cost_ns,
        ratio=ratio_of(cost.cost_ns, analysis),
        steps=eager,
        where=where,
        detail={
            "cause": "recompile-limit",
            "limit": limit,
            "reason": failed,
            "eager_ns": cost.eager_ns,
            "compiled_ns": cost.compiled_ns,
            "gain_basis": "the median of like steps that ran the compiled code",
        },
        advice=(
            "Calls that fit none of the compiled versions run eagerly from then on. Keep what the "
            "guards watch the same from call to call, or mark a dimension as dynamic "
            "(torch._dynamo.mark_dynamic, torch.compile(dynamic=True)); a higher "
            f"torch._dynamo.config.{limit.partition(' ')[0]} compiles each further version."
            + (f" The guard that failed last: {_shortened(failed)}." if failed else "")
            + (f" What it costs is not known: {cost.reason}." if eager and cost.reason else "")
        ),
        gain_ns=cost.cost_ns,
    )


def _limit_severity(analysis: Analysis, eager: tuple[int, ...], cost: EagerCost) -> Severity:
    if cost.cost_ns is None:
        return "warning" if eager else "info"
    return severity_of(cost.cost_ns, analysis)


def _slower(cost: EagerCost) -> str:
    """How long such a step takes, and like ones with compiled code."""
    if cost.eager_ns is None or cost.compiled_ns is None:
        return ""
    return f", {milliseconds(cost.eager_ns)} instead of {milliseconds(cost.compiled_ns)}"


def _steps_since(analysis: Analysis, time_ns: int) -> set[int]:
    """The step of a time and those after it."""
    end = analysis.steps["start_ns"].to_numpy() + analysis.steps["wall_ns"].to_numpy()
    return set(np.flatnonzero(end > time_ns).tolist())


def _steps_running(context: Context, analysis: Analysis, compile_id: str) -> set[int]:
    """Steps in which a compiled version of this frame began."""
    trace, frame = context.work.trace, _frame(compile_id)
    named = trace.names_matching(
        lambda name: (match := _REGION.match(name)) is not None and _frame(match[1]) == frame
    )
    began = trace.start_ns[named[trace.name_codes]]
    at = np.searchsorted(analysis.steps["start_ns"].to_numpy(), began, side="right") - 1
    return set(at.tolist())


def _frame(compile_id: str) -> str:
    return compile_id.partition("/")[0]


def _eagerly(eager: tuple[int, ...], steps: int) -> str:
    """How many of the steps since then ran without compiled code."""
    if not eager:
        return ""
    return f": from step {eager[0]} on {len(eager)} of {counted(steps, 'step')} ran it eagerly"


def _skip_finding(analysis: Analysis, rows: pd.DataFrame) -> Finding:
    where, reason = _where(rows), str(rows.iloc[0]["reason"])
    return Finding(
        rule=RULE,
        severity="warning",
        title=f"CUDA graphs are skipped: {_shortened(reason)}",
        count=len(rows),
        steps=_steps_at(analysis, rows),
        where=where,
        detail={
            "cause": "cudagraph-skip",
            "reason": reason,
            "compile_ids": sorted(set(rows["compile_id"].astype(str))),
        },
        advice=(
            "The mode asks for CUDA graphs and this part runs without: every kernel is launched by "
            "the host. Remove what the reason names: changed inputs, tensors on the CPU, dynamic "
            "shapes, operators that wait for the host."
        ),
    )
