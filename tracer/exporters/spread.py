"""How far the steps of a phase spread, what the slow ones share, and the step in the middle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS, Analysis
from tracer.exporters.advice import IDLE_NAMES
from tracer.exporters.claims import GROUP_NAMES, part_name
from tracer.exporters.format import duration_text, percent_text
from tracer.exporters.levels import (
    Level,
    bucket_sums,
    has_steps,
    phase_levels,
    steps_of,
    unrecorded_sum,
)
from tracer.exporters.names import inert
from tracer.exporters.words import phase_words

# Steps are uneven when their mean and their median are so far apart.
_UNEVEN_RATIO = 1.3
# A step is a slow one, or has more tokens, from so many times the usual on.
_SLOW_RATIO = 1.5
# The slow steps share what makes up so much of their longer time.
_SHARED_RATIO = 0.5
# Steps whose number in front is told: the first ones.
_FEW = 3
# Causes of a pause that say more than that the host did something.
_TOLD = frozenset(IDLE_NAMES) - {"host", "launch", "device", "profiler"}


@dataclass(frozen=True)
class Spread:
    """The steps of a phase that differ much: their numbers in order, and which are slow."""

    phase: str
    steps: NDArray[np.int64]
    walls: NDArray[np.int64]
    median_ns: int

    @property
    def slow(self) -> NDArray[np.bool_]:
        return np.asarray(self.walls > _SLOW_RATIO * self.median_ns)

    @property
    def middle(self) -> NDArray[np.int64]:
        """The step in the middle by its time; of an even number both, whose mean is the median."""
        order = np.argsort(self.walls, kind="stable")
        return self.steps[order[(order.size - 1) // 2 : order.size // 2 + 1]]


def find_spread(analysis: Analysis, phase: str | None) -> Spread | None:
    """The spread of the steps of a phase; None where the mean step stands for all."""
    if phase is None or not has_steps(analysis):
        return None
    spread = _spread_of(analysis, phase)
    mean, median = float(spread.walls.mean()), spread.median_ns
    if max(mean, median) < _UNEVEN_RATIO * min(mean, median) or not median:
        return None
    return spread


def _spread_of(analysis: Analysis, phase: str) -> Spread:
    steps = np.flatnonzero(steps_of(analysis, phase))
    walls = analysis.steps["wall_ns"].to_numpy()[steps]
    return Spread(phase, steps, walls, round(float(np.median(walls))))


def usual_level(analysis: Analysis, level: Level) -> Level:
    """What tables show of a level, as the verdict does: the step in the middle where the mean step
    does not stand for all."""
    spread = find_spread(analysis, level.phase)
    return level if spread is None else middle_level(analysis, spread)


def bar_levels(analysis: Analysis) -> list[Level]:
    """Each phase as its bar shows it: all of its steps, or the step in the middle of each phase
    where the steps of some phase differ much."""
    levels = phase_levels(analysis)
    if all(find_spread(analysis, level.phase) is None for level in levels):
        return levels
    return [middle_level(analysis, _spread_of(analysis, level.phase or "")) for level in levels]


def mean_note(analysis: Analysis, level: Level) -> str:
    """What a table leaves out that shows the step in the middle: the mean, and what makes it so."""
    spread = find_spread(analysis, level.phase)
    if spread is None:
        return ""
    mean, slow = duration_text(float(spread.walls.mean())), spread.steps[spread.slow].tolist()
    name = inert(spread.phase) or "steps"
    text = f"{name}: the median of {spread.steps.size:,} is shown, the mean is {mean}"
    if not 0 < len(slow) <= _FEW:
        return text
    return f"{text} because of step{'s' * (len(slow) > 1)} {', '.join(map(str, slow))}"


def middle_level(analysis: Analysis, spread: Spread) -> Level:
    """The median step, as a level of its own."""
    chosen = np.zeros(len(analysis.steps), dtype=np.bool_)
    chosen[spread.middle] = True
    wall_ns = int(analysis.steps["wall_ns"].to_numpy()[spread.middle].sum())
    devices, count = analysis.window.devices, spread.middle.size
    sums, unrecorded = bucket_sums(analysis, chosen), unrecorded_sum(analysis, chosen)
    return Level(spread.phase, count, wall_ns, devices, sums, middle=True, unrecorded_ns=unrecorded)


def spread_sentence(analysis: Analysis, spread: Spread) -> str:
    """How many steps take how much longer, and what they share."""
    slow, longest = spread.slow, int(spread.walls.max())
    one = phase_words(spread.phase, 2).one
    if not slow.any() or 2 * int(slow.sum()) > slow.size:
        shortest = duration_text(int(spread.walls.min()))
        return f"Steps differ: {one} takes {shortest} to {duration_text(longest)}."
    times = f"{longest / spread.median_ns:.3g} times the median, {duration_text(longest)}"
    share = percent_text(int(spread.walls[slow].sum()) / int(spread.walls.sum()))
    text = f"{_which(spread)} {times} ({share} of their time)"
    shared = _shared(analysis, spread)
    return f"{text}: {shared}." if shared else f"{text}."


def _which(spread: Spread) -> str:
    """`3 of 53 decode steps take up to`, `The first of 20 forward passes takes`."""
    count, of = int(spread.slow.sum()), spread.steps.size
    one = phase_words(spread.phase, 2).one.removeprefix("a ")
    many = f"{of:,} {one}{'es' if one.endswith('s') else 's'}"
    leading = bool(spread.slow[:count].all()) and count <= _FEW
    if count == 1:
        return f"{'The first' if leading else 'One'} of {many} takes"
    return f"{f'The first {count}' if leading else f'{count:,}'} of {many} take up to"


def _shared(analysis: Analysis, spread: Spread) -> str:
    """What the slow steps have in common; "" where nothing tells."""
    # Of idle without a device only findings tell the cause.
    found = "" if analysis.window.devices else _found_in_slow(analysis, spread)
    return _more_tokens(analysis, spread) or found or _longer_part(analysis, spread)


def _more_tokens(analysis: Analysis, spread: Spread) -> str:
    tokens = analysis.steps["tokens"].to_numpy()[spread.steps]
    if (tokens <= 0).any():
        return ""
    slow, usual = np.median(tokens[spread.slow]), np.median(tokens[~spread.slow])
    if slow < _SLOW_RATIO * usual:
        return ""
    return f"of {int(slow):,} tokens where others have {int(usual):,}"


def _longer_part(analysis: Analysis, spread: Spread) -> str:
    """The part that makes up most of what the slow steps take longer."""
    longer = _mean_parts(analysis, spread, spread.slow)
    longer -= _mean_parts(analysis, spread, ~spread.slow)
    longer = np.maximum(longer, 0)
    largest = int(longer.argmax())
    if longer[largest] <= _SHARED_RATIO * longer.sum():
        return ""
    group, part = BUCKETS[largest]
    if part in ("unexplained", "unattributed"):
        return ""
    name = _part_name(group, part, analysis.window.devices)
    return f"{percent_text(longer[largest] / longer.sum())} of what they take longer is {name}"


def _mean_parts(
    analysis: Analysis, spread: Spread, which: NDArray[np.bool_]
) -> NDArray[np.float64]:
    chosen = np.zeros(len(analysis.steps), dtype=np.bool_)
    chosen[spread.steps[which]] = True
    sums = bucket_sums(analysis, chosen)
    sums[BUCKET_CODE["overhead", "device"]] -= unrecorded_sum(analysis, chosen)
    means: NDArray[np.float64] = sums / max(int(which.sum()), 1)
    return means


def _part_name(group: str, part: str, devices: int) -> str:
    if part == "host" and not devices:
        return "time outside operators"
    if part in IDLE_NAMES:
        return IDLE_NAMES[part]
    named = part_name(part)
    return named if group == "other" else f"{GROUP_NAMES.get(group, group)} {named}"


def _found_in_slow(analysis: Analysis, spread: Spread) -> str:
    """A cause that findings place in the slow steps and hardly elsewhere."""
    slow = set(spread.steps[spread.slow].tolist())
    for finding in analysis.findings:
        cause, steps = finding.rule.partition(".")[2], set(finding.steps)
        inside = len(slow & steps)
        if cause in _TOLD and 2 * inside > len(slow) and 2 * inside > len(steps):
            return f"they hold {IDLE_NAMES[cause]}"
    return ""
