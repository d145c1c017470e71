"""What was found out about several ranks of one run: the one result that text and JSON read.

A rank leaves two things behind when its recording was understood: a `RankSummary`, whose size does
not depend on the length of the recording, and rows of its collectives, which stay on disk or with
the worker and are read in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tracer.events import Note
from tracer.findings import Check, Finding

# A collective of one rank, as ranks are compared: ordered by lane, then by `ordinal`, which is the
# recorded sequence number or the position. `like`: a number for operation and size, equal on all
# ranks for the same call. before: when the collective before it on this rank ended, or 0. issued:
# when its host did so, less what that had been held up until then; -1 unknown.
ROW = np.dtype(
    [
        ("ordinal", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("before_ns", "i8"),
        ("issued_ns", "i8"),
        ("exposed_ns", "i8"),
        ("overlapped_ns", "i8"),
        ("bytes", "i8"),
        ("in_elements", "i8"),
        ("out_elements", "i8"),
        ("like", "i8"),
        ("kind", "i4"),
        ("step", "i4"),
    ]
)
Rows = NDArray[np.void]


@dataclass(frozen=True)
class Lane:
    """Collectives of one process group on one rank, which other ranks of it made too.

    `key` is equal on all of them. Rows first to first + count of the rank are this lane's.
    numbered: their ordinals are recorded sequence numbers.
    """

    key: str
    group: str
    description: str
    members: tuple[int, ...]  # empty: not recorded
    first: int
    count: int
    numbered: bool


@dataclass(frozen=True)
class KindTotal:
    """All collectives of one operation and group on one rank. bytes None: not known of all."""

    count: int
    bytes: int | None
    exposed_ns: int
    overlapped_ns: int


@dataclass(frozen=True, eq=False)
class RankSummary:
    """One rank understood. kinds: (operation, group) of each code in the rows' `kind`."""

    rank: int
    path: str
    world_size: int | None
    host: str | None
    clock: str
    coarse: bool
    status: str
    devices: int
    window_start_ns: int
    wall_ns: int
    capacity_ns: int
    busy_ns: int | None
    idle_ns: int | None
    steps: int
    median_step_ns: int | None
    groups_ns: Mapping[str, int] | None  # time of each group
    exposed_ns: int | None
    overlapped_ns: int
    cpu_only: bool
    lanes: tuple[Lane, ...]
    kinds: tuple[tuple[str, str], ...]
    totals: tuple[KindTotal, ...]  # aligned with kinds
    group_sizes: Mapping[str, int]
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    notes: tuple[Note, ...]
    step_times: NDArray[np.int64]  # of its steady steps: wall, compute, idle; as many as are kept
    step_tokens: NDArray[np.int64]  # of the same steps; -1 where not known
    phase_walls: Mapping[str, NDArray[np.int64]]  # of its steady steps by phase: wall
    device: str | None = None
    framework: str | None = None
    answer: str = ""  # what its own report says first


class RowStore(Protocol):
    """Where the rows of all ranks are."""

    def rows(self, rank: int, begin: int, end: int) -> Rows:
        """Rows begin to end of one rank."""
        ...


@dataclass(frozen=True)
class Interval:
    """Time of one rank, in its own clock."""

    start_ns: int
    end_ns: int


# How the name of a block begins that a data loader is in.
IN_LOADER = "in the data loader "


@dataclass(frozen=True)
class Block:
    """One thing that a rank did before it arrived: idle with its cause, as often as about so long,
    `ns` that of the longest; or work, `ns` of all calls together."""

    what: str  # "overhead.host", "ffn.projection"
    name: str  # of the kernel or host event, of a host alone the operators around; "" for none
    ns: int
    count: int
    where: str = ""


