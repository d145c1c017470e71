"""A screen that is a table with details of the selected row beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import events

from tracer.exporters.format import counted
from tracer.tui.messages import Ask
from tracer.tui.model.hits import chosen_hit
from tracer.tui.model.lines import DIM, Line, heading, wrapped
from tracer.tui.model.places import Filter
from tracer.tui.model.table import (
    Arrangement,
    Fitted,
    Order,
    Table,
    arrange,
    csv_rows,
    find,
    fit,
    row_line,
    title_line,
)
from tracer.tui.widgets.drawn import columns_beside
from tracer.tui.widgets.view import Cursor, LinesCursor, View

WIDE = 100
_DETAIL_SHARE = 0.36


class TableView(View):
    """Subclasses give the table of a model, and the lines of a row's details."""

    SORT: ClassVar[str] = ""  # the column that sorts it on arrival
    COST: ClassVar[str] = ""  # the column that says what is biggest; by default that one

    def __init__(self) -> None:
        super().__init__()
        self.table: Table | None = None
        self.arrangement = Arrangement()
        self.unmatched = 0
        self.order: Order | None = None
        self.cursor = Cursor()
        self.details = LinesCursor()
        self.in_details = False
        self.details_asked: bool | None = None
        self._fitted: tuple[int, Fitted] | None = None
        self._detailed: tuple[int, int] | None = None

    # What a subclass says.

    def make_table(self, model: Any) -> Table:
        raise NotImplementedError

    def detail_lines(self, row: int, width: int) -> Sequence[Line]:
        """Words on the selected row; empty: this screen has no details."""
        return ()

    def top_lines(self, width: int) -> Sequence[Line]:
        """Lines above the table."""
        return ()

    # The model and the place.

    def on_model(self) -> None:
        name = self.selected_name()
        first = self.table is None
        self.set_table(self.make_table(self.model))
        if first:
            self.sort_by_key(self.SORT)
            self.cursor.move(0, 1)
        elif name is not None:
            self.select_name(name)

    def set_table(self, table: Table) -> None:
        """Another table, sorted and filtered like the one before."""
        self.table = table
        sort = min(self.arrangement.sort, len(table.columns) - 1)
        self.arrangement = Arrangement(sort, self.arrangement.reverse, self.arrangement.query)
        self.rearrange()

    def sort_by_key(self, key: str) -> None:
        assert self.table is not None
        keys = [column.key for column in self.table.columns]
        self.arrangement = self.arrangement.sorted_by(keys.index(key) if key in keys else 0)
        self.rearrange()

    def rearrange(self) -> None:
        """Sort and filter again; the cursor stays on its row."""
        assert self.table is not None
        row = self.row
        self.order = arrange(self.table, self.arrangement)
        self.unmatched = self.table.unmatched(self.arrangement.query)
        at = [] if row is None else (self.order == row).nonzero()[0].tolist()
        self.cursor.move(at[0] if at else 0, len(self.order))
        self._fitted = self._detailed = None
        self.changed()

    @property
    def row(self) -> int | None:
        """The selected row of the table."""
        if self.order is None or not len(self.order):
            return None
        return int(self.order[min(self.cursor.at, len(self.order) - 1)])

    def selected_name(self) -> str | None:
        row = self.row
        return None if row is None or self.table is None else self.table.names[row]

    def select_name(self, name: str) -> None:
        """Put the cursor on the row of that name, if it is shown."""
        if self.table is None or self.order is None:
            return
        rows = self.order.tolist()
        at = next((n for n, row in enumerate(rows) if self.table.names[row] == name), None)
        if at is not None:
            self.cursor.move(at, len(rows))

    def place(self) -> object:
        cursor = (self.cursor.at, self.cursor.top, self.details.at)
        return self.arrangement, cursor, self.in_details, self.details_asked

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        self.arrangement, cursor, self.in_details, self.details_asked = place
        if self.table is not None:
            self.rearrange()
        self.cursor.at, self.cursor.top, self.details.at = cursor
        self.changed()

    def show_item(self, item: object) -> None:
        if isinstance(item, Filter):
            self.set_filter(item.query)

    # Drawing.

    @property
    def beside(self) -> bool:
        """Whether the details stand beside the table."""
        return self.size.width >= WIDE and self.has_details and self.details_asked is not False

    @property
    def over(self) -> bool:
        """Whether the details take the place of the table, where there is no room beside it."""
        return self.size.width < WIDE and self.has_details and bool(self.details_asked)

    @property
    def has_details(self) -> bool:
        return type(self).detail_lines is not TableView.detail_lines

    @property
    def table_width(self) -> int:
        width = self.size.width
        return width - int(width * _DETAIL_SHARE) if self.beside else width

    def draw_model(self, width: int, height: int) -> list[Text]:
        self._load_details()
        if self.over:
            return self.details.draw(self.look, width, height, True)
        left = self._draw_table(self.table_width, height)
        if not self.beside:
            return left
        room = width - self.table_width - 1
        right = self.details.draw(self.look, room, height, self.in_details)
        right += [Text()] * (height - len(right))
        return columns_beside(left, right, self.table_width, self.look.sign("│", "|"))

    def _draw_table(self, width: int, height: int) -> list[Text]:
        assert self.table is not None and self.order is not None
        lines = [line.text for line in self.top_lines(width)]
        if not len(self.order):
            why = "nothing matches the filter" if self.arrangement.query else self.table.empty
            said = wrapped(self.look.name(why), width, style=DIM)
            return [*lines, heading(self.TITLE.upper()).text, *(line.text for line in said)]
        fitted = self._fit(width)
        lines.append(title_line(self.look, self.table, fitted, self.arrangement))
        room = height - len(lines)
        self.cursor.keep_in_view(room, len(self.order))
        seen = self.order[self.cursor.top : self.cursor.top + room].tolist()
        chosen = None if self.in_details and self.beside else self.row
        return lines + [row_line(fitted, row, row == chosen, width) for row in seen]

    def _fit(self, width: int) -> Fitted:
        assert self.table is not None
        if self._fitted is None or self._fitted[0] != width:
            self._fitted = (width, fit(self.table, width))
        return self._fitted[1]

    def _load_details(self) -> None:
        """Work the details out again when another row is selected, or the room changed."""
        row = self.row
        if row is None or not (self.beside or self.over):
            self.details.set_lines(())
            return
        width = self.size.width - (self.table_width + 1 if self.beside else 0)
        if self._detailed != (row, width):
            if self._detailed is not None and self._detailed[0] != row:
                self.details.at = self.details.top = 0
            self.details.set_lines(self.detail_lines(row, width))
            self._detailed = (row, width)

    def state_words(self) -> str:
        if self.table is None or self.order is None or not len(self.table):
            return self.TITLE
        column = self.table.columns[self.arrangement.sort]
        shown = len(self.order)
        words = [f"{self.TITLE}: {self._count_words(len(self.table), shown)}", f"by {column.key}"]
        words += ["reversed"] if self.arrangement.reverse else []
        words += [f"filter: {self.arrangement.query}"] if self.arrangement.query else []
        words += [f"row {self.cursor.at + 1:,}"] if shown else []
        return self.look.separator.join(words)

    def _count_words(self, every: int, shown: int) -> str:
        if shown == every:
            return counted(every, "row")
        stay = f", {self.unmatched:,} without evidence stay" if self.unmatched else ""
        return f"{shown - self.unmatched:,} of {counted(every, 'row')}{stay}"

    # Commands.

    def _step(self, by: int) -> None:
        if self.in_details or self.over:
            self.details.move(by)
        elif self.order is not None:
            self.cursor.move(self.cursor.at + by, len(self.order))
        self.changed()
        self.explorer.frame_changed()

    def do_up(self) -> None:
        self._step(-1)

    def do_down(self) -> None:
        self._step(1)

    def do_page_up(self) -> None:
        self._step(-max(self.size.height - 2, 1))

    def do_page_down(self) -> None:
        self._step(max(self.size.height - 2, 1))

    def do_first(self) -> None:
        self._step(-(1 << 40))

    def do_last(self) -> None:
        self._step(1 << 40)

    def do_enter(self) -> None:
        if self.in_details or self.over:
            line = self.details.selected
            self.follow(None if line is None else line.target)
        elif self.table is not None and self.row is not None:
            self.follow(self.table.target(self.row))

    def can_enter(self) -> bool:
        return self.row is not None

    can_biggest = can_sort_next = can_sort_previous = can_reverse = can_copy = can_enter
    can_up = can_down = can_page_up = can_page_down = can_first = can_last = can_enter

    def do_details(self) -> None:
        self.details_asked = not (self.beside or self.over)
        self.in_details = False
        self._fitted = None
        self.changed()

    def can_details(self) -> bool:
        return self.has_details and self.row is not None

    def do_next_part(self) -> None:
        if self.beside and self.details.rows:
            self.in_details = not self.in_details
            self.changed()
        elif not self.beside and self.has_details:
            self.do_details()

    def can_next_part(self) -> bool:
        return self.can_details()

    do_previous_part = do_next_part
    can_previous_part = can_next_part

    def _sort(self, by: int) -> None:
        if self.table is not None:
            at = (self.arrangement.sort + by) % len(self.table.columns)
            self.arrangement = self.arrangement.sorted_by(at)
            self.rearrange()
            self.explorer.frame_changed()

    def do_sort_next(self) -> None:
        self._sort(1)

    def do_sort_previous(self) -> None:
        self._sort(-1)

    def do_reverse(self) -> None:
        now = self.arrangement
        self.arrangement = Arrangement(now.sort, not now.reverse, now.query)
        self.rearrange()
        self.explorer.frame_changed()

    def do_biggest(self) -> None:
        """The row that costs most; again: the next."""
        if self.table is None or self.order is None or not len(self.order):
            return
        keys = [column.key for column in self.table.columns]
        cost = self.COST or self.SORT
        costs = arrange(self.table, Arrangement(keys.index(cost) if cost in keys else 0))
        shown = set(self.order.tolist())
        ranked = [row for row in costs.tolist() if row in shown]
        here = ranked.index(self.row) if self.row in ranked else -1
        again = self.explorer.repeated("biggest")
        row = ranked[(here + 1) % len(ranked)] if again else ranked[0]
        self.cursor.move((self.order == row).nonzero()[0].tolist()[0], len(self.order))
        self.changed()

    def do_filter(self) -> None:
        self.explorer.ask(Ask("filter", "filter: ", self.arrangement.query))

    def set_filter(self, query: str) -> None:
        """Show only what matches."""
        now = self.arrangement
        self.arrangement = Arrangement(now.sort, now.reverse, query)
        if self.table is not None:
            self.rearrange()
        self.explorer.frame_changed()

    def do_escape(self) -> bool:
        """Leave the details, then the filter. False: there was nothing to leave."""
        if self.over or self.in_details:
            self.details_asked = None if self.over else self.details_asked
            self.in_details = False
        elif self.arrangement.query:
            self.set_filter("")
        else:
            return False
        self.changed()
        return True

    def do_search(self) -> None:
        self.explorer.ask(Ask("search", "/"))

    def search(self, query: str, forward: bool, here: bool) -> tuple[int, int]:
        if self.table is None or self.order is None:
            return 0, 0
        hits = find(self.table, self.order, query)
        if not hits:
            return 0, 0
        at = self.cursor.at
        chosen = chosen_hit(hits, at, forward, here)
        self.cursor.move(hits[chosen], len(self.order))
        self.changed()
        return chosen + 1, len(hits)

    def do_copy(self) -> None:
        line = self.details.selected if self.in_details or self.over else None
        name = line.name if line is not None and line.name else self.selected_name()
        if name is not None:
            self.explorer.copy(name)

    def csv_rows(self) -> list[list[str]]:
        if self.table is None or self.order is None:
            return []
        return csv_rows(self.table, self.order)

    # The mouse.

    def on_click(self, event: events.Click) -> None:
        """A click selects a row, a click on the selected one opens it, one on a title sorts."""
        if self.table is None or self.order is None or self.over or event.x >= self.table_width:
            return
        top = len(self.top_lines(self.table_width)) + 1
        at = self.cursor.top + event.y - top
        if event.y == top - 1:
            self._sort_at(event.x)
        elif event.y >= top and at < len(self.order):
            opens = at == self.cursor.at and not self.in_details
            self.in_details = False
            self.cursor.move(at, len(self.order))
            self.changed()
            self.explorer.frame_changed()
            if opens:
                self.do_enter()

    def _sort_at(self, x: int) -> None:
        fitted = self._fit(self.table_width)
        left = 3
        for column, width in zip(fitted.columns, fitted.widths, strict=True):
            if left <= x < left + width + 2:
                self.sort_by_key(column.key)
            left += width + 2

    def scrolled(self, by: int, event: events.MouseEvent) -> None:
        self._step(by)
