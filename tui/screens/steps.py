"""Steps: one row each; Enter opens the timeline of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text

from tracer.analysis import Analysis
from tracer.tui.look import Look
from tracer.tui.model.lines import Line, plain
from tracer.tui.model.places import Moment
from tracer.tui.model.steps import step_bar, step_level, steps_table
from tracer.tui.model.table import Table
from tracer.tui.session import Session
from tracer.tui.widgets.table_view import TableView


@dataclass(frozen=True)
class StepsModel:
    analysis: Analysis
    table: Table


class StepsView(TableView):
    KEY: ClassVar[str] = "steps"
    TITLE: ClassVar[str] = "Steps"
    SORT: ClassVar[str] = "step"
    COST: ClassVar[str] = "wall"
    LABELS: ClassVar[Mapping[str, str]] = {"enter": "timeline"}
    WORDS: ClassVar[str] = (
        "One row a step. The groups of a row add up to its wall time on all devices. w: warm-up, "
        "left out of the phases; !: much longer than the median of its phase. Enter opens the "
        "timeline of the step."
    )

    @staticmethod
    def prepare(session: Session, look: Look) -> StepsModel:
        assert session.analysis is not None
        return StepsModel(session.analysis, steps_table(look, session.analysis))

    def make_table(self, model: Any) -> Table:
        table: Table = model.table
        return table

    def top_lines(self, width: int) -> Sequence[Line]:
        """The selected step as a bar."""
        analysis: Analysis = self.model.analysis
        if self.row is None or not analysis.accounted:
            return ()
        text = step_bar(self.look, step_level(analysis, self.row), width - 3)
        return [Line(Text("   ").append_text(text)), plain()]

    def show_item(self, item: object) -> None:
        if isinstance(item, Moment) and self.order is not None and item.step >= 0:
            at = (self.order == item.step).nonzero()[0].tolist()
            self.cursor.move(at[0] if at else 0, len(self.order))
        else:
            super().show_item(item)
