"""One finding, with its evidence, its source and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text

from tracer.tui.look import Look
from tracer.tui.model.finding import finding_lines
from tracer.tui.model.lines import Line
from tracer.tui.model.places import FindingNumber
from tracer.tui.session import Session
from tracer.tui.widgets.lines_view import LinesView

_SOURCE_AROUND = 4
_SOURCE_WIDE = 12


class FindingView(LinesView):
    """Its evidence can be selected."""

    KEY: ClassVar[str] = "finding"
    TITLE: ClassVar[str] = "Finding"
    LABELS: ClassVar[Mapping[str, str]] = {"next_step": "finding"}
    WORDS: ClassVar[str] = (
        "One finding. Enter on a line of its evidence opens it on the timeline; s goes to its "
        "source, with more lines around it, and back; y copies the line, or the advice; { and } "
        "go to the finding before and after."
    )

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.shows_source = False

    @staticmethod
    def prepare(session: Session, look: Look) -> Session:
        return session

    def lines_key(self) -> object:
        return self.number, self.shows_source

    def make_lines(self, width: int) -> Sequence[Line]:
        analysis = self.model.analysis
        if self.number >= len(analysis.findings):
            return ()
        around = _SOURCE_WIDE if self.shows_source else _SOURCE_AROUND
        return finding_lines(self.look, analysis, self.number, width, around)

    def show_item(self, item: object) -> None:
        if isinstance(item, FindingNumber):
            self.number, self.shows_source = item.number, False
            self.lines.at, self.lines.top = self._first_evidence(), 0

    def _first_evidence(self) -> int:
        """Its place among the lines that can be selected: the advice comes before it."""
        findings = self.model.analysis.findings
        return int(self.number < len(findings) and bool(findings[self.number].advice))

    def place(self) -> object:
        return self.number, self.shows_source, super().place()

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        self.number, self.shows_source, rest = place
        super().restore(rest)

    def draw_model(self, width: int, height: int) -> list[Text]:
        if not self.shows_source:
            return super().draw_model(width, height)
        self.made_lines()
        texts = [line.text for line in self.lines.lines]
        titles = [text.plain.strip() for text in texts]
        return texts[titles.index("SOURCE") if "SOURCE" in titles else 0 :]

    def state_words(self) -> str:
        if self.model is None:
            return self.TITLE
        findings = self.model.analysis.findings
        if self.number >= len(findings):
            return "no such finding"
        rule = self.look.name(findings[self.number].rule)
        words = f"Finding {rule}, {self.number + 1} of {len(findings)}"
        return words + (self.look.separator + "source: s goes back") * self.shows_source

    # Commands.

    def do_source(self) -> None:
        self.shows_source = not self.shows_source
        self.changed()
        self.explorer.frame_changed()

    def do_escape(self) -> None:
        if self.shows_source:
            self.do_source()

    def can_escape(self) -> bool:
        return self.shows_source

    def _finding_by(self, by: int) -> None:
        count = len(self.model.analysis.findings)
        self.show_item(FindingNumber((self.number + by) % max(count, 1)))
        self.changed()

    def do_next_step(self) -> None:
        self._finding_by(1)

    def do_previous_step(self) -> None:
        self._finding_by(-1)

    def do_biggest(self) -> None:
        """The costliest evidence is the first."""
        self.lines.at = self._first_evidence()
        self.changed()

    def do_copy(self) -> None:
        line = self.lines.selected
        advice = self.model.analysis.findings[self.number].advice
        self.explorer.copy(line.name if line is not None and line.name else advice)
