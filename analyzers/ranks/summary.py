"""What one rank leaves for the comparison with others: a summary, and rows of its collectives."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from tracer.analysis import BUCKETS, GROUPS, TRANSFER, Analysis
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.names.kernel_table import describe
from tracer.analyzers.ranks.issued import issued_ns
from tracer.analyzers.rules.judging import steady_steps
from tracer.analyzers.tables import steady_rows
from tracer.rank_analysis import ROW, KindTotal, Lane, RankSummary, Rows

# Steps whose times a summary keeps.
MOST_STEPS = 4096
_MOST_WRITTEN = 16
_IDLE = tuple(
    code for code, bucket in enumerate(BUCKETS) if bucket[0] == "overhead" and code != TRANSFER
)
_COMPUTE = tuple(c for c, b in enumerate(BUCKETS) if b[0] not in ("overhead", "communication"))
# The sizes of these may differ between the ranks of one call.
_UNEVEN = ("all_to_all", "all_gather", "reduce_scatter", "expert_parallel", "kv_transfer", "other")


def summarise_rank(analysis: Analysis, rank: int, path: str) -> tuple[RankSummary, Rows]:
    """The summary of a rank's analysis, and its collectives by lane and order."""
    analysis = _within_window(analysis)
    collectives = analysis.collectives
    keys = lane_keys(analysis)
    lane, order, ordinal, numbered = _lanes_of(analysis, keys)
    rows = _rows(analysis, order, ordinal)
    meta, window = analysis.trace.meta, analysis.window
    walls = analysis.steps["wall_ns"].to_numpy()[steady_steps(analysis)]
    summary = RankSummary(
        rank=rank,
        path=path,
        world_size=meta.world_size,
        host=_host(meta.extra),
        clock=meta.clock,
        coarse=any(note.rule == "trace.coarse_clock" for note in analysis.notes),
        status=analysis.integrity_status,
        devices=window.devices,
        window_start_ns=window.start_ns,
        wall_ns=window.wall_ns,
        capacity_ns=window.capacity_ns,
        busy_ns=window.busy_ns,
        idle_ns=window.idle_ns,
        steps=_recognised_steps(analysis),
        median_step_ns=int(np.median(walls)) if walls.size else None,
        groups_ns=_groups_ns(analysis) if analysis.accounted else None,
        exposed_ns=_groups_ns(analysis)["communication"] if analysis.accounted else None,
        overlapped_ns=analysis.overlapped_ns,
        cpu_only=analysis.cpu_only,
        lanes=_lanes(analysis, keys, lane[order], numbered),
        kinds=tuple(_kinds(collectives)[1]),
        totals=_totals(rows, len(_kinds(collectives)[1])),
        group_sizes=_group_sizes(collectives),
        findings=analysis.findings,
        checks=analysis.checks,
        notes=analysis.notes,
        step_times=_step_times(analysis),
        step_tokens=analysis.steps["tokens"].to_numpy()[steady_steps(analysis)][:MOST_STEPS],
        phase_walls=_phase_walls(analysis),
        device=_device(analysis),
        framework=meta.framework,
    )
    return summary, rows


def _within_window(analysis: Analysis) -> Analysis:
    """The analysis without the collectives before and after its window."""
    kept = analysis.collectives[analysis.collectives_in_window]
    return replace(analysis, collectives=kept.reset_index(drop=True))


def _recognised_steps(analysis: Analysis) -> int:
    sources = analysis.steps["source"].astype(str)
    return int((sources != "window").sum())


def _host(extra: Mapping[str, Any]) -> str | None:
    name = extra.get("host_name") or extra.get("hostname")
    return str(name) if name else None


def _device(analysis: Analysis) -> str | None:
    devices = analysis.trace.table("devices")
    worked = devices["device"].isin(analysis.work["device"].unique())
    names = dict.fromkeys(str(name) for name in devices["name"][worked] if str(name))
    return ", ".join(names) or None


def _groups_ns(analysis: Analysis) -> dict[str, int]:
    sums = dict.fromkeys(GROUPS, 0)
    charges = analysis.charges
    for bucket, ns in zip(charges["bucket"].tolist(), charges["ns"].tolist(), strict=True):
        sums[BUCKETS[bucket][0]] += ns
    return sums


def _step_times(analysis: Analysis) -> Longs:
    """Wall, compute and idle of the steady steps."""
    count = len(analysis.steps)
    charges = analysis.charges
    step, bucket = charges["step"].to_numpy(), charges["bucket"].to_numpy()
    ns = charges["ns"].to_numpy()
    times = np.zeros((count, 3), dtype=np.int64)
    times[:, 0] = analysis.steps["wall_ns"].to_numpy()
    for column, codes in ((1, _COMPUTE), (2, _IDLE)):
        counted = (step != NONE) & np.isin(bucket, codes)
        np.add.at(times[:, column], step[counted], ns[counted])
    return times[steady_steps(analysis)][:MOST_STEPS]


