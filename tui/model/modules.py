"""The module tree: like nodes folded until they are asked for, own time in its own row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from rich.text import Text

from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers.intervals import NONE, Longs
from tracer.exporters.format import UNKNOWN, duration_text, percent_text, shares, table_scale
from tracer.exporters.module_tree import folded_paths, own_label
from tracer.exporters.names import short_kernel
from tracer.findings import Where
from tracer.tui.look import Look
from tracer.tui.model.lines import DIM, Line, Target, heading, labelled, plain, wrapped
from tracer.tui.model.places import Filter, ModulePath, Moment
from tracer.tui.model.signs import share_bar
from tracer.tui.model.source import source_lines
from tracer.tui.model.table import Column, Table, cut

_MOST_KERNELS = 10
_SHARE_WIDTH = 8
_QUANTA = 1000


@dataclass
class Node:
    """Modules that differ in numbers alone, or one module. `rows`: of `modules`."""

    path: str
    label: str
    rows: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    single: bool = False  # one of several like modules, unfolded

    @property
    def folds(self) -> bool:
        return len(self.rows) > 1


@dataclass(frozen=True)
class TreeRow:
    """A shown row: a node, or the own time of one whose children are shown."""

    node: Node
    depth: int
    own: bool
    device_ns: int
    share: int  # in tenths of a percent of the window; siblings add up to their parent


@dataclass(frozen=True)
class ModuleIndex:
    """The tree of an analysis with its columns."""

    analysis: Analysis
    roots: list[Node]

    @cached_property
    def columns(self) -> dict[str, Longs]:
        names = ("device_ns", "self_device_ns", "host_ns", "calls", "kernels", "parent")
        return {
            name: np.asarray(self.analysis.modules[name].to_numpy(), dtype=np.int64)
            for name in names
        }

    @cached_property
    def paths(self) -> list[str]:
        return self.analysis.modules["path"].astype(str).tolist()

    @cached_property
    def types(self) -> list[str]:
        return self.analysis.modules["type"].astype(str).tolist()

    @cached_property
    def places(self) -> dict[str, Where]:
        """Path -> where its `forward` stands, as a live recording tells it."""
        table = self.analysis.trace.table("model_modules")
        known = table[table["file"].astype(str) != ""]
        columns = (known["path"].astype(str), known["file"].astype(str), known["line"])
        return {p: Where(f, int(n), module=p) for p, f, n in zip(*columns, strict=True)}

    @cached_property
    def children(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        for row, parent in enumerate(self.columns["parent"].tolist()):
            out.setdefault(parent, []).append(row)
        return out

    def total(self, node: Node, column: str) -> int:
        """The sum over the modules of a node; what was not recorded counts nothing."""
        return int(np.maximum(self.columns[column][node.rows], 0).sum())

    def seen(self, node: Node, column: str) -> bool:
        """Whether this was recorded of any module of a node."""
        return bool((self.columns[column][node.rows] >= 0).any())

    def singles(self, node: Node) -> list[Node]:
        """The modules of a folded node, each by itself, the slowest first."""
        times = self.columns["device_ns"]
        rows = sorted(node.rows, key=lambda row: -int(times[row]))
        return [self._single(row) for row in rows]

    def _single(self, row: int) -> Node:
        node = Node(self.paths[row], self.paths[row].rpartition(".")[2], [row], single=True)
        node.children = [self._single(child) for child in self.children.get(row, ())]
        _sort(self, node.children)
        return node


def build_modules(analysis: Analysis) -> ModuleIndex:
    """Fold the modules of an analysis."""
    parents = analysis.modules["parent"].tolist()
    folded = folded_paths(analysis.modules)
    nodes: dict[str, Node] = {}
    index = ModuleIndex(analysis, [])
    for row, (path, parent) in enumerate(zip(folded, parents, strict=True)):
        above = nodes.get(folded[parent]) if parent >= 0 else None
        if path not in nodes:
            nodes[path] = Node(path, own_label(path, above.path if above else None))
            (index.roots if above is None else above.children).append(nodes[path])
        nodes[path].rows.append(row)
    _sort(index, index.roots)
    return index


def _sort(index: ModuleIndex, nodes: list[Node]) -> None:
    nodes.sort(key=lambda node: -index.total(node, "device_ns"))
    for node in nodes:
        _sort(index, node.children)


def heaviest_path(index: ModuleIndex) -> frozenset[str]:
    """The nodes to open on arrival: from the root down the heaviest child."""
    opened: set[str] = set()
    nodes = index.roots
    while nodes:
        node = nodes[0]
        if not node.children or index.total(node, "device_ns") <= 0:
            break
        opened.add(node.path)
        nodes = node.children
    return frozenset(opened)


def shown_rows(index: ModuleIndex, opened: frozenset[str], apart: frozenset[str]) -> list[TreeRow]:
    """The rows of the tree. `opened`: nodes whose children are shown; `apart`: folded nodes whose
    modules are shown one by one."""
    totals = [index.total(root, "device_ns") for root in index.roots]
    rest = max(index.analysis.window.capacity_ns - sum(totals), 0)
    quanta = shares([*totals, rest], _QUANTA)[:-1]
    rows: list[TreeRow] = []
    for root, share in zip(index.roots, quanta, strict=True):
        rows += _rows(index, root, 0, share, opened, apart)
    return rows


def _rows(
    index: ModuleIndex,
    node: Node,
    depth: int,
    share: int,
    opened: frozenset[str],
    apart: frozenset[str],
) -> Iterator[TreeRow]:
    yield TreeRow(node, depth, False, index.total(node, "device_ns"), share)
    if node.path in apart and node.folds:
        parts, own_ns = index.singles(node), 0
    elif node.path in opened:
        parts, own_ns = node.children, index.total(node, "self_device_ns")
    else:
        return
    times = [index.total(part, "device_ns") for part in parts]
    quanta = shares([*times, own_ns], share) if share else [0] * (len(times) + 1)
    for part, part_share in zip(parts, quanta[:-1], strict=True):
        yield from _rows(index, part, depth + 1, part_share, opened, apart)
    if own_ns > 0:
        yield TreeRow(node, depth + 1, True, own_ns, quanta[-1])


def modules_table(look: Look, index: ModuleIndex, rows: list[TreeRow]) -> Table:
    """The shown rows as a table."""
    device = np.array([row.device_ns for row in rows], dtype=np.int64)
    own = np.array([_own(index, row) for row in rows], dtype=np.int64)
    host = np.array([_unless_own(index, row, "host_ns") for row in rows], dtype=np.int64)
    calls = np.array([_unless_own(index, row, "calls") for row in rows], dtype=np.int64)
    scale = table_scale(float(device.max(initial=0)))
    host_scale = table_scale(float(host.max(initial=0)))
    whole = max(sum(index.total(root, "device_ns") for root in index.roots), 1)
    shown = [index.analysis.accounted and _measured(index, row) for row in rows]
    seen = [row.own or index.seen(row.node, "calls") for row in rows]
    times = "device" if index.analysis.window.devices else "operators"
    columns = [
        Column("module", "module", [_label(look, index, row) for row in rows], np.arange(len(rows)),
               "left", flexible=True),
        Column("role", "role", [_role(index, row) for row in rows], None, "left", rank=3),
        Column("device", f"{times} {scale.unit}",
               _texts(device, scale.text, shown), device),
        Column("self", "self",
               _texts(own, scale.text, shown), own),
        Column("host", f"host {host_scale.unit}",
               _texts(host, host_scale.text, seen), host, rank=2),
        Column("calls", "calls", _texts(calls, "{:,}".format, seen), calls, rank=1),
        Column("share", "share",
               [_share(row) if known else UNKNOWN for row, known in zip(rows, shown, strict=True)],
               device),
        Column("bar", "", [share_bar(look, row.device_ns / whole, _SHARE_WIDTH) for row in rows],
               device, "left", rank=4),
    ]  # fmt: skip
    return Table(
        tuple(columns),
        [f"{row.node.path} {_type(index, row.node)}" for row in rows],
        lambda row: Target("modules", ModulePath(rows[row].node.path)),
        empty="no module ranges in this recording (`tracer run` and `with trace()` record them)",
    )


def _texts(numbers: Longs, text: Callable[[int], str], known: Sequence[bool]) -> list[str]:
    """Cells; empty where a row has no such number (below zero)."""
    pairs = zip(numbers.tolist(), known, strict=True)
    return [(text(n) if n >= 0 else "") if told else UNKNOWN for n, told in pairs]


def _measured(index: ModuleIndex, row: TreeRow) -> bool:
    """Whether the time of a row was measured apart: that of a module without a range of its own is
    its parent's."""
    return row.own or row.device_ns > 0 or index.seen(row.node, "calls")


