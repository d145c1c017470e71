"""The tables that rocprofv3 writes as CSV: what each is, judged by its columns, and its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as arrow_csv

from tracer.collectors.batches import Ints
from tracer.collectors.kineto.stream import open_source
from tracer.collectors.rocprof.batches import Packed, Texts, distinct_of, joined_texts, long_of
from tracer.collectors.rocprof.content import Content, Progress, read_content
from tracer.collectors.rocprof.csv_lines import (
    LONGEST_ROW,
    WholeLines,
    columns_of,
    is_whole,
)
from tracer.collectors.rocprof.json_text import readable
from tracer.collectors.rocprof.words import words_of
from tracer.events import NONE

KERNELS, CALLS, COPIES, ALLOCATIONS = "kernels", "calls", "copies", "allocations"
SCRATCH, AGENTS, COUNTERS = "scratch", "agents", "counters"
# What a recording can be made of, the plainest first.
TIMELINES = (KERNELS, CALLS, COPIES, ALLOCATIONS, SCRATCH)
_TIMES = ("Start_Timestamp", "End_Timestamp")
# A table is of the first kind whose columns it has.
_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    (COUNTERS, frozenset({"Counter_Name", "Counter_Value"})),
    (KERNELS, frozenset({"Kernel_Name", *_TIMES})),
    (CALLS, frozenset({"Function", *_TIMES})),
    (COPIES, frozenset({"Direction", *_TIMES})),
    (ALLOCATIONS, frozenset({"Operation", "Address", *_TIMES})),
    (SCRATCH, frozenset({"Operation", *_TIMES})),
    (AGENTS, frozenset({"Node_Id", "Agent_Type"})),
)
_TEXTS = words_of(
    "Agent_Id Source_Agent_Id Destination_Agent_Id Kernel_Name Domain Function Direction "
    "Operation Address Guid Agent_Type Name Product_Name"
)
_NUMBERS = words_of(
    "Process_Id Thread_Id Queue_Id Stream_Id Dispatch_Id Correlation_Id Start_Timestamp "
    "End_Timestamp "
    "LDS_Block_Size Group_Segment_Size VGPR_Count Allocation_Size Workgroup_Size_X "
    "Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z Node_Id "
    "Logical_Node_Id Cu_Count Gfx_Target_Version Local_Mem_Size"
)
_WANTED = _TEXTS | _NUMBERS
_CODED = pa.dictionary(pa.int32(), pa.string())
_FEW_PARTS = 8
_DIGITS = re.compile(r"\d+")


def kind_of(columns: Sequence[str]) -> str | None:
    """What a table with these columns holds; None for one that is not of rocprofv3."""
    return next((kind for kind, needed in _KINDS if needed <= set(columns)), None)


@dataclass(frozen=True)
class Part:
    """Rows that stand one behind the other."""

    rows: int
    numbers: Mapping[str, Packed]
    texts: Mapping[str, Texts]

    def chosen(self, rows: Ints) -> Part:
        """Some of these rows."""
        numbers = {name: Packed.of(found.values()[rows]) for name, found in self.numbers.items()}
        return Part(rows.size, numbers, {name: found[rows] for name, found in self.texts.items()})


@dataclass(frozen=True)
class Table:
    """The rows of one file. `lost`: rows left out because they could not be read."""

    kind: str
    parts: Sequence[Part]
    lost: int = 0
    cut: bool = False

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    def has(self, name: str) -> bool:
        """Whether there are texts in a column of this name."""
        return all(name in part.texts for part in self.parts)

    def in_parts(self) -> Iterator[Table]:
        """The rows of the table in tables that take little memory."""
        for begin in range(0, len(self.parts), _FEW_PARTS):
            yield Table(self.kind, self.parts[begin : begin + _FEW_PARTS])

    def numbers(self, *names: str) -> Ints:
        """The first of these columns that there is; -1 where none is."""
        columns = [_numbers(part, names) for part in self.parts]
        return np.concatenate([np.empty(0, dtype=np.int64), *columns])

    def texts(self, name: str) -> Texts:
        """A column of texts; "" where it is absent."""
        return joined_texts(
            [part.texts.get(name, Texts.alike("", part.rows)) for part in self.parts]
        )

    def distinct(self, name: str) -> list[int]:
        """The different numbers of a column; none where it is absent."""
        found = {
            number for part in self.parts for number in distinct_of(_numbers(part, (name,)))[0]
        }
        return sorted(found - {NONE})

    def chosen(self, column: str, value: str) -> Table:
        """The rows that say this in a column."""
        parts = [part.chosen(_saying(part.texts[column], value)) for part in self.parts]
        return Table(self.kind, [part for part in parts if part.rows])


def _numbers(part: Part, names: Sequence[str]) -> Ints:
    for name in names:
        if name in part.numbers:
            return part.numbers[name].values()
    return np.full(part.rows, NONE, dtype=np.int64)


def _saying(texts: Texts, value: str) -> Ints:
    codes = [code for code, text in enumerate(texts.values) if text == value]
    return np.flatnonzero(np.isin(texts.codes, codes))


def may_be_of_one_process(one: Table, other: Table) -> bool:
    """Whether two tables share a process, or a thread where only one names its process. Those that
    name neither may."""
    for column in ("Process_Id", "Thread_Id"):
        mine, theirs = one.distinct(column), other.distinct(column)
        if mine and theirs:
            return not set(mine).isdisjoint(theirs)
    return True


def read_table(path: str | PathLike[str], progress: Progress | None = None) -> Table:
    """The rows of a table of rocprofv3. Of a cut file the last line is left out."""
    try:
        return _read_along(path, progress)
    except ValueError:  # of pyarrow too
        return table_of(read_content(path, progress))


def _read_along(path: str | PathLike[str], progress: Progress | None) -> Table:
    """The table of a file in which all is as it should be, read in parts. Raises ValueError where
    it is not."""
    with open_source(path) as (source, size):
        after_read = None if progress is None else lambda: progress(source.position(), size)
        lines = WholeLines(source, after_read)
        layout = _Layout(lines.head)
        parts = [_part_of(layout.read(block, pa.int64())) for block in lines.blocks()]
    if layout.wrong:  # quotes that do not match: where lines end is known from all of the text
        raise ValueError("rows of another width")
    return Table(layout.kind, [part for part in parts if part.rows], 0, lines.cut)


def table_of(content: Content) -> Table:
    """The table of a file that is read already. Numbers that are none are unknown; rows without
    times are left out."""
    text, cut = _whole_lines(content)
    head, _, lines = readable(text).partition(b"\n")
    layout = _Layout(head)
    if not lines:
        return Table(layout.kind, [], 0, cut)
    try:
        found = layout.read(lines, pa.int64())
        lost = layout.wrong
    except pa.ArrowInvalid:
        layout = _Layout(head)
        texts = layout.read(lines, pa.string())
        found = _with_numbers(texts)
        lost = layout.wrong + len(texts) - len(found)
    part = _part_of(found)
    return Table(layout.kind, [part] if part.rows else [], lost, cut)


def _whole_lines(content: Content) -> tuple[bytes, bool]:
    """The text without a last line that ends before its last column."""
    head, newline, last = content.text.rpartition(b"\n")
    if not newline or not last:
        return content.text, content.cut
    whole = is_whole(last, head, cut=content.cut)
    return (content.text, False) if whole else (head + newline, True)


class _Layout:
    """How a file with this header is to be read. `wrong`: rows with more or fewer fields than it,
    which are left out."""

    def __init__(self, head: bytes) -> None:
        names = columns_of(head)
        kind = kind_of(names)
        if kind is None:
            raise ValueError("no table of rocprofv3")
        self.kind = kind
        # A second column of a name is another one.
        self._names = [n if n not in names[:at] else f"{n} {at}" for at, n in enumerate(names)]
        self.wrong = 0

    def read(self, lines: bytes, number: Any) -> pa.Table:
        """The columns that are known, numbers as this type."""
        present = [name for name in self._names if name in _WANTED]
        return arrow_csv.read_csv(
            pa.BufferReader(lines),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=LONGEST_ROW, column_names=self._names
            ),
            arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=self._skip),
            arrow_csv.ConvertOptions(
                column_types={name: _CODED if name in _TEXTS else number for name in present},
                include_columns=present,
                strings_can_be_null=False,
                null_values=[],
            ),
        )

    def _skip(self, _row: Any) -> str:
        self.wrong += 1
        return "skip"


def _part_of(table: pa.Table) -> Part:
    table = table.unify_dictionaries().combine_chunks()
    numbers: dict[str, Packed] = {}
    texts: dict[str, Texts] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in _TEXTS:
            coded = column.combine_chunks()
            texts[name] = Texts.of(coded.dictionary.to_pylist())[coded.indices.to_numpy()]
        else:
            numbers[name] = Packed.of(column.to_numpy())
    return Part(table.num_rows, numbers, texts)


def _with_numbers(table: pa.Table) -> pa.Table:
    """The rows whose times are numbers; other numbers that are none become -1."""
    numbers = [name for name in table.column_names if name in _NUMBERS]
    for name in sorted(numbers, key=_TIMES.__contains__, reverse=True):
        plain = compute.MatchSubstringOptions(r"^\d{1,18}$")
        digits = compute.call_function("match_substring_regex", [table[name]], plain)
        if name in _TIMES:
            table, digits = table.filter(digits), digits.filter(digits)
        chosen = [digits, table[name], pa.scalar(str(NONE))]
        values = compute.call_function("if_else", chosen).cast(pa.int64())
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def label_number(label: str) -> int:
    """The number in "Agent 4", "GPU 0" or "4"; -1 for none."""
    found = _DIGITS.search(label)
    return NONE if found is None else int(found.group(0))


def hexadecimal(text: str) -> int:
    """A number of 64 bits written as 0x…; -1 for what is none."""
    try:
        number = int(text, 0)
    except ValueError:
        return NONE
    return long_of(number)
