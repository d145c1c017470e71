"""A table whose title and column titles share a line, such as `FINDINGS  …  a step   gain`."""

from __future__ import annotations

from dataclasses import replace

from rich.style import Style
from rich.text import Text

from tracer.tui.look import Look
from tracer.tui.model.lines import BOLD, DIM, GUTTER, Line, shortened
from tracer.tui.model.table import Arrangement, Table, fit, row_line, title_line


def titled_lines(look: Look, title: str, table: Table, width: int, note: str = "") -> list[Line]:
    """The title over the columns that have none, a note behind it as far as it fits over the
    first, the titles of the columns that fit, and the rows."""
    fitted = fit(_with_room(table, title), width)
    columns = title_line(look, table, fitted, Arrangement()).plain
    begun = Text(f" {title}", BOLD)
    said = shortened(note, GUTTER + fitted.widths[0] - begun.cell_len - 2)
    if said:
        begun.append(f"  {said}", Style(dim=True, bold=False))
    lines = [Line(Text.assemble(begun, (columns[begun.cell_len :], DIM)))]
    for row in range(len(table)):
        text = row_line(fitted, row, False, width)
        lines.append(Line(text, table.target(row), table.names[row]))
    return lines


def _with_room(table: Table, title: str) -> Table:
    """The table with a first column wide enough for the title, where the next has one."""
    first, second, *others = table.columns
    if not second.title:
        return table
    # The gutter and the room for the sign of sorting come on top.
    wide = replace(first, title=" " * max(len(title) - GUTTER, 0))
    return replace(table, columns=(wide, second, *others))
