"""The first screen: the answer, where the time goes, what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual import events

from tracer.tui.look import Look
from tracer.tui.messages import Ask
from tracer.tui.model.hits import chosen_hit
from tracer.tui.model.lines import Target
from tracer.tui.model.overview import Facts, Sheet, Spot, facts_of, lay_out
from tracer.tui.model.places import Moment
from tracer.tui.session import Session
from tracer.tui.widgets.view import View


class OverviewView(View):
    """Parts under and beside each other; the cursor is on a line of one of them."""

    KEY: ClassVar[str] = "overview"
    TITLE: ClassVar[str] = "Overview"
    LABELS: ClassVar[Mapping[str, str]] = {"right": "step"}
    WORDS: ClassVar[str] = (
        "The sentence says where the time of a step goes and what to change. Every line below it "
        "leads to its evidence with Enter: a phase to its steps, a part to its kernels or its "
        "largest gap, a finding to its detail. Left and Right choose a step of the chart."
    )

    def __init__(self) -> None:
        super().__init__()
        self.part = ""
        self.at = 0  # line of the part
        self.step = 0
        self.top = 0
        self.moved = False  # until then the answer stays where it is
        self._sheet: tuple[tuple[int, int, int], Sheet] | None = None

    @staticmethod
    def prepare(session: Session, look: Look) -> Facts:
        return facts_of(session).prepare()

    @property
    def facts(self) -> Facts:
        facts: Facts = self.model
        return facts

    def on_model(self) -> None:
        self._sheet = None
        self.step = min(self.step, max(len(self.facts.marks.walls_ns) - 1, 0))
        if not self.part:
            self.part = "findings" if self.facts.ranked else "phases"
            self.step = self.facts.marks.slowest

    def sheet(self) -> Sheet:
        """The lines at this size."""
        key = (self.size.width, self.size.height, self.step)
        if self._sheet is None or self._sheet[0] != key:
            self._sheet = (key, lay_out(self.facts, self.look, *key))
        return self._sheet[1]

    def spots(self) -> list[Spot]:
        """The lines that can be selected, part by part."""
        spots = self.sheet().spots
        parts = list(dict.fromkeys(spot.part for spot in spots))
        return sorted(spots, key=lambda spot: (parts.index(spot.part), spot.y))

    def selected(self) -> Spot | None:
        """The selected line."""
        spots = self.spots()
        mine = [spot for spot in spots if spot.part == self.part] or spots[:1]
        return mine[min(self.at, len(mine) - 1)] if mine else None

    def draw_model(self, width: int, height: int) -> list[Text]:
        lines = self.sheet().draw(self.look, self.selected())
        self._scroll(height, len(lines))
        return lines[self.top : self.top + height]

    def _scroll(self, height: int, count: int) -> None:
        spot = self.selected()
        if spot is not None and self.moved:
            # The answer stays on the screen as long as the selected line does.
            self.top = min(self.top, max(spot.y - 1, 0)) if spot.y - 1 >= height else 0
            self.top = max(self.top, spot.y + 2 - height, 0)
        self.top = min(self.top, max(count - height, 0))

    def state_words(self) -> str:
        if self.model is None:
            return ""
        words = self.facts.source
        return self.look.separator.join(words[1:] if len(words) > 1 else words)

    def place(self) -> object:
        return self.part, self.at, self.step, self.top

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        self.part, self.at, self.step, self.top = place
        self.changed()

    # Commands.

    def _go(self, spot: Spot | None) -> None:
        if spot is not None:
            self.moved = True
            self.part = spot.part
            mine = [other for other in self.spots() if other.part == spot.part]
            self.at = mine.index(spot)
            self.changed()

    def _move(self, by: int) -> None:
        spots = self.spots()
        spot = self.selected()
        if spot is not None:
            self._go(spots[min(max(spots.index(spot) + by, 0), len(spots) - 1)])

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def do_page_up(self) -> None:
        self._move(-10)

    def do_page_down(self) -> None:
        self._move(10)

    def do_first(self) -> None:
        self._move(-(1 << 20))

    def do_last(self) -> None:
        self._move(1 << 20)

    def _part_by(self, by: int) -> None:
        spots = self.spots()
        parts = list(dict.fromkeys(spot.part for spot in spots))
        if parts:
            at = parts.index(self.part) if self.part in parts else 0
            part = parts[(at + by) % len(parts)]
            self._go(next(spot for spot in spots if spot.part == part))

    def do_next_part(self) -> None:
        self._part_by(1)

    def do_previous_part(self) -> None:
        self._part_by(-1)

    def _step_by(self, by: int) -> None:
        count = len(self.facts.marks.walls_ns)
        self.step = min(max(self.step + by, 0), max(count - 1, 0))
        self._sheet = None
        self._go(next((spot for spot in self.spots() if spot.part == "steps"), None))

    def do_left(self) -> None:
        self._step_by(-1)

    def do_right(self) -> None:
        self._step_by(1)

    def can_left(self) -> bool:
        return self.model is not None and len(self.facts.marks.walls_ns) > 1

    can_right = can_left

    def do_enter(self) -> None:
        spot = self.selected()
        if spot is None:
            return
        if spot.part == "steps":
            self.follow(Target("timeline", Moment(step=self.step)))
        else:
            self.follow(spot.line.target)

    def do_biggest(self) -> None:
        """The finding that costs most; without any, the largest part. Again: the next."""
        spots = self.spots()
        part = "findings" if any(spot.part == "findings" for spot in spots) else "where"
        mine = [spot for spot in spots if spot.part == part]
        spot = self.selected()
        again = self.explorer.repeated("biggest") and spot in mine
        if mine:
            at = (mine.index(spot) + 1) % len(mine) if again and spot is not None else 0
            self._go(mine[at])

    def do_search(self) -> None:
        self.explorer.ask(Ask("search", "/"))

    def search(self, query: str, forward: bool, here: bool) -> tuple[int, int]:
        wanted = query.lower()
        spots = self.spots()
        hits = [n for n, spot in enumerate(spots) if wanted in _text(spot)]
        if not hits:
            return 0, 0
        spot = self.selected()
        at = spots.index(spot) if spot is not None else 0
        chosen = chosen_hit(hits, at, forward, here)
        self._go(spots[hits[chosen]])
        return chosen + 1, len(hits)

    def do_copy(self) -> None:
        spot = self.selected()
        text = self.facts.verdict if spot is None else spot.line.name or spot.line.text.plain
        self.explorer.copy(text.strip())

    def csv_rows(self) -> list[list[str]]:
        """The parts as rows: part, text."""
        rows = [["part", "text"], ["verdict", self.facts.verdict]]
        return rows + [[spot.part, " ".join(spot.line.text.plain.split())] for spot in self.spots()]

    def on_click(self, event: events.Click) -> None:
        """A click selects a line; one on the selected line opens it."""
        if self.model is None:
            return
        y = event.y + self.top
        here = [s for s in self.spots() if s.y == y and s.x <= event.x < s.x + s.width]
        if here:
            opens = here[0] == self.selected()
            self._go(here[0])
            if opens:
                self.do_enter()

    def scrolled(self, by: int, event: events.MouseEvent) -> None:
        self._move(by)

    def help_lines(self) -> list[str]:
        return [self.WORDS]


def _text(spot: Spot) -> str:
    return f"{spot.line.name}\n{spot.line.text.plain}".lower()
