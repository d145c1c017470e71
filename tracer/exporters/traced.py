"""The traced part of the program beside the window: what of its time lies in no step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import CALLS, Analysis, until_next
from tracer.exporters.format import counted, duration_text, percent_text
from tracer.exporters.levels import has_steps, steps_of
from tracer.exporters.names import inert

# A smaller difference is the call itself.
_BETWEEN_RATIO = 0.02
# What the analysis calls the steps without a phase.
_UNNAMED = {"step": ""}


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
    """The median time from the start of a step to that of the next of its phase; calls of a draft
    may lie between the two."""
    chosen = np.flatnonzero(steps_of(analysis, _UNNAMED.get(phase, phase)))
    until = until_next(analysis.steps, chosen)
    return int(np.median(until[until > 0])) if (until > 0).any() else None


def turns_ns(analysis: Analysis) -> NDArray[np.int64]:
    """How long each step keeps its loop: a call of a model until the next call begins, any other
    step as long as it lasts."""
    steps = analysis.steps
    walls: NDArray[np.int64] = steps["wall_ns"].to_numpy().copy()
    if len(steps) and str(steps["source"].iloc[0]) in CALLS:
        walls[:-1] = np.diff(steps["start_ns"].to_numpy())
    return walls


def turn_ns(analysis: Analysis, phase: str) -> int | None:
    """The period, where steps are calls and what runs between them makes it longer than these."""
    if not has_steps(analysis) or str(analysis.steps["source"].iloc[0]) not in CALLS:
        return None
    chosen = steps_of(analysis, _UNNAMED.get(phase, phase))
    period = period_ns(analysis, phase) if chosen.any() else None
    if period is None:
        return None
    median = float(np.median(analysis.steps["wall_ns"].to_numpy()[chosen]))
    return period if period > (1 + _BETWEEN_RATIO) * median > 0 else None


def period_text(analysis: Analysis) -> str:
    """Where calls are the steps: what a step takes with what runs between the calls."""
    longer = []
    for phase in analysis.phases:
        turn = turn_ns(analysis, phase.name)
        if turn is not None:
            longer.append(f"{inert(phase.name) or 'a step'} {duration_text(turn)}")
    if not longer:
        return ""
    return f"from start to start: {', '.join(longer)} (median). {_what_steps_hold(analysis)}"


def _what_steps_hold(analysis: Analysis) -> str:
    phases = {str(phase) for phase in analysis.steps["phase"].unique()}
    if str(analysis.steps["source"].iloc[0]) == "graph":
        step, between = "a replay of the graph", "replays, such as sampling,"
    elif "training" in phases:
        step = "a call of the model with the backward pass and optimizer after it"
        between = "steps, such as loading data,"
    elif learns(analysis):
        step, between = "a call of the model", "calls, such as a backward pass,"
    else:
        example = "sampling" if "decode" in phases else "sampling or preparing the next batch"
        example = "those of a draft" if "draft" in phases else example
        step, between = "a call of the model", f"calls, such as {example},"
    # Detail `light` sees no ranges.
    light = analysis.trace.meta.detail == "light"
    taken = "t.step()" if light else "t.step() or record_function around a turn"
    return f"A step is {step}: what runs between the {between} is in none; {taken} takes it in"


def learns(analysis: Analysis) -> bool:
    """Whether autograd recorded the calls that are the steps, and no step is known to hold what is
    learned: it comes after them."""
    if bool((analysis.steps["phase"] == "training").any()):
        return False
    graded = analysis.trace.table("root_calls")["graded"]
    return str(analysis.steps["source"].iloc[0]) == "root_call" and bool((graded == 1).any())
