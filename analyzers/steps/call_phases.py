"""The phase of each call of a root module, from what the recorder saw of the calls.

A call with a cache that takes several new tokens either goes on with a prompt (in chunks, or the
next turn of a conversation), or checks tokens that a draft proposed (speculative decoding). One
call alone does not tell which: the calls around it do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd


class Call(NamedTuple):
    """What is known of a call; -1 unknown."""

    thread: int
    root: str
    generation: int
    tokens: int
    cached: int
    graded: int

    @property
    def several(self) -> bool:
        """Several new tokens beside those of the cache."""
        return self.graded != 1 and self.cached == 1 and self.tokens > 1


def call_phases(table: pd.DataFrame) -> list[str]:
    """The phase of each row of `root_calls`, which is in order of time."""
    columns = (table[name].tolist() for name in Call._fields)
    calls = [Call(*values) for values in zip(*columns, strict=True)]
    checking = _drafted(calls) | _within_generations(calls)
    return [_phase(call, i in checking) for i, call in enumerate(calls)]


def _phase(call: Call, checks_draft: bool) -> str:
    if call.graded == 1:
        return "forward"
    if checks_draft or (call.cached == 1 and call.tokens == 1):
        return "decode"
    if call.cached == 1 or (call.cached == 0 and call.tokens >= 1) or call.generation >= 0:
        return "prefill"
    return "forward"


def _drafted(calls: Sequence[Call]) -> set[int]:
    """Calls of a root that take at most one token more than another root was called since: that
    one proposed them."""
    last: dict[tuple[int, str], int] = {}
    found: set[int] = set()
    for i, call in enumerate(calls):
        before = last.get((call.thread, call.root), i)
        last[call.thread, call.root] = i
        if call.several and call.tokens <= 1 + _most_calls(calls[before + 1 : i], call.thread):
            found.add(i)
    return found


def _most_calls(between: Sequence[Call], thread: int) -> int:
    """How often the root was called that was called most."""
    counts = Counter(call.root for call in between if call.thread == thread)
    return max(counts.values(), default=0)


def _within_generations(calls: Sequence[Call]) -> set[int]:
    """Within one call of `generate` all that comes after the prompt decodes."""
    rows: dict[tuple[int, str, int], list[int]] = {}
    for i, call in enumerate(calls):
        if call.generation >= 0:
            rows.setdefault((call.thread, call.root, call.generation), []).append(i)
    found: set[int] = set()
    for mine in rows.values():
        after = mine[_prompt_calls([calls[i] for i in mine]) :]
        found |= {i for i in after if calls[i].several}
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
