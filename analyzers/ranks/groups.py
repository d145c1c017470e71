"""Process groups told apart: tensor, data, pipeline, expert parallel.

By what the program called them, else by what they do and which ranks they join.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tracer.analyzers.ranks.match import JoinedLane
from tracer.rank_analysis import GroupResult, RankSummary

_WORDS = (
    ("EP", re.compile(r"(?<![a-z])(ep|expert|moe)(?![a-z])|expert")),
    ("TP", re.compile(r"(?<![a-z])(tp|sp)(?![a-z])|tensor|model_?parallel|sequence_?parallel")),
    ("PP", re.compile(r"(?<![a-z])pp(?![a-z])|pipe")),
    ("CP", re.compile(r"(?<![a-z])cp(?![a-z])|context_?parallel|ring_?attn|ulysses")),
    ("DP", re.compile(r"(?<![a-z])(dp|ddp|fsdp|hsdp)(?![a-z])|data|shard|replicat")),
)
_SHARDED = {"all_gather", "reduce_scatter"}


def describe_groups(
    lanes: Sequence[JoinedLane], summaries: Mapping[int, RankSummary]
) -> tuple[GroupResult, ...]:
    """The process groups in which collectives were made, the busiest first."""
    by_group: dict[tuple[str, tuple[int, ...]], list[JoinedLane]] = {}
    for lane in lanes:
        group = next(iter(lane.lanes.values())).group
        by_group.setdefault((group, lane.members), []).append(lane)
    found = [_group(name, members, held, summaries) for (name, members), held in by_group.items()]
    return tuple(sorted(found, key=lambda group: (-group.count, group.name, group.members)))


def _group(
    name: str,
    members: tuple[int, ...],
    lanes: Sequence[JoinedLane],
    summaries: Mapping[int, RankSummary],
) -> GroupResult:
    description = next((own.description for lane in lanes for own in lane.lanes.values()), "")
    first = min(rank for lane in lanes for rank in lane.lanes)
    ops = {op for op, group in summaries[first].kinds if group == name}
    kind, basis = _kind_of(description or name, ops, members, summaries) if name else ("", "")
    count = sum(max(own.count for own in lane.lanes.values()) for lane in lanes)
    return GroupResult(name, description, members, kind, basis, count, tuple(sorted(ops)))


def _kind_of(
    called: str,
    ops: set[str],
    members: tuple[int, ...],
    summaries: Mapping[int, RankSummary],
) -> tuple[str, str]:
    lower = called.lower()
    for kind, words in _WORDS:
        if words.search(lower):
            return kind, f"it is called {called}"
    if ops == {"send_recv"}:
        return "PP", "only sends and receives between its ranks"
    if "expert_parallel" in ops:
        return "EP", "dispatch and combine of experts"
    if ops and ops <= _SHARDED:
        return "DP", "weights gathered and gradients scattered"
    return _by_exposure(ops, members, summaries)


def _by_exposure(
    ops: set[str], members: tuple[int, ...], summaries: Mapping[int, RankSummary]
) -> tuple[str, str]:
    """A sum in the stream of the compute is one that the next layer needs."""
    if "all_reduce" not in ops or not members:
        return "", ""
    known = [summaries[rank] for rank in members if rank in summaries]
    rules = {finding.rule for summary in known for finding in summary.findings}
    if "comm.same_stream" in rules:
        return "TP", "sums in the stream of the compute"
    if any(summary.overlapped_ns for summary in known):
        return "DP", "sums beside the compute, on a stream of their own"
    return "", ""
