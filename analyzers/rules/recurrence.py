"""Rule fallback.mixer: a state-space or linear-attention layer whose recurrence runs operator by
operator, where a fused scan would be one kernel. Models do so, and say it once when they are
loaded, where the package with the kernels is not installed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import folded
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.framework_words import quoted
from tracer.analyzers.names.kernel_table import KernelName
from tracer.analyzers.rules.judging import (
    counted,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.findings import Check, Finding, Where

RULE = "fallback.mixer"
# A fused layer has its scan, which may be some kernels for chunks, a convolution, gates and casts
# beside its products.
_KERNELS = 24
_SCANS = ("SCAN", "SCAN_AUX")
# What a layer has anyway. Products of small pieces are the recurrence's own.
_ANYWAY = ("gemm", "conv", "norm")
_SMALL_PRODUCTS = ("aten::bmm", "aten::baddbmm")


class _Pieces(NamedTuple):
    """Work of one kind of mixer in one phase: rows of work, the call that each lies in, the module,
    and the phase."""

    rows: Longs
    call: Longs
    module: str
    phase: str


def judge_recurrence(context: Context, analysis: Analysis) -> RuleResult:
    """By the kernels in each call of a mixer that are neither its products nor a fused scan."""
    mixers = np.array([role == "mixer" for role in context.roles.own], dtype=bool)
    reason = _not_checked(context, analysis)
    pieces = [] if reason or not mixers.any() else _by_place(context, analysis, mixers)
    found = [_finding(context, analysis, one) for one in pieces if _is_unfused(context, one)]
    findings, notes = quoted(context.work.trace, RULE, found)
    check = Check(RULE, "not_checked", reason) if reason else verdict(RULE, findings)
    return RuleResult(findings, (check,), notes)


def _not_checked(context: Context, analysis: Analysis) -> str:
    if not analysis.accounted:
        return analysis.breakdown_reason
    if context.work.cpu_only:
        return "there is no device, and a CPU has no fused scans"
    return "" if context.work.tree.paths else "no modules are recorded"


def _by_place(context: Context, analysis: Analysis, mixers: NDArray[np.bool_]) -> list[_Pieces]:
    """The work in mixers, layers that are alike and steps of a phase together; of what lies in no
    step only where there are none."""
    work = context.work
    block = np.append(np.asarray(context.roles.block, dtype=np.int64), NONE)[work.module]
    rows = np.flatnonzero((block != NONE) & np.append(mixers, False)[block])
    if context.plan.found:
        rows = rows[context.plan.work_step[rows] != NONE]
    paths = [folded(path) for path in work.tree.paths]
    phases = [str(phase) or "step" for phase in analysis.steps["phase"]] or ["the window"]
    steps = np.maximum(context.plan.work_step[rows], 0).tolist()
    places = [(paths[b], phases[s]) for b, s in zip(block[rows].tolist(), steps, strict=True)]
    number = {place: i for i, place in enumerate(dict.fromkeys(places))}
    found = np.array([number[place] for place in places], dtype=np.int64)
    call = _calls(work, mixers)[rows]
    return [_Pieces(rows[found == i], call[found == i], *place) for place, i in number.items()]


def _calls(work: Work, mixers: NDArray[np.bool_]) -> Longs:
    """The call of a mixer that each piece of work lies in, the innermost; -1 for none."""
    own = take(work.tree.own, np.arange(len(work.trace.events)))
    ranges = work.host.of_kind("module") & np.append(mixers, False)[own]
    return take(work.host.nearest(ranges), work.module_event)


def _is_unfused(context: Context, pieces: _Pieces) -> bool:
    """Whether no scan is among it, and the usual call has more kernels than a fused one has."""
    work = context.work
    tokens = {work.names[code].token for code in np.unique(work.name_code[pieces.rows]).tolist()}
    return not tokens & set(_SCANS) and _kernels_in_a_call(work, pieces) >= _KERNELS


def _kernels_in_a_call(work: Work, pieces: _Pieces) -> int:
    """Of the usual call, in the forward pass."""
    forward = (work.forward[pieces.rows] == NONE) & (pieces.call != NONE)
    mine = forward & _of_the_recurrence(work, pieces.rows)
    counts = np.unique(pieces.call[mine], return_counts=True)[1]
    return int(np.median(counts)) if counts.size else 0


def _of_the_recurrence(work: Work, rows: Longs) -> NDArray[np.bool_]:
    """What a fused kernel would do; but for products of linear layers, convolutions and norms."""
    anyway = np.array([_runs_anyway(name) for name in work.names], dtype=bool)[work.name_code[rows]]
    small = work.trace.named(lambda name: name in _SMALL_PRODUCTS, "operator")
    operator = work.operator[rows]
    kept: NDArray[np.bool_] = ~anyway | (small[np.maximum(operator, 0)] & (operator != NONE))
    return kept


def _runs_anyway(name: KernelName) -> bool:
    return name.category in _ANYWAY


def _finding(context: Context, analysis: Analysis, pieces: _Pieces) -> Finding:
    work, row = context.work, context.work.module[pieces.rows[0]]
    mine = pieces.rows[_of_the_recurrence(work, pieces.rows)]
    kernels = _kernels_in_a_call(work, pieces)
    idle = _idle_before(context, mine)
    cost = int(analysis.work["charged_ns"].to_numpy()[mine].sum()) + idle
    calls = int(np.unique(pieces.call[pieces.call != NONE]).size)
    kind = work.tree.types[context.roles.block[row]]
    return Finding(
        rule=RULE,
        severity=severity_of(cost, analysis),
        title=(
            f"{pieces.phase}: the recurrence of {kind} runs as "
            f"{counted(kernels, 'kernel')} a call, none of them a fused scan, in "
            f"{counted(calls, 'call')}"
        ),
        count=calls,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(int(s) for s in np.unique(context.plan.work_step[mine]) if s != NONE),
        where=Where(module=pieces.module),
        detail={
            "cause": "unfused-scan",
            "kernels_per_call": kernels,
            "idle_ns": idle,
            "expected": f"fused kernels, fewer than {_KERNELS} a call",
            "gain_basis": "estimate: of the kernels of a call as many stay as a fused layer has",
        },
        advice=(
            f"They take {milliseconds(cost)} with the idle before them. Install the kernels that "
            "the model's code looks for (its warning at loading names them, such as mamba-ssm and "
            "causal-conv1d, or flash-linear-attention), or compile the layer with torch.compile."
        ),
        gain_ns=cost * (kernels - _KERNELS + 1) // kernels,
        events=tuple(work.event[mine[:100]].tolist()),
    )


def _idle_before(context: Context, rows: Longs) -> int:
    """How long the device was idle before this work."""
    gaps = context.gaps
    before = np.isin(gaps.after, rows) & ~gaps.unrecorded
    return int((gaps.end_ns - gaps.start_ns)[before].sum())
