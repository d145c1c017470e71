"""`--fail-on RULE`: which gates failed, and which could not be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tracer.commands.output import say

if TYPE_CHECKING:
    from tracer.findings import Check, Finding

_UNSURE = {"not_checked": "was not checked", "partial": "was checked in part"}


def gate_failed(
    findings: Iterable[Finding],
    checks: Iterable[Check],
    patterns: Sequence[str],
    known: Sequence[str] = (),
) -> bool:
    """Whether a finding matches; says what matched, and which of the rules that were asked for
    could not be looked at, or in part: they fail no gate. `known`: every rule that there is."""
    found = {finding.rule for finding in findings if _matches(finding.rule, patterns)}
    for rule in sorted(found):
        say(f"--fail-on: found {rule}")
    asked = [check for check in checks if _matches(check.rule, patterns)]
    unsure = {
        check.rule: f"{_UNSURE[check.status]}: {check.reason}"
        for check in asked
        if check.status in _UNSURE
    }
    judged = {check.rule for check in asked}
    unsure |= {
        rule: "was not checked: nothing here is judged by it"
        for rule in known
        if rule not in judged and _matches(rule, patterns)
    }
    for rule in sorted(unsure.keys() - found):
        say(f"--fail-on: {rule} {unsure[rule]}")
    return bool(found)


def _matches(rule: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(rule, pattern) for pattern in patterns)
