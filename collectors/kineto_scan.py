"""The fast way: whole columns out of the text at once, with no object for an event.

A profiler writes all events of a category with the same keys in the same order. So the quotes of a
text say where everything is: of each such form one event is looked at closely (its `Template`),
the others only checked to have the same keys in the same places. Whatever does not fit is handed
back as text, for `kineto_loose`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracer.collectors.kineto_columns import Batch, Columns, Ints, Texts
from tracer.collectors.kineto_digits import integers, thousandths
from tracer.collectors.kineto_fields import EVENTS, OTHER, Family, Field
from tracer.collectors.kineto_loose import Remarks
from tracer.collectors.kineto_names import is_clean, product_of
from tracer.collectors.kineto_page import Page, open_page
from tracer.collectors.kineto_salvage import Piece
from tracer.collectors.kineto_stream import Chunk
from tracer.collectors.kineto_template import Span, Template, learn

MAX_FORMS = 96  # in one text; what has more is not worth a vector for each
SMALLEST_FORM = 24  # events, below which reading them one by one is cheaper
_TRIES = 3  # texts in which to look for an event of a form that can serve as its template
_TOLD_BY = 6  # number of the quote that opens the category, where events begin with "ph", "cat"
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
_EVERY_SECOND = 0b01010101
_BRACKETS = (ord("["), ord("]"))


class Leftover(NamedTuple):
    """What a page did not give to the columns, and how many places in the file's order it took."""

    pieces: list[Piece]
    orders: int


class _Taken(NamedTuple):
    """Events that fit their form so far, and their values by field."""

    events: Ints
    firsts: Ints  # number of the first quote of each
    values: dict[Field, NDArray[Any]]

    def keep(self, good: NDArray[np.bool_]) -> _Taken:
        if bool(good.all()):
            return self
        values = {field: values[good] for field, values in self.values.items()}
        return _Taken(self.events[good], self.firsts[good], values)


