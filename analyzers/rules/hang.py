"""Rule comm.hang: which collective never completed, and who did not call it.

From flight-recorder dumps. In each group the first call that is not completed is the one to ask
about: a rank that never called it, a call that does not fit the others', or the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.analysis import RuleResult
from tracer.events import Note
from tracer.findings import Check, Finding, Where
from tracer.rank_records import FlightDump, FlightEntry

HANG = "comm.hang"
_PEERS = re.compile(r"(send|recv)\s*(\d+)\s*(?:->|<-)\s*(\d+)")
# Frames that are never the place: the framework, the interpreter and what starts processes.
_PLUMBING = re.compile(
    r"<|.*[\\/](torch|torchgen|triton|deepspeed[\\/]comm)[\\/]|.*[\\/]multiprocessing[\\/]"
    r"|.*[\\/](contextlib|functools|threading|runpy)\.py$"
)
# Ranks of one call may give these different sizes.
_UNEVEN = ("all_to_all", "alltoall", "all_gather", "gather", "scatter", "broadcast", "send", "recv")
_MOST_RANKS, _MOST_FRAMES = 16, 8

NOT_CALLED, NO_DUMP = "not-called", "no-dump"
DIFFERENT, SIZES = "different-operation", "different-sizes"
BLOCKED, NETWORK, ORDER = "blocked-before-it", "network", "different-order"


@dataclass(frozen=True)
class _Stuck:
    """The first call of a group that did not complete."""

    group: str
    description: str
    sequence: int
    entries: Mapping[int, FlightEntry]  # by rank: who called it
    missing: tuple[int, ...]  # who has a dump and did not
    silent: tuple[int, ...]  # members without a dump
    is_p2p: bool = False


def judge_hang(dumps: Sequence[FlightDump]) -> RuleResult:
    """The rule over the dumps of the ranks of one run."""
    if not dumps:
        return RuleResult(checks=(Check(HANG, "not_checked", "no flight-recorder dumps"),))
    by_rank, notes = _by_rank(dumps)
    counted = _counted(by_rank)
    stuck = [*_stuck_groups(by_rank, counted), *_stuck_pairs(by_rank)]
    findings = tuple(_finding(found, by_rank, counted) for found in _roots(stuck, counted))
    ranks = ", ".join(map(str, sorted(by_rank)))
    if findings:
        check = Check(HANG, "found", "")
    else:
        check = Check(HANG, "clear", f"every collective in the dumps of ranks {ranks} completed")
    return RuleResult(findings, (check,), tuple(notes))


def _by_rank(dumps: Sequence[FlightDump]) -> tuple[dict[int, FlightDump], list[Note]]:
    """The dumps by rank; of two with one rank the first is taken, and it is said."""
    by_rank: dict[int, FlightDump] = {}
    notes: list[Note] = []
    for dump in dumps:
        if dump.rank is None:
            text = f"{dump.path}: left out, neither the dump nor its name says of which rank it is"
            notes.append(Note("ranks.unknown", text, partial=True))
        elif dump.rank in by_rank:
            text = (
                f"{by_rank[dump.rank].path} and {dump.path} are both of rank {dump.rank}: "
                "the first was taken"
            )
            notes.append(Note("ranks.conflict", text, partial=True))
        else:
            by_rank[dump.rank] = dump
    return by_rank, notes


# --- what did not complete -----------------------------------------------------------------------


def _stuck_groups(dumps: Mapping[int, FlightDump], counted: Mapping[str, int]) -> list[_Stuck]:
    """For each group its first collective that somebody waits in."""
    calls: dict[str, dict[int, dict[int, FlightEntry]]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if not entry.is_p2p and entry.sequence >= 0:
                calls.setdefault(entry.group, {}).setdefault(rank, {})[entry.sequence] = entry
    found = (_stuck_group(group, by_rank, dumps, counted) for group, by_rank in calls.items())
    return [stuck for stuck in found if stuck is not None]


def _stuck_group(
    group: str,
    calls: Mapping[int, Mapping[int, FlightEntry]],
    dumps: Mapping[int, FlightDump],
    counted: Mapping[str, int],
) -> _Stuck | None:
    open_calls = [
        sequence
        for own in calls.values()
        for sequence, entry in own.items()
        if not _is_done(entry, counted)
    ]
    if not open_calls:
        return None
    sequence = min(open_calls)
    entries = {rank: own[sequence] for rank, own in calls.items() if sequence in own}
    members = _members(group, dumps) or tuple(calls)
    reached = {rank: _reached(rank, group, calls, dumps) for rank in members if rank in dumps}
    missing = tuple(rank for rank, last in sorted(reached.items()) if last < sequence)
    silent = tuple(rank for rank in sorted(members) if rank not in dumps)
    description = next(iter(entries.values())).description
    return _Stuck(group, description, sequence, entries, missing, silent)


def _is_done(entry: FlightEntry, counted: Mapping[str, int]) -> bool:
    """Whether a call ended, by its state or, in a group of which only counts are kept, by those."""
    return entry.completed or (not entry.is_p2p and entry.sequence <= counted.get(entry.group, -1))


def _counted(dumps: Mapping[int, FlightDump]) -> dict[str, int]:
    """The last call that ended, of groups whose entries stay as they were scheduled: some backends
    count what ended instead. What one rank counts, all have called."""
    stateful = {
        entry.group
        for dump in dumps.values()
        for entry in dump.entries
        if entry.state != "scheduled" and not entry.is_p2p
    }
    counted: dict[str, int] = {}
    for dump in dumps.values():
        for group, last in dump.last_completed.items():
            if group not in stateful:
                counted[group] = max(last, counted.get(group, -1))
    return counted


def _reached(
    rank: int,
    group: str,
    calls: Mapping[int, Mapping[int, FlightEntry]],
    dumps: Mapping[int, FlightDump],
) -> int:
    """The last call of the group that a rank made."""
    recorded = max(calls.get(rank, {}), default=-1)
    return max(recorded, dumps[rank].last_enqueued.get(group, -1))


def _members(group: str, dumps: Mapping[int, FlightDump]) -> tuple[int, ...]:
    for dump in dumps.values():
        if group in dump.members:
            return dump.members[group]
        if len(dump.members) == 1:
            return next(iter(dump.members.values()))
    return ()


def _stuck_pairs(dumps: Mapping[int, FlightDump]) -> list[_Stuck]:
    """For each pair of ranks its first send or receive that one of them waits in."""
    first: dict[tuple[str, int, int], tuple[int, int, FlightEntry]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if not entry.is_p2p or entry.completed:
                continue
            pair = _pair(entry)
            if pair is not None:
                key = (entry.group, *pair)
                known = first.get(key)
                if known is None or entry.sequence < known[1]:
                    first[key] = (rank, entry.sequence, entry)
    return [_stuck_pair(key, *found, dumps) for key, found in first.items()]


def _stuck_pair(
    key: tuple[str, int, int],
    rank: int,
    sequence: int,
    entry: FlightEntry,
    dumps: Mapping[int, FlightDump],
) -> _Stuck:
    group, source, target = key
    entries = {rank: entry}
    other = target if rank == source else source
    for found in dumps[other].entries if other in dumps else ():
        same = found.is_p2p and found.group == group and found.sequence == sequence
        if same and _pair(found) == (source, target):
            entries[other] = found
    absent = other not in entries
    return _Stuck(
        group,
        entry.description,
        sequence,
        entries,
        (other,) if absent and other in dumps else (),
        (other,) if absent and other not in dumps else (),
        is_p2p=True,
    )


def _pair(entry: FlightEntry) -> tuple[int, int] | None:
    """Who sends to whom."""
    found = _PEERS.search(entry.operation)
    if found is None:
        return None
    own, other = int(found[2]), int(found[3])
    return (own, other) if found[1] == "send" else (other, own)


# --- which of them is the cause ------------------------------------------------------------------


def _roots(stuck: Sequence[_Stuck], counted: Mapping[str, int]) -> list[_Stuck]:
    """Calls that wait for no rank that is itself stuck in another; all of them in a circle."""
    waiting = {rank for found in stuck for rank in _waiting(found, counted)}
    roots = [found for found in stuck if not waiting.intersection(found.missing)]
    if roots or not stuck:
        return roots
    first = min(stuck, key=lambda found: (_created(found), found.group))
    return [first]


def _waiting(stuck: _Stuck, counted: Mapping[str, int]) -> list[int]:
    return sorted(rank for rank, e in stuck.entries.items() if not _is_done(e, counted))


def _created(stuck: _Stuck) -> int:
    times = [entry.created_ns for entry in stuck.entries.values() if entry.created_ns is not None]
    return min(times, default=0)


def _cause(stuck: _Stuck, circle: bool) -> str:
    if circle:
        return ORDER
    if stuck.missing:
        return NOT_CALLED
    entries = list(stuck.entries.values())
    if len({_operation(entry) for entry in entries}) > 1 and not stuck.is_p2p:
        return DIFFERENT
    if len({_sizes(entry) for entry in entries}) > 1:
        return SIZES
    if stuck.silent:
        return NO_DUMP
    return NETWORK if any(entry.state == "started" for entry in entries) else BLOCKED


def _operation(entry: FlightEntry) -> str:
    return entry.operation.rpartition(":")[2] or "collective"


def _sizes(entry: FlightEntry) -> tuple[Any, ...]:
    uneven = any(word in _operation(entry) for word in _UNEVEN)
    return () if uneven else (entry.input_sizes, entry.input_types)


# --- in words ------------------------------------------------------------------------------------


def _finding(stuck: _Stuck, dumps: Mapping[int, FlightDump], counted: Mapping[str, int]) -> Finding:
    waiting = _waiting(stuck, counted)
    others = {rank for rank in stuck.missing if _is_waiting_elsewhere(rank, stuck, dumps, counted)}
    cause = _cause(stuck, bool(others))
    place = _place(stuck, waiting)
    return Finding(
        rule=HANG,
        severity="critical",
        title=_title(stuck, cause, waiting, place),
        count=len(waiting),
        where=place,
        detail=_detail(stuck, cause, waiting, dumps),
        advice=_ADVICE[cause],
    )


def _is_waiting_elsewhere(
    rank: int, stuck: _Stuck, dumps: Mapping[int, FlightDump], counted: Mapping[str, int]
) -> bool:
    return any(
        not _is_done(entry, counted)
        and (entry.group, entry.sequence) != (stuck.group, stuck.sequence)
        for entry in dumps[rank].entries
    )


def _place(stuck: _Stuck, waiting: Sequence[int]) -> Where:
    """The line of the program from which the waiting ranks called it."""
    for rank in [*waiting, *stuck.entries]:
        frame = user_frame(stuck.entries[rank].frames)
        if frame is not None:
            return frame
    return Where()


def user_frame(frames: Iterable[Where]) -> Where | None:
    """The innermost frame of the program itself."""
    return next((f for f in frames if f.file and _PLUMBING.match(f.file) is None), None)


def _title(stuck: _Stuck, cause: str, waiting: Sequence[int], place: Where) -> str:
    operation = _operation(next(iter(stuck.entries.values())))
    called = f" ({stuck.description})" if stuck.description not in ("", stuck.group) else ""
    what = f"{operation} {stuck.sequence} of group {stuck.group}{called}"
    waits = f"{_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in it{_at(place)}"
    if cause in (NOT_CALLED, ORDER):
        text = f"{_ranks(stuck.missing)} never called {what}; {waits}"
        return f"{text}: it waits in another collective itself" if cause == ORDER else text
    reasons = {
        DIFFERENT: "the ranks called different operations",
        SIZES: "the ranks gave different sizes or types",
        NETWORK: "all called it with equal sizes and it began: the network or a peer stopped",
        NO_DUMP: f"whether {_ranks(stuck.silent)} called it is not known, for want of a dump",
        BLOCKED: "all called it and it never began: work before it on the stream does not end",
    }
    return f"{what} never completed: {reasons[cause]}; {waits}"


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_RANKS])) + (", …" if len(ranks) > _MOST_RANKS else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _at(place: Where) -> str:
    if place.file is None:
        return ""
    line = f":{place.line}" if place.line is not None else ""
    return f" at {place.file}{line}" + (f" {place.function}" if place.function else "")


_ADVICE: Mapping[str, str] = {
    NOT_CALLED: (
        "Look at why the missing ranks did not get there: a branch on the rank, an exception that "
        "was caught, an uneven number of batches, or a crash; their last calls are in the detail."
    ),
    ORDER: "Call the collectives of the groups in one order on all ranks.",
    NO_DUMP: (
        "Look whether the ranks without a dump still live: a rank that ended makes the others wait."
    ),
    DIFFERENT: "All ranks must call the same operation here: look for a branch on the rank.",
    SIZES: "All ranks must pass the same shape and type here: look for shapes that follow data.",
    NETWORK: "Look at the hosts and their network: NCCL_DEBUG=INFO, dmesg, the state of the links.",
    BLOCKED: (
        "Look at what runs before it on its stream: a kernel that never ends, or a collective of "
        "another group that waits for this one."
    ),
}


def _detail(
    stuck: _Stuck, cause: str, waiting: Sequence[int], dumps: Mapping[int, FlightDump]
) -> dict[str, Any]:
    entry = next(iter(stuck.entries.values()))
    absent = [*stuck.missing, *stuck.silent]
    return {
        "cause": cause,
        "group": stuck.group,
        "group_description": stuck.description or None,
        "sequence": stuck.sequence,
        "operation": _operation(entry),
        "ranks": absent,
        "rank": absent[0] if absent else None,
        "waiting": list(waiting),
        "without_dump": list(stuck.silent),
        "states": {str(rank): found.state for rank, found in stuck.entries.items()},
        "sizes": {str(rank): found.input_sizes for rank, found in stuck.entries.items()},
        "frames": _frames(stuck.entries[waiting[0]] if waiting else entry),
        "last_calls": {str(rank): _last_call(dumps[rank]) for rank in stuck.missing},
        "timeout_ms": entry.timeout_ms,
    }


def _last_call(dump: FlightDump) -> dict[str, Any] | None:
    """The last call of a rank that did not come."""
    if not dump.entries:
        return None
    last = max(dump.entries, key=lambda entry: entry.record)
    return {
        "operation": _operation(last),
        "group": last.group,
        "sequence": last.sequence,
        "state": last.state,
        "frames": _frames(last),
    }


def _frames(entry: FlightEntry) -> list[str]:
    """Frames of the program first, as far as there are any."""
    own = [f for f in entry.frames if f.file and _PLUMBING.match(f.file) is None]
    return [f"{f.file}:{f.line} {f.function}" for f in (own or entry.frames)[:_MOST_FRAMES]]
