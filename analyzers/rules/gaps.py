"""Rules gap.* and warmup.first_use: what kept the device idle besides waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.calls import is_autotune
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.facts.samples import Sampled, Samples
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.judging import (
    milliseconds,
    ratio_of,
    severity_of,
    steady_steps,
    verdict,
)
from tracer.findings import Check, Finding, Where

GAP_RULES = (
    "gap.launch_bound",
    "gap.host",
    "gap.input",
    "gap.gc",
    "gap.compile",
    "warmup.first_use",
)
# A phase is launch-bound when launches explain this share of its wall time and the host takes
# longer to issue its work than the device to do it.
_LAUNCH_SHARE = 0.10
# Steps of fewer kernels than this are not too many launches: the host does something else.
_FEWEST_KERNELS = 2
# What calls of compiled code are named.
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph")
# Host work is one block, and not the pauses between operators, from this many usual paces on,
# or, where no pace is known, from this share of a step; in any case from the larger share on.
_BLOCK_PACES, _BLOCK_SHARE, _LARGE_SHARE = 4, 0.005, 0.25
# Pieces looked at for the events to show.
_EVIDENCE = 400
# A place is named when it costs this share of the window.
_NAMED_SHARE = 0.002


def judge_gaps(context: Context, analysis: Analysis) -> RuleResult:
    """All gap rules of one recording."""
    reason = _cannot_judge(context, analysis)
    if reason:
        # Rule files `cpu` and `cpu_compile` judge the rest.
        rules = ("gap.launch_bound",) if analysis.cpu_only else GAP_RULES
        return RuleResult(checks=tuple(Check(rule, "not_checked", reason) for rule in rules))
    pieces = IdlePieces(context)
    findings = [
        *_launch_bound(pieces, analysis),
        *_compile(pieces, analysis),
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
    return ""


class IdlePieces:
    """Idle with its causes, and the views that the rules of this file share."""

    def __init__(self, context: Context) -> None:
        self.context, self.gaps = context, context.gaps
        self.work, self.trace = context.work, context.work.trace
        self.places = context.work.once(Places)
        self.length: Longs = self.gaps.end_ns - self.gaps.start_ns
        self.pace_ns = context.gaps.pace_ns

    @cached_property
    def compiling(self) -> Longs:
        """The compile range around each event."""
        work = self.work
        calls = work.calls
        return work.host.nearest(calls.compiling)

    @cached_property
    def fetching(self) -> Longs:
        """The outermost loader or tokenizer around each event."""
        work = self.work
        calls = work.calls
        return work.host.outermost(calls.input)

    def main_place(self, rows: Longs) -> Where:
        """The function that most of this idle lies in, whatever operators it calls."""
        cost: dict[Where, int] = {}
        for where, mine in self.by_place(rows).items():
            place = replace(where, operator=None, module=None)
            cost[place] = cost.get(place, 0) + int(self.length[mine].sum())
        named = {place: ns for place, ns in cost.items() if place.function is not None}
        chosen = named or cost
        return max(chosen, key=lambda place: chosen[place]) if chosen else Where()

    @cached_property
    def stretch_ns(self) -> Longs:
        """Length of the unbroken stretch of one cause that each piece is part of."""
        gaps = self.gaps
        new = np.ones(self.length.size, dtype=bool)
        new[1:] = (gaps.start_ns[1:] != gaps.end_ns[:-1]) | (gaps.cause[1:] != gaps.cause[:-1])
        run = np.cumsum(new) - 1
        if not run.size:
            return self.length
        total = np.bincount(run, weights=self.length).astype(np.int64)
        whole: Longs = total[run]
        return whole

    def of_cause(self, cause: str) -> Longs:
        """Pieces with this cause."""
        return np.flatnonzero(self.gaps.cause == CAUSE_CODE[cause])

    def steps_of(self, rows: Longs) -> tuple[int, ...]:
        """Steps that these pieces lie in."""
        steps = np.unique(self.gaps.step[rows])
        return tuple(int(step) for step in steps if step != NONE)

    def by_place(self, rows: Longs) -> dict[Where, Longs]:
        """Pieces grouped by the place of their event, layers folded; where no function is known of
        it, by what samples of the stacks saw."""
        keys: dict[int, Where] = {}
        for event in self.gaps.event[rows].tolist():
            if event not in keys:
                keys[event] = self._place(event)
        places = self._sampled(rows, [keys[event] for event in self.gaps.event[rows].tolist()])
        groups: dict[Where, list[int]] = {}
        for row, place in zip(rows.tolist(), places, strict=True):
            groups.setdefault(place, []).append(row)
        return {where: np.array(found, dtype=np.int64) for where, found in groups.items()}

    def _sampled(self, rows: Longs, places: list[Where]) -> list[Where]:
        """The places, the unnamed ones with the function, or the line alone, of the samples."""
        if not len(self.samples):
            return places
        out = list(places)
        numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
        alike = np.array([numbers[place] for place in places], dtype=np.int64)
        unnamed = np.array([place.file is None for place in places], dtype=bool)
        for device in np.unique(self.gaps.device[rows]).tolist():
            mine = np.flatnonzero(unnamed & (self.gaps.device[rows] == device))
            own = rows[mine]
            seen = self.samples.explain(self.gaps.start_ns[own], self.gaps.end_ns[own], alike[mine])
            for at, place in zip(mine.tolist(), seen, strict=True):
                out[at] = places[at] if place is None else _with_sample(places[at], place)
        return out

    @cached_property
    def samples(self) -> Samples:
        """Samples of the stacks, as they explain the idle."""
        return Samples(self.trace, self.gaps.start_ns, self.gaps.end_ns)

    def _place(self, event: int) -> Where:
        if event == NONE:
            return Where()
        where = self.places.of(event)
        return replace(where, module=folded(where.module) if where.module else None)

    def evidence(self, rows: Longs) -> tuple[int, ...]:
        """Events of these pieces, the longest first, at most a hundred."""
        longest = rows
        if rows.size > _EVIDENCE:
            longest = rows[np.argpartition(-self.length[rows], _EVIDENCE)[:_EVIDENCE]]
        order = longest[np.argsort(-self.length[longest], kind="stable")]
        events = dict.fromkeys(e for e in self.gaps.event[order].tolist() if e != NONE)
        return tuple(list(events)[:100])


def _with_sample(place: Where, seen: Sampled) -> Where:
    where = seen.where
    function = None if seen.kind == "line" else where.function
    return Where(where.file, where.line, function, place.module)


Words = Callable[[IdlePieces, Where, str], tuple[str, str]]

# --- launch-bound ------------------------------------------------------------------------------


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
    gaps: int


def _launch_bound(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    phases = analysis.steps["phase"].astype(str).to_numpy()
    steady = np.array(steady_steps(analysis), dtype=np.int64)
    out = []
    for phase in dict.fromkeys(phases[steady].tolist()):
        issue = _issue_of(pieces, analysis, steady[phases[steady] == phase])
        if _is_launch_bound(issue):
            out.append(_launch_finding(pieces, analysis, phase, issue))
    return out


def _issue_of(pieces: IdlePieces, analysis: Analysis, steps: Longs) -> _Issue:
    gaps, length = pieces.gaps, pieces.length
    inside = np.isin(gaps.step, steps)
    launch = inside & (gaps.cause == CAUSE_CODE["launch"])
    short = inside & (gaps.cause == CAUSE_CODE["host"]) & ~_is_block(pieces, analysis)
    mine = np.isin(pieces.context.plan.work_step, steps)
    return _Issue(
        steps=steps.tolist(),
        wall_ns=int(analysis.steps["wall_ns"].to_numpy()[steps].sum()),
        busy_ns=int(analysis.steps["busy_ns"].to_numpy()[steps].sum()),
        issue_ns=_issue_time(pieces, steps),
        launch_idle_ns=int(length[launch].sum()),
        python_idle_ns=int(length[short].sum()),
        idle_ns=int(length[inside].sum()),
        kernels=int((mine & pieces.work.is_kernel).sum()),
        gaps=int(np.unique(gaps.gap[launch]).size),
    )


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


def _is_launch_bound(issue: _Issue) -> bool:
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
    compiled = any(name.startswith(_COMPILED) for name in pieces.trace.names)
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
        advice=(
            f"Launches cost {milliseconds(cost / count)} of idle a step. "
            f"{_launch_advice(phase, compiled)}"
        ),
        gain_ns=cost,
        events=pieces.evidence(rows),
    )


def _launch_advice(phase: str, compiled: bool) -> str:
    if compiled:
        return (
            "The code is compiled: let it be replayed as a CUDA graph, too "
            "(mode='reduce-overhead', fixed shapes), or give each launch more work: a larger batch."
        )
    if phase == "decode":
        return (
            "Replay the step as a CUDA graph (torch.compile(mode='reduce-overhead') with a static "
            "KV cache), fuse kernels with torch.compile, or give each launch more work: a larger "
            "batch."
        )
    if phase == "training":
        return (
            "Fuse kernels with torch.compile, use a fused optimizer, or give each launch more "
            "work: a larger batch. Steps of fixed shapes can be replayed as a CUDA graph "
            "(mode='reduce-overhead')."
        )
    return (
        "Fuse kernels with torch.compile, or replay the step as a CUDA graph "
        "(torch.compile(mode='reduce-overhead')) where its shapes are fixed, or give each launch "
        "more work: a larger batch."
    )


def _is_block(pieces: IdlePieces, analysis: Analysis) -> NDArray[np.bool_]:
    """Pieces of an unbroken stretch of one cause that is long enough to be a piece of work of the
    host, and not a pause between operators; many small functions can make one stretch."""
    walls = analysis.steps["wall_ns"].to_numpy()
    step = float(np.median(walls)) if walls.size else 0.0
    usual = _BLOCK_PACES * pieces.pace_ns or _BLOCK_SHARE * step
    block: NDArray[np.bool_] = pieces.stretch_ns > min(usual, _LARGE_SHARE * step)
    return block


# --- host, input, collections ------------------------------------------------------------------


def _host(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    rows = pieces.of_cause("host")
    rows = rows[_is_block(pieces, analysis)[rows]]
    return _places_finding(pieces, analysis, rows, "gap.host", _host_words)


def _host_words(pieces: IdlePieces, where: Where, each: str) -> tuple[str, str]:
    if where.function:
        title = f"host work in {where.function} keeps the device waiting"
        advice = (
            f"{where.file}:{where.line} in {where.function} runs on the host between launches, "
            f"{each} at a time. Move it off the step's path: before the loop, to another thread, "
            "or onto the device."
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
    if where.operator is not None and where.operator.startswith("aten::"):
        return (
            f"{where.operator} works on the host and launches nothing: its tensors lie there",
            f"{each} at a time. Create these tensors on the device, or do this outside the step.",
        )
    return (
        f"the host works {place} and launches nothing; the cause is not recorded",
        (
            f"{each} at a time. Record again with detail='full' to see the function; Python work, "
            "garbage collection and other processes are possible."
        ),
    )


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


def _places_finding(
    pieces: IdlePieces, analysis: Analysis, rows: Longs, rule: str, words: Words
) -> list[Finding]:
    out = []
    for where, mine in pieces.by_place(rows).items():
        gaps = int(np.unique(pieces.gaps.gap[mine]).size)
        out += _finding_at(pieces, analysis, rule, words, where, mine, gaps)
    return sorted(out, key=lambda finding: -(finding.cost_ns or 0))


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
    if cost < _NAMED_SHARE * analysis.window.capacity_ns:
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
            },
            advice=advice,
            gain_ns=cost,
            events=pieces.evidence(rows),
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
    return [
        Finding(
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
            },
            advice=(
                "Call gc.disable() (or gc.freeze() after set-up) before the loop and collect by "
                "hand every so many steps, on all ranks at the same step."
            ),
            gain_ns=cost,
        )
    ]


# --- compilation and first use -----------------------------------------------------------------


def _compile(pieces: IdlePieces, analysis: Analysis) -> list[Finding]:
    """gap.compile for what returns in most steps, warmup.first_use for what does not."""
    rows = pieces.of_cause("compile")
    groups: dict[tuple[str, str], list[int]] = {}
    for row, event in zip(rows.tolist(), pieces.gaps.event[rows].tolist(), strict=True):
        groups.setdefault((_kind(pieces, event), _subject(pieces, event)), []).append(row)
    out = []
    for (kind, subject), members in groups.items():
        mine = np.array(members, dtype=np.int64)
        cost = int(pieces.length[mine].sum())
        if cost >= _NAMED_SHARE * analysis.window.capacity_ns:
            out.append(_compile_finding(pieces, analysis, kind, subject, mine))
    return sorted(out, key=lambda finding: -(finding.cost_ns or 0))


def _kind(pieces: IdlePieces, event: int) -> str:
    """compile and autotune where a range around the event says so, else a library's own work."""
    around = int(pieces.compiling[event]) if event != NONE else NONE
    if around == NONE:
        return "library-plan"
    return "autotune" if is_autotune(_name(pieces, around)) else "compile"


