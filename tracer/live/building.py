"""From a finished capture to its `Trace`: the profiler's file, read like any other, and beside it
the tables that only a live run has."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.collectors.compiling.launch_ranges import launch_namer
from tracer.collectors.modules.module_tree import range_name
from tracer.collectors.steps.announced_steps import Announced, steps_table
from tracer.collectors.steps.optimizer_steps import OWNER
from tracer.collectors.torch_profiler import SWITCHES
from tracer.errors import EmptyTraceError
from tracer.events import (
    EVENTS,
    KIND_CODE,
    NONE,
    SIDE_TABLES,
    Note,
    Trace,
    TraceMeta,
    make_table,
)
from tracer.live.notes import (
    failed,
    file_kept,
    goes_on,
    kernels_without_gpu,
    light,
    modules_not_seen,
    modules_untold,
    nested_steps,
    no_device_events,
    no_gpu_work_here,
    threads_not_recorded,
)
from tracer.live.told_ranges import tell_ranges

if TYPE_CHECKING:
    from tracer.collectors.steps.device_steps import DeviceSpan
    from tracer.live.recorded import Recorded

Longs = NDArray[np.int64]

_log = logging.getLogger("tracer")


def build_trace(recorded: Recorded) -> Trace:
    """The trace of a finished capture. The profiler's memory is given back on the way."""
    notes = list(recorded.notes)
    base = _profiled(recorded, notes)
    all_calls = _root_calls(recorded)
    calls = _within(recorded, all_calls)
    live = dict(recorded.tables)
    if "collections" in live:  # the end of a recording itself makes the collector run
        live["collections"] = _within(recorded, live["collections"])
    steps = _announced(recorded, _work_starts(base, calls))
    if recorded.detail == "light" and not recorded.refused:
        base = light_trace(recorded, steps, calls)
    if recorded.ranges is not None:
        left_out = launch_namer(live.get("compiled_calls"))
        base, untold = tell_ranges(base, recorded.ranges.looks.table(), left_out)
        notes += [modules_untold(untold)] if untold else []
        base = name_ranges(base, recorded.ranges.tree.written.final())
    tables = {
        **base.tables,
        **live,
        "root_calls": calls,
        "announced_steps": steps_table(_recorded_steps(recorded, steps)),
        "unprofiled_steps": _unprofiled(recorded, base, all_calls),
    }
    notes += _what_is_missing(recorded, base, calls)
    kept = {name: table for name, table in tables.items() if len(table)}
    # A process that is no rank of a job lacks nothing.
    read = [note for note in base.notes if note.rule != "trace.no_rank"]
    return replace(base, tables=kept, meta=_meta(recorded, base.meta), notes=(*read, *notes))


def _empty() -> Trace:
    return Trace(make_table(EVENTS, {}))


def _profiled(recorded: Recorded, notes: list[Note]) -> Trace:
    """What the profiler recorded; empty when it recorded nothing or its file cannot be read."""
    session = recorded.session
    if session is None or not session.recorded:
        return _empty()
    from tracer.collectors.kineto.trace import read_kineto

    path = Path(tempfile.mkdtemp(prefix="tracer-")) / "trace.json"
    try:
        session.export(path)
        trace = read_kineto(path)
    except EmptyTraceError:
        trace = _empty()
    except Exception as error:  # whatever is wrong with it, the steps and calls are still there
        notes.append(failed("the export of the profiler", error))
        if path.exists():  # it is written once
            notes.append(file_kept(path))
            return _empty()
        trace = _empty()
    shutil.rmtree(path.parent, ignore_errors=True)
    return trace


def _root_calls(recorded: Recorded) -> pd.DataFrame:
    if recorded.ranges is None:
        return make_table(SIDE_TABLES["root_calls"], {})
    return recorded.ranges.calls.table()


def _within(recorded: Recorded, table: pd.DataFrame) -> pd.DataFrame:
    """Rows from the time of the recording: a schedule may have waited around it."""
    starts = table["start_ns"].to_numpy()
    inside = (starts >= recorded.start_ns) & (starts < recorded.end_ns)
    return table[inside].reset_index(drop=True)


def _work_starts(trace: Trace, calls: pd.DataFrame) -> Longs:
    """When work began on the host: operators and launches, or at least calls of models."""
    rows = trace.rows("operator", "runtime")
    starts: Longs = trace.start_ns[rows] if rows.size else calls["start_ns"].to_numpy()
    return np.sort(starts)


def _announced(recorded: Recorded, work_ns: Longs) -> list[Announced]:
    return [] if recorded.steps is None else recorded.steps.steps(work_ns)


