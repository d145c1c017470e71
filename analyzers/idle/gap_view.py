"""The gaps of one recording, each beside the launch that ended it: whom it waited for."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.context import Context
from tracer.analyzers.idle.thresholds import most_latency, usual_latency, usual_step
from tracer.analyzers.intervals import NONE, Longs, take, union

# The first work of a stream waited behind other work from this share of a step on.
_LONG_WAIT = 0.05


class GapView:
    """For each piece of idle the launch of the next work, and the bounds of the whole gap."""

    def __init__(self, context: Context) -> None:
        self.context, self.gaps = context, context.gaps
        work, trace = context.work, context.work.trace
        self.launch = take(work.launch, self.gaps.after)
        self.begin, self.finish = self._whole_bounds()
        launched = np.maximum(self.launch, 0)
        self.launch_start = self._time_of(trace.start_ns[launched])
        self.launch_end = self._time_of(trace.end_ns[launched])
        same = take(work.launch, self.gaps.before) == self.launch
        self.in_graph = same & (self.launch != NONE)
        tail = self.gaps.after == NONE
        has_host = bool(work.host.rows.size)
        self.unlinked = ((self.launch == NONE) & ~tail & ~self.early) | (tail & (not has_host))
        linked = ~self.unlinked & ~tail
        self.device_side = linked & (self.early | self.in_graph | (self.launch_end <= self.begin))
        self.late = (linked & ~self.device_side) | (tail & has_host)

    @cached_property
    def early(self) -> NDArray[np.bool_]:
        """The next work was launched before the recording, so the host was in time."""
        orphaned = self.context.work.orphaned.astype(np.int64)
        early: NDArray[np.bool_] = take(orphaned, self.gaps.after) == 1
        return early

    @cached_property
    def unrecorded(self) -> NDArray[np.bool_]:
        """What the next work waited for has no rows: it was launched before the recording, or is
        the first of its stream, was launched long before it starts, and no launch takes that long:
        the stream held work that the recording does not."""
        waited = self.finish - np.maximum(self.launch_end, self.begin)
        first = (take(self._opening, self.gaps.after) == 1) & (self.launch != NONE)
        long = max(most_latency(self.context.work), _LONG_WAIT * usual_step(self.context))
        unseen: NDArray[np.bool_] = self.early | (first & ~self.in_graph & (waited > long))
        return unseen | self.context.work.kernels_missing

    @cached_property
    def _opening(self) -> Longs:
        """Of each work, 1 where it is the first of its stream."""
        lanes = self.context.lanes
        _, of_stream = np.unique(lanes.stream, return_inverse=True)
        of_lane = of_stream * (int(lanes.device.max(initial=0)) + 2) + lanes.device + 1
        first_start = np.full(int(of_lane.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first_start, of_lane, lanes.start_ns)
        opens: Longs = (lanes.start_ns == first_start[of_lane]).astype(np.int64)
        return opens

    @cached_property
    def by_graph(self) -> NDArray[np.bool_]:
        """The next work was launched by a graph."""
        graph = self.context.work.launches.graph.astype(np.int64)
        replayed: NDArray[np.bool_] = take(graph, self.launch) == 1
        return replayed

    @cached_property
    def latency_ns(self) -> int:
        """The usual time from a late launch to its kernel."""
        begins_late = self.launch_start > self.begin
        first = self.late & ~self.by_graph & (self.launch != NONE) & begins_late
        return usual_latency(self.context.work, (self.finish - self.launch_start)[first])

    @property
    def idle(self) -> list[tuple[Longs, Longs]]:
        """When each device was idle; where it may have been busy with what has no rows, it was."""
        gaps, sure = self.gaps, ~self.unrecorded
        of_device = [sure & (gaps.device == one) for one in np.unique(gaps.device)]
        return [union(gaps.start_ns[mine], gaps.end_ns[mine]) for mine in of_device]

    def _whole_bounds(self) -> tuple[Longs, Longs]:
        """Start and end of the whole gap that each piece is part of."""
        size = int(self.gaps.gap.max()) + 1 if self.gaps.gap.size else 0
        start = np.full(size, np.iinfo(np.int64).max)
        end = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(start, self.gaps.gap, self.gaps.start_ns)
        np.maximum.at(end, self.gaps.gap, self.gaps.end_ns)
        return start[self.gaps.gap], end[self.gaps.gap]

    def _time_of(self, times: Longs) -> Longs:
        """Of the launch; of the end of the gap where nothing was launched after it."""
        return np.where(self.launch == NONE, self.finish, times)
