"""What a screen can be asked to show."""

from __future__ import annotations

from dataclasses import dataclass

NONE = -1


@dataclass(frozen=True)
class Moment:
    """Something on the timeline: the first of these that is given."""

    event: int = NONE
    work: int = NONE
    gap: int = NONE
    cause: str = ""  # the largest gap of this cause, in `step` if that is given
    step: int = NONE
    finding: int = NONE  # the finding whose evidence it is


@dataclass(frozen=True)
class Filter:
    """Rows of a table: those that match."""

    query: str


@dataclass(frozen=True)
class ModulePath:
    """A module, by its path with numbers folded."""

    path: str


@dataclass(frozen=True)
class FindingNumber:
    """A finding, by its place in the analysis."""

    number: int


@dataclass(frozen=True)
class RecordingNumber:
    """One of the recordings that are open."""

    number: int


@dataclass(frozen=True)
class SearchFor:
    """The first hit of a search."""

    query: str
