"""Rules gap.host, gap.input and gap.gc on a recording of the CPU alone: where time passes outside
of operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import parse_frame
from tracer.analyzers.facts.python_waits import mostly_waits, waiting_words
from tracer.analyzers.facts.read_loops import read_loops
from tracer.analyzers.facts.samples import Sampled, Samples
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import NONE, Longs, covered, union
from tracer.analyzers.names.called import advice_on
from tracer.analyzers.names.libraries import without_folder
from tracer.analyzers.rules.collected_lines import with_collected_line
from tracer.analyzers.rules.growth import with_growth
from tracer.analyzers.rules.judging import (
    between_steps,
    longest_first,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.rules.lock_waits import with_lock_waits
from tracer.analyzers.rules.whole_pauses import whole_pauses
from tracer.findings import Check, Finding, Where

# A pause is looked at from this share of a step on; a place is named from this share of the
# window on; so many of the longest pauses are looked at.
_PAUSE_SHARE, _NAMED_SHARE, _MOST = 0.02, 0.02, 400
# Pauses without a name at so many places have a cause outside of what the program does there.
_EVERYWHERE = 4
# A watched call is noted at most so long before its operator begins.
_CALL_BEFORE_NS = 100_000
# Short pauses are named where one function has this share of the window and so many samples.
_SHORT_SHARE, _SHORT_SAMPLES = 0.1, 20
# A loop that reads values does so at least so often in a step.
_READS_A_STEP = 3
# What operators take of a pause is told from this share of it on.
_WORTH_TELLING = 0.05
_RULES = ("gap.host", "gap.input", "gap.gc")


@dataclass(frozen=True)
class _Pause:
    """Time between two operators. last: the last line seen before it, if no function is known."""

    row: int
    rule: str
    where: Where
    after: str
    before: str
    last: str
    line_only: bool = False  # the function is where the loop is: its line is what tells
    places: int = 1  # at how many places of the program such pauses lie
    call: str = ""  # the function that the place calls
    apart: str = " outside operators"
    beside: str = ""  # how much of it is in operators, where those between the steps are its own

    @property
    def place(self) -> tuple[str, ...]:
        """Pauses of one place are one finding, whatever operators lie around them."""
        where = self.where
        if where.function is None:
            return self.rule, self.after, self.before
        line = str(where.line) if self.line_only else ""
        return self.rule, where.file or "", where.function, line


def judge_cpu_pauses(context: Context, analysis: Analysis) -> RuleResult:
    """The longest stretches without an operator, with what stands around them."""
    if not analysis.cpu_only:
        return RuleResult()
    seen = _Seen(context)
    long = _long_gaps(seen, analysis)
    pauses = [_pause(seen, row) for row in long.tolist()]
    pauses = _sampled(context, pauses)
    known = [p.row for p in pauses if p.rule != "gap.host" or p.where.function is not None]
    groups = _folded(context, list(_grouped(pauses).values()))
    findings = [_finding(context, analysis, members, known) for members in groups]
    findings = _with_short_pauses(context, analysis, long, findings)
    kept = [f for f in findings if (f.ratio or 0.0) >= _NAMED_SHARE]
    kept.sort(key=lambda finding: -(finding.cost_ns or 0))
    reason = "no device here: time outside operators of the host"
    checks: list[Check] = [verdict(rule, kept, reason) for rule in _RULES]
    return RuleResult(tuple(kept), tuple(checks))


def _with_short_pauses(
    context: Context, analysis: Analysis, long: Longs, findings: list[Finding]
) -> list[Finding]:
    """The findings, and functions that cost by many short pauses between operators, none of which
    is long enough to be looked at: loops that read values, and by samples of the stacks."""
    gaps = context.gaps
    rows = np.flatnonzero(gaps.cause == CAUSE_CODE["host"])
    rows = rows[~np.isin(rows, long)]
    starts, ends = gaps.start_ns[rows], gaps.end_ns[rows]
    trace, steps = context.work.trace, [step.start_ns for step in context.plan.host]
    least = max(_READS_A_STEP * len(steps), _SHORT_SAMPLES)
    loops = read_loops(trace, starts, np.array(steps, dtype=np.int64), least)
    sampled = Samples(trace, starts, ends).between_operators(starts, ends)
    known = [(*one, "reads") for one in loops] + [(*one, "samples") for one in sampled]
    named = {_function_of(f.where): f for f in findings}
    out = list(findings)
    for where, mine, count, seen in known:
        cost = int((ends - starts)[mine].sum())
        large = cost >= _SHORT_SHARE * analysis.window.capacity_ns and count >= _SHORT_SAMPLES
        before = named.get(_function_of(where))
        if not large or (before is not None and (before.cost_ns or 0) >= cost):
            continue
        found = context.plan.touched(gaps.step[rows[mine]], starts[mine])
        told = {seen: count, **between_steps(gaps.step[rows[mine]], (ends - starts)[mine])}
        if before is not None:  # one function, one finding: its long pauses count with the short
            if before in findings:
                cost += before.cost_ns or 0
                told |= _between_too(told, before)
            out.remove(before)
        short = _short_finding(analysis, where, cost, found, mine.size, told)
        named[_function_of(where)] = short
        out.append(short)
    return out


def _between_too(told: dict[str, int], before: Finding) -> dict[str, int]:
    between = int(before.detail.get("between_steps_ns", 0)) + told.get("between_steps_ns", 0)
    return {"between_steps_ns": between} if between else {}


def _function_of(where: Where) -> tuple[str, str]:
    """A function in its file; some sources know its class, and some do not."""
    return where.file or "", (where.function or "").rpartition(".")[2]


def _short_finding(
    analysis: Analysis,
    where: Where,
    cost: int,
    steps: tuple[int, ...],
    pauses: int,
    told: dict[str, int],
) -> Finding:
    return Finding(
        rule="gap.host",
        severity=severity_of(cost, analysis),
        title=f"host work between short operators in {where.function}, {pauses:,} short pauses",
        count=pauses,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=where,
        detail={**told, "cause_recorded": True},
        advice=(
            f"{_position(where)} in {where.function} goes from one short operator to the next: "
            "read values once and not one by one, and call fewer, larger operators."
        ),
        gain_ns=cost,
    )


def _folded(context: Context, groups: list[list[_Pause]]) -> list[list[_Pause]]:
    """The groups, those of no known function in one where they lie all over the program and none
    stands out: what stops it does not depend on what it does."""
    length = context.gaps.end_ns - context.gaps.start_ns
    nameless = [g for g in groups if _comes_by_chance(context, g)]
    costs = [sum(int(length[pause.row]) for pause in group) for group in nameless]
    if len(nameless) < _EVERYWHERE or max(costs) > sum(costs) / 3:
        return groups
    pauses = [replace(p, after="", before="", last="") for group in nameless for p in group]
    pauses = [replace(pause, places=len(nameless)) for pause in pauses]
    return [*(g for g in groups if g not in nameless), pauses]


def _comes_by_chance(context: Context, group: list[_Pause]) -> bool:
    """Whether pauses without a function lie in a few of the steps only: what the program does by
    itself at a place it does in most steps."""
    gaps, rows = context.gaps, np.array([pause.row for pause in group], dtype=np.int64)
    steps = context.plan.touched(gaps.step[rows], gaps.start_ns[rows])
    named = group[0].rule != "gap.host" or group[0].where != Where()
    return not named and 2 * len(steps) < len(context.plan.host)


def _long_gaps(seen: _Seen, analysis: Analysis) -> Longs:
    """Those long enough to be looked at, and those of a loader that are long together."""
    context, gaps = seen.context, seen.context.gaps
    length = gaps.end_ns - gaps.start_ns
    walls = analysis.steps["wall_ns"].to_numpy()
    step = float(np.median(walls)) if walls.size else float(analysis.window.wall_ns)
    compiling = gaps.cause == CAUSE_CODE["compile"]  # rule file `cpu_compile` judges these
    own = union(*context.work.calls.overhead_ranges(compiles=False))
    ours = 2 * covered(gaps.start_ns, gaps.end_ns, *own) > length  # what the recording itself does
    fetches = 2 * covered(gaps.start_ns, gaps.end_ns, *seen.ranges["gap.input"]) > length
    many = length[fetches].sum() >= _NAMED_SHARE * analysis.window.capacity_ns
    long = (length > _PAUSE_SHARE * step) | (fetches & many)
    rows = np.flatnonzero(long & ~compiling & ~ours)
    longest: Longs = rows[np.argsort(-length[rows], kind="stable")][:_MOST]
    return np.sort(longest)


class _Seen:
    """What can stand around a pause: fetches, collections, Python frames."""

    def __init__(self, context: Context) -> None:
        self.context, trace = context, context.work.trace
        fetches = context.work.calls.input
        table = trace.table("collections")
        collections = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
        self.ranges = {
            "gap.gc": union(*collections),
            "gap.input": union(trace.start_ns[fetches], trace.end_ns[fetches]),
        }
        self.frames = trace.rows("frame")
        self.frame_start, self.frame_end = trace.start_ns[self.frames], trace.end_ns[self.frames]


def _pause(seen: _Seen, row: int) -> _Pause:
    context, gaps = seen.context, seen.context.gaps
    start, end = int(gaps.start_ns[row]), int(gaps.end_ns[row])
    rule = _rule_of(seen, start, end)
    after, before = (_operator(context, int(side[row])) for side in (gaps.before, gaps.after))
    frame = _frame_within(seen, start, end)
    last = "" if frame else _last_line(context, int(gaps.before[row]), start)
    if rule == "gap.input":  # what the loader does varies from fetch to fetch
        after = before = ""
    return _Pause(row, rule, frame or Where(), after, before, last)


def _grouped(pauses: list[_Pause]) -> dict[tuple[str, ...], list[_Pause]]:
    groups: dict[tuple[str, ...], list[_Pause]] = {}
    for pause in pauses:
        groups.setdefault(pause.place, []).append(pause)
    return groups


def _sampled(context: Context, pauses: list[_Pause]) -> list[_Pause]:
    """The pauses with the function and line that samples of the stacks saw in them. A frame tells
    only where a function begins, so samples come first."""
    gaps = context.gaps
    rows = np.array([pause.row for pause in pauses], dtype=np.int64)
    starts, ends = gaps.start_ns[rows], gaps.end_ns[rows]
    places = {pause.place: 0 for pause in pauses}
    alike = np.array([list(places).index(pause.place) for pause in pauses], dtype=np.int64)
    seen = Samples(context.work.trace, starts, ends).explain(starts, ends, alike)
    return [
        pause if place is None or pause.rule == "gap.gc" else _at(pause, place)
        for pause, place in zip(pauses, seen, strict=True)
    ]


def _at(pause: _Pause, place: Sampled) -> _Pause:
    return replace(pause, where=place.where, last="", line_only=place.kind == "line")


def _rule_of(seen: _Seen, start: int, end: int) -> str:
    one = np.array([start]), np.array([end])
    for rule, ranges in seen.ranges.items():
        if int(covered(*one, *ranges)[0]) > (end - start) / 2:
            return rule
    return "gap.host"


def _operator(context: Context, work_row: int) -> str:
    if work_row == NONE:
        return ""
    work = context.work
    return str(work.trace.names[work.trace.name_codes[work.event[work_row]]])


def _frame_within(seen: _Seen, start: int, end: int) -> Where | None:
    """The shortest named Python function that runs through most of the pause."""
    trace, begun = seen.context.work.trace, int(np.searchsorted(seen.frame_start, end))
    rows = np.flatnonzero(seen.frame_end[:begun] > start)
    begins, ends = seen.frame_start[rows], seen.frame_end[rows]
    most = np.minimum(ends, end) - np.maximum(begins, start) > (end - start) / 2
    order = np.argsort((ends - begins)[most], kind="stable")
    for event in seen.frames[rows[most][order]].tolist():
        found = parse_frame(trace.names[trace.name_codes[event]])
        if found is not None:
            return found
    return None


def _last_line(context: Context, before: int, start: int) -> str:
    """The line that the recorder's hook saw at the operator before a pause, or after it."""
    if before == NONE:
        return ""
    trace, host = context.work.trace, context.work.host
    event = int(context.work.event[before])
    outer = int(host.outer_operator[event])
    since = int(trace.start_ns[outer if outer != NONE else event]) - _CALL_BEFORE_NS
    sites = trace.table("host_sites")
    times = sites["time_ns"].to_numpy()
    at = int(np.searchsorted(times, start, side="right")) - 1
    if at < 0 or times[at] < since:
        return ""
    row = sites.iloc[at]
    return f"{without_folder(str(row['file']))}:{row['line']} in {row['function']}"


