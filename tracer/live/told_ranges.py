"""Ranges of modules in calls that rested, told by calls that were looked at.

A call that rested called the modules of the look before it, in the same order. Where it also ran
the same operators, nested alike, each range begins and ends between the same two as there, and as
far along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.events import EVENTS, KIND_CODE, NONE, Trace, make_table

Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a model: when, and rows in it in order of start."""

    trace: Trace
    start_ns: int
    end_ns: int
    rests: bool
    operators: Longs
    modules: Longs  # of one that rests only the model's own, if that has a range

    def bounds(self, own: int) -> Longs:
        """Starts and then ends, from the call's own start: of the call, of the first modules, so
        many, and of the operators."""
        trace, rows = self.trace, np.concatenate((self.modules[:own], self.operators))
        starts = np.concatenate(([self.start_ns], trace.start_ns[rows]))
        ends = np.concatenate(([self.end_ns], trace.end_ns[rows]))
        bounds: Longs = np.concatenate((starts, ends)) - self.start_ns
        return bounds

    def runs_like(self, look: _Call) -> bool:
        """Whether the operators of the look ran, nested as there."""
        own = self.modules.size
        if not self._same_names(self.operators, look.operators):
            return False
        if not self._same_names(self.modules, look.modules[:own]):
            return False
        there, here = look.bounds(own), self.bounds(own)
        return bool((np.diff(here[np.argsort(there, kind="stable")]) >= 0).all())

    def _same_names(self, rows: Longs, others: Longs) -> bool:
        codes = self.trace.name_codes
        return np.array_equal(codes[rows], codes[others])

    def told_by(self, look: _Call) -> _Ranges:
        """The look's modules, in this call's time."""
        own = self.modules.size
        trace, rows, bounds = self.trace, look.modules[own:], look.bounds(own)
        order = np.argsort(bounds, kind="stable")
        there = np.stack((trace.start_ns[rows], trace.end_ns[rows])) - look.start_ns
        here = np.interp(there, bounds[order], self.bounds(own)[order])
        # Begun after the begin of what they are in, and ended before its end.
        starts = np.ceil(here[0]).astype(np.int64)
        ends = np.maximum(np.floor(here[1]).astype(np.int64), starts)
        return _Ranges(
            trace.name_codes[rows].astype(np.int64),
            starts + self.start_ns,
            ends + self.start_ns,
            trace.events["thread"].to_numpy()[rows].astype(np.int64),
        )


def tell_ranges(
    trace: Trace, looks: pd.DataFrame, left_out: Callable[[str], bool] = lambda name: False
) -> tuple[Trace, int]:
    """The trace with the ranges that are told, and in how many calls they could not be. `looks`: a
    row a call with start_ns, end_ns, thread (the system's number), kind, rests and alike.
    `left_out`: operators of this name are not recorded in a call that rests."""
    if not looks["rests"].any() or not trace.rows("module").size:
        return trace, 0
    told: list[_Ranges] = []
    unlike = int((looks["rests"] & ~looks["alike"]).sum())
    # Of most kinds of a program whose sizes change no call rests.
    of_use = looks[looks["kind"].isin(looks["kind"][looks["rests"] & looks["alike"]])]
    for system in of_use["thread"].unique().tolist():
        rows = _rows_of_thread(trace, system, left_out)
        for _, of_kind in of_use[of_use["thread"] == system].groupby("kind", sort=False):
            for call, look in _told_by(_calls(trace, rows, of_kind)):
                if call.runs_like(look):
                    told.append(call.told_by(look))
                else:
                    unlike += 1
    return (_with(trace, told) if told else trace), unlike


def _rows_of_thread(
    trace: Trace, system: int, left_out: Callable[[str], bool]
) -> tuple[Longs, Longs]:
    """Operators and modules of a thread, in order of start."""
    threads = np.flatnonzero(trace.table("threads")["tid"].to_numpy() == system)
    own = np.isin(trace.events["thread"].to_numpy(), threads)
    operators = np.flatnonzero(own & trace.of_kind("operator") & ~trace.named(left_out, "operator"))
    modules = trace.rows("module")
    return operators, modules[own[modules]]


def _calls(trace: Trace, rows: tuple[Longs, Longs], looks: pd.DataFrame) -> list[_Call]:
    """The calls of one kind that were looked at, or can be told."""
    known = looks[~looks["rests"] | looks["alike"]]
    out: list[_Call] = []
    for start_ns, end_ns, rests in known[["start_ns", "end_ns", "rests"]].to_numpy().tolist():
        operators, modules = (_between(trace, of_kind, start_ns, end_ns) for of_kind in rows)
        out.append(_Call(trace, start_ns, end_ns, bool(rests), operators, modules))
    return out


def _between(trace: Trace, rows: Longs, start_ns: int, end_ns: int) -> Longs:
    first, last = np.searchsorted(trace.start_ns[rows], (start_ns, end_ns))
    return rows[first:last]


def _told_by(calls: list[_Call]) -> Iterator[tuple[_Call, _Call]]:
    """Each call that rested, with the look before it, where that called modules."""
    look: _Call | None = None
    for call in calls:
        if not call.rests:
            look = call
        elif look is not None and look.modules.size > call.modules.size:
            yield call, look


class _Ranges(NamedTuple):
    """Ranges of modules on one thread: their names as codes, starts and ends."""

    names: Longs
    starts: Longs
    ends: Longs
    threads: Longs


def _with(trace: Trace, told: list[_Ranges]) -> Trace:
    """The trace with these rows; what tables say of events stays with them."""
    ranges = _Ranges(*map(np.concatenate, zip(*told, strict=True)))
    order = np.lexsort((-ranges.ends, ranges.starts))
    names, starts, ends, threads = (column[order] for column in ranges)
    # Before what begins with them: that is in them.
    at = np.searchsorted(trace.start_ns, starts, side="left")
    values = {
        "kind": np.full(starts.size, KIND_CODE["module"]),
        "name": names,
        "start_ns": starts,
        "duration_ns": ends - starts,
        "thread": threads,
    }
    columns: dict[str, Any] = {}
    for name in EVENTS:
        column = trace.events[name]
        known = column.cat.codes if name in ("kind", "name") else column
        wide = known.to_numpy().astype(np.int64)  # what is added may be longer than all there is
        columns[name] = np.insert(wide, at, values.get(name, NONE))
    columns["name"] = pd.Categorical.from_codes(
        columns["name"], categories=trace.events["name"].cat.categories
    )
    moved = np.arange(len(trace.events))
    moved += np.searchsorted(at, moved, side="right")
    tables = {
        name: table.assign(event=moved[table["event"].to_numpy()]) if "event" in table else table
        for name, table in trace.tables.items()
    }
    return replace(trace, events=make_table(EVENTS, columns), tables=tables)
