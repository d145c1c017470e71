"""`--fail-on RULE`: which gates failed, and which could not be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from shlex import quote
from typing import TYPE_CHECKING

from tracer.commands.output import few_names, say
from tracer.errors import UsageError
from tracer.near import hint

if TYPE_CHECKING:
    from tracer.findings import Check, Finding

RULES: tuple[str, ...] = (
    "sync.hidden",
    "sync.explicit",
    "sync.allocator",
    "gap.launch_bound",
    "gap.host",
    "gap.input",
    "gap.gc",
    "gap.compile",
    "warmup.first_use",
    "loop.evaluation",
    "loop.between",
    "loop.draft",
    "training.recompute",
    "cache.absent",
    "cache.copied",
    "fallback.attention",
    "fallback.matmul",
    "fallback.quantized_matmul",
    "fallback.compile",
    "fallback.communication",
    "fallback.mixer",
    "fallback.moe",
    "attention.backend",
    "device.cpu_tensor",
    "transfer.repeated_weights",
    "comm.exposed",
    "comm.same_stream",
    "comm.straggler",
    "comm.hang",
    "ranks.not_aligned",
    "ranks.conflict",
    "ranks.missing",
    "memory.fragmentation",
    "memory.headroom",
    "device.throttled",
    "roofline.headroom",
)
_MOST_NAMES = 5  # of recordings, in one line
_OPEN_FAMILIES = ("trace", "capture")
_UNSURE = {"not_checked": "was not checked", "partial": "was checked in part"}


def gate_failed(
    findings: Mapping[str, Iterable[Finding]], checks: Iterable[Check], patterns: Sequence[str]
) -> bool:
    """Whether a finding matches; says what matched and where, and which of the rules that were
    asked for could not be looked at, or in part: they fail no gate. findings: those of each
    recording by its name, "" where it needs none."""
    found: dict[str, list[str]] = {}
    for name, ones in findings.items():
        for rule in {finding.rule for finding in ones if _matches(finding.rule, patterns)}:
            found.setdefault(rule, []).append(name)
    for rule, names in sorted(found.items()):
        say(f"--fail-on: found {rule}{_places([name for name in names if name])}")
    asked = [check for check in checks if _matches(check.rule, patterns)]
    unsure = {
        check.rule: f"{_UNSURE[check.status]}: {check.reason}"
        for check in asked
        if check.status in _UNSURE
    }
    judged = {check.rule for check in asked}
    unsure |= {
        rule: "was not checked: nothing here is judged by it"
        for rule in RULES
        if rule not in judged and _matches(rule, patterns)
    }
    for rule in sorted(unsure.keys() - found.keys()):
        say(f"--fail-on: {rule} {unsure[rule]}")
    return bool(found)


def _places(names: Sequence[str]) -> str:
    return f" in {few_names(names, _MOST_NAMES)}" if names else ""


def _matches(rule: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(rule, pattern) for pattern in patterns)


def is_rule(pattern: str) -> bool:
    """Whether there can be findings or notes that match."""
    family, _, rest = pattern.partition(".")
    known = any(fnmatchcase(rule, pattern) for rule in RULES)
    return known or (family in _OPEN_FAMILIES and bool(rest) and "," not in rest)


def expect_rules(patterns: Iterable[str]) -> None:
    """Refuse what no rule matches: such a gate would never fail."""
    for pattern in patterns:
        if not is_rule(pattern):
            raise UsageError(f"--fail-on {pattern}: {_what_is_wrong(pattern)}")


def _what_is_wrong(pattern: str) -> str:
    if "," in pattern:
        rules = [rule.strip() for rule in pattern.split(",") if rule.strip()]
        apart = " ".join(f"--fail-on {quote(rule)}" for rule in rules)
        return f"rules are not separated by commas; give each by itself: {apart}"
    return f"no such rule{_meant(pattern.lower())}; `tracer report -h` lists them"


def _meant(pattern: str) -> str:
    """The rule that is near a pattern in small letters, as all rules are."""
    families = {f"{rule.partition('.')[0]}.*" for rule in RULES}
    families |= {f"{family}.*" for family in _OPEN_FAMILIES}
    known = [pattern] if is_rule(pattern) else [*RULES, *sorted(families)]
    return hint(pattern, known)
