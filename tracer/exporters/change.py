"""The second sentence of the verdict: what to change, by a finding or by what takes the time."""

from __future__ import annotations

import re

from tracer.analysis import BUCKET_CODE, Analysis
from tracer.exporters.advice import (
    FUSE,
    IDLE_ADVICE,
    IDLE_NAMES,
    LIMITS,
    TRANSFER_ADVICE,
    cpu_advice,
    part_advice,
)
from tracer.exporters.claims import GROUP_NAMES, claims, dominates, part_name, unknown_ns
from tracer.exporters.costs import NOTABLE_BETWEEN_RATIO, Cost, is_about, largest_gain
from tracer.exporters.format import counted, duration_text, percent_text, scale_for
from tracer.exporters.levels import IDLE_PARTS, Level
from tracer.exporters.names import inert, short_kernel
from tracer.exporters.pauses import Pauses, count_work, find_pauses
from tracer.exporters.traced import turn_ns
from tracer.exporters.words import capital, level_words, pair_of, small
from tracer.findings import Finding

# A finding below this share of the window is not what to change first.
WORTH_RATIO = 0.03
# A finding that is this much of what dominates is the change; a smaller one comes second.
_SOLVES_RATIO = 0.25
# A second finding is named from this share of the window on.
_SECOND_RATIO = 0.15
# A cost lies between the steps when this share of it does.
_MOSTLY_RATIO = 0.5
# A mean cost of this much of the median step is told as a part of the mean step.
_NEARLY_ALL_RATIO = 0.8
# A cause of idle is named as the cause when it explains this share of it.
CAUSE_RATIO = 0.5
# Causes that are many small gaps as a rule; a few long ones are something else.
_SPREAD_CAUSES = frozenset(("launch", "graph_launch", "device", "host"))
# Parts whose general advice is for a GPU.
_ADVISED_FOR_GPUS = frozenset(("projection", "core", "mixer", "experts", "lm_head", "sampling"))
# How sentences begin that tell what to do.
_INSTRUCTION = re.compile(
    r"(?:Add|Allow|Allocate|Ask|Avoid|Build|Call|Cast|Change|Check|Choose|Collect|Compare|Compile"
    r"|Compute|Convert|Copy|Disable|Do|Enable|Evaluate|Fix|Free|Freeze|Fuse|Give|Increase|Install|Keep"
    r"|Launch|Leave|Let|Load|Lower|Make|Mark|Measure|Move|Overlap|Pad|Pass|Pin|Place|Prefer|Prepare"
    r"|Put|Quantize|Raise|Read|Record|Reduce|Remove|Replace|Replay|Run|See|Send|Set|Split|Start"
    r"|Store|Take|Try|Turn|Upgrade|Use|Wait|Warm|Write)\b"
)
# The findings on a cause of idle that tell of a cost paid once.
_RULES_OF_CAUSE = {"sync": "sync.", "compile": "warmup."}
# Findings whose cost is idle time.
_RULES_OF_IDLE = ("gap.", "sync.", "warmup.")
# Without a finding of this rule, memory is asked for while the cache grows from nothing.
_MEMORY_RULE = "sync.allocator"
_GROWTH = "the cache grows from nothing, paid once. Record after a warm-up step"
# The finding that says what the advice on the part kv_cache does.
_CACHE_RULE = "cache.copied"
# Details of a recording of ours that hold modules.
_WITH_MODULES = ("modules", "full")
# A CPU step of so many operators a step, so close to each other, suffers from dispatch.
_MANY_OPERATORS = 50
_SHORT_GAP_NS = 200_000
# From so long on a kernel is not small: its launch is a hundredth of it.
_LONG_KERNEL_NS = 500_000


def change_sentence(analysis: Analysis, level: Level, shown: Level) -> str:
    """What to change, empty when nothing can be said. `shown`: what was told of the level, its step
    in the middle where the mean step does not stand for all."""
    if not claims(level)[0].ns:
        return ""
    best = largest_gain(analysis, WORTH_RATIO)
    told = "" if best is None else _finding_sentence(analysis, shown, best)
    if best is not None and best.worth_ns >= _SOLVES_RATIO * claims(level)[0].ns:
        second = largest_gain(analysis, _SECOND_RATIO, besides=best)
        named = _title(analysis, second, shown) + "." if second is not None else ""
        return f"{told} {named and 'Next: ' + small(named)}".strip()
    # How idle is spread is known of all steps together.
    advice = _general_advice(analysis, level if claims(shown)[0].kind == "idle" else shown)
    if best is not None and _says_the_same(advice, best.finding):
        advice = None
    return " ".join(text for text in (advice and f"{advice}.", told) if text)


