"""The lines around every screen: which screen it is, its state, messages, keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events

from tracer.exporters.names import cut_middle
from tracer.tui.model.lines import shortened
from tracer.tui.model.table import cut_end
from tracer.tui.widgets.drawn import Drawn

_BOLD = Style(bold=True)
_DIM = Style(dim=True)
_LEAST_NAME = 10
_ENDINGS = re.compile(r"(\.pt)?(\.trace)?\.(json|sqlite|csv)(\.gz)?$")
NARROW = 100


@dataclass(frozen=True)
class Tab:
    """A screen in the header."""

    number: int
    title: str
    here: bool

    @property
    def full(self) -> str:
        text = f"{self.number} {self.title}"
        return f"[{text}]" if self.here else f" {text} "

    @property
    def short(self) -> str:
        return self.full if self.here else f" {self.number} "


class Header(Drawn):
    """Name and screens; below, the state of the screen; a rule."""

    DEFAULT_CSS = "Header { height: 3; dock: top; }"

    def draw(self, width: int, height: int) -> list[Text]:
        app = self.explorer
        words = app.look.name(app.state_words())
        whole = shortened(words, width - 1, (app.look.separator,))
        state = Text(f" {whole or cut_end(words, width - 1)}")
        return [self._tabs(width), state, Text(app.look.rule * width, _DIM)]

    def _tabs(self, width: int) -> Text:
        app = self.explorer
        tabs = app.tabs()
        texts = _fit_tabs(tabs, width - len(" tracer ") - _LEAST_NAME)
        used = sum(map(len, texts))
        line = _named(app.look.name(app.title_words()), width - used - 1)
        line.append(" " * max(width - used - line.cell_len, 0))
        for tab, text in zip(tabs, texts, strict=True):
            line.append(text, _BOLD if tab.here else Style(bold=False))
        line.truncate(width, overflow="crop")
        return line

    def on_click(self, event: events.Click) -> None:
        """A click on a screen's name opens it."""
        tabs = self.explorer.tabs()
        texts = _fit_tabs(tabs, self.size.width - len(" tracer ") - _LEAST_NAME)
        left = self.size.width - sum(map(len, texts))
        for tab, text in zip(tabs, texts, strict=True):
            if event.y == 0 and left <= event.x < left + len(text):
                self.explorer.open_number(tab.number)
            left += len(text)


def _named(name: str, room: int) -> Text:
    """The program and what is open in it; where there is little room the endings of the file's
    name go, then the program's name, before a part of the file's."""
    bare = _ENDINGS.sub("", name) or name
    for begun, shown in (("tracer  ", name), ("tracer  ", bare), ("", bare)):
        if len(begun) + cell_len(shown) < room:
            break
    else:
        shown = cut_middle(bare, max(room - 1, 0))
    return Text(f" {begun}", _BOLD).append(shown, Style(bold=False))


def _fit_tabs(tabs: Sequence[Tab], room: int) -> list[str]:
    """All names where they fit, else the numbers of the screens that are not shown."""
    texts = [tab.full for tab in tabs]
    return texts if sum(map(len, texts)) <= room else [tab.short for tab in tabs]


class Footer(Drawn):
    """A rule that carries messages; below it the keys, or the line that is being typed."""

    DEFAULT_CSS = "Footer { height: 2; dock: bottom; }"

    def draw(self, width: int, height: int) -> list[Text]:
        app = self.explorer
        return [self._rule(width), self._prompt(width) if app.line.ask else self._keys(width)]

    def _rule(self, width: int) -> Text:
        app = self.explorer
        if not app.message:
            return Text(app.look.rule * width, _DIM)
        said = cut_middle(app.look.name(app.message), max(width - 6, 8))
        line = Text(app.look.rule * 2, _DIM).append(f" {said} ", Style(bold=True, dim=False))
        return line.append(app.look.rule * max(width - line.cell_len, 0), _DIM)

    def _prompt(self, width: int) -> Text:
        app = self.explorer
        ask = app.line.ask
        assert ask is not None
        text = app.look.name(ask.text)
        room = max(width - cell_len(ask.label) - 4, 4)
        while cell_len(text) > room:
            text = text[1:]
        line = Text(f" {ask.label}", _BOLD).append(text, Style(bold=False, reverse=ask.selected))
        return line.append(" ", Style(reverse=True))

    def _keys(self, width: int) -> Text:
        app = self.explorer
        status = app.look.name(app.status_words())
        room = width - cell_len(status) - 3
        keys = app.footer_keys(width - 2)
        if cell_len(keys) > room and (width >= NARROW or app.is_partial):
            keys = app.footer_keys(room)
        line = Text(f" {keys}")
        if cell_len(keys) <= room:
            line.append(" " * (room - cell_len(keys) + 1)).append(status, _DIM)
        return line