def _own(index: ModuleIndex, row: TreeRow) -> int:
    return row.device_ns if row.own else index.total(row.node, "self_device_ns")


def _unless_own(index: ModuleIndex, row: TreeRow, column: str) -> int:
    return NONE if row.own else index.total(row.node, column)


def _share(row: TreeRow) -> str:
    return "<0.1 %" if not row.share and row.device_ns else f"{row.share / 10:.1f} %"


def _label(look: Look, index: ModuleIndex, row: TreeRow) -> str:
    indent = "  " * row.depth
    if row.own:
        return f"{indent}(self)"
    times = look.sign("×", "x")
    many = f" {times} {len(row.node.rows)}" if row.node.folds else ""
    name = row.node.label or _type(index, row.node) or "(root)"
    return f"{indent}{look.name(name)}{many}"


def _role(index: ModuleIndex, row: TreeRow) -> str:
    return "" if row.own else str(index.analysis.modules["role"].iloc[row.node.rows[0]])


def _type(index: ModuleIndex, node: Node) -> str:
    return index.types[node.rows[0]]


def work_of(index: ModuleIndex, node: Node, with_children: bool) -> Longs:
    """Rows of `work` of a node, its children's counted or not."""
    modules = index.analysis.work["module"].to_numpy()
    wanted = np.zeros(len(index.paths) + 1, dtype=bool)
    pending = list(node.rows)
    while pending:
        row = pending.pop()
        wanted[row] = True
        pending += index.children.get(row, ()) if with_children else ()
    return np.flatnonzero(wanted[modules] & (modules >= 0))


