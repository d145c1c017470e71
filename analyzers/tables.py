"""Sums for the reader: modules, kernels, charges, phases."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, CALLS, HOW, TABLES, Phase, drafting, until_next
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.modules import ModuleTree, rows_of_paths
from tracer.analyzers.facts.places import folded
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, distinct, take
from tracer.events import make_table, text_column

Flags = NDArray[np.bool_]
# Modules and operators named of one kernel.
_MOST_LISTED = 32


def tabulate_modules(work: Work, roles: Roles, charged: Longs, inside: Flags) -> pd.DataFrame:
    """Time and calls of each module, its children's counted; a range in a range of the same
    module is one call. `inside`: work that counts in the window."""
    tree, size = work.tree, len(work.tree.paths)
    held = work.module != NONE
    self_ns = _own_time(work, charged, size)
    own = np.bincount(work.module[held & inside & work.is_kernel], minlength=size)
    kernels = with_children(tree.parent, own.astype(np.int64))
    calls, host_ns = _calls(work)
    unseen = _unseen(work, roles, calls, kernels)
    return make_table(
        TABLES["modules"],
        {
            "path": tree.paths,
            "type": tree.types,
            "role": roles.own,
            "parent": tree.parent,
            "device_ns": with_children(tree.parent, self_ns),
            "self_device_ns": self_ns,
            "host_ns": np.where(unseen, NONE, host_ns),
            "calls": np.where(unseen, NONE, calls),
            "kernels": kernels,
        },
    )


def _own_time(work: Work, charged: Longs, size: int) -> Longs:
    """Charged time of each module without its children's; that of a fused kernel is shared equally
    among the modules that it serves, what does not divide goes to the first."""
    cases = work.compiled.cases
    fused = np.array([len(sources) > 1 for sources in cases], dtype=np.int64)
    shared = take(fused, work.compiled.case) == 1
    whole = (work.module != NONE) & ~shared
    own = np.bincount(work.module[whole], weights=charged[whole], minlength=size).astype(np.int64)
    sums = np.bincount(work.compiled.case[shared], weights=charged[shared], minlength=len(cases))
    for case in np.flatnonzero(fused).tolist():
        modules = [source.module for source in cases[case]]
        share, rest = divmod(int(sums[case]), len(modules))
        np.add.at(own, modules, share)
        own[modules[0]] += rest
    return own


def _calls(work: Work) -> tuple[Longs, Longs]:
    """Calls of each module and the time of the host in them: of its ranges, else of its calls as a
    root, which the recorder notes in any case."""
    tree, trace = work.tree, work.trace
    ranges = np.flatnonzero(tree.own != NONE)
    around = take(tree.of_event, work.host.parent[ranges])
    ranges = ranges[around != tree.own[ranges]]
    calls, spent = _sums(tree.own[ranges], trace.end_ns[ranges] - trace.start_ns[ranges], tree)
    roots = trace.table("root_calls")
    rows = rows_of_paths(tree, roots["root"].astype(str).tolist())
    lasted = (roots["end_ns"] - roots["start_ns"]).to_numpy()
    noted, spent_in_them = _sums(rows[rows != NONE], lasted[rows != NONE], tree)
    return np.where(calls > 0, calls, noted), np.where(calls > 0, spent, spent_in_them)


def _sums(modules: Longs, lasted: Longs, tree: ModuleTree) -> tuple[Longs, Longs]:
    size = len(tree.paths)
    spent = np.bincount(modules, weights=lasted, minlength=size)
    return np.bincount(modules, minlength=size).astype(np.int64), spent.astype(np.int64)


def _unseen(work: Work, roles: Roles, calls: Longs, kernels: Longs) -> Flags:
    """Modules whose calls were not recorded: those that work was given to without a range of
    theirs, and at detail `modules` the small ones inside of a module that ran."""
    tree = work.tree
    kinds = list(zip(tree.types, roles.own, strict=True))
    watched = {kinds[row] for row in np.flatnonzero(calls > 0).tolist()}
    inside = np.zeros(calls.size, dtype=bool)
    if work.trace.meta.detail != "full":
        for row in np.flatnonzero(calls == 0).tolist():
            above = any(calls[module] > 0 for module in tree.ancestors(row)[1:])
            inside[row] = above and kinds[row] not in watched
    unseen: Flags = (calls == 0) & ((kernels > 0) | inside)
    return unseen


def with_children(parent: Longs, own: Longs) -> Longs:
    """The sums of modules with those of all modules inside them."""
    total, above = own.copy(), parent.tolist()
    depth = np.zeros(own.size, dtype=np.int64)
    for row in range(own.size):
        around = above[row]
        while around != NONE:
            depth[row] += 1
            around = above[around]
    for row in np.argsort(-depth, kind="stable").tolist():
        if above[row] != NONE:
            total[above[row]] += total[row]
    return total


def tabulate_kernels(
    work: Work, attribution: Attribution, inside: Flags, capacity_ns: int
) -> pd.DataFrame:
    """One row for each name, bucket and evidence, the longest first."""
    rows = np.flatnonzero(inside)
    keys = (work.name_code[rows], attribution.bucket[rows], attribution.how[rows])
    first, place = distinct(*keys)
    durations = work.trace.end_ns[work.event[rows]] - work.trace.start_ns[work.event[rows]]
    total = np.bincount(place, weights=durations, minlength=first.size).astype(np.int64)
    confidence = np.ones(first.size)
    np.minimum.at(confidence, place, attribution.confidence[rows])
    order = np.argsort(-total, kind="stable")
    modules, operators = _made_from(work, rows, place, first.size)
    names, buckets, how = (key[first[order]] for key in keys)
    return make_table(
        TABLES["kernels"],
        {
            "name": text_column(names, work.trace.names),
            "bucket": buckets,
            "library": [work.names[code].library for code in names.tolist()],
            "how": [HOW[code] for code in how.tolist()],
            "confidence": confidence[order],
            "count": np.bincount(place, minlength=first.size)[order],
            "total_ns": total[order],
            "ratio": total[order] / capacity_ns if capacity_ns else np.zeros(total.size),
            "modules": [modules[row] for row in order.tolist()],
            "operators": [
                operators[row] or _listed(dict.fromkeys(work.names[code].fused_ops))
                for row, code in zip(order.tolist(), names.tolist(), strict=True)
            ],
        },
    )


def _made_from(work: Work, rows: Longs, place: Longs, size: int) -> tuple[list[str], list[str]]:
    """JSON lists of the modules and of the operators behind each kernel of compiled code."""
    modules: list[dict[str, None]] = [{} for _ in range(size)]
    operators: list[dict[str, None]] = [{} for _ in range(size)]
    known = np.flatnonzero(work.compiled.case[rows] != NONE)
    case, place = work.compiled.case[rows[known]], place[known]
    first, _ = distinct(place, case)
    for row, number in zip(place[first].tolist(), case[first].tolist(), strict=True):
        for source in work.compiled.cases[number]:
            modules[row][folded(work.tree.paths[source.module])] = None
            operators[row].update(dict.fromkeys(source.operators))
    return [_listed(names) for names in modules], [_listed(names) for names in operators]


def _listed(names: dict[str, None]) -> str:
    return json.dumps(list(names)[:_MOST_LISTED]) if names else ""


def sum_charges(step: Longs, bucket: NDArray[np.int16], charged: Longs) -> pd.DataFrame:
    """Sums of slices over step and bucket; step -1 is the time between steps."""
    keys = (step + 1) * len(BUCKETS) + bucket
    # Sums below 2**53 ns, a hundred days, are exact as floats.
    sums = np.bincount(keys, weights=charged)
    distinct = np.flatnonzero(np.bincount(keys))
    return make_table(
        TABLES["charges"],
        {
            "step": distinct // len(BUCKETS) - 1,
            "bucket": distinct % len(BUCKETS),
            "ns": sums[distinct].astype(np.int64),
        },
    )


def summarise_phases(steps: pd.DataFrame, charges: pd.DataFrame | None) -> tuple[Phase, ...]:
    """Times and groups of the steps of each phase; warm-up steps are left out unless there is
    nothing else."""
    names = steps["phase"].astype(str).to_numpy()
    order = list(dict.fromkeys(names.tolist()))
    return tuple(_phase(name, steps, names == name, charges) for name in order)


def _phase(name: str, steps: pd.DataFrame, chosen: Flags, charges: pd.DataFrame | None) -> Phase:
    rows = steady_rows(steps, chosen)
    wall = steps["wall_ns"].to_numpy()[rows]
    return Phase(
        name=name or "step",
        steps=int(rows.size),
        median_ns=percentile(wall, 50),
        min_ns=int(wall.min()) if rows.size else None,
        p95_ns=percentile(wall, 95),
        p99_ns=percentile(wall, 99),
        groups=None if charges is None else _groups(charges, rows),
        wall_ns=int(wall.sum()),
        tokens_per_second=_tokens_per_second(steps, rows),
        warmup_steps=int(chosen.sum()) - int(rows.size),
    )


def steady_rows(steps: pd.DataFrame, chosen: Flags) -> Longs:
    """The steps that numbers of the chosen ones are about: without warm-up unless all are."""
    steady = chosen & ~steps["warmup"].to_numpy()
    return np.flatnonzero(steady if bool(steady.any()) else chosen)


def _tokens_per_second(steps: pd.DataFrame, rows: Longs) -> float | None:
    """Tokens over the time of these steps. Where a step is only the call of a model, what its loop
    does until the next call counts as well, and what a draft does until the next check. Of drafts
    those tokens count that stay, in the steps of which that is known; a draft itself gives none."""
    chosen = steps.iloc[rows]
    tokens, wall = kept_tokens(chosen), chosen["wall_ns"].to_numpy()
    until = until_next(steps, rows)
    if checking_drafts(chosen).any():
        known = (tokens >= 0) & (until > 0)
        return float(tokens[known].sum() * 1e9 / until[known].sum()) if known.any() else None
    if not rows.size or (tokens < 0).any() or int(wall.sum()) <= 0 or drafting(chosen).any():
        return None
    followed = until > 0
    if followed.any() and str(steps["source"].iloc[int(rows[0])]) in CALLS:
        return float(tokens[followed].sum() * 1e9 / until[followed].sum())
    return float(tokens.sum() * 1e9 / wall.sum())


def kept_tokens(steps: pd.DataFrame) -> Longs:
    """New tokens of each step: of one that checks a draft those that stay; -1 unknown."""
    tokens: Longs = np.where(checking_drafts(steps), steps["kept"], steps["tokens"])
    return tokens


def checking_drafts(steps: pd.DataFrame) -> Flags:
    """Which steps decode several tokens a sequence: some of them may be thrown away."""
    counted = steps["source"].isin(["root_call", "engine"]) & (steps["batch"] > 0)
    drafted = counted & (steps["phase"] == "decode") & (steps["tokens"] > steps["batch"])
    return drafted.to_numpy(dtype=bool)


def percentile(wall: Longs, percent: int) -> int | None:
    """A percentile of times; None of none."""
    return round(float(np.percentile(wall, percent))) if wall.size else None


def _groups(charges: pd.DataFrame, rows: Longs) -> dict[str, int]:
    mine = charges[np.isin(charges["step"].to_numpy(), rows)]
    sums: dict[str, int] = {}
    for bucket, ns in zip(mine["bucket"].tolist(), mine["ns"].tolist(), strict=True):
        group = BUCKETS[bucket][0]
        sums[group] = sums.get(group, 0) + ns
    return sums