def _finding(
    context: Context, analysis: Analysis, pauses: list[_Pause], known: list[int]
) -> Finding:
    """One place. `known`: the rows of all pauses of which one knows the place."""
    gaps, first = context.gaps, pauses[0]
    rows = np.array([pause.row for pause in pauses], dtype=np.int64)
    length = gaps.end_ns[rows] - gaps.start_ns[rows]
    named = first.rule == "gap.host" and first.where.function is not None
    place = (first.where, first.line_only) if named else None
    whole = whole_pauses(context, rows, np.setdiff1d(known, rows).astype(np.int64), place)
    lengths = whole.lengths(gaps.gap[rows], length)
    cost = int(lengths.sum())
    beside = cost - int(length.sum())
    steps = context.plan.touched(gaps.step[rows], gaps.start_ns[rows])
    each = milliseconds(cost / lengths.size) + (" at a time" if lengths.size > 1 else "")
    longest = longest_first(rows, length)
    starts, ends = gaps.start_ns[rows], gaps.end_ns[rows]
    samples = Samples(context.work.trace, starts, ends)
    waits = first.rule == "gap.host" and (
        mostly_waits(context.work.host, first.where, starts, ends)
        or samples.waits(starts, ends, first.where)
    )
    told = waiting_words(first.where, each) if waits else None
    if whole.start_ns.size:
        first = replace(first, apart="", beside=_beside_words(beside, cost, lengths.size))
    call = samples.called(starts, ends, first.where)
    if call is not None and first.rule == "gap.host" and 2 * beside <= cost:
        first = replace(first, where=replace(first.where, line=call.line), call=call.name)
    title, advice = told or (_title(first, each), _advice(first, each))
    gains = not waits and first.places == 1  # of many places no one change takes all away
    finding = Finding(
        rule=first.rule,
        severity=severity_of(cost, analysis),
        title=title,
        count=int(lengths.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=first.where,
        detail={
            **_detail(first, pauses),
            "longest_ns": int(lengths.max()),
            **between_steps(np.append(gaps.step[rows], NONE), np.append(length, beside)),
            **({"operators_ns": beside} if beside else {}),
        },
        advice=advice,
        gain_ns=cost if gains else None,
        events=_ends_with(context, longest),
        pauses=longest,
    )
    if first.rule == "gap.host" and not waits:
        finding = with_lock_waits(finding, samples, starts, ends)
    if first.rule == "gap.gc":
        collections = context.work.trace.table("collections")
        finding = with_collected_line(finding, collections, samples, starts, ends)
    return with_growth(finding, gaps.gap[rows], length)


def _ends_with(context: Context, longest: tuple[int, ...]) -> tuple[int, ...]:
    """The operators that end these pauses."""
    after = context.gaps.after[np.array(longest, dtype=np.int64)]
    events: list[int] = context.work.event[after[after != NONE]].tolist()
    return tuple(dict.fromkeys(events))


def _detail(first: _Pause, pauses: list[_Pause]) -> dict[str, Any]:
    """What stands around the pauses of a place, and how it is known."""
    return {
        "after_operator": _common([pause.after for pause in pauses]),
        "before_operator": _common([pause.before for pause in pauses]),
        "last_line": first.last or None,
        "cause_recorded": first.where.function is not None,
        "places": first.places,
        **({"call": first.call} if first.call else {}),
    }


def _beside_words(beside_ns: int, cost_ns: int, count: int) -> str:
    """How much of each pause is in operators, where that is worth a word."""
    if beside_ns < _WORTH_TELLING * cost_ns:
        return ""
    return f", {milliseconds(beside_ns / count)} of it in operators"


def _position(where: Where) -> str:
    return where.file or "" if where.line is None else f"{where.file}:{where.line}"


def _common(names: list[str]) -> str | None:
    """The name that all share."""
    return names[0] or None if len(set(names)) == 1 else None


def _title(pause: _Pause, each: str) -> str:
    if pause.rule == "gap.gc":
        return f"Python's garbage collector stops the host, {each}"
    if pause.rule == "gap.input":
        who = f": {pause.where.function}" if pause.where.function else ""
        return f"the loop waits for its data loader, {each}{who}"
    if pause.line_only:
        place = f"line {pause.where.line} of {pause.where.function}"
        if pause.call:
            return f"{pause.call}, in {place}, takes {each}{pause.apart}{pause.beside}"
        return f"{each} pass{pause.apart} in {place}{pause.beside}"
    if pause.call:
        function = pause.where.function
        return f"{pause.call}, in {function}, takes {each}{pause.apart}{pause.beside}"
    if pause.where.function:
        return f"host work{pause.apart} in {pause.where.function}, {each}{pause.beside}"
    if pause.places > 1:
        return f"{each} pass outside operators at {pause.places} places without a name in common"
    sides = f" between {pause.after} and {pause.before}" if pause.after and pause.before else ""
    who = f", after {pause.last}" if pause.last else ""
    return f"{each} pass outside operators{sides}{who}"


def _advice(pause: _Pause, each: str) -> str:
    where = pause.where
    if pause.rule == "gap.gc":
        return "Call gc.freeze() after set-up, or gc.disable() and collect by hand."
    if pause.rule == "gap.input":
        site = f"{_position(where)} runs in the main thread. " if where.file else ""
        return (
            f"{site}Prepare data in worker processes (num_workers, prefetch_factor), tokenize "
            "before the loop."
        )
    if pause.call:
        known = advice_on(pause.call) or "Make it cheaper, or do it less often."
        return f"{_position(where)} calls it. {known}"
    if pause.line_only:
        return (
            f"{_position(where)} is where the host is meanwhile: see what this line does "
            "besides operators, and make it cheaper or do it less often."
        )
    if where.file:
        takes = f"{_position(where)} in {where.function} takes it"
        return f"{takes}: make it cheaper, or do it less often."
    if pause.places > 1:
        return (
            "Look for another Python thread that holds the interpreter, and for other processes on "
            "the same cores."
        )
    return (
        "Look at the Python code between these operators, or record with detail='full' to see the "
        "function."
    )
