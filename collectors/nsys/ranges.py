"""NVTX ranges of an export: operators, modules, ranges of the program and of libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.collectors.batches import Batch, Ints
from tracer.collectors.nsys.database import Database
from tracer.collectors.nsys.names import LIBRARY_DOMAINS, Range, read_range, split_ends
from tracer.collectors.nsys.places import Places
from tracer.events import NONE

TABLE = "NVTX_EVENTS"
_PUSH_POP, _START_END, _DOMAIN = (59, 70), (60, 71), 75
_KINDS = ("operator", "annotation", "module", "other", "")  # "" encloses nothing
_OTHER = _KINDS.index("other")


@dataclass
class _Texts:
    """The texts of all ranges understood: a code into `ranges` for each, and what stood behind its
    name."""

    ranges: list[Range] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, str] = field(default_factory=dict)
    known: dict[tuple[str, bool], int] = field(default_factory=dict)

    def add(self, text: str, library: bool) -> None:
        name, sequence, sizes = split_ends(text)
        key = (name, library)
        code = self.known.get(key)
        if code is None:
            code = self.known[key] = len(self.ranges)
            self.ranges.append(Range("other", name) if library else read_range(name))
        if sequence != NONE:
            self.sequences[len(self.codes)] = sequence
            self._is_operator(code)
        if sizes:
            self.sizes[len(self.codes)] = sizes
        self.codes.append(code)

    def _is_operator(self, code: int) -> None:
        """Only operators have a number of autograd."""
        if self.ranges[code].kind == "annotation":
            self.ranges[code] = self.ranges[code]._replace(kind="operator")

    def settle(self) -> None:
        """Ranges by the bare name of an operator, such as `detach_` inside `aten::detach_`, are
        that operator's, not the program's."""
        operators = {entry.name for entry in self.ranges if entry.kind == "operator"}
        for code, entry in enumerate(self.ranges):
            if f"aten::{entry.name}" in operators:
                self._is_operator(code)


class RangeReader:
    """Reads the ranges of one export. open_ranges: how many have no end."""

    def __init__(self, database: Database, places: Places, strings: dict[int, str]) -> None:
        self._database, self._places, self._strings = database, places, strings
        self.open_ranges = 0

    def batches(self) -> Iterator[Batch]:
        """A batch for each kind of event. Marks and names of domains are no ranges."""
        if TABLE not in self._database.tables:
            return
        types = ", ".join(map(str, (*_PUSH_POP, *_START_END)))
        where = f"eventType IN ({types}) AND {self._places.only('globalTid')}"
        columns = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")
        found = self._database.numbers(TABLE, columns, where)
        texts = self._read(found, self._database.texts(TABLE, "text", where))
        ended = found["end"] >= found["start"]
        self.open_ranges = int((~ended).sum())
        codes = np.array(texts.codes, dtype=np.int64)
        kinds = np.array([_KINDS.index(entry.kind) for entry in texts.ranges], dtype=np.int64)
        kind_of = kinds[codes] if codes.size else codes
        # One that ends on another thread encloses nothing on either.
        kind_of[_crosses(found)] = _OTHER
        for code, kind in enumerate(_KINDS[:-1]):
            rows = np.flatnonzero((kind_of == code) & ended)
            yield self._batch(kind, rows, found, texts, codes)

    def _read(self, found: dict[str, Ints], texts: Sequence[str | None]) -> _Texts:
        libraries = self._library_domains()
        read = _Texts()
        ids, domains = found["textId"].tolist(), found["domainId"].tolist()
        for text, name, domain in zip(texts, ids, domains, strict=True):
            read.add(self._said(text, name), domain in libraries)
        read.settle()
        return read

    def _said(self, text: str | None, name: int) -> str:
        return text if text is not None else str(self._strings.get(name, ""))

    def _library_domains(self) -> set[int]:
        """Domains in which a library announces its own calls."""
        where = f"eventType = {_DOMAIN}"
        ids = self._database.numbers(TABLE, ("domainId", "textId"), where)
        texts = self._database.texts(TABLE, "text", where)
        rows = zip(ids["domainId"].tolist(), ids["textId"].tolist(), texts, strict=True)
        said = {domain: self._said(text, name) for domain, name, text in rows}
        return {domain for domain, name in said.items() if LIBRARY_DOMAINS.match(name)}

    def _batch(
        self, kind: str, rows: Ints, found: dict[str, Ints], texts: _Texts, codes: Ints
    ) -> Batch:
        return Batch(
            kind,
            found["start"][rows],
            (found["end"] - found["start"])[rows],
            codes[rows],
            [entry.name for entry in texts.ranges],
            {"thread": self._places.threads(found["globalTid"][rows])},
            _sides(rows, texts) if kind == "operator" else {},
        )


def _sides(rows: Ints, texts: _Texts) -> dict[str, dict[str, Any]]:
    sides: dict[str, dict[str, Any]] = {}
    at, sequences = _chosen(rows, texts.sequences)
    if at:
        # Autograd's own ranges are of the backward pass, which runs what another thread recorded.
        backward = [int("Backward" in texts.ranges[texts.codes[rows[row]]].name) for row in at]
        sides["sequences"] = {"event": at, "sequence": sequences, "forward_thread": backward}
    at, sizes = _chosen(rows, texts.sizes)
    if at:
        sides["shapes"] = {"event": at, "input_shapes": sizes}
    return sides


def _chosen(rows: Ints, values: dict[int, Any]) -> tuple[list[int], list[Any]]:
    """Which of these rows have a value, and which."""
    if not values:
        return [], []
    held = [(at, values[row]) for at, row in enumerate(rows.tolist()) if row in values]
    return [at for at, _ in held], [value for _, value in held]


def _crosses(found: dict[str, Ints]) -> NDArray[np.bool_]:
    end = found["endGlobalTid"]
    apart = (end > 0) & (end != found["globalTid"])
    return np.asarray(np.isin(found["eventType"], _START_END) & apart)
