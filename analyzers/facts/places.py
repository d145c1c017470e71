"""Where in the source something happened, from what the recording holds: Python frames, lines seen
live, modules, operators."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.names.libraries import is_library, package_of, without_folder
from tracer.events import Trace
from tracer.findings import Where

_FRAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$")
# Frames that are never the answer: built-ins, the framework, the standard library's plumbing, ours.
_PLUMBING = re.compile(
    r"<|.*(^|/)(torch|triton|torchgen)/|(.*/)?(contextlib|functools|threading|runpy|dataclasses"
    r"|abc|enum|copy|typing|inspect|warnings|weakref|collections/\w+|concurrent/\w.*"
    r"|multiprocessing/\w.*|importlib/\w.*)\.py\(|nn\.Module: "
    r"|.*tracer/(recorder|(collectors|commands|live)/[\w/]+)\.py\("
)
_FRAMEWORK = re.compile(r"DistributedDataParallel\.|FSDP|Optimizer\.|nccl:|Torch-Compiled|## Call ")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_INSTANCE = re.compile(r"^([A-Z]\w*_)\d+$")


# A warning comes at most so long after its operator ends. A watched call is noted right before its
# operator, though the thread may lose its processor between; clocks agree to so much.
_WARNED_AFTER_NS, _CALL_BEFORE_NS, _CLOCKS_NS = 300_000, 1_000_000_000, 2_000


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


@lru_cache(maxsize=65536)
def folded(path: str) -> str:
    """A module path with its layer numbers, or the instance number of a class, replaced, so that
    like layers are one place."""
    return _INSTANCE.sub(r"\1*", _NUMBER.sub("*", path))


@dataclass(frozen=True)
class _Lines:
    """Lines that the recorder's hook saw on one thread, or on an unknown one: when, and the row of
    each in their table. Lists, as many single times are looked for."""

    time_ns: list[int]
    row: list[int]

    def last(self, start_ns: int, end_ns: int) -> int | None:
        """The row of the last one in this time, both ends counted."""
        at = bisect_right(self.time_ns, end_ns) - 1
        return self.row[at] if at >= 0 and self.time_ns[at] >= start_ns else None

    def first(self, start_ns: int, end_ns: int) -> int | None:
        """The row of the first one in this time, its end not counted."""
        at = bisect_left(self.time_ns, start_ns)
        return self.row[at] if at < len(self.time_ns) and self.time_ns[at] < end_ns else None


class _Sites:
    """Lines that the recorder's hook saw: right before a watched call, or by a warning after an
    operator."""

    def __init__(self, trace: Trace) -> None:
        table = trace.table("host_sites")
        self._order = np.argsort(table["time_ns"].to_numpy(), kind="stable")
        self._time_ns, self._thread = table["time_ns"].to_numpy(), table["thread"].to_numpy()
        self._called = (table["cause"] == "called").to_numpy()
        self._said = [table[name].tolist() for name in ("file", "line", "function")]
        self._user = [table[f"user_{name}"].tolist() for name in ("file", "line", "function")]
        self._lines: dict[tuple[int, bool], _Lines] = {}

    def __len__(self) -> int:
        return int(self._order.size)

    def lines(self, thread: int, called: bool) -> _Lines:
        """Those of a thread, of one kind."""
        known = self._lines.get((thread, called))
        if known is None:
            mine = np.isin(self._thread, (thread, NONE)) & (self._called == called)
            rows = self._order[mine[self._order]]
            known = _Lines(self._time_ns[rows].tolist(), rows.tolist())
            self._lines[thread, called] = known
        return known

    def where(self, row: int) -> Where:
        """The place that a row names."""
        return _line_at(self._said, row)

    def caller(self, row: int) -> Where | None:
        """The user's line that called the library that the row names; None where none did."""
        user, said = _line_at(self._user, row), _line_at(self._said, row)
        return None if not user.file or user == said else user


def _line_at(columns: list[list[Any]], row: int) -> Where:
    file, line, function = (column[row] for column in columns)
    return Where(without_folder(str(file)), int(line), str(function))


class Waiting(NamedTuple):
    """The line that waits. caller: the user's line that called the library in which it waits, or,
    where it is the user's own, the function around it; None unknown."""

    where: Where
    caller: Where | None
    library: str = ""