def _says_the_same(advice: str | None, finding: Finding) -> bool:
    """Whether the general advice is what a finding says in more words."""
    about = part_advice("attention", "kv_cache", "") or ""
    return finding.rule == _CACHE_RULE and advice is not None and advice.endswith(about)


def _finding_sentence(analysis: Analysis, shown: Level, cost: Cost) -> str:
    finding = cost.finding
    text = f"{_title(analysis, cost, shown)}."
    if finding.advice:
        text += f" {instruction(inert(finding.advice))}"
    return text + _gain_clause(analysis, shown, cost)


def placed(finding: Finding) -> str:
    """The title of a finding with its place, as the start of a sentence."""
    where, text = finding.where, capital(inert(finding.title).rstrip("."))
    known = where.file is not None and where.line is not None
    return f"{text} at {inert(where.file or '')}:{where.line}" if known else text


def _title(analysis: Analysis, cost: Cost, shown: Level) -> str:
    """The same with its cost."""
    text = placed(cost.finding)
    if cost.finding.cost_ns is not None:
        text += f" (costs {_amount(analysis, cost, cost.finding.cost_ns, shown)}{_apart(cost)})"
    return text


def _amount(analysis: Analysis, cost: Cost, ns: int, shown: Level) -> str:
    """A cost or a gain as the mean of a step, or all of it where that would be none of a step."""
    if cost.of_steps > 1 and _of_slow_steps(cost, shown):
        return f"{duration_text(ns)} in {cost.of_steps:,} steps"
    mean = _mean_step(analysis, cost, shown)
    if mean:
        scale = scale_for(mean)
        return f"{scale.text(ns / cost.of_steps)} of {scale.with_unit(mean)} of the mean step"
    each = " a step" if cost.of_steps > 1 else ""
    return f"{duration_text(ns / max(cost.of_steps, 1))}{each}"


def _mean_step(analysis: Analysis, cost: Cost, shown: Level) -> float:
    """How long the mean step is that a cost is told of, beside the median one: more than that one
    takes would be read as an error. 0 where the cost stands for itself."""
    told = shown.middle and is_about(cost, shown) and not cost.between_ratio
    phase = next((p for p in analysis.phases if told and p.name == (shown.phase or "step")), None)
    if phase is None or (cost.cost_ns or 0) < _NEARLY_ALL_RATIO * shown.per_step(shown.total_ns):
        return 0
    return phase.wall_ns * max(shown.devices, 1) / max(phase.steps, 1)


def _of_slow_steps(cost: Cost, shown: Level) -> bool:
    """Whether few steps have this cost, or the median step is idle for less than its mean."""
    if not shown.middle or not cost.finding.rule.startswith(_RULES_OF_IDLE):
        return False
    few = 2 * len(cost.finding.steps) < cost.of_steps
    return few or (not _apart(cost) and (cost.cost_ns or 0) > shown.per_step(shown.idle_ns))


def _apart(cost: Cost) -> str:
    return ", between the steps" if cost.between_ratio > _MOSTLY_RATIO else ""


def _gain_clause(analysis: Analysis, shown: Level, cost: Cost) -> str:
    gain = cost.gain_ns
    if gain is None or gain <= 0:
        return ""
    if not shown.middle and is_about(cost, shown) and shown.devices == 1:
        # What lies between calls makes none of them shorter, but the turns of their loop.
        apart = cost.between_ratio > NOTABLE_BETWEEN_RATIO
        turn = turn_ns(analysis, shown.phase or "") if apart else None
        left = duration_text(max((turn or shown.per_step(shown.total_ns)) - gain, 0))
        left += " from start to start" if turn else ""
        return f" Without it {level_words(shown).one} takes {left} (-{duration_text(gain)})."
    return f" That would gain {_amount(analysis, cost, cost.finding.gain_ns or 0, shown)}."


