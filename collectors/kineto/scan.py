"""The fast way: whole columns out of the text at once, with no object for an event.

A profiler writes all events of a category with the same keys in the same order. So the quotes of a
text say where everything is: of each such form one event is looked at closely (its `Template`),
the others only checked to have the same keys in the same places. Whatever does not fit is handed
back as text, for `kineto_loose`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracer.collectors.kineto.columns import Batch, Columns, Ints, Texts
from tracer.collectors.kineto.digits import integers, thousandths
from tracer.collectors.kineto.fields import EVENTS, OTHER, Family, Field
from tracer.collectors.kineto.loose import Remarks
from tracer.collectors.kineto.names import is_clean, product_of
from tracer.collectors.kineto.page import Page, Sheet, open_page
from tracer.collectors.kineto.salvage import ORDER_STEP, Piece
from tracer.collectors.kineto.stream import Chunk
from tracer.collectors.kineto.template import Span, Template, learn

MAX_FORMS = 96  # in one text; what has more is not worth a vector for each
SMALLEST_FORM = 24  # events, below which reading them one by one is cheaper
_LESSONS = 6  # templates of one form, or vain attempts at one, before the rest is left over
_TOLD_BY = 6  # number of the quote that opens the category, where events begin with "ph", "cat"
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
_EVERY_SECOND = 0b01010101


class Leftover(NamedTuple):
    """What a page did not give to the columns, and what to add to the order for the next page."""

    pieces: list[Piece]
    orders: int


class _Taken(NamedTuple):
    """Events that fit their form so far, and their values by field."""

    sheet: Sheet
    values: dict[Field, NDArray[Any]]

    def keep(self, good: NDArray[np.bool_]) -> _Taken:
        if good.all():
            return self
        values = {field: values[good] for field, values in self.values.items()}
        return _Taken(self.sheet.keep(good), values)


class ScanReader:
    """Adds events to `columns` form by form."""

    def __init__(
        self, columns: Columns, remarks: Remarks, *, smallest_form: int = SMALLEST_FORM
    ) -> None:
        self.columns = columns
        self.remarks = remarks
        self.smallest_form = smallest_form
        self.templates: dict[int, list[Template]] = defaultdict(list)
        self.lessons: Counter[int] = Counter()

    def read(self, chunk: Chunk, order: int) -> Leftover:
        """Read the events of a chunk, of which the first is number `order` in the file."""
        text, begin, end, base = chunk
        page = open_page(text, begin, end)
        if page is None:
            whole = Piece(order, base + begin, bytes(text.raw[begin:end]))
            return Leftover([whole], ORDER_STEP)
        left = np.ones(len(page), dtype=bool)
        for form, events in _forms(page):
            left[events] = False
            left[self._read_form(page, form, events, order + ORDER_STEP)] = True
        pieces = list(page.pieces(np.flatnonzero(left), order, base))
        return Leftover(pieces, ORDER_STEP * (len(page) + 1))

    def _read_form(self, page: Page, form: int, events: Ints, order: int) -> Ints:
        """Add what fits the templates of a form, which are learned as they are needed; the result
        is what fits none."""
        known = self.templates[form]
        used = 0
        while len(events) >= self.smallest_form:
            if used == len(known) and not self._learn(page, form, events):
                break
            events = self._read_alike(page, known[used], events, order)
            used += 1
        return events

    def _learn(self, page: Page, form: int, events: Ints) -> bool:
        """One more template. The first event may be an odd one, as a frame that nobody called."""
        if self.lessons[form] >= _LESSONS:
            return False
        self.lessons[form] += 1
        for event in (events[len(events) // 2], events[0], events[-1]):
            template = learn(page, int(event))
            if template is not None:
                self.templates[form].append(template)
                return True
        return False

    def _read_alike(self, page: Page, template: Template, events: Ints, order: int) -> Ints:
        """Add the events that fit a template; the result is those that do not."""
        sheet = Sheet(page, events)
        fits = _fits(sheet, template)
        read = sheet.keep(fits)
        if template.family is not None and len(read):
            added = self._add(template, template.family, read, order)
            fits = fits if len(added) == len(read) else np.isin(events, added)
        return events[~fits]

    def _add(self, template: Template, family: Family, sheet: Sheet, order: int) -> Ints:
        taken = self._texts(template, _numbers(template, sheet))
        events = taken.sheet.events
        if not len(events):
            return events
        batch = Batch(family, events * ORDER_STEP + order)
        for field, values in taken.values.items():
            batch.columns[field.table, field.column] = values
        if (EVENTS, "duration_ns") not in batch.columns:
            batch.columns[EVENTS, "duration_ns"] = np.zeros(batch.rows, dtype=np.int64)
        if family is OTHER:
            self.remarks.other_categories[template.category] += batch.rows
        self.columns.add(batch)
        return events

    def _texts(self, template: Template, taken: _Taken) -> _Taken:
        for span in template.spans:
            if span.field.form in ("int", "time"):
                continue
            taken, starts, stops = _text_places(span, taken)
            codes, distinct = _dictionary(taken.sheet.page, starts, stops)
            taken.values[span.field] = self._encode(span.field, distinct)[codes]
            if span.field.form == "text":
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


def _fits(sheet: Sheet, template: Template) -> NDArray[np.bool_]:
    """Which events have as many strings as the template, and its keys in its places."""
    fits: NDArray[np.bool_] = sheet.strings() == template.quotes
    for quote, offset, word, mask in template.checks:
        found = sheet.page.text.words[sheet.quote(quote) + offset]
        fits &= (found & mask) == word
    return fits


def _numbers(template: Template, sheet: Sheet) -> _Taken:
    good = np.ones(len(sheet), dtype=bool)
    text = sheet.page.text
    values: dict[Field, NDArray[Any]] = {}
    for span in template.spans:
        if span.field.form not in ("int", "time"):
            continue
        starts, stops = _place(span, sheet)
        read = integers if span.field.form == "int" else thousandths
        numbers = read(text, starts, stops)
        values[span.field] = numbers.values
        good &= numbers.good
        good &= text.bytes[starts - 1] == span.around[0]
        good &= text.bytes[stops] == span.around[1]
    return _Taken(sheet, values).keep(good)


def _place(span: Span, sheet: Sheet) -> tuple[Ints, Ints]:
    return sheet.quote(span.after) + span.lead, sheet.quote(span.before) - span.tail


def _text_places(span: Span, taken: _Taken) -> tuple[_Taken, Ints, Ints]:
    """The events in which a text stands where it should, and where it does."""
    starts, stops = _place(span, taken.sheet)
    found = taken.sheet.page.text.bytes
    good = stops >= starts
    if span.field.form != "text":
        good &= (found[starts] == span.inside[0]) & (found[stops - 1] == span.inside[1])
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
