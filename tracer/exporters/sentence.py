"""The verdict: where the time of a step went and what to change, in two or three sentences."""

from __future__ import annotations

from tracer.analysis import Analysis
from tracer.exporters.change import CAUSE_RATIO, change_sentence
from tracer.exporters.claims import (
    GROUP_NAMES,
    Claim,
    claims,
    dominates,
    largest_part,
    profiler_ns,
    unknown_ns,
)
from tracer.exporters.format import duration_text, percent_text
from tracer.exporters.levels import IDLE_PARTS, Level, main_level, phase_levels
from tracer.exporters.light import light_sentences
from tracer.exporters.names import inert
from tracer.exporters.spread import find_spread, middle_level, spread_sentence
from tracer.exporters.traced import outside_sentence, traced_block
from tracer.exporters.warm_up import warm_up_sentence
from tracer.exporters.words import (
    capital,
    device_words,
    idle_clause,
    level_words,
    pair,
    phase_words,
    small,
)

# Work without a role is mentioned from this share of the busy time on.
_UNKNOWN_RATIO = 0.2
_INFLATION_RATIO = 1.05
_HARDLY_LESS_RATIO = 0.7
# The profiler's own idle is mentioned from this share on.
_PROFILER_RATIO = 0.05
# What may not have been idle is told from this share on.
_UNRECORDED_RATIO = 0.05
# What lies between the steps is told beside a phase from this share of the window on.
_BETWEEN_RATIO = 0.2
# The second phase gets a sentence from this share of the window on.
_SECOND_PHASE_RATIO = 0.25
# What records the calls of the host, by who wrote the recording.
_HOST_CALLS = {
    "kineto": "ProfilerActivity.CPU in torch.profiler",
    "live": "detail 'modules'",
    "rocprof": "rocprofv3 --hip-trace",
    "run": "detail 'modules'",
}
# Causes that mean the device had to wait for the host.
_HOST_CAUSES = frozenset(IDLE_PARTS) - {"device", "profiler", "unexplained"}


def verdict(analysis: Analysis) -> str:
    """Where the time went, with numbers, and what to change."""
    if analysis.window.wall_ns <= 0 and (analysis.accounted or traced_block(analysis) is not None):
        sentences = [_nothing(analysis)]
    elif analysis.trace.meta.detail == "light":
        sentences = list(light_sentences(analysis))
    elif not analysis.accounted:
        sentences = [_unusable(analysis)]
    else:
        level = main_level(analysis)
        spread = find_spread(analysis, level.phase)
        shown = level if spread is None else middle_level(analysis, spread)
        change = change_sentence(analysis, level, shown)
        where = _where(shown)
        if any(note.rule == "trace.unknown_category" for note in analysis.notes):
            where = where.replace("No GPU in", "No device of a known kind in")
        differ = "" if spread is None else spread_sentence(analysis, spread)
        warm = warm_up_sentence(analysis)
        where = f"{warm} After it, {small(where)}" if warm else where
        between = _between(analysis, level)
        sentences = [where, between, differ, change, *_caveats(analysis, shown)]
    if analysis.integrity_status == "partial" and analysis.window.wall_ns <= 0:
        sentences = [f"Nothing was recorded. {_partial(analysis)}"]
    elif analysis.integrity_status == "partial":
        sentences = [f"As far as recorded, {small(sentences[0])}", *sentences[1:]]
        sentences.append(_partial(analysis))
    return " ".join(sentence for sentence in sentences if sentence)


def _nothing(analysis: Analysis) -> str:
    block = traced_block(analysis)
    if block is None:
        return "Nothing in this recording took time."
    light = analysis.trace.meta.detail == "light"
    seen = "No step and no call of a model" if light else "No work of PyTorch"
    return f"{seen} was seen in the {duration_text(block.wall_ns)} that were traced."


def _unusable(analysis: Analysis) -> str:
    said = f"Nothing can be said of the GPU: {inert(analysis.breakdown_reason).rstrip('.')}."
    phase = max(analysis.phases, key=lambda phase: phase.wall_ns, default=None)
    if phase is not None and phase.median_ns is not None:
        one = phase_words(phase.name, phase.steps).one
        said += f" On the host {one} takes {duration_text(phase.median_ns)}."
    return said


