"""A timeline as a value: what is seen, chosen and selected. Every command makes another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tracer.analyzers.intervals import NONE, Longs
from tracer.tui.model.hits import chosen_hit
from tracer.tui.model.lanes import Lanes
from tracer.tui.model.places import Moment
from tracer.tui.model.scene import shown_keys
from tracer.tui.model.selection import (
    LaneKey,
    Selection,
    biggest,
    event_selection,
    launch_of,
    module_of,
    neighbour_gap,
    neighbour_work,
    operator_of,
    resolve,
    select_at,
    stream_of,
)
from tracer.tui.model.viewport import Viewport, viewport_on

Jump = Callable[[Lanes, Selection], "Selection | None"]


@dataclass(frozen=True)
class Timeline:
    """`cells` is the width that it was last drawn with; moving by a cell depends on it."""

    lanes: Lanes
    viewport: Viewport
    lane: LaneKey
    selection: Selection | None
    folded: bool = False
    cells: int = 80

    @property
    def keys(self) -> list[LaneKey]:
        return shown_keys(self.lanes, self.folded)

    @property
    def step(self) -> int:
        """The step of the cursor: the one it is in, or the one before it."""
        starts = self.lanes.analysis.steps["start_ns"].to_numpy()
        if not starts.size:
            return NONE
        return max(int(np.searchsorted(starts, self.viewport.cursor_ns, side="right")) - 1, 0)

    @property
    def step_bounds(self) -> tuple[int, int]:
        """Start and end of that step; of everything where there is none."""
        return step_bounds(self.lanes, self.step)

    # Moving.

    def wide(self, cells: int) -> Timeline:
        """The same for another width."""
        return self if cells == self.cells else replace(self, cells=max(cells, 1))

    def looked_at(self, viewport: Viewport) -> Timeline:
        """Another view; what is under the cursor is selected."""
        cell = viewport.cell(self.cells)
        found = select_at(self.lanes, self.lane, viewport.cursor_ns, cell)
        return replace(self, viewport=viewport, selection=found)

    def moved(self, by: int) -> Timeline:
        """The cursor so many cells to the right."""
        return self.looked_at(self.viewport.moved(self.cells, by))

    def moved_to(self, column: int) -> Timeline:
        """The cursor in a cell of the view."""
        at = self.viewport.column(self.viewport.cursor_ns, self.cells)
        return self.moved(column - at)

    def zoomed(self, closer: bool, time_ns: int | None = None) -> Timeline:
        """Closer or further; the selection stays."""
        return replace(self, viewport=self.viewport.zoomed(self.cells, closer, time_ns))

    def panned(self, cells: int) -> Timeline:
        """The view so many cells later."""
        return replace(
            self, viewport=self.viewport.panned(cells * self.viewport.span_ns // self.cells)
        )

    def fitted(self) -> Timeline:
        """The step of the cursor, exactly."""
        return replace(self, viewport=self.viewport.fitted(*self.step_bounds))

    def closer_to(self, viewport: Viewport) -> Timeline:
        """What the lens shows."""
        return replace(self, viewport=viewport)

    def on_lane(self, by: int) -> Timeline:
        """The lane so many rows below."""
        keys = self.keys
        at = keys.index(self.lane) if self.lane in keys else 0
        lane = keys[min(max(at + by, 0), len(keys) - 1)] if keys else self.lane
        return replace(self, lane=lane).looked_at(self.viewport)

    def chosen(self, lane: LaneKey) -> Timeline:
        """Another lane."""
        return replace(self, lane=lane).looked_at(self.viewport)

    def fold(self) -> Timeline:
        """Host lanes shown or not; the chosen lane stays if it is still there."""
        folded = replace(self, folded=not self.folded)
        keys = folded.keys
        lane = self.lane if self.lane in keys or not keys else keys[0]
        return replace(folded, lane=lane)

    # Jumping.

    def on(self, selection: Selection | None) -> Timeline | None:
        """The cursor on a selection, its lane chosen, the view moved no more than it must."""
        if selection is None:
            return None
        low, high = self.viewport.bounds
        bounds = (min(low, selection.start_ns), max(high, selection.end_ns))
        viewport = replace(self.viewport, bounds=bounds)
        seen = (viewport.start_ns, viewport.end_ns)
        visible = (max(selection.start_ns, seen[0]), min(selection.end_ns, seen[1]))
        middle = (selection.start_ns + selection.end_ns) // 2
        at = sum(visible) // 2 if visible[0] < visible[1] else middle
        folded = self.folded and selection.lane in shown_keys(self.lanes, True)
        return replace(
            self, viewport=viewport.at(at), lane=selection.lane, selection=selection, folded=folded
        )

    def jumped(self, jump: Jump) -> Timeline | None:
        """Along one of the ways from a selection; None where it does not lead anywhere."""
        return None if self.selection is None else self.on(jump(self.lanes, self.selection))

    def to_launch(self) -> Timeline | None:
        return self.jumped(launch_of)

    def to_operator(self) -> Timeline | None:
        return self.jumped(operator_of)

    def to_module(self) -> Timeline | None:
        return self.jumped(module_of)

    def to_gap(self, forward: bool) -> Timeline | None:
        """The next gap that is wide enough to be seen."""
        selected = self.selection
        start = self.viewport.cursor_ns
        if selected is not None and selected.kind == "gap":
            start = selected.start_ns
        least_ns = int(self.viewport.cell_ns(self.cells) / 2)
        device = self.lane.first if self.lane.kind in ("work", "idle") else self._first_device
        return self.on(neighbour_gap(self.lanes, device, start, forward, least_ns))

    @property
    def _first_device(self) -> int:
        return min(self.lanes.idle, default=0)

    def to_kernel(self, forward: bool) -> Timeline | None:
        """The next piece of work on the chosen stream, or on the busiest one."""
        key = (
            self.lane if self.lane.kind in ("work", "idle") else LaneKey("idle", self._first_device)
        )
        stream = stream_of(self.lanes, key)
        if stream is None:
            return None
        selected = self.selection
        start = self.viewport.cursor_ns
        if selected is not None and selected.kind == "work":
            start = selected.start_ns
        return self.on(neighbour_work(self.lanes, stream, start, forward))

    def to_biggest(self, again: bool) -> Timeline | None:
        """The largest gap or work in view; again: the next largest."""
        found = biggest(self.lanes, self.viewport.start_ns, self.viewport.end_ns)
        if not found:
            return None
        at = found.index(self.selection) + 1 if again and self.selection in found else 0
        return self.on(found[at % len(found)])

    def to_step(self, by: int) -> Timeline | None:
        """The step before or after, fitted, the cursor on its largest cost."""
        step = self.step + by
        if not 0 <= step < len(self.lanes.analysis.steps):
            return None
        return self._on_step(step)

    def _on_step(self, step: int) -> Timeline:
        start, end = step_bounds(self.lanes, step)
        found = biggest(self.lanes, start, end)
        there = replace(self, viewport=replace(self.viewport, cursor_ns=start).fitted(start, end))
        return (there.on(found[0]) if found else None) or there

    # Searching.

    def found(self, query: str, forward: bool, here: bool) -> tuple[Timeline, int, int]:
        """The next event whose name holds the query, in order of time."""
        lanes = self.lanes
        events = matching_events(lanes, query)
        if not events.size:
            return self, 0, 0
        at = int(np.searchsorted(lanes.trace.start_ns[events], self._search_from(), side="right"))
        hits = (2 * np.arange(events.size) + 1).tolist()
        same = at > 0 and self._is_selected(int(events[at - 1]))
        place = 2 * at - 1 if same else 2 * at
        number = chosen_hit(hits, place, forward, here)
        there = self.on(event_selection(lanes, int(events[number])))
        return there or self, number + 1, int(events.size)

    def _search_from(self) -> int:
        selected = self.selection
        if selected is not None and selected.kind != "gap":
            return selected.start_ns
        return self.viewport.cursor_ns

    def _is_selected(self, event: int) -> bool:
        selected = self.selection
        if selected is None or selected.kind == "gap":
            return False
        row = int(self.lanes.work_of_event[event])
        return selected.row == (row if selected.kind == "work" else event)


def matching_events(lanes: Lanes, query: str) -> Longs:
    """Events on a lane whose full name holds the query, in order of time."""
    wanted = query.lower()
    trace = lanes.trace
    named = trace.names_matching(lambda name: wanted in name.lower())[trace.name_codes]
    rows = trace.rows("operator", "module", "annotation", "runtime", "kernel", "memcpy", "memset")
    found: Longs = rows[named[rows]]
    return found


def step_bounds(lanes: Lanes, step: int) -> tuple[int, int]:
    """Start and end of a step; of everything where there is no such step."""
    steps = lanes.analysis.steps
    if not 0 <= step < len(steps) or int(steps["wall_ns"].iloc[step]) <= 0:
        return lanes.bounds
    start = int(steps["start_ns"].iloc[step])
    return start, start + int(steps["wall_ns"].iloc[step])


def open_timeline(lanes: Lanes, moment: Moment, cells: int, folded: bool) -> Timeline:
    """A timeline on what a screen asked for, fitted to its step, the cursor on the largest cost."""
    selection = resolve(lanes, moment)
    step = moment.step
    if selection is not None:
        step = _step_at(lanes, selection)
    elif step == NONE:
        step = _slowest(lanes)
    start, end = step_bounds(lanes, step)
    if selection is not None and not start <= selection.start_ns < end:
        start, end = _around(selection)
    viewport = viewport_on(start, end, lanes.bounds)
    keys = shown_keys(lanes, folded)
    lane = keys[0] if keys else LaneKey("work")
    timeline = Timeline(lanes, viewport, lane, None, folded, max(cells, 1))
    if selection is None:
        found = biggest(lanes, start, end)
        selection = found[0] if found else None
    return timeline.on(selection) or timeline


def _step_at(lanes: Lanes, selection: Selection) -> int:
    """The step that a selection belongs to: that of its work, else by time."""
    if selection.kind == "work":
        return int(lanes.analysis.work["step"].iloc[selection.row])
    starts = lanes.analysis.steps["start_ns"].to_numpy()
    return int(np.searchsorted(starts, selection.start_ns, side="right")) - 1


def _slowest(lanes: Lanes) -> int:
    walls = lanes.analysis.steps["wall_ns"].to_numpy()
    return int(walls.argmax()) if walls.size else NONE


def _around(selection: Selection) -> tuple[int, int]:
    margin = max(selection.length_ns, 1000)
    return selection.start_ns - margin, selection.end_ns + margin
