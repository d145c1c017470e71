"""When each collective was issued, on a clock that stands still while its host is held up.

A host that runs ahead shows how fast it is; one that waits does not. What is left when waiting is
taken out can be compared between ranks: who is late and takes no longer than the others is not slow
but behind, and they would wait for it all the same.
"""

from __future__ import annotations

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers.facts.calls import is_synchronize
from tracer.analyzers.intervals import NONE, Longs, covered, union
from tracer.events import Trace


def issued_ns(analysis: Analysis) -> Longs:
    """For each collective when its host issued it, less what it had been held up before; -1 where
    its launch was not recorded."""
    launch = analysis.work["launch"].to_numpy()[analysis.collectives["work"].to_numpy()]
    known = launch != NONE
    if not known.any():
        return np.full(launch.size, NONE, dtype=np.int64)
    start = analysis.trace.start_ns[np.maximum(launch, 0)]
    since = np.full(start.size, analysis.window.start_ns, dtype=np.int64)
    held = covered(since, np.maximum(start, since), *_held(analysis))
    return np.where(known, start - held, NONE)


def _held(analysis: Analysis) -> tuple[Longs, Longs]:
    """When the host was held up: in calls that wait for the device or copy, and where it was silent
    until a collective ended."""
    trace, threads = analysis.trace, _issuing_threads(analysis)
    runtime = _of_threads(trace, trace.rows("runtime"), threads)
    waits = runtime[np.isin(trace.name_codes[runtime], _waiting_names(trace))]
    silent = _silent_until(analysis, _of_threads(trace, trace.rows("operator"), threads), runtime)
    starts = np.concatenate([trace.start_ns[waits], silent[0]])
    return union(starts, np.concatenate([trace.end_ns[waits], silent[1]]))


def _issuing_threads(analysis: Analysis) -> Longs:
    launches = analysis.work["launch"].to_numpy()
    threads = analysis.trace.events["thread"].to_numpy()[launches[launches != NONE]]
    issuing: Longs = np.unique(threads).astype(np.int64)
    return issuing


def _of_threads(trace: Trace, rows: Longs, threads: Longs) -> Longs:
    mine: Longs = rows[np.isin(trace.events["thread"].to_numpy()[rows], threads)]
    return mine


def _waiting_names(trace: Trace) -> list[int]:
    names = enumerate(trace.names)
    return [code for code, name in names if is_synchronize(name) or "Memcpy" in name]


def _silent_until(analysis: Analysis, operators: Longs, runtime: Longs) -> tuple[Longs, Longs]:
    """Of each collective the last part, in which the host did nothing that was recorded: it may
    have waited for the end in a way that leaves no call."""
    trace = analysis.trace
    rows = np.concatenate([operators, runtime])
    begun, ended = union(trace.start_ns[rows], trace.end_ns[rows])
    start, end = (analysis.collectives[name].to_numpy() for name in ("start_ns", "end_ns"))
    if not begun.size:
        return start[:0], end[:0]
    before = np.searchsorted(begun, end, side="right") - 1
    since = np.where(before == NONE, start, ended[np.maximum(before, 0)])
    since = np.maximum(since, start)
    silent = since < end
    return since[silent], end[silent]