def _partial(analysis: Analysis) -> str:
    reason = next(note.message for note in analysis.notes if note.partial)
    return f"Partial: {inert(reason).rstrip('.')}."


def _unseen(level: Level) -> bool:
    """Whether the device may have been busy in most of what looks idle, as in a recording that
    begins amid work."""
    worth_saying = level.unrecorded_ns >= _UNRECORDED_RATIO * level.total_ns
    return worth_saying and level.unrecorded_ns >= CAUSE_RATIO * level.idle_ns > 0


def _where_unseen(level: Level) -> str:
    words, gpus = level_words(level), device_words(level)
    amount = pair(level, level.busy_ns)
    amount += "" if level.middle else words.each
    text = f"The recording shows {amount} of work on {gpus.name}"
    text += words.each if level.middle else f" in {words.subject}" if level.phase else ""
    text += f" ({percent_text(level.ratio(level.busy_ns))})"
    return f"{text}; what {gpus.name} did in the rest is not recorded."


def _where(level: Level) -> str:
    if level.devices == 0:
        return _where_on_cpu(level)
    largest = claims(level)[0]
    if _unseen(level) and largest.kind == "idle":
        return _where_unseen(level)
    if not dominates(level, largest):
        return _nothing_dominates(level)
    if largest.kind == "idle":
        return _where_idle(level)
    if largest.part == "unattributed":
        return _unknown_work(level)
    return _takes(level, largest)


def _where_idle(level: Level) -> str:
    words, gpus = level_words(level), device_words(level)
    amount = f"{gpus.works} {pair(level, level.busy_ns)}{words.each}"
    amount += f" ({percent_text(level.ratio(level.busy_ns))})"
    if _host_idle(level) >= CAUSE_RATIO * level.idle_ns:
        return _waits(level, amount)
    often = "mostly" if level.ratio(level.idle_ns) > 0.5 else "often"
    where = f" in {words.subject}" if level.phase else ""
    return f"{capital(gpus.name)} {gpus.is_} {often} idle{where}: {gpus.pronoun} {amount}."


def _waits(level: Level, amount: str) -> str:
    words, gpus = level_words(level), device_words(level)
    if level.phase is None:
        return f"{capital(gpus.name)} {gpus.waits} for the host: {gpus.pronoun} {amount}."
    alone = level.steps == 1 and not level.middle
    subject = words.subject if level.phase or alone else "each step"
    return f"{capital(subject)} waits for the host: {gpus.name} {amount}."


def _host_idle(level: Level) -> int:
    return sum(level.part_ns("overhead", part) for part in _HOST_CAUSES)


def _takes(level: Level, claim: Claim) -> str:
    words, ratio = level_words(level), level.ratio(claim.ns)
    most = "most of" if ratio > 0.5 else "the largest share of"
    each = "" if words.subject == words.one else words.each
    text = f"{capital(claim.name)} takes {most} {words.subject}: {pair(level, claim.ns)}{each} "
    text += f"({percent_text(ratio)})"
    if not claim.part:
        text += f", {largest_part(level, claim.kind)}"
    return f"{text}; {_runner_up(level, claim)}{_rest(level)}."


def _rest(level: Level) -> str:
    if not _unseen(level):
        return idle_clause(level)
    ratio = percent_text(level.ratio(level.idle_ns))
    return f"nothing recorded runs on {device_words(level).name} for {ratio} of the time"


def _runner_up(level: Level, claim: Claim) -> str:
    """A word on work that takes hardly less than what takes most."""
    second = next((c for c in claims(level) if c.kind not in ("idle", claim.kind)), None)
    if second is None or second.ns < _HARDLY_LESS_RATIO * claim.ns:
        return ""
    return f"{second.name} takes {percent_text(level.ratio(second.ns))}; "


def _unknown_work(level: Level) -> str:
    words, gpus = level_words(level), device_words(level)
    text = f"{capital(gpus.name)} {gpus.works} {pair(level, level.busy_ns)}{words.each}; "
    text += f"{percent_text(unknown_ns(level) / level.busy_ns)} of that is in kernels whose role "
    text += "this recording does not tell"
    known = next((c for c in claims(level) if c.kind != "idle" and c.part != "unattributed"), None)
    if known is not None and known.ns >= _UNKNOWN_RATIO * level.busy_ns:
        text += f", {percent_text(known.ns / level.busy_ns)} is {known.name}"
    return f"{text}."


