"""Searching the shown screen, and knowing on which others there would be something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracer.tui import screens

if TYPE_CHECKING:
    from tracer.tui.app import Explorer


class Search:
    """What was searched for last, and the commands that go on with it."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.query = ""

    def start(self, query: str) -> None:
        """A search was typed in full."""
        self.query = query
        self.explorer.message = ""
        if query:
            self.find(query)

    def leave(self) -> None:
        """The search was given up."""
        self.query = self.explorer.message = ""

    def find(self, query: str, forward: bool = True, here: bool = True) -> int:
        """Go to a hit on the shown screen; returns how many there are."""
        view = self.explorer.view
        number, count = (0, 0) if view is None else view.search(query, forward, here)
        said = f"{number} of {count}: {query}" if count else self._elsewhere_words(query)
        self.explorer.message = said
        return count

    def _elsewhere(self, query: str) -> dict[str, int]:
        """Screens that hold the query, and how often."""
        from tracer.tui.model.elsewhere import hits_elsewhere

        analysis = self.explorer.session.analysis
        found = {} if analysis is None else hits_elsewhere(analysis, query)
        return {key: count for key, count in found.items() if key != self.explorer.current}

    def _elsewhere_words(self, query: str) -> str:
        found = self._elsewhere(query)
        if not found:
            return f"no {query!r} anywhere"
        listed = ", ".join(f"{screens.entry(key).words} {n:,}" for key, n in found.items())
        return f"no {query!r} here; {listed}: n goes there"

    def do_next_hit(self) -> None:
        """The next hit here; without any here, the first screen that has one."""
        if self.find(self.query, True, False):
            return
        there = next(iter(self._elsewhere(self.query)), None)
        if there is not None:
            from tracer.tui.model.places import SearchFor

            self.explorer.leave()
            self.explorer.open_view(there, SearchFor(self.query))

    def do_previous_hit(self) -> None:
        self.find(self.query, False, False)

    def can_next_hit(self) -> bool:
        return bool(self.query)

    can_previous_hit = can_next_hit
