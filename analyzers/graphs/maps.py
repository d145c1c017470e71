"""Saved maps of graphs: what each node of a capture was launched for, as tables that travel.

A map made where the capture was recorded (a warm-up, a capture phase) explains every later replay
of that graph, in another recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKETS
from tracer.analyzers.evidence.directions import DIRECTIONS, find_directions
from tracer.analyzers.evidence.roles import Roles, find_roles
from tracer.analyzers.evidence.rung_module import (
    decisive_operator,
    places_in_block,
    signature_of,
)
from tracer.analyzers.evidence.rung_operator import operator_buckets
from tracer.analyzers.evidence.seen_in_modules import seen_in_modules
from tracer.analyzers.facts.host import Host, Launches, link_launches, read_host
from tracer.analyzers.facts.modules import ModuleTree, read_modules
from tracer.analyzers.facts.work import COMPUTE, Work
from tracer.analyzers.graphs.captures import KINDS, Capture, Texts, find_captures
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.events import EVENTS, SIDE_TABLES, Trace, make_table

Tables = Mapping[str, pd.DataFrame]
MAP_TABLES = ("graph_captures", "captured_nodes", "captured_modules")


def map_captures(trace: Trace) -> dict[str, pd.DataFrame]:
    """The maps of all graphs captured in this recording; empty when none was."""
    host = read_host(trace)
    launches = link_launches(host)
    captures = find_captures(host, launches)
    if not captures:
        return {}
    tree = read_modules(trace, host)
    work = _captured_work(host, launches, tree, np.concatenate([c.rows for c in captures]))
    roles = find_roles(tree, seen_in_modules(work))
    return {
        "graph_captures": _captures_table(host, captures),
        "captured_nodes": _nodes_table(work, roles, captures),
        "captured_modules": _modules_table(work, roles),
    }


def _captured_work(host: Host, launches: Launches, tree: ModuleTree, rows: Longs) -> Work:
    """Captured launches as if they were the work that they launch."""
    # A launch has no launch of its own, and so no operator around that.
    unlaunched = replace(launches, operator=np.full(rows.size, NONE, dtype=np.int64))
    return Work(
        host.trace,
        host,
        unlaunched,
        tree,
        event=rows,
        site=rows,
        launch=rows,
        work_class=np.full(rows.size, COMPUTE, dtype=np.int8),
        cpu_only=False,
        replayed=np.ones(rows.size, dtype=bool),
    )


def _captures_table(host: Host, captures: Sequence[Capture]) -> pd.DataFrame:
    first = np.array([capture.rows[0] for capture in captures], dtype=np.int64)
    around = take(host.outermost(host.of_kind("annotation")), first)
    names = np.array([*host.trace.names, ""], dtype=object)
    return make_table(
        SIDE_TABLES["graph_captures"],
        {
            "capture": np.arange(len(captures)),
            "nodes": [capture.rows.size for capture in captures],
            "end_ns": [capture.end_ns for capture in captures],
            "origin": [""] * len(captures),
            "label": names[take(host.trace.name_codes.astype(np.int64), around)],
        },
    )


def _nodes_table(work: Work, roles: Roles, captures: Sequence[Capture]) -> pd.DataFrame:
    names = np.array([*work.trace.names, ""], dtype=object)
    operator = take(work.trace.name_codes.astype(np.int64), decisive_operator(work))
    signatures = [*(signature_of(roles, row) for row in range(len(roles.own))), ("", "")]
    tree, module = work.tree, work.module
    return make_table(
        SIDE_TABLES["captured_nodes"],
        {
            "capture": np.repeat(np.arange(len(captures)), [c.rows.size for c in captures]),
            "node": np.concatenate([np.arange(c.rows.size) for c in captures]),
            "kind": _words(KINDS, np.concatenate([c.kinds for c in captures])),
            "kernel": np.concatenate([c.kernels for c in captures]),
            "exact": np.concatenate([c.exact for c in captures]),
            "path": _words([*tree.paths, ""], module),
            "type": _words([*tree.types, ""], module),
            "role": _words([own for own, _ in signatures], module),
            "block": _words([block for _, block in signatures], module),
            "operator": names[operator],
            "place": places_in_block(work),
            "told": _words([*(f"{g}.{p}" for g, p in BUCKETS), ""], operator_buckets(work)),
            "direction": _words(DIRECTIONS, find_directions(work)),
        },
    )


def _words(words: Sequence[str], codes: NDArray[np.signedinteger]) -> Texts:
    """Words by code; -1 is the last one."""
    texts: Texts = np.array(words, dtype=object)[codes]
    return texts


def _modules_table(work: Work, roles: Roles) -> pd.DataFrame:
    """Every module of the recording, so that those around a node keep their types and roles."""
    return make_table(
        SIDE_TABLES["captured_modules"],
        {"path": work.tree.paths, "type": work.tree.types, "role": roles.own},
    )


# --- maps beside another recording ----------------------------------------------------------------


def maps_of(trace: Trace) -> dict[str, pd.DataFrame]:
    """The maps that a recording holds: of its own captures, or those saved with it."""
    if len(trace.table("graph_captures")):
        return {name: trace.table(name) for name in MAP_TABLES}
    return map_captures(trace)


def with_maps(trace: Trace, maps: Sequence[tuple[str, Tables]]) -> Trace:
    """The same recording beside maps from elsewhere, each with the name of its origin."""
    own = {name: trace.table(name) for name in MAP_TABLES}
    parts = [own, *(_from(origin, tables) for origin, tables in maps if len(tables))]
    joined = _joined(parts)
    return replace(trace, tables={**trace.tables, **joined})


def with_captures(trace: Trace, captures: Iterable[Trace]) -> Trace:
    """The same recording beside the maps of capture-phase recordings."""
    maps = [(origin_of(capture), maps_of(capture)) for capture in captures]
    return with_maps(trace, maps) if any(len(tables) for _, tables in maps) else trace


def only_maps(trace: Trace) -> Trace:
    """The maps of a recording as a recording without events; without tables when it has none."""
    return Trace(make_table(EVENTS, {}), maps_of(trace), trace.meta)


def origin_of(capture: Trace) -> str:
    """How a recording is named as the origin of a map."""
    return PurePath(capture.meta.path).name if capture.meta.path else "another recording"


def _from(origin: str, tables: Tables) -> dict[str, pd.DataFrame]:
    captures = tables["graph_captures"]
    known = captures["origin"].astype(str)
    named = make_table(
        SIDE_TABLES["graph_captures"],
        {**_values(captures), "origin": known.where(known != "", origin).to_numpy(dtype=object)},
    )
    return {**tables, "graph_captures": named}


def _joined(parts: Sequence[Tables]) -> dict[str, pd.DataFrame]:
    """One after the other; captures get new numbers."""
    shift, moved = 0, []
    for tables in parts:
        numbered = {**tables}
        for name in ("graph_captures", "captured_nodes"):
            numbered[name] = tables[name].assign(capture=tables[name]["capture"] + shift)
        moved.append(numbered)
        shift += len(tables["graph_captures"])
    out = {name: _stacked(name, [tables[name] for tables in moved]) for name in MAP_TABLES}
    modules = out["captured_modules"].drop_duplicates("path", keep="last")
    out["captured_modules"] = modules.reset_index(drop=True)
    return {name: table for name, table in out.items() if len(table)}


def _stacked(name: str, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    columns = [_values(table) for table in tables]
    return make_table(
        SIDE_TABLES[name],
        {column: np.concatenate([c[column] for c in columns]) for column in SIDE_TABLES[name]},
    )


def _values(table: pd.DataFrame) -> dict[str, NDArray[np.generic]]:
    return {
        column: table[column].to_numpy(dtype=object)
        if isinstance(table[column].dtype, pd.CategoricalDtype)
        else table[column].to_numpy()
        for column in table.columns
    }
