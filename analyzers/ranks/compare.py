"""From ranks understood one by one to what they did to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tracer.analyzers.ranks.align import align, sample_lanes
from tracer.analyzers.ranks.balance import (
    Received,
    expert_balance,
    pipeline_bubbles,
    step_balance,
)
from tracer.analyzers.ranks.evidence import LaneEvidence, WaitSums, add_sums, in_which_all_wait
from tracer.analyzers.ranks.findings import (
    NOT_ALIGNED,
    STRAGGLER,
    Case,
    alignment_notes,
    entry_notes,
    not_aligned_note,
    straggler_check,
    straggler_finding,
)
from tracer.analyzers.ranks.groups import describe_groups
from tracer.analyzers.ranks.late import late_calls
from tracer.analyzers.ranks.match import JoinedLane, join_lanes
from tracer.analyzers.ranks.shares import share_of_work
from tracer.analyzers.ranks.slower import Hosts, compare_hosts
from tracer.analyzers.ranks.straggler import Claim, confirm, find_claims
from tracer.analyzers.ranks.waits import arrivals, begins_window
from tracer.analyzers.rules.comm import EXPOSED, SAME_STREAM, without_waiting
from tracer.events import Note
from tracer.findings import Check, Finding
from tracer.rank_analysis import (
    Alignment,
    Doings,
    GroupResult,
    Interval,
    KindSums,
    RankAnalysis,
    RankResult,
    RankSummary,
    RowStore,
)

# Asks the recordings of ranks how they spent some intervals; one answer a question.
Question = tuple[int, Sequence[Interval]]
Describe = Callable[[Sequence[Question]], Sequence[Doings]]
# Late ranks whose recordings are looked at again, and calls of each.
_MOST_LATE, _MOST_CALLS = 8, 4096
# Claims that are confirmed one by one, the costliest first.
_MOST_CLAIMS = 64


@dataclass(frozen=True)
class _Run:
    """The ranks with what joins them."""

    summaries: Mapping[int, RankSummary]
    lanes: Sequence[JoinedLane]
    store: RowStore
    alignment: Alignment
    begins: Mapping[str, bool]

    def residual_ns(self, rank: int) -> int:
        """What is not claimed of a rank."""
        own = self.alignment.residuals_ns.get(rank, 0)
        return max(self.alignment.residual_ns or 0, own)


@dataclass
class _Joined:
    """What one pass over all shared calls found."""

    sums: dict[tuple[int, str, str], WaitSums] = field(default_factory=dict)
    evidence: dict[str, LaneEvidence] = field(default_factory=dict)
    received: dict[str, Received] = field(default_factory=dict)


def compare_ranks(
    summaries: Mapping[int, RankSummary],
    store: RowStore,
    describe: Describe,
    notes: Sequence[Note] = (),
) -> RankAnalysis:
    """Align the ranks, tell waiting from sending, name late ranks. `notes`: on what is missing."""
    lanes = join_lanes(summaries, store)
    alignment = align(summaries, sample_lanes(lanes, summaries, store)) if lanes else None
    if alignment is None:
        return _alone(summaries, lanes, notes)
    run = _Run(summaries, lanes, store, alignment, begins_window(lanes, summaries, store))
    joined = _one_pass(run)
    claims = _confirmed(run, joined)
    groups = describe_groups(lanes, summaries)
    cases = _cases(run, joined, claims, describe, groups)
    held_up = sorted((c for c in cases if not c.is_behind), key=lambda case: -case.cost_ns)
    findings = tuple(straggler_finding(case, alignment) for case in held_up)
    behind = [case for case in cases if case.is_behind]
    kinds = {rank: _kinds(summary, joined) for rank, summary in summaries.items()}
    late = [case.claim.rank for case in held_up]
    return RankAnalysis(
        ranks=tuple(
            _result(summaries[rank], kinds[rank], joined, late) for rank in sorted(summaries)
        ),
        alignment=alignment,
        groups=groups,
        findings=findings,
        checks=_checks(run, joined, findings, behind, notes),
        notes=(*notes, *alignment_notes(alignment, lanes), *entry_notes(joined.evidence.values())),
        imbalance={
            "steps": step_balance(summaries),
            "experts": expert_balance(joined.received.items()),
            "pipeline": pipeline_bubbles(summaries, kinds),
        },
        behind=tuple(case.claim.rank for case in behind),
    )


def _alone(
    summaries: Mapping[int, RankSummary], lanes: Sequence[JoinedLane], notes: Sequence[Note]
) -> RankAnalysis:
    """Ranks that share nothing: each for itself."""
    ranks = sorted(summaries)
    several = len(ranks) > 1
    why = (
        "the ranks share no collective, so that their clocks cannot be aligned"
        if several
        else "one rank alone has nothing to be compared with"
    )
    empty = _Joined()
    return RankAnalysis(
        ranks=tuple(
            _result(summaries[rank], _kinds(summaries[rank], empty), empty, []) for rank in ranks
        ),
        alignment=None,
        groups=describe_groups(lanes, summaries),
        checks=(
            Check(NOT_ALIGNED, "found" if several else "not_checked", why),
            Check(STRAGGLER, "not_checked", why),
        ),
        notes=(*notes, not_aligned_note(ranks, why)) if several else tuple(notes),
        imbalance={"steps": step_balance(summaries), "experts": [], "pipeline": []},
    )


def _one_pass(run: _Run) -> _Joined:
    joined = _Joined()
    limits = {rank: run.residual_ns(rank) for rank in run.summaries}
    for lane in run.lanes:
        evidence, received = LaneEvidence(lane.key, lane.ranks), Received(lane.ranks)
        for found in arrivals(lane, run.store, run.alignment, run.begins[lane.key]):
            add_sums(joined.sums, found, run.summaries)
            waiting = in_which_all_wait(found, run.summaries, run.alignment)
            evidence.add(found, limits, waiting)
            received.add(found, run.summaries)
        joined.evidence[lane.key] = evidence
        joined.received[lane.key] = received
    return joined


# --- late ranks ----------------------------------------------------------------------------------


def _confirmed(run: _Run, joined: _Joined) -> list[Claim]:
    """Claims that hold when what a rank waited for others itself is taken out; one a rank."""
    walls = {rank: _fair_wall(summary, joined) for rank, summary in run.summaries.items()}
    steps = {rank: summary.median_step_ns or 0 for rank, summary in run.summaries.items()}
    claims = find_claims(joined.evidence.values(), walls, steps)[:_MOST_CLAIMS]
    ranks = {claim.rank for claim in claims}
    calls = late_calls(ranks, run.lanes, run.store, run.alignment, run.begins)
    kept: dict[int, Claim] = {}
    for claim in claims:
        members = len(joined.evidence[claim.key].ranks)
        held = confirm(claim, calls[claim.rank], run.residual_ns(claim.rank), members)
        if held is not None and held.rank not in kept:
            kept[held.rank] = held
    return sorted(kept.values(), key=lambda claim: (-claim.total_ns, claim.rank))


def _fair_wall(summary: RankSummary, joined: _Joined) -> int:
    """The window of a rank without the call in which the ranks entered it."""
    rank = summary.rank
    lanes = [lane for lane in joined.evidence.values() if rank in lane.ranks]
    entered = sum(int(lane.entry_ns[lane.ranks.index(rank)]) for lane in lanes)
    return max(summary.wall_ns - entered, summary.wall_ns // 4, 1)


def _cases(
    run: _Run,
    joined: _Joined,
    claims: Sequence[Claim],
    describe: Describe,
    groups: Sequence[GroupResult],
) -> list[Case]:
    """Late ranks with what they did before their late calls, beside what a punctual one did before
    the same calls."""
    looked_at = claims[:_MOST_LATE]
    beside = {c.rank: _punctual(joined.evidence[c.key], claims) for c in looked_at}
    questions, hosts = _questions(run, looked_at, beside)
    answers = iter(describe(questions) if questions else ())
    cases: list[Case] = []
    for claim in claims:
        wall, group = _usual_wall(run, joined, claim), _group_of(claim, run.lanes, groups)
        if claim in looked_at:
            late, rank = next(answers), beside[claim.rank]
            other = None if rank is None else next(answers)
            more = None if rank is None else _more_work(run, claim.rank, rank)
            cpu_only = run.summaries[claim.rank].cpu_only
            pace, shares = hosts[claim.rank], share_of_work(run.summaries, claim.rank, rank)
            cases.append(Case(claim, group, wall, late, other, rank, pace, more, shares, cpu_only))
        else:
            cases.append(Case(claim, group, wall))
    return cases


def _more_work(run: _Run, late: int, other: int) -> int | None:
    """How much longer one rank works in its window than another."""
    times = [run.summaries[rank].groups_ns for rank in (late, other)]
    sums = [
        sum(ns for group, ns in time.items() if group not in ("overhead", "communication"))
        for time in times
        if time is not None
    ]
    return sums[0] - sums[1] if len(sums) == 2 else None


def _usual_wall(run: _Run, joined: _Joined, claim: Claim) -> int:
    ranks = joined.evidence[claim.key].ranks
    walls = sorted(_fair_wall(run.summaries[rank], joined) for rank in ranks)
    return walls[len(walls) // 2]


def _group_of(
    claim: Claim, lanes: Sequence[JoinedLane], groups: Sequence[GroupResult]
) -> GroupResult | None:
    lane = next(lane for lane in lanes if lane.key == claim.key)
    name = next(iter(lane.lanes.values())).group
    return next((g for g in groups if (g.name, g.members) == (name, lane.members)), None)


def _questions(
    run: _Run, claims: Sequence[Claim], beside: Mapping[int, int | None]
) -> tuple[list[Question], dict[int, Hosts | None]]:
    """For each claim: what the late rank did, then what the punctual one did, if there is one; and
    their hosts."""
    ranks = {claim.rank for claim in claims} | {r for r in beside.values() if r is not None}
    calls = late_calls(ranks, run.lanes, run.store, run.alignment, run.begins)
    questions: list[Question] = []
    hosts: dict[int, Hosts | None] = {}
    for claim in claims:
        steps = claim.steps if claim.how == "steps" else None
        which = calls[claim.rank].late_in(
            claim.key, steps, least_ns=claim.least_ns, together=claim.how == "together"
        )
        looked_at = which[:_MOST_CALLS]
        questions.append((claim.rank, calls[claim.rank].before(claim.key, looked_at)))
        other = beside[claim.rank]
        hosts[claim.rank] = None
        if other is not None:
            questions.append((other, calls[other].before(claim.key, looked_at)))
            late, punctual = (calls[rank].issue_times(claim.key) for rank in (claim.rank, other))
            hosts[claim.rank] = compare_hosts(late, punctual, which.tolist())
    return questions, hosts


def _punctual(lane: LaneEvidence, claims: Sequence[Claim]) -> int | None:
    """The rank of the lane that came late most rarely, and is none of the late ones."""
    late = {rank for claim in claims for rank in (claim.rank, *claim.together)}
    others = [place for place, rank in enumerate(lane.ranks) if rank not in late]
    if not others:
        return None
    return lane.ranks[min(others, key=lambda place: (int(lane.late[place]), place))]


# --- results -------------------------------------------------------------------------------------


def _kinds(summary: RankSummary, joined: _Joined) -> tuple[KindSums, ...]:
    """Totals of a rank's collectives, with waiting and sending where they could be compared."""
    kinds: list[KindSums] = []
    for (op, group), total in zip(summary.kinds, summary.totals, strict=True):
        found = joined.sums.get((summary.rank, op, group))
        compared = found.compared if found else 0
        kinds.append(
            KindSums(
                op=op,
                group=group,
                members=_members(summary, op, group, joined),
                count=total.count,
                bytes=total.bytes,
                exposed_ns=total.exposed_ns,
                overlapped_ns=total.overlapped_ns,
                exposed_wait_ns=found.exposed_wait_ns if found else 0,
                wait_ns=found.wait_ns if found else None,
                wire_ns=found.wire_ns if found else None,
                compared=compared,
                compared_bytes=found.bytes if found and total.bytes is not None else None,
                median_wire_ns=found.median_wire_ns if found else None,
            )
        )
    return tuple(kinds)


