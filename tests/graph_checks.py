"""Replays of a graph beside the kernels of the same step launched one by one."""

from __future__ import annotations

from collections import Counter

import pytest

from tracer.analysis import BUCKETS, Analysis

Row = tuple[str, str, int]  # kernel, group, nanoseconds


def nodes(analysis: Analysis, *, replayed: bool) -> list[Row]:
    """Kernels in order of start that a graph launched, or that were launched one by one."""
    trace_, work = analysis.trace, analysis.work
    names = trace_.events["name"].astype(str).to_numpy()
    order = trace_.start_ns[work["event"].to_numpy()].argsort(kind="stable")
    rows = []
    for row in order.tolist():
        launch, event = int(work["launch"].iloc[row]), int(work["event"].iloc[row])
        is_replay = launch >= 0 and "GraphLaunch" in names[launch]
        if is_replay is replayed and not names[event].startswith("Mem"):
            group = BUCKETS[int(work["bucket"].iloc[row])][0]
            rows.append((names[event], group, int(work["charged_ns"].iloc[row])))
    return rows


def by_group(rows: list[Row]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for _, group, ns in rows:
        sums[group] += ns
    return dict(sums)


def one_of(rows: list[Row], times: int) -> list[Row]:
    """The kernels of the first of so many equal steps."""
    assert len(rows) % times == 0
    return rows[: len(rows) // times]


def graph_ratio(analysis: Analysis) -> float:
    """Share of the replayed kernels' time that the capture explains."""
    work = analysis.work
    names = analysis.trace.events["name"].astype(str).to_numpy()
    launch = work["launch"].to_numpy()
    replayed = [row >= 0 and "GraphLaunch" in names[row] for row in launch.tolist()]
    mine = work[replayed]
    # What a model does outside of its parts has the model for its module, and its role from there.
    told = mine["charged_ns"][mine["module"] >= 0].sum()
    return float(told / mine["charged_ns"].sum())


def agree(found: list[Row], wanted: list[Row], replays: int) -> None:
    """Every node has the group of the same kernel of the eager step. Where a library chose other
    kernels for the capture, the groups take as long as there."""
    size = len(found) // replays
    for number in range(replays):
        part = found[number * size : (number + 1) * size]
        if [row[0] for row in part] == [row[0] for row in wanted]:
            assert [row[1] for row in part] == [row[1] for row in wanted]
            continue
        eager, replayed = by_group(wanted), by_group(part)
        for group in eager:
            assert replayed[group] == pytest.approx(eager[group], rel=0.1), (group, number)


def launch_ends(analysis: Analysis) -> list[tuple[int, int]]:
    """Where the nodes of each replay begin and end among all of them."""
    trace_, work = analysis.trace, analysis.work
    names = trace_.events["name"].astype(str).to_numpy()
    launch = work["launch"].to_numpy()
    kernels = [not names[event].startswith("Mem") for event in work["event"].tolist()]
    counts = Counter(
        row
        for row, kernel in zip(launch.tolist(), kernels, strict=True)
        if row >= 0 and kernel and "GraphLaunch" in names[row]
    )
    ends, at = [], 0
    for row in sorted(counts):
        ends.append((at, at + counts[row]))
        at += counts[row]
    return ends


def agree_in_number(found: list[Row], wanted: list[Row]) -> None:
    """Streams interleave otherwise than in the eager step, and share the time: compared is how
    often a kernel of one name serves each group."""
    assert Counter(row[:2] for row in found) == Counter(row[:2] for row in wanted)
