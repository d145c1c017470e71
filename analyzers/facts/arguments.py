"""Arguments of operators as the recording holds them: shapes, types, values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs
from tracer.events import Trace

Shape = tuple[int, ...]


@lru_cache(maxsize=65536)
def _parsed(text: str) -> tuple[Any, ...]:
    try:
        values = json.loads(text)
    except ValueError:
        return ()
    return tuple(values) if isinstance(values, list) else ()


def as_shape(value: Any) -> Shape:
    """The shape of one argument; empty for what is no tensor."""
    if isinstance(value, list) and all(isinstance(size, int) for size in value):
        return tuple(value)
    return ()


@lru_cache(maxsize=65536)
def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(map(as_shape, _parsed(text)))


@dataclass(frozen=True)
class Arguments:
    """Looks up what was recorded of an operator's arguments; empty where nothing was."""

    trace: Trace

    @cached_property
    def _events(self) -> Longs:
        events: Longs = self.trace.table("shapes")["event"].to_numpy()
        return events

    @cached_property
    def _sorted(self) -> tuple[Longs, Longs]:
        order = np.argsort(self._events, kind="stable")
        return order, self._events[order]

    def rows(self, events: Longs) -> Longs:
        """The rows of the table `shapes` of these events; -1 for none."""
        order, known = self._sorted
        if not known.size:
            return np.full(events.size, NONE, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, events), known.size - 1)
        return np.where(known[at] == events, order[at], NONE)

    def row(self, event: int) -> int:
        """The row of the table `shapes` of one event; -1 for none."""
        return int(self.rows(np.array([event], dtype=np.int64))[0])

    def likeness(self, rows: Longs) -> Longs:
        """Numbers for what stands in these rows of the table, -1 for row -1: rows of equal numbers
        say the same."""
        table = self.trace.table("shapes")
        columns = ("input_shapes", "input_types", "concrete_inputs")
        codes = np.stack([table[name].cat.codes.to_numpy() for name in columns], axis=1)
        found = np.full(rows.size, NONE, dtype=np.int64)
        known = rows != NONE
        if known.any():
            found[known] = np.unique(codes[rows[known]], axis=0, return_inverse=True)[1].reshape(-1)
        return found

    def shapes(self, row: int) -> tuple[Shape, ...]:
        """The shape of each argument in a row of the table; empty for those that are no tensor."""
        return _shapes(self._text("input_shapes", row))

    def types(self, row: int) -> tuple[str, ...]:
        """The type of each argument."""
        return tuple(map(str, _parsed(self._text("input_types", row))))

    def values(self, row: int) -> tuple[str, ...]:
        """The value of each argument that is a plain one, as text."""
        return tuple(map(str, _parsed(self._text("concrete_inputs", row))))

    def passing(self, test: Callable[[tuple[str, ...]], bool], rows: Longs) -> NDArray[np.bool_]:
        """Whether the types of the arguments in each of these rows pass the test."""
        types = self.trace.table("shapes")["input_types"]
        passes = [test(tuple(map(str, _parsed(str(text))))) for text in types.cat.categories]
        # What was not recorded finds the last one.
        known = np.array([*passes, False], dtype=bool)
        passed: NDArray[np.bool_] = known[np.append(types.cat.codes.to_numpy(), NONE)[rows]]
        return passed

    def distinct(self, rows: Iterable[int]) -> list[str]:
        """The distinct texts of the shapes in these rows, in order."""
        return list(dict.fromkeys(self._text("input_shapes", row) for row in rows if row != NONE))

    def _text(self, column: str, row: int) -> str:
        return "" if row == NONE else str(self._columns[column][row])

    @cached_property
    def _columns(self) -> dict[str, Any]:
        table = self.trace.table("shapes")
        return {
            name: table[name].array for name in ("input_shapes", "input_types", "concrete_inputs")
        }
