"""What is open: recordings to be read, read, or failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.tui.model.ranks import Alignment

# Called with the stage (what is being done), how much of it is done and how much there is.
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Source:
    """A recording that can be opened: its name, its size, and how it becomes an analysis."""

    name: str
    read: Callable[[Report], Analysis]
    size_bytes: int | None = None


@dataclass
class Recording:
    """One source and what became of it."""

    source: Source
    analysis: Analysis | None = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        return self.source.name


@dataclass
class Session:
    """All that is open, and which of it is shown."""

    recordings: list[Recording]
    shown: int = 0
    alignment: Alignment | None = None
    live: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def recording(self) -> Recording:
        return self.recordings[self.shown]

    @property
    def analysis(self) -> Analysis | None:
        return self.recording.analysis
