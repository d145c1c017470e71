"""What a terminal shows that is too small for any screen: that it is, and the answer."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from tracer.tui.widgets.drawn import Drawn


class TooSmall(Drawn):
    """One sentence, then the verdict."""

    DEFAULT_CSS = "TooSmall { height: 1fr; display: none; }"

    def draw(self, width: int, height: int) -> list[Text]:
        from tracer.exporters.layout import wrap
        from tracer.tui.model.overview import facts_of

        app = self.explorer
        need = f"{app.LEAST_WIDTH}x{app.LEAST_HEIGHT}"
        said = f"Too small for the screens: {need} needed, this is {width}x{height}."
        lines = [Text(line, Style(dim=True)) for line in wrap(said, width)]
        if app.session.analysis is None:
            return [*lines, Text("reading")]
        text = app.look.name(facts_of(app.session).verdict)
        return [*lines, *(Text(line, Style(bold=True)) for line in wrap(text, width))]