class ScanReader:
    """Adds events to `columns` form by form."""

    def __init__(
        self, columns: Columns, remarks: Remarks, *, smallest_form: int = SMALLEST_FORM
    ) -> None:
        self.columns = columns
        self.remarks = remarks
        self.smallest_form = smallest_form
        self.templates: dict[int, Template] = {}
        self.failures: Counter[int] = Counter()

    def read(self, chunk: Chunk, order: int) -> Leftover:
        """Read the events of a chunk, of which the first is number `order` in the file."""
        text, begin, end, base = chunk
        page = open_page(text, begin, end)
        if page is None:
            return Leftover([Piece(order, base + begin, bytes(text.raw[begin:end]))], 1)
        left = np.ones(len(page), dtype=bool)
        for form, events in _forms(page):
            left[self._read_form(page, form, events, order + 1)] = False
        return Leftover(list(page.pieces(np.flatnonzero(left), order, base)), len(page) + 1)

    def _read_form(self, page: Page, form: int, events: Ints, order: int) -> Ints:
        """Add the events of one form; the result is those that fit it."""
        if len(events) < self.smallest_form:
            return events[:0]
        template = self._template(page, form, events)
        if template is None:
            return events[:0]
        taken = _Taken(events, page.events.take(events), {})
        taken = taken.keep(_fits(page, template, taken))
        if template.family is None or not len(taken.events):
            return taken.events
        return self._add(page, template, template.family, taken, order)

    def _template(self, page: Page, form: int, events: Ints) -> Template | None:
        """The first event of a form may be an odd one, such as a frame that nobody called."""
        known = self.templates.get(form)
        if known is None and self.failures[form] < _TRIES:
            for event in (events[len(events) // 2], events[0], events[-1]):
                known = learn(page, int(event))
                if known is not None:
                    self.templates[form] = known
                    return known
            self.failures[form] += 1
        return known

    def _add(
        self, page: Page, template: Template, family: Family, taken: _Taken, order: int
    ) -> Ints:
        taken = self._texts(page, template, _numbers(page, template, taken))
        if not len(taken.events):
            return taken.events
        batch = Batch(family, taken.events + order)
        for field, values in taken.values.items():
            batch.columns[field.table, field.column] = values
        if (EVENTS, "duration_ns") not in batch.columns:
            batch.columns[EVENTS, "duration_ns"] = np.zeros(batch.rows, dtype=np.int64)
        if family is OTHER:
            self.remarks.other_categories[template.category] += batch.rows
        self.columns.add(batch)
        return taken.events

    def _texts(self, page: Page, template: Template, taken: _Taken) -> _Taken:
        for span in template.spans:
            field = span.field
            if field.form in ("int", "time"):
                continue
            taken, starts, stops = _text_places(page, span, taken)
            codes, distinct = _dictionary(page, starts, stops)
            taken.values[field] = self._encode(field, distinct)[codes]
            if field.form == "text":
                clean = np.array([is_clean(text) for text in distinct], dtype=bool)
                taken = taken.keep(clean[codes])
        return taken

    def _encode(self, field: Field, distinct: list[bytes]) -> NDArray[Any]:
        if field.form == "product":
            return np.array([product_of(text) for text in distinct], dtype=np.int64)
        texts: Texts = self.columns.texts[field.table, field.column]
        return texts.encode(distinct)


def _forms(page: Page) -> Iterator[tuple[int, Ints]]:
    """Events by their form: how many strings, and what the string says that tells the category."""
    told = np.minimum(page.events[:-1] + _TOLD_BY, len(page.quotes) - 3)
    opening = page.quotes.take(told)
    lengths = np.minimum(page.quotes.take(told + 1) - opening, 8)
    words = page.text.words[opening + 1] & _MASKS.take(lengths)
    strings = (page.events[1:] - page.events[:-1]).astype(np.uint64)
    forms = words ^ (strings * _SPREAD)
    left = np.arange(len(page))
    for _ in range(MAX_FORMS):
        if not len(left):
            return
        same = forms == forms[0]
        yield int(forms[0]), left[same]
        other = ~same
        forms, left = forms[other], left[other]


def _fits(page: Page, template: Template, taken: _Taken) -> NDArray[np.bool_]:
    """Which events have as many strings as the template, and its keys in its places."""
    fits: NDArray[np.bool_]
    fits = page.events.take(taken.events + 1) - taken.firsts == template.quotes
    for quote, word, mask in template.checks:
        found = page.text.words[page.quote(taken.firsts, quote) + 1]
        fits &= (found & mask) == word
    return fits


def _numbers(page: Page, template: Template, taken: _Taken) -> _Taken:
    good = np.ones(len(taken.events), dtype=bool)
    for span in template.spans:
        if span.field.form not in ("int", "time"):
            continue
        starts, stops = _place(page, span, taken)
        read = integers if span.field.form == "int" else thousandths
        numbers = read(page.text, starts, stops)
        taken.values[span.field] = numbers.values
        good &= numbers.good
        good &= page.text.bytes[starts - 1] == span.edges[0]
        good &= page.text.bytes[stops] == span.edges[1]
    return taken.keep(good)


def _place(page: Page, span: Span, taken: _Taken) -> tuple[Ints, Ints]:
    starts = page.quote(taken.firsts, span.after) + span.lead
    return starts, page.quote(taken.firsts, span.before) - span.tail


def _text_places(page: Page, span: Span, taken: _Taken) -> tuple[_Taken, Ints, Ints]:
    """The events in which a text stands where it should, and where it does."""
    starts, stops = _place(page, span, taken)
    good = stops >= starts
    if span.field.form != "text":
        good &= (page.text.bytes[starts] == _BRACKETS[0]) & (
            page.text.bytes[stops - 1] == _BRACKETS[1]
        )
    if good.all():
        return taken, starts, stops
    return taken.keep(good), starts[good], stops[good]


def _dictionary(page: Page, starts: Ints, stops: Ints) -> tuple[NDArray[Any], list[bytes]]:
    """Code of each text between start and stop, and the distinct texts. The texts between the
    wanted ones lie in the same array, marked as null."""
    if not len(starts):
        return starts, []
    offsets = np.empty(2 * len(starts), dtype=np.int32)
    offsets[::2], offsets[1::2] = starts, stops
    valid = np.full(len(starts) // 4 + 1, _EVERY_SECOND, dtype=np.uint8)
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(page.text.bytes)]
    texts = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    encoded = texts.dictionary_encode()
    codes = np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)
    return codes[: len(offsets) : 2], encoded.dictionary.to_pylist()
