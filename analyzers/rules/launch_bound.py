"""Rule gap.launch_bound: the host issues many short kernels and the device waits for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import DECODING, Analysis
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.idle_pieces import IdlePieces, is_block
from tracer.analyzers.rules.judging import (
    milliseconds,
    ratio_of,
    severity_of,
    steady_steps,
)
from tracer.findings import Finding

# A phase is launch-bound when launches explain this share of its wall time and the host takes
# longer to issue its work than the device to do it.
_LAUNCH_SHARE = 0.10
# Steps of fewer kernels than this are not too many launches: the host does something else.
_FEWEST_KERNELS = 2
# What calls of compiled code are named.
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph")


@dataclass(frozen=True)
class _Issue:
    """A phase as the host issued it: sums over its steady steps, nanoseconds."""

    steps: list[int]
    wall_ns: int
    busy_ns: int
    issue_ns: int
    launch_idle_ns: int
    python_idle_ns: int
    idle_ns: int
    kernels: int
    replayed: int
    compiled: int
    gaps: int


def launch_bound(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    phases = analysis.steps["phase"].astype(str).to_numpy()
    steady = np.array(steady_steps(analysis), dtype=np.int64)
    out = []
    for phase in dict.fromkeys(phases[steady].tolist()):
        issue = _issue_of(pieces, analysis, steady[phases[steady] == phase])
        if _islaunch_bound(issue):
            out.append(_launch_finding(pieces, analysis, phase, issue))
    return out


def _issue_of(pieces: IdlePieces, analysis: Analysis, steps: Longs) -> _Issue:
    gaps, length = pieces.gaps, pieces.length
    inside = np.isin(gaps.step, steps)
    launch = inside & (gaps.cause == CAUSE_CODE["launch"])
    short = inside & (gaps.cause == CAUSE_CODE["host"]) & ~is_block(pieces, analysis)
    mine = np.isin(pieces.context.plan.work_step, steps) & pieces.work.is_kernel
    replayed = mine & _from_graphs(pieces)
    return _Issue(
        steps=steps.tolist(),
        wall_ns=int(analysis.steps["wall_ns"].to_numpy()[steps].sum()),
        busy_ns=int(analysis.steps["busy_ns"].to_numpy()[steps].sum()),
        issue_ns=_issue_time(pieces, steps),
        launch_idle_ns=int(length[launch].sum()),
        python_idle_ns=int(length[short].sum()),
        idle_ns=int(length[inside].sum()),
        kernels=int(mine.sum()),
        replayed=int(replayed.sum()),
        compiled=int((mine & ~replayed & _from_compiled_code(pieces)).sum()),
        gaps=int(np.unique(gaps.gap[launch]).size),
    )


def _from_graphs(pieces: IdlePieces) -> NDArray[np.bool_]:
    """Which work the launch of a whole graph put on the device."""
    graphs = pieces.context.work.launches.graph
    launch = pieces.work.launch
    from_graph: NDArray[np.bool_] = (launch != NONE) & graphs[np.maximum(launch, 0)]
    return from_graph


def _from_compiled_code(pieces: IdlePieces) -> NDArray[np.bool_]:
    """Which work was launched one by one from within compiled code."""
    host = pieces.work.host
    around = host.nearest(
        pieces.trace.named(lambda name: name.startswith(_COMPILED), "operator", "annotation")
    )
    compiled: NDArray[np.bool_] = take(around, pieces.work.launch) != NONE
    return compiled


def _issue_time(pieces: IdlePieces, steps: Longs) -> int:
    """From the first launch of each step to its last, less the waits in between."""
    trace, plan = pieces.trace, pieces.context.plan
    launched = pieces.work.launch[np.isin(plan.work_step, steps)]
    launching = np.zeros(len(trace.events), dtype=bool)
    launching[launched[launched != NONE]] = True
    launches = np.flatnonzero(launching)
    of_step = np.searchsorted([s.start_ns for s in plan.host], trace.start_ns[launches], "right")
    first = np.full(len(plan.host) + 1, np.iinfo(np.int64).max)
    last = np.zeros(len(plan.host) + 1, dtype=np.int64)
    np.minimum.at(first, of_step, trace.start_ns[launches])
    np.maximum.at(last, of_step, trace.end_ns[launches])
    spans = np.maximum(last - first, 0)[last > 0]
    return int(spans.sum())


def _islaunch_bound(issue: _Issue) -> bool:
    enough = issue.launch_idle_ns >= _LAUNCH_SHARE * max(issue.wall_ns, 1)
    several = issue.kernels >= _FEWEST_KERNELS * len(issue.steps)
    return enough and several and issue.issue_ns > issue.busy_ns > 0


def _holds_unprofiled(analysis: Analysis, phase: str, issue: _Issue) -> bool:
    """Whether launches still explain enough of the step once idle is scaled to its unprofiled
    time; without a measurement the verdict stands as it is."""
    observer = analysis.observer
    if observer is None or observer.host_idle_factor is None or observer.phase != phase:
        return True
    wall = observer.unprofiled_step_ns * len(issue.steps)
    return observer.host_idle_factor * issue.launch_idle_ns >= _LAUNCH_SHARE * wall


def _waits(issue: _Issue, steps: int) -> str:
    """What the cost is made of, as the idle causes tell it."""
    text = f"The device waits {milliseconds(issue.launch_idle_ns / steps)} a step for launches"
    if issue.python_idle_ns:
        text += f" and {milliseconds(issue.python_idle_ns / steps)} for the host between them"
    return f"{text}."


def _launch_finding(pieces: IdlePieces, analysis: Analysis, phase: str, issue: _Issue) -> Finding:
    count = len(issue.steps)
    certain = _holds_unprofiled(analysis, phase, issue)
    cost = issue.launch_idle_ns + issue.python_idle_ns
    share = cost / issue.idle_ns if issue.idle_ns else 0.0
    overhead = issue.idle_ns / (issue.wall_ns * max(analysis.window.devices, 1))
    kernels = round(issue.kernels / count)
    rows = pieces.of_cause("launch")
    rows = rows[np.isin(pieces.gaps.step[rows], issue.steps)]
    busy, host = issue.busy_ns / count, issue.issue_ns / count
    return Finding(
        rule="gap.launch_bound",
        severity=severity_of(cost, analysis) if certain else "info",
        title=("" if certain else "uncertain, the profiler may cause it: ")
        + (
            f"{phase or 'step'}: the host issues {kernels} kernels a step in "
            f"{milliseconds(host)}, the device needs {milliseconds(busy)} for them"
        ),
        count=count,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(issue.steps),
        detail={
            "phase": phase or "step",
            "host_issue_ns": round(host),
            "device_busy_ns": round(busy),
            "kernels": kernels,
            "gaps": issue.gaps,
            "mean_gap_ns": round(issue.launch_idle_ns / issue.gaps) if issue.gaps else 0,
            "launch_idle_ns": issue.launch_idle_ns,
            "python_idle_ns": issue.python_idle_ns,
            "explained_ratio": share,
            "overhead_ratio": overhead,
            "uncertain": None if certain else "profiler",
        },
        advice=f"{_waits(issue, count)} {_launch_advice(phase, issue)}",
        gain_ns=cost,
        events=pieces.evidence(rows),
    )


def _launch_advice(phase: str, issue: _Issue) -> str:
    """What to do about the kernels that are launched one by one, by who launches most of them."""
    single = issue.kernels - issue.replayed
    if issue.replayed:
        count = len(issue.steps)
        return (
            f"CUDA graphs replay {round(issue.replayed / count)} of the "
            f"{round(issue.kernels / count)} kernels; {round(single / count)} are still launched "
            "one by one: take them into the graph, or leave them out of the step."
        )
    if issue.compiled > single / 2:
        return (
            "The code is compiled: let it be replayed as a CUDA graph, too "
            "(mode='reduce-overhead', fixed shapes), or give each launch more work: a larger batch."
        )
    return _EAGER_ADVICE.get("decode" if phase in DECODING else phase, _EAGER_ADVICE[""])


_EAGER_ADVICE = {
    "decode": (
        "Replay the step as a CUDA graph (torch.compile(mode='reduce-overhead') with a static "
        "KV cache), fuse kernels with torch.compile, or give each launch more work: a larger "
        "batch."
    ),
    "training": (
        "Fuse kernels with torch.compile, use a fused optimizer, or give each launch more "
        "work: a larger batch. Steps of fixed shapes can be replayed as a CUDA graph "
        "(mode='reduce-overhead')."
    ),
    "": (
        "Fuse kernels with torch.compile, or replay the step as a CUDA graph "
        "(torch.compile(mode='reduce-overhead')) where its shapes are fixed, or give each launch "
        "more work: a larger batch."
    ),
}
