"""The module tree with like modules folded: `layers.*` stands for all layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
_COUNTED = re.compile(r"_\d+$")


@dataclass
class Node:
    """Modules whose paths differ in numbers alone. Times are sums over them; calls -1: not
    recorded of any."""

    path: str
    label: str
    type: str
    role: str
    modules: int = 0
    device_ns: int = 0
    self_ns: int = 0
    host_ns: int = 0
    calls: int = -1
    kernels: int = 0
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class TreeRow:
    """A line of the shown tree: a node, or the own time of one whose children are shown."""

    node: Node
    depth: int
    own: bool = False

    @property
    def device_ns(self) -> int:
        return self.node.self_ns if self.own else self.node.device_ns


def folded_paths(modules: pd.DataFrame) -> list[str]:
    """The path of each module with its numbers replaced, so that like modules share it. A name by
    class and order of call (`MLP_3`) says nothing of its place: like ones lie in like modules."""
    kinds = [f"{kind}_*" for kind in modules["type"].astype(str).tolist()]
    paths, parents = modules["path"].astype(str).tolist(), modules["parent"].tolist()
    counted = [_COUNTED.sub("_*", path) == kind for path, kind in zip(paths, kinds, strict=True)]
    if not any(counted):
        return [_NUMBER.sub("*", path) for path in paths]
    places = _places(kinds, parents)
    alike = Counter(place for place, by_call in zip(places, counted, strict=True) if by_call)
    return [
        place if by_call and alike[place] > 1 else path if by_call else _NUMBER.sub("*", path)
        for path, place, by_call in zip(paths, places, counted, strict=True)
    ]


def _places(names: Sequence[str], parents: Sequence[int]) -> list[str]:
    """The names from the root down to each row."""
    out: list[str] = []
    for row in range(len(names)):
        around, at = [names[row]], parents[row]
        while at >= 0:
            around.append(names[at])
            at = parents[at]
        out.append(".".join(reversed(around)))
    return out


def fold_modules(modules: pd.DataFrame) -> list[Node]:
    """The roots of the folded tree, the heaviest first at each level."""
    nodes: dict[str, Node] = {}
    folded = folded_paths(modules)
    parents = modules["parent"].tolist()
    columns = ("type", "role", "device_ns", "self_device_ns", "host_ns", "calls", "kernels")
    rows = zip(*(modules[name].tolist() for name in columns), strict=True)
    roots: list[Node] = []
    for path, parent, row in zip(folded, parents, rows, strict=True):
        above = folded[parent] if parent >= 0 else None
        if path not in nodes:
            nodes[path] = Node(path, own_label(path, above), row[0], row[1])
            siblings = roots if above is None or above not in nodes else nodes[above].children
            siblings.append(nodes[path])
        _add(nodes[path], row)
    roots = _without_lists(roots)
    _sort(roots)
    return roots


def _without_lists(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with those that are never called (lists of modules) replaced by their children."""
    kept: list[Node] = []
    for node in nodes:
        node.children = _without_lists(node.children)
        if node.calls > 0 or node.self_ns or not node.children:
            kept.append(node)
            continue
        for child in node.children:
            child.label = f"{node.label}.{child.label}" if node.label else child.label
        kept += node.children
    return kept


def own_label(path: str, above: str | None) -> str:
    """What the path of a module adds to that of the module around it."""
    if above and path.startswith(f"{above}."):
        return path[len(above) + 1 :]
    return path.rpartition(".")[2] if path.endswith("_*") else path


def _add(node: Node, row: Sequence[int]) -> None:
    node.modules += 1
    # A number below zero was not recorded.
    node.device_ns += max(row[2], 0)
    node.self_ns += max(row[3], 0)
    node.host_ns += max(row[4], 0)
    if row[5] >= 0:
        node.calls = max(node.calls, 0) + row[5]
    node.kernels += max(row[6], 0)


def _sort(nodes: list[Node]) -> None:
    nodes.sort(key=lambda node: -node.device_ns)
    for node in nodes:
        _sort(node.children)


def visible_rows(roots: Sequence[Node], most: int) -> list[TreeRow]:
    """The tree opened at its heaviest nodes, as long as it stays within so many lines."""
    opened: set[str] = set()
    shown = list(roots)
    lines = len(shown)
    while True:
        closed = [node for node in shown if node.path not in opened and node.children]
        heaviest = max(closed, key=lambda node: node.device_ns, default=None)
        if heaviest is None or heaviest.device_ns <= 0:
            break
        children = [child for child in heaviest.children if child.device_ns > 0]
        lines += len(children) + (heaviest.self_ns > 0)
        if lines > most or not children:
            break
        opened.add(heaviest.path)
        shown += children
    return _rows(roots, opened, 0)


def _rows(nodes: Sequence[Node], opened: set[str], depth: int) -> list[TreeRow]:
    rows: list[TreeRow] = []
    for node in nodes:
        if node.device_ns <= 0 and depth:
            continue
        rows.append(TreeRow(node, depth))
        if node.path in opened:
            rows += _rows(node.children, opened, depth + 1)
            if node.self_ns > 0:
                rows.append(TreeRow(node, depth + 1, own=True))
    return rows
