"""Findings and checks across ranks, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tracer.analyzers.ranks.before import excess
from tracer.analyzers.ranks.evidence import LaneEvidence
from tracer.analyzers.ranks.match import JoinedLane
from tracer.analyzers.ranks.shares import Shares
from tracer.analyzers.ranks.slower import (
    TELLING,
    Hosts,
    Slower,
    is_host_part,
    is_idle,
    judge_lateness,
    together_ns,
)
from tracer.analyzers.ranks.straggler import Claim
from tracer.analyzers.rules.judging import CRITICAL_RATIO, WARNING_RATIO, milliseconds
from tracer.events import Note
from tracer.findings import Check, Finding, Severity, Where
from tracer.rank_analysis import IN_LOADER, Alignment, Block, Doings, GroupResult

STRAGGLER, NOT_ALIGNED = "comm.straggler", "ranks.not_aligned"
_MOST_NAMED = 8
# Waiting at the beginning of the window that is worth a note.
_ENTRY_NS = 1_000_000
_IDLE_WORDS: Mapping[str, str] = {
    "launch": "launching operators one by one",
    "sync": "waits of its host for the GPU",
    "host": "host work outside operators",
    "input": "waiting for input",
    "transfer": "copies between host and device",
    "allocator": "the allocator's calls to the driver",
    "compile": "compiling and planning",
    "gc": "Python's garbage collector",
    "graph_launch": "launching graphs",
    "device": "dependencies on the device itself",
    "profiler": "the profiler itself",
    "unexplained": "idle that nothing explains",
}
_ADVICE: Mapping[str, str] = {
    "launch": (
        "Its host issues work more slowly than the others': give it the same free cores "
        "(affinity, NUMA node, no other process on them), or launch less (CUDA graphs, fused "
        "kernels)"
    ),
    "host": (
        "Find what its program does there between operators, on this rank alone (logging, "
        "checkpoints, data, locks), and move it out of the step or to another thread"
    ),
    "line": (
        "See what this line does on this rank alone, and move it out of the step or to another "
        "thread"
    ),
    "input": "Its input is late: more workers or the same storage as the others, prefetched",
    "gc": "Collect on all ranks at the same step (gc.disable() and gc.collect() every n steps)",
    "compile": "Compile before the loop on all ranks; shapes that differ by rank compile apart",
    "sync": "Remove what makes its host wait for the GPU inside the step",
    "allocator": "Its memory is nearly full: balance memory, or let the cache reuse it",
}
_ADVICE_WORK = (
    "It computes longer than the others for the same call: compare clocks, temperature and power "
    "(throttling), and whether its share of the work is larger"
)
_ADVICE_LARGER = (
    "Its share of the work is larger: give the ranks as many tokens each step. Batch by length or "
    "by tokens on all ranks alike, or pack sequences: a shuffle alone pads short ones to the "
    "longest of their batch, on all ranks"
)
_ADVICE_EQUAL = (
    "Its share of the work is no larger, so it computes more slowly: compare clocks, temperature "
    "and power (throttling){cores}, and what the modules take on both ranks"
)
_ADVICE_NEAR = (
    "No pause of its own was seen, and its work takes hardly longer: that is near the scatter of "
    "the steps. See whether a longer recording says so too."
)


@dataclass(frozen=True)
class Case:
    """A late rank, what it did before it arrived, and what a punctual one, `beside`, did before the
    same calls; None where that is not known."""

    claim: Claim
    group: GroupResult | None
    wall_ns: int
    late: Doings | None = None
    other: Doings | None = None
    beside: int | None = None
    hosts: Hosts | None = None
    most_work_ns: int | None = None  # how much longer it works than that one in the whole window
    shares: Shares | None = None  # of the tokens, beside that one
    cpu_only: bool = False

    @cached_property
    def longer(self) -> Mapping[str, int]:
        """By how much each part took the late rank longer."""
        if self.late is None:
            return {}
        parts = excess(self.late, self.other)
        if not self.cpu_only or self.most_work_ns is None or self.most_work_ns > 0:
            return parts
        # The other does the same work, but part of it beside a collective in which it waits.
        return {part: ns for part, ns in parts.items() if part.startswith("overhead.")}

    @cached_property
    def slower(self) -> Slower:
        """What of the lateness is the rank's own."""
        if self.claim.how == "together":
            return judge_lateness(self.late, None, self.longer, None)
        found = judge_lateness(
            self.late,
            self.other,
            self.longer,
            self.hosts,
            self.most_work_ns,
            cpu_only=self.cpu_only,
        )
        return found.without_pace(self._lost_ns, self.wall_ns)

    @property
    def _lost_ns(self) -> int:
        total, lost = self.claim.total_ns, self.claim.lost_ns
        return total if lost is None else min(total, lost)

    @property
    def cost_ns(self) -> int:
        """What the others would not wait if it were as fast as the punctual one."""
        own = self.slower.own_ns
        return self._lost_ns if own is None else min(own, self._lost_ns)

    @property
    def gain_ns(self) -> int:
        """What the others would not wait: what it has too much of is theirs to do where the share
        of its work is larger."""
        ranks = len(self.group.members) if self.group else 0
        moves = ranks > 1 and self.shares is not None and self.shares.explain and self.is_work
        return self.cost_ns * (ranks - 1) // ranks if moves else self.cost_ns

    @property
    def is_work(self) -> bool:
        """Whether work took it longer most of all, and no idle."""
        return self.cause is not None and not self.cause.startswith("overhead.")

    @property
    def is_near(self) -> bool:
        """Whether it is work that takes it longer, by hardly more than work differs by chance."""
        return self.slower.near and not (self.shares is not None and self.shares.explain)

    @property
    def is_behind(self) -> bool:
        """Whether it only comes last, and takes no longer."""
        return self.slower.is_behind(self.claim.total_ns, self.wall_ns)

    @property
    def cause(self) -> str | None:
        """The part that took it longer most of all, of those that count."""
        by_host, block = self.slower.by_host, self.slower.block
        if block is not None:
            return block.what
        known = self.slower.own_ns is not None
        return next((p for p in self.longer if not known or by_host == is_host_part(p)), None)


