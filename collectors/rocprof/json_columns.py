"""The records of a list as columns of whole numbers, part by part as they stand in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Raw

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.batches import Packed, long_of
from tracer.collectors.rocprof.json_forms import Form
from tracer.collectors.rocprof.json_records import Row
from tracer.collectors.rocprof.json_template import Template, learn, without_digits
from tracer.collectors.rocprof.json_text import Records, readable

_SMALLEST_FORM = 16  # records, below which decoding them is cheaper
_ROWS_OF_PART = 1 << 15
_MOST_VAIN = 3
_LEARN_BYTES = 1 << 10
_ARGUMENTS = b',"args":'  # of a call: texts of its own, behind all numbers that are kept
_SPACED = re.compile(rb'[{,:]\s+["\d{\[-]|[}\]\d"]\s+[,}\]]')
_COMMA, _NEWLINE = b",\n"
_RECORDS = msgspec.json.Decoder(list[Raw])


class Part:
    """Records that stand one behind the other."""

    def __init__(self, columns: Mapping[str, Ints]) -> None:
        self.rows = len(next(iter(columns.values())))
        self._columns = [{path: Packed.of(values) for path, values in columns.items()}]

    def ints(self, path: str) -> Ints:
        """The numbers at a path."""
        return np.concatenate([columns[path].values() for columns in self._columns])

    def extend(self, later: Part) -> None:
        """Add the records that follow."""
        self.rows += later.rows
        self._columns += later._columns


class RecordList:
    """The records of one list; `lost` counts those that do not fit."""

    def __init__(self, form: Form) -> None:
        self.parts: list[Part] = []
        self.lost = 0
        self._form = form
        self._vain = 0  # texts of which most records were of no form
        self._templates: dict[bytes, Template | None] = {}  # by what its records have in common

    def add(self, text: bytearray, records: Sequence[Raw]) -> None:
        """Records, which a text holds separated by commas; the text is changed."""
        text, records = _compact(text, records)
        if self._vain >= _MOST_VAIN or not _break_lines(text, records):
            self.add_text(bytes(text))
        elif not self._add_alike(text, records):
            self._add_by_form(records)

    def add_text(self, text: bytes) -> None:
        """Records as text, separated by commas, one by one."""
        reading = Records(self._form.record)
        for records in reading.read(b"[" + readable(text) + b"]"):
            self._add(self._columns(records))
        self.lost += reading.lost

    def _add(self, columns: Mapping[str, Ints]) -> None:
        part = Part(columns)
        if self.parts and self.parts[-1].rows < _ROWS_OF_PART:
            self.parts[-1].extend(part)
        elif part.rows:
            self.parts.append(part)

    def _columns(self, records: Sequence[Row]) -> dict[str, Ints]:
        get = self._form.numbers
        return {path: longs_of(list(map(get[path], records))) for path in get}

    def _add_alike(self, text: bytearray, records: Sequence[Raw]) -> bool:
        """Add records that are all of one form; False where they are of several."""
        first = _beginning(records[0])
        if len(first) < len(records[0]):
            text = bytearray(b"\n").join(map(_beginning, records))
        template = self._template(without_digits(first), first, records[0])
        found = None if template is None else template.read(text, len(records))
        if found is None:
            return False
        absent = {path: value for path, value in self._form.absent.items() if path not in found}
        self._add(found | {path: np.full(len(records), value) for path, value in absent.items()})
        return True

    def _template(self, common: bytes, line: bytes, record: Raw) -> Template | None:
        if common not in self._templates:
            self._templates[common] = learn(line, bytes(record), self._form)
        return self._templates[common]

    def _add_by_form(self, records: Sequence[Raw]) -> None:
        """Add records form by form, and those of rare ones one by one."""
        absent = self._form.absent
        columns = {path: np.full(len(records), value) for path, value in absent.items()}
        lines = list(map(_beginning, records))
        left = np.ones(len(records), dtype=bool)
        for common, rows in _by_form(lines).items():
            template = self._template(common, lines[rows[0]], records[rows[0]])
            alike = b"\n".join([lines[row] for row in rows])
            found = None if template is None else template.read(alike, len(rows))
            if found is not None:
                left[rows] = False
                for path, values in found.items():
                    columns[path][rows] = values
        self._vain += int(left.sum() * 2 > len(left))
        self._add(self._one_by_one(np.flatnonzero(left), records, columns))

    def _one_by_one(
        self, rows: Ints, records: Sequence[Raw], columns: Mapping[str, Ints]
    ) -> Mapping[str, Ints]:
        """The columns with these records, without those that do not fit."""
        reading = Records(self._form.record)
        found = [reading.one(readable(bytes(records[row]))) for row in rows.tolist()]
        fits = np.array([record is not None for record in found], dtype=bool)
        fitting = self._columns([record for record in found if record is not None])
        self.lost += int((~fits).sum())
        kept = np.ones(len(records), dtype=bool)
        kept[rows[~fits]] = False
        for path, values in fitting.items():
            columns[path][rows[fits]] = values
        return {path: values[kept] for path, values in columns.items()}


def _beginning(record: Raw) -> bytes:
    """The text of a record up to its arguments."""
    return bytes(record).partition(_ARGUMENTS)[0]


def _compact(text: bytearray, records: Sequence[Raw]) -> tuple[bytearray, Sequence[Raw]]:
    """Records without space, which no form has."""
    if _SPACED.search(text, 0, _LEARN_BYTES) is None:
        return text, records
    compact = msgspec.json.format(b"[" + text + b"]", indent=-1)
    return bytearray(compact[1:-1]), _RECORDS.decode(compact)


def _break_lines(text: bytearray, records: Sequence[Raw]) -> bool:
    """Put each record on a line of its own; False where more than a comma separates them."""
    places = np.frombuffer(text, dtype=np.uint8)
    lengths = np.fromiter(map(len, records), dtype=np.int64, count=len(records))
    ends = np.cumsum(lengths + 1)[:-1] - 1
    if lengths.sum() + len(ends) != len(text) or (places[ends] != _COMMA).any():
        return False
    places[ends] = _NEWLINE
    return True


def _by_form(lines: Sequence[bytes]) -> dict[bytes, list[int]]:
    """The rows of each form that several lines have."""
    found: dict[bytes, list[int]] = {}
    for row, line in enumerate(lines):
        found.setdefault(without_digits(line), []).append(row)
    return {common: rows for common, rows in found.items() if len(rows) >= _SMALLEST_FORM}


def longs_of(values: list[int]) -> Ints:
    """Numbers of 64 bits with or without a sign as those with one."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(list(map(long_of, values)), dtype=np.int64)
