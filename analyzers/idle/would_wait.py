"""On a recording of the CPU alone: operators that would make the host wait on a GPU.

A recording does not hold where a tensor would live. What a program keeps on the host anyway is told
from what stands around a read: a data loader's work, a number drawn right before, a counter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.context import Context
from tracer.analyzers.idle.waits import (
    SCALAR,
    SCALAR_OPERATORS,
    SHAPE,
    Wait,
    asking_operator,
)
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.events import Trace

# Operators that must read the device.
_WOULD_WAIT = {
    "aten::_local_scalar_dense": SCALAR,
    "aten::nonzero": SHAPE,
    "aten::masked_select": SHAPE,
    "aten::_unique2": SHAPE,
    "aten::unique_consecutive": SHAPE,
    "aten::unique_dim": SHAPE,
}
_OPTIMIZER = re.compile(r"Optimizer\.step#")
# Libraries for CPUs: a GPU has other operators in their place.
_FOR_CPUS = re.compile(r"onednn|mkldnn|mkl_|zendnn", re.IGNORECASE)
_DRAWS = re.compile(r"aten::(random_|rand|randn|randint|uniform_)$")
# What may stand between a number and its read without bringing other data in.
_PASSES = re.compile(
    r"aten::(lt|le|gt|ge|eq|ne|add|sub|mul|div|floor|to|_to_copy|select|squeeze|view|detach)$"
)
_REDUCES = re.compile(
    r"aten::(\w*(sum|mean|norm|dot|prod|loss)|std|var|any|all|a?(max|min)|arg(max|min)|allclose)$"
    r"|autograd::engine::evaluate_function"
)


def find_would_be_waits(context: Context) -> list[Wait]:
    """Reads of values and sizes that the model itself made."""
    work = context.work
    trace = work.trace
    reads = trace.named(lambda name: name in _WOULD_WAIT, "operator")
    rows = np.flatnonzero(reads & ~work.host.compiling)
    rows = rows[~_of_the_host(context, rows)]
    steps = np.searchsorted([s.start_ns for s in context.plan.host], trace.start_ns[rows], "right")
    asking = asking_operator(context, rows)
    return [
        Wait(row, _cause(trace, row, holder), row, 0, 0, 0, int(step) - 1)
        for row, holder, step in zip(rows.tolist(), asking.tolist(), steps, strict=True)
    ]


def _cause(trace: Trace, row: int, asking: int) -> str:
    outer = trace.names[trace.name_codes[asking]]
    cause = _WOULD_WAIT[trace.names[trace.name_codes[row]]]
    return SHAPE if cause == SCALAR and outer not in SCALAR_OPERATORS else cause


def _of_the_host(context: Context, rows: Longs) -> NDArray[np.bool_]:
    """What would stay on the host beside a GPU, too: a data loader's work, numbers drawn on the
    host, the counters of an optimizer; what operators of libraries for CPUs read."""
    work = context.work
    of_cpus = work.trace.named(lambda name: _FOR_CPUS.search(name) is not None, "operator")
    elsewhere = take(work.host.nearest(work.calls.input | of_cpus), rows)
    before = _Before(context)
    own = [before.is_drawn(row) or before.is_counter(row) for row in rows.tolist()]
    found: NDArray[np.bool_] = (elsewhere != NONE) | np.array(own, dtype=bool)
    return found


class _Before:
    """Looks at the outermost operators before a read, on its thread."""

    def __init__(self, context: Context) -> None:
        self.trace, self.host = context.work.trace, context.work.host
        self.thread = self.trace.events["thread"].to_numpy()
        self.draws = any(map(_DRAWS.match, self.trace.names))

    def is_drawn(self, row: int) -> bool:
        """Whether the value is a random number of the host's own, or made of one."""
        if not self.draws:
            return False
        for name in self._back_from(row, 0):
            if not _PASSES.match(name):
                return _DRAWS.match(name) is not None
        return False

    def is_counter(self, row: int) -> bool:
        """Whether an optimizer reads what it only counts: nothing was reduced to one value since
        it began, or since it last read one."""
        step = int(self._optimizer[row])
        if step == NONE:
            return False
        for name in self._back_from(row, int(self.trace.start_ns[step])):
            if name in SCALAR_OPERATORS:
                return True
            if _REDUCES.match(name):
                return False
        return True

    def _back_from(self, row: int, since_ns: int) -> Iterator[str]:
        """Names of the outermost operators before this one, the last first."""
        mine, starts = self._outermost[int(self.thread[row])]
        read = self.trace.start_ns[self.host.outer_operator[row]]
        for at in range(int(starts.searchsorted(read)) - 1, -1, -1):
            if starts[at] < since_ns:
                return
            yield self.trace.names[self.trace.name_codes[mine[at]]]

    @cached_property
    def _outermost(self) -> dict[int, tuple[Longs, Longs]]:
        """Thread -> its outermost operators in order, and when they began."""
        outer = self.host.outer_operator
        rows = np.flatnonzero(outer == np.arange(outer.size))
        thread = self.thread[rows]
        mine = {int(one): rows[thread == one] for one in np.unique(thread)}
        return {one: (own, self.trace.start_ns[own]) for one, own in mine.items()}

    @cached_property
    def _optimizer(self) -> Longs:
        """The step of an optimizer around each event."""
        optimizes = self.trace.named(
            lambda name: _OPTIMIZER.match(name) is not None, "annotation", "operator"
        )
        return self.host.nearest(optimizes)