def _name(pieces: IdlePieces, event: int) -> str:
    return str(pieces.trace.names[pieces.trace.name_codes[event]])


def _subject(pieces: IdlePieces, event: int) -> str:
    """The operator or range that did the one-time work."""
    if event == NONE:
        return "the driver"
    operator = int(pieces.work.host.operator[event])
    row = operator if operator != NONE else event
    return _name(pieces, row)


def _compile_finding(
    pieces: IdlePieces, analysis: Analysis, kind: str, subject: str, rows: Longs
) -> Finding:
    cost = int(pieces.length[rows].sum())
    steps = pieces.steps_of(rows)
    returns = len(steps) > 1 and len(steps) > len(analysis.steps) / 2
    event = pieces.evidence(rows)
    operator = int(pieces.work.host.operator[event[0]]) if event else NONE
    usual = _usual_ns(pieces, operator)
    calls = int(np.unique(take(pieces.work.host.operator, pieces.gaps.event[rows])).size)
    each = milliseconds(cost / max(calls, 1))
    like = f", its like {milliseconds(usual)}" if usual else ""
    what = f"{subject} takes {each}{like}: {_WHY[kind]}"
    where = pieces.places.of(event[0]) if event else Where()
    return Finding(
        rule="gap.compile" if returns else "warmup.first_use",
        severity=severity_of(cost, analysis) if returns else "info",
        title=f"{what}, in {len(steps)} of {len(analysis.steps)} steps",
        count=calls,
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=steps,
        where=replace(where, module=folded(where.module) if where.module else None),
        detail={
            "kind": kind,
            "operator": subject,
            "each_ns": cost // max(calls, 1),
            "like_ns": usual,
        },
        advice=_COMPILE_ADVICE[kind] if returns else _FIRST_USE_ADVICE,
        gain_ns=cost if returns else None,
        events=event,
    )


