"""All commands by name: what is typed narrows them, Enter runs one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from tracer.tui import keys, screens
from tracer.tui.look import Look
from tracer.tui.model.lines import GUTTER, Line, heading, plain
from tracer.tui.session import Session
from tracer.tui.widgets.lines_view import LinesView

_KEY_WIDTH = 12
_HIDDEN = ("palette", "screen")


class PaletteView(LinesView):
    KEY: ClassVar[str] = "palette"
    TITLE: ClassVar[str] = "Commands"

    def __init__(self) -> None:
        super().__init__()
        self.typed = ""
        self.entries: list[tuple[str, str, keys.Command | None, int]] = []

    @staticmethod
    def prepare(session: Session, look: Look) -> Session:
        return session

    def on_model(self) -> None:
        super().on_model()
        self.set_query("")

    def set_query(self, query: str) -> None:
        """Show only commands that hold these words."""
        self.typed = query
        self.lines.at = self.lines.top = 0
        self._made = None
        self.changed()

    def lines_key(self) -> object:
        return self.explorer.under, self.typed

    def make_lines(self, width: int) -> Sequence[Line]:
        words = self.typed.lower().split()
        self.entries = [
            entry for entry in self._every() if all(word in entry[1].lower() for word in words)
        ]
        lines = [heading("COMMANDS", "type to narrow, Up and Down choose, Enter runs"), plain()]
        for key, text, _, _ in self.entries:
            shown = f"{' ' * GUTTER}{self.look.name(key).ljust(_KEY_WIDTH)}{text}"
            lines.append(Line(Text(shown), None, text))
        return lines if self.entries else [*lines, plain("   no command has these words")]

    def _every(self) -> list[tuple[str, str, keys.Command | None, int]]:
        view = self.explorer.view_of(self.explorer.under)
        places = [self.explorer] if view is None else [view, self.explorer]
        found: list[tuple[str, str, keys.Command | None, int]] = [
            (str(number), f"go to {entry.title}", None, number)
            for number, entry in enumerate(screens.tabs(), 1)
        ]
        for command in keys.COMMANDS:
            if command.action not in _HIDDEN and keys.available(command, places):
                key = command.shown or "-"
                found.append(
                    (key, f"{command.action.replace('_', ' ')}: {command.help}", command, 0)
                )
        return found

    def run_selected(self) -> None:
        """Go back to where the palette was opened, and do there what was chosen."""
        if not self.entries:
            self.explorer.do_back()
            return
        _, _, command, number = self.entries[self.lines.at]
        self.explorer.do_back()
        if command is None:
            self.explorer.open_number(number)
        else:
            # The screen has its size again after it was drawn.
            self.explorer.call_after_refresh(self.explorer.do, command)

    def do_enter(self) -> None:
        self.run_selected()

    def state_words(self) -> str:
        return "Commands: Esc goes back"
