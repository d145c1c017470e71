"""Modules and kernels of two recordings, by name: time and count over the compared steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers.facts.places import folded
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.tables import with_children
from tracer.diff_analysis import Named, Side

# Modules are compared by path where paths of both sides hold this share of the time of each.
_COMMON_RATIO = 0.5
# What a compiler or a wrapper puts into paths; the module is the same.
_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


@dataclass
class _Sum:
    """Of one name on one side, in one role where it is a kernel."""

    name: str = ""
    kind: str = ""
    parent: str | None = None
    ns: int = 0
    self_ns: int = 0
    count: int = 0
    self_count: int = 0


_Sums = dict[str, _Sum]


def kernel_changes(
    before: Analysis, after: Analysis, ours: Side, theirs: Side
) -> tuple[Named, ...]:
    """The kernels of both sides by name and role, the largest change first; none where one side
    recorded none. Durations are summed, so that overlaps count twice, as in the table of kernels.
    A kernel that has no role on one side that it has on the other is compared by its name alone."""
    if not before.accounted or not after.accounted:
        return ()
    one, other = _kernels(before, ours), _kernels(after, theirs)
    roles, others = _roles(one), _roles(other)
    apart = {name for name in roles.keys() & others.keys() if not roles[name] & others[name]}
    return _joined(_merged(one, apart), _merged(other, apart), ours, theirs)


def _roles(sums: _Sums) -> dict[str, set[str]]:
    roles: dict[str, set[str]] = {}
    for one in sums.values():
        roles.setdefault(one.name, set()).add(one.kind)
    return roles


def _merged(sums: _Sums, names: set[str]) -> _Sums:
    """These kernels as one row each, in the role that takes most of their time."""
    out: _Sums = {}
    for key, one in sorted(sums.items(), key=lambda item: -item[1].ns):
        if one.name not in names:
            out[key] = one
            continue
        row = out.setdefault(one.name, _Sum(one.name, one.kind))
        row.ns += one.ns
        row.count += one.count
    return out


def module_changes(
    before: Analysis, after: Analysis, ours: Side, theirs: Side
) -> tuple[tuple[Named, ...], str]:
    """The modules of both sides by path, like layers as one; by role where the paths of one side
    are not those of the other. What a fused kernel does counts for the first module it serves."""
    paths = _modules(before, ours), _modules(after, theirs)
    if not all(paths):
        return (), ""
    common = paths[0].keys() & paths[1].keys()
    if all(_share(sums, common) >= _COMMON_RATIO for sums in paths):
        return _joined(*paths, ours, theirs), "path"
    return _joined(_by_role(paths[0]), _by_role(paths[1]), ours, theirs), "role"


def _joined(before: _Sums, after: _Sums, ours: Side, theirs: Side) -> tuple[Named, ...]:
    none = _Sum()
    pairs = {key: (before.get(key, none), after.get(key, none)) for key in (*before, *after)}
    rows = [
        Named(
            name=one.name or other.name,
            kind=one.kind or other.kind,
            before_ns=one.ns,
            after_ns=other.ns,
            before_count=one.count,
            after_count=other.count,
            parent=one.parent if key in before else other.parent,
            self_before_ns=one.self_ns,
            self_after_ns=other.self_ns,
        )
        for key, (one, other) in pairs.items()
    ]
    rows.sort(key=lambda row: -abs(row.after_ns / theirs.count - row.before_ns / ours.count))
    return tuple(rows)


def _shown_work(analysis: Analysis, side: Side) -> Longs:
    """Work of the compared steps; of the window where there are none."""
    work = analysis.work
    if side.steps:
        return np.flatnonzero(np.isin(work["step"].to_numpy(), side.shown))
    events, window = work["event"].to_numpy(), analysis.window
    starts, ends = analysis.trace.start_ns[events], analysis.trace.end_ns[events]
    return np.flatnonzero((starts < window.end_ns) & (ends > window.start_ns))


def _kernels(analysis: Analysis, side: Side) -> _Sums:
    trace, rows = analysis.trace, _shown_work(analysis, side)
    events = analysis.work["event"].to_numpy()[rows]
    codes = trace.name_codes[events].astype(np.int64) * len(BUCKETS)
    keys = codes + analysis.work["bucket"].to_numpy()[rows]
    used, place = np.unique(keys, return_inverse=True)
    durations = trace.end_ns[events] - trace.start_ns[events]
    sums = np.bincount(place, weights=durations).tolist()
    counts = np.bincount(place).tolist()
    out: _Sums = {}
    for key, ns, count in zip(used.tolist(), sums, counts, strict=True):
        code, bucket = divmod(key, len(BUCKETS))
        name, role = str(trace.names[code]), ".".join(BUCKETS[bucket])
        out[f"{role} {name}"] = _Sum(name, role, None, int(ns), 0, count)
    return out


def _modules(analysis: Analysis, side: Side) -> _Sums:
    modules = analysis.modules
    if not len(modules) or not analysis.accounted:
        return {}
    parent: Longs = modules["parent"].to_numpy()
    own_ns, own_count = _own(analysis, side)
    paths = _same_paths(modules["path"].astype(str).tolist(), parent.tolist())
    rows = zip(
        paths,
        [paths[row] if row != NONE else None for row in parent.tolist()],
        modules["role"].astype(str).tolist(),
        with_children(parent, own_ns).tolist(),
        own_ns.tolist(),
        with_children(parent, own_count).tolist(),
        own_count.tolist(),
        strict=True,
    )
    return _summed(rows)


def _own(analysis: Analysis, side: Side) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Time and pieces of work of each module, without those of the modules in it."""
    work, rows = analysis.work, _shown_work(analysis, side)
    module: Longs = work["module"].to_numpy()[rows]
    held, size = module != NONE, len(analysis.modules)
    charged = work["charged_ns"].to_numpy()[rows][held]
    own_ns = np.bincount(module[held], weights=charged, minlength=size).astype(np.int64)
    return own_ns, np.bincount(module[held], minlength=size).astype(np.int64)


