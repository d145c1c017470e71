"""The rules gap.* of a device, in order; here gap.host, gap.input and gap.gc themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.python_waits import mostly_waits, waiting_words
from tracer.analyzers.facts.samples import Called
from tracer.analyzers.intervals import NONE, Longs, take, union
from tracer.analyzers.names.called import advice_on
from tracer.analyzers.names.libraries import is_library, package_of
from tracer.analyzers.rules.collected_lines import with_collected_line
from tracer.analyzers.rules.gap_compile import compile_idle
from tracer.analyzers.rules.growth import with_growth
from tracer.analyzers.rules.idle_pieces import NAMED_SHARE, IdlePieces, Words, is_block
from tracer.analyzers.rules.judging import (
    CALLS_MISSING,
    longest_first,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.rules.launch_bound import launch_bound
from tracer.analyzers.rules.lock_waits import with_lock_waits
from tracer.findings import Check, Finding, Where

GAP_RULES = (
    "gap.launch_bound",
    "gap.host",
    "gap.input",
    "gap.gc",
    "gap.compile",
    "warmup.first_use",
)


def judge_gaps(context: Context, analysis: Analysis) -> RuleResult:
    """All gap rules of one recording."""
    reason = _cannot_judge(context, analysis)
    if reason:
        # Rule files `cpu` and `cpu_compile` judge the rest.
        rules = ("gap.launch_bound",) if analysis.cpu_only else GAP_RULES
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in rules))
    pieces = IdlePieces(context)
    findings = [
        *launch_bound(pieces, analysis),
        *compile_idle(pieces, analysis),
        *_host(pieces, analysis),
        *_input(pieces, analysis),
        *_collections(pieces, analysis),
    ]
    live = bool(len(analysis.trace.table("collections"))) or analysis.trace.meta.detail is not None
    unseen = Check("gap.gc", "not_checked", "collections are recorded live only")
    judged = tuple(verdict(rule, findings) for rule in GAP_RULES)
    checks = tuple(unseen if c.rule == "gap.gc" and not live else c for c in judged)
    return RuleResult(tuple(findings), checks)


def _cannot_judge(context: Context, analysis: Analysis) -> str:
    if not analysis.accounted:
        return analysis.breakdown_reason
    if analysis.cpu_only:
        return "no device was recorded"
    if not context.work.launches.launching.any():
        return "the recording holds no host calls"
    if context.work.calls_missing:
        return CALLS_MISSING
    return ""


def _host(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    rows = pieces.of_cause("host")
    rows = rows[is_block(pieces, analysis)[rows]]
    out = []
    for where, mine in pieces.by_place(rows).items():
        gaps = int(np.unique(pieces.gaps.gap[mine]).size)
        call = pieces.called(mine, where)
        words = _host_words if call is None else _call_words(call)
        found = _finding_at(pieces, analysis, "gap.host", words, where, mine, gaps)
        if call is not None:
            found = [_with_call(finding, call) for finding in found]
        told = [_as_wait(pieces, finding, mine) for finding in found]
        out += [with_growth(f, pieces.gaps.gap[mine], pieces.length[mine]) for f in told]
    return sorted(out, key=lambda finding: -(finding.cost_ns or 0))


def _call_words(call: Called) -> Words:
    """Of a place that calls a library's function for most of it."""

    def words(_: IdlePieces, where: Where, each: str) -> tuple[str, str]:
        inside = f" in {where.function}" if where.function else ""
        known = advice_on(call.name) or _MOVE
        return (
            f"{call.name}{inside} keeps the device waiting",
            f"{where.file}:{call.line} calls it, {each} at a time. {known}",
        )

    return words


def _with_call(finding: Finding, call: Called) -> Finding:
    where = replace(finding.where, line=call.line)
    return replace(finding, where=where, detail={**finding.detail, "call": call.name})


def _as_wait(pieces: IdlePieces, finding: Finding, rows: Longs) -> Finding:
    """The finding as it is, or, where the function only waits for others, as what it is then."""
    starts, ends = union(pieces.gaps.start_ns[rows], pieces.gaps.end_ns[rows])
    recorded = mostly_waits(pieces.work.host, finding.where, starts, ends)
    if not recorded and not pieces.samples.waits(starts, ends, finding.where):
        return with_lock_waits(finding, pieces.samples, starts, ends)
    each = milliseconds((finding.cost_ns or 0) / finding.count)
    title, advice = waiting_words(finding.where, f"{each} at a time")
    return replace(finding, title=title, advice=advice, gain_ns=None)


# Ranges that PyTorch itself records around what an optimizer does in Python.
_OPTIMIZER_ADVICE = {
    "Optimizer.step#": (
        "A fused optimizer (fused=True in torch.optim, or torch.compile around its step) leaves "
        "little of it."
    ),
    "Optimizer.zero_grad#": (
        "It visits every parameter: give the optimizer those alone that are trained."
    ),
}


# What compiled code does before each call: whoever calls it is not what takes the time.
_GUARDS = "TorchDynamo Cache Lookup"
_GUARDS_ADVICE = (
    "Guards are checked at each call: compile one larger part instead of many, or leave out those "
    "on modules that do not change (torch.compile(options={'guard_filter_fn': "
    "torch.compiler.skip_guard_on_all_nn_modules_unsafe}), which trusts you)."
)


