"""Which stretch of time is seen, and where the cursor is: moved by pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.analyzers.intervals import Longs
from tracer.tui.model.coverage import cell_edges

_ZOOM = 2


@dataclass(frozen=True)
class Viewport:
    """A stretch of time inside `bounds`, drawn as so many cells, with a cursor in it."""

    start_ns: int
    span_ns: int
    cursor_ns: int
    bounds: tuple[int, int]

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.span_ns

    def edges(self, cells: int) -> Longs:
        """The borders of the cells."""
        return cell_edges(self.start_ns, self.span_ns, cells)

    def cell_ns(self, cells: int) -> float:
        return self.span_ns / max(cells, 1)

    def column(self, time_ns: int, cells: int) -> int:
        """The cell of a moment; outside 0 to cells - 1 when it is not in view."""
        at = (time_ns - self.start_ns) * cells // max(self.span_ns, 1)
        while at >= 0 and self.start_ns + (at + 1) * self.span_ns // cells <= time_ns:
            at += 1
        return at

    def cell(self, cells: int) -> tuple[int, int]:
        """Start and end of the cell under the cursor."""
        at = min(max(self.column(self.cursor_ns, cells), 0), cells - 1)
        edges = self.edges(cells)
        return int(edges[at]), max(int(edges[at + 1]), int(edges[at]) + 1)

    def moved(self, cells: int, by: int) -> Viewport:
        """The cursor so many cells further; the view follows it."""
        at = self.column(self.cursor_ns, cells) + by
        middle = self.start_ns + (2 * at + 1) * self.span_ns // (2 * cells)
        return self.at(middle)

    def at(self, time_ns: int) -> Viewport:
        """The cursor at a moment; the view moves no more than it must."""
        low, high = self.bounds
        cursor = min(max(time_ns, low), high - 1)
        start = self.start_ns
        if cursor < start:
            start = cursor - self.span_ns // 8
        elif cursor >= self.end_ns:
            start = cursor - self.span_ns * 7 // 8
        return replace(self, cursor_ns=cursor, start_ns=start)._inside()

    def zoomed(self, cells: int, closer: bool, time_ns: int | None = None) -> Viewport:
        """Half or twice the time, around the cursor or another moment, which stays in its cell."""
        anchor = self.cursor_ns if time_ns is None else time_ns
        span = self.span_ns // _ZOOM if closer else self.span_ns * _ZOOM
        low, high = self.bounds
        span = min(max(span, cells), high - low)
        offset = (anchor - self.start_ns) * span // max(self.span_ns, 1)
        return replace(self, start_ns=anchor - offset, span_ns=span)._inside()

    def panned(self, by_ns: int) -> Viewport:
        """The view so much later; the cursor stays in it."""
        moved = replace(self, start_ns=self.start_ns + by_ns)._inside()
        cursor = min(max(self.cursor_ns, moved.start_ns), moved.end_ns - 1)
        return replace(moved, cursor_ns=cursor)

    def fitted(self, start_ns: int, end_ns: int) -> Viewport:
        """The view on exactly this stretch; the cursor stays when it is in it."""
        span = max(end_ns - start_ns, 1)
        cursor = min(max(self.cursor_ns, start_ns), start_ns + span - 1)
        return replace(self, start_ns=start_ns, span_ns=span, cursor_ns=cursor)

    def _inside(self) -> Viewport:
        low, high = self.bounds
        span = min(self.span_ns, high - low)
        return replace(self, span_ns=span, start_ns=min(max(self.start_ns, low), high - span))


def viewport_on(start_ns: int, end_ns: int, bounds: tuple[int, int]) -> Viewport:
    """A view of a stretch, the cursor at its start; the bounds grow to hold it."""
    low, high = min(bounds[0], start_ns), max(bounds[1], end_ns, start_ns + 1)
    return Viewport(start_ns, max(end_ns - start_ns, 1), start_ns, (low, high))
