"""Modules: the tree, like nodes folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tracer.tui.look import Look
from tracer.tui.model.lines import Line, Target
from tracer.tui.model.modules import (
    ModuleIndex,
    Node,
    TreeRow,
    build_modules,
    heaviest_path,
    module_lines,
    modules_table,
    role_filter,
    shown_rows,
)
from tracer.tui.model.places import ModulePath
from tracer.tui.model.table import Table
from tracer.tui.session import Session
from tracer.tui.widgets.table_view import TableView


class ModulesView(TableView):
    KEY: ClassVar[str] = "modules"
    TITLE: ClassVar[str] = "Modules"
    SORT: ClassVar[str] = "module"
    COST: ClassVar[str] = "self"
    LABELS: ClassVar[Mapping[str, str]] = {"enter": "fold", "right": "", "fold": "one by one"}
    WORDS: ClassVar[str] = (
        "The module tree. Modules that differ in numbers alone are one row (x 32). Enter folds and "
        "unfolds a node; v shows like modules one by one, the slowest first. (self) is what runs "
        "in a module and in none of its children, so that every level adds up."
    )

    def __init__(self) -> None:
        super().__init__()
        self.opened: frozenset[str] = frozenset()
        self.apart: frozenset[str] = frozenset()
        self.rows: list[TreeRow] = []

    @staticmethod
    def prepare(session: Session, look: Look) -> ModuleIndex:
        assert session.analysis is not None
        return build_modules(session.analysis)

    @property
    def index(self) -> ModuleIndex:
        index: ModuleIndex = self.model
        return index

    def on_model(self) -> None:
        if self.table is None:
            self.opened = heaviest_path(self.index)
        super().on_model()

    def make_table(self, model: Any) -> Table:
        self.rows = shown_rows(self.index, self.opened, self.apart)
        return modules_table(self.look, self.index, self.rows)

    def detail_lines(self, row: int, width: int) -> Sequence[Line]:
        return module_lines(self.look, self.index, self.rows[row], width)

    @property
    def selected_tree_row(self) -> TreeRow | None:
        return None if self.row is None or not self.rows else self.rows[self.row]

    def _refold(self, path: str) -> None:
        """Show the tree with other nodes open, the cursor on a node."""
        self.set_table(self.make_table(self.model))
        at = next((n for n, row in enumerate(self.rows) if row.node.path == path), None)
        if at is not None and self.order is not None:
            found = (self.order == at).nonzero()[0].tolist()
            self.cursor.move(found[0] if found else 0, len(self.order))
        self.changed()
        self.explorer.frame_changed()

    def do_enter(self) -> None:
        row = self.selected_tree_row
        if self.in_details or self.over or row is None:
            super().do_enter()
        elif row.own or not row.node.children:
            self.follow(Target("kernels", role_filter(self.index, row.node)))
        else:
            self._toggle(row.node)

    def _toggle(self, node: Node) -> None:
        self.apart -= {node.path}
        self.opened ^= {node.path}
        self._refold(node.path)

    def do_fold(self) -> None:
        """Like modules as one row, or one by one."""
        row = self.selected_tree_row
        if row is not None and row.node.folds:
            self.apart ^= {row.node.path}
            self._refold(row.node.path)

    def can_fold(self) -> bool:
        row = self.selected_tree_row
        return row is not None and row.node.folds

    def do_right(self) -> None:
        row = self.selected_tree_row
        if row is not None and row.node.children and row.node.path not in self.opened:
            self._toggle(row.node)

    def do_left(self) -> None:
        row = self.selected_tree_row
        if row is not None and row.node.path in self.opened:
            self._toggle(row.node)

    def show_item(self, item: object) -> None:
        if not isinstance(item, ModulePath):
            super().show_item(item)
            return
        self.opened |= set(_ancestors(self.index.roots, item.path))
        self._refold(item.path)

    def place(self) -> object:
        return self.opened, self.apart, super().place()

    def restore(self, place: object) -> None:
        assert isinstance(place, tuple)
        self.opened, self.apart, rest = place
        if self.model is not None:
            self.set_table(self.make_table(self.model))
        super().restore(rest)


def _ancestors(nodes: Sequence[Node], path: str) -> list[str]:
    """The paths of the nodes around a node."""
    for node in nodes:
        if node.path == path:
            return []
        below = _ancestors(node.children, path)
        if below or any(child.path == path for child in node.children):
            return [node.path, *below]
    return []