def _members(summary: RankSummary, op: str, group: str, joined: _Joined) -> int:
    """The size of a group; where no group was recorded, the ranks that made such calls together,
    provided that all ranks of the run are there."""
    recorded = summary.group_sizes.get(group, -1)
    if recorded > 0 or group:
        return recorded
    sizes = [
        len(lane.ranks)
        for key, lane in joined.evidence.items()
        if key.startswith(f"||{op} ") and summary.rank in lane.ranks
    ]
    return max(sizes, default=-1)


def _result(
    summary: RankSummary, kinds: tuple[KindSums, ...], joined: _Joined, late: Sequence[int]
) -> RankResult:
    known = [kind for kind in kinds if kind.wait_ns is not None]
    others = [rank for rank in late if rank != summary.rank]
    findings, checks = _rejudged(summary, kinds, others) if known else (None, None)
    lanes = [lane for lane in joined.evidence.values() if summary.rank in lane.ranks]
    places = [(lane, lane.ranks.index(summary.rank)) for lane in lanes]
    waited = sum(kind.wait_ns or 0 for kind in known)
    if summary.cpu_only and summary.exposed_ns is not None:
        waited = min(waited, summary.exposed_ns)
    return RankResult(
        summary=summary,
        kinds=kinds,
        findings=summary.findings if findings is None else findings,
        checks=summary.checks if checks is None else checks,
        wait_ns=waited if known else None,
        wire_ns=sum(kind.wire_ns or 0 for kind in known) if known else None,
        exposed_wait_ns=sum(kind.exposed_wait_ns for kind in known),
        last=sum(int(lane.last[place]) for lane, place in places),
        compared=sum(int(lane.held[place]) for lane, place in places),
        entry_wait_ns=sum(int(lane.entry_ns[place]) for lane, place in places),
    )


