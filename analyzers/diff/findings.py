"""Which finding of one recording is the same as one of the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable

from tracer.analysis import Analysis
from tracer.analyzers.diff.absent import alone
from tracer.analyzers.facts.places import folded
from tracer.diff_analysis import FindingChange
from tracer.findings import Check, Finding

# Details that make findings of one rule different ones.
_APART = ("cause", "kind", "backend", "op", "group", "device")
# Numbers and their units, which differ from recording to recording.
_NUMBER = re.compile(r"[\d.,]+ ?(?:ns|us|ms|s|%)?\b")
_OPERATOR = "::"
_OPERATOR_NAME = re.compile(r"\w+(?:::\w+)+")
_Key = Callable[[Finding], Hashable]


def match_findings(before: Analysis, after: Analysis) -> tuple[FindingChange, ...]:
    """Every finding of both sides once. The same rule and cause at the same place are the same
    finding; then those in the same function, whose lines may have moved and whose file may be
    another one; then the only ones that are left of a rule and cause, as the place is what a sample
    hit and may be known on one side alone. What one side could not look for is neither gone nor
    new."""
    ours, theirs = list(before.findings), list(after.findings)
    pairs: list[FindingChange] = []
    for key in (
        *(_by_line, _by_function, _by_file_name, _by_name, _by_module),
        *(_by_title, _by_last_line),
    ):
        pairs += _take_pairs(ours, theirs, key)
    for key in (_by_inside, _names_nothing, _cause):
        pairs += _take_single(ours, theirs, key)
    pairs += [alone(before, f, after, _looked(after, f), "A") for f in ours]
    return tuple(pairs + [alone(after, f, before, _looked(before, f), "B") for f in theirs])


def _looked(analysis: Analysis, finding: Finding) -> tuple[str, str]:
    """Why the rule could not be checked on this side, and why in part alone."""
    if not analysis.accounted:
        return analysis.breakdown_reason, ""
    return unlooked(analysis.checks, finding.rule)


def unlooked(checks: Iterable[Check], rule: str) -> tuple[str, str]:
    """Why these checks did not look for what a rule finds, and why in part alone."""
    reasons = {"not_checked": "", "partial": ""}
    for check in checks:
        if check.rule == rule and check.status in reasons:
            reasons[check.status] = check.reason or check.status.replace("_", " ")
    return reasons["not_checked"], reasons["partial"]


def _take_pairs(ours: list[Finding], theirs: list[Finding], key: _Key) -> list[FindingChange]:
    """Findings with the same key, taken out of both lists; of several those nearest by line."""
    pairs = []
    for one, other in _nearest_first(ours, theirs, key):
        if any(one is f for f in ours) and any(other is f for f in theirs):
            pairs.append(FindingChange(one, other))
            _take(ours, one)
            _take(theirs, other)
    return pairs


def _nearest_first(
    ours: list[Finding], theirs: list[Finding], key: _Key
) -> list[tuple[Finding, Finding]]:
    """Who may be the same, with like places in the order of their lines."""
    groups = [_grouped(side, key) for side in (ours, theirs)]
    found = []
    for wanted, mine in groups[0].items():
        others = groups[1].get(wanted, [])
        if len(mine) == len(others):  # lines inserted above move all of them
            found += list(zip(mine, others, strict=True))
        found += sorted(((f, o) for f in mine for o in others), key=_lines_apart)
    return [pair for pair in found if key is not _by_module or not _both_lines(*pair)]


def _grouped(findings: list[Finding], key: _Key) -> dict[Hashable, list[Finding]]:
    groups: dict[Hashable, list[Finding]] = {}
    for finding in sorted(findings, key=lambda f: f.where.line or 0):
        if (wanted := key(finding)) is not None:
            groups.setdefault(wanted, []).append(finding)
    return groups


def _lines_apart(pair: tuple[Finding, Finding]) -> int:
    return abs((pair[0].where.line or 0) - (pair[1].where.line or 0))


def _take(findings: list[Finding], taken: Finding) -> None:
    findings[:] = [finding for finding in findings if finding is not taken]


def _take_single(ours: list[Finding], theirs: list[Finding], key: _Key) -> list[FindingChange]:
    """The findings that alone have a key on either side, unless they tell that they are others."""
    groups = [_grouped(side, key) for side in (ours, theirs)]
    pairs = []
    for wanted, mine in groups[0].items():
        others = groups[1].get(wanted, [])
        if len(mine) == len(others) == 1 and _may_be_same(mine[0], others[0]):
            pairs.append(FindingChange(mine[0], others[0]))
            _take(ours, mine[0])
            _take(theirs, others[0])
    return pairs


def _may_be_same(one: Finding, other: Finding) -> bool:
    """Whether module and operators are the same, as far as both tell them. What is at many places
    that share no name is not what is at one."""
    if len({finding.detail.get("places", 1) > 1 for finding in (one, other)}) > 1:
        return False
    told = zip(_told_inside(one), _told_inside(other), strict=True)
    return all(ours == theirs for ours, theirs in told if ours and theirs)


def _told_inside(finding: Finding) -> tuple[Hashable, ...]:
    titled = () if _has_place(finding) else tuple(_OPERATOR_NAME.findall(finding.title))
    return *_inside(finding), titled


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


def _by_file_name(finding: Finding) -> Hashable:
    """The same file in another folder."""
    where = finding.where
    if where.file is None or where.function is None:
        return None
    name = re.split(r"[/\\]", where.file)[-1]
    return _cause(finding), name, where.function, *_inside(finding)


def _by_name(finding: Finding) -> Hashable:
    """The function by its name alone: the file may be a copy, or be moved."""
    if finding.where.function is None:
        return None
    return _cause(finding), finding.where.function, *_inside(finding)


def _by_module(finding: Finding) -> Hashable:
    """Module and operator tell, where the line was recorded on one side alone or on none."""
    if finding.where.module is None and finding.where.operator is None:
        return None
    return _cause(finding), *_inside(finding)


def _by_inside(finding: Finding) -> Hashable:
    """Module and operator in a function of whatever name."""
    return None if not any(_inside(finding)) else (_cause(finding), *_inside(finding))


def _both_lines(one: Finding, other: Finding) -> bool:
    """Whether the lines of both are known, and so are what tells them apart."""
    return one.where.file is not None and other.where.file is not None


def _by_last_line(finding: Finding) -> Hashable:
    """What has no place lies behind the last line seen, whatever operators stand around it."""
    last = finding.detail.get("last_line")
    return None if _has_place(finding) or not last else (_cause(finding), str(last))


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
