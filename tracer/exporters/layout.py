"""Lines of a text report: tables whose numbers never leave the screen, bars, wrapped text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from rich.cells import cell_len, chop_cells
from rich.text import Text

from tracer.analysis import PARTS
from tracer.exporters.format import shares
from tracer.exporters.names import ascii_only, fit_names, inert

# Letter of each cause of idle.
CAUSE_LETTERS: dict[str, str] = {
    part: {"graph_launch": "r", "unexplained": "?"}.get(part, part[0]) for part in PARTS["overhead"]
}
_BARS = {"attention": "█", "ffn": "▓", "communication": "▞", "other": "▒"}
_ASCII_BARS = {"attention": "#", "ffn": "=", "communication": "%", "other": ":"}
_DARK = {"attention": 33, "ffn": 228, "communication": 133, "other": 248, "overhead": 202}
_LIGHT = {"attention": 27, "ffn": 136, "communication": 90, "other": 242, "overhead": 88}
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "._-=+*%#"
_GAP = 2
_UNIT = re.compile(r"(?:%|ns|us|ms|s)\W*$")
Align = Literal["left", "right"]


@dataclass(frozen=True)
class Page:
    """What the terminal can show: cells in a line, ASCII alone or not, a light background."""

    width: int
    ascii: bool = False
    light: bool = False

    def name(self, text: str) -> str:
        """A name from a recording, safe on this terminal."""
        return ascii_only(inert(text)) if self.ascii else inert(text)

    def style(self, group: str) -> str:
        """The colour of a group."""
        return f"color({(_LIGHT if self.light else _DARK)[group]})"

    def block(self, group: str) -> str:
        """The texture of a group of work."""
        return (_ASCII_BARS if self.ascii else _BARS)[group]

    @property
    def edges(self) -> tuple[str, str]:
        """What stands left and right of a bar."""
        return ("|", "|") if self.ascii else ("▕", "▏")

    @property
    def times(self) -> str:
        """The sign between a name and how many there are."""
        return "x" if self.ascii else "×"

    def heights(self, values: Sequence[float]) -> str:
        """One character for each value, as high as its share of the largest."""
        blocks = _ASCII_BLOCKS if self.ascii else _BLOCKS
        top = max(values, default=0)
        if top <= 0:
            return " " * len(values)
        return "".join(blocks[min(int(value / top * 8), 7)] for value in values)


@dataclass(frozen=True)
class Column:
    """A column of a table. The flexible one takes what the others leave and is cut to fit."""

    title: str
    align: Align = "right"
    flexible: bool = False


def heading(title: str, note: str = "") -> Text:
    """The title line of a section."""
    line = Text(title, style="bold")
    if note:
        line.append(f"  {note}", style="not bold")
    return line


def paragraph(page: Page, text: str, indent: int = 0, style: str = "") -> list[Text]:
    """Text broken between words to the width of the page."""
    shown = ascii_only(text) if page.ascii else text
    return [Text(" " * indent + line, style=style) for line in wrap(shown, page.width - indent)]


def titled(page: Page, title: str, text: str) -> list[Text]:
    """A title, and text behind it that goes on below."""
    shown = ascii_only(text) if page.ascii else text
    first, *rest = wrap(shown, page.width, len(title) + 2)
    line = Text(title, style="bold").append(f"  {first}", "not bold")
    return [line, *map(Text, rest)]


def wrap(text: str, width: int, taken: int = 0) -> list[str]:
    """Text broken between words, and inside a word that is longer than a line; in cells.

    `taken` cells of the first line are not free.
    """
    lines = [""]
    for word in _words(text):
        room = width - (taken if len(lines) == 1 else 0) - cell_len(lines[-1])
        if cell_len(word) + bool(lines[-1]) <= room:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
        else:
            lines += chop_cells(word, width)
    return lines if lines[0] or taken or len(lines) == 1 else lines[1:]


def table(
    page: Page,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    indent: int = 2,
    identities: Sequence[str] | None = None,
) -> list[Text]:
    """A title line and a line for each row; `identities` tell rows with one name apart."""
    widths = _widths(page, columns, rows, indent)
    fitted = [
        fit_names([row[i] for row in rows], widths[i], identities)
        if column.flexible
        else [row[i] for row in rows]
        for i, column in enumerate(columns)
    ]
    titles = [column.title for column in columns]
    lines = [Text(_line(titles, columns, widths, indent), style="dim")] if any(titles) else []
    return lines + [Text(_line(row, columns, widths, indent)) for row in zip(*fitted, strict=True)]


def _widths(
    page: Page, columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: int
) -> list[int]:
    """Widths of the columns; the flexible one gets the rest of the line, if it needs it."""
    needed = [
        max([cell_len(column.title), *(cell_len(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]
    fixed = sum(n for n, column in zip(needed, columns, strict=True) if not column.flexible)
    rest = page.width - indent - fixed - _GAP * (len(columns) - 1)
    return [
        min(n, max(rest, 8)) if column.flexible else n
        for n, column in zip(needed, columns, strict=True)
    ]


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], indent: int
) -> str:
    padded = [
        pad(cell, width, column.align)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    return " " * indent + (" " * _GAP).join(padded).rstrip()


def pad(text: str, width: int, align: Align = "left") -> str:
    """The text filled with blanks to a width in cells."""
    blanks = " " * max(width - cell_len(text), 0)
    return blanks + text if align == "right" else text + blanks


def _words(text: str) -> list[str]:
    """The words of a text; a unit stays with its number."""
    words: list[str] = []
    for word in text.split():
        if words and words[-1][-1].isdigit() and _UNIT.match(word):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def bar(page: Page, segments: Sequence[tuple[str, str, int]], width: int) -> Text:
    """A bar of exactly `width` cells between two edges: (group, part, time) in order.

    Work is drawn as blocks, idle as the letter of its cause, never as a block.
    """
    left, right = page.edges
    line = Text(left)
    cells = shares([ns for _, _, ns in segments], width)
    for (group, part, _), count in zip(segments, cells, strict=True):
        sign = CAUSE_LETTERS[part] if group == "overhead" else page.block(group)
        line.append(sign * count, style=page.style(group))
    return line.append(" " * (width - sum(cells)) + right)


def side_by_side(left: Sequence[Text], right: Sequence[Text], left_width: int) -> list[Text]:
    """Two blocks of lines beside each other."""
    lines: list[Text] = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        line = one.copy()
        line.append(" " * max(left_width - line.cell_len, 1))
        lines.append(line.append_text(other))
    return lines
