"""What a reader of the report must know about a Kineto file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tracer.collectors.kineto.loose import Remarks
from tracer.events import Note

_NAMED = 4  # categories named in a note; the others are counted


def notes_of(remarks: Remarks, *, events: int, cut: bool) -> Iterator[Note]:
    """Notes on how the file was read."""
    if cut:
        text = f"the end of the file is missing: {events:,} events were read before it"
        yield Note("trace.truncated", text, events, partial=True)
    if remarks.damage.count:
        yield _damaged(remarks)
    if remarks.other_categories:
        count = remarks.other_categories.total()
        text = f"{count:,} events are of kinds this build does not know, kept as other: "
        detail = {"categories": dict(remarks.other_categories)}
        yield Note(
            "trace.unknown_category", text + _listed(remarks.other_categories), count, detail
        )
    if remarks.unpaired:
        text = f"{remarks.unpaired:,} ranges have a begin or an end alone and are left out"
        yield Note("trace.unpaired", text, remarks.unpaired, partial=True)
    if remarks.unread_phases:
        count = remarks.unread_phases.total()
        text = f"{count:,} events are of phases this build does not read: "
        yield Note("trace.unread_phase", text + _listed(remarks.unread_phases), count)


def _damaged(remarks: Remarks) -> Note:
    damage = remarks.damage
    text = (
        f"{damage.count:,} events are not valid JSON: {damage.repaired:,} repaired, "
        f"{damage.lost:,} left out, the first at byte {damage.first_offset:,}"
    )
    detail = {
        "repaired": damage.repaired,
        "lost": damage.lost,
        "first_offset": damage.first_offset,
    }
    return Note("trace.invalid_event", text, damage.count, detail, partial=True)


def _listed(counted: Counter[str]) -> str:
    named = [name or "(none)" for name, _ in counted.most_common(_NAMED)]
    more = len(counted) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def clock_notes(clock: str, *, whole_microseconds: bool) -> Iterator[Note]:
    """Notes on the times of the file."""
    if clock == "relative":
        text = "the file does not say when its clock began: its times cannot be joined with others"
        yield Note("trace.no_timestamps_base", text)
    if whole_microseconds:
        text = "times are whole microseconds: shorter work and gaps are rounded"
        yield Note("trace.coarse_clock", text)


def rank_note(rank: int | None) -> Iterator[Note]:
    """A file alone needs no rank; several do."""
    if rank is None:
        yield Note("trace.no_rank", "the file names no rank: alone it counts as rank 0")
