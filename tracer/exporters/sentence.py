"""The verdict: where the time of a step went and what to change, in two or three sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracer.analysis import Analysis
from tracer.exporters.advice import IDLE_ADVICE, IDLE_NAMES, TRANSFER_ADVICE, part_advice
from tracer.exporters.costs import Cost, is_about, largest_gain
from tracer.exporters.format import counted, duration_text, percent_text, scale_for
from tracer.exporters.levels import IDLE_PARTS, Level, main_level, phase_levels
from tracer.exporters.names import inert, short_kernel
from tracer.exporters.pauses import Pauses, find_pauses

# A finding below this share of the window is not what to change first.
_WORTH_RATIO = 0.03
# Nothing dominates when no kind of time reaches this share.
_DOMINANT_RATIO = 0.3
# A cause of idle is named as the cause when it explains this share of it.
_CAUSE_RATIO = 0.5
# Unattributed work is mentioned from this share of the busy time on.
_UNKNOWN_RATIO = 0.2
_INFLATION_RATIO = 1.05
# The second phase gets a sentence from this share of the window on.
_SECOND_PHASE_RATIO = 0.25
# Causes that mean the device had to wait for the host.
_HOST_CAUSES = frozenset(IDLE_PARTS) - {"device", "unexplained"}
_GROUP_NAMES = {"attention": "attention", "ffn": "FFN", "communication": "communication"}
_PART_NAMES = {"lm_head": "the LM head", "optimizer": "the optimizer", "loss": "the loss"}


def verdict(analysis: Analysis) -> str:
    """Where the time went, with numbers, and what to change."""
    if not analysis.accounted:
        sentences = [_unusable(analysis)]
    elif analysis.window.wall_ns <= 0:
        sentences = ["Nothing in this recording took time."]
    else:
        level = main_level(analysis)
        sentences = [_where(analysis, level), _change(analysis, level), *_caveats(analysis, level)]
    if analysis.integrity_status == "partial":
        sentences = [f"As far as recorded, {_small(sentences[0])}", *sentences[1:]]
        sentences.append(_partial(analysis))
    return " ".join(sentence for sentence in sentences if sentence)


def _unusable(analysis: Analysis) -> str:
    said = f"Nothing can be said of the GPU: {analysis.breakdown_reason.rstrip('.')}."
    phase = max(analysis.phases, key=lambda phase: phase.wall_ns, default=None)
    if phase is not None and phase.median_ns is not None:
        said += f" On the host {phase_words(phase.name, phase.steps).one} takes "
        said += f"{duration_text(phase.median_ns)}."
    return said


def _partial(analysis: Analysis) -> str:
    reason = next(note.message for note in analysis.notes if note.partial)
    return f"Partial: {inert(reason).rstrip('.')}."


@dataclass(frozen=True)
class Words:
    """How a level is called: `decode`, `a decode step`, ` a step` after a time."""

    subject: str
    one: str
    each: str


def phase_words(phase: str, steps: int) -> Words:
    """Words for a phase of so many steps."""
    plain = {"": "step", "forward": "forward pass"}.get(phase, f"{inert(phase)} step")
    if steps == 1:
        return Words(f"the {plain}", f"the {plain}", "")
    subject = {"": "a step", "forward": "the forward pass"}.get(phase, inert(phase))
    return Words(subject, f"a {plain}", " a step")


def level_words(level: Level) -> Words:
    """Words for a level."""
    if level.phase is None:
        return Words("the recording", "the recording", "")
    return phase_words(level.phase, level.steps)


def _capital(text: str) -> str:
    """The text as the start of a sentence; `cuDNN` stays as it is."""
    return text if _has_own_case(text) else text[:1].upper() + text[1:]


def _small(text: str) -> str:
    """The text inside a sentence; `FFN` and `GPU` stay as they are."""
    return text if _has_own_case(text) else text[:1].lower() + text[1:]


def _has_own_case(text: str) -> bool:
    return any(c.isupper() for c in text.partition(" ")[0][1:])


def _pair(level: Level, ns: int) -> str:
    """`6.4 of 61.0 ms`, as means of the steps."""
    whole = level.per_step(level.total_ns)
    scale = scale_for(whole)
    part = level.per_step(ns)
    if 0 < part < 5 * scale.quantum_ns:
        return f"{duration_text(part)} of {scale.with_unit(whole)}"
    return f"{scale.text(part)} of {scale.with_unit(whole)}"


def _gpus(level: Level) -> tuple[str, str]:
    return ("the GPU", "works") if level.devices == 1 else (f"the {level.devices} GPUs", "work")


@dataclass(frozen=True)
class Claim:
    """A kind of time that may dominate."""

    kind: str
    ns: int


def _claims(level: Level) -> list[Claim]:
    """Kinds of time, the largest first."""
    transfer = level.part_ns("overhead", "transfer")
    claims = [Claim("idle", level.idle_ns), Claim("transfer", transfer)]
    claims += [Claim(g, level.group_ns(g)) for g in ("attention", "ffn", "communication", "other")]
    return sorted(claims, key=lambda claim: -claim.ns)


def _where(analysis: Analysis, level: Level) -> str:
    if level.devices == 0:
        return _where_on_cpu(level)
    largest = _claims(level)[0]
    if level.ratio(largest.ns) < _DOMINANT_RATIO:
        return _nothing_dominates(level)
    if largest.kind == "idle":
        return _where_idle(level)
    if largest.kind == "transfer":
        return _takes(level, "copying between host and GPU", largest.ns, None)
    if largest.kind == "other":
        return _where_other(level, largest.ns)
    return _takes(level, _GROUP_NAMES[largest.kind], largest.ns, _largest_part(level, largest.kind))


def _where_idle(level: Level) -> str:
    words = level_words(level)
    gpus, works = _gpus(level)
    amount = f"{gpus} {works} {_pair(level, level.busy_ns)}{words.each}"
    amount += f" ({percent_text(level.ratio(level.busy_ns))})"
    if _host_idle(level) >= _CAUSE_RATIO * level.idle_ns:
        return f"{_capital(words.subject)} waits for the host: {amount}."
    mostly = "mostly idle" if level.ratio(level.idle_ns) > 0.5 else "often idle"
    verb = "is" if level.devices == 1 else "are"
    return (
        f"{_capital(gpus)} {verb} {mostly} in {words.subject}: {amount.replace(gpus, _it(level))}."
    )


def _it(level: Level) -> str:
    return "it" if level.devices == 1 else "they"


def _host_idle(level: Level) -> int:
    return sum(level.part_ns("overhead", part) for part in _HOST_CAUSES)


def _takes(level: Level, subject: str, ns: int, largest: str | None) -> str:
    words = level_words(level)
    most = "most of" if level.ratio(ns) > 0.5 else "the largest share of"
    text = f"{_capital(subject)} takes {most} {words.subject}: {_pair(level, ns)}{words.each}"
    text += f" ({percent_text(level.ratio(ns))})"
    if largest is not None:
        text += f", {largest}"
    return f"{text}; {_idle_clause(level)}."


def _idle_clause(level: Level) -> str:
    gpus, _ = _gpus(level)
    verb = "is" if level.devices == 1 else "are"
    if level.idle_ns <= 0:
        return f"{gpus} {verb} never idle"
    return f"{gpus} {verb} idle {percent_text(level.ratio(level.idle_ns))} of the time"


def _largest_part(level: Level, group: str) -> str | None:
    parts = level.largest_parts(group)
    if not parts:
        return None
    part, ns = parts[0]
    if ns == level.group_ns(group):
        return f"all of it {_part_name(part)}"
    share = percent_text(ns / level.group_ns(group))
    return f"{share} of that {_part_name(part)}"


def _part_name(part: str) -> str:
    return _PART_NAMES.get(part, part.replace("_", " "))


def _where_other(level: Level, ns: int) -> str:
    part, part_ns = level.largest_parts("other")[0]
    if part == "unattributed":
        return _unknown_work(level)
    if part_ns > 0.6 * ns:
        return _takes(level, _part_name(part), part_ns, None)
    return _takes(level, "work outside attention and FFN", ns, _largest_part(level, "other"))


def _unknown_work(level: Level) -> str:
    words = level_words(level)
    gpus, works = _gpus(level)
    unknown = level.part_ns("other", "unattributed")
    return (
        f"{_capital(gpus)} {works} {_pair(level, level.busy_ns)}{words.each}, but what for is "
        f"mostly unknown: {percent_text(unknown / level.busy_ns)} of that time is in kernels that "
        f"this recording gives no role."
    )


def _nothing_dominates(level: Level) -> str:
    words = level_words(level)
    total = duration_text(level.per_step(level.total_ns))
    listed = ", ".join(
        f"{_claim_name(claim)} {percent_text(level.ratio(claim.ns))}"
        for claim in _claims(level)[:4]
        if claim.ns > 0
    )
    return f"Nothing dominates {words.subject}, {total}{words.each}: {listed}."


def _claim_name(claim: Claim) -> str:
    return {"transfer": "copies", "ffn": "FFN"}.get(claim.kind, claim.kind)


def _where_on_cpu(level: Level) -> str:
    words = level_words(level)
    total = duration_text(level.per_step(level.total_ns))
    listed = ", ".join(
        f"{name} {percent_text(level.ratio(ns))}" for name, ns in _cpu_shares(level)[:3]
    )
    return f"No GPU in this recording: on the CPU {words.one} takes {total}: {listed}."


def _cpu_shares(level: Level) -> list[tuple[str, int]]:
    """Named shares of a CPU step, the largest first."""
    unknown = level.part_ns("other", "unattributed")
    named = [(_GROUP_NAMES[g], level.group_ns(g)) for g in _GROUP_NAMES]
    named.append(("other operators", level.group_ns("other") - unknown))
    named.append(("operators without a role", unknown))
    named.append(("outside operators (Python, dispatch)", level.idle_ns))
    return sorted((item for item in named if item[1] > 0), key=lambda item: -item[1])


def _change(analysis: Analysis, level: Level) -> str:
    best = largest_gain(analysis, _WORTH_RATIO)
    if best is not None:
        return _finding_sentence(level, best)
    advice = _general_advice(analysis, level)
    return f"{advice}." if advice else ""


def _finding_sentence(level: Level, cost: Cost) -> str:
    finding = cost.finding
    text = f"{_capital(inert(finding.title).rstrip('.'))}"
    each = " a step" if cost.of_steps > 1 else ""
    if cost.cost_ns is not None:
        text += f": {duration_text(cost.cost_ns)}{each}"
    text += "."
    if finding.advice:
        text += f" {first_sentence(inert(finding.advice))}"
    return text + _gain_clause(level, cost, each)


def _gain_clause(level: Level, cost: Cost, each: str) -> str:
    gain = cost.gain_ns
    if gain is None or gain <= 0:
        return ""
    if is_about(cost, level) and level.devices == 1:
        left = duration_text(max(level.per_step(level.total_ns) - gain, 0))
        return f" Without it {level_words(level).one} takes {left} (-{duration_text(gain)})."
    return f" That would gain {duration_text(gain)}{each}."


def first_sentence(text: str) -> str:
    """The text up to the end of its first sentence."""
    end = re.search(r"[.!?](?=\s+[A-Z`])", text)
    first = text[: end.end()] if end else text
    return first if first.endswith((".", "!", "?")) else first + "."


def _general_advice(analysis: Analysis, level: Level) -> str | None:
    largest = _claims(level)[0]
    phase = level.phase or ""
    if largest.kind == "idle":
        return _cpu_idle_advice() if level.devices == 0 else _idle_advice(analysis, level)
    if largest.kind == "transfer":
        return TRANSFER_ADVICE
    part, ns = level.largest_parts(largest.kind)[0]
    if level.devices == 0 and part in ("projection", "core"):
        return None
    advice = part_advice(largest.kind, part, phase)
    if advice is None or level.ratio(largest.ns) >= _DOMINANT_RATIO:
        return advice
    name = f"{_GROUP_NAMES.get(largest.kind, '')} {_part_name(part)}".strip()
    return f"Its largest part is {name}, {percent_text(level.ratio(ns))}. {advice}"


def _cpu_idle_advice() -> str:
    return "Most of it is spent between operators: torch.compile or a larger batch cuts that"


def _idle_advice(analysis: Analysis, level: Level) -> str | None:
    cause, ns = max(
        ((part, level.part_ns("overhead", part)) for part in IDLE_PARTS), key=lambda item: item[1]
    )
    if cause != "unexplained" and ns >= _CAUSE_RATIO * level.idle_ns:
        share = percent_text(ns / level.idle_ns)
        return f"{share} of the idle is {IDLE_NAMES[cause]}. {IDLE_ADVICE[cause]}"
    pauses = find_pauses(analysis, level)
    return None if pauses is None else _pauses_advice(level, pauses)


def _pauses_advice(level: Level, pauses: Pauses) -> str | None:
    """What the shape of the idle says, where its cause is not known."""
    if pauses.concentrated:
        text = f"Half of the idle lies in {counted(pauses.long_gaps, 'long gap')} "
        text += f"(up to {duration_text(pauses.longest_ns)})"
        if pauses.operator is None:
            return f"{text}: look at what the host does there"
        name = inert(short_kernel(pauses.operator))
        return f"{text}, most of it before kernels that {name} launches: look at what it does there"
    works = round(level.per_step(pauses.works))
    if works < 2:
        return None
    words = level_words(level)
    gap = duration_text(pauses.idle_ns / pauses.gaps)
    return (
        f"{_capital(words.one)} runs {counted(works, 'kernel')} with {gap} of idle between them: "
        f"launch fewer and larger ones, or replay the step as a CUDA graph "
        f"(torch.compile with mode='reduce-overhead')"
    )


def _caveats(analysis: Analysis, level: Level) -> list[str]:
    texts = (_second_phase(analysis), _unknown(level), _observer(analysis, level))
    return [text for text in texts if text]


def _second_phase(analysis: Analysis) -> str:
    """A word on the next phase, where it takes much of the window, too."""
    levels = phase_levels(analysis)
    if len(levels) < 2 or levels[1].wall_ns < _SECOND_PHASE_RATIO * analysis.window.wall_ns:
        return ""
    second = levels[1]
    claim = _claims(second)[0]
    subject = _capital(level_words(second).subject)
    share = percent_text(second.wall_ns / analysis.window.wall_ns)
    ratio = percent_text(second.ratio(claim.ns))
    return f"{subject}, {share} of the recording, is {ratio} {_claim_name(claim)}."


def _unknown(level: Level) -> str:
    unknown = level.part_ns("other", "unattributed")
    named = (
        _claims(level)[0].kind == "other" and level.largest_parts("other")[0][0] == "unattributed"
    )
    if named or level.devices == 0 or unknown < _UNKNOWN_RATIO * level.busy_ns:
        return ""
    return f"{percent_text(unknown / level.busy_ns)} of the work could be given no role."


def _observer(analysis: Analysis, level: Level) -> str:
    observer = analysis.observer
    if observer is None or observer.inflation_ratio < _INFLATION_RATIO:
        return ""
    text = f"Without the profiler a step takes {duration_text(observer.unprofiled_step_ns)}, "
    text += f"with it {observer.inflation_ratio:.2f} times that"
    busy = level.per_step(level.busy_ns) / max(level.devices, 1)
    idle_now = level.ratio(level.idle_ns) > 0.5
    if level.devices and idle_now and busy > 0.5 * observer.unprofiled_step_ns:
        return f"{text}, so that the idle is mostly the profiler's: uncertain."
    return f"{text}."