def _nothing_dominates(level: Level) -> str:
    words = level_words(level)
    total = duration_text(level.per_step(level.total_ns))
    listed = ", ".join(
        f"{claim.name} {percent_text(level.ratio(claim.ns))}"
        for claim in claims(level)[:4]
        if claim.ns > 0
    )
    return f"Nothing dominates {words.subject}, {total}{words.each}: {listed}."


def _where_on_cpu(level: Level) -> str:
    total = duration_text(level.per_step(level.total_ns))
    listed = ", ".join(
        f"{name} {percent_text(level.ratio(ns))}" for name, ns in _cpu_shares(level)[:3]
    )
    one = level_words(level).one
    if level.phase is None and not level.busy_ns:
        return f"No GPU and no operator of PyTorch is in this recording of {total}."
    return f"No GPU in this recording: on the CPU {one} takes {total}: {listed}."


def _cpu_shares(level: Level) -> list[tuple[str, int]]:
    """Named shares of a CPU step, the largest first."""
    unknown = unknown_ns(level)
    named = [(GROUP_NAMES[group], level.group_ns(group)) for group in GROUP_NAMES]
    named.append(("other operators", level.group_ns("other") - unknown))
    named.append(("operators without a role", unknown))
    named.append(("outside operators", level.idle_ns))
    return sorted((item for item in named if item[1] > 0), key=lambda item: -item[1])


def _caveats(analysis: Analysis, level: Level) -> list[str]:
    texts = (
        outside_sentence(analysis),
        _second_phase(analysis),
        _unexplained(analysis, level),
        _unknown(level),
        _profiler(level),
        _observer(analysis, level),
    )
    return [text for text in texts if text]


def _between(analysis: Analysis, level: Level) -> str:
    between = analysis.window.between_steps_ns
    ratio = between / analysis.window.wall_ns
    if not between or (level.phase is not None and ratio < _BETWEEN_RATIO):
        return ""
    return f"{percent_text(ratio)} of the recording lies between its steps."


def _second_phase(analysis: Analysis) -> str:
    """A word on the next phase, where it takes much of the window, too."""
    levels = phase_levels(analysis)
    smallest = _SECOND_PHASE_RATIO * analysis.window.wall_ns
    if len(levels) < 2 or levels[1].wall_ns < smallest:
        return ""
    second = levels[1]
    claim = claims(second)[0]
    subject = capital(level_words(second).subject)
    share = percent_text(second.wall_ns / analysis.window.wall_ns)
    ratio = percent_text(second.ratio(claim.ns))
    name = "outside operators" if second.devices == 0 and claim.kind == "idle" else claim.name
    return f"{subject}, {share} of the recording, is {ratio} {name}."


def _unexplained(analysis: Analysis, level: Level) -> str:
    """Why the device was idle is not known where no call of the host is, and what records these."""
    unknown = level.part_ns("overhead", "unexplained")
    source = _HOST_CALLS.get(analysis.trace.meta.source_kind)
    noted = {note.rule for note in analysis.notes}
    alone = "trace.no_launches" in noted and "trace.kernels_missing" not in noted
    if source is None or not alone or unknown < _UNKNOWN_RATIO * level.total_ns:
        return ""
    return f"Why {device_words(level).name} had nothing to do is not recorded: {source} tells."


def _unknown(level: Level) -> str:
    unknown = unknown_ns(level)
    said = claims(level)[0].part == "unattributed"
    if said or not unknown or unknown < _UNKNOWN_RATIO * level.busy_ns or not level.devices:
        return ""
    return f"{percent_text(unknown / level.busy_ns)} of the GPU's work could be given no role."


def _profiler(level: Level) -> str:
    ns = profiler_ns(level)
    if ns < _PROFILER_RATIO * level.total_ns:
        return ""
    words = level_words(level)
    return f"{pair(level, ns)}{words.each} are the recording's own cost: unprofiled it is shorter."


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
