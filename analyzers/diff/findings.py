"""Which finding of one recording is the same as one of the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tracer.analysis import Analysis
from tracer.analyzers.facts.places import folded
from tracer.diff_analysis import FindingChange
from tracer.findings import Finding

# Details that make findings of one rule different ones.
_APART = ("cause", "kind", "backend", "phase", "op", "group", "device")
_Key = Callable[[Finding], Hashable]


def match_findings(before: Analysis, after: Analysis) -> tuple[FindingChange, ...]:
    """Every finding of both sides once: the same rule, cause and place are the same finding. A line
    may have moved, and a place may be known on one side alone. What one side could not look for is
    neither gone nor new."""
    ours, theirs = list(before.findings), list(after.findings)
    pairs: list[FindingChange] = []
    for key in (_by_line, _by_function, _by_module):
        pairs += _take_pairs(ours, theirs, key)
    pairs += _take_placeless(ours, theirs)
    pairs += [FindingChange(f, None, *_looked(after, f)) for f in ours]
    return tuple(pairs + [FindingChange(None, f, *_looked(before, f)) for f in theirs])


def _looked(analysis: Analysis, finding: Finding) -> tuple[str, str]:
    """Why the rule could not be checked on this side, and why in part alone."""
    if not analysis.accounted:
        return analysis.breakdown_reason, ""
    reasons = {"not_checked": "", "partial": ""}
    for check in analysis.checks:
        if check.rule == finding.rule and check.status in reasons:
            reasons[check.status] = check.reason or check.status.replace("_", " ")
    return reasons["not_checked"], reasons["partial"]


def _take_pairs(ours: list[Finding], theirs: list[Finding], key: _Key) -> list[FindingChange]:
    """Findings with the same key, taken out of both lists."""
    pairs = []
    for finding in list(ours):
        wanted = key(finding)
        same = next((other for other in theirs if key(other) == wanted), None)
        if same is not None and wanted is not None:
            pairs.append(FindingChange(finding, same))
            ours.remove(finding)
            theirs.remove(same)
    return pairs


def _take_placeless(ours: list[Finding], theirs: list[Finding]) -> list[FindingChange]:
    """The last one of its rule and cause on either side, where one of the two has no place."""
    pairs = []
    for finding in list(ours):
        alike = [[f for f in side if _cause(f) == _cause(finding)] for side in (ours, theirs)]
        if [len(found) for found in alike] != [1, 1]:
            continue
        other = alike[1][0]
        if not _has_place(finding) or not _has_place(other):
            pairs.append(FindingChange(finding, other))
            ours.remove(finding)
            theirs.remove(other)
    return pairs


def _cause(finding: Finding) -> Hashable:
    return finding.rule, *(str(finding.detail.get(name, "")) for name in _APART)


def _by_line(finding: Finding) -> Hashable:
    where = finding.where
    return _cause(finding), where.file, where.line, where.function, *_inside(finding)


def _by_function(finding: Finding) -> Hashable:
    where = finding.where
    if where.function is None and where.file is None:
        return None
    return _cause(finding), where.file, where.function, *_inside(finding)


def _by_module(finding: Finding) -> Hashable:
    """Where the line was recorded on one side alone, module and operator tell."""
    if finding.where.module is None and finding.where.operator is None:
        return None
    return _cause(finding), *_inside(finding)


def _inside(finding: Finding) -> tuple[str | None, str | None]:
    module = finding.where.module
    return None if module is None else folded(module), finding.where.operator


def _has_place(finding: Finding) -> bool:
    where = finding.where
    return any(part is not None for part in (where.file, where.function, where.module))
