"""By how much a late rank is slower than a punctual one, and not only behind it.

Where every rank waits for its host, whoever began a little later comes last again and again, and
would cost nothing if it were alone: the other would wait for its own host instead. What a rank
takes longer itself is what the others lose by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracer.analyzers.rules.judging import WARNING_RATIO
from tracer.rank_analysis import Block, Doings

# A part is worth naming from this share of what took the late rank longer.
TELLING = 0.1
# Equal hosts issue the same work at paces that differ by less; a block of one host stands out when
# it makes up so much of the difference, and outlasts the usual time from one call to the next.
# What takes so many times the difference both do.
_PACES_DIFFER, _BLOCK_SHARE, _OF_BOTH = 1.25, 0.25, 2.0
# How fast a host is for so short a time can be chance.
_LASTING_NS = 1_000_000_000
# Idle that its host takes no time for: after a wait the device stands still until the next launch.
_OF_DEVICE = ("overhead.transfer", "overhead.sync")


@dataclass(frozen=True)
class Hosts:
    """What the hosts of the late rank and of the one beside it took for the same calls, waiting
    left out, nanoseconds; and the usual time of the other from one call to the next."""

    late_ns: int
    beside_ns: int
    usual_ns: int

    @property
    def longer_ns(self) -> int:
        """How much longer the late rank takes."""
        return max(self.late_ns - self.beside_ns, 0)

    @property
    def pace(self) -> float:
        """How many times as long the late rank takes."""
        return self.late_ns / max(self.beside_ns, 1)


@dataclass(frozen=True)
class Slower:
    """Why a late rank is late. own_ns: what it takes longer itself, None where that is not known;
    block: what it stops for; by_host: whether most of it is its host's; hosts: where the pace of
    its host is known."""

    own_ns: int | None
    block: Block | None
    by_host: bool
    hosts: Hosts | None = None

    def is_behind(self, claim_ns: int, wall_ns: int) -> bool:
        """Whether the rank is only behind: what it takes longer does not matter."""
        least = max(TELLING * claim_ns, WARNING_RATIO * wall_ns)
        return self.own_ns is not None and self.own_ns < least

    def without_pace(self, claim_ns: int, wall_ns: int) -> Slower:
        """The same, with what is its own unknown where no pace was seen and the parts do not tell
        why it is late."""
        unseen = self.hosts is None and self.is_behind(claim_ns, wall_ns)
        return replace(self, own_ns=None) if unseen else self

    def may_be_chance(self, wall_ns: int) -> bool:
        """Whether it is the pace of the host alone, in a short recording."""
        return self.by_host and self.hosts is not None and not self.block and wall_ns < _LASTING_NS


def compare_hosts(
    late: Mapping[int, int], beside: Mapping[int, int], calls: Iterable[int]
) -> Hosts | None:
    """The hosts over these calls; None where not even half of them can be compared."""
    asked = list(calls)
    both = [call for call in asked if call in late and call in beside]
    if 2 * len(both) < len(asked) or not both:
        return None
    scale = len(asked) / len(both)
    times = [sum(times[call] for call in both) * scale for times in (late, beside)]
    usual = int(np.median(list(beside.values())))
    return Hosts(round(times[0]), round(times[1]), usual)


def judge_lateness(
    late: Doings | None,
    other: Doings | None,
    longer: Mapping[str, int],
    hosts: Hosts | None,
    most_work_ns: int | None = None,
    *,
    cpu_only: bool = False,
) -> Slower:
    """What of the lateness is the rank's own. `most_work_ns`: how much longer it works in the whole
    window, where that is known: who waits in a collective may work under it, and less before.
    `cpu_only`: without a device the host does all, so that its parts are its pace."""
    block = None if late is None else _main_block(late, longer)
    if late is None or other is None or (hosts is None and not cpu_only):
        return Slower(None, block, by_host=False)
    work_ns = _longer_ns(late, other, _is_work)
    work_ns = work_ns if most_work_ns is None else min(work_ns, max(most_work_ns, 0))
    if hosts is None:
        host_ns = _longer_ns(late, other, lambda part: part.startswith("overhead."))
        return Slower(host_ns + work_ns, block, by_host=host_ns >= work_ns)
    device_ns = work_ns + _longer_ns(late, other, lambda part: part in _OF_DEVICE)
    block = block if block is not None and _stands_out(block, hosts) else None
    host_ns = hosts.longer_ns
    if hosts.pace < _PACES_DIFFER:
        host_ns = 0 if block is None else min(host_ns, block.ns * block.count)
    by_host = host_ns >= device_ns
    kernel = None if by_host else _main_block(late, _of_device(longer))
    return Slower(host_ns + device_ns, block if by_host else kernel, by_host, hosts)


def _main_block(late: Doings, longer: Mapping[str, int]) -> Block | None:
    """The longest block of what took the late rank longer most of all; None where it is a small
    part of that."""
    cause = next(iter(longer), None)
    block = next((block for block in late.blocks if block.what == cause), None)
    if cause is None or block is None:
        return None
    return block if together_ns(block) >= TELLING * longer[cause] else None


def together_ns(block: Block) -> int:
    """The time of a block in all."""
    return block.ns * block.count if is_idle(block) else block.ns


def is_idle(block: Block) -> bool:
    """Whether it is a pause, as long each time, and no work, which is added up."""
    return block.what.startswith("overhead.")


def _stands_out(block: Block, hosts: Hosts) -> bool:
    """Whether a pause is more than what a host does from one call to the next."""
    issuing = block.what in ("overhead.launch", "overhead.graph_launch")
    share = together_ns(block) / max(hosts.longer_ns, 1)
    return not issuing and _BLOCK_SHARE <= share <= _OF_BOTH and block.ns >= hosts.usual_ns


def is_host_part(part: str) -> bool:
    """Whether a part is idle that the host takes as long for."""
    return part.startswith("overhead.") and part not in _OF_DEVICE


def _is_work(part: str) -> bool:
    return not part.startswith(("overhead.", "communication."))


def _of_device(longer: Mapping[str, int]) -> dict[str, int]:
    return {part: ns for part, ns in longer.items() if not is_host_part(part)}


def _longer_ns(late: Doings, other: Doings, counts: Callable[[str], bool]) -> int:
    """How much longer these parts take the late rank together."""
    sums = [sum(ns for part, ns in d.parts_ns.items() if counts(part)) for d in (late, other)]
    return max(sums[0] - sums[1], 0)