def _phase_walls(analysis: Analysis) -> dict[str, Longs]:
    """Wall times of the steady steps of each phase; none of a window that stands for steps."""
    steps, walls = analysis.steps, analysis.steps["wall_ns"].to_numpy()
    found = (steps["source"] != "window").to_numpy()
    phases = steps["phase"].astype(str).to_numpy()
    rows = {
        str(phase): steady_rows(steps, found & (phases == phase))
        for phase in dict.fromkeys(phases[found])
    }
    return {phase: walls[chosen][:MOST_STEPS] for phase, chosen in rows.items()}


# --- lanes ---------------------------------------------------------------------------------------


def _lanes_of(
    analysis: Analysis, keys: Sequence[str]
) -> tuple[Longs, Longs, Longs, dict[int, bool]]:
    """The lane of each collective, their order by lane, their ordinals in that order, and which
    lanes have recorded sequence numbers."""
    collectives = analysis.collectives
    names = {key: code for code, key in enumerate(sorted(set(keys)))}
    lane = np.array([names[key] for key in keys], dtype=np.int64)
    sequence = collectives["sequence"].to_numpy()
    asked, start = _asked_ns(analysis, lane), collectives["start_ns"].to_numpy()
    numbered = {code: _is_numbered(sequence[lane == code]) for code in names.values()}
    by_number = np.array([numbered[code] for code in lane.tolist()], dtype=bool)
    order = np.lexsort((start, asked, np.where(by_number, sequence, 0), lane))
    position = np.arange(lane.size) - _first_of(lane[order])
    return lane, order, np.where(by_number[order], sequence[order], position), numbered


def _is_numbered(sequence: Longs) -> bool:
    """Whether these sequence numbers tell every call from every other."""
    return bool((sequence >= 0).all()) and np.unique(sequence).size == sequence.size


def _first_of(ordered: Longs) -> Longs:
    """For each row of an ordered column the place of the first row with its value."""
    first: Longs = np.searchsorted(ordered, ordered, side="left").astype(np.int64)
    return first


def _asked_ns(analysis: Analysis, lane: Longs) -> Longs:
    """When each collective was launched, where all of its lane were seen to be: the ranks of a
    group launch in one order, but streams may start in another."""
    launch = analysis.work["launch"].to_numpy()[analysis.collectives["work"].to_numpy()]
    start = analysis.collectives["start_ns"].to_numpy()
    seen = np.ones(int(lane.max()) + 1 if lane.size else 0, dtype=bool)
    seen[lane[launch == NONE]] = False
    asked: Longs = np.where(seen[lane], analysis.trace.start_ns[np.maximum(launch, 0)], start)
    return asked


def lane_keys(analysis: Analysis) -> list[str]:
    """For each collective what its calls on other ranks have in common with it."""
    collectives = analysis.collectives
    members = _members(analysis)
    names = analysis.trace.names
    code = analysis.trace.name_codes[
        analysis.work["event"].to_numpy()[collectives["work"].to_numpy()]
    ]
    columns = ("group", "op", "direction", "peer")
    rows = zip(*(collectives[column].tolist() for column in columns), code.tolist(), strict=True)
    return [
        _key(group, op, direction, peer, members.get(group, ()), names[name], analysis)
        for group, op, direction, peer, name in rows
    ]


def _key(
    group: str,
    op: str,
    direction: str,
    peer: int,
    members: tuple[int, ...],
    name: str,
    analysis: Analysis,
) -> str:
    if op == "send_recv":
        pair = _pair(direction, peer, members, analysis.trace.meta.rank)
        return f"{group}|{_written(members)}|send_recv {pair}"
    if group:
        return f"{group}|{_written(members)}|"
    return f"||{op} {describe(name).short}"


def _written(members: tuple[int, ...]) -> str:
    """The members as part of a key: as they are, or a digest where they are many."""
    text = ",".join(map(str, members))
    return text if len(members) <= _MOST_WRITTEN else f"{len(members)}:{zlib.crc32(text.encode())}"


def _pair(direction: str, peer: int, members: tuple[int, ...], rank: int | None) -> str:
    """`1>2` for what rank 1 sends to rank 2; "" where the recording does not say."""
    if not direction or peer < 0 or rank is None:
        return ""
    # The peer is counted within the group.
    other = members[peer] if peer < len(members) else peer
    return f"{rank}>{other}" if direction == "send" else f"{other}>{rank}"


