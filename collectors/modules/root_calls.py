"""Calls of root modules, a row each. The program waits while one is noted: what is the same for
all calls of a root is known from its first."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Hashable, Mapping
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
    Roles,
    SeenCaches,
    argument_names,
    caches_among,
    call_facts,
    can_decode,
    given_names,
    keeps_cache,
    returns_cache,
    roles_of,
)
from tracer.collectors.modules.module_tree import ModuleRecord, unwrap
from tracer.collectors.steps.generation import Generation
from tracer.collectors.user_code import CallerLines
from tracer.events import SIDE_TABLES, make_table


def recorded_autograd(output: Any) -> int:
    """1 when autograd recorded the call, by its first floating tensor; -1 without one."""
    if isinstance(output, torch.Tensor):
        values: Any = (output,)
    elif isinstance(output, dict):
        values = output.values()
    elif isinstance(output, (list, tuple)):
        values = output
    else:
        values = vars(output).values() if hasattr(output, "__dict__") else ()
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return int(value.requires_grad)
    return UNKNOWN


@dataclass(frozen=True, eq=False)
class Root:
    """A root as its calls know it."""

    module: weakref.ref[nn.Module]
    number: int  # of its record
    names: tuple[str, ...]  # of its positional arguments
    keeps_cache: bool
    can_decode: bool
    roles: dict[tuple[Any, ...], Roles] = field(default_factory=dict)  # of what a call gives

    def roles_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Roles:
        """What the arguments of a call may be."""
        key = (len(args), *kwargs)
        roles = self.roles.get(key)
        if roles is None:
            roles = self.roles[key] = roles_of(given_names(self.names, args, kwargs))
        return roles


class OpenCall(NamedTuple):
    """A root call that has not returned."""

    root: Root
    trains: bool
    facts: CallFacts
    caches: list[Any]
    generation: Generation
    callers: int
    start_ns: int

    def fills(self, output: Any) -> bool:
        """Whether a cache is left for later calls."""
        if self.facts.cached == 1 or self.root.keeps_cache:
            return True
        given = any(cache is not None for cache in self.caches)
        return given or (self.root.can_decode and returns_cache(output))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = threading.get_native_id()
        self.generation = -1  # of the last call, and the number of the lines around it
        self.lines = 0


class RootCalls:
    """The `root_calls` table while it grows: some integers a call, in one array."""

    WIDTH = 14

    def __init__(self) -> None:
        self._rows = array("q")
        self._known: dict[int, Root] = {}
        self._records: dict[ModuleRecord, int] = {}
        self._calls: dict[str, int] = {}
        self._lines = CallerLines()
        self._seen = SeenCaches()
        self._thread = _Thread()

    def __len__(self) -> int:
        return len(self._rows) // self.WIDTH

    def root_of(self, module: nn.Module) -> Root | None:
        """What is known of a root; None before it was learned."""
        root = self._known.get(id(module))
        return root if root is not None and root.module() is module else None

    def learn(self, module: nn.Module, record: ModuleRecord) -> Root:
        """Know a root from now on."""
        inner = unwrap(module)
        number = self._records.setdefault(record, len(self._records))
        names = argument_names(type(inner))
        caches = keeps_cache(inner), can_decode(inner)
        root = Root(weakref.ref(module), number, names, *caches)
        self._known[id(module)] = root
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
        lines = self._around(generation, caller)
        roles = root.roles_of(args, kwargs)
        values = (*args, *kwargs.values()) if kwargs else args
        facts = call_facts(roles, values, self._seen, keeps_cache=root.keeps_cache)
        caches = caches_among(roles, values)
        now_ns = time.time_ns()
        return OpenCall(root, module.training, facts, caches, generation, lines, now_ns)

    def _around(self, generation: Generation, caller: FrameType | None) -> int:
        """The lines around a call. What generates calls often, from one place."""
        thread = self._thread
        if generation.number < 0:
            return self._lines.around(caller)
        if thread.generation != generation.number:
            thread.generation, thread.lines = generation.number, self._lines.around(caller)
        return thread.lines

    def kind_of(self, call: OpenCall) -> Hashable:
        """What is the same for calls that get as much to do, as far as their arguments tell; None
        where these do not."""
        facts = call.facts
        if facts.batch < 0:
            return None
        sizes = facts.batch, facts.tokens, facts.cached, facts.is_decoder
        return (call.root.number, call.trains, *sizes)

    def end(self, call: OpenCall, output: Any) -> int:
        """It returned, or raised: then `output` is None. Returns the time."""
        end_ns = time.time_ns()
        for cache in (*call.caches, *(output if isinstance(output, (list, tuple)) else ())):
            if cache is not None and not isinstance(cache, torch.Tensor):
                self._seen.add(cache)
        facts = call.facts
        # One call of C code: another thread cannot come between the numbers of a row.
        self._rows.extend(
            (
                call.start_ns,
                end_ns,
                self._thread.number,
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
            )
        )
        return end_ns

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
            },
        )


def _part(path: str, is_decoder: bool) -> str:
    if is_decoder:
        return "decoder"
    return "encoder" if path.rpartition(".")[2] == "encoder" else ""
