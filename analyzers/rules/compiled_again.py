"""One cause, one cost: a function that is compiled again and again is found by what its compiling
costs (gap.compile, warmup.first_use) and by the guards that failed (fallback.compile); operators
between the steps (loop.between) may be part of a pause (gap.host)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tracer.analyzers.rules.judging import milliseconds
from tracer.findings import Finding

_COSTS, _ONCE, _REASONS = "gap.compile", "warmup.first_use", "fallback.compile"
_PAUSE, _BETWEEN = "gap.host", "loop.between"


def told_once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, in which what compiling again costs is in one of them: in gap.compile, which
    then says why; else in fallback.compile, beside what the first compilation took."""
    found = list(findings)
    for at, compiled in enumerate(found):
        if compiled.rule not in (_COSTS, _ONCE) or compiled.where.function is None:
            continue
        again = next((i for i, other in enumerate(found) if _is_again(other, compiled)), None)
        if again is None:
            continue
        if compiled.rule == _COSTS:
            found[at], found[again] = _with_reasons(compiled, found[again]), _uncosted(found[again])
        else:
            found[at] = _without(compiled, found[again])
    return tuple(_within_pauses(found))


def _within_pauses(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings; operators between the steps that mostly belong to a pause there are told with
    it."""
    inside = sum(f.detail.get("operators_ns", 0) for f in findings if f.rule == _PAUSE)
    for finding in findings:
        within = finding.rule == _BETWEEN and 2 * inside > (finding.cost_ns or 0)
        yield _uncosted(finding, _PAUSE) if within else finding


def _is_again(finding: Finding, compiled: Finding) -> bool:
    again = finding.rule == _REASONS and finding.detail.get("cause") == "recompile"
    return again and compiled.detail.get("kind") == "compile" and finding.where == compiled.where


def _with_reasons(compiled: Finding, again: Finding) -> Finding:
    told = {name: again.detail[name] for name in ("reason", "reasons")}
    return replace(
        compiled,
        title=f"{compiled.title}; it {again.title.removeprefix(f'{again.where.function} ')}",
        detail={**compiled.detail, **told, "recompilations": again.count},
        advice=again.advice,
    )


def _uncosted(again: Finding, rule: str = _COSTS) -> Finding:
    """The same without its cost, which is another's."""
    return replace(
        again,
        severity="info",
        cost_ns=None,
        ratio=None,
        gain_ns=None,
        detail={**again.detail, "counted_in": rule},
        advice=f"{again.advice} What it costs is counted in {rule}.",
    )


def _without(compiled: Finding, again: Finding) -> Finding:
    """What was compiled, without the cost of compiling it again."""
    cost, apart = compiled.cost_ns or 0, again.cost_ns or 0
    left = max(cost - apart, 0)
    return replace(
        compiled,
        title=f"{compiled.title}; {milliseconds(cost - left)} of it is counted in {_REASONS}",
        cost_ns=left,
        ratio=(compiled.ratio or 0.0) * left / cost if cost else compiled.ratio,
        detail={**compiled.detail, "each_ns": left // max(compiled.count, 1)},
    )
