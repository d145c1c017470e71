"""The module tree of a trace, and which module each host row lies in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracer.analyzers.facts.host import Host
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.events import Trace

_FRAME = "nn.Module: "


@dataclass(frozen=True)
class ModuleTree:
    """Modules by row. `of_event`: the module range or frame around each event, itself counted."""

    paths: list[str]
    types: list[str]
    parent: Longs
    of_event: Longs  # row of the tree; -1 outside any module
    range_event: Longs  # the event of that range; -1 outside any module
    own: Longs  # for a row that is a module range: its module; -1 for other rows
    live: frozenset[str]  # paths that the recorder listed, ranges or not
    first_event: Longs  # the first range of each module; -1 when none was recorded

    def children(self) -> list[list[int]]:
        out: list[list[int]] = [[] for _ in self.paths]
        for row, parent in enumerate(self.parent.tolist()):
            if parent != NONE:
                out[parent].append(row)
        return out

    def ancestors(self, row: int) -> list[int]:
        """The row and the modules around it, innermost first."""
        out = []
        while row != NONE:
            out.append(row)
            row = int(self.parent[row])
        return out


def read_modules(trace: Trace, host: Host) -> ModuleTree:
    """The tree from qualified names, in ranges or listed by the recorder; without them, from
    nn.Module frames."""
    if host.of_kind("module").any() or len(trace.table("model_modules")):
        return _from_ranges(trace, host)
    frames = trace.named(lambda name: name.startswith(_FRAME), "frame")
    if frames.any():
        return _with_paths(_from_frames(trace, host, frames), _told_elsewhere(trace))
    if _told_elsewhere(trace):
        return _from_ranges(trace, host)
    none = host.nowhere
    return ModuleTree([], [], none[:0], none, none, none, frozenset(), none[:0])


def _with_paths(tree: ModuleTree, told: dict[str, str]) -> ModuleTree:
    """The tree with modules at its end that wrote nothing here."""
    known = set(tree.paths)
    paths = [path for path in told if path not in known]
    row_of = {path: row for row, path in enumerate([*tree.paths, *paths])}
    none = np.full(len(paths), NONE, dtype=np.int64)
    parent = np.array([_parent_row(path, row_of) for path in paths], dtype=np.int64)
    return replace(
        tree,
        paths=[*tree.paths, *paths],
        types=[*tree.types, *(told[path] for path in paths)],
        parent=np.concatenate([tree.parent, parent]),
        first_event=np.concatenate([tree.first_event, none]),
    )


def split_range_name(name: str) -> tuple[str, str]:
    """Qualified name and class of `module::<qualified name>::<class>`."""
    path, _, kind = name.removeprefix("module::").rpartition("::")
    return path, kind


def _from_ranges(trace: Trace, host: Host) -> ModuleTree:
    ranges = host.of_kind("module")
    codes = np.unique(trace.name_codes[ranges])
    named = {code: split_range_name(trace.names[code]) for code in codes.tolist()}
    listed = _listed(trace)
    types = dict(listed)
    types.update(named.values())
    paths = sorted(types, key=_path_key)
    row_of = {path: row for row, path in enumerate(paths)}
    of_code = np.full(len(trace.names), NONE, dtype=np.int32)
    for code, (path, _) in named.items():
        of_code[code] = row_of[path]
    own = np.where(ranges, of_code[trace.name_codes], NONE)
    around = host.module
    return ModuleTree(
        paths,
        [types[path] for path in paths],
        np.array(
            [NONE if is_further_root(p, types[p]) else _parent_row(p, row_of) for p in paths],
            dtype=np.int32,
        ),
        take(own, around),
        around,
        own,
        frozenset(listed),
        _first_events(own, len(paths)),
    )


def is_further_root(path: str, kind: str) -> bool:
    """Whether this is another model beside the first, whose path is empty: the recorder calls it
    after its class, with a number where several are of one class."""
    return path.startswith(kind) and re.fullmatch(r"(_\d+)?", path.removeprefix(kind)) is not None


def _first_events(own: Longs, size: int) -> Longs:
    first = np.full(size, NONE, dtype=np.int32)
    rows = np.flatnonzero(own != NONE)[::-1]
    first[own[rows]] = rows  # the last write wins: the earliest range
    return first


def _listed(trace: Trace) -> dict[str, str]:
    out = _told_elsewhere(trace)
    table = trace.table("model_modules")
    out.update(zip(table["path"].astype(str), table["type"].astype(str), strict=True))
    return out


def _told_elsewhere(trace: Trace) -> dict[str, str]:
    """Modules of captured graphs and of compiled code, which wrote no ranges here."""
    out: dict[str, str] = {}
    for name in ("compiled_modules", "captured_modules"):
        table = trace.table(name)[["path", "type"]].drop_duplicates()
        out.update(zip(table["path"].astype(str), table["type"].astype(str), strict=True))
    return out


def rows_of_paths(tree: ModuleTree, paths: Sequence[str]) -> Longs:
    """Row of the tree for each path; -1 for one that is not in it."""
    row_of = {path: row for row, path in enumerate(tree.paths)}
    return np.array([row_of.get(path, NONE) for path in paths], dtype=np.int64)


def _path_key(path: str) -> tuple[tuple[int, int, str], ...]:
    """Order of paths in which layers.2 stands before layers.10 and a parent before its children."""
    parts = path.split(".") if path else []
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts)


def _parent_row(path: str, row_of: dict[str, int]) -> int:
    while path:
        path = path.rpartition(".")[0]
        if path in row_of:
            return row_of[path]
    return NONE


def _from_frames(trace: Trace, host: Host, frames: np.typing.NDArray[np.bool_]) -> ModuleTree:
    """Frames name a class and a number, `LlamaAttention_0`: that is the whole path."""
    around = host.nearest(frames)
    rows = np.flatnonzero(frames)
    codes, first = np.unique(trace.name_codes[rows], return_index=True)
    of_code = np.full(len(trace.names), NONE, dtype=np.int32)
    of_code[codes] = np.arange(codes.size)
    own = np.where(frames, of_code[trace.name_codes], NONE)
    above = take(host.parent, rows[first])
    parent = take(own, take(around, above))
    names = [trace.names[code].removeprefix(_FRAME) for code in codes.tolist()]
    types = [name.rstrip("0123456789").removesuffix("_") for name in names]
    parent = np.where(parent == np.arange(codes.size), NONE, parent)
    first = _first_events(own, len(names))
    return ModuleTree(names, types, parent, take(own, around), around, own, frozenset(), first)
