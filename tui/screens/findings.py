"""Findings by cost, and the checks that were made or could not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text

from tracer.exporters.absent import all_checks
from tracer.tui.look import Look
from tracer.tui.model.finding import finding_lines
from tracer.tui.model.findings import (
    RankedFinding,
    checks_table,
    findings_table,
    ranked_findings,
)
from tracer.tui.model.lines import Line, plain
from tracer.tui.model.places import Filter, FindingNumber
from tracer.tui.model.table import Table
from tracer.tui.session import Session
from tracer.tui.widgets.table_view import TableView


@dataclass(frozen=True)
class FindingsModel:
    session: Session
    ranked: Sequence[RankedFinding]
    findings: Table
    checks: Table


class FindingsView(TableView):
    """Two tables, one at a time: Tab changes between them."""

    KEY: ClassVar[str] = "findings"
    TITLE: ClassVar[str] = "Findings"
    SORT: ClassVar[str] = "cost"
    WORDS: ClassVar[str] = (
        "Findings, the costliest first; cost and gain are means of the steps they touch (*: of the "
        "whole window). Gains do not add up: each is computed alone. Tab shows the checks: "
        "! found, ok looked and nothing found, ~ looked at in part, ? not looked at, and why."
    )

    def __init__(self) -> None:
        super().__init__()
        self.shows_checks = False

    @staticmethod
    def prepare(session: Session, look: Look) -> FindingsModel:
        analysis = session.analysis
        assert analysis is not None
        ranked = ranked_findings(analysis)
        return FindingsModel(
            session,
            ranked,
            findings_table(look, ranked, analysis),
            checks_table(look, all_checks(analysis)),
        )

    def on_model(self) -> None:
        if self.table is None and not self.model.ranked:
            self.shows_checks = True
        super().on_model()
        if self.shows_checks:
            self.sort_by_key("status")

    def make_table(self, model: Any) -> Table:
        table: Table = model.checks if self.shows_checks else model.findings
        return table

    @property
    def has_details(self) -> bool:
        return not self.shows_checks

    def detail_lines(self, row: int, width: int) -> Sequence[Line]:
        analysis = self.model.session.analysis
        return finding_lines(self.look, analysis, self.model.ranked[row].number, width)

    def top_lines(self, width: int) -> Sequence[Line]:
        found, checks = len(self.model.findings), len(self.model.checks)
        names = (f"{found} findings", f"{checks} checks")
        shown = names[self.shows_checks]
        other = names[not self.shows_checks]
        return [Line(Text(f" {shown}   (Tab: {other})")), plain()]

    def show_checks(self, checks: bool) -> None:
        """The other table."""
        self.shows_checks = checks
        self.in_details = False
        self.cursor.move(0, 1)
        self.arrangement = self.arrangement.sorted_by(0)
        self.set_table(self.make_table(self.model))
        self.sort_by_key("status" if checks else self.SORT)
        self.explorer.frame_changed()

    def do_next_part(self) -> None:
        self.show_checks(not self.shows_checks)

    def can_next_part(self) -> bool:
        return self.model is not None

    do_previous_part = do_next_part
    can_previous_part = can_next_part

    def do_enter(self) -> None:
        if not self.shows_checks:
            super().do_enter()

    def can_enter(self) -> bool:
        return not self.shows_checks and super().can_enter()

    def show_item(self, item: object) -> None:
        if isinstance(item, Filter):
            self.show_checks(item.query == "checks")
        elif isinstance(item, FindingNumber) and not self.shows_checks:
            numbers = [ranked.number for ranked in self.model.ranked]
            if item.number in numbers and self.order is not None:
                at = (self.order == numbers.index(item.number)).nonzero()[0].tolist()
                self.cursor.move(at[0] if at else 0, len(self.order))

    def place(self) -> object:
        return self.shows_checks, super().place()

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        checks, rest = place
        if checks != self.shows_checks and self.model is not None:
            self.show_checks(checks)
        super().restore(rest)

    def state_words(self) -> str:
        words = super().state_words()
        return words.replace("Findings", "Checks", 1) if self.shows_checks else words
