"""Which samples of the stacks are of threads that wait for another: they are where they are for
what the others do, and explain a pause only where nobody does anything."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analyzers.intervals import Longs

Mask = NDArray[np.bool_]

# Functions of the standard library, and of an event loop written in C, in which a thread waits for
# another, or for a request: file and function.
_WAITING = re.compile(
    r"(?:^|/)(?:"
    r"threading\.py:(?!(?:Thread\.)?run$)"
    r"|(?:queue|selectors|socketserver|concurrent/futures/_base|multiprocessing/synchronize)\.py:"
    r"|concurrent/futures/thread\.py:_worker$"
    r"|socket\.py:(?:socket\.)?accept$"
    r"|(?:asyncio/runners|uvloop/__init__)\.py:(?:Runner\.)?run$"
    r")"
)
# A thread that is at one line in this share of the looks at which others work, and more than once,
# does there what it always does: a monitor that sleeps, say.
_ALWAYS, _LEAST = 0.3, 2


def waits(table: pd.DataFrame) -> Mask:
    """Whether each sample is of a thread that waits for another, as far as that is known."""
    known: Mask = _in_waiting_functions(table) | (table["awaited"].astype(str) != "").to_numpy()
    return known


def wait_for_lock(table: pd.DataFrame) -> Mask:
    """Whether each sample is of a thread that waits for a lock of the program, and not for that by
    which the standard library waits for an event."""
    locks = (table["awaited"].astype(str) == "lock").to_numpy()
    known: Mask = locks & ~_in_waiting_functions(table)
    return known


def _in_waiting_functions(table: pd.DataFrame) -> Mask:
    files, functions = (table[f"inner_{name}"].astype("category") for name in ("file", "function"))
    places = np.stack([files.cat.codes, functions.cat.codes])
    distinct, place = np.unique(places, axis=1, return_inverse=True)
    names = [
        f"{files.cat.categories[file]}:{functions.cat.categories[function]}"
        for file, function in distinct.T.tolist()
    ]
    waiting = np.array([_WAITING.search(name) is not None for name in names], dtype=bool)
    inside: Mask = waiting[place.reshape(-1)]
    return inside


def telling(table: pd.DataFrame, issuing: Mask) -> Mask:
    """The samples that tell what the program does. `issuing`: those of threads that issue work.

    A thread that waits tells nothing at a time when one of them does something, or, where all of
    them wait, when a line of the user runs in another thread."""
    busy = ~waits(table)
    look = np.unique(table["time_ns"].to_numpy(), return_inverse=True)[1]
    works = _any(look, busy & issuing)
    others = busy & ~issuing & ~works & (table["file"].astype(str) != "").to_numpy()
    others &= ~_always_there(table, look, busy & ~issuing)
    helped = _any(look, others)
    chosen: Mask = np.where(works, busy & issuing, np.where(helped, others, issuing))
    return chosen


def _any(look: Longs, chosen: Mask) -> Mask:
    """For each sample, whether one of the same look is chosen."""
    found = np.bincount(look[chosen], minlength=int(look.max(initial=-1)) + 1) > 0
    return found[look]


def _always_there(table: pd.DataFrame, look: Longs, others: Mask) -> Mask:
    """Which of these samples are of threads that are at that line whatever the rest does."""
    keys = [table["thread"], table["file"].astype(str), table["line"]]
    place = pd.Series(look).groupby([key.to_numpy() for key in keys]).ngroup().to_numpy()
    beside = others & _any(look, ~others & ~waits(table))
    held = np.bincount(place[beside], minlength=int(place.max(initial=-1)) + 1)
    looks = np.unique(look[~others & ~waits(table)]).size
    always: Mask = others & (held >= max(_ALWAYS * looks, _LEAST))[place]
    return always
