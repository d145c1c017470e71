"""What is open: recordings to be read, read, or failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tracer.analysis import Analysis
    from tracer.rank_analysis import RankAnalysis

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


@dataclass(frozen=True)
class Comparison:
    """The ranks of one run beside each other, how long each waited in each of its steps (empty:
    their clocks could not be aligned), and the number of each rank's recording."""

    ranks: RankAnalysis
    step_waits_ns: Mapping[int, NDArray[np.int64]]
    numbers: Mapping[int, int]


@dataclass
class Session:
    """All that is open, and which of it is shown."""

    recordings: list[Recording]
    shown: int = 0
    comparison: Comparison | None = None
    live: bool = False

    @property
    def recording(self) -> Recording:
        return self.recordings[self.shown]

    @property
    def settled(self) -> bool:
        """Whether every recording is read, or known to be unreadable."""
        return all(r.analysis is not None or r.error is not None for r in self.recordings)

    @property
    def analysis(self) -> Analysis | None:
        return self.recording.analysis
