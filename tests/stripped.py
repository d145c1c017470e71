"""Recordings with some of their evidence taken away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from tracer.analyzers.facts.host import read_host
from tracer.analyzers.facts.modules import split_range_name
from tracer.analyzers.steps.finder import capture_ranges
from tracer.events import Trace

_OF_ANY_TOOL = ("threads", "sequences", "devices", "copies")


def keep_rows(trace: Trace, keep: NDArray[np.bool_]) -> Trace:
    """The trace with these events alone, its side tables renumbered."""
    place = np.cumsum(keep) - 1
    tables = {name: _renumbered(table, keep, place) for name, table in trace.tables.items()}
    return replace(trace, events=trace.events[keep].reset_index(drop=True), tables=tables)


def _renumbered(
    table: pd.DataFrame, keep: NDArray[np.bool_], place: NDArray[np.int64]
) -> pd.DataFrame:
    if "event" not in table.columns:
        return table
    kept: pd.DataFrame = table[keep[table["event"].to_numpy()]].reset_index(drop=True)
    return kept.assign(event=place[kept["event"].to_numpy()])


def without_host_evidence(trace: Trace) -> Trace:
    """No operators, module ranges or frames: launches, annotations and device work are left."""
    kinds = trace.events["kind"].astype(str).to_numpy()
    return keep_rows(trace, ~np.isin(kinds, ["operator", "module", "frame"]))


def without_modules(trace: Trace) -> Trace:
    """As other tools write it: operators, launches and device work, and nothing of modules."""
    kinds = trace.events["kind"].astype(str).to_numpy()
    kept = keep_rows(trace, ~np.isin(kinds, ["module", "frame"]))
    tables = {name: table for name, table in kept.tables.items() if name in _OF_ANY_TOOL}
    return replace(kept, tables=tables, meta=replace(kept.meta, facts={}, extra={}))


def device_alone(trace: Trace) -> Trace:
    """Device work and nothing of the host."""
    keep = np.zeros(len(trace.events), dtype=bool)
    keep[trace.device_rows] = True
    return keep_rows(trace, keep)


def without_captures(trace: Trace) -> Trace:
    """No calls during the capture of a graph, and no module ranges: replays explain themselves."""
    host = read_host(trace)
    kinds = trace.events["kind"].astype(str).to_numpy()
    keep = kinds != "module"
    for start, end in capture_ranges(trace, host):
        within = (trace.start_ns >= start) & (trace.end_ns[:] <= end)
        keep &= ~(within & np.isin(kinds, ["runtime", "operator"]))
    return keep_rows(trace, keep)


def with_nameless_modules(trace: Trace) -> Trace:
    """Modules and classes called by letters and numbers, but for those of torch itself."""
    names = trace.events["name"].astype(object).to_numpy().copy()
    rows = trace.rows("module")
    letters: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for row in rows.tolist():
        path, kind = split_range_name(str(names[row]))
        if not hasattr(torch.nn, kind):
            kind = kinds.setdefault(kind, f"Part{len(kinds)}")
        names[row] = f"module::{_nameless(path, letters)}::{kind}"
    events = trace.events.assign(name=pd.Categorical(names))
    tables = {name: table for name, table in trace.tables.items() if name != "model_modules"}
    return replace(trace, events=events, tables=tables)


def _nameless(path: str, letters: dict[str, list[str]]) -> str:
    words, so_far = [], ""
    for word in path.split(".") if path else []:
        beside = letters.setdefault(so_far, [])
        if word not in beside:
            beside.append(word)
        words.append(word if word.isdigit() else f"p{beside.index(word)}")
        so_far = f"{so_far}.{word}"
    return ".".join(words)
