"""Columns that grow while a file is read, and the tables they become."""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.collectors.batches import sort_order
from tracer.collectors.kineto.fields import (
    CALLS,
    DEVICE_WAIT,
    EVENTS,
    PEER_SOURCE,
    PEER_TARGET,
    Family,
)
from tracer.collectors.kineto.names import (
    FRAMEWORK_RANGES,
    MODULE_PREFIX,
    OWN_PREFIX,
    UNNAMED_CALL,
    call_name,
    copy_kind,
    json_of,
    text_of,
)
from tracer.events import EVENTS as EVENT_COLUMNS
from tracer.events import KIND_CODE, NONE, SIDE_TABLES, WIDTHS, fits, make_table, text_column

Ints = NDArray[np.int64]
Column = tuple[str, str]  # table and column

_STORED: Mapping[str, str] = {**EVENT_COLUMNS, "kind": "int8", "name": "int32", "order": "int64"}
_ORDER = (EVENTS, "order")
_FIRST_ROWS, _MOST_ROWS = 1 << 12, 1 << 18
_NO_STREAM = 2**32 - 1  # -1 as the driver's unsigned number
_SENDING = ("send", "isend")


@dataclass
class Batch:
    """Events of one family that were read together. `columns` holds codes for texts; `only` says
    which rows of the batch a side table is about, where it is not about all of them. `order` is
    their order in the file."""

    family: Family
    order: Ints
    columns: dict[Column, NDArray[Any]] = field(default_factory=dict)
    only: dict[str, Ints] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.order)

    def tables(self) -> set[str]:
        """The side tables that this batch has rows for."""
        return {table for table, _ in self.columns if table != EVENTS} | {*self.family.always}


class Growing:
    """One column, in blocks that stay where they are: growing in place would leave holes as large
    as the column, and small pieces would need their memory twice when they are joined."""

    def __init__(self, form: str) -> None:
        self._width, *self._wider = WIDTHS.get(form, (form,))
        self._blocks: list[NDArray[Any]] = []
        self._room = 0  # free rows at the end of the last block

    def append(self, values: Any, rows: int) -> None:
        """Add `rows` values: an array, or one value for all of them."""
        self._make_fit(values)
        done = 0
        while done < rows:
            if not self._room:
                self._room = min(_FIRST_ROWS << len(self._blocks), _MOST_ROWS)
                self._blocks.append(_block(self._room, self._width))
            part = min(self._room, rows - done)
            begin = len(self._blocks[-1]) - self._room
            one = not isinstance(values, np.ndarray)
            self._blocks[-1][begin : begin + part] = values if one else values[done : done + part]
            self._room -= part
            done += part

    def values(self) -> NDArray[Any]:
        """All rows in one array, which is the column from now on."""
        if not self._blocks:
            return np.empty(0, dtype=self._width)
        last = self._blocks.pop()
        self._blocks.append(last[: len(last) - self._room])
        self._room = 0
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def put(self, rows: list[int], values: list[int]) -> None:
        """Replace the values of these rows."""
        new = np.array(values, dtype=np.int64)
        self._make_fit(new)
        self.values()[rows] = new

    def _make_fit(self, values: Any) -> None:
        """Take more bits for each value from the first on that needs them."""
        while self._wider and isinstance(values, np.ndarray) and not fits(values, self._width):
            self._width = self._wider.pop(0)
            self._blocks = [block.astype(self._width) for block in self._blocks]


def _block(rows: int, dtype: str) -> NDArray[Any]:
    """Memory straight from the system, which gets it back at once when the block is let go."""
    return np.frombuffer(mmap.mmap(-1, rows * np.dtype(dtype).itemsize), dtype=dtype)


class Texts:
    """The distinct texts of one column, as bytes of the file, each with its code."""

    def __init__(self) -> None:
        self.codes: dict[bytes, int] = {}

    def code(self, raw: bytes) -> int:
        return self.codes.setdefault(raw, len(self.codes))

    def encode(self, distinct: Sequence[bytes]) -> NDArray[np.int32]:
        """Their codes, in the same order."""
        setdefault, codes = self.codes.setdefault, self.codes
        return np.array([setdefault(raw, len(codes)) for raw in distinct], dtype=np.int32)


