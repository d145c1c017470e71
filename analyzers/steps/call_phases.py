"""The phase of each call of a root module, from what the recorder saw of the calls.

A call with a cache that takes several new tokens either goes on with a prompt (in chunks, or the
next turn of a conversation), or checks tokens that a draft proposed (see `drafts`). One call alone
does not tell which: the calls around it do. Nor does it tell an evaluation: that is a
call that learns nothing, of a model that learns elsewhere in the recording. Without a cache, a call
that takes the tokens of the one before and those that it chose decodes, whatever it computes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracer.analysis import DRAFT
from tracer.analyzers.facts.host import BACKWARD_NODE
from tracer.analyzers.facts.modules import is_further_root
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.steps.drafts import Call, drafted, find_drafts
from tracer.analyzers.steps.growing_calls import growing_runs
from tracer.events import Trace

EVALUATION = "evaluation"
_OF_DRAFTS = {"decode": DRAFT, "prefill": f"{DRAFT} prefill"}
_OPTIMIZER = "Optimizer.step#"
_NEVER: Longs = np.zeros(0, dtype=np.int64)


class CallPhase(NamedTuple):
    """aside: an evaluation for sure, since the model learns in training mode and was in evaluation
    mode then. Any other may be part of a training step, as a reference that is asked. new_tokens:
    of one sequence, where others that the call takes were computed before; else -1. kept: tokens of
    a sequence that are left of a draft, with the one that the check adds; else -1."""

    name: str
    aside: bool = False
    new_tokens: int = NONE
    kept: int = NONE


def learning_ns(trace: Trace) -> Longs:
    """When backward passes and steps of optimizers began, in order."""
    learns = trace.named(
        lambda name: name.startswith((BACKWARD_NODE, _OPTIMIZER)), "operator", "annotation"
    )
    starts: Longs = np.sort(trace.start_ns[learns])
    return starts


def call_phases(table: pd.DataFrame, learning: Longs = _NEVER) -> list[CallPhase]:
    """The phase of each row of `root_calls`, which is in order of time. `learning`: when something
    was learned; nothing is an evaluation where nothing is."""
    columns = (table[name].tolist() for name in Call._fields)
    calls = [Call(*values) for values in zip(*columns, strict=True)]
    checking = drafted(calls) | _within_generations(calls)
    runs = growing_runs(table.reset_index(drop=True))
    continued = _continued(calls) | {run.rows[0] for run in runs}
    phases = [_phase(call, i in checking, i in continued) for i, call in enumerate(calls)]
    for run in runs:
        for i in run.rows[1:]:
            phases[i] = CallPhase("decode", new_tokens=run.added)
    for i, aside in _evaluations(calls, learning).items():
        if phases[i].name != "decode" and i not in continued:
            phases[i] = CallPhase(EVALUATION, aside)
    return _with_drafts(calls, phases)


def _with_drafts(calls: Sequence[Call], phases: Sequence[CallPhase]) -> list[CallPhase]:
    """The phases, those of a draft by names of their own, and what is left of it."""
    drafts = find_drafts(calls)
    return [
        phase._replace(name=_OF_DRAFTS.get(phase.name, phase.name))
        if i in drafts.proposes
        else phase._replace(kept=drafts.kept.get(i, NONE) if phase.name == "decode" else NONE)
        for i, phase in enumerate(phases)
    ]


def _phase(call: Call, checks_draft: bool, continued: bool) -> CallPhase:
    if call.graded == 1:
        return CallPhase("forward")
    if checks_draft or (call.cached == 1 and call.tokens == 1):
        return CallPhase("decode")
    # A prompt leaves a cache behind; without one the same arithmetic is a pass of any model. Older
    # recordings do not tell.
    prompt = call.cached == 0 and call.tokens >= 1 and (call.fills != 0 or continued)
    if call.cached == 1 or prompt or call.generation >= 0:
        return CallPhase("prefill")
    return CallPhase("forward")


def _continued(calls: Sequence[Call]) -> set[int]:
    """Calls after which the same root is called with a filled cache."""
    last: dict[tuple[int, str], int] = {}
    found: set[int] = set()
    for i, call in enumerate(calls):
        before = last.get((call.thread, call.root))
        last[call.thread, call.root] = i
        if before is not None and call.cached == 1:
            found.add(before)
    return found


def _evaluations(calls: Sequence[Call], learning: Longs) -> dict[int, bool]:
    """Calls outside a generation that learn nothing, of a model that learns or one of its class;
    and whether the mode that they are in says so, too."""
    if not learning.size:
        return {}
    learned = _learned(calls, learning)
    learners = [call for call, learns in zip(calls, learned, strict=True) if learns]
    switch = {call.root for call in learners if call.trains == 1}
    alike: dict[tuple[str, str], bool] = {}
    found: dict[int, bool] = {}
    for i, call in enumerate(calls):
        outside = call.generation < 0 and call.cached != 1 and not learned[i]
        aside = call.trains == 0 and call.root in switch
        kind = call.root, call.type
        if outside and (aside or call.graded == 0):
            if kind not in alike:
                alike[kind] = any(_is_of(call, learner) for learner in learners)
            if alike[kind]:
                found[i] = aside
    return found


def _is_of(call: Call, learner: Call) -> bool:
    """Whether a call is one of the same class of models, or of the model within the other."""
    if call.type == learner.type or call.root.startswith(f"{learner.root}."):
        return True
    return not learner.root and not is_further_root(call.root, call.type)


def _learned(calls: Sequence[Call], learning: Longs) -> list[bool]:
    """Which calls autograd recorded to learn by: of those in evaluation mode alone, which record
    for nothing where nobody asks them not to, only those that learning follows at once."""
    starts = [call.start_ns for call in calls[1:]] + [int(learning[-1]) + 1 if calls else 0]
    ends = [call.end_ns for call in calls]
    followed = np.searchsorted(learning, ends) < np.searchsorted(learning, starts)
    return [
        call.graded == 1 and (call.trains != 0 or bool(follows))
        for call, follows in zip(calls, followed, strict=True)
    ]


def _within_generations(calls: Sequence[Call]) -> set[int]:
    """Within one call of `generate` all that comes after the prompt decodes."""
    rows: dict[tuple[int, str, int], list[int]] = {}
    for i, call in enumerate(calls):
        if call.generation >= 0:
            rows.setdefault((call.thread, call.root, call.generation), []).append(i)
    found: set[int] = set()
    for mine in rows.values():
        after = mine[_prompt_calls([calls[i] for i in mine]) :]
        # A cache whose shapes do not tell whether it is filled, as a state, is by then.
        found |= {i for i in after if calls[i].several or calls[i].tokens == 1}
    return found


def _prompt_calls(calls: Sequence[Call]) -> int:
    """How many calls at the beginning of a generation read the prompt: the first, those of as many
    tokens after it, and a rest, unless more such calls follow and no chunk stands before it."""
    count = 1
    while count < len(calls) and calls[count].several and calls[count].tokens == calls[0].tokens:
        count += 1
    rest = count < len(calls) and calls[count].several and calls[count].tokens < calls[0].tokens
    followed = any(call.several for call in calls[count + 1 :])
    return count + int(rest and (count > 1 or not followed))
