"""A step drawn as lanes: host, streams, idle by cause, copies, collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import events

from tracer.tui.look import Look
from tracer.tui.messages import Ask
from tracer.tui.model.evidence import evidence_lines, finding_of, place_of
from tracer.tui.model.lanes import Lanes, build_lanes
from tracer.tui.model.lines import heading, labelled, plain
from tracer.tui.model.other_ranks import other_ranks
from tracer.tui.model.picture import NARROW, Picture, cells_in, draw_timeline
from tracer.tui.model.places import Moment
from tracer.tui.model.scene import LABEL_WIDTH, selection_words, work_label
from tracer.tui.model.selection import LaneKey
from tracer.tui.model.source import source_lines
from tracer.tui.model.steps import step_sentence
from tracer.tui.model.timeline import Timeline, open_timeline
from tracer.tui.session import Session
from tracer.tui.widgets.view import View

_SOURCE_AROUND = 12


class TimelineView(View):
    """Draws a `Timeline` and gives it the commands."""

    KEY: ClassVar[str] = "timeline"
    TITLE: ClassVar[str] = "Timeline"
    LABELS: ClassVar[Mapping[str, str]] = {"down": "lane"}
    WORDS: ClassVar[str] = (
        "One step as lanes. load: how much of a cell's time the stream works; work: the letter of "
        "the group that works most; idle: the letter of the cause that idles most. Up and Down "
        "choose a lane, Left and Right move the cursor; what is under it is described below. "
        "Enter zooms to the lens. The mouse: click, wheel zooms, drag pans."
    )

    def __init__(self) -> None:
        super().__init__()
        self.timeline: Timeline | None = None
        self.shows_source = False
        self.shows_details = False
        self.picture: Picture | None = None
        self._drag_x: int | None = None

    @staticmethod
    def prepare(session: Session, look: Look) -> Lanes:
        assert session.analysis is not None
        return replace(build_lanes(session.analysis), others=other_ranks(session))

    @property
    def lanes(self) -> Lanes:
        lanes: Lanes = self.model
        return lanes

    def on_model(self) -> None:
        old = self.timeline
        if old is None:
            self.timeline = open_timeline(self.lanes, Moment(), self._cells, self._folds)
        elif old.lanes.analysis is self.lanes.analysis:
            self._set(replace(old, lanes=self.lanes))
        else:
            fresh = open_timeline(self.lanes, Moment(), self._cells, old.folded)
            self._set(replace(fresh, lane=old.lane).looked_at(old.viewport))

    @property
    def _cells(self) -> int:
        return cells_in(self.explorer.size.width)

    @property
    def _folds(self) -> bool:
        """Whether host lanes are folded on arrival: where there is no room for them."""
        return self.explorer.size.width < NARROW

    def show_item(self, item: object) -> None:
        if isinstance(item, Moment):
            self.shows_source = self.shows_details = False
            self._set(open_timeline(self.lanes, item, self._cells, self._folds))

    def place(self) -> object:
        return self.timeline, self.shows_source, self.shows_details

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        self.timeline, self.shows_source, self.shows_details = place
        self.changed()

    def _set(self, timeline: Timeline | None) -> bool:
        """Show another timeline; False where a command led nowhere."""
        if timeline is None:
            return False
        self.timeline = timeline
        self.changed()
        self.explorer.frame_changed()
        return True

    def draw_model(self, width: int, height: int) -> list[Text]:
        if self.timeline is None:
            return []
        self.timeline = self.timeline.wide(cells_in(width))
        if self.shows_source:
            return self._source(width)
        if self.shows_details:
            return self._details(width)
        self.picture = draw_timeline(self.timeline, self.look, width, height)
        return list(self.picture.lines)

    def _source(self, width: int) -> list[Text]:
        timeline = self.timeline
        assert timeline is not None
        lines = [heading("SOURCE", "s or Esc goes back", width)]
        if timeline.selection is not None:
            words = selection_words(self.lanes, timeline.selection)
            lines += [plain(f"   {self.look.name(words)}"), plain()]
            where = place_of(self.lanes, timeline.selection)
            found = finding_of(self.lanes, timeline.selection)
            if where.file is None and found is not None:
                where = found.where
            for label, text in (("module", where.module), ("operator", where.operator)):
                lines += labelled(label, self.look.name(text), width) if text else []
            path = self.lanes.trace.meta.path or ""
            lines += source_lines(self.look, where, width, path, _SOURCE_AROUND)
        return [line.text for line in lines]

    def _details(self, width: int) -> list[Text]:
        timeline = self.timeline
        assert timeline is not None
        origin = timeline.step_bounds[0]
        lines = evidence_lines(self.lanes, self.look, timeline.selection, origin, width)
        return [line.text for line in (heading("DETAILS", "d or Esc goes back", width), *lines)]

    def state_words(self) -> str:
        timeline = self.timeline
        if timeline is None or timeline.step < 0:
            return self.TITLE
        return step_sentence(self.look, self.lanes.analysis, timeline.step)

    # Moving.

    def _apply(self, timeline: Timeline | None) -> None:
        if not self._set(timeline):
            self.explorer.say("nothing there")

    def _jump(self, timeline: Timeline | None, what: str) -> None:
        """Like a move, but Backspace comes back to where it began."""
        if timeline is None:
            self.explorer.say(f"no {what} is recorded for this")
            return
        self.explorer.leave()
        self._set(timeline)

    @property
    def now(self) -> Timeline:
        assert self.timeline is not None
        return self.timeline

    def can_move(self) -> bool:
        return self.timeline is not None

    can_left = can_right = can_up = can_down = can_page_up = can_page_down = can_move
    can_first = can_last = can_zoom_in = can_zoom_out = can_zoom_fit = can_move
    can_next_gap = can_previous_gap = can_next_kernel = can_previous_kernel = can_move
    can_next_step = can_previous_step = can_launch = can_operator = can_module = can_move
    can_biggest = can_fold = can_source = can_details = can_search = can_copy = can_move
    can_enter = can_move

    def do_left(self) -> None:
        self._set(self.now.moved(-1))

    def do_right(self) -> None:
        self._set(self.now.moved(1))

    def do_page_up(self) -> None:
        self._set(self.now.moved(-self.now.cells))

    def do_page_down(self) -> None:
        self._set(self.now.moved(self.now.cells))

    def do_first(self) -> None:
        start, _ = self.now.step_bounds
        self._set(self.now.looked_at(self.now.viewport.at(start)))

    def do_last(self) -> None:
        _, end = self.now.step_bounds
        self._set(self.now.looked_at(self.now.viewport.at(end - 1)))

    def do_up(self) -> None:
        self._set(self.now.on_lane(-1))

    def do_down(self) -> None:
        self._set(self.now.on_lane(1))

    def do_zoom_in(self) -> None:
        self._set(self.now.zoomed(True))

    def do_zoom_out(self) -> None:
        self._set(self.now.zoomed(False))

    def do_zoom_fit(self) -> None:
        self._set(self.now.fitted())

    def do_enter(self) -> None:
        """The lanes show what the lens shows; without a lens, the selection."""
        lens = None if self.picture is None else self.picture.lens
        if lens is not None:
            self._set(self.now.closer_to(lens))
        else:
            self._set(self.now.zoomed(True).zoomed(True))

    def do_next_gap(self) -> None:
        self._apply(self.now.to_gap(True))

    def do_previous_gap(self) -> None:
        self._apply(self.now.to_gap(False))

    def do_next_kernel(self) -> None:
        self._apply(self.now.to_kernel(True))

    def do_previous_kernel(self) -> None:
        self._apply(self.now.to_kernel(False))

    def do_next_step(self) -> None:
        self._apply(self.now.to_step(1))

    def do_previous_step(self) -> None:
        self._apply(self.now.to_step(-1))

    def do_biggest(self) -> None:
        self._apply(self.now.to_biggest(self.explorer.repeated("biggest")))

    def do_launch(self) -> None:
        self._jump(self.now.to_launch(), "launch")

    def do_operator(self) -> None:
        self._jump(self.now.to_operator(), "operator")

    def do_module(self) -> None:
        self._jump(self.now.to_module(), "module")

    def do_fold(self) -> None:
        self._set(self.now.fold())

    def do_source(self) -> None:
        self.shows_source, self.shows_details = not self.shows_source, False
        self.changed()

    def do_details(self) -> None:
        self.shows_details, self.shows_source = not self.shows_details, False
        self.changed()

    def do_escape(self) -> None:
        self.shows_source = self.shows_details = False
        self.changed()

    def can_escape(self) -> bool:
        return self.shows_source or self.shows_details

    # Looking.

    def do_search(self) -> None:
        self.explorer.ask(Ask("search", "/"))

    def search(self, query: str, forward: bool, here: bool) -> tuple[int, int]:
        there, number, count = self.now.found(query, forward, here)
        self._set(there)
        return number, count

    def do_copy(self) -> None:
        selection = self.now.selection
        if selection is None:
            return
        if selection.kind == "work":
            event = int(self.lanes.analysis.work["event"].iloc[selection.row])
            self.explorer.copy(self.lanes.name(event))
        elif selection.kind == "event":
            self.explorer.copy(self.lanes.name(selection.row))
        else:
            self.explorer.copy(selection_words(self.lanes, selection))

    def csv_rows(self) -> list[list[str]]:
        """The work and the gaps in view, in order of time."""
        now = self.now
        rows = [["kind", "start_ns", "duration_ns", "name"]]
        found: list[tuple[int, list[str]]] = []
        for stream in self.lanes.streams:
            at = stream.pieces.overlapping(now.viewport.start_ns, now.viewport.end_ns)
            for work in stream.pieces.rows[at].tolist():
                start = int(self.lanes.work_start_ns[work])
                length = int(self.lanes.work_end_ns[work]) - start
                name = work_label(self.lanes, work)
                found.append((start, ["work", str(start), str(length), name]))
        for idle in self.lanes.idle.values():
            at = idle.pieces.overlapping(now.viewport.start_ns, now.viewport.end_ns)
            starts, ends = idle.pieces.start_ns[at].tolist(), idle.pieces.end_ns[at].tolist()
            found += [
                (start, ["gap", str(start), str(end - start), ""])
                for start, end in zip(starts, ends, strict=True)
            ]
        return rows + [row for _, row in sorted(found, key=lambda item: item[0])]

    # The mouse.

    def _key_at(self, y: int) -> LaneKey | None:
        keys = () if self.picture is None else self.picture.lanes
        return keys[y] if 0 <= y < len(keys) else None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._drag_x = event.x
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._drag_x is not None and event.x != self._drag_x and self.timeline is not None:
            self._set(self.now.panned(self._drag_x - event.x))
            self._drag_x = event.x

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._drag_x = None
        self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        """A click puts the cursor on a cell of a lane."""
        key, column = self._key_at(event.y), event.x - LABEL_WIDTH - 1
        if key is not None and column >= 0 and self.timeline is not None:
            self._set(self.now.chosen(key).moved_to(column))

    def scrolled(self, by: int, event: events.MouseEvent) -> None:
        if self.timeline is not None and self.picture is not None:
            edges = self.now.viewport.edges(self.now.cells)
            column = min(max(event.x - LABEL_WIDTH - 1, 0), self.now.cells - 1)
            self._set(self.now.zoomed(by < 0, int(edges[column])))
