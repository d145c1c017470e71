"""What changed from one job to the other, in a few sentences: the answer before all tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tracer.diff_analysis import DiffAnalysis, FindingChange, Measure, PhaseChange
from tracer.exporters.diff_findings import CostChange
from tracer.exporters.diff_levels import leading
from tracer.exporters.diff_verdict import (
    against_words,
    answer_words,
    caution_words,
    diff_verdict,
    is_unlike,
    parts_words,
    second_words,
    side_by_side,
    times_words,
)
from tracer.exporters.format import counted, duration_text, numbers_text
from tracer.exporters.names import inert
from tracer.exporters.words import capital
from tracer.findings import Finding
from tracer.job_diff import JobChange, JobDiff, JobPhase

_STRAGGLER = "comm.straggler"
# Told with the numbers of ranks, where these differ.
_TOLD = ("diff.world_size",)
_MOST_LATE = 2


def job_verdict(job: JobDiff, costs: Sequence[CostChange], across: Sequence[CostChange]) -> str:
    """Whether the job is faster, who holds up the others now, and what changed on that rank.
    `costs`: findings of the rank that tells most; `across`: those across ranks."""
    change, detail = job.change, job.detail
    if not detail.phases or not change.phases:
        return " ".join((diff_verdict(detail, costs), *_numbers_words(change)))
    phases = job_phases(job)
    if is_unlike(detail):
        return " ".join((*_caution(change, detail), *map(side_by_side, phases)))
    where = f"rank {change.led}" if phases[0].mean_tells else _slowest_words(change.phases[0])
    first = f"{answer_words(phases[0])}, on {where}."
    late = list(_late_words(across)) or [_nobody(change, across)]
    others = map(second_words, phases[1:])
    own = _own_words(change.led, detail, costs)
    return " ".join((*_caution(change, detail), first, *late, *own, *others))


def _numbers_words(change: JobChange) -> Iterator[str]:
    """How many ranks either side has, where these are not the same ones."""
    if change.only_before or change.only_after:
        yield f"{_numbers(change)}."


def _numbers(change: JobChange) -> str:
    counts = len(change.before.ranks), len(change.after.ranks)
    common = [rank.rank for rank in change.ranks]
    told = f"A has {counted(counts[0], 'rank')}, B has {counts[1]}"
    if len(common) == 1:
        return f"{told}: rank {common[0]} alone is compared"
    return f"{told}: ranks {numbers_text(common)} are compared one by one"


def _caution(change: JobChange, detail: DiffAnalysis) -> Iterator[str]:
    numbers = bool(change.only_before or change.only_after)
    against = against_words(detail, _TOLD if numbers else ())
    unlike = is_unlike(detail)
    if numbers and not unlike:
        against.insert(0, _numbers(change))
    if against:
        yield caution_words(against, unlike)
    if unlike:
        yield from _numbers_words(change)


def job_phases(job: JobDiff) -> list[PhaseChange]:
    """The steps of the job as those of one recording; none where no steps are compared."""
    return [_as_change(phase, job.detail) for phase in job.change.phases if job.detail.phases]


def _as_change(phase: JobPhase, detail: DiffAnalysis) -> PhaseChange:
    """The step of the job in the place of that of one rank, whose machine is that of all; where
    the mean turn tells more, that of the one rank."""
    like = next((c for c in detail.phases if c.phase == phase.phase), None)
    if like is not None and like.mean_tells:
        return like
    other = replace(detail.phases[0], phase=phase.phase, pace=None)
    return replace(like or other, step=phase.step, turn=None, like_turns=False, mean_turn=None)


def _slowest_words(phase: JobPhase) -> str:
    ours, theirs = phase.slowest
    if ours == theirs:
        return f"rank {ours}, the slowest in both"
    return f"the slowest rank of each ({ours} in A, {theirs} in B)"


# --- who is late ---------------------------------------------------------------------------------


def _late_words(across: Sequence[CostChange]) -> Iterator[str]:
    """The ranks that the others wait for in A or in B, the costliest first."""
    late = [row for row in across if row.change.finding.rule == _STRAGGLER and _counts(row.change)]
    for row in late[:_MOST_LATE]:
        yield f"{_LATE[row.change.status](row)}."


def _counts(change: FindingChange) -> bool:
    sides = (change.before, change.after)
    return any(finding is not None and finding.severity != "info" for finding in sides)


def _gone(row: CostChange) -> str:
    who, why = _who(row), _why(row)
    return f"{capital(who)} no more{_cost(row.before_ns, row)}" + (f": in A {why}" if why else "")


def _new(row: CostChange) -> str:
    why = _why(row)
    told = f"New in B: {_who(row)}{_cost(row.after_ns, row)}"
    return f"{told}: {why}" if why else told


def _still(row: CostChange) -> str:
    why = _why(row)
    told = f"{capital(_who(row))} in both{_change(row)}"
    return f"{told}: in B {why}{_chance(row.change.after)}" if why else told


def _change(row: CostChange) -> str:
    if not row.before_ns or not row.after_ns or round(row.before_ns) == round(row.after_ns):
        return _cost(row.after_ns, row)
    times = times_words(Measure(round(row.before_ns), round(row.after_ns)))
    return f" ({times}{_each(row)})"


def _chance(finding: Finding | None) -> str:
    slight = finding is not None and finding.severity == "info"
    return ", in so short a time perhaps by chance" if slight else ""


def _unseen(row: CostChange) -> str:
    there, other = ("B", "A") if row.change.before is None else ("A", "B")
    return f"{capital(_who(row))} in {there}; in {other} that could not be checked"


_LATE = {"gone": _gone, "new": _new, "still": _still, "not_checked": _unseen}


def _who(row: CostChange) -> str:
    """`the others wait for rank 1`."""
    detail = row.change.finding.detail
    ranks = detail.get("ranks") or [detail["rank"]]
    return f"the others wait for {'rank' if len(ranks) == 1 else 'ranks'} {numbers_text(ranks)}"


def _why(row: CostChange) -> str:
    """What that rank does before it comes."""
    told = inert(row.change.finding.title).partition("; ")[2]
    return told.removeprefix("before it arrived: ")


def _cost(ns: float | None, row: CostChange) -> str:
    if not ns:
        return ""
    return f" ({duration_text(ns)}{_each(row)})"


def _each(row: CostChange) -> str:
    return " a step" if row.each_step else " in all"


def _nobody(change: JobChange, across: Sequence[CostChange]) -> str:
    if change.before.alignment is None or change.after.alignment is None:
        return "Who waits for whom is not known, as the ranks share no collective."
    slight = any(row.change.finding.rule == _STRAGGLER for row in across)
    more = " by more than may be chance" if slight else ""
    return f"No rank holds up the others{more}, in A or in B."


# --- what changed on one rank --------------------------------------------------------------------


def _own_words(led: int, detail: DiffAnalysis, costs: Sequence[CostChange]) -> Iterator[str]:
    main = detail.phases[0]
    parts = parts_words(main, costs)
    if leading(main)[1] and not main.mean_tells:  # which is the answer itself
        yield f"Rank {led}: {answer_words(main)}{f'; {parts}' if parts else ''}."
    elif parts:
        yield f"On rank {led}: {parts}."