def _summed(rows: Iterable[tuple[str, str | None, str, int, int, int, int]]) -> _Sums:
    sums: _Sums = {}
    for path, parent, role, ns, self_ns, count, self_count in rows:
        one = sums.setdefault(path, _Sum(path, role, parent if parent != path else None))
        one.self_ns += self_ns
        one.self_count += self_count
        if parent != path:  # else it is in a wrapper of its own path, which counts all of it
            one.ns += ns
            one.count += count
    return sums


def _same_paths(given: list[str], parents: list[int]) -> list[str]:
    """The paths with like layers as one, without what wraps modules. Names that frames give, which
    hold no path, stand below the module around them."""
    paths: dict[int, str] = {}

    def path_of(row: int) -> str:
        if row not in paths:
            above = parents[row]
            inside = above == NONE or not given[above] or given[row].startswith(f"{given[above]}.")
            own = ".".join(p for p in folded(given[row]).split(".") if p not in _WRAPPERS)
            paths[row] = own if inside else f"{path_of(above)}.{own}"
        return paths[row]

    return [path_of(row) for row in range(len(given))]


def _share(sums: _Sums, common: Iterable[str]) -> float:
    """How much of the time lies in modules whose path the other side has too."""
    whole = sum(one.self_ns for one in sums.values())
    return sum(sums[path].self_ns for path in common) / whole if whole else 1.0


def _by_role(paths: _Sums) -> _Sums:
    sums: _Sums = {}
    for one in paths.values():
        name = one.kind or "no role"
        role = sums.setdefault(name, _Sum(name, one.kind))
        role.ns += one.self_ns
        role.self_ns += one.self_ns
        role.count += one.self_count
    return sums
