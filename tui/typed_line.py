"""The line that the user types: a search, a filter, a command, the name of a format."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracer.tui.messages import Ask

if TYPE_CHECKING:
    from tracer.tui.app import Explorer


class TypedLine:
    """What is asked for, and what is typed so far; None: nothing is asked."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.ask: Ask | None = None

    def begin(self, ask: Ask) -> None:
        """Ask for a line."""
        self.ask = ask
        self.explorer.frame_changed()

    def press(self, key: str, character: str | None) -> None:
        """A key while a line is asked for."""
        ask = self.ask
        assert ask is not None
        if key == "escape" or (key == "backspace" and not ask.text):
            self._cancel(ask)
        elif key == "enter":
            self.ask = None
            self._answer(ask)
        elif key == "backspace":
            self._typed(ask.with_less())
        elif key == "ctrl+u":
            self._typed(replace(ask, text="", selected=False))
        elif key in ("up", "down") and ask.kind == "palette":
            getattr(self.explorer.view, f"do_{key}")()
        elif character is not None and character.isprintable():
            self._typed(ask.with_more(character))
        self.explorer.frame_changed()

    def paste(self, text: str) -> None:
        """Text from the clipboard of the terminal, as one line."""
        if self.ask is not None:
            self._typed(self.ask.with_more(" ".join(text.split())))
            self.explorer.frame_changed()

    def _typed(self, ask: Ask) -> None:
        """Filters, searches and commands answer while they are typed."""
        self.ask = ask
        view: Any = self.explorer.view
        if ask.kind == "filter":
            view.set_filter(ask.text)
        elif ask.kind == "palette":
            view.set_query(ask.text)
        elif ask.kind == "search" and ask.text:
            self.explorer.search.find(ask.text)

    def _cancel(self, ask: Ask) -> None:
        self.ask = None
        view: Any = self.explorer.view
        if ask.kind == "filter":
            view.set_filter("")
        elif ask.kind == "palette":
            self.explorer.do_back()
        elif ask.kind == "search":
            self.explorer.search.leave()

    def _answer(self, ask: Ask) -> None:
        view: Any = self.explorer.view
        if ask.kind == "search":
            self.explorer.search.start(ask.text)
        elif ask.kind == "palette":
            view.run_selected()
        elif ask.kind == "export":
            self.explorer.export(ask.text)
