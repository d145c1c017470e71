"""Batches of events of one kind, as a reader finds them, and the tables they become together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.events import EVENTS, KIND_CODE, NONE, SIDE_TABLES, make_table, text_column

Ints = NDArray[np.int64]
Tables = dict[str, pd.DataFrame]

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
    order = np.lexsort((-duration, start))
    values: dict[str, Any] = {"start_ns": start[order], "duration_ns": duration[order]}
    kinds = [np.full(batch.rows, KIND_CODE[batch.kind], dtype=np.int8) for batch in held]
    values["kind"] = np.concatenate([*kinds, np.empty(0, dtype=np.int8)])[order]
    values["name"] = _names(held, order)
    for column in _FREE:
        values[column] = _joined([_column(batch, column) for batch in held])[order]
    moved_to = np.empty_like(order)
    moved_to[order] = np.arange(order.size)
    return make_table(EVENTS, values), _sides(held, moved_to)


def _joined(parts: Sequence[NDArray[Any]]) -> Ints:
    joined: Ints = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    return joined.astype(np.int64, copy=False)


def _column(batch: Batch, column: str) -> NDArray[Any]:
    found = batch.columns.get(column)
    return np.full(batch.rows, NONE, dtype=np.int64) if found is None else found


def _names(batches: Sequence[Batch], order: Ints) -> Any:
    codes: dict[str, int] = {}
    parts = []
    for batch in batches:
        recode = [codes.setdefault(name, len(codes)) for name in batch.names]
        parts.append(np.array(recode, dtype=np.int64)[batch.codes])
    return text_column(_joined(parts)[order], list(codes))


def _sides(batches: Sequence[Batch], moved_to: Ints) -> Tables:
    parts: dict[str, list[pd.DataFrame]] = {}
    first = 0
    for batch in batches:
        for table, columns in batch.sides.items():
            rows = np.asarray(columns.get("event", np.arange(batch.rows)), dtype=np.int64)
            if rows.size:
                values = {**columns, "event": moved_to[rows + first]}
                parts.setdefault(table, []).append(pd.DataFrame(values))
        first += batch.rows
    return {table: _side(table, found) for table, found in parts.items()}


def _side(table: str, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all batches, by event."""
    found = pd.concat(parts, ignore_index=True).sort_values("event", kind="stable")
    columns = SIDE_TABLES[table]
    values: dict[str, Any] = {}
    for column in found.columns:
        texts = columns[column] == "text"
        values[column] = found[column].fillna("").to_list() if texts else found[column].to_numpy()
    return make_table(columns, values)
