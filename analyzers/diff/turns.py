"""What a step takes from start to start on average: with what comes every so many steps, such as
an evaluation, a checkpoint or the workers of an epoch, of which no median step tells."""

from __future__ import annotations

import numpy as np

from tracer.analysis import BUCKETS, CALLS, Analysis, until_next
from tracer.analyzers.diff.scatter import measure_means
from tracer.analyzers.intervals import Longs
from tracer.diff_analysis import BETWEEN, EVALUATION, OTHER_STEPS, MeanTurn, TurnPart

# What runs between two steps of training, an evaluation or the making of samples, belongs to their
# loop. What lies between two steps of another phase begins something new, such as a prompt.
_LEARNS = "training"

_Means = dict[tuple[str, str], float]


def compare_turns(
    before: Analysis, after: Analysis, names: tuple[str, str], steady: tuple[Longs, Longs]
) -> MeanTurn | None:
    """The mean of both sides; None where no step is followed. steady: its steps, warm-up left
    out."""
    ours, theirs = (
        _turns(analysis, name, rows)
        for analysis, name, rows in zip((before, after), names, steady, strict=True)
    )
    if not ours[0].size or not theirs[0].size:
        return None
    return MeanTurn(measure_means(ours[1], theirs[1]), _parts(before, after, ours, theirs))


def _turns(analysis: Analysis, phase: str, steady: Longs) -> tuple[Longs, Longs]:
    """The steps that another follows, and how long it is from the start of each to that one. The
    last of the recording is whole where it holds all of its turn, and so is what steps come after
    the last one of training."""
    steps = analysis.steps
    rows = np.flatnonzero((steps["phase"] == phase).to_numpy())
    lasted = until_next(steps, rows)
    learns, last = phase == _LEARNS, rows[-1] == len(steps) - 1
    if learns:
        lasted[:-1] = np.diff(steps["start_ns"].to_numpy()[rows])
    if (learns and not last) or (last and str(steps["source"].iloc[0]) not in CALLS):
        lasted[-1] = analysis.window.end_ns - int(steps["start_ns"].iloc[rows[-1]])
    chosen = np.isin(rows, steady) & (lasted > 0)
    return rows[chosen], lasted[chosen]


def _parts(
    before: Analysis,
    after: Analysis,
    ours: tuple[Longs, Longs],
    theirs: tuple[Longs, Longs],
) -> tuple[TurnPart, ...]:
    if not before.accounted or not after.accounted:
        return ()
    one, other = _means(before, *ours), _means(after, *theirs)
    keys = dict.fromkeys((*one, *other))
    return tuple(TurnPart(*k, round(one.get(k, 0.0)), round(other.get(k, 0.0))) for k in keys)


def _means(analysis: Analysis, rows: Longs, lasted: Longs) -> _Means:
    """What the mean turn goes to, on all devices: groups and parts of the step, the steps of
    another phase in it, and what lies between."""
    sums = analysis.bucket_ns_of_steps()[rows].sum(axis=0) / rows.size
    means: _Means = {BUCKETS[code]: float(sums[code]) for code in np.flatnonzero(sums).tolist()}
    inside, name = _steps_inside(analysis, rows, lasted)
    walls = int(analysis.steps["wall_ns"].to_numpy()[rows].sum())
    devices = max(analysis.window.devices, 1)
    means |= {(name, ""): inside * devices / rows.size} if inside else {}
    means[BETWEEN, ""] = (int(lasted.sum()) - walls - inside) * devices / rows.size
    return means


def _steps_inside(analysis: Analysis, rows: Longs, lasted: Longs) -> tuple[int, str]:
    """How long steps of another phase last that begin in these turns, and what they are."""
    steps = analysis.steps
    starts = steps["start_ns"].to_numpy()
    turn = np.searchsorted(starts[rows], starts, side="right") - 1
    within = (turn >= 0) & (starts < (starts[rows] + lasted)[turn])
    within[rows] = False
    phases = set(steps["phase"].astype(str).to_numpy()[within].tolist())
    name = EVALUATION if phases == {EVALUATION} else OTHER_STEPS
    return int(steps["wall_ns"].to_numpy()[within].sum()), name
