"""How long steps take while the profiler waits: the other half of the observer effect."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import NamedTuple

from tracer.collectors.steps.device_steps import (
    NANOSECONDS_PER_MILLISECOND,
    Device,
    Event,
    TorchDevice,
)

# Steps before a profiler starts by itself.
WAITING_STEPS = 8
# The first ones pay for first use: of the patches, and of what the interpreter forgot through them.
FIRST_STEPS = 3
_MOST_MARKS = 256


class _Mark(NamedTuple):
    host_ns: int
    event: Event | None  # None: on a CPU, or where the device could take none


class Calibration:
    """Marks the beginning of each step, on the device where there is one: the host may be far
    ahead of it. `close` gives the times from one beginning to the next."""

    def __init__(self, *, gpu: bool, device: Device | None = None) -> None:
        self._device = (device or TorchDevice()) if gpu else None
        self._marks: list[_Mark] = []
        self.closed = False

    @property
    def steps(self) -> int:
        """How many steps have begun."""
        return len(self._marks)

    def mark(self) -> None:
        """A step begins here, and the one before it ends."""
        if not self.closed and len(self._marks) < _MOST_MARKS:
            self._marks.append(_Mark(time.time_ns(), self._event()))

    def _event(self) -> Event | None:
        if self._device is None or self._device.current() is None:
            return None
        event = self._device.event()
        event.record()
        return event

    def close(self) -> list[tuple[int, int]]:
        """Start and end of each step that was followed by a mark, on the host's clock. Waits for
        the device once."""
        if self.closed:
            return []
        self.closed = True
        marks, self._marks = self._marks, []
        if marks and marks[-1].event is not None:
            marks[-1].event.synchronize()
        pairs = pairwise(marks)
        times = [(one.host_ns, one.host_ns + self._between(one, other)) for one, other in pairs]
        times = times[min(FIRST_STEPS, len(times) // 2) :]
        return [(start, end) for start, end in times if end > start]

    def _between(self, one: _Mark, other: _Mark) -> int:
        if self._device is None:
            return other.host_ns - one.host_ns
        if one.event is None or other.event is None:  # before the device was in use
            return 0
        return round(one.event.elapsed_time(other.event) * NANOSECONDS_PER_MILLISECOND)
