"""Lines of text for a terminal, for the commands that must work where pandas may not import."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tracer.exporters.names import ascii_only, inert

DEFAULT_WIDTH = 100
NARROWEST = 80
WIDEST = 160


def line_width() -> int:
    """Cells of a line: the terminal's, within reason, or a usual width where there is none."""
    cells = DEFAULT_WIDTH
    if os.environ.get("COLUMNS") or sys.stdout.isatty():
        cells = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    return min(max(cells, NARROWEST), WIDEST)


def shows_unicode() -> bool:
    """Whether the standard output can show more than ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "").startswith("utf")


def wrapped(
    text: str, width: int, *, indent: int = 0, hanging: int | None = None, style: str = ""
) -> list[Text]:
    """Text broken between words; a word longer than the line is broken too."""
    first = " " * indent
    rest = " " * (indent if hanging is None else hanging)
    lines = textwrap.wrap(
        inert(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return [Text(line, style=style) for line in lines or [first]]


def columns(rows: Sequence[Sequence[str]], *, indent: int = 2, align: str = "l") -> list[Text]:
    """Rows with aligned columns; `align` has a letter a column, `l` or `r`, and the columns it
    does not reach are to the right."""
    if not rows:
        return []
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = (align + "r" * len(widths))[: len(widths)]
    lines: list[Text] = []
    for row in rows:
        cells = [
            _padded(cell, width, to_left=side == "l")
            for cell, width, side in zip(row, widths, sides, strict=True)
        ]
        lines.append(Text(" " * indent + "  ".join(cells).rstrip()))
    return lines


def _padded(cell: str, width: int, *, to_left: bool) -> str:
    space = " " * (width - cell_len(cell))
    return cell + space if to_left else space + cell


def bar(parts: Sequence[tuple[float, str]], total: float, width: int) -> str:
    """Blocks of a bar, each part its share of `total`; what is left stays blank."""
    drawn = ""
    reached = 0.0
    for value, block in parts:
        reached += value
        cells = min(width, round(reached / total * width)) if total > 0 else 0
        drawn += block * (cells - len(drawn))
    return drawn + " " * (width - len(drawn))


def render(lines: Sequence[Text], *, width: int, color: bool) -> str:
    """The lines as one string; without colour for a pipe, in ASCII where nothing else shows."""
    if not color:
        text = "\n".join(line.plain.rstrip() for line in lines) + "\n"
    else:
        out = io.StringIO()
        console = Console(
            file=out,
            width=width,
            color_system="256",
            force_terminal=True,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
        for line in lines:
            line.rstrip()
            console.print(line, soft_wrap=True)
        text = out.getvalue()
    return text if shows_unicode() else ascii_only(text)
