"""What it costs that steps run without their compiled code: the like steps with it tell."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracer.analysis import Analysis
from tracer.analyzers.context import Context
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.rules.judging import counted

# So many steps with compiled code must be like those without before their median says anything.
_LEAST_STEPS = 3
_LIKE = ["phase", "batch", "tokens"]
# A step that compiled for this share of its time says little of the rest.
_COMPILED_RATIO = 0.01


@dataclass(frozen=True)
class EagerCost:
    """What steps take longer than the median of like steps with compiled code: `cost_ns` in all,
    and the medians of both; or the `reason` why that is not known."""

    cost_ns: int | None = None
    eager_ns: int | None = None
    compiled_ns: int | None = None
    reason: str = ""


def eager_cost(
    context: Context, analysis: Analysis, eager: Collection[int], compiled: Collection[int]
) -> EagerCost:
    """The steps `eager` beside those of `compiled` that have their phase, batch and tokens, and in
    which nothing is compiled or warmed up."""
    if not eager:
        return EagerCost()
    usable = _usable(context, analysis, compiled)
    if len(usable) < _LEAST_STEPS:
        ran = counted(len(usable), "step")
        return EagerCost(reason=f"{ran} ran the compiled code without compiling or warming up")
    steps = analysis.steps
    like = usable.groupby(_LIKE, observed=True)["wall_ns"].agg(["median", "size"])
    like = like[like["size"] >= _LEAST_STEPS]
    slow = steps.iloc[sorted(eager)].merge(like, left_on=_LIKE, right_index=True, how="inner")
    if len(slow) < len(eager):
        unlike = len(eager) - len(slow)
        return EagerCost(reason=f"{unlike} of its steps are like none that ran the compiled code")
    longer = slow["wall_ns"] - slow["median"]
    # Neither one long step nor the median of two kinds of step stands for all of them.
    cost = min(longer.sum(), longer.median() * len(slow))
    each = (int(slow["wall_ns"].median()), int(slow["median"].median()))
    return EagerCost(max(round(float(cost)), 0), *each)


def _usable(context: Context, analysis: Analysis, compiled: Collection[int]) -> pd.DataFrame:
    steps, gaps = analysis.steps, context.gaps
    compiling = (gaps.cause == CAUSE_CODE["compile"]) & (gaps.step >= 0)
    spent = np.zeros(len(steps), dtype=np.int64)
    np.add.at(spent, gaps.step[compiling], (gaps.end_ns - gaps.start_ns)[compiling])
    chosen = np.zeros(len(steps), dtype=bool)
    chosen[[step for step in compiled if step >= 0]] = True
    chosen &= ~steps["warmup"].to_numpy()
    return steps[chosen & (spent <= _COMPILED_RATIO * steps["wall_ns"].to_numpy())]
