"""Weights that are looked up in a table before their product: codes of few bits, a codebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from tracer.analyzers.facts.arguments import Arguments, Shape
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.names.operator_names import VIEWS
from tracer.analyzers.rules.estimates import Product, product_of
from tracer.analyzers.rules.widened import is_wide

# Where the codes stand among the arguments; those of an index are a list, which is not recorded.
_CODES_AT = {
    "aten::index": None, "aten::index_select": 2, "aten::embedding": 1, "aten::take": 1,
    "aten::gather": 2,
}  # fmt: skip
# These give all that stands behind a code in the table.
_ROWS = ("aten::index_select", "aten::embedding")
# Numbers that one code stands for; codes that a table of one row has.
_WIDEST, _MOST_CODES = 32, 256
# How far from the lookup its product and the unpacking of its codes lie, with the views of a CPU.
_REACH = 24
_MOVES = VIEWS | {
    "empty", "empty_like", "empty_strided", "copy", "_to_copy", "to", "clone", "contiguous",
    "cat", "stack", "index", "index_select", "take", "gather",
}  # fmt: skip
_BITS = frozenset(
    {"__rshift__", "__lshift__", "__and__", "__or__", "bitwise_and", "bitwise_or",
     "bitwise_right_shift", "bitwise_left_shift", "remainder", "floor_divide"}
)  # fmt: skip
_WHOLE = frozenset({"unsigned char", "signed char", "short int", "short", "int", "long int"})
# Whatever else lies before the product makes no weights.
_UNPACKS = _MOVES | _BITS | {"mul", "div", "add", "sub"}


@dataclass(frozen=True)
class Lookup:
    """Work that looks weights up, all other work that makes them, and their product."""

    row: int
    beside: tuple[int, ...]
    product: int


@dataclass(frozen=True)
class _Table:
    """The table of a lookup. makes: how many numbers may come out, by each operator that tells."""

    shape: Shape
    makes: tuple[frozenset[int], ...]
    takers: tuple[frozenset[int], ...] = ()

    def fits(self, product: Product) -> bool:
        """Whether these may be its weights: more than the table has, and no rows of inputs."""
        weights = product.n * product.k
        inputs = self.shape[-1] >= product.k or product.m == product.n
        many = product.batch == 1 and prod(self.shape) < weights
        return (
            many
            and not (len(self.shape) > 1 and inputs)
            and self._makes(weights, product.m * product.k)
        )

    def _makes(self, weights: int, inputs: int) -> bool:
        """Whether so many come out; what is unpacked by halves is looked up by halves. The input
        may be cast between the lookup and the product."""
        taker = next((one for one in self.takers if one and one != {inputs}), None)
        told = self.makes if taker is None else (*self.makes, taker)
        return bool(told) and not any({weights, weights // 2}.isdisjoint(one) for one in told)


@dataclass(frozen=True)
class Lookups:
    """Finds lookups of weights among work in this order."""

    work: Work
    order: Longs

    def found(self) -> Iterator[Lookup]:
        """Each with the next product that takes so many weights."""
        named = self.work.trace.names_matching(lambda name: name in _CODES_AT)
        known = np.flatnonzero(self._operators != NONE)
        codes = self.work.trace.name_codes[self._operators[known]]
        for place in known[named[codes]].tolist():
            table = self._table(int(self._operators[place]))
            at = None if table is None else self._product_of(place, table)
            if at is not None:
                beside = (*self._unpacking(place), *self._scaling(place, at))
                yield Lookup(
                    int(self.order[place]),
                    tuple(int(self.order[one]) for one in beside),
                    int(self.order[at]),
                )

    @cached_property
    def _operators(self) -> Longs:
        return self.work.operator[self.order]

    @cached_property
    def _arguments(self) -> Arguments:
        return Arguments(self.work.trace)

    def _word(self, place: int) -> str:
        event = int(self._operators[place])
        return "" if event == NONE else self._name(event).removeprefix("aten::").rstrip("_")

    def _name(self, event: int) -> str:
        name: str = self.work.trace.names[self.work.trace.name_codes[event]]
        return name

    def _table(self, event: int) -> _Table | None:
        """What the lookup reads; None where that is no codebook."""
        row = self._arguments.row(event)
        shapes, types = self._arguments.shapes(row), self._arguments.types(row)
        if not shapes or not shapes[0] or not types or not is_wide(types[0]):
            return None
        name, table = self._name(event), shapes[0]
        own = name == "aten::gather"
        if table[-1] > (_MOST_CODES if own else _WIDEST) and (own or len(table) > 1):
            return None
        if len(table) > 2 and not own:
            return None
        codes = _CODES_AT[name]
        if codes is None or len(shapes) <= codes:
            return _Table(table, self._made_of(event, table), self._takers(event))
        wide = table[-1] if name in _ROWS and len(table) > 1 else 1
        return _Table(table, (frozenset({prod(shapes[codes]) * wide}),))

    def _made_of(self, event: int, table: Shape) -> tuple[frozenset[int], ...]:
        """How many numbers the codes stand for, where whole numbers were worked on right before."""
        rows = self._of_thread[self._thread(event)]
        before = rows[: np.searchsorted(rows, event)][-1:]
        if not before.size or not self._is_whole(int(before[0])):
            return ()
        wide = table[-1] if len(table) > 1 else 1
        made = frozenset(count * wide for count in self._counts(int(before[0])))
        return (made,) if made else ()

    def _is_whole(self, event: int) -> bool:
        types = self._arguments.types(self._arguments.row(event))
        return any(kind in _WHOLE for kind in types) and not any(map(is_wide, types))

    def _thread(self, event: int) -> int:
        return int(self.work.trace.events["thread"].to_numpy()[event])

    def _takers(self, event: int) -> tuple[frozenset[int], ...]:
        """How many numbers the operands have of the operators that come next on the thread."""
        trace = self.work.trace
        rows = self._of_thread[self._thread(event)]
        later = rows[np.searchsorted(rows, event, side="right") :][:_REACH]
        later = later[trace.start_ns[later] >= trace.end_ns[event]]
        return tuple(self._counts(row) for row in later.tolist())

    @cached_property
    def _of_thread(self) -> dict[int, Longs]:
        """Thread -> its operators."""
        trace = self.work.trace
        rows = np.flatnonzero(trace.named(lambda name: True, "operator"))
        threads = trace.events["thread"].to_numpy()[rows]
        return {thread: rows[threads == thread] for thread in np.unique(threads).tolist()}

    def _counts(self, event: int) -> frozenset[int]:
        """How many numbers each operand has."""
        shapes = self._arguments.shapes(self._arguments.row(event))
        return frozenset(prod(shape) for shape in shapes if shape)

    def _product(self, place: int) -> Product | None:
        event = int(self._operators[place])
        if event == NONE:
            return None
        shapes = self._arguments.shapes(self._arguments.row(event))
        return product_of(self._name(event), shapes) or _taken_whole(self._name(event), shapes)

    def _product_of(self, place: int, table: _Table) -> int | None:
        """The product behind a lookup that takes what it makes."""
        for at in range(place + 1, min(place + 1 + _REACH, self.order.size)):
            product = self._product(at)
            if product is not None and table.fits(product):
                return at
            if product is None and self._word(at) not in _UNPACKS:
                return None
        return None

    def _unpacking(self, place: int) -> Iterator[int]:
        """What makes codes, right before they are looked up: work on whole numbers alone."""
        for before in range(place - 1, max(place - 1 - _REACH, -1), -1):
            types = self._arguments.types(self._arguments.row(int(self._operators[before])))
            if self._word(before) not in _UNPACKS or any(map(is_wide, types)):
                return
            yield before

    def _scaling(self, place: int, at: int) -> Iterator[int]:
        """What scales and moves the weights before their product."""
        product = self._product(at)
        weights = product.n * product.k if product else 0
        for between in range(place + 1, at):
            counts = self._counts(int(self._operators[between]))
            if not counts.isdisjoint({weights, weights // 2}):
                yield between


def _taken_whole(operator: str, shapes: tuple[Shape, ...]) -> Product | None:
    """The product of what on a CPU may be taken as a whole, by a matrix of weights."""
    left, right = (*shapes, (), ())[:2]
    if operator not in ("aten::linear", "aten::matmul") or len(right) != 2 or not left:
        return None
    n, k = right if operator == "aten::linear" else right[::-1]
    return Product(1, prod(left[:-1]), n, k) if left[-1] == k else None
