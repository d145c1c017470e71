"""The devices of a recording: its GPU agents in the order of their logical numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.batches import distinct_of
from tracer.events import NONE, SIDE_TABLES, make_table

_MOST = 1 << 31


@dataclass(frozen=True)
class Gpu:
    """What is said of a GPU agent; -1 and "" where nothing is."""

    name: str = ""
    memory_bytes: int = NONE
    compute_units: int = NONE
    target: int = NONE  # 90500 is gfx950

    def row(self, device: int) -> dict[str, Any]:
        """Its row in the table of devices."""
        known = 0 < self.target < _MOST
        return {
            "device": device,
            "name": self.name,
            "memory_bytes": self.memory_bytes if self.memory_bytes < 1 << 63 else NONE,
            "sm_count": self.compute_units if 0 < self.compute_units < _MOST else NONE,
            "major": self.target // 10_000 if known else NONE,
            "minor": self.target // 100 % 100 if known else NONE,
        }


@dataclass(frozen=True)
class Devices:
    """Device numbers of agents by what the rows of the recording call them."""

    number: dict[int, int]

    def of(self, agents: Ints) -> Ints:
        """The device of each agent; -1 where it is none."""
        distinct, place = distinct_of(agents)
        numbers = [self.number.get(agent, NONE) for agent in distinct]
        return np.array(numbers, dtype=np.int64)[place]


def devices_table(gpus: Mapping[int, Gpu]) -> pd.DataFrame:
    """The table `devices` of these numbers."""
    rows: Sequence[Mapping[str, Any]] = [gpus[device].row(device) for device in sorted(gpus)]
    columns = SIDE_TABLES["devices"]
    return make_table(columns, {name: [row[name] for row in rows] for name in columns})
