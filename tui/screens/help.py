"""Help: what the screen shows, the keys that work on it, what the signs stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tracer.analysis import PARTS
from tracer.tui import keys
from tracer.tui.look import Look
from tracer.tui.model.lines import Line, heading, labelled, plain, wrapped
from tracer.tui.model.signs import GROUP_LETTERS, cause_letter, page_of
from tracer.tui.session import Session
from tracer.tui.widgets.lines_view import LinesView

_KEY_WIDTH = 12


class HelpView(LinesView):
    KEY: ClassVar[str] = "help"
    TITLE: ClassVar[str] = "Help"

    @staticmethod
    def prepare(session: Session, look: Look) -> Session:
        return session

    def lines_key(self) -> object:
        return self.explorer.under

    def make_lines(self, width: int) -> Sequence[Line]:
        view = self.explorer.view_of(self.explorer.under)
        lines: list[Line] = []
        if view is not None:
            lines += [heading(view.TITLE.upper()), *wrapped(view.WORDS, width), plain()]
        places = [self.explorer] if view is None else [view, self.explorer]
        for section, commands in keys.SECTIONS.items():
            lines += self._section(section, commands, places, width)
        return [*lines, *self._signs(width)]

    def _section(
        self, title: str, commands: Sequence[keys.Command], places: Sequence[object], width: int
    ) -> list[Line]:
        known = [c for c in commands if c.action == "screen" or keys.available(c, places)]
        known = [command for command in known if command.keys]
        if not known:
            return []
        lines = [heading(title)]
        for command in known:
            lines += labelled(self.look.name(command.shown), command.help, width, _KEY_WIDTH)
        return [*lines, plain()]

    def _signs(self, width: int) -> list[Line]:
        page = page_of(self.look, width)
        work = ", ".join(
            f"{letter} {page.block(group)} {group}" for group, letter in GROUP_LETTERS.items()
        )
        idle = ", ".join(f"{cause_letter(part)} {part}" for part in PARTS["overhead"])
        load = self.look.sign("▁ to █", ". to #")
        return [
            heading("Signs"),
            *labelled("work", work, width, _KEY_WIDTH),
            *labelled("idle", idle, width, _KEY_WIDTH),
            *labelled(
                "load", f"{load}: share of the cell's time with work on it", width, _KEY_WIDTH
            ),
            *labelled("severity", "!! critical, ! warning, i info", width, _KEY_WIDTH),
            *labelled(
                "numbers", "- was not measured; 0 was, and there was none", width, _KEY_WIDTH
            ),
        ]

    def state_words(self) -> str:
        return "Help: Esc or Backspace goes back"
