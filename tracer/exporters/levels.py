"""What the time of the window, of one step or of the steps of one phase went to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS, GROUPS, PARTS, Analysis, Phase
from tracer.exporters.format import shares

_GROUP_OF_BUCKET = np.array([GROUPS.index(group) for group, _ in BUCKETS])
_MOSTLY_RATIO = 0.5
IDLE_PARTS: tuple[str, ...] = tuple(part for part in PARTS["overhead"] if part != "transfer")
_IDLE_CODES = [BUCKET_CODE["overhead", part] for part in IDLE_PARTS]


@dataclass(frozen=True)
class Level:
    """Nanoseconds of each bucket, summed over the devices and the `steps` of the level.

    `phase` is the name of the steps' phase, "" where they have none, None for the window.
    """

    phase: str | None
    steps: int
    wall_ns: int
    devices: int
    bucket_ns: NDArray[np.int64]
    middle: bool = False  # the median step: the one in the middle, or the mean of both
    unrecorded_ns: int = 0  # idle in which the device may have been busy with what has no rows

    @property
    def total_ns(self) -> int:
        """The denominator of shares: wall time of all devices."""
        return self.wall_ns * max(self.devices, 1)

    def part_ns(self, group: str, part: str) -> int:
        """Time of one part."""
        return int(self.bucket_ns[BUCKET_CODE[group, part]])

    def group_ns(self, group: str) -> int:
        """Time of one group."""
        return int(self.bucket_ns[GROUPS.index(group) == _GROUP_OF_BUCKET].sum())

    def parts(self, group: str) -> dict[str, int]:
        """The parts of a group that took time, in the order of display."""
        found = ((part, self.part_ns(group, part)) for part in PARTS[group])
        return {part: ns for part, ns in found if ns > 0}

    def largest_parts(self, group: str) -> list[tuple[str, int]]:
        """The parts of a group that took time, the largest first."""
        return sorted(self.parts(group).items(), key=lambda item: -item[1])

    @property
    def idle_ns(self) -> int:
        """Time in which a device had nothing to do; on a CPU-only recording, outside operators."""
        return int(self.bucket_ns[_IDLE_CODES].sum())

    @property
    def busy_ns(self) -> int:
        return self.total_ns - self.idle_ns

    def ratio(self, ns: int) -> float:
        """A time as a share of the level."""
        return ns / self.total_ns if self.total_ns else 0.0

    def per_step(self, ns: int) -> float:
        """A time as the mean over the steps of the level."""
        return ns / max(self.steps, 1)


def bucket_sums(analysis: Analysis, steps: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Time of each bucket in the steps that the mask names; in the whole window without one."""
    charges = analysis.charges
    codes: NDArray[np.int16] = charges["bucket"].to_numpy()
    times: NDArray[np.int64] = charges["ns"].to_numpy()
    if steps is not None:
        rows = charges["step"].to_numpy()
        kept = (rows >= 0) & steps[np.maximum(rows, 0)] if len(steps) else rows < -1
        codes, times = codes[kept], times[kept]
    sums = np.zeros(len(BUCKETS), dtype=np.int64)
    np.add.at(sums, codes, times)
    return sums


def unrecorded_sum(analysis: Analysis, steps: NDArray[np.bool_] | None = None) -> int:
    """Idle in which the device may have been busy with what has no rows; of these steps alone."""
    gaps = analysis.gaps[analysis.gaps["unrecorded"].to_numpy()]
    if steps is not None:
        gaps = gaps[of_steps(gaps["step"].to_numpy(), steps)]
    return int((gaps["end_ns"] - gaps["start_ns"]).sum())


def of_steps(rows: NDArray[np.int64], steps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of these rows of `steps` (-1: none) the mask names."""
    inside: NDArray[np.bool_] = (rows >= 0) & steps[np.maximum(rows, 0)]
    return inside


def step_sums(analysis: Analysis) -> NDArray[np.int64]:
    """Time of each group in each step: a row a step, a column a group."""
    buckets = analysis.bucket_ns_of_steps()
    sums = np.zeros((len(buckets), len(GROUPS)), dtype=np.int64)
    np.add.at(sums.T, _GROUP_OF_BUCKET, buckets.T)
    return sums


def window_level(analysis: Analysis) -> Level:
    """The whole window."""
    window = analysis.window
    sums, unrecorded = bucket_sums(analysis), unrecorded_sum(analysis)
    return Level(None, 1, window.wall_ns, window.devices, sums, unrecorded_ns=unrecorded)


def steps_of(analysis: Analysis, phase: str) -> NDArray[np.bool_]:
    """Which steps the numbers of a phase are about: its own, without warm-up unless all are."""
    steps = analysis.steps
    warmup: NDArray[np.bool_] = steps["warmup"].to_numpy()
    own: NDArray[np.bool_] = (steps["phase"] == phase).to_numpy()
    steady: NDArray[np.bool_] = own & ~warmup
    return steady if bool(steady.any()) else own


def phase_levels(analysis: Analysis) -> list[Level]:
    """Each phase that its steps tell, warm-up left out, the longest first; those of which warm-up
    is all there is last."""
    if not analysis.accounted or not has_steps(analysis):
        return []
    names = [str(name) for name in analysis.steps["phase"].unique()]
    levels = [_phase_level(analysis, name) for name in names]
    steady = set(analysis.steps.loc[~analysis.steps["warmup"], "phase"].astype(str))
    found = [level for level in levels if level.steps]
    return sorted(found, key=lambda level: (level.phase not in steady, -level.wall_ns))


def part_level(phase: Phase, devices: int) -> Level:
    """A part of the time of steps, such as the forward pass of training steps."""
    sums = np.zeros(len(BUCKETS), dtype=np.int64)
    for bucket, ns in phase.buckets.items():
        sums[bucket] = ns
    return Level(phase.name, phase.steps, phase.wall_ns, devices, sums)


def has_steps(analysis: Analysis) -> bool:
    """Whether steps were recognised, and the window is not taken as one for want of any."""
    return bool((analysis.steps["source"] != "window").any())


def _phase_level(analysis: Analysis, phase: str) -> Level:
    steps = steps_of(analysis, phase)
    wall_ns = int(analysis.steps["wall_ns"].to_numpy()[steps].sum())
    sums, unrecorded = bucket_sums(analysis, steps), unrecorded_sum(analysis, steps)
    devices = analysis.window.devices
    return Level(phase, int(steps.sum()), wall_ns, devices, sums, unrecorded_ns=unrecorded)


def main_level(analysis: Analysis) -> Level:
    """What the report is about: the phase that took most of the time, else the window.

    The window, too, where most of it lies between steps.
    """
    levels = phase_levels(analysis)
    window = analysis.window
    if not levels or window.between_steps_ns > _MOSTLY_RATIO * window.wall_ns:
        return window_level(analysis)
    return levels[0]


def divided(level: Level, whole: int) -> dict[tuple[str, str], int]:
    """`whole` shared among groups (part "") and their parts, in whole numbers that add up."""
    out: dict[tuple[str, str], int] = {}
    groups = shares([level.group_ns(group) for group in GROUPS], whole)
    for group, quanta in zip(GROUPS, groups, strict=True):
        out[group, ""] = quanta
        parts = shares([level.part_ns(group, part) for part in PARTS[group]], quanta)
        out |= {(group, p): n for p, n in zip(PARTS[group], parts, strict=True)}
    return out
