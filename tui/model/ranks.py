"""Ranks side by side: a row a rank, a cell a step, a digit for the tenths of it spent waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from tracer.analysis import Analysis
from tracer.exporters.format import UNKNOWN, counted, duration_text, percent_text
from tracer.exporters.names import ELLIPSIS
from tracer.findings import Finding
from tracer.rank_analysis import RankAnalysis
from tracer.tui.look import Look
from tracer.tui.model.lines import BOLD, DIM, GUTTER, Line, Target, heading, plain, wrapped
from tracer.tui.model.overview import bins_of
from tracer.tui.model.places import RecordingNumber
from tracer.tui.model.signs import SEVERITY_MARKS
from tracer.tui.model.table import cut
from tracer.tui.session import Recording, Session

_LABEL = 20
_NUMBERS = 30
_MOST_GROUPS = 12
Tenths = NDArray[np.int64]


@dataclass(frozen=True)
class RankRow:
    """One row: tenths of each step, their time in all, what else is known of the rank. `number`:
    of its recording, -1 where there is none."""

    label: str
    tenths: Tenths
    total_ns: int | None
    number: int
    reason: str = ""
    late: bool = False
    wire_ns: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class RankMap:
    """All rows, what their digits mean, and how far they can be compared."""

    rows: Sequence[RankRow]
    meaning: str
    caveat: str
    ranks: RankAnalysis | None

    @property
    def findings(self) -> Sequence[Finding]:
        return () if self.ranks is None else self.ranks.findings


def build_ranks(session: Session) -> RankMap:
    """The rows of all recordings, missing ranks among them."""
    comparison = session.comparison
    ranks = None if comparison is None else comparison.ranks
    waits = {} if comparison is None else comparison.step_waits_ns
    known = bool(waits)
    rows: list[RankRow] = []
    for number, recording in enumerate(session.recordings):
        rank = _rank_of(session, number)
        row = _row(number, recording, rank, waits.get(-1 if rank is None else rank), known)
        rows.append(_with_results(row, rank, ranks))
    order = [_order_key(session, number) for number in range(len(rows))]
    rows = [rows[at] for at in sorted(range(len(rows)), key=order.__getitem__)]
    rows += [
        RankRow(f"rank {rank}", np.zeros(0, np.int64), None, -1, "no recording of it")
        for rank in missing_ranks(session)
    ]
    meaning = "tenths of the step spent waiting for other ranks"
    if not known:
        meaning = "tenths of the step in exposed communication (waits are not known)"
    return RankMap(rows, f"digit = {meaning}", _caveat(session), ranks)


def _rank_of(session: Session, number: int) -> int | None:
    if session.comparison is not None:
        numbers = session.comparison.numbers
        return next((rank for rank, at in numbers.items() if at == number), None)
    analysis = session.recordings[number].analysis
    return None if analysis is None else analysis.trace.meta.rank


def _order_key(session: Session, number: int) -> tuple[bool, int, int]:
    rank = _rank_of(session, number)
    return rank is None, rank or 0, number


def missing_ranks(session: Session) -> list[int]:
    """Ranks of the run that no recording is of; none as long as some are still being read."""
    if not session.settled:
        return []
    known = {_rank_of(session, number) for number in range(len(session.recordings))}
    read = [r.analysis for r in session.recordings if r.analysis is not None]
    sizes = [analysis.trace.meta.world_size or 0 for analysis in read]
    return [rank for rank in range(max(sizes, default=0)) if rank not in known]


def _row(
    number: int, recording: Recording, rank: int | None, waits: Tenths | None, known: bool
) -> RankRow:
    analysis, none = recording.analysis, np.zeros(0, dtype=np.int64)
    label = _short(recording.name) if rank is None else f"rank {rank}"
    if analysis is None:
        reason = "reading" if recording.error is None else str(recording.error)
        return RankRow(label, none, None, number, reason)
    if waits is None and (known or not len(analysis.collectives)):
        reason = "not compared with the others" if known else "no collective in this recording"
        return RankRow(label, none, None, number, reason)
    times = _exposed_times(analysis) if waits is None else waits
    walls = np.maximum(analysis.steps["wall_ns"].to_numpy(), 1)
    return RankRow(label, np.minimum(times * 10 // walls, 9), int(times.sum()), number)


def _with_results(row: RankRow, rank: int | None, ranks: RankAnalysis | None) -> RankRow:
    """What the comparison says of a rank."""
    found = [r for r in ranks.ranks if r.summary.rank == rank] if ranks is not None else []
    if not found or ranks is None or ranks.alignment is None:
        return row
    result = found[0]
    late = any(f.rule == "comm.straggler" and f.detail.get("rank") == rank for f in ranks.findings)
    return RankRow(row.label, row.tenths, result.wait_ns if row.reason == "" else row.total_ns,
                   row.number, row.reason, late, result.wire_ns, result.last)  # fmt: skip


def _short(name: str) -> str:
    """The last part of a path."""
    return name.rstrip("/").rpartition("/")[2] or name


def path_tail(path: str, room: int) -> str:
    """A path in at most so many cells: its first folders go."""
    tails = [path, *(f"{ELLIPSIS}{path[at:]}" for at, sign in enumerate(path) if sign == "/")]
    fitting = (tail for tail in tails if cell_len(tail) <= room)
    return next(fitting, cut(_short(path), room))


def _exposed_times(analysis: Analysis) -> Tenths:
    """Exposed communication of each step."""
    table = analysis.collectives
    step, times = table["step"].to_numpy(), table["exposed_ns"].to_numpy()
    inside = step >= 0
    sums = np.zeros(len(analysis.steps), dtype=np.int64)
    np.add.at(sums, step[inside], np.maximum(times[inside], 0))
    return sums


def _caveat(session: Session) -> str:
    if len(session.recordings) < 2:
        return "one recording: open the recordings of all ranks together to compare them"
    if session.comparison is None:
        if not session.settled:
            return "reading: ranks are compared when all are read"
        return "not compared: these are not known to be ranks of one run"
    ranks = session.comparison.ranks
    if ranks.alignment is None:
        said = next((c.reason for c in ranks.checks if c.rule == "ranks.not_aligned"), "")
        return f"not aligned, so nobody is ranked as late: {said}"
    residual = ranks.alignment.residual_ns
    within = "" if residual is None else f" within {duration_text(residual)}"
    return f"clocks aligned{within} ({ranks.alignment.basis})"


def rank_lines(look: Look, ranks: RankMap, width: int) -> list[Line]:
    """The heat map, then what was found across the ranks; a digit never stands by colour alone."""
    room = max(width - GUTTER - _LABEL - _NUMBERS, 8)
    compared = ranks.ranks is not None and ranks.ranks.alignment is not None
    lines = [heading("RANKS", f"{len(ranks.rows):,}"), *wrapped(look.name(ranks.meaning), width)]
    lines += wrapped(look.name(ranks.caveat), width, style=DIM)
    title = " " * (GUTTER + _LABEL) + "steps".ljust(room)
    numbers = f"{'wait' if compared else 'exposed':>10}" + f"{'wire':>10}{'last':>8}" * compared
    lines += [plain(), plain(title + numbers, DIM)]
    lines += [_rank_line(look, row, room, compared) for row in ranks.rows]
    if any(len(row.tenths) > room for row in ranks.rows):
        lines += [plain("   one cell = the worst of several steps", DIM)]
    if any(row.late for row in ranks.rows):
        lines += [plain("   * the rank that others wait for", DIM)]
    lines += _finding_lines(look, ranks.findings, width)
    return lines + _group_lines(look, ranks.ranks, width)


def _rank_line(look: Look, row: RankRow, room: int, compared: bool) -> Line:
    mark = "* " if row.late else "  "
    label = cut(look.name(row.label), _LABEL - 3)
    line = Text(" " * GUTTER + f"{mark}{label}".ljust(_LABEL))
    target = Target("ranks", RecordingNumber(row.number)) if row.number >= 0 else None
    if row.reason:
        line.append("? ", BOLD).append(look.name(row.reason), DIM)
        return Line(line, target, row.label)
    worst = np.maximum.reduceat(row.tenths, bins_of(row.tenths.size, room))
    line.append("".join(str(tenth) for tenth in worst.tolist()).ljust(room))
    line.append(f"{duration_text(row.total_ns):>10}")
    if compared:
        last = UNKNOWN if row.last is None else f"{row.last:,}"
        line.append(f"{duration_text(row.wire_ns):>10}{last:>8}")
    return Line(line, target, row.label)


def _finding_lines(look: Look, findings: Sequence[Finding], width: int) -> list[Line]:
    """What was found across ranks; the rank it is about is the evidence."""
    if not findings:
        return []
    lines = [plain(), heading("ACROSS RANKS")]
    for finding in findings:
        cost = duration_text(finding.cost_ns)
        mark = SEVERITY_MARKS[finding.severity]
        text = f"{mark:<2} {finding.rule}  {cost}  {percent_text(finding.ratio)}"
        lines.append(
            Line(Text(f"   {look.name(text)}", BOLD), None, f"{finding.rule} {finding.title}")
        )
        lines += wrapped(look.name(finding.title), width, 6)
        lines += wrapped(look.name(f"do: {finding.advice}"), width, 6) if finding.advice else []
    return lines


def _group_lines(look: Look, ranks: RankAnalysis | None, width: int) -> list[Line]:
    """The process groups: who speaks with whom."""
    if ranks is None or not ranks.groups:
        return []
    lines = [plain(), heading("PROCESS GROUPS")]
    for group in ranks.groups[:_MOST_GROUPS]:
        members = ", ".join(map(str, group.members[:16])) or UNKNOWN
        members += ", …" if len(group.members) > 16 else ""
        kind = f"{group.kind} " if group.kind else ""
        text = f"{kind}{group.name or group.description}: ranks {members}"
        text += f"; {counted(group.count, 'call')} of {', '.join(group.ops)}"
        lines += wrapped(look.name(text), width)
    return lines
