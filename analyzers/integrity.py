"""What a reader must know about the recording before believing its numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.analyzers.collecting import device_part_cut
from tracer.analyzers.facts.cut import cut_notes
from tracer.analyzers.facts.work import Work
from tracer.analyzers.gaps import Gaps
from tracer.analyzers.intervals import NONE
from tracer.analyzers.tables import checking_drafts
from tracer.analyzers.wording import counted, milliseconds
from tracer.events import Note

# What may not be idle at all is worth a note from this share of the idle on.
_LITTLE_IDLE = 0.05


def integrity_notes(
    work: Work, steps: pd.DataFrame, gaps: Gaps, cut_off: int = 0
) -> tuple[Note, ...]:
    """Notes on what was recorded and what was not."""
    notes = [
        *_device_notes(work),
        *cut_notes(work.trace),
        *_orphan_notes(work),
        *(() if work.kernels_missing else _queue_notes(gaps)),
        *_clock_notes(work),
        *_cut_off_notes(cut_off),
        *_step_notes(steps),
    ]
    return tuple(notes)


def _device_notes(work: Work) -> list[Note]:
    launches = int(work.launches.launching.sum())
    if work.trace.meta.detail == "light":  # it looks at no device work, and says so itself
        return []
    if device_part_cut(work.trace):
        text = "the recording was cut off before its device events: nothing is said of the device"
        return [Note("trace.no_device_events", text, partial=True)]
    if work.cpu_only and not launches:
        text = "no device was recorded; the leaf operators of the host are counted"
        return [Note("trace.cpu_only", text)]
    if not work.trace.device_rows.size and launches:
        text = (
            f"{launches} launches recorded, 0 device events: the device tracer was cold, refused "
            "(permission, container, WSL) or held by another profiler"
        )
        return [Note("trace.no_device_events", text, launches)]
    if not launches and not work.cpu_only:
        return [Note("trace.no_launches", "the recording has device rows only, no host calls")]
    return []


def _orphan_notes(work: Work) -> list[Note]:
    count = int(work.orphaned.sum())
    if not count:
        return []
    duration = work.trace.end_ns[work.event] - work.trace.start_ns[work.event]
    early = int(duration[work.orphaned].sum())
    total = int(duration.sum())
    text = (
        f"{count} of {work.event.size} device events were launched before the recording began "
        f"({milliseconds(early)} of {milliseconds(total)} of device time): counted as "
        "other.unattributed, in the step that they run in"
    )
    detail = {"device_events": work.event.size, "duration_ns": early, "total_ns": total}
    return [Note("trace.launched_before_window", text, count, detail)]


def _queue_notes(gaps: Gaps) -> list[Note]:
    """Work that waited in a queue whose earlier work has no rows."""
    lengths = gaps.end_ns - gaps.start_ns
    total = int(lengths[gaps.unrecorded].sum())
    if total <= _LITTLE_IDLE * int(lengths.sum()):
        return []
    text = (
        f"for {milliseconds(total)} nothing recorded ran before work that was launched long before "
        "it (as the first of its stream, or outside the recording): the device may have been busy "
        "with work that has no rows here"
    )
    return [Note("trace.unrecorded_work", text, int(gaps.unrecorded.sum()), {"idle_ns": total})]


def _clock_notes(work: Work) -> list[Note]:
    linked = (work.launch != NONE) & ~np.bool_(work.cpu_only)
    early = work.trace.start_ns[work.launch[linked]] - work.trace.start_ns[work.event[linked]]
    wrong = early[early > 0]
    if not wrong.size:
        return []
    worst = int(wrong.max())
    text = (
        f"{wrong.size} of {int(linked.sum())} device events start before their launch, by up to "
        f"{milliseconds(worst)}: a clock error; their launch delay is not used"
    )
    detail = {"linked": int(linked.sum()), "worst_ns": worst}
    return [Note("trace.clock_error", text, int(wrong.size), detail)]


def _step_notes(steps: pd.DataFrame) -> list[Note]:
    if not len(steps):
        said = "no step was recognised: the window is reported as one step"
        return [Note("trace.no_steps", said)]
    return _draft_notes(steps)


def _cut_off_notes(cut_off: int) -> list[Note]:
    """Steps within which the recording ended."""
    if not cut_off:
        return []
    text = (
        f"the recording ended within {counted(cut_off, 'step')}: what was seen there is in no "
        "step, or, where there is no other, in one whose tokens a second are not told"
    )
    return [Note("trace.step_cut_off", text, cut_off)]


def _draft_notes(steps: pd.DataFrame) -> list[Note]:
    """How many of the tokens that are checked stay."""
    checks = steps[checking_drafts(steps)]
    known = checks[checks["kept"] >= 0]
    text = (
        f"{len(checks)} decode steps take several tokens a sequence, as those that check the "
        "tokens of a draft do: "
    )
    if not len(checks):
        return []
    if not len(known):
        text += "how many of them were kept is not recorded, so decode has no tokens a second"
        return [Note("trace.drafted_tokens", text, len(checks))]
    sequences, took, kept = (int(known[name].sum()) for name in ("batch", "tokens", "kept"))
    text += (
        f"of {took / sequences:.1f} tokens that each takes {kept / sequences:.1f} stay, by "
        f"{len(known)} of them that another follows"
    )
    detail = {"steps_known": len(known), "tokens": took, "kept_tokens": kept}
    return [Note("trace.drafted_tokens", text, len(checks), detail)]
