"""From places to what was found out about the ranks recorded there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tracer.errors import EmptyTraceError, InputError, NotATraceError
from tracer.events import Note
from tracer.rank_analysis import Doings, RankAnalysis, RankResult, RankSummary, Rows
from tracer.ranks.engine import Engine, Progress
from tracer.ranks.identity import (
    CONTENT,
    METADATA,
    NAME,
    Found,
    Source,
    find_ranks,
    missing_note,
    name_notes,
    presence_checks,
    without_conflicts,
)
from tracer.ranks.task import Done, Failure, Task

if TYPE_CHECKING:
    from tracer.analyzers.ranks.compare import Question
    from tracer.analyzers.rules.transport import Measured
    from tracer.findings import Check, Finding
    from tracer.rank_records import FlightDump, NcclLog

# Messages of this size say what a bandwidth is; smaller ones measure latency.
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class RanksRun:
    """The ranks of one run, and where their reports are."""

    analysis: RankAnalysis
    engine: Engine | None = None
    places: Mapping[int, int] = field(default_factory=dict)  # rank -> task
    left_out: tuple[str, ...] = ()  # files that are no recordings, or of other runs

    def report(self, rank: int) -> str:
        """The whole report of one rank, as JSON."""
        assert self.engine is not None
        return self.engine.report(self.places[rank])


def analyse_ranks(
    places: Sequence[str],
    engine: Engine,
    *,
    assigned: Mapping[str, int] | None = None,
    with_reports: bool = False,
    progress: Progress | None = None,
) -> RanksRun:
    """Understand the ranks of the one run at these places, with the dumps and logs beside them."""
    found = find_ranks(places, assigned)
    runs = [run for run in found.runs if len(run) > 1] or list(found.runs)
    if len(runs) > 1:
        raise InputError(_several(runs), rule="ranks.several_runs")
    if not runs:
        return RanksRun(_evidence_only(found), left_out=found.others)
    run = _analyse(runs[0], found, engine, with_reports, progress)
    strangers = [source.place for other in found.runs if other != runs[0] for source in other]
    return replace(run, left_out=(*found.others, *strangers))


def _several(runs: Sequence[Sequence[Source]]) -> str:
    named = "; ".join(f"{run[0].name} and {len(run) - 1} more" for run in runs[:4])
    return (
        f"these are ranks of {len(runs)} runs ({named}): give the files of one, "
        "for example tracer ranks DIR/NAME*"
    )


def _evidence_only(found: Found) -> RankAnalysis:
    """Dumps and logs without any recording."""
    if not found.dumps and not found.logs:
        for failure in found.failures:
            raise failure
        what = ", ".join(found.others[:4]) or "nothing"
        raise NotATraceError(f"no recording of a rank among what was given: {what}")
    return _with_evidence(RankAnalysis(ranks=(), alignment=None), found)


def _analyse(
    sources: Sequence[Source],
    found: Found,
    engine: Engine,
    with_reports: bool,
    progress: Progress | None,
) -> RanksRun:
    from tracer.analyzers.ranks.compare import compare_ranks

    kept, notes = without_conflicts(sources)
    tasks = [
        Task(source.place, -1 if source.rank is None else source.rank, with_reports)
        for source in kept
    ]
    results = _results(tasks, engine, progress)
    known, more = _resolved(kept, results)
    notes += [*more, *name_notes(list(known.values()))]
    places = {source.rank: place for place, source in known.items() if source.rank is not None}
    summaries = {rank: _summary(results[place], rank) for rank, place in places.items()}
    if not summaries:
        raise _first_failure(results, found)
    notes += _missing(summaries, [note for note in notes if note.partial])
    store = _Rows(engine, places)

    def ask(questions: Sequence[Question]) -> list[Doings]:
        return _asked(questions, summaries, engine)

    analysis = compare_ranks(summaries, store, ask, notes)
    return RanksRun(_with_evidence(analysis, found), engine, places)


def _results(
    tasks: Sequence[Task], engine: Engine, progress: Progress | None
) -> dict[int, Done | Failure]:
    results: dict[int, Done | Failure] = {}
    for place, result in engine.summarise(tasks):
        results[place] = result
        if progress is not None:
            progress(len(results), len(tasks))
    return results


def _first_failure(results: Mapping[int, Done | Failure], found: Found) -> InputError:
    for result in results.values():
        if isinstance(result, Failure):
            return InputError(result.message, rule=result.rule)
    for failure in found.failures:
        return InputError(str(failure), rule=failure.rule)
    return EmptyTraceError("none of these recordings names its rank: assign with --rank FILE=N")


@dataclass(frozen=True)
class _Rows:
    """Rows by rank, from where the engine keeps them by task."""

    engine: Engine
    places: Mapping[int, int]

    def rows(self, rank: int, begin: int, end: int) -> Rows:
        """Rows of one rank."""
        return self.engine.rows(self.places[rank], begin, end)


def _asked(
    questions: Sequence[Question], summaries: Mapping[int, RankSummary], engine: Engine
) -> list[Doings]:
    """Ask each recording once, whatever number of questions it has."""
    by_rank: dict[int, list[int]] = {}
    for place, (rank, _) in enumerate(questions):
        by_rank.setdefault(rank, []).append(place)
    asked = [
        (summaries[rank].path, [questions[place][1] for place in places])
        for rank, places in by_rank.items()
    ]
    answers: dict[int, Doings] = {}
    for places, found in zip(by_rank.values(), engine.describe(asked), strict=True):
        answers.update(zip(places, found, strict=True))
    return [answers[place] for place in range(len(questions))]


# --- who is who ----------------------------------------------------------------------------------


def _resolved(
    sources: Sequence[Source], results: Mapping[int, Done | Failure]
) -> tuple[dict[int, Source], list[Note]]:
    """The rank of each recording that could be read, once all were."""
    notes: list[Note] = []
    known: dict[int, Source] = {}
    for place, source in enumerate(sources):
        result = results[place]
        if isinstance(result, Failure):
            notes.append(Note(result.rule, result.message, partial=True))
            continue
        if result.named_rank is not None and source.how in ("", NAME):
            source = replace(source, rank=result.named_rank, how=METADATA)
        known[place] = source
    _by_device(known, results)
    notes += _disputed(known)
    nameless = [place for place, source in known.items() if source.rank is None]
    if len(known) == 1 and nameless:
        known[nameless[0]] = replace(known[nameless[0]], rank=0, how="")
    elif nameless:
        names = ", ".join(known.pop(place).name for place in nameless)
        text = f"{names}: left out, nothing says of which rank: assign with --rank FILE=N"
        notes.append(Note("ranks.unknown", text, len(nameless), partial=True))
    return known, notes


def _by_device(known: dict[int, Source], results: Mapping[int, Done | Failure]) -> None:
    """Recordings that name no rank, each of another device of one host: the device is the rank."""
    nameless = [place for place, source in known.items() if source.rank is None]
    taken = {source.rank for source in known.values() if source.rank is not None}
    devices: dict[int, int] = {}
    for place in nameless:
        result = results[place]
        if isinstance(result, Done) and result.device_index >= 0:
            devices[place] = result.device_index
    distinct = len(set(devices.values())) == len(devices) == len(nameless) > 1
    if distinct and not taken.intersection(devices.values()):
        for place, device in devices.items():
            known[place] = replace(known[place], rank=device, how=CONTENT)


def _disputed(known: dict[int, Source]) -> Iterator[Note]:
    """Ranks that only the reading showed to be claimed twice."""
    kept, notes = without_conflicts(list(known.values()))
    for place in [place for place, source in known.items() if source not in kept]:
        del known[place]
    yield from notes


def _summary(result: Done | Failure, rank: int) -> RankSummary:
    assert isinstance(result, Done)
    return replace(result.summary, rank=rank)


def _missing(summaries: Mapping[int, RankSummary], lost: Sequence[Note]) -> list[Note]:
    sizes = [summary.world_size or 0 for summary in summaries.values()]
    note = missing_note(sorted(summaries), max(sizes, default=0), len(lost))
    return [] if note is None else [note]


# --- dumps and logs ------------------------------------------------------------------------------


def _with_evidence(analysis: RankAnalysis, found: Found) -> RankAnalysis:
    """The analysis with what the dumps and logs beside the recordings say."""
    from tracer.analyzers.rules.hang import judge_hang
    from tracer.analyzers.rules.transport import judge_transport

    dumps, logs, notes = _read_evidence(found)
    hang = judge_hang(dumps)
    devices = [rank.summary.device for rank in analysis.ranks if rank.summary.device]
    transport = judge_transport(logs, list(dict.fromkeys(devices)), measured_bandwidth(analysis))
    findings: tuple[Finding, ...] = (*hang.findings, *analysis.findings, *transport.findings)
    checks: tuple[Check, ...] = (*analysis.checks, *hang.checks, *transport.checks)
    return replace(
        analysis,
        findings=findings,
        checks=(*checks, *presence_checks([*analysis.notes, *notes])),
        notes=(*analysis.notes, *notes, *hang.notes),
    )


def _read_evidence(found: Found) -> tuple[list[FlightDump], list[NcclLog], list[Note]]:
    from tracer.collectors.logs.flight_recorder import read_flight_dump
    from tracer.collectors.logs.nccl_log import read_nccl_log
    from tracer.ranks.places import local_copy

    dumps: list[FlightDump] = []
    logs: list[NcclLog] = []
    notes = [Note(error.rule, str(error), partial=True) for error in found.failures]
    for place in found.dumps:
        try:
            with local_copy(place) as path:
                dumps.append(replace(read_flight_dump(path), path=place))
        except InputError as error:
            notes.append(Note(error.rule, str(error), partial=True))
    for place in found.logs:
        try:
            with local_copy(place) as path:
                logs += [replace(log, path=place) for log in read_nccl_log(path)]
        except InputError as error:
            notes.append(Note(error.rule, str(error), partial=True))
    return dumps, logs, notes


def measured_bandwidth(analysis: RankAnalysis) -> list[Measured]:
    """Bus bandwidth of the large messages, by operation and group: the best rank's."""

    best: dict[tuple[str, str], Measured] = {}
    for rank in analysis.ranks:
        for kind in rank.kinds:
            found = _measured(rank, kind.op, kind.group)
            known = best.get((kind.op, kind.group))
            if found is not None and (
                known is None or found.busbw_bytes_per_s > known.busbw_bytes_per_s
            ):
                best[kind.op, kind.group] = found
    return list(best.values())


def _measured(rank: RankResult, op: str, group: str) -> Measured | None:
    from tracer.analyzers.rules.transport import Measured

    kind = next(k for k in rank.kinds if (k.op, k.group) == (op, group))
    if not kind.compared or kind.compared_bytes is None or kind.busbw_bytes_per_s is None:
        return None
    size = kind.compared_bytes // kind.compared
    if size < _LARGE_BYTES:
        return None
    return Measured(op, group, kind.busbw_bytes_per_s, size)
