"""Lines of a screen, and where they lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from tracer.exporters.layout import wrap
from tracer.tui.look import Look

SELECTED = Style(reverse=True)
DIM = Style(dim=True)
BOLD = Style(bold=True)
GUTTER = 3


@dataclass(frozen=True)
class Target:
    """Where Enter leads: a screen, and what to show on it."""

    screen: str
    item: object = None


@dataclass(frozen=True)
class Line:
    """One line. With a target it can be selected; `name` is what is searched and copied."""

    text: Text
    target: Target | None = None
    name: str = ""

    @property
    def selectable(self) -> bool:
        return self.target is not None or bool(self.name)


def plain(text: str = "", style: Style | str = "") -> Line:
    """A line that only says something."""
    return Line(Text(text, style))


def heading(title: str, note: str = "", width: int = 0) -> Line:
    """The title of a part, with a note at the right edge, as far as it fits."""
    line = Text(f" {title}", BOLD)
    note = shortened(note, width - len(title) - 4) if width else note
    if note:
        line.append(" " * max(width - line.cell_len - len(note) - 1, 2))
        line.append(note, Style(dim=True, bold=False))
    return Line(line)


def shortened(text: str, room: int, between: Sequence[str] = (", ", "; ")) -> str:
    """Text in at most so many cells: what is said last goes, clause by clause."""
    while text and cell_len(text) > room:
        text = text[: max(0, *(text.rfind(sign) for sign in between))]
    return text


def wrapped(
    text: str, width: int, indent: int = GUTTER, style: Style | str = "", most: int = 0
) -> list[Line]:
    """Text broken to a width, in cells; `most` lines of it (0: all)."""
    lines = wrap(text, max(width - indent, 8))
    if most and len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} ..."[: max(width - indent, 8)]]
    return [Line(Text(" " * indent + line, style)) for line in lines]


def labelled(label: str, text: str, width: int, label_width: int = 10) -> list[Line]:
    """`label   text`, the text going on below itself."""
    indent = GUTTER + label_width
    body = wrapped(text, width, indent) or [plain()]
    first = body[0].text.copy()
    first = Text(" " * GUTTER + label.ljust(label_width), DIM).append(
        first.plain[indent:], Style(dim=False)
    )
    return [Line(first), *body[1:]]


def marked(look: Look, line: Line, selected: bool, width: int) -> Text:
    """The line as drawn: the selected one carries `>` in its gutter and is reversed."""
    text = line.text.copy()
    text.truncate(width, overflow="crop")
    if not selected:
        return text
    text.pad_right(max(width - text.cell_len, 0))
    shown = text.plain
    return Text(f" >{shown[2:]}" if not shown[:2].strip() else shown, SELECTED)


def selectable_rows(lines: Sequence[Line]) -> list[int]:
    """The numbers of the lines that can be selected."""
    return [number for number, line in enumerate(lines) if line.selectable]
