"""The kinds of time that may dominate a step."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.exporters.format import percent_text
from tracer.exporters.levels import Level

GROUP_NAMES = {"attention": "attention", "ffn": "FFN", "communication": "communication"}
_PART_NAMES = {"lm_head": "the LM head", "optimizer": "the optimizer", "loss": "the loss"}
# Nothing dominates when no kind of time reaches this share.
_DOMINANT_RATIO = 0.3
# Work without a role is a claim of its own from this share of the busy time on.
_MOSTLY_RATIO = 0.5


@dataclass(frozen=True)
class Claim:
    """A kind of time: idle, copies, a group, or a part of the group `other`."""

    kind: str
    part: str
    ns: int

    @property
    def name(self) -> str:
        """In words."""
        if self.kind == "idle":
            return "idle"
        if self.kind == "overhead":
            return "copying between host and GPU"
        return part_name(self.part) if self.part else GROUP_NAMES[self.kind]


def part_name(part: str) -> str:
    """A part in words."""
    return _PART_NAMES.get(part, part.replace("_", " "))


def claims(level: Level) -> list[Claim]:
    """The kinds of time of a level, the largest first."""
    found = [
        Claim("idle", "", level.idle_ns - profiler_ns(level)),
        Claim("overhead", "transfer", level.part_ns("overhead", "transfer")),
    ]
    found += [Claim(group, "", level.group_ns(group)) for group in GROUP_NAMES]
    found += [Claim("other", part, ns) for part, ns in level.parts("other").items()]
    if unknown_ns(level) < _MOSTLY_RATIO * level.busy_ns:
        found = [claim for claim in found if claim.part != "unattributed"]
    return sorted(found, key=lambda claim: -claim.ns)


def profiler_ns(level: Level) -> int:
    """Idle that only the recording caused: nothing of the program, so no claim."""
    return level.part_ns("overhead", "profiler")


def dominates(level: Level, claim: Claim) -> bool:
    """Whether the kind of time is a large share of what the program itself took."""
    own = level.total_ns - profiler_ns(level)
    return claim.ns >= _DOMINANT_RATIO * own


def unknown_ns(level: Level) -> int:
    """Time of kernels without a role."""
    return level.part_ns("other", "unattributed")


def largest_part(level: Level, group: str) -> str:
    """`84 % of that core`, `all of it core`."""
    part, ns = level.largest_parts(group)[0]
    if ns == level.group_ns(group):
        return f"all of it {part_name(part)}"
    return f"{percent_text(ns / level.group_ns(group))} of that {part_name(part)}"
