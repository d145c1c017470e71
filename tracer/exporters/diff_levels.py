"""The steps of two recordings as levels, so that they are shown and summed as those of one."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.diff_analysis import BETWEEN, Measure, PhaseChange, Side
from tracer.exporters.levels import Level, divided
from tracer.exporters.words import Words, phase_words

# What runs between the steps is told from this share of a step on.
_NOTABLE_TURN_RATIO = 0.02
# How a time from start to start is called: the median one, and the mean with all pauses.
_TURN, _MEAN = " from start to start", " from start to start on average"


@dataclass(frozen=True)
class Bucket:
    """A group (part "") or a part of it, in whole nanoseconds a step; they add up to the step."""

    group: str
    part: str
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        return self.after_ns - self.before_ns


def level_of(change: PhaseChange, side: Side) -> Level | None:
    """The compared steps of a side; None where the time is not accounted for."""
    if side.bucket_ns is None:
        return None
    return Level(change.phase, side.count, side.wall_ns, side.devices, side.bucket_ns)


def levels_of(change: PhaseChange) -> tuple[Level, Level] | None:
    """Both sides; None where one is not accounted for."""
    before, after = level_of(change, change.before), level_of(change, change.after)
    return None if before is None or after is None else (before, after)


def buckets_of(change: PhaseChange) -> list[Bucket]:
    """Groups, each before its parts, in the order of display."""
    levels = levels_of(change)
    if levels is None:
        return []
    ours, theirs = map(_divided, levels)
    return [Bucket(*key, ours[key], theirs[key]) for key in ours]


def _divided(level: Level) -> dict[tuple[str, str], int]:
    """Groups and parts of the mean of the steps, in whole nanoseconds that add up."""
    return divided(level, round(level.per_step(level.total_ns)))


def between_of(change: PhaseChange) -> Bucket | None:
    """What runs between the steps, a step, on one device; None where none is followed. Of medians,
    as the times are that it stands beside: a mean of what one pause makes longer is more than all
    that they changed by."""
    turn, step = change.turn, change.step
    if turn is None:
        return None
    return Bucket(BETWEEN, "", turn.before_ns - step.before_ns, turn.after_ns - step.after_ns)


def words_of(change: PhaseChange) -> Words:
    """How the compared steps are called."""
    if change.phase is None:
        return Words("the recording", "the recording", "")
    return phase_words(change.phase, 2)


def told_turn(change: PhaseChange) -> Measure | None:
    """From start to start, where what runs between the steps is worth a word."""
    turn, step = change.turn, change.step
    if turn is None:
        return None
    sides = ((turn.before_ns, step.before_ns), (turn.after_ns, step.after_ns))
    notable = any(long > (1 + _NOTABLE_TURN_RATIO) * short for long, short in sides)
    return turn if notable else None


def leading(change: PhaseChange) -> tuple[Measure, str]:
    """The time that answers whether B is faster, and what it is where it is not the step: the mean
    turn where that tells what the median does not."""
    if change.mean_tells and change.mean_turn is not None:
        return change.mean_turn.measure, _MEAN
    return usual(change)


def usual(change: PhaseChange) -> tuple[Measure, str]:
    """The same of medians: from start to start where the loop goes on between calls, and what runs
    there changed more than the calls did."""
    if change.like_turns and change.turn is not None:
        return change.turn, _TURN
    turn = told_turn(change)
    if turn is None or not change.turn_counts:
        return change.step, ""
    between_ns = turn.change_ns - change.step.change_ns
    limit = max(turn.scatter_ns or 0, _NOTABLE_TURN_RATIO * turn.before_ns)
    return (turn, _TURN) if abs(between_ns) > limit else (change.step, "")


def mean_buckets(change: PhaseChange) -> list[Bucket]:
    """What the mean turn goes to: groups, parts of them, and what stands for a group."""
    parts = () if change.mean_turn is None else change.mean_turn.parts
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for part in parts:
        for key in {(part.group, part.part), (part.group, "")}:
            ours, theirs = sums.get(key, (0, 0))
            sums[key] = ours + part.before_ns, theirs + part.after_ns
    return [Bucket(*key, *times) for key, times in sums.items()]