def straggler_finding(case: Case, alignment: Alignment) -> Finding:
    """A late rank, with what it did before it arrived."""
    ratio = case.cost_ns / case.wall_ns if case.wall_ns else 0.0
    chance = case.slower.may_be_chance(case.wall_ns) or case.is_near
    return Finding(
        rule=STRAGGLER,
        severity="info" if chance else _severity(ratio),
        title=_title(case),
        count=case.claim.last,
        cost_ns=case.cost_ns,
        ratio=ratio,
        steps=case.claim.steps,
        where=_where(case.slower.block),
        detail=_detail(case, alignment),
        advice=_pace_advice(chance) if _is_pace(case) else _advice(case),
        gain_ns=case.gain_ns,
    )


def _is_pace(case: Case) -> bool:
    """Whether its host does the same as the others', only more slowly."""
    slower = case.slower
    return slower.by_host and slower.hosts is not None and slower.block is None


def behind_words(case: Case) -> str:
    """Why a rank that comes last is none that holds up the others."""
    hosts, claim = case.slower.hosts, case.claim
    assert hosts is not None
    return (
        f"rank {claim.rank} comes last in {claim.last} of {claim.compared} collectives, but its "
        f"host takes hardly longer than that of rank {case.beside} for the same calls "
        f"({hosts.pace:.2f} times as long): it is behind, not slower"
    )


def _severity(ratio: float) -> Severity:
    if ratio >= CRITICAL_RATIO:
        return "critical"
    return "warning" if ratio >= WARNING_RATIO else "info"


