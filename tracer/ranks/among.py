"""Ranks of one job among recordings that are reported one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.held_ranks import split_rank
from tracer.rank_analysis import JobAmong, RankAnalysis
from tracer.ranks.identity import missing_note, name_of_job, presence_checks, rank_in_name
from tracer.ranks.in_memory import compare_analyses

if TYPE_CHECKING:
    from tracer.analysis import Analysis


@dataclass(frozen=True)
class _Member:
    """A recording that may be a rank of a job. told: it says itself which rank of several."""

    number: int
    rank: int
    world_size: int | None
    told: bool
    path: str


def jobs_among(analyses: Sequence[Analysis]) -> tuple[JobAmong, ...]:
    """The jobs of which several ranks are among these, compared: the ranks in one file, or those
    in one folder whose names differ in the rank alone. Nothing is read again."""
    groups: dict[Path, list[_Member]] = {}
    for number, analysis in enumerate(analyses):
        member = _member(number, analysis)
        if member is not None:
            groups.setdefault(_job_of(member.path), []).append(member)
    folders = [str(Path(analysis.trace.meta.path or "").parent) for analysis in analyses]
    jobs = (_compared(analyses, place, group, folders) for place, group in groups.items())
    return tuple(job for job in jobs if job is not None)


def _member(number: int, analysis: Analysis) -> _Member | None:
    meta = analysis.trace.meta
    if meta.path is None:
        return None
    rank = rank_in_name(Path(meta.path).name) if meta.rank is None else meta.rank
    told = meta.rank is not None and (meta.world_size or 1) > 1
    return None if rank is None else _Member(number, rank, meta.world_size, told, meta.path)


def _job_of(path: str) -> Path:
    """The file that holds several ranks; else a pattern that the names of a job fit."""
    file, held = split_rank(path)
    return file if held is not None else file.with_name(name_of_job(file.name))


def _compared(
    analyses: Sequence[Analysis], place: Path, group: Sequence[_Member], folders: Sequence[str]
) -> JobAmong | None:
    members = {member.rank: member for member in sorted(group, key=lambda member: member.rank)}
    one_job = len({member.world_size for member in group}) == 1
    if len(group) < 2 or len(members) < len(group) or not one_job:
        return None
    ranks = {rank: analyses[member.number] for rank, member in members.items()}
    found = compare_all(ranks)
    if found.alignment is None and not all(member.told for member in group):
        return None  # names alone: they may be anything
    numbers = tuple(member.number + 1 for member in members.values())
    whole = not place.exists() and folders.count(str(place.parent)) == len(group)
    return JobAmong(numbers, found, str(place.parent if whole else place))


def compare_all(ranks: Mapping[int, Analysis]) -> RankAnalysis:
    """What `tracer ranks` finds on the recordings of one job, by rank."""
    metas = {rank: analysis.trace.meta for rank, analysis in ranks.items()}
    names = {rank: meta.path or meta.source_kind for rank, meta in metas.items()}
    world_size = max(meta.world_size or 0 for meta in metas.values())
    return _with_presence(compare_analyses(ranks, names).found, world_size)


def _with_presence(found: RankAnalysis, world_size: int) -> RankAnalysis:
    """What was found, and which ranks of the job are not there."""
    missing = missing_note([rank.summary.rank for rank in found.ranks], world_size, 0)
    notes = found.notes if missing is None else (*found.notes, missing)
    return replace(found, notes=notes, checks=(*found.checks, *presence_checks(notes)))
