"""Speculative decoding: which calls of a model propose tokens that another checks, and how many
tokens each check went on by.

Nothing recorded names a draft. That two models are called in turns tells it, of which the one takes
what the other proposed since, several tokens at a time; a check keeps as many tokens as there are
more in the cache when the same model is called next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tracer.analyzers.intervals import NONE

# Of the calls of a model with a filled cache so many check tokens, if another drafts for it.
_MOSTLY = 0.5
# Outside a generation two models that are called in turns may be a conversation.
_FEWEST_OUTSIDE = 2


class Call(NamedTuple):
    """What is known of a call; -1 unknown."""

    thread: int
    root: str
    type: str
    start_ns: int
    end_ns: int
    generation: int
    tokens: int
    cached: int
    graded: int
    trains: int
    fills: int
    past: int

    @property
    def several(self) -> bool:
        """Several new tokens beside those of the cache."""
        return self.graded != 1 and self.cached == 1 and self.tokens > 1


class Drafts(NamedTuple):
    """Rows of calls. proposes: of a draft, for whatever; kept: of checks, how many tokens of a
    sequence each went on by, where that is known."""

    proposes: frozenset[int]
    kept: dict[int, int]


def find_drafts(calls: Sequence[Call]) -> Drafts:
    """What each generation, and what lies outside all of them, tells of drafts."""
    proposes: set[int] = set()
    kept: dict[int, int] = {}
    for rows in _series(calls):
        drafts = _drafts(calls, rows)
        mine = {i for i in rows if calls[i].root in drafts}
        proposes |= mine
        kept |= _kept(calls, [i for i in rows if i not in mine])
    return Drafts(frozenset(proposes), kept)


def drafted(calls: Sequence[Call]) -> set[int]:
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


def _series(calls: Sequence[Call]) -> Iterator[list[int]]:
    """The calls of each generation, and those of each thread outside all of them."""
    rows: dict[tuple[int, int], list[int]] = {}
    for i, call in enumerate(calls):
        if call.graded != 1:
            rows.setdefault((call.thread, call.generation), []).append(i)
    yield from rows.values()


def _drafts(calls: Sequence[Call], rows: Sequence[int]) -> set[str]:
    """The roots that propose tokens in such a series. Each model checks what the other proposed
    where one token is proposed at a time: the draft begins then, and the other has the last word,
    with the prompt and what was proposed at once or one check more."""
    checks = Counter(_pairs(calls, rows))
    cached = Counter(calls[i].root for i in rows if calls[i].cached == 1)
    fewest = 1 if calls[rows[0]].generation >= 0 else _FEWEST_OUTSIDE
    drafts: set[str] = set()
    models: set[str] = set()
    for (draft, model), count in checks.most_common():
        enough = count >= max(fewest, _MOSTLY * cached[model])
        if enough and draft not in models and model not in drafts:
            drafts.add(draft)
            models.add(model)
    return drafts


def _pairs(calls: Sequence[Call], rows: Sequence[int]) -> Iterator[tuple[str, str]]:
    """For each check the root that proposed, and the one that checks."""
    since: dict[str, Counter[str]] = {}  # calls of other roots since the last of each
    first: dict[str, int] = {}
    before = ""
    for at, i in enumerate(rows):
        call = calls[i]
        proposed = since.setdefault(call.root, Counter(calls[j].root for j in rows[:at]))
        if at and before != call.root and _checks(call, proposed[before], first.get(before, NONE)):
            yield before, call.root
        for others in since.values():
            others[call.root] += 1
        since[call.root] = Counter()
        first.setdefault(call.root, call.tokens)
        before = call.root


def _checks(call: Call, proposed: int, prompt: int) -> bool:
    """Whether a call takes what was proposed: so many tokens, or the prompt with them. Within one
    generation, words of another vocabulary may be more tokens of this one."""
    if call.cached == 0:
        return 0 < prompt < call.tokens <= prompt + proposed
    return call.several and (call.generation >= 0 or call.tokens <= 1 + proposed)


def _kept(calls: Sequence[Call], rows: Sequence[int]) -> dict[int, int]:
    """By how many tokens the cache grew until the next call of the root. Where one call goes on no
    further than the one before, the root has several caches, as a model that drafts for itself."""
    of_root: dict[str, list[int]] = {}
    for i in rows:
        of_root.setdefault(calls[i].root, []).append(i)
    kept: dict[int, int] = {}
    for mine in of_root.values():
        pairs = [(i, calls[j].past - calls[i].past) for i, j in pairwise(mine) if calls[j].cached]
        known = all(calls[i].past >= 0 for i in mine) and all(grown > 0 for _, grown in pairs)
        kept |= {i: grown for i, grown in pairs if known and _stays(calls[i], grown)}
    return kept


def _stays(call: Call, grown: int) -> bool:
    return call.several and grown <= call.tokens
