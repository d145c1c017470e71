"""A screen that is a list of lines, some of which can be selected."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events

from tracer.tui.messages import Ask
from tracer.tui.model.hits import chosen_hit
from tracer.tui.model.lines import Line
from tracer.tui.widgets.view import LinesCursor, View


class LinesView(View):
    """Subclasses say what the lines are."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = LinesCursor()
        self._made: object = None

    def make_lines(self, width: int) -> Sequence[Line]:
        raise NotImplementedError

    def lines_key(self) -> object:
        """What the lines depend on, beside the width."""
        return None

    def on_model(self) -> None:
        self._made = None

    def made_lines(self) -> None:
        """Make the lines, if they are not those of this size."""
        key = (self.size.width, self.lines_key())
        if self._made != key:
            self.lines.set_lines(self.make_lines(max(self.size.width - 1, 8)))
            self._made = key

    def draw_model(self, width: int, height: int) -> list[Text]:
        self.made_lines()
        return self.lines.draw(self.look, width, height, True)

    def place(self) -> object:
        return self.lines.at, self.lines.top

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        self.made_lines()
        self.lines.at, self.lines.top = place
        self.changed()

    def csv_rows(self) -> list[list[str]]:
        return [[line.text.plain.rstrip()] for line in self.lines.lines]

    # Commands.

    def move(self, by: int) -> None:
        self.lines.move(by)
        self.changed()

    def do_up(self) -> None:
        self.move(-1)

    def do_down(self) -> None:
        self.move(1)

    def do_page_up(self) -> None:
        self.move(-10)

    def do_page_down(self) -> None:
        self.move(10)

    def do_first(self) -> None:
        self.move(-(1 << 20))

    def do_last(self) -> None:
        self.move(1 << 20)

    def do_enter(self) -> None:
        line = self.lines.selected
        self.follow(None if line is None else line.target)

    def do_copy(self) -> None:
        line = self.lines.selected
        if line is not None:
            self.explorer.copy(line.name or line.text.plain.strip())

    def do_search(self) -> None:
        self.explorer.ask(Ask("search", "/"))

    def search(self, query: str, forward: bool, here: bool) -> tuple[int, int]:
        wanted = query.lower()
        lines = [self.lines.lines[row] for row in self.lines.rows]
        hits = [n for n, line in enumerate(lines) if wanted in f"{line.name} {line.text}".lower()]
        if not hits:
            return 0, 0
        chosen = chosen_hit(hits, self.lines.at, forward, here)
        self.lines.at = hits[chosen]
        self.changed()
        return chosen + 1, len(hits)

    def on_click(self, event: events.Click) -> None:
        """A click selects a line; one on the selected line opens it."""
        at = self.lines.top + event.y
        rows = self.lines.rows
        if at in rows:
            opens = rows.index(at) == self.lines.at
            self.lines.at = rows.index(at)
            self.changed()
            if opens:
                self.do_enter()

    def scrolled(self, by: int, event: events.MouseEvent) -> None:
        self.move(by)
