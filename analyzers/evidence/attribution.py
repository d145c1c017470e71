"""Which group and part each piece of work belongs to, filled rung by rung."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import HOW
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import Longs
from tracer.analyzers.layers.pattern import LayerPattern
from tracer.events import Note

HOW_CODE = {how: code for code, how in enumerate(HOW)}
OPEN = -1


@dataclass
class Attribution:
    """Bucket, evidence and confidence of each work row, filled rung by rung."""

    bucket: NDArray[np.int16]
    how: NDArray[np.int8]
    confidence: NDArray[np.float64]
    direction: NDArray[np.int8]
    replayed: NDArray[np.bool_]
    step: Longs  # the step of each row; -1: in none
    patterns: list[LayerPattern] = field(default_factory=list)  # of layers, the largest first
    notes: list[Note] = field(default_factory=list)

    def fill(self, rows: Longs, bucket: NDArray[np.int16], how: str, confidence: float) -> None:
        """Give these rows a bucket where they have none yet and `bucket` is one."""
        take_it = (self.bucket[rows] == OPEN) & (bucket != OPEN)
        rows = rows[take_it]
        self.bucket[rows] = bucket[take_it]
        captured = self.replayed[rows] & (how in ("module", "operator"))
        self.how[rows] = np.where(captured, HOW_CODE["graph"], HOW_CODE[how])
        self.confidence[rows] = confidence

    @property
    def open(self) -> Longs:
        return np.flatnonzero(self.bucket == OPEN)


Rung = Callable[[Work, Roles, Attribution], None]
