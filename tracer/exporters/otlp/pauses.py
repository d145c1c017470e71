"""Pauses as spans of their own: of the idle time of a recording those that its findings name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracer.exporters.otlp.cells import Ints
from tracer.findings import Finding

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Pauses:
    """Rows of `gaps`, with the place of each one's finding among the findings, and the entry of
    the folded idle time that it is part of; -1: not looked up."""

    row: Ints
    finding: Ints
    idle: Ints

    def __len__(self) -> int:
        return len(self.row)


NO_PAUSES = Pauses(_NONE, _NONE, _NONE)


def named_pauses(findings: Sequence[Finding]) -> Pauses:
    """The pauses that the findings are made of; of one that two name, the first has it."""
    named: dict[int, int] = {}
    for number, finding in enumerate(findings):
        for row in finding.pauses:
            named.setdefault(row, number)
    rows, numbers = (np.array(list(x), dtype=np.int64) for x in (named, named.values()))
    return Pauses(rows, numbers, np.full(rows.size, -1))
