"""Events one at a time: the careful way, for whatever the fast way leaves over."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from msgspec import Raw

from tracer.collectors.kineto.columns import Batch, Columns, Ints
from tracer.collectors.kineto.fields import (
    CATEGORIES,
    DROPPED_CATEGORIES,
    EVENTS,
    MEMORY,
    MEMORY_NAMES,
    OTHER,
    Family,
    Field,
)
from tracer.collectors.kineto.names import is_clean, product_of, text_of
from tracer.collectors.kineto.salvage import NOTHING, Damage, LooseEvent, Piece, read_events
from tracer.events import NONE

_PLAIN_TIME = re.compile(rb"(\d+)(?:\.(\d{1,3}))?")
_TRACK = re.compile(rb"[A-Za-z ]*(\d+)(?![\d.eE])")
_LONGEST = 40  # digits of the longest number worth reading
_FARTHEST_NS = 2**62


class Flow(NamedTuple):
    """One end of an arrow that the file draws from a launch to its work."""

    starts: bool
    id: int
    pid: int
    tid: int
    ns: int


@dataclass
class Remarks:
    """What was met on the way that is no event."""

    damage: Damage = field(default_factory=Damage)
    other_categories: Counter[str] = field(default_factory=Counter)
    unread_phases: Counter[str] = field(default_factory=Counter)
    unpaired: int = 0
    metadata_rows: int = 0
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)

    def merge(self, later: Remarks) -> None:
        """Add what another reader met in a later part of the same file."""
        self.damage.repaired += later.damage.repaired
        self.damage.lost += later.damage.lost
        if self.damage.first_offset < 0:
            self.damage.first_offset = later.damage.first_offset
        self.other_categories.update(later.other_categories)
        self.unread_phases.update(later.unread_phases)
        self.unpaired += later.unpaired
        self.metadata_rows += later.metadata_rows
        self.thread_names.update(later.thread_names)
        self.flows.extend(later.flows)


class _Read(NamedTuple):
    """An event with its place in the file and the family it belongs to."""

    order: int
    event: LooseEvent
    start_ns: int
    duration_ns: int


class LooseReader:
    """Adds events to `columns` one by one. `keep_flows` also keeps arrows, for the files that say
    by nothing else which launch made which kernel."""

    def __init__(self, columns: Columns, remarks: Remarks, *, keep_flows: bool = False) -> None:
        self.columns = columns
        self.remarks = remarks
        self.keep_flows = keep_flows
        self.open_ranges: dict[tuple[int, int], list[_Read]] = defaultdict(list)

    def read(self, pieces: Iterable[Piece]) -> None:
        """Read pieces of text, each of whole events."""
        families: dict[int, tuple[Family, list[_Read]]] = {}
        for order, offset, text in pieces:
            for within, event in enumerate(read_events(text, offset, self.remarks.damage)):
                found = self._place(order + within, offset, event)
                if found is not None:
                    family, read = found
                    families.setdefault(id(family), (family, []))[1].append(read)
        for family, reads in families.values():
            self.columns.add(self._batch(family, reads))

    def _place(self, order: int, offset: int, event: LooseEvent) -> tuple[Family, _Read] | None:
        phase = _inside(event.ph).decode("ascii", "replace")
        if phase == "M":
            self._metadata(event)
            return None
        if phase in ("s", "t", "f"):
            if self.keep_flows and phase != "t":
                self._flow(event, starts=phase == "s")
            return None
        start, duration = _nanoseconds(event.ts), _nanoseconds(event.dur)
        if start is None:
            self.remarks.damage.add(offset, lost=True)
            return None
        name = _inside(event.name)
        if not is_clean(name):
            self.remarks.damage.add(offset, lost=False)
        read = _Read(order, event, start, max(duration or 0, 0))
        if phase == "X":
            return self._complete(read)
        if phase in ("i", "I", "n"):
            return (MEMORY, read) if name in MEMORY_NAMES else None
        if phase in ("B", "E"):
            return self._paired(read, begins=phase == "B")
        self.remarks.unread_phases[phase] += 1
        return None

    def _complete(self, read: _Read) -> tuple[Family, _Read] | None:
        category = text_of(_inside(read.event.cat))
        if category in DROPPED_CATEGORIES:
            return None
        family = CATEGORIES.get(category)
        if family is None:
            self.remarks.other_categories[category] += 1
            return OTHER, read
        return family, read

    def _paired(self, read: _Read, *, begins: bool) -> tuple[Family, _Read] | None:
        stack = self.open_ranges[_integer(read.event.pid), _integer(read.event.tid)]
        if begins:
            stack.append(read)
            return None
        if not stack:
            self.remarks.unpaired += 1
            return None
        begin = stack.pop()
        duration = max(read.start_ns - begin.start_ns, 0)
        return self._complete(begin._replace(duration_ns=duration))

    def finish(self) -> None:
        """Count the ranges that were begun and never ended."""
        self.remarks.unpaired += sum(len(stack) for stack in self.open_ranges.values())
        self.open_ranges.clear()

    def _metadata(self, event: LooseEvent) -> None:
        self.remarks.metadata_rows += 1
        if _inside(event.name) == b"thread_name":
            name = text_of(_inside((event.args or {}).get("name", NOTHING)))
            self.remarks.thread_names[_integer(event.pid), _integer(event.tid)] = name

    def _flow(self, event: LooseEvent, *, starts: bool) -> None:
        ns = _nanoseconds(event.ts)
        pid, tid = _integer(event.pid), _integer(event.tid)
        if ns is not None:
            self.remarks.flows.append(Flow(starts, _integer(event.id), pid, tid, ns))

    def _batch(self, family: Family, reads: list[_Read]) -> Batch:
        batch = Batch(family, np.array([read.order for read in reads], dtype=np.int64))
        columns = batch.columns
        columns[EVENTS, "start_ns"] = _array([read.start_ns for read in reads])
        columns[EVENTS, "duration_ns"] = _array([read.duration_ns for read in reads])
        names = [_inside(read.event.name) for read in reads]
        columns[EVENTS, "name"] = self.columns.texts[EVENTS, "name"].encode(names)
        self._identity(batch, reads)
        self._arguments(batch, reads)
        return batch

    def _identity(self, batch: Batch, reads: list[_Read]) -> None:
        if batch.family.place in ("thread", "ids"):
            batch.columns[EVENTS, "pid"] = _array([_integer(read.event.pid) for read in reads])
            batch.columns[EVENTS, "tid"] = _array([_integer(read.event.tid) for read in reads])

    def _arguments(self, batch: Batch, reads: list[_Read]) -> None:
        arguments = [read.event.args or {} for read in reads]
        present = _present(batch.family, arguments)
        batch.only = {table: np.array(rows) for table, rows in present.items() if rows}
        for argument in batch.family.arguments:
            if argument.table == EVENTS:
                self._event_argument(batch, argument, reads, arguments)
            elif argument.table in batch.only:
                rows = present[argument.table]
                raws = [arguments[row].get(argument.key, NOTHING) for row in rows]
                values = self._values(argument, raws)
                batch.columns[argument.table, argument.column] = values

    def _event_argument(
        self, batch: Batch, argument: Field, reads: list[_Read], arguments: list[dict[str, Raw]]
    ) -> None:
        raws = [found.get(argument.key, NOTHING) for found in arguments]
        if argument.column in ("device", "stream"):
            raws = _or_track(argument.column, raws, reads)
        values = self._values(argument, raws)
        earlier = batch.columns.get((EVENTS, argument.column))
        if earlier is not None:  # two spellings of one key
            values = np.where(values == NONE, earlier, values)
        batch.columns[EVENTS, argument.column] = values

    def _values(self, argument: Field, raws: list[Raw]) -> Ints:
        if argument.form == "int":
            return _array([_integer(raw) for raw in raws])
        if argument.form == "product":
            return _array([product_of(bytes(raw)) for raw in raws])
        read = _inside if argument.form == "text" else bytes
        distinct = self.columns.texts[argument.table, argument.column]
        return distinct.encode([read(raw) for raw in raws]).astype(np.int64)


def _or_track(column: str, raws: list[Raw], reads: list[_Read]) -> list[Raw]:
    """The track that the event lies on names device and stream, where its arguments do not."""
    tracks = [read.event.pid if column == "device" else read.event.tid for read in reads]
    return [track if raw is NOTHING else raw for raw, track in zip(raws, tracks, strict=True)]


def _present(family: Family, arguments: list[dict[str, Raw]]) -> dict[str, list[int]]:
    """For each side table the rows whose arguments hold some of it."""
    rows = {table: list(range(len(arguments))) for table in family.always}
    keys = {a.key: a.table for a in family.arguments if a.table not in (EVENTS, *family.always)}
    for row, found in enumerate(arguments):
        for table in {keys[key] for key in found if key in keys}:
            rows.setdefault(table, []).append(row)
    return rows


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _inside(raw: Raw) -> bytes:
    """A JSON string without its quotes; any other value as it is written."""
    text = bytes(raw)
    return text[1:-1] if text[:1] == b'"' else text


def _integer(raw: Raw) -> int:
    """An integer in the range of a column, whatever it was written as; NONE where it is none."""
    text = _inside(raw)[:_LONGEST]
    try:
        value = int(text)
    except ValueError:
        value = _integer_in(text)
    # Identifiers of 64 bits without a sign keep their bits.
    return (value + 2**63) % 2**64 - 2**63


def _integer_in(text: bytes) -> int:
    """The number in a text such as 7.0 or "stream 7"; lists and objects have none."""
    number = _decimal(text)
    if number is not None:
        return int(number)
    found = _TRACK.match(text)
    return NONE if found is None else int(found.group(1))


def _decimal(text: bytes) -> Decimal | None:
    """A number of any notation; None for none, and for one whose digits alone would fill memory."""
    try:
        number = Decimal(text[:_LONGEST].decode("ascii"))
    except (ArithmeticError, ValueError):
        return None
    return number if number.is_finite() and number.adjusted() < _LONGEST else None


def _nanoseconds(raw: Raw) -> int | None:
    """Microseconds as they are written, in whole nanoseconds, with no detour over a float."""
    text = _inside(raw)
    found = _PLAIN_TIME.fullmatch(text)
    if found is not None:
        whole, fraction = found.groups()
        value = int(whole[:_LONGEST]) * 1000 + int((fraction or b"").ljust(3, b"0"))
    else:
        number = _decimal(text)
        if number is None:
            return None
        value = int((number * 1000).to_integral_value())
    return value if abs(value) < _FARTHEST_NS else None
