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
# Work of a processor that takes less than so many times as long is near its scatter.
_HARDLY_LONGER = 1.05
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
    its host is known; near: whether it is work of a processor that takes hardly longer."""

    own_ns: int | None
    block: Block | None
    by_host: bool
    hosts: Hosts | None = None
    near: bool = False

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
    block = None if late is None else _main_block(late, other, longer)
    if late is None or other is None or (hosts is None and not cpu_only):
        return Slower(None, block, by_host=False)
    work_ns = max(_work_ns(late) - _work_ns(other), 0)
    work_ns = work_ns if most_work_ns is None else min(work_ns, max(most_work_ns, 0))
    if hosts is None:
        host_ns = _longer_ns(late, other, lambda part: part.startswith("overhead."))
        pause = _telling_pause(late, other, host_ns, work_ns)
        if pause is not None or host_ns >= work_ns:
            return Slower(host_ns + work_ns, pause or block, by_host=True)
        near = _work_ns(late) < _HARDLY_LONGER * _work_ns(other)
        return Slower(host_ns + work_ns, block, by_host=False, near=near)
    device_ns = work_ns + _longer_ns(late, other, lambda part: part in _OF_DEVICE)
    block = block if block is not None and _stands_out(block, hosts) else None
    host_ns = hosts.longer_ns
    if hosts.pace < _PACES_DIFFER:
        host_ns = 0 if block is None else min(host_ns, block.ns * block.count)
    by_host = host_ns >= device_ns
    kernel = None if by_host else _main_block(late, other, _of_device(longer))
    return Slower(host_ns + device_ns, block if by_host else kernel, by_host, hosts)


def _main_block(late: Doings, other: Doings | None, longer: Mapping[str, int]) -> Block | None:
    """Of what took the late rank longer most of all the block that it has more of than the other;
    None where that is a small part of it."""
    cause = next(iter(longer), None)
    blocks = [block for block in late.blocks if block.what == cause]
    if cause is None or not blocks:
        return None
    beside = () if other is None else other.blocks
    more = {block: together_ns(block) - _same_ns(block, beside) for block in blocks}
    block = max(blocks, key=lambda block: more[block])
    return block if more[block] >= TELLING * longer[cause] else None


def _telling_pause(late: Doings, other: Doings, host_ns: int, work_ns: int) -> Block | None:
    """A pause of a host that the other hardly has, where it tells as much as its work does: that
    of equal ranks differs as much by chance."""
    beside = {b: _same_ns(b, other.blocks) for b in late.blocks if is_idle(b)}
    more = {b: together_ns(b) - ns for b, ns in beside.items()}
    telling = [b for b, ns in beside.items() if together_ns(b) >= _PACES_DIFFER * ns]
    block = max(telling, key=lambda b: more[b], default=None)
    large = _BLOCK_SHARE * (host_ns + work_ns)
    alike = _work_ns(late) < _PACES_DIFFER * _work_ns(other)
    found = block is not None and more[block] >= large and (alike and 2 * more[block] >= work_ns)
    return block if found else None


def _same_ns(block: Block, others: Iterable[Block]) -> int:
    """How long what is alike took another rank, at whatever places."""
    alike = [other for other in others if (other.what, other.name) == (block.what, block.name)]
    return sum(map(together_ns, alike))


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


def _work_ns(doings: Doings) -> int:
    """What a rank worked in all."""
    apart = ("overhead.", "communication.")
    return sum(ns for part, ns in doings.parts_ns.items() if not part.startswith(apart))


def _of_device(longer: Mapping[str, int]) -> dict[str, int]:
    return {part: ns for part, ns in longer.items() if not is_host_part(part)}


def _longer_ns(late: Doings, other: Doings, counts: Callable[[str], bool]) -> int:
    """How much longer these parts take the late rank together."""
    sums = [sum(ns for part, ns in d.parts_ns.items() if counts(part)) for d in (late, other)]
    return max(sums[0] - sums[1], 0)