def _rejudged(
    summary: RankSummary, kinds: Sequence[KindSums], late: Sequence[int]
) -> tuple[tuple[Finding, ...], tuple[Check, ...]]:
    """Findings on communication without what was waiting: the late rank is to blame for that."""
    waited = {(kind.op, kind.group): kind.exposed_wait_ns for kind in kinds}
    findings: list[Finding] = []
    dropped: set[str] = set()
    for finding in summary.findings:
        if finding.rule not in (EXPOSED, SAME_STREAM):
            findings.append(finding)
            continue
        key = (str(finding.detail.get("op")), str(finding.detail.get("group") or ""))
        kept = without_waiting(finding, waited.get(key, 0), summary.capacity_ns, late)
        if kept is None:
            dropped.add(finding.rule)
        else:
            findings.append(kept)
    left = {finding.rule for finding in findings}
    reason = "what is exposed is waiting for other ranks, not sending"
    checks = tuple(
        Check(check.rule, "clear", reason) if check.rule in dropped - left else check
        for check in summary.checks
    )
    return tuple(findings), checks


def _checks(
    run: _Run,
    joined: _Joined,
    findings: Sequence[Finding],
    behind: Sequence[Case],
    notes: Sequence[Note],
) -> tuple[Check, ...]:
    partial = "; ".join(note.message for note in notes if note.partial)
    apart = run.alignment.apart
    aligned = (
        Check(NOT_ALIGNED, "found", f"rank {', '.join(map(str, apart))}: no collective is shared")
        if apart
        else Check(NOT_ALIGNED, "clear", run.alignment.basis)
    )
    return aligned, straggler_check(findings, behind, _who_came_last(joined), partial)


def _who_came_last(joined: _Joined) -> str:
    """Why no rank is named: who came last most often, and how often."""
    best: tuple[int, int, int] | None = None
    for lane in joined.evidence.values():
        for place, rank in enumerate(lane.ranks):
            last, held = int(lane.last[place]), int(lane.held[place])
            if best is None or last > best[0]:
                best = (last, held, rank)
    if best is None or not best[1]:
        return "no collective but the first of the window could be compared"
    if not best[0]:
        return "no rank came last by more than the residual"
    return (
        f"no rank is steadily late: most often rank {best[2]} came last, "
        f"in {best[0]} of {best[1]} collectives"
    )
