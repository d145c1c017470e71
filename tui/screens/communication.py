"""Communication: collectives by operation and process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tracer.tui.look import Look
from tracer.tui.model.communication import (
    CollectiveIndex,
    build_collectives,
    collective_lines,
    collectives_table,
    communication_sentence,
)
from tracer.tui.model.lines import Line, plain
from tracer.tui.model.table import Table
from tracer.tui.session import Session
from tracer.tui.widgets.table_view import TableView


@dataclass(frozen=True)
class CommunicationModel:
    index: CollectiveIndex
    table: Table


class CommunicationView(TableView):
    KEY: ClassVar[str] = "communication"
    TITLE: ClassVar[str] = "Communication"
    SORT: ClassVar[str] = "exposed"
    LABELS: ClassVar[Mapping[str, str]] = {"enter": "costliest"}
    WORDS: ClassVar[str] = (
        "Collectives, summed by operation and process group. Exposed: no compute ran beside it; "
        "hidden: compute covered it, so it costs nothing. Wait and wire need the recordings of all "
        "ranks. Enter opens the costliest on the timeline."
    )

    @staticmethod
    def prepare(session: Session, look: Look) -> CommunicationModel:
        index = build_collectives(session)
        return CommunicationModel(index, collectives_table(look, index))

    def make_table(self, model: Any) -> Table:
        table: Table = model.table
        return table

    def top_lines(self, width: int) -> Sequence[Line]:
        if not len(self.model.table):
            return ()
        return [plain(f" {communication_sentence(self.model.index.analysis)}"), plain()]

    def detail_lines(self, row: int, width: int) -> Sequence[Line]:
        return collective_lines(self.look, self.model.index, row, width)