@dataclass(frozen=True)
class Doings:
    """How a rank spent some intervals: time by `group.part`, and its longest blocks."""

    total_ns: int
    parts_ns: Mapping[str, int]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Clock:
    """How the clock of a rank differs: time on the reference's clock is
    t - offset_ns - drift x (t - at_ns)."""

    offset_ns: int = 0
    drift: float = 0.0
    at_ns: int = 0

    def aligned(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of this rank on the clock of the reference."""
        shift = np.rint(self.drift * (time_ns - self.at_ns)).astype(np.int64)
        moved: NDArray[np.int64] = time_ns - self.offset_ns - shift
        return moved

    def own(self, time_ns: int) -> int:
        """A time on the clock of the reference, on the clock of this rank."""
        there = time_ns + self.offset_ns
        return there + round(self.drift * (there - self.at_ns))


@dataclass(frozen=True)
class Alignment:
    """Clocks of all ranks that share collectives, each beside that of its reference rank.

    residual_ns: how far ends of one collective still differ. apart: ranks whose clock could not be
    joined to that of most others. firm: the reference of each rank as far as operations show it
    that all members leave together; other operations tell nothing of who left early.
    """

    clocks: Mapping[int, Clock]
    references: Mapping[int, int]
    residual_ns: int | None
    residuals_ns: Mapping[int, int]
    basis: str
    apart: tuple[int, ...] = ()
    firm: Mapping[int, int] = field(default_factory=dict)

    def is_firm(self, ranks: Sequence[int]) -> bool:
        """Whether the clocks of these ranks were joined by what all leave together."""
        return len({self.firm.get(rank, -1) for rank in ranks}) == 1 and ranks[0] in self.firm


@dataclass(frozen=True)
class KindSums:
    """Collectives of one operation and group on one rank. wait_ns, wire_ns None: not comparable."""

    op: str
    group: str
    members: int
    count: int
    bytes: int | None
    exposed_ns: int
    overlapped_ns: int
    exposed_wait_ns: int
    wait_ns: int | None
    wire_ns: int | None
    compared: int = 0
    compared_bytes: int | None = None
    median_wire_ns: int | None = None

    @property
    def algbw_bytes_per_s(self) -> float | None:
        """Bytes over the time on the wire; None where either is not known."""
        if self.compared_bytes is None or not self.wire_ns:
            return None
        return self.compared_bytes * 1e9 / self.wire_ns

    @property
    def busbw_bytes_per_s(self) -> float | None:
        """What crosses the wire of one rank, as nccl-tests count it."""
        algorithm = self.algbw_bytes_per_s
        if algorithm is None or self.members < 1:
            return None
        return algorithm * bus_factor(self.op, self.members)


def bus_factor(op: str, members: int) -> float:
    """Share of the data that crosses the wire of a rank."""
    others = (members - 1) / members
    if op == "all_reduce":
        return 2 * others
    return others if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


@dataclass(frozen=True)
class RankResult:
    """One rank beside the others. last: how often it came last by more than the residual;
    entry_wait: what of its waiting was in the call in which the ranks entered the window."""

    summary: RankSummary
    kinds: tuple[KindSums, ...]
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    wait_ns: int | None
    wire_ns: int | None
    exposed_wait_ns: int
    last: int
    compared: int
    entry_wait_ns: int = 0


@dataclass(frozen=True)
class GroupResult:
    """A process group. kind: TP, DP, PP, EP or "" when nothing tells; basis says what did."""

    name: str
    description: str
    members: tuple[int, ...]
    kind: str
    basis: str
    count: int
    ops: tuple[str, ...]


@dataclass(frozen=True)
class RankAnalysis:
    """Several ranks of one run. behind: ranks that come last and are no slower than the others."""

    ranks: tuple[RankResult, ...]
    alignment: Alignment | None
    groups: tuple[GroupResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[Note, ...] = ()
    imbalance: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    behind: tuple[int, ...] = ()

    @property
    def integrity_status(self) -> str:
        """complete, partial, or unusable: nothing can be said of any device."""
        statuses = [rank.summary.status for rank in self.ranks]
        if statuses and all(status == "unusable" for status in statuses):
            return "unusable"
        partial = any(status != "complete" for status in statuses)
        return "partial" if partial or any(note.partial for note in self.notes) else "complete"


@dataclass(frozen=True)
class JobAmong:
    """A job whose ranks stand among other recordings: which of them, counted from 1, what was found
    out about them, and where `tracer ranks` finds them."""

    numbers: tuple[int, ...]
    found: RankAnalysis
    place: str
