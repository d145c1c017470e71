"""Findings and checks across ranks, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tracer.analyzers.ranks.before import excess
from tracer.analyzers.ranks.evidence import LaneEvidence
from tracer.analyzers.ranks.match import JoinedLane
from tracer.analyzers.ranks.straggler import Claim
from tracer.analyzers.rules.judging import CRITICAL_RATIO, WARNING_RATIO, milliseconds
from tracer.events import Note
from tracer.findings import Check, Finding, Severity, Where
from tracer.rank_analysis import Alignment, Block, Doings, GroupResult

STRAGGLER, NOT_ALIGNED = "comm.straggler", "ranks.not_aligned"
_MOST_NAMED = 8
# A part is worth naming from this share of what took the late rank longer.
_TELLING = 0.1
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


def straggler_finding(
    claim: Claim,
    late: Doings | None,
    other: Doings | None,
    beside: int | None,
    wall_ns: int,
    alignment: Alignment,
    group: GroupResult | None,
) -> Finding:
    """A late rank, with what it did before it arrived."""
    longer = excess(late, other) if late is not None else {}
    cause = next(iter(longer), None)
    ratio = claim.total_ns / wall_ns if wall_ns else 0.0
    return Finding(
        rule=STRAGGLER,
        severity=_severity(ratio),
        title=_title(claim, late, longer, beside, group),
        count=claim.last,
        cost_ns=claim.total_ns,
        ratio=ratio,
        steps=claim.steps,
        where=_where(telling_block(late, longer) if late is not None else None),
        detail=_detail(claim, late, other, longer, beside, alignment, group, cause),
        advice=_advice(cause),
        gain_ns=claim.total_ns,
    )


def _severity(ratio: float) -> Severity:
    if ratio >= CRITICAL_RATIO:
        return "critical"
    return "warning" if ratio >= WARNING_RATIO else "info"


def _title(
    claim: Claim,
    late: Doings | None,
    longer: Mapping[str, int],
    beside: int | None,
    group: GroupResult | None,
) -> str:
    named = f" of {group_words(group)}" if group else ""
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
    if late is None:
        return text
    return f"{text}; before it arrived: {_doings_words(late, longer, beside)}"


def group_words(group: GroupResult) -> str:
    """`TP group 1 (mesh_tp)`."""
    called = f" ({group.description})" if group.description not in ("", group.name) else ""
    return f"{group.kind} group {group.name}{called}".strip() if group.name else "one unnamed group"


def _doings_words(late: Doings, longer: Mapping[str, int], beside: int | None) -> str:
    compared = "" if beside is None else f" more than rank {beside}"
    whole = sum(longer.values())
    large = [(part, ns) for part, ns in longer.items() if ns >= _TELLING * whole][:2]
    parts = [f"{part_words(part)} {milliseconds(ns)}" for part, ns in large]
    said = " and ".join(parts) + compared if parts else "nothing longer than the others"
    block = telling_block(late, longer)
    if block is not None:
        times = (
            f", {block.count} times about so long" if _is_idle(block) and block.count > 1 else ""
        )
        said += f"; longest block: {block_words(block)} {milliseconds(block.ns)}{times}"
    return said


def telling_block(late: Doings, longer: Mapping[str, int]) -> Block | None:
    """The longest block of what took the late rank longer most of all; None where it is a small
    part of that."""
    cause = next(iter(longer), None)
    block = next((block for block in late.blocks if block.what == cause), None)
    if cause is None or block is None:
        return None
    together = block.ns * block.count if _is_idle(block) else block.ns
    return block if together >= _TELLING * longer[cause] else None


def _is_idle(block: Block) -> bool:
    return block.what.startswith("overhead.")


def part_words(part: str) -> str:
    """`host work outside operators` for overhead.host."""
    group, _, name = part.partition(".")
    return _IDLE_WORDS.get(name, name) if group == "overhead" else part


def block_words(block: Block) -> str:
    """What a block was, with the kernel or the place."""
    words = part_words(block.what)
    if block.where:
        return f"{words} at {block.where}"
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


def _advice(cause: str | None) -> str:
    if cause is None:
        return "Look at what this rank does differently before it enters the collective."
    group, _, name = cause.partition(".")
    if group == "overhead":
        return _ADVICE.get(name, "See the causes of idle in the report of this rank") + "."
    return _ADVICE_WORK + "."


def _detail(
    claim: Claim,
    late: Doings | None,
    other: Doings | None,
    longer: Mapping[str, int],
    beside: int | None,
    alignment: Alignment,
    group: GroupResult | None,
    cause: str | None,
) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "rank": claim.rank,
        "group": group.name or None if group else None,
        "group_kind": group.kind or None if group else None,
        "last": claim.last,
        "compared": claim.compared,
        "evidence": claim.how,
        "late_ns": claim.total_ns,
        "residual_ns": alignment.residual_ns,
        "cause": cause,
    }
    if claim.together:
        detail["ranks"] = list(claim.together)
    if late is not None:
        detail["before"] = {
            "total_ns": late.total_ns,
            "parts_ns": dict(late.parts_ns),
            "longer_ns": dict(longer),
            "beside_rank": beside,
            "beside_parts_ns": None if other is None else dict(other.parts_ns),
            "blocks": [
                {"what": b.what, "name": b.name, "ns": b.ns, "count": b.count, "where": b.where}
                for b in late.blocks
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


def straggler_check(findings: Sequence[Finding], reason: str, partial: str) -> Check:
    """found, clear or, where a rank is missing, partial."""
    if any(finding.rule == STRAGGLER for finding in findings):
        return Check(STRAGGLER, "found", partial)
    return Check(STRAGGLER, "partial" if partial else "clear", partial or reason)
