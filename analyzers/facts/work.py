"""What can fill time, with the host's side of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.calls import Calls
from tracer.analyzers.facts.compiled import CompiledWork
from tracer.analyzers.facts.host import Host, Launches
from tracer.analyzers.facts.modules import ModuleTree
from tracer.analyzers.intervals import NONE, Longs, nowhere, take
from tracer.analyzers.names.kernel_table import KernelName, describe
from tracer.events import KIND_CODE, Note, Trace

Answer = TypeVar("Answer")
COMPUTE, COLLECTIVE, TRANSFER_CLASS = 0, 1, 2
_UNKNOWN = describe("")
# Share of the work whose calls may be missing without the rest being doubted.
_FEW_MISSING = 0.02


@dataclass(frozen=True)
class Hints:
    """What tables and ranges tell of work: the row of `captured_nodes` (-1: of none), what compiled
    code called, the module (row of the tree) that follows, and whether it is of many modules."""

    node: Longs
    compiled: CompiledWork
    module: Longs
    of_many: NDArray[np.bool_]


@dataclass(frozen=True)
class Work:
    """Everything that can fill time, with the host's side of it. Arrays are aligned with `event`;
    `site` is the host row that stands for it: its launch, the captured launch for a node of a graph
    replay, or the leaf operator itself."""

    trace: Trace
    host: Host
    launches: Launches
    tree: ModuleTree
    event: Longs
    site: Longs
    launch: Longs
    work_class: NDArray[np.int8]
    cpu_only: bool
    replayed: NDArray[np.bool_]  # nodes of graph replays whose capture was seen
    notes: tuple[Note, ...] = ()
    hints: Hints | None = None
    answers: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, ask: Callable[[Work], Answer]) -> Answer:
        """What a function finds in this work, which several ask."""
        if ask not in self.answers:
            self.answers[ask] = ask(self)
        answer: Answer = self.answers[ask]
        return answer

    @property
    def _none(self) -> Longs:
        return nowhere(self.event.size)

    @property
    def node(self) -> Longs:
        """Row of `captured_nodes` of a replay whose capture was seen elsewhere; -1 else."""
        return self._none if self.hints is None else self.hints.node

    @cached_property
    def compiled(self) -> CompiledWork:
        """What compiled code called."""
        if self.hints is None:
            return CompiledWork(self._none, self._none, (), self._none)
        return self.hints.compiled

    @property
    def call(self) -> Longs:
        """Row of `compiled_calls` of what compiled code called; -1 else."""
        return self.compiled.call

    @cached_property
    def calls(self) -> Calls:
        """The kinds of the host rows."""
        return Calls(self.trace, self.host, self.launches)

    @cached_property
    def name_code(self) -> NDArray[np.int32]:
        return self.trace.name_codes[self.event].astype(np.int32)

    @cached_property
    def operator(self) -> Longs:
        if self.cpu_only:
            return self.event
        of_node = take(self.host.operator, np.where(self.replayed, self.site, NONE))
        return np.where(of_node == NONE, self.launches.operator, of_node)

    @cached_property
    def forward(self) -> Longs:
        """The forward operator whose backward this is; -1 for work of the forward pass."""
        return take(self.host.forward_of, np.where(self.site == NONE, self.operator, self.site))

    @cached_property
    def module_event(self) -> Longs:
        """The module range it lies in; backward work lies where its forward operator did. What is
        for many modules lies in none."""
        own = take(self.tree.range_event, self.site)
        own = np.where(own == NONE, take(self.tree.range_event, self.operator), own)
        own = np.where(own == NONE, take(self.tree.range_event, self.forward), own)
        return own if self.hints is None else np.where(self.hints.of_many, NONE, own)

    @cached_property
    def module(self) -> Longs:
        own = take(self.tree.own, self.module_event)
        if self.hints is None:
            return own
        return np.where(self.hints.module == NONE, own, self.hints.module)

    @cached_property
    def names(self) -> list[KernelName]:
        """What is known of each distinct name of the trace; index it with `name_code`."""
        used = set(np.unique(self.name_code).tolist())
        return [describe(n) if i in used else _UNKNOWN for i, n in enumerate(self.trace.names)]

    @cached_property
    def orphaned(self) -> NDArray[np.bool_]:
        """Launched before the recording: it has launches, this row has none. Where calls are
        missing, only what was launched before the first one kept."""
        if self.cpu_only or not self.launches.launching.any():
            return np.zeros(self.event.size, dtype=bool)
        orphans: NDArray[np.bool_] = self.launch == NONE
        if not self.trace.meta.recorded.get("every_launch", True):
            correlation = self.trace.events["correlation"].to_numpy()
            called = correlation[self.trace.of_kind("runtime") & (correlation != NONE)]
            orphans &= correlation[self.event] < called.min()
        return orphans

    @cached_property
    def calls_missing(self) -> bool:
        """Whether so many calls were left out between those recorded that what the host did is not
        known."""
        if self.trace.meta.recorded.get("every_launch", True):
            return False
        unlaunched = (self.launch == NONE) & ~self.orphaned
        return bool(unlaunched.sum() > _FEW_MISSING * unlaunched.size)

    @property
    def kernels_missing(self) -> bool:
        """Whether kernels were left out between those recorded, so that the device may have been
        busy where it seems idle."""
        return not self.trace.meta.recorded.get("every_kernel", True)

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        kernels: NDArray[np.bool_] = self.trace.kind_codes[self.event] == KIND_CODE["kernel"]
        return kernels | self.cpu_only
