"""Tables of any length: sorted, filtered and searched as columns, drawn for the rows in view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from tracer.exporters.layout import Align, pad
from tracer.exporters.names import ELLIPSIS, cut_middle, fit_names
from tracer.tui.look import Look
from tracer.tui.model.lines import DIM, GUTTER, SELECTED, Target

Order = NDArray[np.int64]
_GAP = 2
_LEAST_NAME = 12


@dataclass(frozen=True)
class Column:
    """A column. `values` sort it (none: its cells do). The flexible one is cut to what is left, in
    its middle or at its end; where less than `least` cells are left, columns of the highest `rank`
    go first (0: never)."""

    key: str
    title: str
    cells: Sequence[str]
    values: NDArray[np.generic] | None = None
    align: Align = "right"
    flexible: bool = False
    prose: bool = False
    least: int = 24
    rank: int = 0
    counts_up: bool = False  # the least first: numbers of steps, not costs
    styles: Sequence[Style] | None = None

    @cached_property
    def width(self) -> int:
        """Cells of the widest entry; the title has room for the sign of its sorting."""
        return max([cell_len(self.title) + 1, *map(cell_len, self.cells)])

    @cached_property
    def ascending(self) -> Order:
        """Row numbers by value."""
        keys = np.asarray(self.cells) if self.values is None else self.values
        return np.argsort(keys, kind="stable").astype(np.int64)

    @property
    def largest_first(self) -> bool:
        """Whether a reader wants the largest first: numbers, not names."""
        return self.values is not None and self.align == "right" and not self.counts_up


@dataclass(frozen=True)
class Table:
    """Rows as columns. `names` are what is copied and searched, `target` tells where Enter leads.

    Rows marked `last` stay behind all others, and only a filter on `kept_key` hides them.
    """

    columns: tuple[Column, ...]
    names: Sequence[str]
    target: Callable[[int], Target | None] = lambda row: None
    last: NDArray[np.bool_] | None = None
    kept_key: str = ""
    empty: str = "none"

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def haystacks(self) -> list[str]:
        """For each row all that a search looks at, in lower case."""
        texts = [column.cells for column in self.columns if column.align == "left"]
        return ["\n".join(row).lower() for row in zip(self.names, *texts, strict=True)]

    def column(self, key: str) -> Column | None:
        """The column of that key."""
        return next((column for column in self.columns if column.key == key), None)

    def matching(self, query: str) -> NDArray[np.bool_]:
        """Rows to show for a query: those that hold its words, and those that stay."""
        return self.holding(query) | self.staying(query)

    def unmatched(self, query: str) -> int:
        """How many rows stay without holding the words of a query."""
        return int((self.staying(query) & ~self.holding(query)).sum()) if query else 0

    def staying(self, query: str) -> NDArray[np.bool_]:
        """Rows that only a filter on `kept_key` hides, where the query asks for none."""
        asked = any(word.startswith(f"{self.kept_key}:") for word in query.lower().split())
        return np.zeros(len(self), dtype=bool) if self.last is None or asked else self.last

    def holding(self, query: str) -> NDArray[np.bool_]:
        """Rows that hold every word of the query; `how:none` looks at one column alone."""
        keep = np.ones(len(self), dtype=bool)
        for word in query.lower().split():
            key, colon, value = word.partition(":")
            column = self.column(key) if colon else None
            texts = self.haystacks if column is None else column.cells
            value = word if column is None else value
            keep &= np.fromiter((value in text.lower() for text in texts), bool, len(self))
        return keep


@dataclass(frozen=True)
class Arrangement:
    """How the reader wants a table: which column sorts it, and what is filtered out."""

    sort: int = 0
    reverse: bool = False
    query: str = ""

    def sorted_by(self, column: int) -> Arrangement:
        return replace(self, sort=column, reverse=False)


def arrange(table: Table, arrangement: Arrangement) -> Order:
    """The rows to show, in order."""
    column = table.columns[arrangement.sort]
    order = column.ascending
    if column.largest_first != arrangement.reverse:
        order = _descending(column, order)
    if arrangement.query:
        order = order[table.matching(arrangement.query)[order]]
    if table.last is not None:
        behind = table.last[order]
        order = np.concatenate([order[~behind], order[behind]])
    return order


def _descending(column: Column, order: Order) -> Order:
    """The largest first, equal ones still in the order of the table."""
    if column.values is None or column.values.dtype.kind not in "iuf":
        return order[::-1]
    return np.argsort(-column.values.astype(np.float64), kind="stable").astype(np.int64)


def find(table: Table, order: Order, query: str) -> list[int]:
    """Positions in `order` of the rows that hold the query."""
    wanted = query.lower()
    return [at for at, row in enumerate(order.tolist()) if wanted in table.haystacks[row]]


@dataclass(frozen=True)
class Fitted:
    """The columns that fit a width, with their widths and the shown names."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    cells: tuple[Sequence[str], ...] = field(repr=False)