def _host_words(pieces: IdlePieces, where: Where, each: str) -> tuple[str, str]:
    if where.operator is not None and where.operator.startswith(_GUARDS):
        return "the guards of compiled code keep the device waiting", f"{each}. {_GUARDS_ADVICE}"
    if where.function:
        title = f"host work in {where.function} keeps the device waiting"
        advice = (
            f"{where.file}:{where.line} in {where.function} runs on the host between launches, "
            f"{each} at a time. {_move_advice(where)}"
        )
        return title, advice
    if where.file:
        return (
            f"host work at {where.file}:{where.line} keeps the device waiting",
            (
                f"{each} at a time, between launches. See what this line does besides them, and "
                "take it out of the step."
            ),
        )
    inside = where.module or where.operator
    place = f"in {inside}" if inside else "between operators"
    for range_name, told in _OPTIMIZER_ADVICE.items():
        if where.operator is not None and where.operator.startswith(range_name):
            return (
                f"Python of {where.operator} keeps the device waiting",
                f"{each} at a time. {told}",
            )
    if where.operator is not None and where.operator.startswith("aten::"):
        return (
            f"{where.operator} works on the host and launches nothing: its tensors lie there",
            f"{each} at a time. Create these tensors on the device, or do this outside the step.",
        )
    return (
        f"the host works {place} and launches nothing; the cause is not recorded",
        (
            f"{each} at a time. Record again with `tracer run --detail full` to see the "
            "function; Python work, garbage collection and other processes are possible."
        ),
    )


def _move_advice(where: Where) -> str:
    if is_library(where.file or ""):
        package = package_of(where.file or "")
        return (
            f"It is code of {package}: another option or a newer version of it may leave that out "
            "of the step, as may a CUDA graph of what it launches."
        )
    return _MOVE


_MOVE = "Move it off the step's path: before the loop, to another thread, or onto the device."


def _input(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    """One finding for each loader or tokenizer: what it does inside varies from fetch to fetch."""
    rows = pieces.of_cause("input")
    source = take(pieces.fetching, pieces.gaps.event[rows])
    names = take(pieces.trace.name_codes, source)
    out = []
    for name in np.unique(names).tolist():
        mine = rows[names == name]
        fetches = int(np.unique(source[names == name]).size)
        words = _input_words(pieces, "" if name == NONE else str(pieces.trace.names[name]))
        out += _finding_at(
            pieces, analysis, "gap.input", words, pieces.main_place(mine), mine, fetches
        )
    return sorted(out, key=lambda finding: -(finding.cost_ns or 0))


def _input_words(pieces: IdlePieces, source: str) -> Words:
    def words(_: IdlePieces, where: Where, each: str) -> tuple[str, str]:
        who = (
            f"{where.function} ({where.file}:{where.line})" if where.function else "the data loader"
        )
        return f"the device waits for input: {who}", f"{each} at a time. {_input_advice(source)}"

    return words


def _input_advice(source: str) -> str:
    if "_SingleProcess" in source:
        return (
            "The main thread prepares the data itself: set num_workers above 0 (and "
            "prefetch_factor), tokenize before training, and pin memory."
        )
    if "_MultiProcessing" in source:
        return (
            "The workers do not keep up: use more of them (num_workers, prefetch_factor), do less "
            "for each sample, or prepare the data before training."
        )
    return (
        "Prepare data in worker processes (num_workers, prefetch_factor), tokenize before "
        "training, and pin memory."
    )


def _finding_at(
    pieces: IdlePieces,
    analysis: Analysis,
    rule: str,
    words: Words,
    where: Where,
    rows: Longs,
    count: int,
) -> list[Finding]:
    """The finding of these pieces; none where they cost too little to be named."""
    cost = int(pieces.length[rows].sum())
    if cost < NAMED_SHARE * analysis.window.capacity_ns:
        return []
    title, advice = words(pieces, where, milliseconds(cost / count))
    return [
        Finding(
            rule=rule,
            severity=severity_of(cost, analysis),
            title=title,
            count=count,
            cost_ns=cost,
            ratio=ratio_of(cost, analysis),
            steps=pieces.steps_of(rows),
            where=where,
            detail={
                "idle_ns": cost,
                "longest_ns": int(pieces.length[rows].max()),
                "cause_recorded": where.function is not None,
                **pieces.between_steps(rows),
            },
            advice=advice,
            gain_ns=cost,
            events=pieces.evidence(rows),
            pauses=longest_first(rows, pieces.length[rows]),
        )
    ]


def _collections(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    """gap.gc: automatic collections that the device waited for."""
    table = analysis.trace.table("collections")
    rows = pieces.of_cause("gc")
    if not rows.size:
        return []
    cost = int(pieces.length[rows].sum())
    pauses = (table["end_ns"] - table["start_ns"]).to_numpy()
    generations = sorted(set(table["generation"].tolist()))
    longest = int(pauses.max()) if pauses.size else int(pieces.length[rows].max())
    finding = Finding(
        rule="gap.gc",
        severity=severity_of(cost, analysis),
        title=f"Python's garbage collector stops the host, up to {milliseconds(longest)}",
        count=int(pauses.size) or int(rows.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=pieces.steps_of(rows),
        detail={
            "pause_ns": int(pauses.sum()) if pauses.size else cost,
            "longest_ns": longest,
            "generations": generations,
            "idle_ns": cost,
            **pieces.between_steps(rows),
        },
        advice=(
            "Call gc.disable() (or gc.freeze() after set-up) before the loop and collect by "
            "hand every so many steps, on all ranks at the same step."
        ),
        gain_ns=cost,
        pauses=longest_first(rows, pieces.length[rows]),
    )
    starts, ends = pieces.gaps.start_ns[rows], pieces.gaps.end_ns[rows]
    return [with_collected_line(finding, table, pieces.samples, starts, ends)]
