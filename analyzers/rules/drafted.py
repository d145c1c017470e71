"""Rule loop.draft: speculative decoding that takes longer than decoding without it.

Which calls propose and which check is told by `steps.drafts`; here, what a round from one check to
the next takes, and what its tokens would take one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.callers import Asked, asked_from
from tracer.analyzers.intervals import Longs
from tracer.analyzers.rules.judging import (
    counted,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.rules.measured_calls import MeasuredCalls, measure_calls
from tracer.analyzers.steps.call_phases import CallPhase, call_phases, learning_ns
from tracer.analyzers.tables import checking_drafts
from tracer.findings import Check, Finding

RULE = "loop.draft"
# Shares of the window and of the rounds that must be spared for it to be told: what a token would
# take without a draft is not known better.
_NOTABLE, _SPARED = 0.03, 0.1
# With fewer rounds, or fewer calls of one token, nothing is said by their mean.
_FEWEST = 3
# Of the gaps between two calls those that hold nothing but what any loop does are the shortest.
_SHORT_GAPS = 0.1
# A prompt tells what a further token takes where it is so many times as long as a check.
_LONGER_PROMPT = 4
# A draft is dear from this share of its target's call on, for each token; its tokens are no use
# below this share of them that stay.
_DEAR, _REJECTED = 0.5, 0.5
_BASIS = {
    "one": "computed: the calls of one token in the recording, and the shortest gaps between calls",
    "more": "estimate: a call with one token by those with several and by the prompt, and the "
    "shortest gaps between calls",
    "as_long": "estimate: a call with one token as long as one with several, and the shortest gaps "
    "between calls",
}


def judge_drafts(context: Context, analysis: Analysis) -> RuleResult:
    """By the calls of each model that checks tokens, and by how many of them stayed."""
    table = analysis.trace.table("root_calls")
    checks = bool(checking_drafts(analysis.steps).any())
    if not len(table):
        reason = "which tokens of a draft stay is recorded live only"
        return RuleResult(checks=(Check(RULE, "not_checked" if checks else "clear", reason),))
    phases = call_phases(table, learning_ns(analysis.trace))
    groups = list(_groups(table, phases))
    reason = analysis.breakdown_reason if groups and not analysis.accounted else ""
    if checks and not groups:
        reason = "of too few checks of a draft it is known how many tokens stay"
    if reason:
        return RuleResult(checks=(Check(RULE, "not_checked", reason),))
    measured = measure_calls(context, table) if groups else None
    costs = [_cost(table, phases, measured, rows) for rows in groups if measured is not None]
    findings = tuple(_finding(analysis, table, cost) for cost in costs if _matters(analysis, cost))
    return RuleResult(findings, (verdict(RULE, findings),))


class _Round(NamedTuple):
    """A check, the calls of the draft after it, and the next check, by their rows."""

    check: int
    drafts: tuple[int, ...]
    following: int


def _groups(table: pd.DataFrame, phases: list[CallPhase]) -> Iterator[list[_Round]]:
    """The rounds of each model that checks tokens, by the line that asks for them."""
    groups: dict[tuple[str, str], list[_Round]] = {}
    begun: dict[tuple[int, int], tuple[int, list[int]]] = {}
    columns = (table[name].tolist() for name in ("thread", "generation", "root", "callers"))
    for i, (thread, generation, root, callers) in enumerate(zip(*columns, strict=True)):
        series = thread, generation
        if phases[i].name.startswith("draft"):
            if series in begun:
                begun[series][1].append(i)
            continue
        check, drafts = begun.pop(series, (-1, []))
        if check >= 0 and str(table["root"].iloc[check]) == root and phases[i].name == "decode":
            groups.setdefault((root, callers), []).append(_Round(check, tuple(drafts), i))
        if phases[i].name == "decode":
            begun[series] = i, []
    for rounds in groups.values():
        told = [r for r in rounds if _advance(table, phases, r) > 0]
        if any(phases[r.check].kept > 0 for r in told) and len(told) >= _FEWEST:
            yield told


def _advance(table: pd.DataFrame, phases: list[CallPhase], one: _Round) -> int:
    """By how many tokens of a sequence a round goes on; -1 unknown."""
    return 1 if int(table["tokens"].iloc[one.check]) == 1 else phases[one.check].kept


@dataclass(frozen=True)
class _Cost:
    """What rounds take, over one device, and what their tokens would take without a draft."""

    rounds: list[_Round]
    wall_ns: int
    alone_ns: int  # of all tokens that stay
    draft_ns: int  # from the first call of the draft to the next check
    check_ns: int
    took: int  # tokens of a sequence that the checks take
    kept: int
    basis: str

    @property
    def spared_ns(self) -> int:
        return self.wall_ns - self.alone_ns

    @property
    def proposed(self) -> int:
        """Tokens of the draft that were checked: a check also takes one that is known."""
        return self.took - len(self.rounds)

    @property
    def accepted(self) -> int:
        """Of those, the ones that stay: a check also adds one."""
        return self.kept - len(self.rounds)

    @property
    def causes(self) -> list[str]:
        """Why it does not pay, as far as two words tell."""
        token_ns = self.alone_ns / max(self.kept, 1)
        dear = self.draft_ns > _DEAR * token_ns * max(self.proposed, 1)
        rejected = self.accepted < _REJECTED * self.proposed
        return ["rejected"] * rejected + ["dear"] * dear


def _cost(
    table: pd.DataFrame, phases: list[CallPhase], measured: MeasuredCalls, rounds: list[_Round]
) -> _Cost:
    starts = table["start_ns"].to_numpy()
    checks = np.array([r.check for r in rounds], dtype=np.int64)
    until = starts[[r.following for r in rounds]]
    drafted = [int(starts[r.following] - starts[r.drafts[0]]) for r in rounds if r.drafts]
    lasting = measured.end_ns - measured.start_ns
    tokens = table["tokens"].to_numpy()
    kept = sum(_advance(table, phases, one) for one in rounds)
    one_ns, basis = _call_of_one(table, checks, tokens, lasting)
    each = one_ns + _loop_ns(measured, rounds)
    return _Cost(
        rounds,
        int((until - starts[checks]).sum()),
        round(each * kept),
        sum(drafted),
        int(lasting[checks].sum()),
        int(tokens[checks].sum()),
        kept,
        _BASIS[basis],
    )


def _call_of_one(
    table: pd.DataFrame, checks: Longs, tokens: Longs, lasting: Longs
) -> tuple[float, str]:
    """How long a call of the model with one token takes, and how that is known."""
    alone = checks[tokens[checks] == 1]
    if alone.size >= _FEWEST:
        return float(lasting[alone].mean()), "one"
    mean_ns, mean_tokens = float(lasting[checks].mean()), float(tokens[checks].mean())
    root, first = table["root"].astype(str), int(checks[0])
    mine = ((root == root.iloc[first]) & (table["cached"] == 0)).to_numpy()
    prompts = np.flatnonzero(mine & (tokens >= _LONGER_PROMPT * mean_tokens))
    if not prompts.size:
        return mean_ns, "as_long"
    each = (lasting[prompts] - mean_ns) / (tokens[prompts] - mean_tokens)
    further = max(float(np.median(each)), 0.0)
    return mean_ns - further * (mean_tokens - 1), "more"


def _loop_ns(measured: MeasuredCalls, rounds: list[_Round]) -> float:
    """What a loop does between two calls at the least."""
    gaps = []
    for one in rounds:
        calls = [one.check, *one.drafts, one.following]
        gaps += [measured.start_ns[b] - measured.end_ns[a] for a, b in pairwise(calls)]
    return float(np.quantile(np.maximum(gaps, 0), _SHORT_GAPS))


def _matters(analysis: Analysis, cost: _Cost) -> bool:
    large = cost.spared_ns >= _NOTABLE * analysis.window.wall_ns
    return large and cost.spared_ns >= _SPARED * cost.wall_ns


def _finding(analysis: Analysis, table: pd.DataFrame, cost: _Cost) -> Finding:
    spared = cost.spared_ns * max(analysis.window.devices, 1)
    calls = table.iloc[[one.check for one in cost.rounds]]
    drafts = [one.drafts[0] for one in cost.rounds if one.drafts]
    draft = table.iloc[drafts[0]] if drafts else None
    asked = asked_from(calls["callers"].astype(str), ())
    return Finding(
        rule=RULE,
        severity=severity_of(spared, analysis),
        title=_title(calls, cost, "" if draft is None else str(draft["type"])),
        count=len(cost.rounds),
        cost_ns=spared,
        ratio=ratio_of(spared, analysis),
        steps=_steps_of(analysis, calls),
        where=asked.where,
        detail={
            "causes": cost.causes,
            "model": str(calls["type"].iloc[0]),
            "draft": None if draft is None else str(draft["type"]),
            "proposed_tokens": cost.proposed,
            "accepted_tokens": cost.accepted,
            "round_ns": cost.wall_ns // len(cost.rounds),
            "draft_ns": cost.draft_ns // len(cost.rounds),
            "token_ns": cost.wall_ns // cost.kept,
            "token_alone_ns": cost.alone_ns // cost.kept,
            "gain_basis": cost.basis,
        },
        advice=" ".join(_advice(calls, cost, asked, by_model=draft is not None)),
        gain_ns=spared,
    )


def _steps_of(analysis: Analysis, calls: pd.DataFrame) -> tuple[int, ...]:
    starts = analysis.steps["announced_ns"].to_numpy()
    at = np.searchsorted(starts, calls["start_ns"].to_numpy(), side="right") - 1
    return tuple(np.unique(at[at >= 0]).tolist())


def _title(calls: pd.DataFrame, cost: _Cost, draft: str) -> str:
    """`draft`: the class of the model that proposes; "" for none."""
    count, proposed = len(cost.rounds), f"{cost.proposed / len(cost.rounds):.1f} tokens"
    whole, without = (milliseconds(ns / cost.kept) for ns in (cost.wall_ns, cost.alone_ns))
    calls_take = f"; the calls of the draft, {draft}, that propose {proposed} take "
    each = milliseconds(cost.draft_ns / count)
    return (
        f"speculative decoding takes {whole} a token, about {without} without: of {proposed} "
        f"proposed for a call of {calls['type'].iloc[0]} {cost.accepted / count:.1f} stay"
        f"{f'{calls_take}{each}' if draft else ''}"
    )


def _advice(calls: pd.DataFrame, cost: _Cost, asked: Asked, *, by_model: bool) -> Iterator[str]:
    generates = bool((calls["generation"] >= 0).all())
    option = "assistant_model" if by_model else "prompt_lookup_num_tokens"
    yield f"Leave out {option if generates else 'the draft'}."
    causes = cost.causes
    if "rejected" in causes and by_model:
        yield (
            f"{cost.accepted} of {counted(cost.proposed, 'token')} that it proposed stay: a draft "
            "pays where it says what the model says, such as a smaller one of the same family."
        )
    elif "rejected" in causes:
        yield (
            f"{cost.accepted} of {counted(cost.proposed, 'token')} that were looked up stay: that "
            "pays where the answer repeats its prompt."
        )
    if "dear" in causes and by_model:
        each = milliseconds(cost.draft_ns / max(cost.proposed, 1))
        one = milliseconds(cost.check_ns / len(cost.rounds))
        yield (
            f"A token of the draft takes {each}, a call of the model {one}: a draft pays where it "
            "is several times cheaper."
        )
    if not causes:
        yield "Fewer tokens proposed at a time may pay."
