"""The calls of single ranks by time: what they waited before each, and when they were late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs, total
from tracer.analyzers.ranks.evidence import steps_of
from tracer.analyzers.ranks.match import JoinedLane
from tracer.analyzers.ranks.waits import Arrivals, arrivals
from tracer.rank_analysis import Alignment, Interval, Rows, RowStore

# One call of one rank. call and step: equal on all ranks; times on its own clock; margin_ns: 0
# where it was not last; exposed_ns: for how long another rank had nothing to compute meanwhile.
_CALL = np.dtype(
    [
        ("lane", "i4"),
        ("call", "i8"),
        ("start_ns", "i8"),
        ("before_ns", "i8"),
        ("issued_ns", "i8"),
        ("wait_ns", "i8"),
        ("margin_ns", "i8"),
        ("late_ns", "i8"),
        ("exposed_ns", "i8"),
        ("counted", "?"),
        ("step", "i8"),
    ]
)


@dataclass(frozen=True)
class LateCalls:
    """The calls of one rank in all its lanes, by time."""

    rows: Rows
    keys: tuple[str, ...]

    def own_margins(self) -> Longs:
        """How late it was in each call for no other rank's sake: less what it waited in calls of
        other lanes since its last call of this one."""
        rows = self.rows
        waited = np.concatenate([[0], np.cumsum(rows["wait_ns"].clip(0))])
        own = np.zeros(rows.size, dtype=np.int64)
        for code in np.unique(rows["lane"]).tolist():
            mine = np.flatnonzero(rows["lane"] == code)
            since = np.concatenate([[0], mine[:-1] + 1])
            between = waited[mine] - waited[since]
            own[mine] = (rows["margin_ns"][mine] - between).clip(0)
        return own

    def lost_ns(self, chosen: NDArray[np.bool_], own: Longs) -> int:
        """What others lost in these calls by its own lateness: they compute beside a call as long
        as they can, and wait in several at once."""
        rows = self.rows[chosen]
        lost = np.minimum(own[chosen], rows["exposed_ns"])
        return total(rows["start_ns"] - lost, rows["start_ns"])

    def late_in(
        self,
        key: str,
        steps: Sequence[int] | None,
        *,
        least_ns: int = 0,
        together: bool = False,
    ) -> Longs:
        """The calls of a lane in which it was last, by at least so much, the latest first; with
        `steps`, those in which it began these steps; `together`: those in which it came after the
        middle rank."""
        rows = self.rows
        late = (rows["lane"] == self.keys.index(key)) & rows["counted"]
        late &= (rows["late_ns"] if together else rows["margin_ns"]) >= max(least_ns, 1)
        if steps is not None:
            late &= np.isin(rows["step"], np.asarray(steps)) & self._first_in_step(key)
        found = np.flatnonzero(late)
        found = found[np.argsort(-rows["late_ns"][found], kind="stable")]
        calls: Longs = rows["call"][found].astype(np.int64)
        return calls

    def _first_in_step(self, key: str) -> NDArray[np.bool_]:
        rows = self.rows
        mine = np.flatnonzero(rows["lane"] == self.keys.index(key))
        first = np.zeros(rows.size, dtype=bool)
        step = rows["step"][mine]
        first[mine[np.flatnonzero(np.diff(step, prepend=step[:1] - 1) != 0)]] = True
        return first

    def before(self, key: str, calls: Longs) -> list[Interval]:
        """The time before each of these calls, since the collective before it ended."""
        rows = self.rows
        chosen = (rows["lane"] == self.keys.index(key)) & np.isin(rows["call"], calls)
        pairs = zip(
            rows["before_ns"][chosen].tolist(), rows["start_ns"][chosen].tolist(), strict=True
        )
        return [Interval(begin, end) for begin, end in pairs if end > begin]

    def issue_times(self, key: str) -> dict[int, int]:
        """What the host itself took for each call of a lane, since the call before, where both are
        known."""
        rows = self.rows[self.rows["lane"] == self.keys.index(key)]
        rows = rows[np.argsort(rows["call"], kind="stable")]
        follows = np.diff(rows["call"]) == 1
        known = follows & (rows["issued_ns"][1:] != NONE) & (rows["issued_ns"][:-1] != NONE)
        took = np.diff(rows["issued_ns"])[known]
        return dict(zip(rows["call"][1:][known].tolist(), took.tolist(), strict=True))


def late_calls(
    ranks: set[int],
    lanes: Sequence[JoinedLane],
    store: RowStore,
    alignment: Alignment,
    begins: Mapping[str, bool],
) -> dict[int, LateCalls]:
    """All calls of these ranks, by time."""
    pieces: dict[int, list[Rows]] = {rank: [] for rank in ranks}
    for code, lane in enumerate(lanes):
        if not ranks.intersection(lane.ranks):
            continue
        done = 0
        for found in arrivals(lane, store, alignment, begins[lane.key]):
            for place, rank in enumerate(found.calls.ranks):
                if rank in ranks:
                    pieces[rank].append(_piece(found, place, code, done))
            done += found.compared.size
    keys = tuple(lane.key for lane in lanes)
    return {rank: LateCalls(_by_time(held), keys) for rank, held in pieces.items()}


def _piece(found: Arrivals, place: int, code: int, done: int) -> Rows:
    """The calls of one rank among some calls of a lane; `done` calls came before them."""
    here = np.flatnonzero(found.calls.present[place])
    values = found.calls.values[place][here]
    rows = np.zeros(here.size, dtype=_CALL)
    rows["lane"], rows["call"] = code, done + here
    for name in ("start_ns", "before_ns", "issued_ns"):
        rows[name] = values[name]
    rows["step"] = steps_of(found)[here]
    rows["wait_ns"] = found.wait_ns[place][here]
    rows["margin_ns"] = np.where(found.last == place, found.margin_ns, 0)[here]
    rows["late_ns"] = found.late_ns[place][here]
    rows["exposed_ns"] = found.exposed_of_others(place)[here]
    rows["counted"] = found.counted[here]
    return rows


def _by_time(pieces: Sequence[Rows]) -> Rows:
    rows = np.concatenate(pieces) if pieces else np.zeros(0, dtype=_CALL)
    ordered: Rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    return ordered