def _members(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group, as far as the recording says."""
    found: dict[str, tuple[int, ...]] = {}
    for group in analysis.trace.meta.process_groups:
        ranks = group.get("ranks")
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            found[str(group.get("pg_name", ""))] = tuple(ranks)
    groups = analysis.collectives["group"].tolist()
    for group, ranks in set(zip(groups, analysis.collectives["ranks"].tolist(), strict=True)):
        # A long list beside a call is cut; the header's is whole.
        found[group] = max(parse_ranks(ranks), found.get(group, ()), key=len)
    return found


@lru_cache(maxsize=4096)
def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks in a JSON list; () when it is cut or none."""
    try:
        ranks = json.loads(text) if text else []
    except ValueError:
        return ()
    good = isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks)
    return tuple(ranks) if good else ()


def _lanes(
    analysis: Analysis, keys: Sequence[str], ordered: Longs, numbered: Mapping[int, bool]
) -> tuple[Lane, ...]:
    members, descriptions = _members(analysis), _descriptions(analysis)
    lanes: list[Lane] = []
    for code, key in enumerate(sorted(set(keys))):
        first, last = np.searchsorted(ordered, [code, code + 1]).tolist()
        group = key.split("|", 1)[0]
        lanes.append(
            Lane(
                key,
                group,
                descriptions.get(group, ""),
                members.get(group, ()),
                first,
                last - first,
                numbered[code],
            )
        )
    return tuple(lanes)


def _descriptions(analysis: Analysis) -> dict[str, str]:
    table = analysis.trace.table("collectives")
    said = dict(
        zip(table["group"].astype(str), table["group_description"].astype(str), strict=True)
    )
    for group in analysis.trace.meta.process_groups:
        name = str(group.get("pg_name", ""))
        said[name] = said.get(name) or str(group.get("pg_desc") or "")
    return said


# --- rows ----------------------------------------------------------------------------------------


def _rows(analysis: Analysis, order: Longs, ordinal: Longs) -> Rows:
    collectives = analysis.collectives
    rows = np.zeros(len(collectives), dtype=ROW)
    rows["ordinal"] = ordinal
    for column in (
        "start_ns",
        "end_ns",
        "exposed_ns",
        "overlapped_ns",
        "bytes",
        "in_elements",
        "out_elements",
        "step",
    ):
        rows[column] = collectives[column].to_numpy()[order]
    rows["kind"] = np.array(_kinds(collectives)[0], dtype=np.int32)[order]
    rows["like"] = _likeness(collectives)[order]
    rows["issued_ns"] = issued_ns(analysis)[order]
    rows["before_ns"] = _before(collectives, analysis.window.start_ns)[order]
    return rows


def _kinds(collectives: pd.DataFrame) -> tuple[list[int], list[tuple[str, str]]]:
    """The operation and group of each collective as a code, and the codes."""
    pairs = list(zip(collectives["op"].tolist(), collectives["group"].tolist(), strict=True))
    known = {pair: code for code, pair in enumerate(sorted(set(pairs)))}
    return [known[pair] for pair in pairs], list(known)


def _totals(rows: Rows, kinds: int) -> tuple[KindTotal, ...]:
    out: list[KindTotal] = []
    for code in range(kinds):
        mine = rows[rows["kind"] == code]
        sized = bool((mine["bytes"] >= 0).all())
        out.append(
            KindTotal(
                mine.size,
                int(mine["bytes"].sum()) if sized else None,
                int(mine["exposed_ns"].sum()),
                int(mine["overlapped_ns"].sum()),
            )
        )
    return tuple(out)


def _likeness(collectives: pd.DataFrame) -> Longs:
    sizes = zip(collectives["op"].tolist(), collectives["bytes"].tolist(), strict=True)
    return np.array([_like(op, NONE if op in _UNEVEN else size) for op, size in sizes], np.int64)


@lru_cache(maxsize=65536)
def _like(op: str, size: int) -> int:
    return zlib.crc32(f"{op} {size}".encode())


def _before(collectives: pd.DataFrame, window_start: int) -> Longs:
    """When the collectives before each one had ended."""
    start, end = collectives["start_ns"].to_numpy(), collectives["end_ns"].to_numpy()
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(np.concatenate([[window_start], end[order]]))[:-1]
    before = np.empty(start.size, dtype=np.int64)
    before[order] = np.minimum(reach, start[order])
    return before


def _group_sizes(collectives: pd.DataFrame) -> dict[str, int]:
    sizes: dict[str, int] = {}
    pairs = zip(collectives["group"].tolist(), collectives["group_size"].tolist(), strict=True)
    for group, size in set(pairs):
        sizes[group] = max(size, sizes.get(group, NONE))
    return sizes
