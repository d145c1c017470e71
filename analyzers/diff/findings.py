"""Which finding of one recording is the same as one of the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable

from tracer.analysis import Analysis
from tracer.analyzers.facts.places import folded
from tracer.diff_analysis import FindingChange
from tracer.findings import Finding

# Details that make findings of one rule different ones.
_APART = ("cause", "kind", "backend", "op", "group", "device")
# Numbers and their units, which differ from recording to recording.
_NUMBER = re.compile(r"[\d.,]+ ?(?:ns|us|ms|s|%)?\b")
_OPERATOR = "::"
# Levels of detail at which our recorder sees lines.
_WITH_LINES = ("modules", "full")
_Key = Callable[[Finding], Hashable]


def match_findings(before: Analysis, after: Analysis) -> tuple[FindingChange, ...]:
    """Every finding of both sides once: the same rule, cause and place are the same finding. A line
    may have moved, and places may be known on one side alone. What one side could not look for is
    neither gone nor new."""
    ours, theirs = list(before.findings), list(after.findings)
    pairs: list[FindingChange] = []
    for key in (_by_line, _by_function, _by_module, _by_title):
        pairs += _take_pairs(ours, theirs, key)
    pairs += _take_single(ours, theirs, _names_nothing)
    if _tells_lines(before) != _tells_lines(after):
        pairs += _take_single(ours, theirs, _cause)
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


def _tells_lines(analysis: Analysis) -> bool:
    meta = analysis.trace.meta
    return meta.detail in _WITH_LINES or bool(meta.recorded.get("stacks"))


def _take_pairs(ours: list[Finding], theirs: list[Finding], key: _Key) -> list[FindingChange]:
    """Findings with the same key, taken out of both lists."""
    pairs = []
    for finding in list(ours):
        wanted = key(finding)
        alike = (other for other in theirs if key(other) == wanted)
        same = next(
            (o for o in alike if key is not _by_module or not _both_lines(finding, o)), None
        )
        if same is not None and wanted is not None:
            pairs.append(FindingChange(finding, same))
            ours.remove(finding)
            theirs.remove(same)
    return pairs


def _take_single(ours: list[Finding], theirs: list[Finding], key: _Key) -> list[FindingChange]:
    """The findings that alone have a key on either side."""
    single = [
        finding
        for finding in ours
        if key(finding) is not None
        and all([key(f) for f in side].count(key(finding)) == 1 for side in (ours, theirs))
    ]
    pairs = [_take_pairs([finding], theirs, key)[0] for finding in single]
    for finding in single:
        ours.remove(finding)
    return pairs


def _cause(finding: Finding) -> Hashable:
    return finding.rule, *(str(finding.detail.get(name, "")) for name in _APART)


def _by_line(finding: Finding) -> Hashable:
    where = finding.where
    if where.file is None and where.function is None:
        return None
    return _cause(finding), where.file, where.line, where.function, *_inside(finding)


def _by_function(finding: Finding) -> Hashable:
    where = finding.where
    if where.file is None and where.function is None:
        return None
    return _cause(finding), where.file, where.function, *_inside(finding)


def _by_module(finding: Finding) -> Hashable:
    """Module and operator tell, where the line was recorded on one side alone or on none."""
    if finding.where.module is None and finding.where.operator is None:
        return None
    return _cause(finding), *_inside(finding)


def _both_lines(one: Finding, other: Finding) -> bool:
    """Whether the lines of both are known, and so are what tells them apart."""
    return one.where.file is not None and other.where.file is not None


def _by_title(finding: Finding) -> Hashable:
    """Without a place, what the title says but for its numbers."""
    return None if _has_place(finding) else (_cause(finding), _NUMBER.sub("#", finding.title))


def _names_nothing(finding: Finding) -> Hashable:
    """Of a finding that is about the steps as such, and about no operator in them."""
    return None if _has_place(finding) or _OPERATOR in finding.title else _cause(finding)


def _inside(finding: Finding) -> tuple[str | None, str | None]:
    module = finding.where.module
    return None if module is None else folded(module), finding.where.operator


def _has_place(finding: Finding) -> bool:
    where = finding.where
    places = (where.file, where.function, where.module, where.operator)
    return any(place is not None for place in places)
