"""Writing what is shown to a file: a table as CSV, the screen as SVG, its lines as text."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.tui.app import Explorer
    from tracer.tui.widgets.view import View

KINDS = ("csv", "svg", "txt")


def export_view(app: Explorer, view: View, kind: str) -> str:
    """Write what a view shows to a new file in the working directory; returns what to say."""
    if kind not in KINDS:
        return f"export: {kind!r} is none of {', '.join(KINDS)}"
    path = free_path(Path.cwd(), f"tracer-{view.KEY}", kind)
    try:
        path.write_text(_text(app, view, kind), encoding="utf-8")
    except OSError as error:
        return f"export: {path} could not be written: {error.strerror}"
    return f"wrote {path}"


def _text(app: Explorer, view: View, kind: str) -> str:
    if kind == "svg":
        return app.export_screenshot(title="tracer")
    if kind == "csv":
        return csv_text(view.csv_rows())
    lines = view.draw(view.size.width, view.size.height)
    return "\n".join(line.plain.rstrip() for line in lines) + "\n"


def csv_text(rows: list[list[str]]) -> str:
    """Rows as CSV. A cell that a spreadsheet would run as a formula gets a quote before it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [[f"'{cell}" if cell[:1] in ("=", "+", "@", "\t", "\r") else cell for cell in row]
         for row in rows]
    )  # fmt: skip
    return out.getvalue()


def free_path(folder: Path, name: str, kind: str) -> Path:
    """A path that does not exist yet: nothing is overwritten."""
    first = folder / f"{name}.{kind}"
    more = (folder / f"{name}-{number}.{kind}" for number in itertools.count(2))
    return next(path for path in itertools.chain([first], more) if not path.exists())
