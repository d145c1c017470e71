"""Rule loop.evaluation: passes over held-out data that a training loop makes every few steps.

They are work that somebody wants, of which no other rule speaks; how often they come decides what
they cost. What holds them up inside, such as a wait in each call, other rules judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log10
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.accounting import settle_steps, steps_at
from tracer.analyzers.context import Context
from tracer.analyzers.facts.callers import asked_from
from tracer.analyzers.intervals import NONE, Longs, covered, union
from tracer.analyzers.rules.judging import (
    between_steps,
    counted,
    milliseconds,
    ratio_of,
    verdict,
)
from tracer.analyzers.steps.call_phases import EVALUATION, call_phases, learning_ns
from tracer.findings import Check, Finding

RULE = "loop.evaluation"
# Shares of the window from which it is told at all, and from which it is worth a change.
_NOTABLE, _LARGE = 0.03, 0.10
# What it may well take of a loop.
_WANTED = 0.05
# So much idle of the device within it, and larger batches would fill some.
_IDLE = 0.3


def judge_evaluation(context: Context, analysis: Analysis) -> RuleResult:
    """By the steps that evaluate; where steps are larger, by the calls in evaluation mode of models
    that learn in training mode."""
    phases = set(analysis.steps["phase"].astype(str))
    if "training" not in phases:
        return RuleResult(checks=(Check(RULE, "clear"),))
    if EVALUATION not in phases and not len(analysis.trace.table("root_calls")):
        reason = "which calls of a model learn is recorded live only"
        return RuleResult(checks=(Check(RULE, "not_checked", reason),))
    passes = _passes(context, analysis)
    told = (ratio_of(passes.cost_ns, analysis) or 0.0) >= _NOTABLE
    findings = (_finding(context, analysis, passes),) if told else ()
    return RuleResult(findings, (verdict(RULE, findings),))


@dataclass(frozen=True)
class _Passes:
    """What evaluates in the window, piece by piece: a step or a call."""

    start_ns: Longs  # of stretches of pieces with nothing else between them, as measured
    end_ns: Longs
    after: Longs  # how many training steps had begun before each piece
    training: int  # training steps of the window
    devices: int
    steps: tuple[int, ...]  # that hold pieces
    between: dict[str, int]  # of the finding's detail: how much lies in no step
    calls: pd.DataFrame  # the calls of models that evaluate
    others: pd.DataFrame  # and those that learn

    @property
    def count(self) -> int:
        """What runs after the same training step, or within it, is one pass."""
        return int(np.unique(self.after).size)

    @property
    def cost_ns(self) -> int:
        """Over all devices, as the window is."""
        return int((self.end_ns - self.start_ns).sum()) * self.devices

    @property
    def each_ns(self) -> int:
        return self.cost_ns // max(self.devices * self.count, 1)

    @property
    def graded(self) -> int:
        """How many calls autograd recorded."""
        return int((self.calls["graded"] == 1).sum())

    @property
    def every(self) -> int | None:
        """Training steps from one pass to the next; None where there is no next."""
        between = np.diff(np.unique(self.after))
        return int(np.median(between)) if between.size else None


class _Pieces(NamedTuple):
    """Begin and end as measured; begin on the host, of these and of what else the loop calls."""

    start_ns: Longs
    end_ns: Longs
    host_ns: Longs
    others_ns: Longs


def _passes(context: Context, analysis: Analysis) -> _Passes:
    steps = analysis.steps
    phases = steps["phase"].astype(str).to_numpy()
    table = context.work.trace.table("root_calls")
    told = call_phases(table, learning_ns(context.work.trace))
    evaluates = np.array([call.name == EVALUATION for call in told], dtype=bool)
    if (phases == EVALUATION).any():
        pieces = _of_steps(steps, phases == EVALUATION)
        evaluates &= _within(table, steps[phases == EVALUATION])
    else:
        first, last = context.plan.window
        evaluates &= np.array([call.aside for call in told], dtype=bool)
        begins = table["start_ns"].to_numpy()
        evaluates &= (begins >= first) & (begins < last)
        pieces = _of_calls(context, table, evaluates)
    begun = np.sort(steps["announced_ns"].to_numpy()[phases == "training"])
    start, end = _stretches(pieces)
    held = steps_at(pieces.host_ns, *_on_host(steps))
    return _Passes(
        start,
        end,
        np.searchsorted(begun, pieces.host_ns, side="right"),
        int(begun.size),
        max(analysis.window.devices, 1),
        tuple(np.unique(held[held != NONE]).tolist()),
        _between(analysis, start, end),
        table[evaluates],
        table[~evaluates & (table["graded"] == 1).to_numpy()],
    )


def _of_steps(steps: pd.DataFrame, mine: NDArray[np.bool_]) -> _Pieces:
    start, host = steps["start_ns"].to_numpy(), steps["announced_ns"].to_numpy()
    end = start + steps["wall_ns"].to_numpy()
    return _Pieces(start[mine], end[mine], host[mine], host[~mine])


def _within(calls: pd.DataFrame, steps: pd.DataFrame) -> NDArray[np.bool_]:
    at = steps_at(calls["start_ns"].to_numpy(), *_on_host(steps))
    inside: NDArray[np.bool_] = at != NONE
    return inside


def _on_host(steps: pd.DataFrame) -> tuple[Longs, Longs]:
    return steps["announced_ns"].to_numpy(), steps["host_end_ns"].to_numpy() + 1


def _between(analysis: Analysis, start: Longs, end: Longs) -> dict[str, int]:
    begin = analysis.steps["start_ns"].to_numpy()
    within = covered(start, end, *union(begin, begin + analysis.steps["wall_ns"].to_numpy()))
    return between_steps(np.full(start.size, NONE), end - start - within)


def _of_calls(context: Context, calls: pd.DataFrame, mine: NDArray[np.bool_]) -> _Pieces:
    """From the end of the device work that was launched before a call to the end of its own."""
    host, host_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    work, begin = context.work, context.plan.window[0]
    edges = np.unique(np.concatenate([[begin], host[mine], host_end[mine]]))
    asked = work.site if work.cpu_only else work.launch
    after = np.append(edges[1:], np.iinfo(np.int64).max)
    at = steps_at(work.trace.start_ns[np.maximum(asked, 0)], edges, after)
    at = np.where((asked == NONE) | work.orphaned, NONE, at)
    start, end = settle_steps(edges, np.append(edges[1:], edges[-1]), at, context.lanes.end_ns)
    rows = np.searchsorted(edges, host[mine])
    return _Pieces(start[rows], end[rows], host[mine], host[~mine])


def _stretches(pieces: _Pieces) -> tuple[Longs, Longs]:
    """Pieces that follow each other with nothing else between them make one, with what the loop
    does from one to the next, such as reading a loss."""
    place = np.searchsorted(np.sort(pieces.others_ns), pieces.host_ns)
    order = np.argsort(pieces.host_ns, kind="stable")
    start, end, place = pieces.start_ns[order], pieces.end_ns[order], place[order]
    alone = np.diff(place) != 0
    first, last = np.concatenate([[True], alone]), np.concatenate([alone, [True]])
    return (start[first], end[last]) if start.size else (start, end)


def _finding(context: Context, analysis: Analysis, passes: _Passes) -> Finding:
    cost, every = passes.cost_ns, passes.every
    ratio = ratio_of(cost, analysis) or 0.0
    wanted = _wanted_every(analysis, passes)
    asked = asked_from(passes.calls["callers"].astype(str), passes.others["callers"].astype(str))
    idle = _idle_ratio(context, analysis, passes)
    spared = every is not None and every < wanted
    return Finding(
        rule=RULE,
        severity="warning" if every is not None and ratio >= _LARGE else "info",
        title=_title(passes, ratio, asked.function),
        count=passes.count,
        cost_ns=cost,
        ratio=ratio,
        steps=passes.steps,
        where=asked.where,
        detail={
            "every_steps": every,
            "training_steps": passes.training,
            "calls": len(passes.calls),
            "recorded_by_autograd": passes.graded,
            "each_ns": passes.each_ns,
            "idle_ratio": idle,
            **passes.between,
            "gain_basis": f"computed: a pass every {wanted} training steps" if spared else None,
        },
        advice=" ".join(_advice(passes, wanted if spared else None, idle)),
        gain_ns=round(cost * (1 - every / wanted)) if every is not None and spared else None,
    )


def _wanted_every(analysis: Analysis, passes: _Passes) -> int:
    """A round number of training steps from one pass to the next with which passes as long as these
    take as much of the loop as they may."""
    rest = (analysis.window.capacity_ns - passes.cost_ns) / passes.training
    least = passes.cost_ns / passes.count * (1 - _WANTED) / (_WANTED * max(rest, 1.0))
    power = 10 ** max(ceil(log10(max(least, 1.0))) - 1, 0)
    return next(int(n * power) for n in (1, 2, 5, 10) if n * power >= least)


def _idle_ratio(context: Context, analysis: Analysis, passes: _Passes) -> float | None:
    """How much of these passes the device is idle; None where that was not recorded."""
    if not analysis.accounted or analysis.cpu_only:
        return None
    gaps = context.gaps
    spans = union(passes.start_ns, passes.end_ns)
    return int(covered(gaps.start_ns, gaps.end_ns, *spans).sum()) / max(passes.cost_ns, 1)


def _title(passes: _Passes, ratio: float, function: str) -> str:
    named = f"evaluation in {function}" if function else "evaluation"
    several = counted(round(len(passes.calls) / passes.count), "call")
    calls = f" in {several} of the model" if len(passes.calls) else ""
    if passes.every is None:
        beside = counted(passes.training, "training step")
        return f"one {named} takes {ratio:.0%} of the time{calls}, beside {beside}"
    often = "every training step" if passes.every == 1 else f"every {passes.every} training steps"
    each = milliseconds(passes.each_ns)
    return f"{named} takes {ratio:.0%} of the time: after {often}, {each} at a time{calls}"


def _advice(passes: _Passes, wanted: int | None, idle: float | None) -> Iterator[str]:
    several = len(passes.calls) > passes.count
    if passes.every is None:
        yield "Record more of the loop: one pass does not tell how often it comes back."
    if wanted is not None:
        yield (
            f"Evaluate less often: every {wanted} training steps it would take at most "
            f"{_WANTED:.0%} of the time."
        )
    if wanted is not None and several:
        yield "Fewer batches at a time cost less in proportion."
    if idle is not None and idle >= _IDLE and several:
        yield (
            f"The device is idle {idle:.0%} of it: larger batches fill some of that, since nothing "
            "is kept for a backward pass."
        )
    if passes.graded:
        yield (
            "Run it under torch.inference_mode(): autograd records "
            f"{passes.graded} of its calls, and nothing learns from them."
        )
