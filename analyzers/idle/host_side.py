"""What a host row means for a device that waits while it is the innermost of its thread."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.gaps import (
    ALLOCATOR,
    COMPILE,
    GC,
    GRAPH,
    HOST,
    INPUT,
    LAUNCH,
    PROFILER,
    SYNC,
)
from tracer.analyzers.idle.gap_view import GapView
from tracer.analyzers.idle.thresholds import usual_pace, usual_step
from tracer.analyzers.intervals import NONE, Longs, covered
from tracer.events import KIND_CODE

Ranges = tuple[Longs, Longs]
_RANGES = [KIND_CODE["annotation"], KIND_CODE["module"]]


class HostSide:
    """The host rows of one recording by what they do, its usual times, and the main thread."""

    def __init__(self, view: GapView) -> None:
        context = view.context
        self.work, self._idle = context.work, view.idle
        self.trace, self.host, self.calls = self.work.trace, self.work.host, self.work.calls
        of_event = self.trace.events["thread"].to_numpy()
        launching = of_event[self.work.launches.launching]
        self.main = int(np.bincount(launching).argmax()) if launching.size else 0
        self.pace_ns, self.step_ns = usual_pace(context), usual_step(context)
        self.is_operator = self.host.of_kind("operator")
        self.outer_operator = self.host.outer_operator
        self.launches_inside = self._hold_launches()
        self.cause_of_row = self._causes()

    @cached_property
    def forced(self) -> tuple[tuple[Ranges, int], ...]:
        """Ranges of time whose cause is known whatever a thread shows."""
        collections = self.trace.table("collections")
        compiled = self.trace.table("compile_events")
        return (
            ((compiled["start_ns"].to_numpy(), compiled["end_ns"].to_numpy()), COMPILE),
            (self.calls.overhead_ranges(compiles=True), COMPILE),
            ((collections["start_ns"].to_numpy(), collections["end_ns"].to_numpy()), GC),
            # The recording's own objects bring collections about, too.
            (self.calls.overhead_ranges(compiles=False), PROFILER),
        )

    def is_range(self, rows: Longs) -> NDArray[np.bool_]:
        """Which of these rows are ranges around operators."""
        return np.isin(self.trace.kind_codes[rows], _RANGES)

    def next_launch(self, time: Longs) -> Longs:
        """The start of the first launch at or after each time; none is never."""
        starts = np.append(self._launch_starts, np.iinfo(np.int64).max)
        return starts[np.searchsorted(self._launch_starts, time)]

    def launches_before(self, time: Longs) -> Longs:
        """How many launches began until each time."""
        count: Longs = np.searchsorted(self._launch_starts, time, side="right")
        return count

    @cached_property
    def _launch_starts(self) -> Longs:
        return self.trace.start_ns[self.work.launches.launching]

    def all_idle(self, start: Longs, end: Longs) -> Longs:
        """For how much of each interval no device works."""
        each = [covered(start, end, *idle) for idle in self._idle]
        return np.min(each, axis=0, initial=np.iinfo(np.int64).max) if each else start * 0

    def _hold_launches(self) -> NDArray[np.bool_]:
        """Host rows that hold a launch."""
        rows, stop = self.host.rows, self.host.forest.stop
        launches = np.append(False, self.work.launches.launching[rows])
        before = np.cumsum(launches, dtype=np.int32)
        marked = np.zeros(len(self.trace.events), dtype=bool)
        marked[rows[before[stop] > before[1:]]] = True
        return marked

    def _causes(self) -> NDArray[np.int8]:
        """What idle means while each host row is the innermost."""
        calls = self.calls
        out = np.full(len(self.trace.events), HOST, dtype=np.int8)
        out[self.is_operator | self.host.of_kind("runtime")] = LAUNCH
        out[calls.module_load] = COMPILE
        out[self.work.launches.graph] = GRAPH
        out[self.host.nearest(calls.input) != NONE] = INPUT
        out[self.host.nearest(calls.collecting) != NONE] = GC
        out[calls.allocator] = ALLOCATOR
        out[calls.blocking] = SYNC
        out[self.host.nearest(calls.compiling) != NONE] = COMPILE
        return out
