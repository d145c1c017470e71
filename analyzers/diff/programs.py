"""Whether two recordings are of one program, by what it calls and what that runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.analyzers.intervals import Longs
from tracer.diff_analysis import PhaseChange

# Another type of numbers, or another kernel for an operator, leaves a program without a kernel in
# common with what it was; it still calls the same operators. Below this share of both it is another
# program.
_COMMON_RATIO = 0.1
# A compiler puts regions of its own in the place of operators.
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")


def are_other_programs(before: Analysis, after: Analysis, change: PhaseChange) -> bool:
    """Whether these call other operators and run other kernels, in modules of other names. False
    also where too little is recorded to tell."""
    if _common_kernels(change) > _COMMON_RATIO or _paths(before) & _paths(after):
        return False
    called = _called(before), _called(after)
    if not all(called) or any(name.startswith(_COMPILED) for side in called for name in side):
        return False
    return _overlap(*called) < _COMMON_RATIO


def _common_kernels(change: PhaseChange) -> float:
    """The share of kernel time in kernels of both sides, on the side where it is less."""
    times = np.array([(row.before_ns, row.after_ns) for row in change.kernels], dtype=np.float64)
    if not times.size or not times.sum(axis=0).all():
        return 1.0
    common = (times > 0).all(axis=1)
    return float((times[common].sum(axis=0) / times.sum(axis=0)).min())


def _paths(analysis: Analysis) -> set[str]:
    return set(analysis.modules["path"].astype(str)) - {""}


def _called(analysis: Analysis) -> dict[str, float]:
    """How often each operator is called a step that no other calls."""
    trace = analysis.trace
    rows = trace.rows("operator")
    codes = trace.name_codes[rows[_outermost(analysis, rows)]]
    counts = zip(*np.unique(codes, return_counts=True), strict=True)
    return {trace.names[code]: count / max(len(analysis.steps), 1) for code, count in counts}


def _outermost(analysis: Analysis, rows: Longs) -> NDArray[np.bool_]:
    """Which of these host events lie in no other of them on their thread."""
    if not rows.size:
        return np.zeros(0, dtype=bool)
    events = analysis.trace.events
    start = analysis.trace.start_ns[rows]
    start = start - start.min()
    end = start + events["duration_ns"].to_numpy()[rows].astype(np.int64)
    thread = events["thread"].to_numpy()[rows].astype(np.int64)
    thread = (thread - thread.min()) * (end.max() + 1)
    order = np.lexsort((-end, start, thread))
    reach = np.maximum.accumulate((thread + end)[order])
    found = np.ones(rows.size, dtype=bool)
    found[order[1:]] = (thread + start)[order[1:]] >= reach[:-1]
    return found


def _overlap(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Calls that both make, as a share of those that either makes."""
    names = ours.keys() | theirs.keys()
    calls = [(ours.get(name, 0.0), theirs.get(name, 0.0)) for name in names]
    return sum(map(min, calls)) / sum(map(max, calls))