class Places:
    """Looks up the place of host events of one trace."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.trace, self.host = work.trace, work.host
        self.has_frames = bool(len(self.trace.table("frames")))

    @cached_property
    def _sites(self) -> _Sites:
        return _Sites(self.trace)

    @cached_property
    def _tids(self) -> Longs:
        """The number that the system gave to the thread of each event; -1 of none."""
        known = np.append(self.trace.table("threads")["tid"].to_numpy(), NONE)
        tids: Longs = known[self.trace.events["thread"].to_numpy()]
        return tids

    def of(self, event: int) -> Where:
        """The innermost user frame around a host event, its module and its outermost operator."""
        return self._in_context(event, self._frame(event) or self._site(event) or Where())

    def of_wait(self, event: int) -> Waiting:
        """The same of a wait, and who called it."""
        frames = self._frames(event)
        frame, row = next(frames, None), self._site_row(event)
        site = None if row is None else self._sites.where(row)
        # A frame holds where its function begins; what was seen of that function is the line.
        if row is None or site is None or not (frame is None or _same_function(site, frame)):
            return _called(self._in_context(event, frame), frames)
        caller = self._sites.caller(row)
        library = "" if caller is None else package_of(site.file or "")
        return Waiting(self._in_context(event, site), caller or next(frames, None), library)

    def _in_context(self, event: int, line: Where | None) -> Where:
        """A line with the module and the outermost operator around the event."""
        outer = int(self.host.outer_operator[event])
        outer = int(self._framework_range[event]) if outer == NONE else outer
        module = int(self.work.tree.of_event[event])
        frame = line or Where()
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
        return next(self._frames(event), None)

    def _frames(self, event: int) -> Iterator[Where]:
        """The frames around a host event that can be named, the innermost first."""
        row = event
        while row != NONE:
            found = parse_frame(self.trace.names[self.trace.name_codes[row]])
            if found is not None:
                yield found
            row = int(self.host.parent[row])

    def _site(self, event: int) -> Where | None:
        row = self._site_row(event)
        return None if row is None else self._sites.where(row)

    def _site_row(self, event: int) -> int | None:
        """A line that the recorder's hook saw for the operator around this event, on its thread:
        the framework warns right after an operator that waited, a watched call is noted right
        before it."""
        sites = self._sites
        if not len(sites):
            return None
        operator = int(self.host.outer_operator[event])
        around = operator if operator != NONE else event
        start, end = int(self.trace.start_ns[around]), int(self.trace.end_ns[around])
        thread = int(self._tids[around])
        # The last call since the operator before began, else the first warning after it began.
        since = max(self._began_before(around) - _CLOCKS_NS, start - _CALL_BEFORE_NS)
        row = sites.lines(thread, called=True).last(since, end)
        if row is None:
            row = sites.lines(thread, called=False).first(start, end + _WARNED_AFTER_NS)
        return row

    def _began_before(self, operator: int) -> int:
        """When the outermost operator before this one began on its thread; 0 for none."""
        starts = self._outer_starts.get(int(self._tids[operator]))
        at = 0 if starts is None else bisect_left(starts, int(self.trace.start_ns[operator]))
        return starts[at - 1] if starts is not None and at else 0

    @cached_property
    def _outer_starts(self) -> dict[int, list[int]]:
        """When the outermost operators of each thread began."""
        rows = np.unique(self.host.outer_operator)
        rows = rows[rows != NONE]
        tids, starts = self._tids[rows], self.trace.start_ns[rows]
        return {tid: np.sort(starts[tids == tid]).tolist() for tid in np.unique(tids).tolist()}


def _called(line: Where, around: Iterator[Where]) -> Waiting:
    """A line with the frame around it; with one of a library the innermost that is of none."""
    if not is_library(line.file or ""):
        return Waiting(line, next(around, None))
    caller = next((outer for outer in around if not is_library(outer.file or "")), None)
    return Waiting(line, caller, "" if caller is None else package_of(line.file or ""))


def _same_function(site: Where, frame: Where) -> bool:
    """Frames name a file from any folder of the path on."""
    same_file = (site.file or "").endswith(without_folder(frame.file or ""))
    return same_file and site.function == frame.function
