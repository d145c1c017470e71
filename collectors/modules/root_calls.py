"""Calls of root modules, a row each. The program waits while one is noted: what is the same for
all calls of a root is known from its first."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from tracer.collectors.modules.call_facts import (
    UNKNOWN,
    CallFacts,
    PlainFacts,
    Roles,
    SeenCaches,
    argument_names,
    caches_among,
    call_facts,
    can_decode,
    given_names,
    keeps_cache,
    plain_facts,
    returns_cache,
    roles_of,
)
from tracer.collectors.modules.looks import is_routed
from tracer.collectors.modules.module_tree import ModuleRecord, unwrap
from tracer.collectors.steps.generation import Generation
from tracer.collectors.user_code import CallerLines
from tracer.events import SIDE_TABLES, make_table


def recorded_autograd(output: Any) -> int:
    """1 when autograd recorded the call, by its first floating tensor; -1 without one."""
    if isinstance(output, torch.Tensor):
        return int(output.requires_grad) if output.is_floating_point() else UNKNOWN
    if isinstance(output, dict):
        values: Any = output.values()
    elif isinstance(output, (list, tuple)):
        values = output
    else:
        values = vars(output).values() if hasattr(output, "__dict__") else ()
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return int(value.requires_grad)
    return UNKNOWN


class _Said(NamedTuple):
    """What arguments but for caches say, and all of them that it depends on."""

    roles: Roles
    values: list[Any]  # of tensors their shapes and types
    facts: PlainFacts
    whole: CallFacts  # where no argument carries a cache


@dataclass(eq=False)
class Root:
    """A root as its calls know it."""

    module: weakref.ref[nn.Module]
    number: int  # of its record
    names: tuple[str, ...]  # of its positional arguments
    keeps_cache: bool
    can_decode: bool
    is_routed: bool
    said: _Said | None = None  # by the arguments of its last call
    roles: dict[tuple[Any, ...], Roles] = field(default_factory=dict)  # of what a call gives

    def roles_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Roles:
        """What the arguments of a call may be."""
        key = (len(args), *kwargs)
        roles = self.roles.get(key)
        if roles is None:
            roles = self.roles[key] = roles_of(given_names(self.names, args, kwargs))
        return roles


@dataclass(slots=True, eq=False)
class OpenCall:
    """A root call that has not returned."""

    root: Root
    trains: bool
    facts: CallFacts
    caches: Sequence[Any]
    generation: Generation
    callers: int
    thread: int
    start_ns: int

    def fills(self, output: Any) -> bool:
        """Whether a cache is left for later calls."""
        if self.facts.cached == 1 or self.root.keeps_cache:
            return True
        if self.caches and any(cache is not None for cache in self.caches):
            return True
        return self.root.can_decode and returns_cache(output)


def _plain(roles: Roles, values: Sequence[Any]) -> list[Any] | None:
    """All that facts are made of; None where there are others than plain tensors and values."""
    out: list[Any] = []
    for i in roles.plain:
        value = values[i]
        kind = type(value)
        if kind is torch.Tensor:
            out += (value.shape, value.dtype)
        elif kind is int or kind is bool or value is None:
            out += (kind, value)
        else:
            return None
    return out


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = threading.get_native_id()
        self.generation = -1  # of the last call, and the number of the lines around it
        self.lines = 0


class RootCalls:
    """The `root_calls` table while it grows: some integers a call, in one array."""

    WIDTH = 15

    def __init__(self) -> None:
        self._rows = array("q")
        self.known: dict[int, Root] = {}  # by `id`, which may be another module's by now
        self._records: dict[ModuleRecord, int] = {}
        self._calls: dict[str, int] = {}
        self._lines = CallerLines()
        self._seen = SeenCaches()
        self._thread = _Thread()

    def __len__(self) -> int:
        return len(self._rows) // self.WIDTH

    def learn(self, module: nn.Module, record: ModuleRecord) -> Root:
        """Know a root from now on."""
        inner = unwrap(module)
        number = self._records.setdefault(record, len(self._records))
        names = argument_names(type(inner))
        caches = keeps_cache(inner), can_decode(inner)
        root = Root(weakref.ref(module), number, names, *caches, is_routed(inner))
        self.known[id(module)] = root
        return root

    def begin(
        self,
        module: nn.Module,
        root: Root,
        generation: Generation,
        caller: FrameType | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> OpenCall:
        """A root call begins."""
        facts, caches = self._said_by(root, args, kwargs)
        lines, thread = self._around(generation, caller), self._thread.number
        return OpenCall(
            root, module.training, facts, caches, generation, lines, thread, time.time_ns()
        )

    def _said_by(
        self, root: Root, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[CallFacts, Sequence[Any]]:
        """The facts, and the arguments that carry a cache. Calls are mostly like the last one."""
        roles = root.roles_of(args, kwargs)
        values = (*args, *kwargs.values()) if kwargs else args
        plain, said = _plain(roles, values), root.said
        if said is None or said.roles is not roles or said.values != plain or plain is None:
            facts = plain_facts(roles, values)
            whole = call_facts(facts, (), self._seen, keeps_cache=root.keeps_cache)
            said = root.said = _Said(roles, plain or [], facts, whole)
        if not roles.caches:
            return said.whole, ()
        caches = caches_among(roles, values)
        return call_facts(said.facts, caches, self._seen, keeps_cache=root.keeps_cache), caches

    def _around(self, generation: Generation, caller: FrameType | None) -> int:
        """The lines around a call. What generates calls often, from one place."""
        thread = self._thread
        if generation.number < 0:
            return self._lines.around(caller)
        if thread.generation != generation.number:
            thread.generation, thread.lines = generation.number, self._lines.around(caller)
        return thread.lines

    def end(self, call: OpenCall, output: Any) -> int:
        """It returned, or raised: then `output` is None. Returns the time."""
        end_ns = time.time_ns()
        if call.caches or isinstance(output, (list, tuple)):
            self._remember(call.caches, output)
        facts = call.facts
        # One call of C code: another thread cannot come between the numbers of a row.
        self._rows.extend(
            (
                call.start_ns,
                end_ns,
                call.thread,
                facts.batch,
                facts.tokens,
                facts.cached,
                recorded_autograd(output),
                call.generation.number,
                facts.is_decoder,
                call.root.number,
                self._calls.setdefault(call.generation.call, len(self._calls)),
                call.trains,
                call.fills(output),
                call.callers,
                facts.past,
            )
        )
        return end_ns

    def _remember(self, caches: Sequence[Any], output: Any) -> None:
        """These are filled now, where they are caches."""
        for cache in (*caches, *(output if isinstance(output, (list, tuple)) else ())):
            if cache is not None and not isinstance(cache, torch.Tensor):
                self._seen.add(cache)

    def ended_since(self, first: int) -> NDArray[np.int64]:
        """Calls from the `first` on, while the trace runs: start_ns, end_ns, batch, tokens,
        cached, graded and fills of each."""
        # A copy: the array cannot grow while somebody looks at its memory.
        rows = np.array(self._rows[first * self.WIDTH :], dtype=np.int64).reshape(-1, self.WIDTH)
        return rows[:, [0, 1, 3, 4, 5, 6, 12]]

    def table(self) -> pd.DataFrame:
        """The table, in order of start; may be asked while the trace runs. Roots have the path
        that they were last known by."""
        grown = np.array(self._rows[:], dtype=np.int64).reshape(-1, self.WIDTH)
        rows = grown[np.argsort(grown[:, 0], kind="stable")]
        roots, callers = list(self._records), self._lines.texts()
        columns = ("start_ns", "end_ns", "thread", "batch", "tokens", "cached", "graded")
        return make_table(
            SIDE_TABLES["root_calls"],
            {
                **{name: rows[:, i] for i, name in enumerate(columns)},
                "root": [roots[i].path for i in rows[:, 9]],
                "type": [roots[i].type for i in rows[:, 9]],
                "call": [list(self._calls)[i] for i in rows[:, 10]],
                "generation": rows[:, 7],
                "part": [_part(roots[row[9]].path, bool(row[8])) for row in rows],
                "trains": rows[:, 11],
                "fills": rows[:, 12],
                "callers": [callers[i] for i in rows[:, 13]],
                "past": rows[:, 14],
            },
        )


def _part(path: str, is_decoder: bool) -> str:
    if is_decoder:
        return "decoder"
    return "encoder" if path.rpartition(".")[2] == "encoder" else ""
