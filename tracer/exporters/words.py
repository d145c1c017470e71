"""How phases, amounts and shares are called in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracer.exporters.format import duration_text, percent_text, scale_for
from tracer.exporters.levels import Level
from tracer.exporters.names import inert

# A part whose sizes are known for less of it is said to be.
_ALL_RATIO = 0.95


@dataclass(frozen=True)
class Words:
    """How a level is called: `decode`, `a decode step`, ` a step` after a time."""

    subject: str
    one: str
    each: str


def phase_words(phase: str, steps: int) -> Words:
    """Words for a phase of so many steps."""
    plain = {"": "step", "step": "step", "forward": "forward pass"}.get(
        phase, f"{inert(phase)} step"
    )
    if steps == 1:
        return Words(f"the {plain}", f"the {plain}", "")
    subject = {"": "a step", "step": "a step", "forward": "the forward pass"}.get(
        phase, inert(phase)
    )
    article = "an" if plain[0] in "aeiou" else "a"
    return Words(subject, f"{article} {plain}", " a step")


def level_words(level: Level) -> Words:
    """Words for a level."""
    if level.phase is None:
        return Words("the recording", "the recording", "")
    if level.middle:
        one = phase_words(level.phase, 1).one.replace("the ", "the median ", 1)
        return Words(phase_words(level.phase, 2).subject, one, " in the median step")
    return phase_words(level.phase, level.steps)


def limit_words(row: Mapping[str, Any]) -> str:
    """Which part a row of the roofline is about, and how much of it where not all."""
    known = row["known_ratio"]
    share = "" if known is None or known >= _ALL_RATIO else f" ({percent_text(known)} of it)"
    return f"{row['part'] or 'whole step'}{share}"


def capital(text: str) -> str:
    """The text as the start of a sentence; `cuDNN` stays as it is."""
    return text if _has_own_case(text) else text[:1].upper() + text[1:]


def small(text: str) -> str:
    """The text inside a sentence; `FFN` and `GPU` stay as they are."""
    return text if _has_own_case(text) else text[:1].lower() + text[1:]


def _has_own_case(text: str) -> bool:
    word = text.partition(" ")[0]
    return any(c.isupper() for c in word[1:]) or not word.rstrip(",:;").isalpha()


def pair(level: Level, ns: int) -> str:
    """`6.4 of 61.0 ms`, as means of the steps."""
    return pair_of(level, ns, level.total_ns)


def pair_of(level: Level, ns: int, whole_ns: int) -> str:
    """A time and the time it is a part of, as means of the steps, in one unit where it can be."""
    part, whole = level.per_step(ns), level.per_step(whole_ns)
    scale = scale_for(whole)
    if 0 < part < 5 * scale.quantum_ns:
        return f"{duration_text(part)} of {scale.with_unit(whole)}"
    return f"{scale.text(part)} of {scale.with_unit(whole)}"


@dataclass(frozen=True)
class Devices:
    """The devices as the subject of a sentence."""

    name: str
    pronoun: str
    is_: str
    works: str
    waits: str


def device_words(level: Level) -> Devices:
    """`the GPU is`, `the 2 GPUs are`."""
    if level.devices == 1:
        return Devices("the GPU", "it", "is", "works", "waits")
    return Devices(f"the {level.devices} GPUs", "they", "are", "work", "wait")


def idle_clause(level: Level) -> str:
    """`the GPU is idle 5.0 % of the time`."""
    gpus = device_words(level)
    if level.idle_ns <= 0:
        return f"{gpus.name} {gpus.is_} never idle"
    return f"{gpus.name} {gpus.is_} idle {percent_text(level.ratio(level.idle_ns))} of the time"