def module_lines(look: Look, index: ModuleIndex, row: TreeRow, width: int) -> list[Line]:
    """One node: what it is, its kernels, its slowest module."""
    node, analysis = row.node, index.analysis
    lines = [Line(t.text, None, node.path) for t in wrapped(look.name(node.path), width)]
    lines += labelled("class", look.name(_type(index, node)) or UNKNOWN, width)
    if node.folds:
        slowest = index.singles(node)[0]
        time = duration_text(index.total(slowest, "device_ns"))
        lines += labelled("slowest", f"{look.name(slowest.path)}, {time}", width)
    works = work_of(index, node, not row.own)
    if works.size:
        lines += [plain(), *_kernel_lines(look, analysis, works, width)]
    else:
        lines += [plain(), plain("   no kernel ran in it", DIM)]
    where = index.places.get(index.paths[node.rows[0]])
    if where is None:
        return lines
    source = source_lines(look, where, width, analysis.trace.meta.path or "")
    return [*lines, plain(), heading("SOURCE"), *source]


def _kernel_lines(look: Look, analysis: Analysis, works: Longs, width: int) -> list[Line]:
    trace = analysis.trace
    events = analysis.work["event"].to_numpy()[works]
    durations = trace.events["duration_ns"].to_numpy()[events]
    codes, place = np.unique(trace.name_codes[events], return_inverse=True)
    sums = np.bincount(place, weights=durations)
    counts = np.bincount(place)
    order = np.argsort(-sums, kind="stable")
    lines = [heading("KERNELS", f"{codes.size:,} in all, sums of durations", width)]
    for at in order[:_MOST_KERNELS].tolist():
        name = trace.names[int(codes[at])]
        longest = works[place == at][int(durations[place == at].argmax())]
        numbers = f"{counts[at]:>7,} {duration_text(float(sums[at])):>9}"
        room = max(width - 4 - len(numbers), 8)
        label = cut(look.name(short_kernel(name)), room)
        text = Text(f"   {label}{' ' * (room - Text(label).cell_len)}{numbers}")
        lines.append(Line(text, Target("timeline", Moment(work=int(longest))), name))
    return lines


def role_filter(index: ModuleIndex, node: Node) -> Filter:
    """The filter of the kernel table that shows what this node runs most."""
    works = work_of(index, node, True)
    buckets = index.analysis.work["bucket"].to_numpy()[works]
    if not buckets.size:
        return Filter("")
    group, part = BUCKETS[int(np.bincount(buckets).argmax())]
    return Filter(f"role:{group}.{part}")


def share_text(ratio: float) -> str:
    """A share of the window."""
    return percent_text(ratio)
