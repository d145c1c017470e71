"""Ranks side by side: a row a rank, a cell a step, a digit for the tenths of it spent waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from tracer.analysis import Analysis
from tracer.exporters.format import UNKNOWN, duration_text
from tracer.tui.look import Look
from tracer.tui.model.lines import BOLD, DIM, GUTTER, Line, Target, heading, plain, wrapped
from tracer.tui.model.overview import bins_of
from tracer.tui.model.places import RecordingNumber
from tracer.tui.model.table import cut

_LABEL = 22


@dataclass(frozen=True)
class Alignment:
    """How the clocks of the ranks were brought together: `residual_ns` is what is left of it."""

    offset_ns: Mapping[int, int]
    residual_ns: int | None = None
    basis: str = ""


@dataclass(frozen=True)
class Member:
    """One recording of several: its analysis, or why there is none."""

    name: str
    analysis: Analysis | None
    reason: str = ""

    @property
    def rank(self) -> int | None:
        return None if self.analysis is None else self.analysis.trace.meta.rank


@dataclass(frozen=True)
class RankRow:
    """One row: tenths of each step (-1 unknown), and their time in all."""

    label: str
    tenths: NDArray[np.int64]
    total_ns: int | None
    number: int  # of the recording; -1: missing
    reason: str = ""
    straggler: bool = False


@dataclass(frozen=True)
class RankMap:
    """All rows, what their digits mean, and how far they can be compared."""

    rows: Sequence[RankRow]
    meaning: str
    caveat: str = ""
    ranked: bool = False
    missing: Sequence[int] = field(default_factory=tuple)


def build_ranks(members: Sequence[Member], alignment: Alignment | None = None) -> RankMap:
    """The rows of all recordings, missing ranks among them."""
    waits_known = _waits_known(members)
    stragglers = _stragglers(members)
    rows = [_row(number, member, waits_known, stragglers) for number, member in enumerate(members)]
    order = sorted(range(len(rows)), key=lambda at: _order_key(members[at], at))
    rows = [rows[at] for at in order]
    missing = _missing_ranks(members)
    rows += [
        RankRow(f"rank {rank}", np.zeros(0, dtype=np.int64), None, -1, "no recording of it")
        for rank in missing
    ]
    if waits_known:
        meaning = "digit = tenths of the step spent waiting for other ranks"
    else:
        meaning = "digit = tenths of the step in exposed communication (waits are not known)"
    return RankMap(rows, meaning, _caveat(members, alignment, waits_known), waits_known, missing)


def _order_key(member: Member, at: int) -> tuple[bool, int, int]:
    return (member.rank is None, member.rank or 0, at)


def _waits_known(members: Sequence[Member]) -> bool:
    tables = [m.analysis.collectives for m in members if m.analysis is not None]
    tables = [table for table in tables if len(table)]
    return bool(tables) and all(bool((table["wait_ns"] >= 0).all()) for table in tables)


def _stragglers(members: Sequence[Member]) -> frozenset[int]:
    found = [f for m in members if m.analysis is not None for f in m.analysis.findings]
    ranks = (f.detail.get("rank") for f in found if f.rule == "comm.straggler")
    return frozenset(int(rank) for rank in ranks if isinstance(rank, int))


def _missing_ranks(members: Sequence[Member]) -> list[int]:
    known = {member.rank for member in members}
    sizes = [m.analysis.trace.meta.world_size or 0 for m in members if m.analysis is not None]
    return [rank for rank in range(max(sizes, default=0)) if rank not in known]


def _row(number: int, member: Member, waits_known: bool, stragglers: frozenset[int]) -> RankRow:
    none = np.zeros(0, dtype=np.int64)
    if member.analysis is None:
        return RankRow(member.name, none, None, number, member.reason or "reading")
    analysis, rank = member.analysis, member.rank
    label = f"rank {rank}" if rank is not None else member.name
    if not len(analysis.collectives):
        return RankRow(label, none, None, number, "no collective in this recording")
    times = _step_times(analysis, "wait_ns" if waits_known else "exposed_ns")
    walls = np.maximum(analysis.steps["wall_ns"].to_numpy(), 1)
    tenths = np.minimum(times * 10 // walls, 9)
    return RankRow(label, tenths, int(times.sum()), number, "", rank in stragglers)


def _step_times(analysis: Analysis, column: str) -> NDArray[np.int64]:
    table = analysis.collectives
    step, times = table["step"].to_numpy(), table[column].to_numpy()
    inside = step >= 0
    sums = np.zeros(len(analysis.steps), dtype=np.int64)
    np.add.at(sums, step[inside], np.maximum(times[inside], 0))
    return sums


def _caveat(members: Sequence[Member], alignment: Alignment | None, waits_known: bool) -> str:
    if len(members) < 2:
        return "one recording: open the recordings of all ranks together to compare them"
    if alignment is not None and alignment.residual_ns is not None:
        return f"clocks aligned within {duration_text(alignment.residual_ns)} {alignment.basis}"
    if not waits_known:
        return "the clocks are not aligned, so nobody is ranked as the straggler"
    return ""


def rank_lines(look: Look, ranks: RankMap, width: int) -> list[Line]:
    """The heat map; a digit never stands by colour alone."""
    room = max(width - GUTTER - _LABEL - 12, 8)
    lines = [heading("RANKS", f"{len(ranks.rows):,}"), *wrapped(ranks.meaning, width)]
    lines += wrapped(ranks.caveat, width, style=DIM) if ranks.caveat else []
    lines += [plain()]
    lines += [_rank_line(look, row, room) for row in ranks.rows]
    if any(len(row.tenths) > room for row in ranks.rows):
        lines += [plain("   one cell = the worst of several steps", DIM)]
    if ranks.ranked and any(row.straggler for row in ranks.rows):
        lines += [plain(), *wrapped("* = the rank that the others wait for", width)]
    return lines


def _rank_line(look: Look, row: RankRow, room: int) -> Line:
    mark = "* " if row.straggler else "  "
    line = Text(" " * GUTTER + f"{mark}{cut(look.name(row.label), _LABEL - 4)}".ljust(_LABEL))
    target = Target("ranks", RecordingNumber(row.number)) if row.number >= 0 else None
    if row.reason:
        line.append("? ", BOLD).append(look.name(row.reason), DIM)
        return Line(line, target, row.label)
    worst = np.maximum.reduceat(row.tenths, bins_of(row.tenths.size, room))
    line.append("".join(str(tenth) for tenth in worst.tolist()))
    line.append(f"  {UNKNOWN if row.total_ns is None else duration_text(row.total_ns)}", DIM)
    return Line(line, target, row.label)
