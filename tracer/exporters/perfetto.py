"""Chrome trace JSON for Perfetto: one track for each group of the accounting, on each device.

The events of a track never overlap: they are the accounting's own cut of the window, so the
lengths on a track are what the report says, where nothing shared the time.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, GROUPS, Analysis
from tracer.errors import DeliveryError
from tracer.exporters.json_report import plain
from tracer.version import VERSION

Ints = NDArray[np.int64]
_STEPS_PROCESS, _RANK_STRIDE = 0, 1000
_GROUP_OF_BUCKET = np.array([GROUPS.index(group) for group, _ in BUCKETS], dtype=np.int64)


def write_perfetto(analyses: Sequence[Analysis], out: Path) -> None:
    """Write recordings to one file; a name that ends in `.gz` is compressed."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _open(out) as file:
            file.writelines(_document(analyses))
    except OSError as error:
        raise DeliveryError(
            f"{out}: the timeline could not be written: {error.strerror}"
        ) from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "wb", compresslevel=5))
    return path.open("wb")


def _document(analyses: Sequence[Analysis]) -> Iterator[bytes]:
    """The file in pieces. Times are relative, since a browser's numbers end at 2^53."""
    base_ns = min((analysis.window.start_ns for analysis in analyses), default=0)
    head = {"tracer": VERSION, "baseTimeNanoseconds": base_ns, "displayTimeUnit": "ns"}
    yield msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n'
    first = True
    for place, analysis in enumerate(analyses):
        for event in _events(analysis, place * _RANK_STRIDE, base_ns):
            yield (b"" if first else b",\n") + msgspec.json.encode(event)
            first = False
    yield b"\n]}\n"


def _events(analysis: Analysis, process: int, base_ns: int) -> Iterator[dict[str, Any]]:
    rank = analysis.trace.meta.rank
    label = "" if rank is None else f"rank {rank} "
    yield from _process(process + _STEPS_PROCESS, f"{label}steps", {0: "steps"})
    yield from _step_events(analysis, process + _STEPS_PROCESS, base_ns)
    yield from _finding_events(analysis, process + _STEPS_PROCESS, base_ns)
    names = dict(enumerate(GROUPS))
    for device in np.unique(analysis.slices["device"].to_numpy()).tolist():
        shown = "CPU" if analysis.cpu_only else f"device {device}"
        yield from _process(process + 1 + device, f"{label}{shown}", names)
        yield from _group_events(analysis, device, process + 1 + device, base_ns)


def _process(process: int, name: str, tracks: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """What the viewer calls a process and its tracks, and in which order it shows them."""
    yield _meta("process_name", process, 0, name=name)
    yield _meta("process_sort_index", process, 0, sort_index=process)
    for track, label in tracks.items():
        yield _meta("thread_name", process, track, name=label)
        yield _meta("thread_sort_index", process, track, sort_index=track)


def _meta(kind: str, process: int, track: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": args}


def _span(
    name: str, category: str, place: tuple[int, int], start_ns: int, length_ns: int, args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": start_ns / 1000,
        "dur": length_ns / 1000,
        "args": args,
    }


def _step_events(analysis: Analysis, process: int, base_ns: int) -> Iterator[dict[str, Any]]:
    steps = analysis.steps
    columns = [
        steps[c].tolist() for c in ("name", "phase", "start_ns", "wall_ns", "batch", "tokens")
    ]
    for index, (name, phase, start, wall, batch, tokens) in enumerate(zip(*columns, strict=True)):
        args = {"step": index, "name": name, "wall_ns": wall}
        args |= {k: v for k, v in (("batch", batch), ("tokens", tokens)) if v >= 0}
        title = f"{phase} step {index}" if phase else f"step {index}"
        yield _span(title, "step", (process, 0), start - base_ns, wall, args)


def _finding_events(analysis: Analysis, process: int, base_ns: int) -> Iterator[dict[str, Any]]:
    starts = analysis.trace.start_ns
    for finding in analysis.findings:
        rows = [row for row in finding.events if 0 <= row < len(starts)]
        time_ns = (int(starts[rows[0]]) if rows else analysis.window.start_ns) - base_ns
        where = finding.where
        args = {
            "title": finding.title,
            "severity": finding.severity,
            "count": finding.count,
            "cost_ns": finding.cost_ns,
            "file": where.file,
            "line": where.line,
            "function": where.function,
            "module": where.module,
            "advice": finding.advice,
            "detail": plain(finding.detail),
        }
        yield {
            "ph": "i",
            "s": "p",
            "name": finding.rule,
            "cat": "finding",
            "pid": process,
            "tid": 0,
            "ts": time_ns / 1000,
            "args": {key: value for key, value in args.items() if value not in (None, "")},
        }


def _group_events(
    analysis: Analysis, device: int, process: int, base_ns: int
) -> Iterator[dict[str, Any]]:
    """The slices of a device, joined where the same work goes on."""
    slices = analysis.slices
    rows = np.flatnonzero(slices["device"].to_numpy() == device)
    work, bucket = slices["work"].to_numpy()[rows], slices["bucket"].to_numpy()[rows]
    start, end = slices["start_ns"].to_numpy()[rows], slices["end_ns"].to_numpy()[rows]
    group = _GROUP_OF_BUCKET[bucket]
    shown = _pieces(group, work, start, end)
    names, args = _labels(analysis)
    for first, last in zip(*shown, strict=True):
        held, (label, part) = int(work[first]), BUCKETS[int(bucket[first])]
        place = (process, int(group[first]))
        length = int(end[last] - start[first])
        title = f"idle: {part}" if held < 0 else names[held]
        more = {"part": part, "duration_ns": length, **({} if held < 0 else args(held))}
        yield _span(title, label, place, int(start[first]) - base_ns, length, more)


def _pieces(group: Ints, work: Ints, start: Ints, end: Ints) -> tuple[list[int], list[int]]:
    """First and last slice of each event. Of several works that share a slice on one track the
    first stands for all."""
    order = np.lexsort((work, start, group))
    g, s = group[order], start[order]
    lead = np.concatenate([[True], (g[1:] != g[:-1]) | (s[1:] != s[:-1])])[: len(order)]
    order = order[lead]
    g, w, s, e = group[order], work[order], start[order], end[order]
    fresh = (g[1:] != g[:-1]) | (w[1:] != w[:-1]) | (s[1:] != e[:-1]) | (w[1:] < 0)
    begins = np.flatnonzero(np.concatenate([[True], fresh])[: len(order)])
    ends = np.append(begins[1:], len(order)) - 1 if len(order) else begins
    return order[begins].tolist(), order[ends].tolist()


def _labels(analysis: Analysis) -> tuple[list[str], Any]:
    """Names of the works, and a function that gives the arguments of one."""
    trace, work = analysis.trace, analysis.work
    event = work["event"].to_numpy()
    names = [trace.names[code] for code in trace.name_codes[event].tolist()]
    paths = [str(path) for path in analysis.modules["path"].tolist()]
    streams = trace.events["stream"].to_numpy()[event].tolist()
    correlations = trace.events["correlation"].to_numpy()[event].tolist()
    modules, hows = work["module"].tolist(), work["how"].tolist()

    def args(row: int) -> dict[str, Any]:
        found = {"stream": streams[row], "correlation": correlations[row], "how": hows[row]}
        if modules[row] >= 0:
            found["module"] = paths[modules[row]]
        return found

    return names, args
