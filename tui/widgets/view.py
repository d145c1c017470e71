"""What every screen is: a widget that draws a model, knows its place, and does commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import events

from tracer.tui.look import Look
from tracer.tui.model.lines import Line, Target, marked
from tracer.tui.model.places import SearchFor
from tracer.tui.session import Session
from tracer.tui.widgets.drawn import Drawn

READING = " reading …"


class View(Drawn):
    """One screen. `TAB` is the screen it belongs to in the header.

    `prepare` works out what is drawn, on another thread; `model` is None until it has.
    """

    KEY: ClassVar[str] = ""
    TITLE: ClassVar[str] = ""
    WORDS: ClassVar[str] = ""
    LABELS: ClassVar[Mapping[str, str]] = {}  # what the footer calls its actions
    DEFAULT_CSS = "View { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = None
        self.wanted: object = None
        self.left: object = None

    @staticmethod
    def prepare(session: Session, look: Look) -> Any:
        """Everything that is drawn, from the analysis alone. Runs on another thread."""
        raise NotImplementedError

    def receive(self, model: Any) -> None:
        """The model is there: draw it, and show what was asked for meanwhile."""
        self.model = model
        self.on_model()
        if self.wanted is not None:
            wanted, self.wanted = self.wanted, None
            self._show(wanted)
        if self.left is not None:
            left, self.left = self.left, None
            self.restore(left)
        self.changed()

    def open_item(self, item: object) -> None:
        """Show an item, as soon as there is a model."""
        if self.model is None:
            self.wanted = item
        elif item is not None:
            self._show(item)
        self.changed()

    def return_to(self, place: object) -> None:
        """Go back to a place, as soon as there is a model."""
        if self.model is None:
            self.left = place
        else:
            self.restore(place)

    def _show(self, item: object) -> None:
        if isinstance(item, SearchFor):
            self.explorer.search.find(item.query)
        else:
            self.show_item(item)

    def on_model(self) -> None:
        """A new model came: keep the place as far as it still exists."""

    def show_item(self, item: object) -> None:
        """Put the cursor on something another screen pointed at."""

    def place(self) -> object:
        """Where the reader is, to come back to."""
        return None

    def restore(self, place: object) -> None:
        """Go back to a place."""

    def state_words(self) -> str:
        """One line on what is shown: sorting, filter, position."""
        return self.TITLE

    def draw_model(self, width: int, height: int) -> list[Text]:
        """The lines, once there is a model."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[Text]:
        if self.model is None:
            return [Text(""), Text(self.look.name(READING))]
        return self.draw_model(width, height)

    def follow(self, target: Target | None) -> None:
        """Go where a line leads."""
        if target is not None:
            self.explorer.follow(target)

    def csv_rows(self) -> list[list[str]]:
        """What is shown as a table; by default its lines."""
        return [[line.plain.rstrip()] for line in self.draw(self.size.width, 10_000)]

    def help_lines(self) -> Sequence[str]:
        """What help says of this screen beside its keys."""
        return [self.WORDS]

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scrolled(3, event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scrolled(-3, event)

    def scrolled(self, by: int, event: events.MouseEvent) -> None:
        """The wheel was turned."""

    def search(self, query: str, forward: bool, here: bool) -> tuple[int, int]:
        """Go to the next hit (or stay, when this is one and `here`): its number and how many."""
        return 0, 0


class Cursor:
    """A selected line among many, and the first line that is seen."""

    def __init__(self) -> None:
        self.at = 0
        self.top = 0

    def move(self, to: int, count: int) -> None:
        self.at = min(max(to, 0), max(count - 1, 0))

    def keep_in_view(self, height: int, count: int) -> None:
        """Scroll so far that the selected line is seen."""
        height = max(height, 1)
        self.top = min(max(self.top, self.at - height + 1), self.at)
        self.top = min(max(self.top, 0), max(count - height, 0))


class LinesCursor:
    """A block of lines of which some can be selected."""

    def __init__(self) -> None:
        self.lines: Sequence[Line] = ()
        self.at = 0  # number of the selected line among those that can be
        self.top = 0

    def set_lines(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.at = min(self.at, max(len(self.rows) - 1, 0))

    @property
    def rows(self) -> list[int]:
        return [number for number, line in enumerate(self.lines) if line.selectable]

    @property
    def selected(self) -> Line | None:
        rows = self.rows
        return self.lines[rows[self.at]] if rows else None

    def move(self, by: int) -> None:
        """To another line that can be selected; without any, scroll."""
        rows = self.rows
        if rows:
            self.at = min(max(self.at + by, 0), len(rows) - 1)
        else:
            self.top = max(self.top + by, 0)

    def draw(self, look: Look, width: int, height: int, active: bool) -> list[Text]:
        """The lines in view, the selected one marked."""
        rows = self.rows
        here = rows[self.at] if rows else -1
        if rows:
            first = here if self.at else 0
            self.top = min(max(self.top, here - height + 1), first)
        self.top = min(self.top, max(len(self.lines) - height, 0))
        return [
            marked(look, line, active and number == here, width)
            for number, line in enumerate(self.lines[self.top : self.top + height], self.top)
        ]
