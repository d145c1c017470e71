"""Collectives: by operation and process group, and the costliest one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracer.analysis import Analysis
from tracer.exporters.format import UNKNOWN, bytes_text, count_text, duration_text
from tracer.exporters.json_report import summed_collectives
from tracer.rank_analysis import KindSums
from tracer.tui.look import Look
from tracer.tui.model.lines import DIM, Line, Target, plain, wrapped
from tracer.tui.model.places import Moment
from tracer.tui.model.table import Column, Table
from tracer.tui.model.titled import titled_lines
from tracer.tui.session import Session

_MOST = 20


@dataclass(frozen=True)
class CollectiveIndex:
    """Collectives summed, and where each sum's rows are."""

    analysis: Analysis
    sums: Sequence[Mapping[str, Any]]
    compared: bool = False  # with the other ranks, so that waits are known

    def rows(self, number: int) -> list[int]:
        """Rows of `collectives` of one sum, the longest exposed first."""
        table = self.analysis.collectives
        item = self.sums[number]
        mine = (table["op"] == item["op"]) & (table["group"] == (item["group"] or ""))
        found = np.flatnonzero(mine.to_numpy())
        exposed = table["exposed_ns"].to_numpy()[found]
        order = np.argsort(-exposed, kind="stable")
        return [int(row) for row in found[order]]


def build_collectives(session: Session) -> CollectiveIndex:
    """Sum the collectives of the shown recording; wait and wire come from the comparison of its
    rank with the others, where there is one."""
    analysis = session.analysis
    assert analysis is not None
    sums: list[dict[str, Any]] = summed_collectives(analysis)
    known = _compared_kinds(session)
    for item in sums:
        kind = known.get((item["op"], item["group"] or ""))
        if kind is not None:
            item |= {"wait_ns": kind.wait_ns, "wire_ns": kind.wire_ns}
            item["busbw_bytes_per_s"] = kind.busbw_bytes_per_s or item["busbw_bytes_per_s"]
    return CollectiveIndex(analysis, sums, bool(known))


def _compared_kinds(session: Session) -> dict[tuple[str, str], KindSums]:
    comparison = session.comparison
    if comparison is None or comparison.ranks.alignment is None:
        return {}
    shown = next((r for r, n in comparison.numbers.items() if n == session.shown), None)
    found = [r for r in comparison.ranks.ranks if r.summary.rank == shown]
    return {(kind.op, kind.group): kind for result in found for kind in result.kinds}


def collectives_table(look: Look, index: CollectiveIndex) -> Table:
    """A row for each operation and process group; Enter opens the costliest of them."""
    sums = index.sums

    def column(key: str, title: str, values: list[Any], text: Any, rank: int = 0) -> Column:
        numbers = np.array([-1.0 if v is None else float(v) for v in values])
        return Column(key, title, [text(v) for v in values], numbers, rank=rank)

    def values(key: str) -> list[Any]:
        return [item[key] for item in sums]

    columns = (
        Column("op", "operation", [str(item["op"]) for item in sums], None, "left"),
        Column("group", "group", [look.name(str(item["group"] or UNKNOWN)) for item in sums],
               None, "left", flexible=True),
        column("calls", "calls", values("count"), count_text),
        column("bytes", "bytes", values("bytes"), _bytes, rank=3),
        column("bus", "bus", values("busbw_bytes_per_s"), _bandwidth, rank=4),
        column("exposed", "exposed", values("exposed_ns"), duration_text),
        column("hidden", "hidden", values("overlapped_ns"), duration_text),
        column("wait", "wait", values("wait_ns"), duration_text, rank=1),
        column("wire", "wire", values("wire_ns"), duration_text, rank=2),
    )  # fmt: skip
    return Table(
        columns,
        [f"{item['op']} {item['group'] or ''}" for item in sums],
        lambda row: _costliest(index, row),
        empty=no_collectives(index.analysis),
    )


def no_collectives(analysis: Analysis) -> str:
    """Why there is nothing to show."""
    if analysis.window.devices == 1 and analysis.trace.meta.world_size in (None, 1):
        return "none: one device in this run"
    return "none was recorded"


def _costliest(index: CollectiveIndex, row: int) -> Target | None:
    rows = index.rows(row)
    work = int(index.analysis.collectives["work"].iloc[rows[0]]) if rows else -1
    return Target("timeline", Moment(work=work)) if work >= 0 else None


def _bytes(size: float | None) -> str:
    return UNKNOWN if size is None else bytes_text(int(size))


def _bandwidth(size: float | None) -> str:
    return UNKNOWN if size is None else f"{bytes_text(int(size))}/s"


def collective_lines(look: Look, index: CollectiveIndex, number: int, width: int) -> list[Line]:
    """The costliest collectives of one operation and group; each leads to the timeline."""
    table = index.analysis.collectives
    rows = index.rows(number)
    lines = titled_lines(look, "COSTLIEST", _costliest_table(table.iloc[rows[:_MOST]]), width)
    if len(rows) > _MOST:
        lines.append(plain(f"   and {len(rows) - _MOST:,} more", DIM))
    if not index.compared:
        said = "wait and wire are not known from one rank alone: open the recordings of all ranks"
        lines += [plain(), *wrapped(said, width, style=DIM)]
    return lines


def _costliest_table(collectives: pd.DataFrame) -> Table:
    """A row for each of these calls."""
    columns = ("sequence", "exposed_ns", "overlapped_ns", "bytes", "step", "work", "op", "group")
    listed = (collectives[name].tolist() for name in columns)
    numbers, exposed, hidden, sizes, steps, works, ops, groups = listed
    shown = (
        Column("call", "", [_sequence(number) for number in numbers], None, "left", flexible=True),
        Column("exposed", "exposed", [duration_text(ns) for ns in exposed]),
        Column("hidden", "hidden", [duration_text(ns) for ns in hidden], rank=3),
        Column("bytes", "bytes", [_bytes(None if size < 0 else size) for size in sizes], rank=2),
        Column("step", "step", [UNKNOWN if step < 0 else f"{step:,}" for step in steps], rank=1),
    )
    names = [f"{op} {group}" for op, group in zip(ops, groups, strict=True)]
    return Table(shown, names, lambda row: Target("timeline", Moment(work=works[row])))


def _sequence(number: int) -> str:
    """Which call it is in its process group, where the recording counts them."""
    return "call" if number < 0 else f"#{number}"


def communication_sentence(analysis: Analysis) -> str:
    """How much of the window is exposed communication, and how much is hidden."""
    exposed = int(analysis.collectives["exposed_ns"].sum())
    hidden = duration_text(analysis.overlapped_ns)
    count = len(analysis.collectives)
    return f"{count:,} collectives: {duration_text(exposed)} exposed, {hidden} hidden under compute"
