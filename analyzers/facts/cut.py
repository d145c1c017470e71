"""Files whose end is missing. Host rows come first; those of the device, and of the calls that
launch its work, come last and about in the order of time: from the last on nothing is known."""

from __future__ import annotations

from tracer.events import Note, Trace


def was_cut(trace: Trace) -> bool:
    """Whether the end of the file is missing."""
    return any(note.rule == "trace.truncated" for note in trace.notes)


def known_until(trace: Trace) -> int | None:
    """Until when launches and their work were read; None where all was, or nothing at all."""
    device, calls = trace.device_rows, trace.rows("runtime")
    if not was_cut(trace) or not device.size or not calls.size:
        return None
    return int(min(trace.end_ns[device].max(), trace.end_ns[calls].max()))


def cut_notes(trace: Trace) -> list[Note]:
    """What was read of the host alone."""
    until = known_until(trace)
    if until is None:
        return []
    rows = trace.rows("operator", "annotation", "module")
    alone = int((trace.start_ns[rows] >= until).sum())
    if not alone:
        return []
    text = (
        f"{alone:,} rows of the host begin after the last row of the device that was read: they "
        "are in no step"
    )
    return [Note("trace.device_part_cut", text, alone, partial=True)]
