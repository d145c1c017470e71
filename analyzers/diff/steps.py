"""Which steps of two recordings are compared, how long they take, and what their time goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, CALLS, GROUPS, Analysis
from tracer.analyzers.diff.named import kernel_changes, module_changes
from tracer.analyzers.diff.scatter import measure
from tracer.analyzers.diff.turns import compare_turns
from tracer.analyzers.intervals import Longs
from tracer.analyzers.tables import steady_rows
from tracer.diff_analysis import Measure, PartOfStep, PhaseChange, Side

# The mean step stands for all where it is so close to the median one on both sides, and changes as
# the median does but for this share of the change.
_ALIKE_RATIO, _SAME_CHANGE_RATIO = 0.05, 0.25
# Phases that may be another, which was not seen. A forward pass is none of training steps.
_INFERENCE = ("forward", "prefill", "decode", "mixed")
_OPEN_PHASES = {"": (*_INFERENCE, "training"), "forward": _INFERENCE}
# The part of a step that is told apart only where it takes long.
_FOLDED = "preparation"
_GROUP_OF_BUCKET = np.array([GROUPS.index(group) for group, _ in BUCKETS])


def has_steps(analysis: Analysis) -> bool:
    """Whether steps were recognised, and the window is not taken as one for want of any."""
    return bool((analysis.steps["source"] != "window").any())


def phases_of(analysis: Analysis) -> list[str]:
    """The phases of its steps, the longest first; "" for steps without one."""
    steps = analysis.steps
    sums = steps.groupby(steps["phase"].astype(str), sort=False)["wall_ns"].sum()
    return [str(name) for name in sums.sort_values(ascending=False, kind="stable").index]


def pair_phases(before: Analysis, after: Analysis) -> list[tuple[str, str]]:
    """Phases of both sides that are compared. A single phase that is none in particular is taken
    for the single one of the other side: what it is was not seen."""
    return pair_names(phases_of(before), phases_of(after))


def pair_names(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
    """The same for the names of phases, the longest first."""
    common = [(name, name) for name in ours if name in theirs]
    if not common and len(ours) == len(theirs) == 1:
        open_phases = _OPEN_PHASES.get(ours[0], ()), _OPEN_PHASES.get(theirs[0], ())
        if theirs[0] in open_phases[0] or ours[0] in open_phases[1]:
            return [(ours[0], theirs[0])]
    return common


def told_phase(names: tuple[str, str]) -> str:
    """What the steps of both sides are called: as the side does that knows more."""
    return names[1] if names[1] in _OPEN_PHASES.get(names[0], ()) else names[0]


def compare_phase(before: Analysis, after: Analysis, names: tuple[str, str]) -> PhaseChange:
    """What changed in the steps of a phase, warm-up left out."""
    rows = _rows_of(before, names[0]), _rows_of(after, names[1])
    walls = _walls(before)[rows[0]], _walls(after)[rows[1]]
    step = measure(walls[0], walls[1])
    middle = not _mean_stands_for_all(walls[0], walls[1], step)
    shown = tuple(_middle_half(w) if middle else np.arange(w.size) for w in walls)
    ours = _side(before, rows[0], rows[0][shown[0]])
    theirs = _side(after, rows[1], rows[1][shown[1]])
    change = _compared(before, after, ours, theirs)
    return replace(
        change,
        phase=told_phase(names),
        phase_before=names[0],
        step=step,
        turn=_turn(before, after, rows),
        turn_counts=both_loop(before, after),
        like_turns=both_loop(before, after) and source_of(before) != source_of(after),
        medians=_medians(before, after, rows),
        middle=middle,
        parts=_parts(before, after, names),
        mean_turn=compare_turns(before, after, names, rows),
    )


def compare_windows(before: Analysis, after: Analysis, reason: str) -> PhaseChange:
    """What changed in the whole recordings, where no steps are there to compare."""
    ours, theirs = _window_side(before), _window_side(after)
    change = _compared(before, after, ours, theirs)
    step = Measure(ours.wall_ns, theirs.wall_ns, None, reason)
    return replace(change, step=step)


def _compared(before: Analysis, after: Analysis, ours: Side, theirs: Side) -> PhaseChange:
    """Modules and kernels of two sides; times of steps are filled in by the caller."""
    modules, by = module_changes(before, after, ours, theirs)
    return PhaseChange(
        phase=None,
        before=ours,
        after=theirs,
        step=Measure(ours.wall_ns, theirs.wall_ns),
        turn=None,
        medians={},
        middle=False,
        modules=modules,
        modules_by=by,
        kernels=kernel_changes(before, after, ours, theirs),
    )


def _rows_of(analysis: Analysis, phase: str) -> Longs:
    return steady_rows(analysis.steps, (analysis.steps["phase"] == phase).to_numpy())


def _walls(analysis: Analysis) -> Longs:
    walls: Longs = analysis.steps["wall_ns"].to_numpy()
    return walls


def _mean_stands_for_all(before: Longs, after: Longs, step: Measure) -> bool:
    """Whether the mean steps are like the median ones, and their difference like theirs."""
    means = float(before.mean()), float(after.mean())
    apart = (means[0] - step.before_ns, means[1] - step.after_ns)
    alike = abs(apart[0]) <= _ALIKE_RATIO * step.before_ns
    alike = alike and abs(apart[1]) <= _ALIKE_RATIO * step.after_ns
    allowed = max(_SAME_CHANGE_RATIO * abs(step.change_ns), step.scatter_ns or 0)
    return alike and abs(apart[1] - apart[0]) <= allowed


def _middle_half(walls: Longs) -> Longs:
    """The steps in the middle by their time, without the shortest and the longest quarter: few that
    took long are not among them, and what one alone went to by chance is evened out."""
    order = np.argsort(walls, kind="stable")
    quarter = (order.size + 1) // 4
    return np.sort(order[quarter : order.size - quarter])


def _side(analysis: Analysis, rows: Longs, shown: Longs) -> Side:
    steps, walls = analysis.steps, _walls(analysis)
    starts, last = steps["start_ns"].to_numpy(), len(steps) - 1
    followed = shown[shown < last]
    between = starts[followed + 1] - starts[followed] - walls[followed]
    own = (steps["phase"] == steps["phase"].iloc[int(rows[0])]).to_numpy()
    return Side(
        steps=int(rows.size),
        warmup_steps=int(own.sum()) - int(rows.size),
        shown=shown,
        wall_ns=int(walls[shown].sum()),
        devices=analysis.window.devices,
        bucket_ns=_bucket_sums(analysis, shown) if analysis.accounted else None,
        between_ns=int(between.sum()),
        followed=int(followed.size),
        batch=_usual(steps["batch"].to_numpy()[rows]),
        tokens=_usual(steps["tokens"].to_numpy()[rows]),
        tokens_per_second=_speed(analysis, str(steps["phase"].iloc[int(rows[0])])),
    )


def _window_side(analysis: Analysis) -> Side:
    charges = analysis.charges
    sums = np.bincount(charges["bucket"], weights=charges["ns"], minlength=len(BUCKETS))
    return Side(
        steps=0,
        warmup_steps=0,
        shown=np.zeros(0, dtype=np.int64),
        wall_ns=analysis.window.wall_ns,
        devices=analysis.window.devices,
        bucket_ns=sums.astype(np.int64) if analysis.accounted else None,
        between_ns=0,
        followed=0,
        batch=-1,
        tokens=-1,
        tokens_per_second=None,
    )


def _usual(values: Longs) -> int:
    """The median of sizes; -1 where one is not known."""
    return -1 if (values < 0).any() else int(np.median(values))


def _speed(analysis: Analysis, phase: str) -> float | None:
    named = {p.name: p.tokens_per_second for p in analysis.phases}
    return named.get(phase or "step")


def _bucket_sums(analysis: Analysis, rows: Longs) -> NDArray[np.int64]:
    charges = analysis.charges
    mine = np.isin(charges["step"].to_numpy(), rows)
    sums = np.zeros(len(BUCKETS), dtype=np.int64)
    np.add.at(sums, charges["bucket"].to_numpy()[mine], charges["ns"].to_numpy()[mine])
    return sums


def _medians(
    before: Analysis, after: Analysis, rows: tuple[Longs, Longs]
) -> dict[tuple[str, str], Measure]:
    """The median time of each group and part that took any, and how far it scatters."""
    if not before.accounted or not after.accounted:
        return {}
    ours = before.bucket_ns_of_steps()[rows[0]]
    theirs = after.bucket_ns_of_steps()[rows[1]]
    medians: dict[tuple[str, str], Measure] = {}
    for code, group in enumerate(GROUPS):
        mine = code == _GROUP_OF_BUCKET
        medians[group, ""] = measure(ours[:, mine].sum(axis=1), theirs[:, mine].sum(axis=1))
    for code in np.flatnonzero(ours.any(axis=0) | theirs.any(axis=0)).tolist():
        medians[BUCKETS[code]] = measure(ours[:, code], theirs[:, code])
    return medians


def _turn(before: Analysis, after: Analysis, rows: tuple[Longs, ...]) -> Measure | None:
    ours, theirs = _turns(before, rows[0]), _turns(after, rows[1])
    return measure(ours, theirs) if ours.size and theirs.size else None


def _turns(analysis: Analysis, rows: Longs) -> Longs:
    """From the start of each step to that of the next, where that one is of its phase."""
    starts = analysis.steps["start_ns"].to_numpy()
    followed = rows[:-1][np.diff(rows) == 1]
    turns: Longs = starts[followed + 1] - starts[followed]
    return turns


def both_loop(before: Analysis, after: Analysis) -> bool:
    """Whether the steps of both are calls in a loop, which goes on between them."""
    return source_of(before) in CALLS and source_of(after) in CALLS


def source_of(analysis: Analysis) -> str | None:
    """What told the steps; None where none were found."""
    return str(analysis.steps["source"].iloc[0]) if has_steps(analysis) else None


def _parts(before: Analysis, after: Analysis, names: tuple[str, str]) -> tuple[PartOfStep, ...]:
    """The parts of a step, such as forward and backward pass, where both sides tell them. One that
    is not there took no time, but for preparing: it is of the forward pass where it is short."""
    ours, theirs = _median_parts(before, names[0]), _median_parts(after, names[1])
    if not ours or not theirs:
        return ()
    told = [*ours, *(name for name in theirs if name not in ours)]
    told = [n for n in told if n != _FOLDED or (n in ours and n in theirs)]
    return tuple(PartOfStep(name, ours.get(name, 0), theirs.get(name, 0)) for name in told)


def _median_parts(analysis: Analysis, phase: str) -> dict[str, int]:
    parts = [p for p in analysis.phases if p.part_of and p.part_of == phase]
    return {p.name: p.median_ns for p in parts if p.median_ns is not None}
