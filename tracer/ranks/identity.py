"""Which rank a recording is of: by its metadata, by its file name, by what it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracer.errors import InputError, TracerError, UsageError
from tracer.events import Note
from tracer.findings import Check
from tracer.held_ranks import split_rank
from tracer.ranks.places import head_copy, list_places, name_of
from tracer.sources import RUN_MARKER

METADATA, NAME, CONTENT, ASSIGNED = "metadata", "file name", "content", "command line"
_TRACE, _RUN, _DUMP, _LOG = "trace", "run", "dump", "log"
# Words before a rank in a file name, the plainest first.
_WORDS = ("rank", "worker", "r", "proc", "process", "gpu", "device", "tp", "dp", "pp", "ep")
_NUMBER = re.compile(r"\d+")
_INFO = re.compile(r'"distributedInfo"\s*:\s*')
# In the place of a rank, or of any number, in a name.
ANY = "*"
_MOST_NAMED = 8
# What a recording becomes when it is lost on its way.
_BROKEN = ("empty", "git-lfs")


@dataclass(frozen=True)
class Source:
    """A file or saved run that belongs to a rank. rank None: not known yet. how: what told."""

    place: str
    kind: str
    rank: int | None = None
    world_size: int | None = None
    how: str = ""

    @property
    def name(self) -> str:
        """Its name without the directory."""
        return name_of(self.place)


@dataclass(frozen=True)
class Found:
    """What lies at some places: recordings by run, dumps, logs, and files that are something
    else."""

    runs: tuple[tuple[Source, ...], ...]
    dumps: tuple[str, ...]
    logs: tuple[str, ...]
    others: tuple[str, ...]
    failures: tuple[TracerError, ...]


def find_ranks(places: Sequence[str], assigned: Mapping[str, int] | None = None) -> Found:
    """Look at everything at these places; nothing is read but the beginnings of files."""
    sources: list[Source] = []
    dumps: list[str] = []
    logs: list[str] = []
    others: list[str] = []
    failures: list[TracerError] = []
    for place in (inner for outer in places for inner in list_places(outer)):
        try:
            source = identify(place)
        except TracerError as error:
            failures.append(error)
            continue
        if source is None:
            others.append(place)
        elif source.kind in (_DUMP, _LOG):
            (dumps if source.kind == _DUMP else logs).append(place)
        else:
            sources.append(source)
    runs = split_runs(_named(_assigned(sources, assigned or {})))
    return Found(tuple(runs), tuple(dumps), tuple(logs), tuple(others), tuple(failures))


def identify(place: str) -> Source | None:
    """What a file or directory is, and of which rank its metadata says it is; None for something
    that is no recording."""
    from tracer.collectors.sniff import sniff

    with head_copy(place) as path:
        if path.is_dir():
            return _saved_run(place, path)
        known = sniff(path)
        if known.name == "flight-recorder":
            return Source(place, _DUMP)
        if known.name == "nccl-log":
            return Source(place, _LOG)
        if known.name in _BROKEN:
            raise known.refusal(place)
        if known.reader is None:
            return None
        info = _distributed_info(path) if known.name == "kineto" else {}
    _, held = split_rank(place)
    if held is not None:
        return Source(place, _TRACE, held, how=CONTENT)
    rank, world = _whole(info.get("rank")), _whole(info.get("world_size"))
    return Source(place, _TRACE, rank, world, METADATA if rank is not None else "")


def _saved_run(place: str, path: Path) -> Source | None:
    try:
        meta = json.loads((path / RUN_MARKER).read_text(encoding="utf-8"))
        trace = meta["trace"]
        rank, world = _whole(trace.get("rank")), _whole(trace.get("world_size"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Source(place, _RUN)
    return Source(place, _RUN, rank, world, METADATA if rank is not None else "")


def _distributed_info(path: Path) -> Mapping[str, Any]:
    """The ranks in the header of a Kineto file, as far as its beginning holds them."""
    from tracer.collectors.sniff import read_head

    text = read_head(path).decode("utf-8", "replace")
    found = _INFO.search(text)
    if found is None:
        return {}
    try:
        info, _ = json.JSONDecoder(strict=False).raw_decode(text, found.end())
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


# --- names ---------------------------------------------------------------------------------------


def _assigned(sources: Sequence[Source], assigned: Mapping[str, int]) -> list[Source]:
    """Ranks given on the command line, by path or name."""
    left = dict(assigned)
    out: list[Source] = []
    for source in sources:
        key = next((k for k in (source.place, source.name) if k in assigned), None)
        if key is None:
            out.append(source)
        else:
            left.pop(key, None)
            out.append(replace(source, rank=assigned[key], how=ASSIGNED))
    if left:
        unknown = ", ".join(left)
        raise UsageError(f"--rank {unknown}: no recording of that name among those given")
    return out


def _named(sources: Sequence[Source]) -> list[Source]:
    """Sources without a rank get the one their name says."""
    return [
        source
        if source.rank is not None
        else replace(source, rank=rank_in_name(source.name), how=NAME)
        for source in sources
    ]


def rank_in_name(name: str) -> int | None:
    """The rank that a file name tells, as in `rank3`, `worker_0` or `TP-2`."""
    for word in _WORDS:
        found = re.search(rf"(?<![a-zA-Z]){word}[-_.=]?(\d{{1,6}})(?!\d)", name, re.IGNORECASE)
        if found:
            return int(found[1])
    return None


def _stem(source: Source) -> str:
    """The name with its numbers taken out: what the ranks of one run have in common."""
    return _NUMBER.sub(ANY, source.name)


def _exact_stem(source: Source) -> str:
    """The name with nothing but its rank taken out."""
    return _without_rank(source.name)


def name_of_job(name: str) -> str:
    """What the names of the ranks of one job have in common, with `ANY` where they differ: in the
    rank alone where names tell it, else in numbers."""
    return _without_rank(name) if rank_in_name(name) is not None else _NUMBER.sub(ANY, name)


def _without_rank(name: str) -> str:
    """A name with `ANY` in the place of the rank that it tells."""
    for word in _WORDS:
        pattern = rf"(?<![a-zA-Z])({word}[-_.=]?)\d{{1,6}}(?!\d)"
        if re.search(pattern, name, re.IGNORECASE):
            return re.sub(pattern, rf"\1{ANY}", name, count=1, flags=re.IGNORECASE)
    return name


# --- runs ----------------------------------------------------------------------------------------


def split_runs(sources: Sequence[Source]) -> list[tuple[Source, ...]]:
    """The recordings by run. All are one run unless a rank appears twice and names tell several."""
    if not sources or not _twice(sources):
        return [tuple(sources)] if sources else []
    for stem in (_stem, _exact_stem):
        groups = _grouped(sources, stem)
        if any(len(group) > 1 for group in groups) and not any(map(_twice, groups)):
            return [tuple(group) for group in _with_claimants(groups)]
    return [tuple(sources)]


def _with_claimants(groups: list[list[Source]]) -> list[list[Source]]:
    """One run, with the recordings beside it that claim one of its ranks; where there are others
    besides, the directory holds whatever it holds, and none is taken for a claimant."""
    runs = [group for group in groups if len(group) > 1]
    singles = [group[0] for group in groups if len(group) == 1]
    if len(runs) != 1:
        return groups
    ranks, worlds = {s.rank for s in runs[0]}, {s.world_size for s in runs[0]}
    claim = all(single.rank in ranks and single.world_size in worlds for single in singles)
    return [runs[0] + singles] if claim else groups


def are_ranks_of_one_run(places: Sequence[str]) -> bool:
    """Whether what lies at these places is several ranks of one run and no other recording."""
    try:
        listed = [inner for outer in places for inner in list_places(outer)]
        if len(listed) < 2:
            return False
        found = find_ranks(places)
    except TracerError:
        return False
    if len(found.runs) != 1 or len(found.runs[0]) < 2:
        return False
    (run,) = found.runs
    worlds = {source.world_size for source in run}
    by_metadata = all(source.how == METADATA for source in run) and (_largest(worlds) > 1)
    by_name = len({_exact_stem(source) for source in run}) == 1
    known = all(source.rank is not None for source in run) and not _twice(run)
    return known and ((by_metadata and len(worlds) == 1) or by_name)


def _largest(sizes: set[int | None]) -> int:
    """The largest of the sizes that are known."""
    return max((size for size in sizes if size is not None), default=1)


def _grouped(sources: Sequence[Source], stem: Any) -> list[list[Source]]:
    groups: dict[str, list[Source]] = {}
    for source in sources:
        groups.setdefault(stem(source), []).append(source)
    return list(groups.values())


def _twice(sources: Sequence[Source]) -> bool:
    ranks = [source.rank for source in sources if source.rank is not None]
    return len(set(ranks)) < len(ranks)


@dataclass(frozen=True)
class Conflict:
    """Recordings that all say they are of one rank."""

    rank: int
    sources: tuple[Source, ...]

    @property
    def message(self) -> str:
        """Names the files and says how to tell them apart."""
        names = " and ".join(source.place for source in self.sources)
        given = " ".join(f"--rank {source.name}=N" for source in self.sources)
        return f"{names} both say rank {self.rank}: assign ranks on the command line, {given}"


def find_conflicts(sources: Sequence[Source]) -> list[Conflict]:
    """Ranks that several recordings claim."""
    by_rank: dict[int, list[Source]] = {}
    for source in sources:
        if source.rank is not None:
            by_rank.setdefault(source.rank, []).append(source)
    return [Conflict(rank, tuple(held)) for rank, held in by_rank.items() if len(held) > 1]


def without_conflicts(sources: Sequence[Source]) -> tuple[list[Source], list[Note]]:
    """The recordings whose rank is certain. An error when too few are left to be compared."""
    conflicts = find_conflicts(sources)
    disputed = {conflict.rank for conflict in conflicts}
    kept = [source for source in sources if source.rank not in disputed]
    if conflicts and len(kept) < 2:
        raise InputError(conflicts[0].message, rule="ranks.conflict")
    notes = [
        Note(
            "ranks.conflict",
            f"{conflict.message}; both were left out",
            len(conflict.sources),
            {"rank": conflict.rank, "files": [source.place for source in conflict.sources]},
            partial=True,
        )
        for conflict in conflicts
    ]
    return kept, notes


def name_notes(sources: Sequence[Source]) -> list[Note]:
    """Says when ranks were taken from names, or from what the recordings hold."""
    notes: list[Note] = []
    for how in (NAME, CONTENT):
        told = [source for source in sources if source.how == how and source.rank is not None]
        if told:
            text = f"{len(told)} recordings name no rank: it was taken from the {how}"
            notes.append(Note("ranks.from_names", text, len(told)))
    return notes


def missing_note(ranks: Sequence[int], world_size: int | None, lost: int) -> Note | None:
    """Which ranks of the run are not there. `lost`: recordings that could not be used."""
    known = set(ranks)
    world = max(world_size or 0, max(known, default=-1) + 1)
    missing = [rank for rank in range(world) if rank not in known]
    if not missing:
        return None
    named = ", ".join(map(str, missing[:_MOST_NAMED])) + (
        ", …" if len(missing) > _MOST_NAMED else ""
    )
    word = "rank" if len(missing) == 1 else "ranks"
    text = f"{word} {named} missing, {len(known)} of {world}"
    detail = {"ranks": missing, "world_size": world}
    return Note("ranks.missing", text, len(missing), detail, partial=True)


def presence_checks(notes: Sequence[Note]) -> Iterator[Check]:
    """Whether each rank is there, and once."""
    for rule in ("ranks.conflict", "ranks.missing"):
        said = "; ".join(note.message for note in notes if note.rule == rule)
        yield Check(rule, "found" if said else "clear", said)
