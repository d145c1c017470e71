"""The one way from a trace to an `Analysis`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, HOW, TABLES, WORK_CLASSES, Analysis, Window
from tracer.analyzers.accounting import (
    Lanes,
    Slices,
    cut_window,
    exposure,
    overlapped_total,
    settle_steps,
    steps_at,
)
from tracer.analyzers.collecting import collect_work, device_part_cut
from tracer.analyzers.communication.collectives import tabulate_collectives
from tracer.analyzers.context import Context, Explain, Rule, StepPlan
from tracer.analyzers.evidence.directions import DIRECTIONS
from tracer.analyzers.evidence.ladder import attribute
from tracer.analyzers.facts.counters import memory_of, metrics_of
from tracer.analyzers.facts.cut import known_until
from tracer.analyzers.facts.host import link_launches, read_host
from tracer.analyzers.facts.modules import read_modules
from tracer.analyzers.facts.work import Work
from tracer.analyzers.gaps import CAUSES, Gaps, find_gaps
from tracer.analyzers.idle.alone import explain_alone
from tracer.analyzers.integrity import integrity_notes
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.attention_paths import backends_by_site
from tracer.analyzers.rules.compiled_again import told_once
from tracer.analyzers.rules.roofline import reach
from tracer.analyzers.steps.finder import HostStep, find_steps
from tracer.analyzers.steps.kernel_phases import phases_by_kernels
from tracer.analyzers.steps.observer import not_observed, observe
from tracer.analyzers.steps.training import training_phases
from tracer.analyzers.steps.warmup import find_first_use
from tracer.analyzers.steps.whole import whole_steps
from tracer.analyzers.tables import (
    sum_charges,
    summarise_phases,
    tabulate_kernels,
    tabulate_modules,
)
from tracer.events import Trace, make_table, text_column
from tracer.findings import costliest_first


def run_pipeline(trace: Trace, explain: Explain | None, rules: tuple[Rule, ...]) -> Analysis:
    """Link, attribute, account, explain the idle, then ask every rule."""
    context, analysis = _account(trace, explain)
    analysis = replace(analysis, roofline=reach(context, analysis))
    results = [rule(context, analysis) for rule in rules]
    return replace(
        analysis,
        findings=costliest_first(told_once([f for result in results for f in result.findings])),
        checks=tuple(c for result in results for c in result.checks),
        notes=analysis.notes + tuple(n for result in results for n in result.notes),
    )


def _account(trace: Trace, explain: Explain | None) -> tuple[Context, Analysis]:
    """What the rules judge: the structures, and every table and sum."""
    context, busy = _understand(trace)
    if context.work.cpu_only:
        context = replace(context, gaps=explain_alone(context.gaps, context.work))
    elif explain is not None:
        context = replace(context, gaps=explain(context))
    return context, assemble(context, busy)


def work_of(trace: Trace) -> Work:
    """The work with its host side, launches and modules, of which all else is made."""
    host = read_host(trace)
    launches = link_launches(host)
    return collect_work(trace, host, launches, read_modules(trace, host))


def _understand(trace: Trace) -> tuple[Context, Slices]:
    """Work with its host side, steps, roles, buckets, gaps; and the slices in which work runs, of
    which the tables are made."""
    work = work_of(trace)
    host, launches, lanes = work.host, work.launches, lanes_of(work)
    whole = whole_steps(trace, launches, find_steps(trace, host, launches))
    plan = replace(plan_steps(work, lanes, whole.steps), cut_off=whole.cut_off)
    attribution, roles = attribute(
        work,
        plan.work_step,
    )
    if plan.found:
        told = phases_by_kernels(work, attribution, plan.host, plan.work_step)
        plan = replace(plan, host=told)
    # The host is there also where no operator ran, if any would have been recorded.
    without = work.cpu_only and not work.event.size and not _unaccounted(work)
    devices = _HOST if without else np.unique(lanes.device)
    slices = cut_window(lanes, devices, *plan.window, plan.start_ns, plan.end_ns)
    gaps = find_gaps(slices, lanes, work.cpu_only)
    return Context(work, roles, attribution, lanes, plan, gaps), slices.busy


def lanes_of(work: Work) -> Lanes:
    """Device work as intervals. The operators of a CPU-only recording share one lane."""
    events = work.trace.events
    return Lanes(
        np.zeros(work.event.size, dtype=np.int32)
        if work.cpu_only
        else events["device"].to_numpy()[work.event].astype(np.int32),
        work.trace.start_ns[work.event],
        work.trace.end_ns[work.event],
        work.work_class,
        events["stream"].to_numpy()[work.event],
        events["correlation"].to_numpy()[work.event],
    )


def plan_steps(work: Work, lanes: Lanes, found: list[HostStep]) -> StepPlan:
    """Give each piece of work the step that launched it, and each step its wall time."""
    if not found:
        return _one_step(work)
    announced = np.array([step.start_ns for step in found], dtype=np.int64)
    host_end = np.array([step.end_ns for step in found], dtype=np.int64)
    asked = work.site if work.cpu_only else work.launch
    asked_at = work.trace.start_ns[np.maximum(asked, 0)]
    work_step = steps_at(asked_at, announced, host_end + 1)
    work_step = np.where((asked == NONE) | work.orphaned, NONE, work_step)
    marked_step, marked_end = _marked_ends(work.trace, announced, host_end)
    start, end = settle_steps(
        announced,
        host_end,
        np.concatenate([work_step, marked_step]),
        np.concatenate([lanes.end_ns, marked_end]),
    )
    return StepPlan(found, start, end, work_step, True)


def _marked_ends(trace: Trace, announced: Longs, host_end: Longs) -> tuple[Longs, Longs]:
    """The steps whose end on the device detail `light` marked, and when it was: such a recording
    holds no device work. The row of the step on the host has the same number."""
    if trace.meta.detail != "light":
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    marks, hosts = trace.rows("device_annotation"), trace.rows("annotation", "module")
    number = trace.events["external_id"].to_numpy()
    begun = hosts[np.argsort(number[hosts], kind="stable")][number[marks]]
    return steps_at(trace.start_ns[begun], announced, host_end + 1), trace.end_ns[marks]


def _one_step(work: Work) -> StepPlan:
    """No step was recognised: from the first to the last activity of host or device."""
    trace = work.trace
    rows = trace.rows("operator", "annotation", "module", "frame", "runtime", *_DEVICE)
    start = int(trace.start_ns[rows].min()) if rows.size else 0
    end = known_until(trace) or (int(trace.end_ns[rows].max()) if rows.size else 0)
    step = HostStep("window", start, end, NONE, "window")
    work_step = np.where(work.orphaned, NONE, 0).astype(np.int32)
    return StepPlan([step], np.array([start]), np.array([end]), work_step, False)


_DEVICE = ("kernel", "memcpy", "memset")
_HOST = np.zeros(1, dtype=np.int32)  # the lane of the operators
# Devices of one process are fewer than this: a stream and its device make one number.
_STREAMS_APART = 4096


def _unaccounted(work: Work) -> str:
    """Why the time cannot be accounted for; "" where it can."""
    if work.trace.meta.extra.get("goes_on"):
        return "the program still runs: what is recorded comes when it ends"
    if work.trace.meta.detail == "light":
        return "detail 'light' times steps and records no kernels"
    if work.trace.device_rows.size or work.cpu_only:
        return ""
    if device_part_cut(work.trace):
        return "the recording was cut off before its device rows"
    return "launches were recorded and no device row was"


def assemble(context: Context, busy: Slices) -> Analysis:
    """The result without findings: every table and sum."""
    work, lanes, plan = context.work, context.lanes, context.plan
    slices = _slices_table(context, busy)
    charges = sum_charges(
        slices["step"].to_numpy(), slices["bucket"].to_numpy(), slices["charged_ns"].to_numpy()
    )
    reason = _unaccounted(work)
    accounted = not reason
    first_use = find_first_use(context.gaps, plan.start_ns, plan.end_ns)
    steps = _steps_table(plan, slices, accounted, first_use.warmup)
    inside = _inside(lanes, *plan.window)
    window = _window(work, plan, slices, inside, accounted)
    exposed, overlapped = exposure(lanes, *plan.window)
    charged = _charged(slices, work.event.size)
    return Analysis(
        trace=work.trace,
        window=window,
        steps=steps,
        work=_work_table(context, charged, exposed, overlapped),
        slices=slices,
        gaps=_gaps_table(context.gaps),
        modules=tabulate_modules(work, context.roles, charged, inside),
        kernels=tabulate_kernels(work, context.attribution, inside, window.capacity_ns),
        charges=charges,
        collectives=tabulate_collectives(
            work, context.attribution, exposed, overlapped, plan.work_step
        ),
        phases=summarise_phases(steps, charges if accounted else None)
        + training_phases(
            steps, slices, lanes, work, plan.work_step, context.attribution.direction
        ),
        overlapped_ns=overlapped_total(lanes, *plan.window),
        accounted=accounted,
        breakdown_reason=reason,
        cpu_only=work.cpu_only,
        facts=_facts(context),
        notes=work.trace.notes
        + work.notes
        + tuple(context.attribution.notes)
        + integrity_notes(work, steps if plan.found else steps[:0], context.gaps, plan.cut_off),
        observer=(observer := observe(work.trace, steps, charges)),
        observer_reason=not_observed(work.trace, observer),
        memory=memory_of(work.trace),
        device_metrics=metrics_of(work.trace, window.start_ns, window.start_ns + window.wall_ns),
    )


def _facts(context: Context) -> dict[str, Any]:
    """What is known of the run, and the layers of the model where the trace shows them."""
    patterns = context.attribution.patterns
    seen: dict[str, Any] = dict(patterns[0].facts) if patterns else {}
    ran = context.work.once(backends_by_site)
    if ran:
        seen["attention_ran"] = ran
    return {**seen, **context.work.trace.meta.facts}


def _inside(lanes: Lanes, start: int, end: int) -> NDArray[np.bool_]:
    """Work that runs in the window; work of no length counts where it stands."""
    empty = lanes.start_ns == lanes.end_ns
    runs: NDArray[np.bool_] = (lanes.start_ns < end) & (lanes.end_ns > start)
    stands = empty & (lanes.start_ns >= start) & (lanes.start_ns <= end)
    inside: NDArray[np.bool_] = runs | stands
    return inside


def _slices_table(context: Context, slices: Slices) -> pd.DataFrame:
    """The window in pieces: work with its bucket, idle with its cause."""
    gaps = context.gaps
    idle_bucket = np.array([BUCKET_CODE["overhead", cause] for cause in CAUSES], dtype=np.int16)
    columns: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "device": (slices.device, gaps.device),
        "start_ns": (slices.start_ns, gaps.start_ns),
        "end_ns": (slices.end_ns, gaps.end_ns),
        "step": (slices.step, gaps.step),
        "work": (slices.work, np.full(gaps.device.size, NONE, dtype=np.int32)),
        "bucket": (context.attribution.bucket[slices.work], idle_bucket[gaps.cause]),
        "charged_ns": (slices.charged_ns, gaps.end_ns - gaps.start_ns),
    }
    order = np.argsort(np.concatenate(columns["start_ns"]), kind="stable")
    device = np.concatenate(columns["device"])
    if device.size and device.min() != device.max():
        order = order[np.argsort(device[order], kind="stable")]
    # Both halves of a column are let go once it is joined.
    joined = {name: np.concatenate(columns.pop(name))[order] for name in TABLES["slices"]}
    return make_table(TABLES["slices"], joined)


def _charged(slices: pd.DataFrame, size: int) -> Longs:
    work, charged = slices["work"].to_numpy(), slices["charged_ns"].to_numpy()
    out = np.zeros(size, dtype=np.int64)
    np.add.at(out, work[work != NONE], charged[work != NONE])
    return out


def _steps_table(
    plan: StepPlan, slices: pd.DataFrame, accounted: bool, warmup: NDArray[np.bool_]
) -> pd.DataFrame:
    step, work = slices["step"].to_numpy(), slices["work"].to_numpy()
    busy = np.zeros(len(plan.host), dtype=np.int64)
    counted = (step != NONE) & (work != NONE)
    np.add.at(busy, step[counted], slices["charged_ns"].to_numpy()[counted])
    host = plan.host
    return make_table(
        TABLES["steps"],
        {
            "name": [s.name for s in host],
            "phase": [s.phase for s in host],
            "start_ns": plan.start_ns,
            "wall_ns": plan.end_ns - plan.start_ns,
            "busy_ns": busy if accounted else np.full(busy.size, NONE),
            "warmup": warmup,
            "batch": [s.batch for s in host],
            "tokens": [s.tokens for s in host],
            "kept": [s.kept for s in host],
            "announced_ns": [s.start_ns for s in host],
            "host_end_ns": [s.end_ns for s in host],
            "thread": [s.thread for s in host],
            "source": [s.source for s in host],
        },
    )


def _window(
    work: Work, plan: StepPlan, slices: pd.DataFrame, inside: NDArray[np.bool_], accounted: bool
) -> Window:
    start, end = plan.window
    trace = work.trace
    devices = 0 if work.cpu_only else np.unique(trace.events["device"].to_numpy()[work.event]).size
    busy = int(slices["charged_ns"].to_numpy()[slices["work"].to_numpy() != NONE].sum())
    launching = np.flatnonzero(work.launches.launching)
    launched_at = trace.start_ns[launching]
    used = work.event[inside]
    streams = trace.events["stream"].to_numpy()[used].astype(np.int64) * _STREAMS_APART
    streams = np.unique(streams + trace.events["device"].to_numpy()[used])
    return Window(
        start_ns=start,
        wall_ns=end - start,
        busy_ns=busy if accounted else None,
        idle_ns=(end - start) * max(devices, 1) - busy if accounted else None,
        between_steps_ns=end - start - int((plan.end_ns - plan.start_ns).sum()),
        devices=devices,
        streams=0 if work.cpu_only else streams.size,
        kernels=int((inside & work.is_kernel).sum()),
        launches=int(((launched_at >= start) & (launched_at <= end)).sum()),
    )


def _work_table(
    context: Context, charged: Longs, exposed: Longs, overlapped: Longs
) -> pd.DataFrame:
    work, attribution = context.work, context.attribution
    return make_table(
        TABLES["work"],
        {
            "event": work.event,
            "device": context.lanes.device,
            "work_class": text_column(work.work_class, list(WORK_CLASSES)),
            "launch": work.launch,
            "operator": work.operator,
            "module": work.module,
            "step": context.plan.work_step,
            "bucket": attribution.bucket,
            "how": text_column(attribution.how, list(HOW)),
            "confidence": attribution.confidence,
            "charged_ns": charged,
            "exposed_ns": exposed,
            "overlapped_ns": overlapped,
            "direction": text_column(attribution.direction, list(DIRECTIONS)),
        },
    )


def _gaps_table(gaps: Gaps) -> pd.DataFrame:
    return make_table(
        TABLES["gaps"],
        {
            "device": gaps.device,
            "start_ns": gaps.start_ns,
            "end_ns": gaps.end_ns,
            "step": gaps.step,
            "before": gaps.before,
            "after": gaps.after,
            "cause": text_column(gaps.cause, list(CAUSES)),
            "gap": gaps.gap,
            "event": gaps.event,
            "unrecorded": gaps.unrecorded,
        },
    )
