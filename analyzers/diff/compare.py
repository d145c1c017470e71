"""Two recordings side by side: before and after a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tracer.analysis import Analysis
from tracer.analyzers.diff.alike import find_differences
from tracer.analyzers.diff.findings import match_findings
from tracer.analyzers.diff.pace import pace_of
from tracer.analyzers.diff.steps import (
    compare_phase,
    compare_windows,
    has_steps,
    pair_phases,
    phases_of,
    told_phase,
)
from tracer.diff_analysis import EVALUATION, OTHER_STEPS, DiffAnalysis, Difference, PhaseChange


def compare(before: Analysis, after: Analysis) -> DiffAnalysis:
    """What changed from one recording to the other: like with like, and what is not like."""
    phases = _compared_phases(before, after)
    differences = find_differences(before, after, phases)
    paces = [pace_of(before, after, phase, differences) for phase in phases]
    phases = _led(replace(c, pace=pace) for c, pace in zip(phases, paces, strict=True))
    only = _only(before, after)
    return DiffAnalysis(
        before=before,
        after=after,
        phases=phases,
        only_before=only[0],
        only_after=only[1],
        differences=(*differences, *_unequal_phases(only, bool(phases)), *_unnamed(before, after)),
        findings=match_findings(before, after),
        reason="" if phases else _nothing_common(before, after),
    )


def _led(phases: Iterable[PhaseChange]) -> tuple[PhaseChange, ...]:
    """The phase first that answers best."""
    listed = tuple(phases)
    first = _first(listed)
    return *(c for c in listed if c is first), *(c for c in listed if c is not first)


def _first(listed: Sequence[PhaseChange]) -> PhaseChange | None:
    """One whose turns hold the steps of others and changed; where the change of the longest is one
    step against another, or the machine's doing, the longest whose change is known to be none of
    that; else the longest, but for one of which the mean turn tells more."""
    longest = next(iter(listed), None)
    if longest is None or longest.mean_tells:
        return longest
    telling = [c for c in listed if c.mean_tells and (_holds_others(c) or not _is_sure(longest))]
    if telling:
        return telling[0]
    if longest.step.scatter_ns is not None and longest.pace is None:
        return longest
    return next((change for change in listed if _is_sure(change)), longest)


def _holds_others(change: PhaseChange) -> bool:
    parts = () if change.mean_turn is None else change.mean_turn.parts
    return any(part.group in (EVALUATION, OTHER_STEPS) for part in parts)


def _is_sure(change: PhaseChange) -> bool:
    measures = (change.step, change.turn)
    return change.pace is None and any(m and m.within_scatter is False for m in measures)


def _compared_phases(before: Analysis, after: Analysis) -> tuple[PhaseChange, ...]:
    if not before.window.wall_ns or not after.window.wall_ns:
        return ()
    if not has_steps(before) or not has_steps(after):
        return (compare_windows(before, after, "whole recordings"),)
    return tuple(compare_phase(before, after, names) for names in pair_phases(before, after))


def _only(before: Analysis, after: Analysis) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Phases of one side that are compared with none of the other."""
    if not has_steps(before) or not has_steps(after):
        return (), ()
    pairs = pair_phases(before, after)
    ours, theirs = ({names[side] for names in pairs} for side in (0, 1))
    return (
        tuple(name or "step" for name in phases_of(before) if name not in ours),
        tuple(name or "step" for name in phases_of(after) if name not in theirs),
    )


def _unequal_phases(
    only: tuple[tuple[str, ...], tuple[str, ...]], some_are_common: bool
) -> tuple[Difference, ...]:
    if not any(only):
        return ()
    told = {side: ", ".join(names) for side, names in zip("AB", only, strict=True)}
    said = ", ".join(f"only {side} has {names}" for side, names in told.items() if names)
    message = f"phases of steps: {said}"
    return (Difference("diff.phases", message, only[0], only[1], not some_are_common),)


def _unnamed(before: Analysis, after: Analysis) -> Iterator[Difference]:
    """Steps of one side that are of no phase in particular are taken for those of the other."""
    if not has_steps(before) or not has_steps(after):
        return
    for ours, theirs in pair_phases(before, after):
        if ours != theirs:
            told = told_phase((ours, theirs))
            unsure = "B" if told == ours else "A"
            said = (
                f"whether the steps of {unsure} are {told} was not recorded: they are taken for it"
            )
            yield Difference("diff.phases", said, ours or None, theirs or None, breaks=False)


def _nothing_common(before: Analysis, after: Analysis) -> str:
    for name, analysis in (("A", before), ("B", after)):
        if not analysis.window.wall_ns:
            return f"nothing was recorded in {name}"
    return "no phase of steps is common to both"
