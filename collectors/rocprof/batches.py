"""What was read of a process, batch by batch, and how the processes of a recording are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.collectors.batches import Batch, Ints, narrowed, tables_of
from tracer.events import NONE, SIDE_TABLES, make_table

_WIDTHS = (np.uint8, np.uint16, np.uint32)
_FEW = 1 << 16  # values that are counted sooner than sorted

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Texts:
    """A column of texts: codes into distinct values."""

    codes: NDArray[np.int32]
    values: list[str]

    @staticmethod
    def of(texts: Iterable[str]) -> Texts:
        """The column that holds these texts."""
        codes: dict[str, int] = {}
        column = [codes.setdefault(text, len(codes)) for text in texts]
        return Texts(np.array(column, dtype=np.int32), list(codes))

    @staticmethod
    def alike(text: str, length: int) -> Texts:
        """A column that says the same in every row."""
        return Texts(np.broadcast_to(np.int32(0), length), [text])

    def __getitem__(self, rows: Any) -> Texts:
        return Texts(self.codes[rows], self.values)

    def said(self) -> list[str]:
        """The different texts."""
        return [self.values[code] for code in distinct_of(self.codes)[0]]

    def rows_of(self, wanted: Callable[[str], bool]) -> Ints:
        """The rows with texts that are wanted."""
        passes = np.array([wanted(value) for value in self.values], dtype=bool)
        return np.flatnonzero(passes[self.codes]) if passes.any() else np.empty(0, dtype=np.int64)

    def listed(self) -> list[str]:
        """The text of each row."""
        return [self.values[code] for code in self.codes.tolist()]

    def used(self) -> Texts:
        """The same column without values that no row has."""
        distinct, codes = distinct_of(self.codes)
        return Texts(codes.astype(np.int32), [self.values[code] for code in distinct])


def joined_texts(columns: Sequence[Texts]) -> Texts:
    """The texts of several columns, one behind the other."""
    codes: dict[str, int] = {}
    parts: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    for column in columns:
        recode = [codes.setdefault(value, len(codes)) for value in column.values]
        parts.append(np.array(recode, dtype=np.int32)[column.codes])
    return Texts(np.concatenate(parts), list(codes))


class Packed(NamedTuple):
    """Numbers in as few bytes as they differ by."""

    least: int
    above: NDArray[Any]

    @staticmethod
    def of(values: Ints) -> Packed:
        """These numbers."""
        least, most = (int(values.min()), int(values.max())) if values.size else (0, 0)
        if least == most:
            return Packed(least, np.broadcast_to(np.uint8(0), values.shape))
        for width in _WIDTHS:
            if most - least <= np.iinfo(width).max:
                return Packed(least, (values - least).astype(width))
        return Packed(0, values)

    def values(self) -> Ints:
        """The numbers."""
        return self.above.astype(np.int64) + self.least


def distinct_of(values: NDArray[np.signedinteger[Any]]) -> tuple[list[int], Ints]:
    """The distinct values in order, and the place of each value among them."""
    least, most = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if most - least >= _FEW:
        distinct, place = np.unique(values, return_inverse=True)
        return distinct.tolist(), place
    above = values.astype(np.int64, copy=False) - least
    present = np.zeros(most - least + 1, dtype=bool)
    present[above] = True
    place = np.cumsum(present) - 1
    return (np.flatnonzero(present) + least).tolist(), place[above]


def long_of(number: int) -> int:
    """A number of 64 bits without a sign as one with a sign: the largest of all is -1, none."""
    number &= (1 << 64) - 1
    return number if number < 1 << 63 else number - (1 << 64)


@dataclass(frozen=True)
class Times:
    """When rows began and ended."""

    start_ns: Ints
    end_ns: Ints

    def known(self) -> NDArray[np.bool_]:
        """Rows whose times are times."""
        known: NDArray[np.bool_] = (self.start_ns > 0) & (self.end_ns >= self.start_ns)
        return known


@dataclass
class Process:
    """What was read of one process. `pid`: -1 where nothing says it. The threads of its batches are
    numbered as the system does. `timeless`: rows left out because they have no times."""

    pid: int = NONE
    batches: list[Batch] = field(default_factory=list)
    timeless: int = 0

    def add(
        self,
        kind: str,
        names: Texts,
        times: Times,
        columns: Mapping[str, Ints],
        sides: Mapping[str, Columns] | None = None,
    ) -> None:
        """Rows of one kind; `sides` describe all of them."""
        known = times.known()
        rows: Any = slice(None) if known.all() else np.flatnonzero(known)
        self.timeless += int(np.count_nonzero(~known))
        if not known.any():
            return
        kept = names[rows].used()
        start = times.start_ns[rows]
        self.batches.append(
            Batch(
                kind,
                start,
                narrowed(times.end_ns[rows] - start),
                narrowed(kept.codes),
                kept.values,
                _of_rows(rows, columns),
                {table: _of_rows(rows, described) for table, described in (sides or {}).items()},
            )
        )

    def devices(self) -> set[int]:
        """The devices that its kernels ran on."""
        ran = [batch.columns["device"] for batch in self.batches if batch.kind == "kernel"]
        return {device for column in ran for device in np.unique(column).tolist()}


def _of_rows(rows: Any, columns: Columns) -> Columns:
    chosen = {name: values[rows] for name, values in columns.items()}
    return {n: narrowed(v) if v.dtype.kind == "i" else v for n, v in chosen.items()}


def join_processes(processes: Sequence[Process]) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Events and side tables of all processes. Correlations and streams of two of them are never
    the same."""
    threads: dict[tuple[int, int], int] = {}
    apart: list[Batch] = []
    above = {"correlation": 0, "stream": 0}
    for process in processes:
        moved = [_moved(batch, process.pid, threads, above) for batch in process.batches]
        above = {column: _above(moved, column, least) for column, least in above.items()}
        apart += moved
    events, sides = tables_of(apart)
    if threads:
        pids, tids = zip(*threads, strict=True)
        values = {"pid": pids, "tid": tids, "name": [""] * len(threads)}
        sides["threads"] = make_table(SIDE_TABLES["threads"], values)
    return events, sides


def _moved(
    batch: Batch, pid: int, threads: dict[tuple[int, int], int], above: Mapping[str, int]
) -> Batch:
    """The batch with rows of the table of threads, and links beyond those of other processes."""
    columns = {
        name: np.where(values == NONE, NONE, values + np.int64(above[name]))
        for name, values in batch.columns.items()
        if above.get(name)
    }
    columns = {**batch.columns, **columns}
    if "thread" in columns:
        distinct, place = distinct_of(columns["thread"])
        rows = [
            NONE if tid == NONE else threads.setdefault((pid, tid), len(threads))
            for tid in distinct
        ]
        columns["thread"] = narrowed(np.array(rows, dtype=np.int64)[place])
    return replace(batch, columns=columns)


def _above(batches: Sequence[Batch], column: str, least: int) -> int:
    largest = [int(b.columns[column].max()) for b in batches if column in b.columns]
    return max([least - 1, *largest]) + 1
