"""What is the matter with several ranks, why, and what to do: the answer before all tables."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.exporters.format import duration_text, numbers_text, percent_text
from tracer.exporters.names import inert
from tracer.exporters.words import capital
from tracer.findings import Finding
from tracer.rank_analysis import JobAmong, RankAnalysis, RankResult

_STRAGGLER = "comm.straggler"
_ACROSS = ("comm.hang", _STRAGGLER)
# Waiting that is worth a word.
_NOTABLE_RATIO = 0.01


def ranks_verdict(analysis: RankAnalysis) -> str:
    """Who holds up the others, with what, and what to do about it; where nobody does, what costs
    the ranks most."""
    told = [f for f in analysis.findings if f.severity != "info"]
    told.sort(key=lambda finding: finding.rule not in _ACROSS)
    if told:
        first, *others = told
        more = [_title(f).partition(";")[0] for f in others if f.rule in _ACROSS][:1]
        return " ".join((*_sentences(first, analysis), *(f"{capital(title)}." for title in more)))
    return " ".join((_nobody(analysis), *_own(analysis)))


def job_words(job: JobAmong, place: str) -> str:
    """Which of several recordings are ranks of one job, who of them is late, and what compares
    them. place: where they are, as it may be shown."""
    said = f"Recordings {numbers_text(job.numbers)} are ranks of one job"
    if job.found.alignment is None:
        return f"{said}; they share no collective, so that nothing tells who waits for whom."
    return f"{said}. {ranks_sentence(job.found)} `tracer ranks {place}` compares them."


def ranks_sentence(analysis: RankAnalysis) -> str:
    """Who holds up the others, or that nobody does, as one sentence."""
    for finding in analysis.findings:
        if finding.rule in _ACROSS and finding.severity != "info":
            return f"{capital(_title(finding).partition('; ')[0])}."
    return _nobody(analysis)


def _sentences(finding: Finding, analysis: RankAnalysis) -> Iterator[str]:
    """What is wrong and why, what to do, and what it gains where that is known."""
    for part in _title(finding).split("; "):
        yield f"{capital(part)}."
    if finding.advice:
        yield inert(finding.advice)
    if finding.gain_ns and finding.detail.get("own_ns") is not None:
        yield f"That would gain {_gain_words(finding, analysis)}."


def _gain_words(finding: Finding, analysis: RankAnalysis) -> str:
    """What the others no longer wait, for each step where all ranks saw as many."""
    steps = {rank.summary.steps for rank in analysis.ranks}
    count = steps.pop() if len(steps) == 1 else 0
    gain = finding.gain_ns or 0
    each = f"{duration_text(gain / count)} a step" if count > 1 else duration_text(gain)
    share = "" if finding.ratio is None else f", {percent_text(finding.ratio)} of the time"
    return f"the others up to {each}{share}"


def _title(finding: Finding) -> str:
    return inert(finding.title)


def _nobody(analysis: RankAnalysis) -> str:
    """Why no rank is named."""
    if len(analysis.ranks) == 1:
        one = f"tracer report {inert(analysis.ranks[0].summary.path)}"
        return f"There is one recording and nothing to compare it with: `{one}` tells more."
    if analysis.alignment is None:
        return "The ranks cannot be compared: each is reported for itself."
    late = next((f for f in analysis.findings if f.rule == _STRAGGLER), None)
    if late is not None and (late.detail.get("before") or {}).get("host_ns") is None:
        cost = f"{duration_text(late.cost_ns)} in all"
        return f"No rank holds up the others for long: {_title(late).partition(';')[0]} ({cost})."
    if late is not None:
        return f"No rank holds up the others by what it does; {_chance_words(late)}."
    if analysis.behind:
        check = next(check for check in analysis.checks if check.rule == _STRAGGLER)
        return f"No rank holds up the others: {inert(check.reason)}."
    return f"No rank holds up the others; {_waiting_words(analysis)}."


def _chance_words(finding: Finding) -> str:
    """A host that is slower at all it does, for so short a time that it may be chance."""
    detail, before = finding.detail, finding.detail["before"]
    pace = before["host_ns"] / max(before["beside_host_ns"], 1)
    cost = f"{duration_text(finding.cost_ns)}, {percent_text(finding.ratio)} of the time"
    return (
        f"the host of rank {detail['rank']} issues the same work {pace:.2f} times as slowly as "
        f"that of rank {before['beside_rank']} ({cost}), in so short a time perhaps by chance"
    )


def _waiting_words(analysis: RankAnalysis) -> str:
    known = [rank for rank in analysis.ranks if rank.wait_ns is not None]
    wall = sum(rank.summary.wall_ns for rank in known)
    waited = sum(max((rank.wait_ns or 0) - rank.entry_wait_ns, 0) for rank in known)
    share = waited / wall if wall else 0.0
    if share < _NOTABLE_RATIO:
        return "they hardly wait for each other"
    return f"they wait for each other {percent_text(share)} of the time, now for one, now another"


def _own(analysis: RankAnalysis) -> Iterator[str]:
    """What costs most on a rank for itself, and what to do about it."""
    if analysis.alignment is None and all(rank.summary.answer for rank in analysis.ranks):
        longest = max((rank.summary for rank in analysis.ranks), key=lambda rank: rank.wall_ns)
        alone = len(analysis.ranks) == 1
        yield longest.answer if alone else f"Rank {longest.rank}: {longest.answer}"
        return
    found = [(f, rank) for rank in analysis.ranks for f in rank.findings if f.severity != "info"]
    if not found:
        return
    finding, rank = max(found, key=lambda pair: pair[0].cost_ns or 0)
    yield f"Most is lost on rank {rank.summary.rank}: {_title(finding)}{_cost(finding, rank)}."
    if finding.advice:
        yield inert(finding.advice)


def _cost(finding: Finding, rank: RankResult) -> str:
    if finding.cost_ns is None or finding.title.endswith(")"):  # it says what it costs
        return ""
    return f" (costs {duration_text(finding.cost_ns)} of {duration_text(rank.summary.wall_ns)})"
