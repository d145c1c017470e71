"""One cause, one cost: a function that is compiled again and again is found by what its compiling
costs (gap.compile, warmup.first_use) and by the guards that failed (fallback.compile)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracer.analyzers.rules.judging import milliseconds
from tracer.findings import Finding

_COSTS, _ONCE, _REASONS = "gap.compile", "warmup.first_use", "fallback.compile"


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
    return tuple(found)


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


def _uncosted(again: Finding) -> Finding:
    """The same without its cost, which is another's."""
    return replace(
        again,
        severity="info",
        cost_ns=None,
        ratio=None,
        gain_ns=None,
        detail={**again.detail, "counted_in": _COSTS},
        advice=f"{again.advice} What it costs is counted in {_COSTS}.",
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
