"""The verdict on a recording of detail `light`, which times the steps and looks into none."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis import Analysis, Phase
from tracer.exporters.change import WORTH_RATIO, instruction, placed
from tracer.exporters.costs import largest_gain
from tracer.exporters.format import duration_text, percent_text
from tracer.exporters.names import inert
from tracer.exporters.spread import find_spread, spread_sentence
from tracer.exporters.traced import learns, outside_sentence, period_ns
from tracer.exporters.words import capital, phase_words

# What lies between the steps comes first from this share of the recording on.
_MOSTLY_RATIO = 0.5


def light_sentences(analysis: Analysis) -> Iterator[str]:
    """How long a step takes, how much of the time lies in steps, what to record next."""
    phases = _by_time(analysis)
    if phases:
        yield _answer(analysis, phases[0])
        spread = find_spread(analysis, phases[0].name)
        yield "" if spread is None else spread_sentence(analysis, spread)
        yield _other_phases(phases)
    yield _change(analysis)
    yield outside_sentence(analysis)
    yield _next(analysis)


def _by_time(analysis: Analysis) -> list[Phase]:
    """The phases of whole steps, the one that took most of the time first."""
    whole = [p for p in analysis.phases if not p.part_of and p.median_ns is not None]
    return sorted(whole, key=lambda phase: -phase.wall_ns)


def _answer(analysis: Analysis, phase: Phase) -> str:
    between, wall = analysis.window.between_steps_ns, analysis.window.wall_ns
    ratio, whole, steps = between / wall, duration_text(wall), _steps(analysis)
    takes = f"{phase_words(phase.name, phase.steps).one} takes {duration_text(phase.median_ns)}"
    if phase.steps > 1:
        takes += f" (median of {phase.steps:,})"
    if not between:
        return f"{capital(takes)}."
    if ratio <= _MOSTLY_RATIO:
        rest = f"{percent_text(1 - ratio)} of the {whole} lie in {steps}, "
        return f"{capital(takes)}; {rest}{percent_text(ratio)} between them."
    period = period_ns(analysis, phase.name)
    start = f", from start to start {duration_text(period)}" if period is not None else ""
    learning = ", with any backward pass and optimizer" if learns(analysis) else ""
    return f"{percent_text(ratio)} of the {whole} lie between {steps}{learning}; {takes}{start}."


def _steps(analysis: Analysis) -> str:
    source = str(analysis.steps["source"].iloc[0])
    learns = bool((analysis.steps["phase"] == "training").any())
    return "the calls of the model" if source == "root_call" and not learns else "the steps"


def _other_phases(phases: list[Phase]) -> str:
    """The phases beside each other, where there are several."""
    whole = sum(phase.wall_ns for phase in phases)
    if len(phases) < 2 or not whole:
        return ""
    shares = [f"{_name(phase)} {percent_text(phase.wall_ns / whole)}" for phase in phases]
    slowest = max(phases, key=lambda phase: phase.median_ns or 0)
    each = f"{phase_words(slowest.name, slowest.steps).one} with {duration_text(slowest.median_ns)}"
    return f"Of the time in steps {', '.join(shares)}; the longest is {each}."


def _change(analysis: Analysis) -> str:
    """What the steps and calls alone tell to change."""
    best = largest_gain(analysis, WORTH_RATIO)
    if best is None:
        return ""
    return f"{placed(best.finding)}. {instruction(inert(best.finding.advice))}"


def _name(phase: Phase) -> str:
    return inert(phase.name) or "other steps"


def _next(analysis: Analysis) -> str:
    if analysis.trace.meta.extra.get("goes_on"):
        return f"{capital(inert(analysis.breakdown_reason))}."
    inside = "and between them " if analysis.window.between_steps_ns else ""
    return (
        f"What ran inside {inside}was not looked at: detail 'modules', the default, says for a few "
        "steps what their time went to, and which lines kept them waiting."
    )
