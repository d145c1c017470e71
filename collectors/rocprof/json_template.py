"""Whole numbers out of many records at once, with no object for a record.

The tool writes all records of a domain alike: without their digits they are the same text. One of
them is looked at closely, to know which of its numbers is which; of the others the digits are kept,
which makes a table of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from tracer.collectors.batches import Ints
from tracer.collectors.rocprof.json_forms import Form

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_ITEM = "[]"  # what a path says of an item of a list
_DIGITS = b"0123456789"
_NUMBER = re.compile(rb"\d+")
_OTHERS = bytes(set(range(256)) - set(_DIGITS + b",\n"))
_PART_BYTES = 1 << 17  # as much as fits the processor's cache


def without_digits(text: bytes | bytearray) -> bytes:
    """What records of one form have in common."""
    return bytes(text.translate(None, _DIGITS))


class _Number(NamedTuple):
    path: str
    digits: bytes


@dataclass(frozen=True)
class Template:
    """One form of record. `places`: which of its numbers is which, by path."""

    common: bytes
    numbers: int
    places: Mapping[str, int]

    def read(self, text: bytes | bytearray, rows: int) -> dict[str, Ints] | None:
        """The numbers of a text of so many records, one a line, by path; None where one of them
        has another form."""
        common = text.translate(None, _DIGITS)
        expected = (self.common + b"\n") * rows
        if len(common) + 1 != len(expected) or not expected.startswith(common):
            return None
        if _count_numbers(text) != rows * self.numbers:  # digits in a key
            return None
        try:
            found = self._table(text.translate(None, _OTHERS))
        except pa.ArrowInvalid:  # more than 64 bits
            return None
        columns = [column.to_numpy().view(np.int64) for column in found.columns]
        return dict(zip(self.places, columns, strict=True))

    def _table(self, numbers: bytes | bytearray) -> pa.Table:
        names = [str(place) for place in range(self.numbers)]
        kept = [names[place] for place in self.places.values()]
        return arrow_csv.read_csv(
            pa.BufferReader(numbers),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(numbers) + 1, column_names=names
            ),
            arrow_csv.ParseOptions(quote_char=False),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(kept, pa.uint64()), include_columns=kept, null_values=[]
            ),
        )


def _count_numbers(text: bytes | bytearray) -> int:
    """How many runs of digits there are behind the first byte."""
    found = np.frombuffer(text, dtype=np.uint8)
    count = 0
    for begin in range(0, len(text), _PART_BYTES):
        digit = found[begin : begin + _PART_BYTES + 1] - np.uint8(_DIGITS[0]) < len(_DIGITS)
        count += np.count_nonzero(digit[1:] > digit[:-1])
    return int(count)


def _numbers(text: bytes) -> Iterator[_Number]:
    """The numbers of an object in JSON, as far as the text goes."""
    path: list[str] = []
    said = b""
    for token in _TOKEN.finditer(text):
        first = token.group()[:1]
        if first == b'"':
            said = token.group(1)
        elif first == b":":
            path[-1] = said.decode("latin-1")
        elif first in b"{[":
            path.append(_ITEM if first == b"[" else "")
        elif first in b"}]":
            path.pop()
        elif first in _DIGITS:
            yield _Number(".".join(path), token.group())


def learn(text: bytes, record: bytes, form: Form) -> Template | None:
    """The template of a record from its beginning, which is all of it or tells all its numbers;
    None when it is not one to read fast."""
    try:
        decoded = form.of(msgspec.json.decode(record, type=form.record, strict=False))
    except msgspec.DecodeError:
        return None
    numbers = list(_numbers(text))
    places = {number.path: at for at, number in enumerate(numbers) if number.path in form.numbers}
    told = {path: numbers[at].digits for path, at in places.items()}
    is_plain = all(digits.isdigit() for digits in told.values())
    if not is_plain or len(_NUMBER.findall(text)) != len(numbers):
        return None
    if {**form.absent, **{path: int(digits) for path, digits in told.items()}} != decoded:
        return None
    is_enough = text == record or len(told) == len(decoded)
    return Template(without_digits(text), len(numbers), places) if is_enough and told else None
