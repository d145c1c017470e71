"""Loops that read values one after another, from the lines of their reads: no sample is needed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.analyzers.intervals import Longs
from tracer.analyzers.names.libraries import without_folder
from tracer.events import Trace
from tracer.findings import Where

# Two reads in a row belong to one loop where so few pauses between operators lie between them.
_TURN = 16


def read_loops(
    trace: Trace, starts: Longs, steps: Longs, least: int
) -> list[tuple[Where, Longs, int]]:
    """Functions with at least so many reads in a row, with those of these pauses (by their starts,
    which are in order) that lie between two reads of one step, and the number of reads. `steps`:
    when each step begins."""
    table = trace.table("host_sites")
    table = table[(table["cause"] == "called").to_numpy()]
    if not len(table) or not starts.size:
        return []
    table = table.sort_values(["thread", "time_ns"], kind="stable").reset_index(drop=True)
    place = table.groupby(["file", "function"], observed=True, sort=False).ngroup().to_numpy()
    thread, time = table["thread"].to_numpy(), table["time_ns"].to_numpy()
    first = np.searchsorted(starts, time)
    same = [column[1:] == column[:-1] for column in (place, thread, np.searchsorted(steps, time))]
    turn = np.logical_and.reduce(same) & (np.diff(first) <= _TURN)
    out = []
    for code in np.unique(place[:-1][turn]).tolist():
        rows = np.flatnonzero(turn & (place[:-1] == code))
        if rows.size >= least:
            between = _between(first[rows], first[rows + 1], starts.size)
            out.append((_where(table.iloc[rows]), between, int(rows.size)))
    return out


def _between(first: Longs, last: Longs, size: int) -> Longs:
    """The numbers in any of these ranges."""
    begins = np.bincount(first, minlength=size + 1) - np.bincount(last, minlength=size + 1)
    inside: Longs = np.flatnonzero(np.cumsum(begins)[:size] > 0)
    return inside


def _where(reads: pd.DataFrame) -> Where:
    """The function, at the line that reads most."""
    row = reads.iloc[0]
    line = int(reads["line"].mode().iloc[0])
    return Where(without_folder(str(row["file"])), line, str(row["function"]))
