"""Rules device.cpu_tensor and transfer.repeated_weights: parts of a model left on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.analyzers.names.framework_words import quoted
from tracer.analyzers.rules.judging import milliseconds, ratio_of, severity_of, verdict
from tracer.events import Note
from tracer.findings import Check, Finding, Where

# Operators that compute: on a GPU each launches something.
_COMPUTING = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul",
    "aten::native_layer_norm", "aten::_fused_rms_norm", "aten::rms_norm", "aten::_softmax",
    "aten::_log_softmax", "aten::embedding", "aten::convolution", "aten::silu", "aten::gelu",
    "aten::scaled_dot_product_attention", "aten::index_select", "aten::cumsum", "aten::sort",
    "aten::topk", "aten::multinomial", "aten::exponential_",
)  # fmt: skip
# Copies below this size are inputs and indices, not weights.
_WEIGHT_BYTES = 1 << 20
# The same size in this share of the steps is a weight that travels each time.
_MOST_STEPS = 0.8


def judge_placement(context: Context, analysis: Analysis) -> RuleResult:
    """Operators on the CPU inside a GPU forward, and weights copied to the GPU in each step."""
    rules = ("device.cpu_tensor", "transfer.repeated_weights")
    if not analysis.accounted or analysis.cpu_only:
        reason = analysis.breakdown_reason or "no device was recorded"
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in rules))
    findings: tuple[Finding, ...] = (*_on_cpu(context, analysis), *_repeated(context, analysis))
    notes: tuple[Note, ...] = ()
    for rule in rules:
        findings, more = quoted(context.work.trace, rule, findings)
        notes += more
    return RuleResult(findings, tuple(verdict(rule, findings) for rule in rules), notes)


def _on_cpu(context: Context, analysis: Analysis) -> list[Finding]:
    """Outermost computing operators inside a forward that launch nothing and take notable time."""
    rows = _idle_computation(context)
    trace = context.work.trace
    places = context.work.once(Places)
    groups: dict[Where, list[int]] = {}
    for row in rows.tolist():
        where = places.of(row)
        key = replace(where, module=folded(where.module) if where.module else None)
        groups.setdefault(key, []).append(row)
    out = []
    for where, members in groups.items():
        events = np.array(members, dtype=np.int64)
        cost = int((trace.end_ns[events] - trace.start_ns[events]).sum())
        ratio = ratio_of(cost, analysis) or 0.0
        if ratio >= _NOTABLE:
            out.append(_cpu_finding(context, analysis, where, events, cost))
    return out


# Below this share of the window an operator on the CPU is a scalar on its way, no finding.
_NOTABLE = 0.001


def _idle_computation(context: Context) -> Longs:
    trace, host = context.work.trace, context.work.host
    # A compiler's trials on tensors without data launch nothing either.
    computing = trace.named(lambda name: name in _COMPUTING, "operator") & ~host.compiling
    outer = host.outermost(computing)
    rows = np.flatnonzero(computing)
    rows = rows[outer[rows] == rows]
    holds = np.zeros(outer.size, dtype=bool)
    holders = take(outer, np.flatnonzero(host.of_kind("runtime")))
    holds[holders[holders != NONE]] = True
    backward = take(host.backward_node, rows) != NONE
    starts = trace.start_ns[rows]
    begin, end = context.plan.window
    inside = (starts >= begin) & (starts < end) & _in_forward(context, rows)
    found: Longs = rows[~holds[rows] & ~backward & inside]
    return found


def _in_forward(context: Context, rows: Longs) -> NDArray[np.bool_]:
    """On a thread that launches, and in a module where there are any; else after the step has
    launched something, which leaves out the preparation of its input."""
    work = context.work
    thread = work.trace.events["thread"].to_numpy()
    compute = (work.work_class == 0) & (work.launch != NONE)
    launching: NDArray[np.bool_] = np.isin(thread[rows], np.unique(thread[work.launch[compute]]))
    if work.tree.paths:
        inside: NDArray[np.bool_] = work.tree.of_event[rows] != NONE
        return launching & inside
    steps = _step_at(context, work.trace.start_ns[rows])
    begun = _first_launch(context)[np.maximum(steps, 0)]
    after: NDArray[np.bool_] = (steps >= 0) & (work.trace.start_ns[rows] > begun)
    return launching & after


def _step_at(context: Context, times: Longs) -> Longs:
    starts = np.array([step.start_ns for step in context.plan.host])
    return np.searchsorted(starts, times, side="right") - 1


def _first_launch(context: Context) -> Longs:
    """When each step launched its first compute."""
    work = context.work
    first = np.full(len(context.plan.host), np.iinfo(np.int64).max)
    compute = (work.work_class == 0) & (context.plan.work_step != NONE)
    starts = work.trace.start_ns[np.maximum(work.launch, 0)]
    np.minimum.at(first, context.plan.work_step[compute], starts[compute])
    return first


def _cpu_finding(
    context: Context, analysis: Analysis, where: Where, events: Longs, cost: int
) -> Finding:
    steps = _steps_of(context, events)
    return Finding(
        rule="device.cpu_tensor",
        severity=severity_of(cost, analysis),
        title=f"{where.operator} runs on the CPU inside a step of a GPU model",
        count=int(events.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=where,
        detail={
            "operator": where.operator,
            "host_ns": cost,
            "expected": "a kernel on the device",
            "gain_basis": "measured: the host's time in them; a launch takes its place",
        },
        advice=(
            f"It holds the host {milliseconds(cost)}. A tensor or module stayed on the CPU: move "
            "it with .to(device) before the loop; with device_map look at model.hf_device_map."
        ),
        gain_ns=cost,
        events=tuple(events[:100].tolist()),
    )


def _steps_of(context: Context, events: Longs) -> tuple[int, ...]:
    at = np.unique(_step_at(context, context.work.trace.start_ns[events]))
    return tuple(int(step) for step in at if step >= 0)


@dataclass(frozen=True)
class _Copies:
    """Copies of one size to the device: rows of work, and the steps that hold one."""

    size: int
    rows: Longs
    steps: tuple[int, ...]


def _repeated(context: Context, analysis: Analysis) -> list[Finding]:
    found = _same_sizes(context)
    groups: dict[Where, list[_Copies]] = {}
    places = context.work.once(Places)
    for copies in found:
        where = places.of_work(int(copies.rows[0]))
        key = Where(file=where.file, line=where.line, function=where.function, module=where.module)
        groups.setdefault(key, []).append(copies)
    return [_weights(context, analysis, where, members) for where, members in groups.items()]


def _same_sizes(context: Context) -> list[_Copies]:
    """Large copies to the device whose size returns in most steps, inside the model or after the
    first launch of the step: a batch of input comes before."""
    rows, sizes = _to_device(context)
    steps = context.plan.work_step[rows]
    wanted = max(2, int(np.ceil(_MOST_STEPS * len(context.plan.host))))
    out = []
    for size in np.unique(sizes).tolist():
        mine = rows[(sizes == size) & (steps != NONE)]
        inside = mine[_inside_model(context, mine)]
        touched = np.unique(context.plan.work_step[inside])
        if touched.size >= wanted:
            out.append(_Copies(size, mine, tuple(int(step) for step in touched)))
    return out


def _to_device(context: Context) -> tuple[Longs, Longs]:
    work = context.work
    table = work.trace.table("copies")
    at = lookup(table["event"].to_numpy(), work.event)
    to_device = table["direction"].eq("host_to_device").to_numpy()
    sizes = take(table["bytes"].to_numpy(), at)
    large = (sizes >= _WEIGHT_BYTES) & (take(to_device.astype(np.int64), at) == 1)
    return np.flatnonzero(large), sizes[large]


def _inside_model(context: Context, rows: Longs) -> NDArray[np.bool_]:
    """After the step has launched compute, or inside a module that is no root of others: what
    comes before, or is moved by the root itself, is input."""
    work = context.work
    starts = work.trace.start_ns[np.maximum(work.launch, 0)][rows]
    after: NDArray[np.bool_] = starts > _first_launch(context)[context.plan.work_step[rows]]
    if not work.tree.paths:
        return after
    module = work.module[rows]
    parents = work.tree.parent
    roots = np.setdiff1d(np.unique(parents[parents != NONE]), np.flatnonzero(parents != NONE))
    inside: NDArray[np.bool_] = (module != NONE) & (after | ~np.isin(module, roots))
    return inside


def _weights(context: Context, analysis: Analysis, where: Where, copies: list[_Copies]) -> Finding:
    rows = np.concatenate([c.rows for c in copies])
    trace = context.work.trace
    events = context.work.event[rows]
    took = int((trace.end_ns[events] - trace.start_ns[events]).sum())
    exposed = int(analysis.work["charged_ns"].to_numpy()[rows].sum())
    steps = tuple(sorted({step for c in copies for step in c.steps}))
    size = sum(c.size * c.rows.size for c in copies)
    each = size // max(len(steps), 1)
    owner = f" in {where.module}" if where.module else ""
    return Finding(
        rule="transfer.repeated_weights",
        severity=severity_of(exposed, analysis),
        title=(
            f"the same {each / 2**20:.0f} MiB travel to the GPU{owner} in {len(steps)} of "
            f"{len(context.plan.host)} steps"
        ),
        count=len(steps),
        cost_ns=exposed,
        ratio=ratio_of(exposed, analysis),
        steps=steps,
        where=where,
        detail={
            "bytes_per_step": each,
            "copy_ns": took,
            "copy_ns_per_step": took // max(len(steps), 1),
            "modules": _owners(context, rows),
            "copies": int(rows.size),
            "sizes_bytes": [c.size for c in copies],
            "expected": "weights that stay on the device",
            "gain_basis": "measured: time in which the device did nothing but receive them",
        },
        advice=(
            f"Copies take {milliseconds(took)}. These weights stay on the host and are moved for "
            "each forward (offload, device_map='auto' on a full GPU): quantize or shard the model "
            "so that it fits, or keep these layers on the device."
        ),
        gain_ns=exposed,
        events=tuple(events[:100].tolist()),
    )


def _owners(context: Context, rows: Longs) -> list[str]:
    """The modules that ask for these copies, at most twenty."""
    modules = context.work.module[rows]
    return [context.work.tree.paths[m] for m in np.unique(modules[modules != NONE])[:20].tolist()]
