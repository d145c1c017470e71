"""A widget whose lines come from a function of its size."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.filter import LineFilter
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from tracer.exporters.names import ascii_only
from tracer.tui.look import Look

if TYPE_CHECKING:
    from textual.color import Color

    from tracer.tui.app import Explorer


class Colorless(LineFilter):
    """Takes away every colour; bold, dim, underlined and reversed stay."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Style, Style] = {}

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, None if style is None else self._plain(style), control)
            for text, style, control in segments
        ]

    def _plain(self, style: Style) -> Style:
        known = self._known.get(style)
        if known is None:
            known = Style(
                bold=style.bold, dim=style.dim, reverse=style.reverse, underline=style.underline
            )
            self._known[style] = known
        return known


def strip_of(text: Text, look: Look, width: int) -> Strip:
    """A line as Textual draws it: exactly so many cells, nothing in it read as markup."""
    base = look.base
    segments: list[Segment] = []
    for piece, style in _pieces(text):
        shown = ascii_only(piece) if look.ascii and not piece.isascii() else piece
        segments.append(Segment(shown, base + style))
    return Strip(segments).adjust_cell_length(width, base)


def _pieces(text: Text) -> Iterable[tuple[str, Style]]:
    """The text cut where its style changes."""
    plain = text.plain
    if not text.spans:
        yield plain, _style(text.style)
        return
    edges = {0, len(plain)}
    for span in text.spans:
        edges.update((min(span.start, len(plain)), min(span.end, len(plain))))
    bounds = sorted(edges)
    for start, end in pairwise(bounds):
        style = _style(text.style)
        for span in text.spans:
            if span.start <= start and end <= span.end:
                style += _style(span.style)
        yield plain[start:end], style


def _style(style: Style | str) -> Style:
    return Style.parse(style) if isinstance(style, str) else style


class Drawn(Widget):
    """Draws what `draw` returns; nothing is worked out again until `changed` is called."""

    can_focus = False
    ALLOW_SELECT = False

    def __init__(self, **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._strips: list[Strip] | None = None
        self._drawn_size = Size(0, 0)

    @property
    def explorer(self) -> Explorer:
        from tracer.tui.app import Explorer

        app = self.app
        assert isinstance(app, Explorer)
        return app

    @property
    def look(self) -> Look:
        return self.explorer.look

    def draw(self, width: int, height: int) -> list[Text]:
        """The lines to show; missing ones are blank."""
        raise NotImplementedError

    def changed(self) -> None:
        """Draw again."""
        self._strips = None
        self.refresh()

    def notify_style_update(self) -> None:
        self._strips = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._strips is None or self._drawn_size != self.size:
            lines = self.draw(width, height)[:height] if width and height else []
            self._strips = [strip_of(line, self.look, width) for line in lines]
            self._drawn_size = self.size
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(width, self.look.base)


def columns_beside(left: list[Text], right: list[Text], left_width: int, rule: str) -> list[Text]:
    """Two blocks of lines with a rule between them."""
    height = max(len(left), len(right))
    rows: list[Text] = []
    for at in range(height):
        # A line of its own: the style of the left one must not reach what stands beside it.
        line = Text().append_text(left[at]) if at < len(left) else Text()
        line.append(" " * max(left_width - cell_len(line.plain), 0))
        line.append(rule, Style(dim=True))
        rows.append(line.append_text(right[at]) if at < len(right) else line)
    return rows