def instruction(advice: str) -> str:
    """The sentence of an advice that says what to do: evidence stands around it."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", advice.strip())
    told = next((s for s in sentences if _INSTRUCTION.match(s)), None)
    chosen = told or sentences[min(1, len(sentences) - 1)]
    return chosen if chosen.endswith((".", "!", "?")) else chosen + "."


def _general_advice(analysis: Analysis, level: Level) -> str | None:
    largest = claims(level)[0]
    if largest.kind == "idle":
        return _idle_advice(analysis, level)
    part = largest.part or level.largest_parts(largest.kind)[0][0]
    if part == "unattributed":
        return _unknown_advice(analysis, level)
    on_cpu = level.devices == 0 and part in _ADVISED_FOR_GPUS
    advice = part_advice(largest.kind, part, level.phase or "")
    advice = cpu_advice(analysis.facts) if on_cpu else advice
    if advice == FUSE:
        advice = _one_long_kernel(analysis, largest.kind, part) or advice
    if (largest.kind, part) == ("attention", "core") and not _ran_fused(analysis):
        advice = f"{advice}, and a fused kernel (flash attention) where none ran"
    advice = _with_reach(analysis, level, f"{largest.kind}.{part}", advice)
    if advice is None or largest.part or dominates(level, largest):
        return advice
    ratio = percent_text(level.ratio(level.part_ns(largest.kind, part)))
    return (
        f"The largest part of {GROUP_NAMES[largest.kind]} is {part_name(part)}, {ratio}. {advice}"
    )


def _ran_fused(analysis: Analysis) -> bool:
    """Whether a fused attention ran, and no other."""
    ran = set(analysis.facts.get("attention_ran") or ())
    return bool(ran) and not ran & {"math", "unfused"}


def _with_reach(analysis: Analysis, level: Level, part: str, advice: str | None) -> str | None:
    """The advice on a part with how much of the device's limit its kernels reach; where that is
    little, what brings them nearer."""
    phase = level.phase or None
    rows = (row for row in analysis.roofline if (row["part"], row["phase"]) == (part, phase))
    row = next(rows, None)
    if advice is None or row is None or row["reached_ratio"] is None:
        return advice
    what = LIMITS[row["bound"]]
    reached = f"{percent_text(row['reached_ratio'])} of {what} is reached"
    low = next((f for f in analysis.findings if _is_of(f, part, phase)), None)
    return f"{advice}; {reached}" if low is None else f"Only {reached}. {low.advice.rstrip('.')}"


def _is_of(finding: Finding, part: str, phase: str | None) -> bool:
    told = finding.detail.get("part"), finding.detail.get("phase")
    return finding.rule == "roofline.headroom" and told == (part, phase)


def _unknown_advice(analysis: Analysis, level: Level) -> str | None:
    """What could be known of work without a role, and before it what is known: copies are."""
    recorded = analysis.trace.meta.detail in _WITH_MODULES
    told = _largest_unknown(analysis) if recorded else part_advice("other", "unattributed", "")
    told = _whole_graphs(analysis, level) or told
    copies = level.part_ns("overhead", "transfer")
    if copies < _SECOND_RATIO * level.total_ns:
        return told
    return ". ".join(text for text in (TRANSFER_ADVICE, told) if text)


def _whole_graphs(analysis: Analysis, level: Level) -> str | None:
    """How to divide launches of graphs that the profiler recorded as one piece each."""
    note = next((n for n in analysis.notes if n.rule == "trace.graph_not_divided"), None)
    if note is None or 2 * note.detail["device_ns"] < unknown_ns(level):
        return None
    return "Launches of CUDA graphs stand whole in it: record with nsys --cuda-graph-trace=node"


def _largest_unknown(analysis: Analysis) -> str | None:
    """Modules were recorded, and this work lies in none that has a role: its name is what tells."""
    kernels = analysis.kernels
    unknown = kernels[kernels["bucket"] == BUCKET_CODE["other", "unattributed"]]
    if not len(unknown):
        return None
    row = unknown.iloc[int(unknown["total_ns"].to_numpy().argmax())]
    name, share = inert(short_kernel(str(row["name"]))), percent_text(float(row["ratio"]))
    return f"No module with a role holds it; the largest of it is {name}, {share} of the recording"


def _one_long_kernel(analysis: Analysis, group: str, part: str) -> str | None:
    """Where most of a part is one kernel that is not small, fusing it changes little."""
    kernels = analysis.kernels
    mine = kernels[kernels["bucket"] == BUCKET_CODE.get((group, part), -1)]
    if not len(mine):
        return None
    row = mine.iloc[int(mine["total_ns"].to_numpy().argmax())]
    mean = int(row["total_ns"]) // max(int(row["count"]), 1)
    if 2 * int(row["total_ns"]) < int(mine["total_ns"].sum()) or mean < _LONG_KERNEL_NS:
        return None
    name = inert(short_kernel(str(row["name"])))
    return (
        f"Most of it is {name}, {duration_text(mean)} a call: look for a cheaper operator in its "
        "place, or keep its result where its input stays the same"
    )


def _idle_advice(analysis: Analysis, level: Level) -> str | None:
    if level.devices == 0:
        return _cpu_idle_advice(analysis, level)
    cause, ns = _largest_cause(level)
    if any(note.rule == "trace.kernels_missing" for note in analysis.notes):
        return "Record every kernel, without a choice by name, and judge by that"
    if level.unrecorded_ns > ns:
        return (
            "The GPU may have been busy with work from before the recording: begin it earlier, and "
            "judge by a later step"
        )
    pauses = find_pauses(analysis, level)
    if cause == "unexplained" or ns < CAUSE_RATIO * level.idle_ns:
        return None if pauses is None else capital(_pauses_advice(level, pauses))
    share = percent_text(ns / level.idle_ns)
    said = f"{share} of the idle is {IDLE_NAMES[cause]}"
    if cause in _SPREAD_CAUSES and pauses is not None and pauses.concentrated:
        if cause == "device":
            return f"{said}, half of it in {_long_gaps(pauses)}{_ended_by(analysis, pauses)}"
        return f"{said}; {_pauses_advice(level, pauses)}"
    once = _paid_once(analysis, cause, ns)
    return f"{said}: {once}" if once else f"{said}. {IDLE_ADVICE[cause]}"


def _paid_once(analysis: Analysis, cause: str, ns: int) -> str:
    """What most of this idle was, where it is nothing to change in a step."""
    if cause == "allocator" and not any(f.rule == _MEMORY_RULE for f in analysis.findings):
        return _GROWTH
    for finding in analysis.findings:
        about = finding.rule.startswith(_RULES_OF_CAUSE.get(cause, "-"))
        if about and finding.gain_ns is None and 2 * (finding.cost_ns or 0) >= ns:
            return f"{inert(finding.title)}. {inert(finding.advice).rstrip('.')}"
    return ""


def _largest_cause(level: Level) -> tuple[str, int]:
    """The largest cause of the idle, what may not have been idle left out."""
    causes = {p: level.part_ns("overhead", p) for p in IDLE_PARTS if p != "profiler"}
    causes["device"] -= level.unrecorded_ns
    return max(causes.items(), key=lambda item: item[1])


def _cpu_idle_advice(analysis: Analysis, level: Level) -> str:
    works = count_work(analysis, level)
    if works >= _MANY_OPERATORS * level.steps and level.idle_ns < _SHORT_GAP_NS * works:
        return "Much of it goes between operators: torch.compile or a larger batch cuts that"
    return (
        "Outside operators is Python, waiting or other threads: Python frames (detail full, or "
        "with_stack of torch.profiler) tell which"
    )


def _pauses_advice(level: Level, pauses: Pauses) -> str:
    """What the shape of the idle says, as the rest of a sentence."""
    words = level_words(level)
    works = round(level.per_step(pauses.works))
    if pauses.before is not None:
        name = inert(short_kernel(pauses.before.operator))
        amount = pair_of(level, pauses.before.idle_ns, pauses.idle_ns)
        return (
            f"{amount} of idle{words.each} come before kernels that {name} launches: look at what "
            "it does there"
        )
    if pauses.concentrated or not pauses.many or works < 2:
        return f"half of the idle lies in {_long_gaps(pauses)}: look at what the host does there"
    gap = duration_text(pauses.idle_ns / pauses.gaps)
    return (
        f"{words.one} runs {counted(works, 'kernel')} with {gap} of idle between them: "
        "launch fewer and larger ones, or replay the step as a CUDA graph "
        "(torch.compile with mode='reduce-overhead')"
    )


def _ended_by(analysis: Analysis, pauses: Pauses) -> str:
    """What the device did after the longest gap: what it waited for is before it."""
    if pauses.after < 0:
        return ""
    event = int(analysis.work["event"].iloc[pauses.after])
    name = inert(short_kernel(analysis.trace.names[analysis.trace.name_codes[event]]))
    return f", the longest before {name}: look at what that waits for"


def _long_gaps(pauses: Pauses) -> str:
    longest = duration_text(pauses.longest_ns)
    if pauses.long_gaps == 1:
        return f"one gap of {longest}"
    return f"{counted(pauses.long_gaps, 'gap')} of up to {longest}"
