"""Pauses in which threads wait for a lock while one of them does something."""

from __future__ import annotations

from dataclasses import replace

from tracer.analyzers.facts.samples import Samples
from tracer.analyzers.intervals import Longs
from tracer.findings import Finding


def with_lock_waits(finding: Finding, samples: Samples, starts: Longs, ends: Longs) -> Finding:
    """The finding of a place with the threads that wait for a lock in these pauses, if any do."""
    waiting = samples.lock_waits(starts, ends, finding.where)
    if waiting is None:
        return finding
    line = f"{waiting.where.file}:{waiting.where.line}"
    who = "1 thread waits" if waiting.threads == 1 else f"{waiting.threads} threads wait"
    holder = finding.where.function or "this line"
    return replace(
        finding,
        title=f"{who} for a lock while {finding.title}",
        advice=(
            f"{finding.advice} {who} for a lock at {line} meanwhile: if {holder} runs under it, "
            "hold it for less, and do this before taking it."
        ),
        detail={**finding.detail, "lock_line": line, "lock_waiters": waiting.threads},
    )
