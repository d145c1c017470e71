"""Launches joined to their work by arrows, for files in which nothing else joins them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.collectors.kineto.columns import Columns
from tracer.collectors.kineto.fields import EVENTS
from tracer.collectors.kineto.loose import Flow
from tracer.events import DEVICE_WORK, KIND_CODE, NONE

Track = tuple[int, int, int]  # process or device, thread or stream, start


def needs_flows(columns: Columns) -> bool:
    """Whether device work was read and none of it names its launch."""
    kinds = columns.view(EVENTS, "kind")
    work = np.isin(kinds, [KIND_CODE[kind] for kind in DEVICE_WORK])
    return bool(work.any()) and bool((columns.view(EVENTS, "correlation")[work] == NONE).all())


def join_by_flows(columns: Columns, flows: Iterable[Flow]) -> None:
    """Give both ends of each arrow its number as their correlation."""
    launches, work = _launch_rows(columns), _work_rows(columns)
    joined: dict[int, int] = {}
    for flow in flows:
        rows = launches if flow.starts else work
        row = rows.get((flow.pid, flow.tid, flow.ns))
        if row is not None:
            joined[row] = flow.id
    columns.put(EVENTS, "correlation", list(joined), list(joined.values()))


def _launch_rows(columns: Columns) -> dict[Track, int]:
    threads = list(columns.threads)
    rows = np.flatnonzero(columns.view(EVENTS, "kind") == KIND_CODE["runtime"])
    codes = columns.view(EVENTS, "thread")[rows]
    starts = columns.view(EVENTS, "start_ns")[rows]
    return {
        (*threads[code], start): row
        for code, start, row in zip(codes.tolist(), starts.tolist(), rows.tolist(), strict=True)
    }


def _work_rows(columns: Columns) -> dict[Track, int]:
    wanted = [KIND_CODE[kind] for kind in DEVICE_WORK]
    rows = np.flatnonzero(np.isin(columns.view(EVENTS, "kind"), wanted))
    found = [columns.view(EVENTS, name)[rows] for name in ("device", "stream", "start_ns")]
    places = zip(*(values.tolist() for values in found), strict=True)
    return {(int(a), int(b), int(c)): int(row) for (a, b, c), row in zip(places, rows, strict=True)}