def _title(case: Case) -> str:
    claim = case.claim
    named = f" of {group_words(case.group)}" if case.group else ""
    each = milliseconds(claim.total_ns / max(claim.last, 1))
    if claim.how == "together":
        ranks = ", ".join(map(str, claim.together[:_MOST_NAMED]))
        text = f"ranks {ranks} come late together, in {claim.last} of {claim.compared} collectives"
        return f"{text}{named}, for which the others wait {milliseconds(claim.total_ns)}"
    what = {
        "calls": f"collectives{named}",
        "steps": f"steps, in the first collective of each{named}",
        "waits": f"collectives{named} that were waited in longest",
    }[claim.how]
    text = (
        f"the others wait for rank {claim.rank}: last in {claim.last} of {claim.compared} {what}, "
        f"by {each} on average"
    )
    if case.late is None:
        return text
    if case.slower.by_host and case.slower.hosts is not None:
        return f"{text}; {_host_words(case, case.slower.hosts)}"
    return f"{text}; before it arrived: {_doings_words(case)}"


def _host_words(case: Case, hosts: Hosts) -> str:
    """How much longer its host takes, and with what."""
    text = f"its host takes {milliseconds(hosts.longer_ns)} longer than rank {case.beside}'s for "
    text += "the same calls"
    block = case.slower.block
    if block is None:
        return f"{text}, {hosts.pace:.2f} times as long, in all that it does"
    if 2 * together_ns(block) >= hosts.longer_ns:
        return f"{text}: {_block_words(block)}"
    return f"{text}, {hosts.pace:.2f} times as long; part of it is {_block_words(block)}"


def group_words(group: GroupResult) -> str:
    """`TP group 1 (mesh_tp)`."""
    called = f" ({group.description})" if group.description not in ("", group.name) else ""
    return f"{group.kind} group {group.name}{called}".strip() if group.name else "one unnamed group"


def _doings_words(case: Case) -> str:
    compared = "" if case.beside is None else f" more than rank {case.beside}"
    whole = sum(case.longer.values())
    large = [(part, ns) for part, ns in case.longer.items() if ns >= TELLING * whole][:2]
    parts = [f"{part_words(part)} {milliseconds(ns)}" for part, ns in large]
    said = " and ".join(parts) + compared if parts else "nothing longer than the others"
    block = case.slower.block
    if block is not None:
        said = f"{said}; longest block: {_block_words(block)}"
    return f"{said}{_share_words(case)}"


def _share_words(case: Case) -> str:
    """How many tokens it computes, where it is work that takes it longer."""
    shares = case.shares
    if shares is None or not case.is_work:
        return ""
    each = f"{shares.late:,.0f} beside {shares.beside:,.0f}"
    if shares.explain:
        return (
            f"; it computes {shares.ratio:.2f} times the tokens of rank {case.beside}, "
            f"{each} a step"
        )
    return f"; it computes as many tokens, {each} a step" if shares.equal else ""


def _block_words(block: Block) -> str:
    often = is_idle(block) and block.count > 1
    times = f"{block.count} times up to " if often else ""
    return f"{block_words(block)}, {times}{milliseconds(block.ns)}"


def part_words(part: str) -> str:
    """`host work outside operators` for overhead.host."""
    group, _, name = part.partition(".")
    return _IDLE_WORDS.get(name, name) if group == "overhead" else part


def block_words(block: Block) -> str:
    """What a block was, with the kernel or the place."""
    words = part_words(block.what)
    if block.where:
        inside = f" {IN_LOADER.strip()}" if block.name.startswith(IN_LOADER) else ""
        return f"{words}{inside} at {block.where}"
    return f"{words} ({block.name})" if block.name else words


def _where(block: Block | None) -> Where:
    """The place of a block, as far as it is known."""
    if block is None or not block.where:
        return Where()
    position, _, function = block.where.partition(" ")
    file, _, line = position.rpartition(":")
    if not line.isdigit():
        return Where(file=position, function=function or None)
    return Where(file=file, line=int(line), function=function or None)


def _advice(case: Case) -> str:
    cause, block = case.cause, case.slower.block
    if case.is_near:
        return _ADVICE_NEAR
    if cause is None:
        return "Look at what this rank does differently before it enters the collective."
    group, _, name = cause.partition(".")
    if cause == "overhead.host" and block is not None and block.where:
        name = "line"
    if group == "overhead":
        return _ADVICE.get(name, "See the causes of idle in the report of this rank") + "."
    return f"{_work_advice(case)}."