def _recorded_steps(recorded: Recorded, steps: list[Announced]) -> list[Announced]:
    return [s for s in steps if recorded.start_ns <= s.start_ns and s.end_ns <= recorded.end_ns]


def _unprofiled(recorded: Recorded, trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Steps that ran before the profiler did, with the phase of the call that each is."""
    starts = [start for start, _ in recorded.unprofiled]
    at = np.searchsorted(calls["start_ns"].to_numpy(), np.array(starts, dtype=np.int64))
    return make_table(
        SIDE_TABLES["unprofiled_steps"],
        {
            "start_ns": starts,
            "end_ns": [end for _, end in recorded.unprofiled],
            "phase": [""] * len(starts) if recorded.steps_announced else _phases(trace, calls, at),
            "calls": [int(not recorded.steps_announced)] * len(starts),
        },
    )


def _phases(trace: Trace, calls: pd.DataFrame, rows: Longs) -> list[str]:
    """The phase of these calls; of one beyond the last that of the last."""
    if not len(rows) or not len(calls):
        return [""] * len(rows)
    from tracer.analyzers.steps.call_phases import call_phases, learning_ns

    phases = call_phases(calls, learning_ns(trace))
    return [phases[row].name for row in np.minimum(rows, len(calls) - 1).tolist()]


def light_trace(recorded: Recorded, steps: list[Announced], calls: pd.DataFrame) -> Trace:
    """A trace without a profiler: a host row for each step or call of a model, and for the end of
    each step of an optimizer, and the time that it took on the device as a device annotation with
    the same `external_id`."""
    if steps:
        owner, kind = "step", "annotation"
        names = [step.name for step in steps]
        times = np.array([(s.start_ns, s.end_ns, s.thread) for s in steps], dtype=np.int64)
    else:
        owner, kind = "call", "module"
        names = list(map(range_name, calls["root"], calls["type"]))
        times = calls[["start_ns", "end_ns", "thread"]].to_numpy()
    host = _host_rows(kind, names, times.reshape(-1, 3))
    if recorded.optimizers is not None and len(recorded.optimizers):
        ends = _within(recorded, recorded.optimizers)
        known = ends[["start_ns", "end_ns", "thread"]].to_numpy()
        host = pd.concat([host, _host_rows("annotation", list(ends["name"]), known)])
        host = host.sort_values("start_ns", kind="stable")
    threads, thread_rows = np.unique(host["thread"].to_numpy(), return_inverse=True)
    host = host.assign(thread=thread_rows.reshape(-1), external_id=np.arange(len(host)))
    device = _device_rows([span for span in recorded.spans if span.owner in (owner, OWNER)], host)
    rows = pd.concat([host, device]) if len(device) else host
    rows = rows.sort_values(["start_ns", "duration_ns"], ascending=[True, False], kind="stable")
    events = make_table(EVENTS, {name: rows[name].to_numpy() for name in rows.columns})
    table = make_table(
        SIDE_TABLES["threads"], {"pid": np.full(threads.size, os.getpid()), "tid": threads}
    )
    return Trace(events, {"threads": table} if threads.size else {})


def _host_rows(kind: str, names: list[str], times: Longs) -> pd.DataFrame:
    """`times`: start, end and thread of each."""
    return pd.DataFrame(
        {
            "kind": np.full(len(names), KIND_CODE[kind], dtype=np.int8),
            "name": names,
            "start_ns": times[:, 0],
            "duration_ns": times[:, 1] - times[:, 0],
            "thread": times[:, 2],
            "device": NONE,
        }
    )


def _device_rows(spans: list[DeviceSpan], host: pd.DataFrame) -> pd.DataFrame:
    """Each span belongs to the step that the host began next: the mark comes just before it."""
    begun = np.array([span.host_ns for span in spans], dtype=np.int64)
    index = np.searchsorted(host["start_ns"].to_numpy(), begun)
    known = np.flatnonzero(index < len(host))
    return pd.DataFrame(
        {
            "kind": np.full(known.size, KIND_CODE["device_annotation"], dtype=np.int8),
            "name": host["name"].to_numpy()[index[known]],
            "start_ns": [spans[i].start_ns for i in known],
            "duration_ns": [spans[i].end_ns - spans[i].start_ns for i in known],
            "thread": NONE,
            "device": [spans[i].device for i in known],
            "external_id": index[known],
        }
    )


def name_ranges(trace: Trace, final: Mapping[str, str]) -> Trace:
    """Ranges under the names that their modules have in the end, for those that were written."""
    names = [final.get(name, name) for name in trace.names]
    if names == list(trace.names):
        return trace
    new_codes, distinct = pd.factorize(np.array(names, dtype=object))
    codes = np.where(trace.name_codes < 0, NONE, new_codes[trace.name_codes])
    categories = pd.Categorical.from_codes(codes, categories=pd.Index(distinct))
    return replace(trace, events=trace.events.assign(name=categories))


def _what_is_missing(recorded: Recorded, trace: Trace, calls: pd.DataFrame) -> list[Note]:
    notes: list[Note] = []
    if recorded.refused:
        return notes
    launches = _launches(trace)
    if recorded.gpu and launches and not trace.device_rows.size:
        notes.append(no_device_events(launches))
        _log.warning("tracer: %s: %s", notes[-1].rule, notes[-1].message)
    compiled = _compiled_meanwhile(recorded)  # compilers start workers, too
    alone = not launches and not trace.device_rows.size and not compiled
    if alone and recorded.children and not len(calls):
        notes.append(no_gpu_work_here(recorded.children))
    if recorded.detail == "light":
        notes.append(goes_on() if recorded.goes_on else light())
    if recorded.detail == "kernels" and not recorded.gpu:
        notes.append(kernels_without_gpu())
    if recorded.steps is not None and recorded.steps.nested:
        notes.append(nested_steps(recorded.steps.nested))
    return notes + _unseen_modules(recorded, trace, calls) + _unseen_threads(recorded, trace, calls)


def _compiled_meanwhile(recorded: Recorded) -> bool:
    """Whether a compiler worked while this was recorded: the table also tells of earlier work."""
    events = recorded.tables.get("compile_events")
    return events is not None and bool((events["end_ns"] >= recorded.start_ns).any())


def _unseen_threads(recorded: Recorded, trace: Trace, calls: pd.DataFrame) -> list[Note]:
    """A note when a model was called on a thread whose operators were not recorded."""
    unseen = set(calls["thread"]) - set(trace.table("threads")["tid"])
    if recorded.detail != "full" or not unseen:
        return []
    return [threads_not_recorded(len(unseen))]


def _launches(trace: Trace) -> int:
    launching = trace.names_matching(lambda name: "Launch" in name)
    rows = trace.rows("runtime")
    return int(np.count_nonzero(launching[trace.name_codes[rows]]))


def _unseen_modules(recorded: Recorded, trace: Trace, calls: pd.DataFrame) -> list[Note]:
    """A note when most modules wrote nothing: where a few did not run, nothing is missing."""
    if recorded.ranges is None or not len(calls) or not len(trace.events):
        return []
    named = {name for name in recorded.ranges.tree.called_names() if name}
    seen = {trace.names[code] for code in np.unique(trace.name_codes[trace.rows("module")])}
    unseen = sorted(named - seen)
    if recorded.detail not in ("modules", "full") or len(unseen) * 2 <= len(named):
        return []
    return [modules_not_seen(unseen, len(named))]


def _meta(recorded: Recorded, meta: TraceMeta) -> TraceMeta:
    import torch

    switches = SWITCHES.get(recorded.detail)
    return replace(
        meta,
        source_kind="live",
        path=None,
        framework=f"torch {torch.__version__}",
        detail=recorded.detail,
        recorded={
            **meta.recorded,
            "modules": recorded.detail in ("modules", "full"),
            "shapes": switches is not None and switches.shapes,
            "stacks": switches is not None and switches.stacks,
            "memory": meta.recorded.get("memory", False),  # not beside other threads
        },
        facts={**meta.facts, **recorded.facts},
        extra={**meta.extra, **_traced(recorded), **_unfinished(recorded)},
        **_ranks(meta, recorded.job),
    )


def _traced(recorded: Recorded) -> dict[str, Any]:
    """When the recording began and ended: the program may have done little of what is recorded."""
    if recorded.refused or not recorded.start_ns:
        return {}
    return {"traced": {"start_ns": recorded.start_ns, "end_ns": recorded.end_ns}}


def _unfinished(recorded: Recorded) -> dict[str, Any]:
    return {"goes_on": True} if recorded.goes_on else {}


def _ranks(meta: TraceMeta, job: Mapping[str, Any]) -> dict[str, Any]:
    """Rank and world size of this process, where the profiler did not write them: of its process
    group or else of its launcher. And the groups, of which the profiler knows the first ones."""
    groups = {group.get("pg_name"): group for group in meta.process_groups}
    groups |= {group.get("pg_name"): group for group in job.get("process_groups", ())}
    said = {"process_groups": tuple(groups.values())}
    if meta.rank is not None:
        return said
    return {**_launched_rank(os.environ), **job, **said}


def _launched_rank(environment: Mapping[str, str]) -> dict[str, Any]:
    """What `torchrun` and others tell a process that they start."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not rank.isdigit() or not size.isdigit() or int(rank) >= int(size):
        return {}
    return {"rank": int(rank), "world_size": int(size)}
