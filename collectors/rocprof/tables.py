"""The tables that rocprofv3 writes as CSV: what each is, judged by its columns, and its rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.batches import Texts, long_of
from tracer.collectors.rocprof.content import Content
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
_BLOCK_BYTES = 16 << 20  # no row is longer
_DIGITS = re.compile(r"\d+")


def columns_of(head: bytes) -> list[str]:
    """The columns that the first line of a file names."""
    end = head.find(b"\n")
    line = head[: end if end >= 0 else None].decode("utf-8-sig", "replace").strip()
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []


def kind_of(columns: Sequence[str]) -> str | None:
    """What a table with these columns holds; None for one that is not of rocprofv3."""
    return next((kind for kind, needed in _KINDS if needed <= set(columns)), None)


@dataclass(frozen=True)
class Table:
    """The rows of one file. `lost`: rows left out because they could not be read."""

    kind: str
    rows: pd.DataFrame
    lost: int = 0
    cut: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def numbers(self, *names: str) -> Ints:
        """The first of these columns that there is; -1 where none is."""
        for name in names:
            if name in self.rows:
                return self.rows[name].to_numpy(dtype=np.int64)
        return np.full(len(self.rows), NONE, dtype=np.int64)

    def texts(self, name: str) -> Texts:
        """A column of texts; "" where it is absent."""
        if name not in self.rows:
            return Texts.alike("", len(self.rows))
        column = self.rows[name].astype("category").cat
        values = [str(value) for value in column.categories]
        codes = column.codes.to_numpy().astype(np.int32)
        return Texts(np.where(codes < 0, len(values), codes).astype(np.int32), [*values, ""])

    def distinct(self, name: str) -> list[int]:
        """The different numbers of a column; none where it is absent."""
        found: list[int] = np.unique(self.numbers(name)).tolist()
        return [number for number in found if number != NONE]

    def chosen(self, column: str, value: str) -> Table:
        """The rows that say this in a column."""
        return Table(self.kind, self.rows[self.rows[column].astype(str) == value], 0, False)


def may_be_of_one_process(one: Table, other: Table) -> bool:
    """Whether two tables share a process, or a thread where only one names its process. Those that
    name neither may."""
    for column in ("Process_Id", "Thread_Id"):
        mine, theirs = one.distinct(column), other.distinct(column)
        if mine and theirs:
            return not set(mine).isdisjoint(theirs)
    return True


def read_table(content: Content) -> Table:
    """The rows of a table of rocprofv3. Of a cut file the last line is left out."""
    text, cut = _whole_lines(content)
    kind = kind_of(columns_of(text))
    if kind is None:
        raise ValueError("no table of rocprofv3")
    wrong: list[int] = []
    try:
        rows = _parsed(text, pa.int64(), wrong)
    except pa.ArrowInvalid:
        wrong.clear()
        found = _parsed(text, pa.string(), wrong)
        rows = _with_numbers(found)
        wrong += [0] * (len(found) - len(rows))
    return Table(kind, rows, len(wrong), cut)


def _whole_lines(content: Content) -> tuple[bytes, bool]:
    """The text without a last line that ends before its last column."""
    text = content.text
    head, newline, last = text.rpartition(b"\n")
    if not newline or not last:
        return text, content.cut
    fields = next(csv.reader([last.decode("utf-8", "replace")]), [])
    short = len(fields) < len(columns_of(text)) or last.count(b'"') % 2 == 1
    if not short and not content.cut:
        return text, False
    return head + b"\n", True


def _parsed(text: bytes, number: Any, wrong: list[int]) -> pd.DataFrame:
    """The columns that are known. Rows with more or fewer fields than the header are left out and
    counted."""

    def skipped(row: Any) -> str:
        wrong.append(row.actual_columns)
        return "skip"

    names = columns_of(text)
    # A second column of a name is another one.
    names = [name if name not in names[:at] else f"{name} {at}" for at, name in enumerate(names)]
    present = [name for name in names if name in _WANTED]
    kinds = {name: _CODED if name in _TEXTS else number for name in present}
    parsing = arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skipped)
    converting = arrow_csv.ConvertOptions(
        column_types=kinds, include_columns=present, strings_can_be_null=False, null_values=[]
    )
    reading = arrow_csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=names, skip_rows=1)
    header = text.find(b"\n")
    if header in (NONE, len(text) - 1):
        return pd.DataFrame({name: [] for name in present})
    found = arrow_csv.read_csv(BytesIO(readable(text)), reading, parsing, converting)
    table: pd.DataFrame = found.to_pandas()
    return table


def _with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows whose times are numbers; other numbers that are none become -1."""
    numbers = [str(name) for name in table.columns if name in _NUMBERS]
    for name in sorted(numbers, key=_TIMES.__contains__, reverse=True):
        digits = table[name].str.fullmatch(r"\d{1,18}").astype(bool)
        if name in _TIMES:
            table = table[digits]
        table = table.assign(**{name: table[name].where(digits, str(NONE)).astype("int64")})
    return table.reset_index(drop=True)


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