def _work_advice(case: Case) -> str:
    shares = case.shares
    if shares is not None and shares.explain:
        return _ADVICE_LARGER
    if shares is not None and shares.equal:
        cores = " and what else runs on its cores" if case.cpu_only else ""
        return _ADVICE_EQUAL.format(cores=cores)
    return _ADVICE_WORK


def _pace_advice(chance: bool) -> str:
    text = (
        "It issues the same work more slowly: give its process the same free cores (affinity, NUMA "
        "node, no other process on them), or let all launch less (CUDA graphs, fused kernels), so "
        "that nobody waits for a host"
    )
    if chance:
        text += ". In so short a time it may be chance: see whether a longer recording says so too"
    return f"{text}."


def _detail(case: Case, alignment: Alignment) -> dict[str, Any]:
    claim, group, hosts = case.claim, case.group, case.slower.hosts
    detail: dict[str, Any] = {
        "rank": claim.rank,
        "group": group.name or None if group else None,
        "group_kind": group.kind or None if group else None,
        "last": claim.last,
        "compared": claim.compared,
        "evidence": claim.how,
        "late_ns": claim.total_ns,
        "own_ns": case.slower.own_ns,
        "residual_ns": alignment.residual_ns,
        "cause": case.cause,
    }
    if claim.together:
        detail["ranks"] = list(claim.together)
    if case.late is not None:
        detail["before"] = {
            "total_ns": case.late.total_ns,
            "parts_ns": dict(case.late.parts_ns),
            "longer_ns": dict(case.longer),
            "host_ns": None if hosts is None else hosts.late_ns,
            "beside_rank": case.beside,
            "beside_parts_ns": None if case.other is None else dict(case.other.parts_ns),
            "beside_host_ns": None if hosts is None else hosts.beside_ns,
            "tokens_per_step": None if case.shares is None else case.shares.late,
            "beside_tokens_per_step": None if case.shares is None else case.shares.beside,
            "blocks": [
                {"what": b.what, "name": b.name, "ns": b.ns, "count": b.count, "where": b.where}
                for b in case.late.blocks
            ],
        }
    return detail


def not_aligned_note(ranks: Sequence[int], why: str) -> Note:
    """Ranks whose clocks could not be joined."""
    named = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", …" if len(ranks) > _MOST_NAMED else "")
    text = f"ranks {named}: {why}"
    return Note(NOT_ALIGNED, text, len(ranks), {"ranks": list(ranks)}, partial=False)


def alignment_notes(alignment: Alignment, lanes: Sequence[JoinedLane]) -> Iterator[Note]:
    """Ranks that stand apart, and ranks whose calls fit those of no other."""
    if alignment.apart:
        why = (
            "they share no collective with the others, so that their clocks stand apart and "
            "nothing is said of them beside the others"
        )
        yield not_aligned_note(alignment.apart, why)
    strangers = sorted({rank for lane in lanes for rank in lane.strangers})
    if strangers:
        named = ", ".join(map(str, strangers[:_MOST_NAMED]))
        text = (
            f"collectives of ranks {named} could not be matched with the others' of their group: "
            "their operations or ends differ"
        )
        yield Note("ranks.not_matched", text, len(strangers), {"ranks": strangers})


def entry_notes(evidence: Iterable[LaneEvidence]) -> Iterator[Note]:
    """What ranks waited for each other in the call that began the window."""
    longest = max((int(lane.entry_ns.max()) for lane in evidence), default=0)
    if longest >= _ENTRY_NS:
        text = (
            f"in the first collective of the window ranks waited up to {milliseconds(longest)} "
            "because they had not begun it together: it makes no rank a late one"
        )
        yield Note("ranks.window_start", text, None, {"longest_ns": longest})


def straggler_check(
    findings: Sequence[Finding], behind: Sequence[Case], reason: str, partial: str
) -> Check:
    """found, clear or, where a rank is missing, partial."""
    if any(finding.rule == STRAGGLER for finding in findings):
        return Check(STRAGGLER, "found", partial)
    if behind:
        reason = behind_words(behind[0])
    return Check(STRAGGLER, "partial" if partial else "clear", partial or reason)
