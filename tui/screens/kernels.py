"""Kernels: what ran, for what, how long; the durations of one as a histogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tracer.tui.look import Look
from tracer.tui.model.kernels import KernelIndex, build_kernels, kernel_lines, kernels_table
from tracer.tui.model.lines import Line
from tracer.tui.model.table import Table
from tracer.tui.session import Session
from tracer.tui.widgets.table_view import TableView


@dataclass(frozen=True)
class KernelsModel:
    index: KernelIndex
    table: Table


class KernelsView(TableView):
    KEY: ClassVar[str] = "kernels"
    TITLE: ClassVar[str] = "Kernels"
    SORT: ClassVar[str] = "total"
    LABELS: ClassVar[Mapping[str, str]] = {"enter": "longest"}
    WORDS: ClassVar[str] = (
        "A row for each kernel, copy and set, by name, role and how the role is known. Totals are "
        "sums of durations. f filters: words look at name, role, library and how; role:ffn looks "
        "at one column. Rows without evidence (how none) stay last, and stay, unless how: is asked "
        "for. Enter opens the longest call on the timeline."
    )

    @staticmethod
    def prepare(session: Session, look: Look) -> KernelsModel:
        assert session.analysis is not None
        index = build_kernels(session.analysis)
        return KernelsModel(index, kernels_table(look, index))

    def make_table(self, model: Any) -> Table:
        table: Table = model.table
        return table

    def detail_lines(self, row: int, width: int) -> Sequence[Line]:
        return kernel_lines(self.look, self.model.index, row, width)