class Columns:
    """Everything read so far. `add` takes a batch, `tables` ends the growing."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: dict[Column, Growing] = {}
        self.texts: dict[Column, Texts] = defaultdict(Texts)
        self.threads: dict[tuple[int, int], int] = {}

    def add(self, batch: Batch) -> None:
        """Append a batch."""
        stored = self._event_columns(batch)
        for name in _STORED:
            self._append(EVENTS, name, stored.get(name, NONE), batch.rows)
        for table in batch.tables():
            if table != CALLS or self._has_unnamed(batch):
                self._add_side(table, batch)
        self.rows += batch.rows

    def _has_unnamed(self, batch: Batch) -> bool:
        unnamed = self.texts[EVENTS, "name"].codes.get(UNNAMED_CALL)
        return unnamed is not None and bool((batch.columns[EVENTS, "name"] == unnamed).any())

    def _append(self, table: str, column: str, values: Any, rows: int) -> None:
        grown = self.columns.get((table, column))
        if grown is None:
            grown = self.columns[table, column] = Growing(_form(table, column))
        grown.append(values, rows)

    def _event_columns(self, batch: Batch) -> dict[str, Any]:
        found: dict[str, Any] = {
            column: v for (table, column), v in batch.columns.items() if table == EVENTS
        }
        found["kind"], found["order"] = KIND_CODE[batch.family.kind], batch.order
        if batch.family.place == "thread":
            found["thread"] = self.thread_codes(found.pop("pid"), found.pop("tid"))
        elif batch.family.place == "ids":
            found["device"], found["stream"] = found.pop("pid"), found.pop("tid")
        elif batch.family is DEVICE_WAIT:
            found["stream"] = np.where(found["stream"] == _NO_STREAM, NONE, found["stream"])
        return found

    def thread_codes(self, pids: Ints, tids: Ints) -> NDArray[np.int32]:
        """The row of `threads` for each pair; few threads, so one pass for each."""
        codes = np.empty(len(pids), dtype=np.int32)
        left = np.arange(len(pids))
        while len(left):
            pid, tid = int(pids[left[0]]), int(tids[left[0]])
            same = (pids[left] == pid) & (tids[left] == tid)
            codes[left[same]] = self.threads.setdefault((pid, tid), len(self.threads))
            left = left[~same]
        return codes

    def _add_side(self, table: str, batch: Batch) -> None:
        rows = batch.only.get(table)
        events = (np.arange(batch.rows) if rows is None else rows) + self.rows
        for column in _columns_of(table):
            values: Any = batch.columns.get((table, column))
            if column == "event":
                values = events
            elif values is None:
                values = self._default(table, column)
            self._append(table, column, values, len(events))

    def _default(self, table: str, column: str) -> int:
        text = SIDE_TABLES.get(table, {}).get(column) == "text"
        return self.texts[table, column].code(b"") if text else NONE

    def has(self, table: str) -> bool:
        """Whether that side table got a row."""
        return (table, "event") in self.columns

    def view(self, table: str, column: str) -> NDArray[Any]:
        """The column as it is kept; what is written into it is written there."""
        return self.columns[table, column].values()

    def put(self, table: str, column: str, rows: list[int], values: list[int]) -> None:
        """Replace the values of these rows."""
        self.columns[table, column].put(rows, values)

    def take(self, table: str, column: str) -> NDArray[Any]:
        """The column, which is not kept any more."""
        return self.columns.pop((table, column)).values()

    def merge(self, other: Columns) -> None:
        """Append what another reader got from a later part of the same file."""
        names = {key: texts.codes for key, texts in other.texts.items()}
        recode = {key: self.texts[key].encode(list(codes)) for key, codes in names.items()}
        threads = [self.threads.setdefault(key, len(self.threads)) for key in other.threads]
        # Index -1, no thread, finds the last element.
        recode[EVENTS, "thread"] = np.array([*threads, NONE], dtype=np.int32)
        next_order = 1 + int(self.view(*_ORDER).max()) if self.rows else 0
        for key in list(other.columns):
            values = other.take(*key)
            if key in recode:
                values = recode[key][values]
            elif key[1] == "event":
                values = values + self.rows
            elif key == _ORDER:
                values = values + next_order
            self._append(*key, values, len(values))
        self.rows += other.rows


def _form(table: str, column: str) -> str:
    """How a column is kept while it grows."""
    if table == EVENTS:
        return _STORED[column]
    form = SIDE_TABLES.get(table, {}).get(column, "int64")
    return "int32" if form == "text" else form


def _columns_of(table: str) -> tuple[str, ...]:
    if table == CALLS:
        return ("event", "cbid")
    columns = tuple(SIDE_TABLES[table])
    # The peer is folded from its two ends when reading is done.
    return (*columns, PEER_SOURCE, PEER_TARGET) if table == "collectives" else columns


@dataclass(frozen=True)
class Tables:
    """What `finish` makes of the columns."""

    events: pd.DataFrame
    sides: dict[str, pd.DataFrame]


def finish(columns: Columns, origin_ns: int) -> Tables:
    """Sort the events by start, longer first, and key the side tables by their new rows."""
    _name_calls(columns)
    _mark_own(columns)
    _mark_ranges(columns)
    times = columns.view(EVENTS, "start_ns"), columns.view(EVENTS, "duration_ns")
    order = sort_order(*times, columns.take(*_ORDER))
    values: dict[str, Any] = {}
    for column in EVENT_COLUMNS:
        values[column] = columns.take(EVENTS, column)[order]
    values["start_ns"] += np.int64(origin_ns)
    texts, recode = _distinct(columns.texts[EVENTS, "name"], text_of)
    values["name"] = text_column(recode[values["name"]], texts)
    events = make_table(EVENT_COLUMNS, values)
    return Tables(events, _side_tables(columns, order, events))


def _name_calls(columns: Columns) -> None:
    """Calls that Kineto had no name for get theirs from their callback id."""
    if not columns.has(CALLS):
        return
    rows, callbacks = columns.take(CALLS, "event"), columns.take(CALLS, "cbid")
    texts = columns.texts[EVENTS, "name"]
    unnamed = texts.codes.get(UNNAMED_CALL)
    if unnamed is None:
        return
    names = columns.view(EVENTS, "name")
    wanted = names[rows] == unnamed
    rows, callbacks = rows[wanted], callbacks[wanted]
    for callback in np.unique(callbacks):
        known = call_name(int(callback))
        if known is not None:
            names[rows[callbacks == callback]] = texts.code(known)


def _mark_own(columns: Columns) -> None:
    """Ranges that our hooks wrote, whatever their category: one around a module's call is a module,
    one around what the recording itself does is its cost, and no work of the thread."""
    modules, own = _ranges_named(columns, MODULE_PREFIX), _ranges_named(columns, OWN_PREFIX)
    kinds = columns.view(EVENTS, "kind")
    kinds[modules] = KIND_CODE["module"]
    kinds[own] = KIND_CODE["overhead"]
    columns.view(EVENTS, "thread")[own] = NONE


def _ranges_named(columns: Columns, prefix: bytes) -> NDArray[np.bool_]:
    """Which events are ranges whose names begin so."""
    texts = columns.texts[EVENTS, "name"].codes
    named = np.array([raw.startswith(prefix) for raw in texts], dtype=bool)
    kinds, names = columns.view(EVENTS, "kind"), columns.view(EVENTS, "name")
    if not named.any():
        return np.zeros(kinds.size, dtype=bool)
    ranges = (kinds == KIND_CODE["operator"]) | (kinds == KIND_CODE["annotation"])
    found: NDArray[np.bool_] = ranges & named[names]
    return found


def _mark_ranges(columns: Columns) -> None:
    """Files of 2021 have no category for ranges: those that PyTorch writes around steps, loaders
    and optimizers stand there as operators, and what lies in them would be theirs."""
    texts = columns.texts[EVENTS, "name"].codes
    is_range = np.array([raw.startswith(FRAMEWORK_RANGES) for raw in texts], dtype=bool)
    if is_range.any():
        kinds, names = columns.view(EVENTS, "kind"), columns.view(EVENTS, "name")
        operators = kinds == KIND_CODE["operator"]
        kinds[operators & is_range[names]] = KIND_CODE["annotation"]


def _distinct(texts: Texts, read: Callable[[bytes], str]) -> tuple[list[str], NDArray[np.int32]]:
    """The readable texts, each once, and the code of each raw one among them."""
    codes: dict[str, int] = {}
    recode = [codes.setdefault(read(raw), len(codes)) for raw in texts.codes]
    return list(codes), np.array(recode, dtype=np.int32)


def _side_tables(columns: Columns, order: Ints, events: pd.DataFrame) -> dict[str, pd.DataFrame]:
    moved_to = np.empty_like(order)
    moved_to[order] = np.arange(len(order))
    sides = {}
    for table in SIDE_TABLES:
        if columns.has(table):
            rows = moved_to[columns.take(table, "event")]
            sides[table] = _side_table(columns, table, rows, events)
    return {name: table for name, table in sides.items() if len(table)}


def _side_table(columns: Columns, table: str, rows: Ints, events: pd.DataFrame) -> pd.DataFrame:
    by_event = np.argsort(rows, kind="stable")
    values: dict[str, Any] = {"event": rows[by_event]}
    for column, form in SIDE_TABLES[table].items():
        if column == "event":
            continue
        taken = columns.take(table, column)[by_event]
        raw_texts = columns.texts[table, column]
        values[column] = _text(raw_texts, taken) if form == "text" else taken
    fold = _FOLDS.get(table)
    if fold is not None:
        values = fold(columns, values, by_event, events)
    return make_table(SIDE_TABLES[table], values)


def _text(texts: Texts, codes: NDArray[Any]) -> Any:
    values, recode = _distinct(texts, _any_text)
    return text_column(recode[codes], values)


def _any_text(raw: bytes) -> str:
    return json_of(raw) if raw[:1] in (b"[", b'"') else text_of(raw)


Values = dict[str, Any]


def _fold_copies(_c: Columns, values: Values, _order: Ints, events: pd.DataFrame) -> Values:
    """Direction, source and target stand in the name."""
    names = events["name"].cat.codes.to_numpy()[values["event"]]
    distinct, inverse = np.unique(names, return_inverse=True)
    kinds = [copy_kind(str(events["name"].cat.categories[code])) for code in distinct]
    for column in ("direction", "source", "target"):
        words = [getattr(kind, column) for kind in kinds]
        values[column] = pd.Categorical(np.array(words, dtype=object)[inverse])
    return values


def _fold_peer(columns: Columns, values: Values, order: Ints, _e: pd.DataFrame) -> Values:
    """The other rank of a send is its target, of a receive its source."""
    source = columns.take("collectives", PEER_SOURCE)[order]
    target = columns.take("collectives", PEER_TARGET)[order]
    sends = np.isin(np.asarray(values["op"], dtype=object), _SENDING)
    values["peer"] = np.where(sends, target, source)
    return values


def _fold_graph_nodes(_c: Columns, values: Values, _o: Ints, _e: pd.DataFrame) -> Values:
    """Work outside a graph carries graph 0, node 0."""
    inside = (values["graph"] > 0) | (values["node"] > 0)
    return {column: taken[inside] for column, taken in values.items()}


def _fold_waits(_c: Columns, values: Values, _o: Ints, _e: pd.DataFrame) -> Values:
    on = values["on_stream"]
    values["on_stream"] = np.where(on == _NO_STREAM, NONE, on)
    return values


def _fold_unfinished(_c: Columns, values: Values, _o: Ints, _e: pd.DataFrame) -> Values:
    """Some versions say of each range that it had ended."""
    still_open = values["finished"] == "false"
    return {column: taken[still_open] for column, taken in values.items()}


_FOLDS: Mapping[str, Callable[[Columns, Values, Ints, pd.DataFrame], Values]] = {
    "copies": _fold_copies,
    "collectives": _fold_peer,
    "graph_nodes": _fold_graph_nodes,
    "unfinished": _fold_unfinished,
    "waits": _fold_waits,
}
