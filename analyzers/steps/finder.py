"""Where the steps are on the host, and which phase each is.

Sources in order of trust (DESIGN 4): the program's own announcements, ProfilerStep ranges, the
engine's ranges, repeated outermost user ranges, calls of the root module, replays of one graph;
else the window is one step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import BACKWARD_NODE, Host, Launches
from tracer.analyzers.facts.modules import is_further_root
from tracer.analyzers.intervals import NONE, Longs, lookup
from tracer.analyzers.names.engine_names import parse_engine_range
from tracer.analyzers.steps.call_phases import EVALUATION, call_phases, learning_ns
from tracer.analyzers.steps.phases import content_facts
from tracer.events import Trace

_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
# Ranges that the framework and its libraries write themselves.
_FRAMEWORK = re.compile(
    r"(nccl|gloo|mpi|ucc|c10d|xccl|hccl|rccl):|Optimizer\.|## Call CompiledFxGraph|Torch-Compiled"
    r"|DistributedDataParallel\.|FSDP|enumerate\(DataLoader|ProfilerStep|PyTorch Profiler"
    r"|autograd::|compile_file|.*compile_id=|Inductor|TorchDynamo|Pregraph|CUDAGraph|cudagraph|Iteration|sglang_profiler::"
)
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
_DATA_LOADER = re.compile(r"enumerate\(DataLoader")
_PHASE_WORDS = (
    ("prefill", re.compile(r"prefill|prompt|(?<![a-z])context(?![a-z])", re.I)),
    ("decode", re.compile(r"decod(e(?!r)|ing)", re.I)),
    ("training", re.compile(r"train|fine.?tun", re.I)),
    (EVALUATION, re.compile(r"(?<![a-z])(eval|validat)", re.I)),
    ("mixed", re.compile(r"(?<![a-z])mixed(?![a-z])", re.I)),
)
_MINIMUM_GRAPH_KERNELS = 50


@dataclass(frozen=True)
class HostStep:
    """A step as the host announced it: its own range, and what is known of it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    source: str
    phase: str = ""
    batch: int = NONE
    tokens: int = NONE
    kept: int = NONE  # of those, tokens that stay where a draft is checked


Finder = Callable[[Trace, Host, Launches], list[HostStep]]


