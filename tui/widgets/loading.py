"""What is seen until the first numbers are there: what is being read, and how far it is."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from tracer.tui.messages import Progress
from tracer.tui.widgets.drawn import Drawn

_BAR_WIDTH = 40


class Loading(Drawn):
    """Name, size and progress of each recording."""

    DEFAULT_CSS = "Loading { height: 1fr; }"

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self._progress: Progress | None = None

    def progress(self, message: Progress) -> None:
        """Show how far it is."""
        self._progress = message
        self.changed()

    def draw(self, width: int, height: int) -> list[Text]:
        app = self.explorer
        lines = [Text(), Text(" Opening", Style(bold=True))]
        for recording in app.session.recordings:
            source = recording.source
            lines.append(Text(f"   {app.look.name(source.name)}{size_text(source.size_bytes)}"))
        return [*lines, Text(), *self._bar()]

    def _bar(self) -> list[Text]:
        message = self._progress
        if message is None:
            return [Text("   starting")]
        lines = [Text(f"   {message.stage} {self.look.name(message.name)}")]
        if message.total > 0:
            filled = _BAR_WIDTH * min(message.done, message.total) // message.total
            signs = self.look.sign("█", "#") * filled + self.look.sign("░", ".") * (
                _BAR_WIDTH - filled
            )
            lines.append(Text(f"   {signs} {100 * message.done // message.total} %"))
        return lines


def size_text(size: int | None) -> str:
    """`, 10.2 MB`; nothing when unknown."""
    if size is None:
        return ""
    for unit, unit_bytes in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= unit_bytes:
            return f", {size / unit_bytes:.1f} {unit}"
    return f", {size} bytes"
