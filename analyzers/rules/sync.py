"""Rules sync.hidden, sync.explicit, sync.allocator: waits with their line, and what each cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.calls import is_release
from tracer.analyzers.facts.places import Places
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.idle.waits import EXPLICIT, Wait, find_waits
from tracer.analyzers.idle.would_wait import find_would_be_waits
from tracer.analyzers.intervals import NONE
from tracer.analyzers.rules.judging import (
    as_far_as_seen,
    counted,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.rules.wait_places import WaitPlace, find_places
from tracer.findings import Check, Finding, Where

# A wait is worth its line from a thousandth of the window on: it is one line to change.
_WAIT_WARNING = 0.001
# A wait that comes so often in a step is told with how often.
_MANY_A_STEP = 3
# Between the wait that begins a capture and the capture itself PyTorch sets the random state.
_LAUNCHES_BEFORE_CAPTURE = 4
_TITLES = {
    "scalar-read": "the host reads a value from the device",
    "data-dependent-shape": "an operator's output size depends on device data",
    "device-to-host-copy": "a copy to pageable host memory",
    "pageable-copy": "a copy from pageable host memory",
    EXPLICIT: "an explicit synchronization",
}
_ADVICE = {
    "scalar-read": (
        "Keep the value on the device: compare and select with torch.where, or collect the values "
        "in a tensor and read them once after the loop."
    ),
    "data-dependent-shape": (
        "Give the operator a fixed output size: torch.where or a multiplied mask in place of "
        "boolean indexing, output_size= for repeat_interleave, topk with a fixed k for nonzero."
    ),
    "device-to-host-copy": (
        "Copy into a pinned tensor with non_blocking=True and read it a step later, after an "
        "event; or keep it on the device."
    ),
    "pageable-copy": (
        "Pin the source (pin_memory=True, tensor.pin_memory() once before the loop) and copy with "
        "non_blocking=True; build small constants on the device."
    ),
    EXPLICIT: (
        "Leave the synchronization out of the loop: time with CUDA events and read them after it."
    ),
}


# Operators that read a value themselves, and what does the same without.
_OF_OPERATOR = {
    "aten::multinomial": (
        "It checks the probabilities on the host. Divide them by exponential noise and take the "
        "largest, which samples the same: probs.div(torch.empty_like(probs).exponential_(1))"
        ".argmax(-1)."
    ),
}


def judge_waits(context: Context, analysis: Analysis) -> RuleResult:
    """sync.hidden and sync.explicit. On a recording of the CPU alone, what would wait on a GPU."""
    if not analysis.accounted:
        reason = analysis.breakdown_reason
        rules = ("sync.hidden", "sync.explicit")
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in rules))
    if not context.work.launches.launching.any() and not analysis.cpu_only:
        reason = "the recording holds no host calls"
        rules = ("sync.hidden", "sync.explicit")
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in rules))
    waits = find_would_be_waits(context) if analysis.cpu_only else find_waits(context)
    findings = [_finding(context, analysis, place) for place in find_places(context, waits)]
    if analysis.cpu_only:
        return RuleResult(tuple(findings), _checks_without_device(findings))
    lines = context.work.once(Places).has_frames or len(analysis.trace.table("host_sites")) > 0
    said = "" if lines else "lines not recorded: the operator and module are named"
    missing = context.work.calls_missing
    checks = (
        as_far_as_seen(verdict(rule, findings, said), missing)
        for rule in ("sync.hidden", "sync.explicit")
    )
    return RuleResult(tuple(findings), tuple(checks))


def _checks_without_device(findings: list[Finding]) -> tuple[Check, ...]:
    """What a recording of the CPU can say of waits: operators that read, but neither copies nor
    synchronizations."""
    said = "no device here: operators that would wait on a GPU; its copies are not seen"
    hidden = Check("sync.hidden", "found" if findings else "partial", said)
    return hidden, Check("sync.explicit", "not_checked", "no device was recorded")


def _finding(context: Context, analysis: Analysis, place: WaitPlace) -> Finding:
    cause, waits = place.cause, place.waits
    idle = sum(wait.idle_ns for wait in waits)
    live = not analysis.cpu_only
    captures = cause == EXPLICIT and _before_captures(context, waits)
    title = _CAPTURES_TITLE if captures else f"{_TITLES[cause]}{_named(context, place)}"
    detail = {
        "cause": cause,
        "operator": _operator(context, waits[0]),
        "blocked_ns": sum(wait.blocked_ns for wait in waits) if live else None,
        "idle_ns": idle if live else None,
        "idle_after_ns": sum(wait.idle_after_ns for wait in waits) if live else None,
        "would_wait": not live,
        "line_recorded": place.where.line is not None,
    }
    between = sum(wait.between_ns for wait in waits)
    detail |= {"between_steps_ns": between} if between else {}
    return Finding(
        rule="sync.explicit" if cause == EXPLICIT else "sync.hidden",
        severity=severity_of(idle, analysis, _WAIT_WARNING) if live and not captures else "info",
        title=title if live else f"would wait on a GPU: {title}{_often(context, waits)}",
        count=len(waits),
        cost_ns=idle if live else None,
        ratio=ratio_of(idle, analysis) if live else None,
        steps=tuple(sorted({wait.step for wait in waits if wait.step >= 0})),
        where=place.where,
        detail=detail | _more_detail(place),
        advice=_CAPTURES if captures else _advice(place, live),
        gain_ns=idle if live and not captures else None,
        events=tuple(w.event for w in sorted(waits, key=lambda w: -w.idle_ns)[:100]),
    )


def _often(context: Context, waits: list[Wait]) -> str:
    """How often in a step, where that is more than a few times: each alone costs little."""
    times = len(waits) / max(len(context.plan.found_steps), 1)
    if times < _MANY_A_STEP:
        return ""
    return f", {times:,.0f} times" + (" a step" if context.plan.found else "")


def _more_detail(place: WaitPlace) -> dict[str, Any]:
    """What is known of some waits alone: the bytes of copies, a library and who called it."""
    size = max(wait.copied_bytes for wait in place.waits)
    more: dict[str, Any] = {} if size == NONE else {"bytes": size}
    if place.caller is not None:
        more["called_from"] = _line(place.caller)
    if place.library:
        more["library"] = place.library
    if place.lines:
        more["lines"] = [f"{_line(line.where)} ({len(line.waits)})" for line in place.lines]
    return more


def _before_captures(context: Context, waits: list[Wait]) -> bool:
    """Whether each of these waits, but for a few launches that set the random state, comes right
    before a capture begins."""
    trace = context.work.trace
    begins = trace.start_ns[trace.named(lambda name: "StreamBeginCapture" in name, "runtime")]
    ended = trace.end_ns[np.array([wait.event for wait in waits], dtype=np.int64)]
    following = np.append(begins, 0)[np.searchsorted(begins, ended)]
    launches = trace.start_ns[context.work.launches.launching]
    between = np.searchsorted(launches, following) - np.searchsorted(launches, ended)
    return bool(((following > 0) & (between <= _LAUNCHES_BEFORE_CAPTURE)).all())


def _operator(context: Context, wait: Wait) -> str | None:
    if wait.operator == NONE:
        return None
    name: str = context.work.trace.names[context.work.trace.name_codes[wait.operator]]
    return name


def _named(context: Context, place: WaitPlace) -> str:
    if place.lines:
        return f", at {len(place.lines)} lines of {place.library}"
    inner, outer = _operator(context, place.waits[0]), place.where.operator
    if inner is None:
        return ""
    return f": {outer}" if outer == inner or not outer else f": {outer} ({inner})"


def _advice(place: WaitPlace, live: bool) -> str:
    cause, where = place.cause, place.where
    told = f"{_site(place)}{_cost(place.waits) if live else ''}."
    idle = sum(wait.idle_ns for wait in place.waits)
    if live and not idle:
        return f"{told} The device was busy meanwhile: nothing to gain here."
    if cause == EXPLICIT and where.file is None and where.operator is not None:
        return f"{told} {where.operator} waits by itself: it is not a line of the program."
    if place.lines:
        return (
            f"{told} These lines are the library's: another option or a newer version of "
            f"{place.library} may wait less, as may a loop of the program's own in its place."
        )
    return f"{told} {_OF_OPERATOR.get(where.operator or '', _ADVICE[cause])}"


def _site(place: WaitPlace) -> str:
    """The line that waits, and whose."""
    if place.lines:
        most = place.lines[0]
        return (
            f"{_line(place.where, ' in ')} calls {place.library}, which waits most at "
            f"{_line(most.where, ' in ')} ({len(most.waits)} of {len(place.waits)})"
        )
    if place.where.file is None:
        return "line not recorded"
    called = f", called from {_line(place.caller, ' in ')}" if place.caller is not None else ""
    return f"{_line(place.where, ' in ')}{called}"


def _line(where: Where, between: str = " ") -> str:
    return f"{where.file}:{where.line}{between}{where.function}"


def _cost(waits: list[Wait]) -> str:
    blocked, idle = sum(wait.blocked_ns for wait in waits), sum(wait.idle_ns for wait in waits)
    return (
        f": {counted(len(waits), 'wait')} held the host {milliseconds(blocked)} and left the "
        f"device idle for {milliseconds(idle)}"
    )


_CAPTURES_TITLE = "the waits that begin the capture of a graph"
_CAPTURES = "torch.cuda.graph waits once for each capture: paid when the program starts."


@dataclass(frozen=True)
class _Call:
    event: int
    step: int
    release: bool
    host_ns: int
    idle_ns: int
    inside: bool  # of that step; else between it and the next


def judge_allocator(context: Context, analysis: Analysis) -> RuleResult:
    """sync.allocator: calls of the driver for memory while the program runs. Growth of an empty
    cache in the first step is warm-up."""
    work = context.work
    if not work.launches.launching.any():
        reason = "no device here" if analysis.cpu_only else "the recording holds no host calls"
        return RuleResult(checks=(Check("sync.allocator", "not_checked", reason),))
    calls = _after_growth(_allocator_calls(context), context.plan.found)
    places = work.once(Places)
    groups: dict[Where, list[_Call]] = {}
    for call in calls:
        where = replace(places.of(call.event), module=None)
        groups.setdefault(where, []).append(call)
    notable = _WAIT_WARNING * analysis.window.capacity_ns
    findings = [
        _allocation(analysis, where, members)
        for where, members in groups.items()
        if sum(call.host_ns for call in members) >= notable
    ]
    check = as_far_as_seen(verdict("sync.allocator", findings), work.calls_missing)
    return RuleResult(tuple(findings), (check,))


def _after_growth(calls: list[_Call], steps_known: bool) -> list[_Call]:
    """Without the growth of an empty cache: what is asked for before the second step, or once
    between steps, unless later steps ask again or memory is given back as often as it is asked
    for. A library that is set up gives some back, too."""
    if steps_known:
        between = {call.step for call in calls if not call.inside}
        calls = [c for c in calls if c.step >= 0 and (c.inside or len(between) > 1)]
    later = [call for call in calls if call.step > 0]
    if later:
        return calls if any(call.release for call in calls) else later
    released = sum(call.release for call in calls)
    return calls if 2 * released >= len(calls) else []


def _allocator_calls(context: Context) -> list[_Call]:
    work, gaps = context.work, context.gaps
    trace = work.trace
    rows = np.flatnonzero(work.calls.allocator)
    starts = np.array([step.start_ns for step in context.plan.host])
    begin, end = context.plan.window
    ends = np.array([step.end_ns for step in context.plan.host])
    at = np.searchsorted(starts, trace.start_ns[rows], side="right") - 1
    inside = dict(zip(rows.tolist(), trace.start_ns[rows] < ends[np.maximum(at, 0)], strict=True))
    idle: dict[int, int] = {}
    mine = gaps.cause == CAUSE_CODE["allocator"]
    lengths = (gaps.end_ns - gaps.start_ns)[mine]
    for event, length in zip(gaps.event[mine].tolist(), lengths.tolist(), strict=True):
        idle[event] = idle.get(event, 0) + length
    return [
        _Call(
            row,
            int(np.searchsorted(starts, trace.start_ns[row], side="right")) - 1,
            is_release(trace.names[trace.name_codes[row]]),
            int(trace.end_ns[row] - trace.start_ns[row]),
            idle.get(row, 0),
            bool(inside[row]),
        )
        for row in rows.tolist()
        if begin <= int(trace.start_ns[row]) < end
    ]


def _allocation(analysis: Analysis, where: Where, calls: list[_Call]) -> Finding:
    idle = sum(call.idle_ns for call in calls)
    held = sum(call.host_ns for call in calls)
    frees = sum(call.release for call in calls)
    asks = len(calls) - frees
    released = frees > 0 and where.operator is None
    why = (
        "the program gives cached memory back to the driver"
        if released
        else "memory is asked of the driver while the program runs: the cache does not hold enough"
    )
    advice = (
        f"{counted(asks, 'allocation')} and {counted(frees, 'free')} held the host "
        f"{milliseconds(held)}; the device was idle for {milliseconds(idle)} of it. "
    )
    advice += (
        "Do not call torch.cuda.empty_cache() in the loop: what it gives back is asked for again."
        if released
        else "Keep sizes steady or reuse buffers, leave head-room, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
    return Finding(
        rule="sync.allocator",
        severity=severity_of(idle, analysis),
        title=why,
        count=len(calls),
        cost_ns=idle,
        ratio=ratio_of(idle, analysis),
        steps=tuple(sorted({call.step for call in calls if call.step >= 0})),
        where=where,
        detail={
            "cause": "cache-release" if released else "memory-pressure",
            "allocations": asks,
            "frees": frees,
            "blocked_ns": held,
            "idle_ns": idle,
        },
        advice=advice,
        gain_ns=idle,
        events=tuple(c.event for c in sorted(calls, key=lambda c: -c.host_ns)[:100]),
    )
