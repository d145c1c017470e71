"""What the process does beside its kernels: garbage collections, and the children it starts."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing.process
import os
import subprocess
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracer.events import SIDE_TABLES, make_table

_MOST_NOTES = 1_000_000  # beginnings and ends of collections
# By the third letter of a phase and the character of a generation. An end has the number of its
# start, negated.
_KINDS = {
    f"{letter}{generation:c}": sign * (generation + 1)
    for letter, sign in (("start"[2], 1), ("stop"[2], -1))
    for generation in range(3)
}


class Collections:
    """Automatic and explicit runs of Python's garbage collector, in any thread."""

    def __init__(self) -> None:
        # Plain integers: a container that the collector tracks would make it run more often.
        self._rows = array("q")  # kind, time_ns
        self._note = _noter(self._rows)

    def start(self) -> None:
        gc.callbacks.append(self._note)

    def close(self) -> None:
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def table(self) -> pd.DataFrame:
        """The `collections` table, in order of start."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 2)
        kinds = rows[:, 0]
        # A recording may begin or end within one.
        first = np.flatnonzero((kinds[:-1] > 0) & (kinds[1:] == -kinds[:-1]))
        return make_table(
            SIDE_TABLES["collections"],
            {
                "start_ns": rows[first, 1],
                "end_ns": rows[first + 1, 1],
                "generation": (kinds[first] - 1).astype(np.int32),
            },
        )


def _noter(rows: array[int]) -> Callable[..., object]:
    """What the collector calls with a phase and what it says of it: extends `rows`.

    It runs no Python: a signal that came during the collection would be handled there, and all
    that is raised in what the collector calls is lost: `KeyboardInterrupt`, an alarm. So the words
    are put together as text, which is asked for by two objects that are formatted: the first is
    told the kind, the second adds the row.
    """
    told = defaultdict[str, str](str)
    kinds = map(_KINDS.__getitem__, map(itemgetter(0), iter(told.popitem, None)))
    added = map(rows.extend, zip(kinds, iter(time.time_ns, None), strict=False))
    texts = map({None: ""}.__getitem__, itertools.islice(added, _MOST_NOTES))
    tell = _formatted_by(told.__getitem__)
    add = _formatted_by(functools.partial(next, texts))
    # As a character: to make digits of a number, Python asks for signals.
    return functools.partial("{0:{2[2]}{3[generation]:c}}{1}".format, tell, add)


def _formatted_by(function: Callable[[str], str]) -> object:
    """Something whose text a function makes."""
    return type("", (), {"__format__": staticmethod(function)})()


class Children:
    """Processes that this one starts while the trace lives, also those that end before it does."""

    def __init__(self) -> None:
        self._pids: dict[int, None] = {}
        self._patches: list[tuple[type, str, Any, Any]] = []

    def start(self) -> None:
        self._patch(multiprocessing.process.BaseProcess, "start")
        self._patch(subprocess.Popen, "__init__")

    def _patch(self, owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)
        pids = self._pids

        @functools.wraps(original)
        def call(process: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(process, *args, **kwargs)
            pid = getattr(process, "pid", None)
            if isinstance(pid, int):
                pids[pid] = None
            return result

        self._patches.append((owner, name, original, call))
        setattr(owner, name, call)

    def close(self) -> None:
        while self._patches:
            owner, name, original, call = self._patches.pop()
            if vars(owner).get(name) is call:
                setattr(owner, name, original)
        self._pids.update(dict.fromkeys(living_children()))

    @property
    def pids(self) -> list[int]:
        """In order of their start, without the helpers of multiprocessing and of the compiler."""
        helpers = _helper_pids()
        return [pid for pid in self._pids if pid not in helpers and not _compiles(pid)]


def _helper_pids() -> set[int | None]:
    """Processes that multiprocessing starts for itself."""
    places = (
        ("resource_tracker", "_resource_tracker", "_pid"),
        ("forkserver", "_forkserver", "_forkserver_pid"),
    )
    return {
        getattr(getattr(sys.modules.get(f"multiprocessing.{module}"), owner, None), name, None)
        for module, owner, name in places
    }


def _compiles(pid: int) -> bool:
    """Whether it is a worker of Inductor, which uses no GPU; where the system tells."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"_inductor" in command and b"compile_worker" in command


def living_children() -> list[int]:
    """Children of this process that live now, where the system tells."""
    pids: list[int] = []
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            pids += [int(pid) for pid in path.read_text().split()]
        except OSError:  # the thread has just ended
            continue
    return [pid for pid in pids if not _has_ended(pid)]


def _has_ended(pid: int) -> bool:
    """Whether nothing is left of a process but its status, which nobody has asked for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"
