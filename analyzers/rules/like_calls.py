"""Attention of calls of a model that were not looked at, told by calls that are alike.

A recorder notes only some of the calls of a model that get as much to do, since a note costs the
program more than the operator's range. Where two such calls run the same operators of attention in
the same order, the same lines called them with the same arguments; unless the next call that was
noted is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracer.analyzers.intervals import NONE, Longs
from tracer.events import Trace

# What is the same of calls that get as much to do.
_ALIKE = ("root", "type", "part", "thread", "batch", "tokens", "cached", "trains")


class _Call(NamedTuple):
    """The attention of one call of a model."""

    operators: tuple[int, ...]  # outermost, in order
    names: tuple[int, ...]  # of all operators of attention, those inside them too
    notes: tuple[int, ...]  # of each outermost one; -1: none

    @property
    def is_noted(self) -> bool:
        return NONE not in self.notes

    @property
    def is_bare(self) -> bool:
        return all(note == NONE for note in self.notes)


@dataclass(frozen=True)
class LikeCalls:
    """`calls`: rows of outermost operators of attention; `inside`: of these and all operators in
    them; `notes`: the table; `noted`: row of an outermost operator -> row of its note."""

    trace: Trace
    calls: Longs
    inside: Longs
    notes: pd.DataFrame
    noted: Mapping[int, int]

    def told(self) -> dict[int, int]:
        """Rows of operators without a note, each with the note that tells of it."""
        if not self.noted or len(self.noted) == self.calls.size:
            return {}
        out: dict[int, int] = {}
        for alike in self._by_kind().values():
            for before, call, after in _between(alike):
                if call.names == before.names and (after is None or self._agree(before, after)):
                    out.update(zip(call.operators, before.notes, strict=True))
        return out

    def _agree(self, one: _Call, other: _Call) -> bool:
        if one.names != other.names:
            return False
        same: bool = (self._kinds[list(one.notes)] == self._kinds[list(other.notes)]).all()
        return bool(same)

    @cached_property
    def _kinds(self) -> Longs:
        """A number for each note: the same where everything but its time is."""
        columns = [c for c in self.notes.columns if c not in ("time_ns", "thread")]
        numbers = self.notes.groupby(columns, observed=True, sort=False).ngroup()
        return np.asarray(numbers, dtype=np.int64)

    def _by_kind(self) -> dict[Hashable, list[_Call]]:
        """The calls of models that have attention, those that are alike together, in order."""
        table = self.trace.table("root_calls")
        keys = zip(*(table[name].tolist() for name in _ALIKE), strict=True)
        spans = zip(table["start_ns"].tolist(), table["end_ns"].tolist(), strict=True)
        out: dict[Hashable, list[_Call]] = defaultdict(list)
        for key, span, thread in zip(keys, spans, table["thread"].tolist(), strict=True):
            call = self._call(thread, *span)
            if call.operators:
                out[key].append(call)
        return out

    def _call(self, thread: int, start_ns: int, end_ns: int) -> _Call:
        operators = self._within(self._outermost, thread, start_ns, end_ns)
        names = self.trace.name_codes[self._within(self._all, thread, start_ns, end_ns)]
        notes = tuple(self.noted.get(row, NONE) for row in operators.tolist())
        return _Call(tuple(operators.tolist()), tuple(names.tolist()), notes)

    def _within(self, rows: Mapping[int, Longs], thread: int, start_ns: int, end_ns: int) -> Longs:
        own = rows.get(thread)
        if own is None:
            return np.zeros(0, dtype=np.int64)
        first, last = np.searchsorted(self.trace.start_ns[own], (start_ns, end_ns))
        return own[first:last]

    @cached_property
    def _outermost(self) -> dict[int, Longs]:
        return self._of_threads(self.calls)

    @cached_property
    def _all(self) -> dict[int, Longs]:
        return self._of_threads(self.inside)

    def _of_threads(self, rows: Longs) -> dict[int, Longs]:
        """Rows in order of start, by the number that the system has for their thread."""
        trace = self.trace
        rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
        tids = trace.table("threads")["tid"].to_numpy()[trace.events["thread"].to_numpy()[rows]]
        return {tid: rows[tids == tid] for tid in np.unique(tids).tolist()}


def _between(calls: list[_Call]) -> Iterator[tuple[_Call, _Call, _Call | None]]:
    """Each call without any note, with the nearest ones before and after it that were noted."""
    after: list[_Call | None] = []
    following: _Call | None = None
    for call in reversed(calls):
        after.append(following)
        following = call if call.is_noted else following
    before: _Call | None = None
    for call, later in zip(calls, reversed(after), strict=True):
        if call.is_noted:
            before = call
        elif call.is_bare and before is not None:
            yield before, call, later