def fit(table: Table, width: int) -> Fitted:
    """Choose columns for a width: numbers keep theirs, names shrink, the optional go."""
    columns = list(table.columns)
    while _left(columns, width) < max((_least(c) for c in columns if c.flexible), default=0):
        optional = max(columns, key=lambda column: column.rank)
        if not optional.rank:
            break
        columns.remove(optional)
    left = max(_left(columns, width), _LEAST_NAME)
    widths = [min(c.width, left) if c.flexible else c.width for c in columns]
    cells = [
        _fitted(column, cells) if column.flexible else column.cells
        for column, cells in zip(columns, widths, strict=True)
    ]
    return Fitted(tuple(columns), tuple(widths), tuple(cells))


def _left(columns: Sequence[Column], width: int) -> int:
    """Cells that the columns of a set width leave to the flexible one."""
    fixed = sum(column.width for column in columns if not column.flexible)
    return width - GUTTER - _GAP * (len(columns) - 1) - fixed


def _least(column: Column) -> int:
    return min(column.width, column.least)


def _fitted(column: Column, width: int) -> list[str]:
    """Names differ at their ends and are cut in the middle; sentences are cut at their end."""
    if column.prose:
        return [cut_end(text, width) for text in column.cells]
    return fit_names(column.cells, width)


def cut_end(text: str, width: int) -> str:
    """Text in at most so many cells; what does not fit goes from its end."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + ELLIPSIS


def title_line(look: Look, table: Table, fitted: Fitted, arrangement: Arrangement) -> Text:
    """The titles, the sorted one marked."""
    shown = table.columns[arrangement.sort]
    down = shown.largest_first != arrangement.reverse
    sign = look.sign("▼" if down else "▲", "v" if down else "^")
    parts = [
        pad(column.title + (sign if column is shown else ""), width, column.align)
        for column, width in zip(fitted.columns, fitted.widths, strict=True)
    ]
    return Text(" " * GUTTER + (" " * _GAP).join(parts), DIM)


def row_line(fitted: Fitted, row: int, selected: bool, width: int) -> Text:
    """One row; the selected one carries `>` and is reversed."""
    line = Text(" > " if selected else " " * GUTTER)
    last = len(fitted.columns) - 1
    for at, (column, cells, room) in enumerate(
        zip(fitted.columns, fitted.cells, fitted.widths, strict=True)
    ):
        style = "" if column.styles is None else column.styles[row]
        line.append(pad(cells[row], room, column.align), style)
        line.append(" " * _GAP if at < last else "")
    line.truncate(width, overflow="crop")
    if not selected:
        return line
    line.pad_right(max(width - line.cell_len, 0))
    return Text(line.plain, SELECTED)


@lru_cache(maxsize=64)
def _cut(text: str, width: int) -> str:
    return cut_middle(text, width)


def cut(text: str, width: int) -> str:
    """Text in at most so many cells."""
    return _cut(text, max(width, 1))


def csv_rows(table: Table, order: Order) -> list[list[str]]:
    """What is shown, as rows of cells under their titles; names in full."""
    titles = [column.key for column in table.columns]
    texts = [table.names if column.flexible else column.cells for column in table.columns]
    return [titles, *([column[int(row)].strip() for column in texts] for row in order)]
