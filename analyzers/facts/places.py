"""Where in the source something happened, from what the recording holds: Python frames, lines seen
live, modules, operators."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs
from tracer.findings import Where

_FRAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$")
# Frames that are never the answer: built-ins, the framework, the standard library's plumbing, ours.
_PLUMBING = re.compile(
    r"<|.*(^|/)(torch|triton|torchgen)/|(.*/)?(contextlib|functools|threading|runpy|dataclasses"
    r"|abc|enum|copy|typing|inspect|warnings|weakref|collections/\w+|concurrent/\w.*"
    r"|multiprocessing/\w.*|importlib/\w.*)\.py\(|nn\.Module: "
    r"|.*tracer/(recorder|collectors/\w+|commands/\w+)\.py\("
)
_FRAMEWORK = re.compile(r"DistributedDataParallel\.|FSDP|Optimizer\.|nccl:|Torch-Compiled|## Call ")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_INSTANCE = re.compile(r"^([A-Z]\w*_)\d+$")


# A watched call is noted at most so long before its operator begins; a warning comes at most so
# long after the operator ends.
_CALL_BEFORE_NS, _WARNED_AFTER_NS = 100_000, 300_000


@lru_cache(maxsize=65536)
def parse_frame(name: str) -> Where | None:
    """File, line and function of a Python frame that can be named; None for plumbing. The line is
    where the function begins: recordings hold no other."""
    if _PLUMBING.match(name):
        return None
    match = _FRAME.match(name)
    if match is None:
        return None
    return Where(file=match["file"], line=int(match["line"]), function=match["function"])


def without_folder(file: str) -> str:
    """A file of an installed package by its name in it, as the profiler's own frames name it."""
    return re.split(r"[/\\](?:site|dist)-packages[/\\]", file)[-1]


def folded(path: str) -> str:
    """A module path with its layer numbers, or the instance number of a class, replaced, so that
    like layers are one place."""
    return _INSTANCE.sub(r"\1*", _NUMBER.sub("*", path))


@dataclass(frozen=True)
class _Sites:
    """Lines that the recorder's hook saw, by time; `called`: right before a watched call."""

    table: pd.DataFrame
    time_ns: Longs
    thread: Longs
    called: NDArray[np.bool_]


class Places:
    """Looks up the place of host events of one trace."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.trace, self.host = work.trace, work.host
        self.has_frames = bool(len(self.trace.table("frames")))

    @cached_property
    def _sites(self) -> _Sites:
        table = self.trace.table("host_sites")
        table = table.iloc[np.argsort(table["time_ns"].to_numpy(), kind="stable")]
        called = (table["cause"] == "called").to_numpy()
        return _Sites(table, table["time_ns"].to_numpy(), table["thread"].to_numpy(), called)

    def of(self, event: int) -> Where:
        """The innermost user frame around a host event, its module and its outermost operator."""
        outer = int(self.host.outer_operator[event])
        outer = int(self._framework_range[event]) if outer == NONE else outer
        module = int(self.work.tree.of_event[event])
        frame = self._frame(event) or self._site(event) or Where()
        return Where(
            frame.file,
            frame.line,
            frame.function,
            self._path(module),
            self.trace.names[self.trace.name_codes[outer]] if outer != NONE else None,
        )

    def of_work(self, row: int) -> Where:
        """The place of a piece of work: of what asked for it, with the module it counts in."""
        site = int(self.work.site[row])
        where = self.of(site) if site != NONE else Where()
        path = self._path(int(self.work.module[row]))
        return replace(where, module=None if path is None else folded(path))

    def _path(self, module: int) -> str | None:
        """The path of a module; the class of a root, which has none."""
        tree = self.work.tree
        return None if module == NONE else tree.paths[module] or tree.types[module]

    @cached_property
    def _framework_range(self) -> Longs:
        """The innermost range of the framework itself around each event: what waits in it was not
        written by the user."""
        return self.host.nearest(self.trace.named(_FRAMEWORK.match, "annotation"))

    def _frame(self, event: int) -> Where | None:
        row = event
        while row != NONE:
            found = parse_frame(self.trace.names[self.trace.name_codes[row]])
            if found is not None:
                return found
            row = int(self.host.parent[row])
        return None

    def _site(self, event: int) -> Where | None:
        """A line that the recorder's hook saw for the operator around this event, on its thread:
        the framework warns right after an operator that waited, a watched call is noted right
        before it."""
        sites = self._sites
        if not sites.time_ns.size:
            return None
        operator = int(self.host.outer_operator[event])
        around = operator if operator != NONE else event
        start, end = int(self.trace.start_ns[around]), int(self.trace.end_ns[around])
        tids = self.trace.table("threads")["tid"]
        thread = int(tids.iloc[int(self.trace.events["thread"].iloc[around])])
        begin, stop = start - _CALL_BEFORE_NS, end + _WARNED_AFTER_NS
        near: Longs = np.arange(*np.searchsorted(sites.time_ns, [begin, stop]))
        near = near[np.isin(sites.thread[near], (thread, NONE))]
        called = near[sites.called[near] & (sites.time_ns[near] <= end)]
        warned = near[~sites.called[near] & (sites.time_ns[near] >= start)]
        # The last call before the operator, else the first warning after it began.
        chosen = called[-1:] if called.size else warned[:1]
        if not chosen.size:
            return None
        columns = (sites.table[name] for name in ("file", "line", "function"))
        file, line, function = (column.iloc[int(chosen[0])] for column in columns)
        return Where(without_folder(str(file)), int(line), str(function))
