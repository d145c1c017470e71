"""What was found, and what could be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "critical"]
CheckStatus = Literal["found", "clear", "partial", "not_checked"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


@dataclass(frozen=True)
class Where:
    """The place of a finding. None: not recorded."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    operator: str | None = None


@dataclass(frozen=True)
class Finding:
    """One cause at one place. `cost_ns` is what it costs in the window, `gain_ns` what a change
    would give back there; None where the recording does not allow the number. `ratio` is the cost
    as a share of window x devices. `steps` are the indexes of the steps it touches."""

    rule: str
    severity: Severity
    title: str
    count: int
    cost_ns: int | None = None
    ratio: float | None = None
    steps: tuple[int, ...] = ()
    where: Where = field(default_factory=Where)
    detail: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    gain_ns: int | None = None
    events: tuple[int, ...] = ()  # rows of the trace that are the evidence, the costliest first
    pauses: tuple[int, ...] = ()  # rows of `gaps` that it is made of, the longest first


def costliest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings by their cost, equal ones by severity."""
    return tuple(sorted(findings, key=lambda f: (-(f.cost_ns or 0), -SEVERITIES.index(f.severity))))


@dataclass(frozen=True)
class Check:
    """Whether a rule could be checked on this recording, and what came of it."""

    rule: str
    status: CheckStatus
    reason: str = ""
