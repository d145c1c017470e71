"""Which function ran in a stretch of time, from samples of the stacks (live recordings alone)."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analyzers.facts.waiting_threads import Mask, telling, wait_for_lock, waits
from tracer.analyzers.intervals import NONE, Longs, union
from tracer.analyzers.names.called import advice_on
from tracer.events import Trace
from tracer.findings import Where

# A place that holds this share of the time in which operators run, seen there more than once, is
# where the loop is, and says nothing of a pause; a place is named from so many samples and this
# share of them on, from more where hardly any was taken while operators ran.
_CONTAINER, _LEAST, _MAJORITY, _LEAST_ALONE = 0.3, 2, 0.5, 3
# What of the framework runs operators one after another itself: its caller's line does not.
_RUNS_OPERATORS = r"torch\.(?:Tensor\.backward|autograd|optim|distributed|nn(?!\.functional))\b"
_KINDS = ("function", "line", "library")


class Sampled(NamedTuple):
    """A place that samples saw. `kind`: what of it tells something: the user's "function", the
    "line", since the function is where the loop is, or a function of a "library"."""

    where: Where
    kind: str


class Called(NamedTuple):
    """A function that a line of the user calls; the line."""

    name: str
    line: int


class LockWaits(NamedTuple):
    """How many threads wait for a lock at a line."""

    threads: int
    where: Where


class Samples:
    """Samples of the threads that issue work, and of those that they wait for, each with the place
    that it stands for: the user's innermost function; where the loop itself is in that one, the
    line; where that line does all the work as well, the innermost function of a library.

    `starts`, `ends`: the pauses that are to be explained, in which the host issues nothing.
    """

    def __init__(self, trace: Trace, starts: Longs, ends: Longs) -> None:
        self._trace = trace
        seen = _while_working(trace)
        chosen = telling(seen, seen["thread"].isin(_working(trace)).to_numpy())
        self._locks = seen[wait_for_lock(seen)]
        self._table = seen[chosen].reset_index(drop=True)
        self._time: Longs = self._table["time_ns"].to_numpy()
        self._pauses = starts, ends

    @cached_property
    def _issuing(self) -> NDArray[np.bool_]:
        """Whether each sample was taken where operators run, in no pause. That a device works tells
        nothing of its host, which may have stopped long before."""
        paused = _inside(self._time, *union(*self._pauses))
        issuing: NDArray[np.bool_] = self._in_calls() & ~paused
        return issuing

    def _in_calls(self) -> NDArray[np.bool_]:
        """Whether an operator ran, on whatever thread, or the thread itself called the runtime."""
        trace, thread = self._trace, self._table["thread"].to_numpy()
        inside = self._within(trace.rows("operator"))
        calls = trace.rows("runtime")
        tids = trace.table("threads")["tid"].to_numpy()
        caller = tids[trace.events["thread"].to_numpy()[calls]] if calls.size else calls
        for tid in np.unique(thread).tolist():
            inside |= (thread == tid) & self._within(calls[caller == tid])
        return inside

    def _within(self, rows: Longs) -> NDArray[np.bool_]:
        """Whether each sample was taken in one of these events."""
        return _inside(self._time, *union(self._trace.start_ns[rows], self._trace.end_ns[rows]))

    def __len__(self) -> int:
        return len(self._table)

    def _codes(self, prefix: str, with_line: bool) -> Longs:
        """A number for each sample: of its file and function, or of its file and line; -1: none."""
        table = self._table
        file = table[f"{prefix}file"].astype("category").cat.codes.to_numpy().astype(np.int64)
        column = f"{prefix}line" if with_line else f"{prefix}function"
        other = table[column].astype("category").cat.codes.to_numpy().astype(np.int64)
        codes: Longs = (file << 32) | other
        absent = (table[f"{prefix}file"].astype(str) == "").to_numpy()
        return np.where(absent, NONE, codes)

    def _telling(self, codes: Longs) -> NDArray[np.bool_]:
        """Whether each sample's place is more than where the loop is all the time."""
        known = codes != NONE
        distinct, place = np.unique(codes, return_inverse=True)
        held = np.bincount(place[self._issuing], minlength=distinct.size)
        most = max(_CONTAINER * int(self._issuing.sum()), _LEAST)
        telling: NDArray[np.bool_] = known & (held < most)[place]
        return telling

    @cached_property
    def _keys(self) -> Longs:
        """The place of each sample as a number, its kind included; -1 for none."""
        keys = np.full(len(self), NONE, dtype=np.int64)
        for kind, (prefix, with_line) in enumerate((("", False), ("", True), ("inner_", False))):
            codes = self._codes(prefix, with_line)
            chosen = (keys == NONE) & self._telling(codes)
            if prefix:  # what a model does between its operators is no place to change
                chosen &= ~self._table["inner_function"].astype(str).str.endswith(".forward")
            keys[chosen] = len(_KINDS) * codes[chosen] + kind
        return keys

    def explain(self, starts: Longs, ends: Longs, alike: Longs) -> list[Sampled | None]:
        """The place of each of these stretches, which are in order and apart. `alike`: the same
        number for stretches that have what surrounds them in common: one too short to be met by a
        sample takes the place of most of the time of its like, if there is one."""
        if not len(self) or not starts.size:
            return [None] * int(starts.size)
        row = np.searchsorted(starts, self._time, "right") - 1
        met = np.flatnonzero((row != NONE) & (self._time < ends[np.maximum(row, 0)]))
        seen = self._keys[met]
        distinct, count = np.unique(seen, return_counts=True)
        least = _LEAST if self._issuing.sum() >= _LEAST else _LEAST_ALONE
        seen = np.where(np.isin(seen, distinct[count >= least]), seen, NONE)
        own, _ = _most(row[met], seen, int(starts.size))
        usual, share = _most(alike[row[met]], seen, int(alike.max()) + 1)
        usual = np.where(share >= _MAJORITY, usual, NONE)
        place = np.where(own == NONE, usual[alike], own)
        known = [key for key in np.unique(place).tolist() if key != NONE]
        named = {key: self._where(met[seen == key]) for key in known}
        return [named.get(key) for key in place.tolist()]

    def called(self, starts: Longs, ends: Longs, where: Where) -> Called | None:
        """What a place of the user calls for most of what samples saw of it in these stretches, and
        for little of the time in which operators run: what runs the model is no cause of a pause.
        Of the framework those functions alone are named of which something is known."""
        table = self._table
        if where.file is None or not len(self):
            return None
        _, mine = self.at_place(where, by_line=where.function is None)
        rows = table[mine & _inside(self._time, *union(starts, ends))]
        names = rows["called"].astype(str)
        name, count = max(Counter(names).items(), key=lambda item: item[1], default=("", 0))
        if not name or count < _LEAST or count <= _MAJORITY * len(rows):
            return None
        running = int((table["called"].astype(str) == name)[self._issuing].sum())
        framework = name.startswith("torch.") and not advice_on(name)
        if framework or running >= max(_CONTAINER * int(self._issuing.sum()), _LEAST):
            return None
        return Called(name, int(rows["line"][names == name].mode().iloc[0]))

    def next_look(self, times: Longs) -> Longs:
        """When the stacks were looked at next after each of these times; none is never."""
        looks = np.append(self._time, np.iinfo(np.int64).max - 1)
        return looks[np.searchsorted(self._time, times)]

    def at_place(self, where: Where, *, by_line: bool, prefix: str = "") -> tuple[Longs, Mask]:
        """When samples were taken, and whether each saw this place of the user, or, with the prefix
        "inner_", of a library."""
        table = self._table
        mine = table[f"{prefix}file"].astype(str) == where.file
        if by_line:
            mine &= table[f"{prefix}line"] == where.line
        else:
            mine &= table[f"{prefix}function"].astype(str) == where.function
        return self._time, mine.to_numpy(dtype=bool)

    def _seen_at(self, starts: Longs, ends: Longs, where: Where) -> Longs:
        """The samples of a place, the user's or a library's, in these stretches."""
        inside, by_line = _inside(self._time, *union(starts, ends)), where.function is None
        own = np.flatnonzero(inside & self.at_place(where, by_line=by_line)[1])
        if own.size:
            return own
        _, inner = self.at_place(where, by_line=by_line, prefix="inner_")
        return np.flatnonzero(inside & inner)

    def waits(self, starts: Longs, ends: Longs, where: Where) -> bool:
        """Whether a place waits for another thread in most of what samples saw of it in these
        stretches."""
        rows = self._seen_at(starts, ends, where)
        waiting = int(waits(self._table.iloc[rows]).sum())
        return waiting > _MAJORITY * rows.size

    def lock_waits(self, starts: Longs, ends: Longs, where: Where) -> LockWaits | None:
        """The line at which most threads wait for a lock while this place runs in these stretches,
        and how many usually do."""
        looks = np.unique(self._time[self._seen_at(starts, ends, where)])
        waiting = self._locks[self._locks["time_ns"].isin(looks)]
        if looks.size < _LEAST or not len(waiting):
            return None
        lines = [
            _place_of(waiting.iloc[[row]], "" if user else "inner_")
            for row, user in enumerate((waiting["file"].astype(str) != "").tolist())
        ]
        line, _ = Counter(lines).most_common(1)[0]
        at_line = waiting["time_ns"].to_numpy()[[one == line for one in lines]]
        threads = int(np.median((at_line[:, None] == looks).sum(axis=0)))
        return LockWaits(threads, line) if threads else None

    def _where(self, samples: Longs) -> Sampled:
        """The place of samples that share one: with the line that they were at most often."""
        kind = _KINDS[int(self._keys[samples[0]]) % len(_KINDS)]
        prefix = "inner_" if kind == "library" else ""
        rows = self._table.iloc[samples]
        return Sampled(_place_of(rows, prefix), kind)

    def between_operators(self, starts: Longs, ends: Longs) -> list[tuple[Where, Longs, int]]:
        """Functions of the user that run the code between many short operators themselves, with
        those of these short pauses that lie nearest to their samples, and how many samples."""
        table = self._table
        if not len(self) or not starts.size:
            return []
        own = (table["file"].astype(str) == table["inner_file"].astype(str)) & (
            table["function"].astype(str) == table["inner_function"].astype(str)
        )
        function = table["function"].astype(str)
        own &= ~function.str.endswith(".forward") & (function != "<module>")
        own &= ~waits(table)
        own &= ~table["called"].astype(str).str.match(_RUNS_OPERATORS)
        codes = np.where(own.to_numpy(), self._codes("", False), NONE)
        halfway = (self._time[:-1] + self._time[1:]) // 2
        nearest = np.searchsorted(halfway, (starts + ends) // 2)
        out = []
        for code in np.unique(codes[codes != NONE]).tolist():
            rows = np.flatnonzero(codes == code)
            mine = np.flatnonzero(codes[nearest] == code)
            out.append((_place_of(table.iloc[rows], ""), mine, int(rows.size)))
        return out


def _while_working(trace: Trace) -> pd.DataFrame:
    """The samples from the first work to the last, in order: others are in no step."""
    table = trace.table("stack_samples")
    rows = trace.rows("operator", "runtime")
    if not len(table) or not rows.size:
        return table.iloc[:0]
    first, last = trace.start_ns[rows].min(), trace.end_ns[rows].max()
    inside = table[(table["time_ns"] >= first) & (table["time_ns"] <= last)]
    ordered: pd.DataFrame = inside.sort_values("time_ns").reset_index(drop=True)
    return ordered


def _place_of(rows: pd.DataFrame, prefix: str) -> Where:
    """The place that these samples share, with the line that they were at most often."""
    first, lines = rows.iloc[0], rows[f"{prefix}line"]
    known = lines[lines > 0].mode()
    line = int(known.iloc[0]) if len(known) else None
    return Where(str(first[f"{prefix}file"]), line, str(first[f"{prefix}function"]))


def _most(owner: Longs, keys: Longs, size: int) -> tuple[Longs, NDArray[np.float64]]:
    """For each owner the key that it has most often, -1 for those without any, and its share."""
    best, share = np.full(size, NONE, dtype=np.int64), np.zeros(size)
    if not owner.size:
        return best, share
    total = np.bincount(owner, minlength=size)
    pairs, held = np.unique(np.stack([owner, keys]), axis=1, return_counts=True)
    for at in np.argsort(held, kind="stable").tolist():
        best[pairs[0, at]] = pairs[1, at]
        share[pairs[0, at]] = held[at] / total[pairs[0, at]]
    return best, share


def _working(trace: Trace) -> list[int]:
    """The threads that issue work, as the operating system numbers them."""
    rows = trace.rows("operator", "runtime")
    used = np.unique(trace.events["thread"].to_numpy()[rows])
    tids = trace.table("threads")["tid"].to_numpy()
    return [int(tids[row]) for row in used.tolist() if 0 <= row < tids.size]


def _inside(times: Longs, starts: Longs, ends: Longs) -> NDArray[np.bool_]:
    """Whether each time lies in one of the intervals, which are in order and apart."""
    if not starts.size:
        return np.zeros(times.size, dtype=bool)
    row = np.searchsorted(starts, times, "right") - 1
    inside: NDArray[np.bool_] = (row >= 0) & (times < ends[np.maximum(row, 0)])
    return inside