def find_steps(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    """The steps of a trace in order of time, phases filled in; empty when there are none."""
    for finder in _FINDERS:
        steps = _in_order(finder(trace, host, launches))
        if steps:
            return _with_phases(trace, host, steps)
    return []


def _in_order(steps: list[HostStep]) -> list[HostStep]:
    """Order by start; a step inside another counts once, one that runs into the next ends there."""
    kept: list[HostStep] = []
    for step in sorted(steps, key=lambda s: (s.start_ns, -s.end_ns)):
        if kept and step.end_ns <= kept[-1].end_ns:
            continue
        if kept and step.start_ns < kept[-1].end_ns:
            kept[-1] = replace(kept[-1], end_ns=step.start_ns)
        kept.append(step)
    return kept


def _announced(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    table = trace.table("announced_steps")
    threads = _thread_rows(trace, table["thread"].to_numpy())
    return [
        HostStep(str(name), start, end, thread, "announced", str(phase) or _phase_word(str(name)))
        for name, phase, start, end, thread in zip(
            table["name"], table["phase"], table["start_ns"], table["end_ns"], threads, strict=True
        )
    ]


def _thread_rows(trace: Trace, tids: Longs) -> Longs:
    return lookup(trace.table("threads")["tid"].to_numpy(), tids)


def _profiler_steps(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    return [_range_step(trace, row, "profiler_step") for row in _named(trace, host, _PROFILER_STEP)]


def _named(trace: Trace, host: Host, pattern: re.Pattern[str]) -> list[int]:
    """Annotations (or operators that stand for them in old files) whose name begins so."""
    named = trace.named(pattern.match, "annotation", "operator")
    rows: list[int] = np.flatnonzero(named).tolist()
    return rows


def _range_step(trace: Trace, row: int, source: str, name: str | None = None) -> HostStep:
    return HostStep(
        name or trace.names[trace.name_codes[row]],
        int(trace.start_ns[row]),
        int(trace.end_ns[row]),
        int(trace.events["thread"].to_numpy()[row]),
        source,
    )


def _engine_ranges(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    parsed = {i: parse_engine_range(name) for i, name in enumerate(trace.names)}
    ranges = host.of_kind("annotation") | host.of_kind("operator")
    known = np.array([parsed[i] is not None for i in range(len(trace.names))], dtype=bool)
    steps = []
    for row in np.flatnonzero(known[trace.name_codes] & ranges).tolist():
        facts = parsed[int(trace.name_codes[row])]
        if facts is not None:
            step = _range_step(trace, row, "engine")
            steps.append(replace(step, phase=facts.phase, batch=facts.batch, tokens=facts.tokens))
    return steps


def _user_ranges(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    """Repeated outermost user ranges. Ranges that take turns within an iteration make one step."""
    user = trace.named(lambda name: not _FRAMEWORK.match(name), "annotation") & ~host.compiling
    rows = np.flatnonzero(user)
    depth = _depth_among(host, user)[rows]
    for level in range(int(depth.max()) + 1 if depth.size else 0):
        found = _repeated(trace, rows[depth == level])
        if found:
            return found
    return []


def _depth_among(host: Host, wanted: NDArray[np.bool_]) -> Longs:
    """How many wanted ranges lie around each wanted row."""
    depth = np.zeros(wanted.size, dtype=np.int64)
    inside = wanted[host.rows]
    rows = np.flatnonzero(inside)
    around = host.forest.around(rows, inside)
    while rows.size:
        rows, around = rows[around != NONE], around[around != NONE]
        depth[host.rows[rows]] += 1
        around = host.forest.around(around, inside)
    return depth


def _repeated(trace: Trace, rows: Longs) -> list[HostStep]:
    threads = trace.events["thread"].to_numpy()[rows]
    if not rows.size:
        return []
    busiest = _busiest_thread(trace, rows, threads)
    rows = rows[threads == busiest]
    names = [_without_number(trace.names[trace.name_codes[row]]) for row in rows]
    counts = {name: names.count(name) for name in set(names)}
    chosen = [
        (name, int(row))
        for name, row in zip(names, rows.tolist(), strict=True)
        if counts[name] > 1 or _phase_word(name) in ("prefill", "decode")
    ]
    if all(counts[name] == 1 for name, _ in chosen):
        return []
    period = _turn_taking(chosen)
    if period > 1:
        return [_merged(trace, chosen[i : i + period]) for i in range(0, len(chosen), period)]
    return [_range_step(trace, row, "annotation") for _, row in chosen]


def _busiest_thread(trace: Trace, rows: Longs, threads: NDArray[np.int32]) -> int:
    return _largest(trace, rows, threads)


def _largest(trace: Trace, rows: Longs, keys: NDArray[np.int32]) -> int:
    """The key whose rows last longest together."""
    distinct, place = np.unique(keys, return_inverse=True)
    spent = np.bincount(place, weights=trace.end_ns[rows] - trace.start_ns[rows])
    return int(distinct[int(spent.argmax())])


def _without_number(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _turn_taking(chosen: Sequence[tuple[str, int]]) -> int:
    """Length of the cycle in which differently named ranges follow each other; 1 for none."""
    names = [name for name, _ in chosen]
    period = len(set(names))
    if (
        period == 1
        or len(names) % period
        or any(_phase_word(n) in ("prefill", "decode") for n in names)
    ):
        return 1
    cycle = names[:period]
    return period if len(set(cycle)) == period and names == cycle * (len(names) // period) else 1


def _merged(trace: Trace, parts: Sequence[tuple[str, int]]) -> HostStep:
    first, last = parts[0][1], parts[-1][1]
    step = _range_step(trace, first, "annotation", " + ".join(name for name, _ in parts))
    return replace(step, end_ns=int(trace.end_ns[last]))


@dataclass(frozen=True)
class _Call:
    """A call of a root module. tokens: new tokens of one sequence, and kept: those that stay;
    graded: autograd recorded; aside: sure to be part of no training step."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    batch: int = NONE
    tokens: int = NONE
    phase: str = ""
    graded: int = NONE
    aside: bool = False
    kept: int = NONE


def _root_calls(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    calls = _live_calls(trace) or _module_calls(trace, host)
    captures = capture_ranges(trace, host)
    calls = [call for call in calls if not _is_inside(call, captures)]
    if not calls:
        return []
    return _optimizer_steps(trace, host, calls) or _call_steps(trace, host, calls, "root_call")


def _live_calls(trace: Trace) -> list[_Call]:
    """Root calls that the recorder saw; an encoder's call belongs to the call after it."""
    table = trace.table("root_calls")
    threads = _thread_rows(trace, table["thread"].to_numpy())
    calls: list[_Call] = []
    pending: dict[int, int] = {}
    phases = call_phases(table, learning_ns(trace))
    rows = zip(table.to_dict("records"), threads.tolist(), phases, strict=True)
    for row, thread, phase in rows:
        start = pending.pop(thread, row["start_ns"])
        if row["part"] == "encoder" and row["generation"] >= 0:
            pending[thread] = start
            continue
        # Another model beside the first has a name of its own.
        name = row["root"] if is_further_root(row["root"], row["type"]) else row["type"]
        tokens = row["tokens"] if phase.new_tokens == NONE else phase.new_tokens
        facts = row["batch"], tokens, phase.name, row["graded"], phase.aside, phase.kept
        calls.append(_Call(name, start, row["end_ns"], thread, *facts))
    return calls


def _module_calls(trace: Trace, host: Host) -> list[_Call]:
    """Outermost module ranges (or nn.Module frames) of the name that takes the most time."""
    for wanted in (
        host.of_kind("module"),
        trace.named(lambda name: name.startswith("nn.Module: "), "frame"),
    ):
        rows = np.flatnonzero(wanted)
        outer = rows[host.outermost(wanted)[rows] == rows]
        if outer.size:
            return _calls_of_the_largest(trace, outer)
    return []


def _calls_of_the_largest(trace: Trace, rows: Longs) -> list[_Call]:
    codes = trace.name_codes[rows]
    rows = rows[codes == _largest(trace, rows, codes)]
    threads = trace.events["thread"].to_numpy()
    return [
        _Call(
            trace.names[trace.name_codes[row]],
            int(trace.start_ns[row]),
            int(trace.end_ns[row]),
            int(threads[row]),
        )
        for row in rows.tolist()
    ]


def capture_ranges(trace: Trace, host: Host) -> list[tuple[int, int]]:
    """Times during which a stream was being captured into a graph."""
    begins = trace.named(lambda name: "StreamBeginCapture" in name, "runtime")
    stops = trace.end_ns[trace.named(lambda name: "StreamEndCapture" in name, "runtime")]
    out = []
    for start in trace.start_ns[begins].tolist():
        after = stops[stops >= start]
        out.append((start, int(after.min()) if after.size else int(trace.end_ns[:].max())))
    return out


def _is_inside(call: _Call, ranges: list[tuple[int, int]]) -> bool:
    """A call during a capture computes nothing; one that captures a graph on its way, as compiled
    code does at an early call, runs it too."""
    return any(start <= call.start_ns and call.end_ns <= end for start, end in ranges)


def _optimizer_steps(trace: Trace, host: Host, calls: list[_Call]) -> list[HostStep]:
    """Training: a step ends with the optimizer's, however many calls it accumulated. The calls of
    an evaluation between two steps are in neither."""
    rows = _named(trace, host, _OPTIMIZER_STEP)
    ends = np.sort(trace.end_ns[np.array(rows, dtype=np.int64)])
    if not ends.size:
        return []
    within = [call for call in calls if not call.aside]
    index = np.searchsorted(ends, [call.start_ns for call in within]).tolist()
    groups: list[list[_Call]] = [[] for _ in range(ends.size + 1)]
    for call, which in zip(within, index, strict=True):
        groups[which].append(call)
    apart = [call for call in calls if call.aside]
    apart += [call for call in groups[-1] if call.graded == 0]
    steps = []
    for group, end, ahead in zip(groups, ends.tolist(), _ahead(groups[:-1]), strict=False):
        apart += group[:ahead]
        steps += [_training_step(group[ahead:], end)] if group[ahead:] else []
    return steps + [_call_step(call, call.end_ns, "root_call") for call in apart]


def _ahead(groups: Sequence[Sequence[_Call]]) -> list[int]:
    """How many calls before each step are no part of it: those that learn nothing, but for as many
    as come before the usual step, in which a reference may be asked first."""
    counts = [len(_without_learning(group)) for group in groups]
    usual = [count for count, group in zip(counts, groups, strict=True) if group]
    # With one more in every other step, the usual step is the one without it.
    most = int(np.percentile(usual, 50, method="lower")) if usual else 0
    return [max(count - most, 0) for count in counts]


def _without_learning(group: Sequence[_Call]) -> Sequence[_Call]:
    """The calls before the first that autograd recorded; none where it recorded none."""
    first = next((i for i, call in enumerate(group) if call.graded == 1), 0)
    return group[:first] if all(call.graded == 0 for call in group[:first]) else []


def _training_step(calls: Sequence[_Call], end_ns: int) -> HostStep:
    step = _call_step(calls[0], end_ns, "root_call")
    return replace(step, phase="training", batch=_batch(calls), tokens=_tokens(calls))


def _batch(calls: Sequence[_Call]) -> int:
    return sum(c.batch for c in calls) if all(c.batch >= 0 for c in calls) else NONE


def _tokens(calls: Sequence[_Call]) -> int:
    if any(call.batch < 0 or call.tokens < 0 for call in calls):
        return NONE
    return sum(call.batch * call.tokens for call in calls)


def _call_steps(trace: Trace, host: Host, calls: list[_Call], source: str) -> list[HostStep]:
    """A step is its call, with the learning that follows it. What a loop does between calls that
    learn nothing, such as sampling, is in no step: it would make a prefill as long as what comes
    after it, and detail `light`, which sees calls alone, would have other steps."""
    ends = _with_learning(trace, host, calls)
    return [_call_step(call, end, source) for call, end in zip(calls, ends, strict=True)]


def _call_step(call: _Call, end_ns: int, source: str) -> HostStep:
    name, start, thread = call.name, call.start_ns, call.thread
    tokens = _tokens([call])
    kept = _tokens([replace(call, tokens=call.kept)])
    return HostStep(name, start, end_ns, thread, source, call.phase, call.batch, tokens, kept)


def _with_learning(trace: Trace, host: Host, calls: list[_Call]) -> list[int]:
    """Ends of the calls. Where a backward pass follows, with it and what comes after it: the
    operators on any thread before the next call or the next fetch of data. After the last call
    only as far as was usual before, or to the end of its backward pass."""
    ends = [call.end_ns for call in calls]
    backward = _backward_ends(trace, host)
    operators = np.flatnonzero(host.of_kind("operator")) if backward.size else backward
    starts, reach = trace.start_ns[operators], np.maximum.accumulate(trace.end_ns[operators])
    fetches = np.sort(trace.start_ns[np.array(_named(trace, host, _DATA_LOADER), dtype=np.int64)])
    usual = 0
    for index, end in enumerate(ends):
        following = calls[index + 1].start_ns if index + 1 < len(calls) else None
        first, last = np.searchsorted(backward, (end, following or backward.max(initial=0) + 1))
        if first == last:
            continue
        stop = following or max(int(backward[-1]), end + usual)
        fetch = fetches[np.searchsorted(fetches, end) :]
        stop = min(stop, int(fetch[0])) if fetch.size else stop
        at = int(np.searchsorted(starts, stop)) - 1
        ends[index] = max(end, min(int(reach[at]), stop))
        usual = max(usual, ends[index] - end)
    return ends


def _backward_ends(trace: Trace, host: Host) -> Longs:
    nodes = trace.named(lambda name: name.startswith(BACKWARD_NODE), "operator")
    ends: Longs = np.sort(trace.end_ns[nodes])
    return ends


def _graph_replays(trace: Trace, host: Host, launches: Launches) -> list[HostStep]:
    """Launches of the largest graph, when it is replayed more than once and holds a step."""
    replays = np.flatnonzero(launches.graph)
    if replays.size < 2:
        return []
    kernels = np.bincount(
        np.maximum(launches.launch[trace.device_rows], 0), minlength=len(trace.events)
    )[replays]
    if kernels.max() < _MINIMUM_GRAPH_KERNELS:
        return []
    rows = replays[kernels == kernels.max()]
    if rows.size < 2:
        return []
    threads = trace.events["thread"].to_numpy()
    calls = [
        _Call(
            f"graph of {int(kernels.max())} nodes",
            int(trace.start_ns[row]),
            int(trace.end_ns[row]),
            int(threads[row]),
        )
        for row in rows.tolist()
    ]
    return _call_steps(trace, host, calls, "graph")


_FINDERS: tuple[Finder, ...] = (
    _announced,
    _profiler_steps,
    _engine_ranges,
    _user_ranges,
    _root_calls,
    _graph_replays,
)


def _phase_word(name: str) -> str:
    return next((phase for phase, word in _PHASE_WORDS if word.search(name)), "")


def _with_phases(trace: Trace, host: Host, steps: list[HostStep]) -> list[HostStep]:
    """Fill what the source did not say: from what ran inside, then from the step's name."""
    facts = content_facts(trace, [(s.start_ns, s.end_ns) for s in steps])
    learning = [call for call in _live_calls(trace) if call.graded == 1]
    learning.sort(key=lambda call: call.start_ns)
    begins = [call.start_ns for call in learning]
    out = []
    for step, seen in zip(steps, facts, strict=True):
        phase = seen.phase if seen.phase == "training" else step.phase
        word = _phase_word(step.name) if step.source in ("annotation", "announced") else ""
        told = replace(
            step,
            phase=phase or word or seen.phase,
            batch=step.batch if step.batch >= 0 else seen.batch,
            tokens=step.tokens if step.tokens >= 0 else seen.tokens,
        )
        inside = slice(bisect_left(begins, step.start_ns), bisect_left(begins, step.end_ns))
        out.append(_with_size(told, learning[inside]))
    return out


def _with_size(step: HostStep, inside: Sequence[_Call]) -> HostStep:
    """A training step that does not tell its size has that of the calls in it that learn."""
    if step.phase != "training" or step.tokens >= 0 or not inside:
        return step
    return replace(step, batch=_batch(inside), tokens=_tokens(inside))
