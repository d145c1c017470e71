"""The traced part of the program beside the window: what of its time lies in no step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracer.analysis import Analysis
from tracer.exporters.format import counted, duration_text, percent_text
from tracer.exporters.levels import has_steps, steps_of
from tracer.exporters.names import inert

# A smaller difference is the call itself.
_BETWEEN_RATIO = 0.02


@dataclass(frozen=True)
class Block:
    """The time from the beginning of a live recording to its end, which holds the window.

    before + window + after = wall; outside_steps: all of it that is in no step.
    """

    start_ns: int
    wall_ns: int
    before_ns: int
    after_ns: int
    outside_steps_ns: int


def traced_block(analysis: Analysis) -> Block | None:
    """The traced block; None of a recording that was not made live."""
    said = analysis.trace.meta.extra.get("traced")
    if not said:
        return None
    window, start, end = analysis.window, int(said["start_ns"]), int(said["end_ns"])
    if window.wall_ns == 0:  # nothing was recorded: it has no place
        return Block(start, end - start, end - start, 0, end - start)
    # The end of a recording waits for the device, after the program's part has ended.
    start, end = min(start, window.start_ns), max(end, window.end_ns)
    before, after = window.start_ns - start, end - window.end_ns
    outside = before + window.between_steps_ns + after
    return Block(start, end - start, before, after, outside)


def block_text(analysis: Analysis) -> str:
    """How long the block was, and where in it the steps lie; "" of other recordings."""
    block = traced_block(analysis)
    if block is None:
        return ""
    if analysis.window.wall_ns == 0:
        return f"traced {duration_text(block.wall_ns)}: nothing was recorded in it"
    return f"traced {duration_text(block.wall_ns)}: " + ", ".join(_pieces(analysis, block))


def _pieces(analysis: Analysis, block: Block) -> Iterator[str]:
    window, count = analysis.window, len(analysis.steps)
    yield f"{duration_text(block.before_ns)} before the first {_what(analysis)}"
    if has_steps(analysis):
        in_steps = duration_text(window.wall_ns - window.between_steps_ns)
        yield f"{in_steps} in {counted(count, 'step')}"
        if count > 1:
            yield f"{duration_text(window.between_steps_ns)} between them"
    else:
        yield f"{duration_text(window.wall_ns)} recorded"
    yield f"{duration_text(block.after_ns)} after the last"


def _what(analysis: Analysis) -> str:
    return "step" if has_steps(analysis) else "recorded work"


def outside_sentence(analysis: Analysis) -> str:
    """A word when most of the block lies before the first work or after the last."""
    block = traced_block(analysis)
    if block is None or block.wall_ns == 0:
        return ""
    ratio = (block.before_ns + block.after_ns) / block.wall_ns
    if ratio <= 0.5 or analysis.window.wall_ns == 0:
        return ""
    share, wall = percent_text(ratio), duration_text(block.wall_ns)
    return f"{share} of the traced {wall} lie before the first {_what(analysis)} or after the last."


def period_ns(analysis: Analysis, phase: str) -> int | None:
    """The median time from the start of a step to that of the next of its phase."""
    starts = analysis.steps["start_ns"].to_numpy()
    chosen = np.flatnonzero(steps_of(analysis, phase))
    following = chosen[:-1][np.diff(chosen) == 1]
    if not following.size:
        return None
    return int(np.median(starts[following + 1] - starts[following]))


def period_text(analysis: Analysis) -> str:
    """Where calls of a model are the steps: what a step takes with what runs between the calls."""
    if not has_steps(analysis) or str(analysis.steps["source"].iloc[0]) != "root_call":
        return ""
    periods = [(phase, period_ns(analysis, phase.name) or 0) for phase in analysis.phases]
    longer = [
        f"{inert(phase.name) or 'a step'} {duration_text(period)}"
        for phase, period in periods
        if phase.median_ns and period > (1 + _BETWEEN_RATIO) * phase.median_ns
    ]
    if not longer:
        return ""
    return (
        f"from start to start: {', '.join(longer)} (median). A step is a call of the model: what "
        "runs between the calls, such as sampling, is in none; t.step() takes it in"
    )
