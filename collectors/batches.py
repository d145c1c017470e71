"""Batches of events of one kind, as a reader finds them, and the tables they become together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.events import EVENTS, KIND_CODE, NONE, SIDE_TABLES, fits, make_table, text_column

Ints = NDArray[np.int64]
Tables = dict[str, pd.DataFrame]

_WIDTHS = ("int8", "int16", "int32")
_FREE = ("thread", "device", "stream", "correlation", "external_id")


@dataclass(frozen=True)
class Batch:
    """Events of one kind. `names[codes[i]]` is the name of event i; columns that are absent hold
    -1. `sides`: side table -> its columns, aligned with the events named in its "event" column
    (rows of this batch), or with all of them where it has none."""

    kind: str
    start_ns: Ints
    duration_ns: Ints
    codes: NDArray[Any]
    names: Sequence[str]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.start_ns)


def tables_of(batches: Iterable[Batch]) -> tuple[pd.DataFrame, Tables]:
    """The events of all batches, by start and then the longer first, and the side tables."""
    held = [batch for batch in batches if batch.rows]
    start = _joined([batch.start_ns for batch in held])
    duration = _joined([batch.duration_ns for batch in held])
    order = sort_order(start, duration)
    values: dict[str, Any] = {"start_ns": start[order], "duration_ns": duration[order]}
    kinds = [np.full(batch.rows, KIND_CODE[batch.kind], dtype=np.int8) for batch in held]
    values["kind"] = np.concatenate([*kinds, np.empty(0, dtype=np.int8)])[order]
    values["name"] = _names(held, order)
    for column in _FREE:
        values[column] = _joined([_column(batch, column) for batch in held])[order]
    moved_to = np.empty_like(order)
    moved_to[order] = np.arange(order.size)
    return make_table(EVENTS, values), _sides(held, moved_to)


def narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in as little memory as they need."""
    if not values.size:
        return values
    least, most = values.min(), values.max()
    width = next((w for w in _WIDTHS if fits(np.array([least, most]), w)), "int64")
    if least == most:
        return np.broadcast_to(least.astype(width), values.shape)
    return values.astype(width, copy=False)


def sort_order(starts: Ints, durations: NDArray[Any], order: Ints | None = None) -> Ints:
    """Rows by start, then the longer first, then by `order` or as they stand. Few starts are
    shared, so only those are compared further."""
    rows: Ints = np.argsort(starts, kind="stable")
    sorted_starts = starts[rows]
    tied = np.zeros(len(rows) + 1, dtype=bool)
    np.equal(sorted_starts[1:], sorted_starts[:-1], out=tied[1:-1])
    among = np.flatnonzero(tied[1:] | tied[:-1])
    some = rows[among]
    last = some if order is None else order[some]
    rows[among] = some[np.lexsort((last, -durations[some], starts[some]))]
    return rows


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=np.int8), *parts])


def _column(batch: Batch, column: str) -> NDArray[Any]:
    found = batch.columns.get(column)
    return np.full(batch.rows, NONE, dtype=np.int8) if found is None else found


def _names(batches: Sequence[Batch], order: Ints) -> Any:
    codes: dict[str, int] = {}
    parts = []
    for batch in batches:
        recode = [codes.setdefault(name, len(codes)) for name in batch.names]
        parts.append(np.array(recode, dtype=np.int32)[batch.codes])
    return text_column(_joined(parts)[order], list(codes))


def _sides(batches: Sequence[Batch], moved_to: Ints) -> Tables:
    parts: dict[str, list[Mapping[str, Any]]] = {}
    first = 0
    for batch in batches:
        for table, columns in batch.sides.items():
            rows = np.asarray(columns.get("event", np.arange(batch.rows)), dtype=np.int64)
            if rows.size:
                values = {**columns, "event": moved_to[rows + first]}
                parts.setdefault(table, []).append(values)
        first += batch.rows
    return {table: _side(table, found) for table, found in parts.items()}


def _side(table: str, parts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of all batches, by event."""
    if len({frozenset(part) for part in parts}) > 1:
        joined = pd.concat(list(map(pd.DataFrame, parts)), ignore_index=True)
        parts = [{column: joined[column].to_numpy() for column in joined.columns}]
    rows = np.concatenate([part["event"] for part in parts])
    order = np.argsort(rows, kind="stable")
    columns = SIDE_TABLES[table]
    values: dict[str, Any] = {"event": rows[order]}
    for column in parts[0].keys() - {"event"}:
        found = np.concatenate([np.asarray(part[column]) for part in parts])[order]
        values[column] = pd.Series(found).fillna("") if columns[column] == "text" else found
    return make_table(columns, values)
