"""What the calls of a lane say together: sums of waiting and sending, and who came last how often.

One pass over the calls in pieces; what is kept does not grow with the number of calls, but for a
few numbers a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.ranks.align import MEETING
from tracer.analyzers.ranks.match import usual_kinds
from tracer.analyzers.ranks.waits import Arrivals
from tracer.rank_analysis import Alignment, RankSummary

# Calls of a rank and kind of whose times on the wire the median is taken.
_MOST_WIRES = 1024
# Calls of a lane that are remembered as those most waited in.
_MOST_LONGEST = 4096
# In these nobody goes on before the last has come; in others it shows in who had left before.
WAITING_FOR_ALL = (*MEETING, "expert_parallel")
# A receiver always waits for its sender: that is how a pipeline works, and no late rank.
_ONE_WAY = ("send_recv", "kv_transfer")


@dataclass
class WaitSums:
    """Waiting and sending of one rank in one kind of collective; only what could be compared."""

    compared: int = 0
    bytes: int = 0
    wait_ns: int = 0
    wire_ns: int = 0
    exposed_wait_ns: int = 0
    wires: list[Longs] = field(default_factory=list)  # of the first calls, for their median

    @property
    def median_wire_ns(self) -> int | None:
        """The usual time on the wire."""
        return int(np.median(np.concatenate(self.wires))) if self.wires else None


@dataclass
class LaneEvidence:
    """Who came last in the calls of a lane. Lists have a value a rank, in the order of `ranks`."""

    key: str
    ranks: list[int]
    counted: int = 0
    held: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    last: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    margin_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    late: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    behind_ns: int = 0  # of the last after the middle rank, summed
    # How long each waited in the call that began the window.
    entry_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    steps: list[Longs] = field(default_factory=list)  # rows: step, place, calls last, margin
    calls_in: list[Longs] = field(default_factory=list)  # rows: step, counted calls
    beginnings: list[Longs] = field(default_factory=list)  # rows: step, place, margin
    # Rows: margin, place, step of the calls most waited in, the longest first.
    longest: Longs = field(default_factory=lambda: np.zeros((3, 0), dtype=np.int64))
    _step: int = NONE

    def __post_init__(self) -> None:
        for name in ("held", "last", "margin_ns", "late", "entry_ns"):
            setattr(self, name, np.zeros(len(self.ranks), dtype=np.int64))

    def add(self, found: Arrivals, residual: Mapping[int, int], waiting: NDArray[np.bool_]) -> None:
        """Take in some calls; `waiting`: in which of them all wait for the last."""
        if found.entered.any():
            self.entry_ns += found.wait_ns[:, found.entered].clip(0).sum(axis=1)
        counted = found.counted & waiting
        self.counted += int(counted.sum())
        self.held += (found.calls.present & counted).sum(axis=1)
        won = counted & (found.last != NONE)
        np.add.at(self.last, found.last[won], 1)
        np.add.at(self.margin_ns, found.last[won], found.margin_ns[won])
        self._add_longest(found, np.flatnonzero(won))
        limits = np.array([residual[rank] for rank in self.ranks], dtype=np.int64)[:, None]
        self.late += ((found.late_ns > limits) & counted).sum(axis=1)
        self.behind_ns += int(found.late_ns[:, counted].max(axis=0).clip(0).sum())
        self._add_steps(found, counted, won)

    def _add_longest(self, found: Arrivals, rows: Longs) -> None:
        new = np.stack([found.margin_ns[rows], found.last[rows], steps_of(found)[rows]])
        both = np.concatenate([self.longest, new], axis=1)
        self.longest = both[:, np.argsort(-both[0], kind="stable")][:, :_MOST_LONGEST]

    def _add_steps(
        self, found: Arrivals, counted: NDArray[np.bool_], won: NDArray[np.bool_]
    ) -> None:
        step = steps_of(found)
        inside = counted & (step != NONE)
        numbers, calls = np.unique(step[inside], return_counts=True)
        self.calls_in.append(np.stack([numbers, calls]).astype(np.int64))
        rows = np.flatnonzero(inside & won)
        if rows.size:
            pairs = np.stack([step[rows], found.last[rows]])
            distinct, of = np.unique(pairs, axis=1, return_inverse=True)
            count = np.bincount(of.reshape(-1))
            margin = np.zeros(count.size, dtype=np.int64)
            np.add.at(margin, of.reshape(-1), found.margin_ns[rows])
            self.steps.append(np.stack([*distinct, count, margin]).astype(np.int64))
        self._add_beginnings(found, step, counted)

    def _add_beginnings(self, found: Arrivals, step: Longs, counted: NDArray[np.bool_]) -> None:
        """The first call of each step."""
        before = np.concatenate([[self._step], step[:-1]])
        if step.size:
            self._step = int(step[-1])
        first = np.flatnonzero((step != before) & (step != NONE) & counted)
        if first.size:
            rows = np.stack([step[first], found.last[first], found.margin_ns[first]])
            self.beginnings.append(rows.astype(np.int64))


def steps_of(found: Arrivals) -> Longs:
    """The step of each call, as the first rank that has it counts."""
    step = found.calls.take("step")
    first = found.calls.present.argmax(axis=0)
    steps: Longs = step[first, np.arange(step.shape[1])]
    return steps


def add_sums(
    sums: dict[tuple[int, str, str], WaitSums],
    found: Arrivals,
    summaries: Mapping[int, RankSummary],
) -> None:
    """Add the waiting and sending in these calls to the sums by rank, operation and group."""
    exposed, sizes = found.calls.take("exposed_ns"), found.calls.take("bytes")
    kinds = found.calls.take("kind")
    for place, rank in enumerate(found.calls.ranks):
        compared = np.flatnonzero(found.wait_ns[place] != NONE)
        for kind in np.unique(kinds[place][compared]).tolist():
            rows = compared[kinds[place][compared] == kind]
            op, group = summaries[rank].kinds[kind]
            entry = sums.setdefault((rank, op, group), WaitSums())
            wire = found.wire_ns[place][rows]
            entry.compared += rows.size
            entry.bytes += int(sizes[place][rows].sum())
            waits = found.lost_ns(place) if summaries[rank].cpu_only else found.wait_ns[place]
            entry.wait_ns += int(waits[rows].sum())
            entry.wire_ns += int(wire.sum())
            if entry.compared <= _MOST_WIRES:
                entry.wires.append(wire)
            # Compute hides the end of a collective or none of it: what is exposed beyond the time
            # on the wire was waiting for certain.
            waited = np.minimum(found.wait_ns[place][rows], (exposed[place][rows] - wire).clip(0))
            entry.exposed_wait_ns += int(waited.sum())


def in_which_all_wait(
    found: Arrivals, summaries: Mapping[int, RankSummary], alignment: Alignment
) -> NDArray[np.bool_]:
    """Whether nobody goes on in a call before the last has come."""
    kinds: Sequence[tuple[tuple[str, str], ...]] = [summaries[r].kinds for r in found.calls.ranks]
    ops, _ = usual_kinds(found.calls, kinds)
    always: NDArray[np.bool_] = np.array([op in WAITING_FOR_ALL for op in ops], dtype=bool)
    if not alignment.is_firm(found.calls.ranks):
        return always
    never = np.array([op in _ONE_WAY for op in ops], dtype=bool)
    together: NDArray[np.bool_] = always | (found.all_stayed & ~never)
    return together
