"""Waits by place and cause: by the line that waits, or, where a library waits at several of its own
lines, by the line of the user's that called it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.idle.waits import EXPLICIT, Wait
from tracer.findings import Where


@dataclass(frozen=True)
class WaitPlace:
    """Waits of one cause and place. caller: the user's line that called the library in which they
    wait, or the helper that synchronizes; lines: those of the library, where there are several, the
    costliest first."""

    cause: str
    where: Where
    waits: list[Wait]
    caller: Where | None = None
    library: str = ""
    lines: tuple[WaitPlace, ...] = ()


def find_places(context: Context, waits: Iterable[Wait]) -> list[WaitPlace]:
    """The waits by place and cause, in order of the first of each."""
    callers: dict[tuple[str, Where, str], list[WaitPlace]] = {}
    found: list[WaitPlace] = []
    for place in _lines(context, waits):
        if place.caller is None or not place.library:
            found.append(place)
        else:
            callers.setdefault((place.cause, place.caller, place.library), []).append(place)
    found += [_of_library(lines) for lines in callers.values()]
    return sorted(found, key=lambda place: place.waits[0].event)


def _lines(context: Context, waits: Iterable[Wait]) -> list[WaitPlace]:
    """The waits by the line that waits."""
    places = context.work.once(Places)
    groups: dict[tuple[str, Where, Where | None, str], list[Wait]] = {}
    helped: dict[Where, Counter[Where]] = {}
    for wait in waits:
        where, caller, library = places.of_wait(wait.event)
        path = folded(where.module) if where.module else None
        where = where if path == where.module else replace(where, module=path)
        if wait.cause == EXPLICIT and not library and caller is not None:
            helped.setdefault(where, Counter())[caller] += 1
        key = (wait.cause, where, caller if library else None, library)
        groups.setdefault(key, []).append(wait)
    return [
        WaitPlace(cause, where, members, caller or _commonest(helped.get(where)), library)
        for (cause, where, caller, library), members in groups.items()
    ]


def _commonest(callers: Counter[Where] | None) -> Where | None:
    return None if callers is None else callers.most_common(1)[0][0]


def _of_library(lines: list[WaitPlace]) -> WaitPlace:
    """The lines of a library as one place; a single one stays as it is."""
    if len(lines) == 1:
        return lines[0]
    ordered = sorted(lines, key=lambda line: (-_idle(line), -len(line.waits)))
    waits = sorted((wait for line in lines for wait in line.waits), key=lambda wait: wait.event)
    first = ordered[0]
    where = first.caller or Where()
    return replace(first, where=where, waits=waits, lines=tuple(ordered))


def _idle(place: WaitPlace) -> int:
    return sum(wait.idle_ns for wait in place.waits)