_WHY = {
    "compile": "code is compiled",
    "autotune": "variants of a kernel are measured",
    "library-plan": "a library builds a plan or loads a kernel that it had not used before",
}
_COMPILE_ADVICE = {
    "compile": (
        "It compiles again in most steps: keep shapes fixed or mark them dynamic "
        "(torch._dynamo.mark_dynamic), and look at the recompile reasons (TORCH_LOGS=recompiles)."
    ),
    "autotune": "Tune once and keep the result: fix the shapes, or reuse the autotuner's cache.",
    "library-plan": (
        "Each new shape costs this once. Keep shapes the same from step to step (a static KV "
        "cache, padded lengths), or choose another backend for this operator "
        "(torch.nn.attention.sdpa_kernel)."
    ),
}
_FIRST_USE_ADVICE = "Paid once: run a warm-up step before measuring or serving."


def _usual_ns(pieces: IdlePieces, operator: int) -> int | None:
    """Median duration of the operators of that name; None when there is no other."""
    if operator == NONE:
        return None
    trace = pieces.trace
    like = np.flatnonzero(trace.name_codes == trace.name_codes[operator])
    like = like[pieces.work.host.of_kind("operator")[like]]
    if like.size < 3:
        return None
    return int(np.median(trace.end_ns[like] - trace.start_ns[like]))
