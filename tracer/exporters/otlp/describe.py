"""Attributes of spans: what the report says of a run, a step, a kernel, a finding."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, GROUPS, Analysis
from tracer.events import Note
from tracer.exporters.json_report import all_notes, plain
from tracer.exporters.levels import step_sums, window_level
from tracer.exporters.otlp import protobuf as pb
from tracer.exporters.otlp.cells import Cells
from tracer.exporters.otlp.names import short_kernel_name
from tracer.exporters.otlp.resource import device_attributes, device_uuid
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.exporters.sentence import verdict
from tracer.findings import Finding, Where
from tracer.rank_analysis import RankAnalysis

Values = dict[str, pb.Value | None]
_MAX_EVENT_BYTES = 1 << 20  # of one span, all together: a quarter of what receivers take at once
_MAX_LISTED = 100  # steps of a finding: a run can have thousands, and a viewer shows all of a list


def run_name(analysis: Analysis) -> str:
    """`inference run`, `training run`: one of few, so that a viewer can list its operations."""
    phases = {str(phase) for phase in analysis.steps["phase"].unique()}
    if "training" in phases:
        return "training run"
    return "inference run" if phases & {"prefill", "decode", "mixed"} else "run"


def run_attributes(analysis: Analysis) -> Values:
    """The report's head: its answer, where it comes from, the window, the breakdown, what was not
    seen."""
    window, meta = analysis.window, analysis.trace.meta
    return {
        "tracer.answer": verdict(analysis),
        "tracer.world_size": meta.world_size,
        "tracer.source.kind": meta.source_kind,
        "tracer.source.path": meta.path,
        "tracer.framework": meta.framework,
        "tracer.integrity": analysis.integrity_status,
        "tracer.notes": _notes(all_notes(analysis)),
        "tracer.wall_ns": window.wall_ns,
        "tracer.busy_ns": window.busy_ns,
        "tracer.idle_ns": window.idle_ns,
        "tracer.between_steps_ns": window.between_steps_ns,
        "tracer.devices": window.devices,
        "tracer.kernels": window.kernels,
        "tracer.launches": window.launches,
        "tracer.steps": len(analysis.steps),
        **_breakdown(analysis),
        **{f"tracer.facts.{key}": fact(value) for key, value in analysis.facts.items()},
    }


def ranks_attributes(count: int, across: RankAnalysis | None) -> Values:
    """The head of a report of ranks. across: what was found out across them, where they were
    compared."""
    told: Values = {"tracer.level": "ranks", "tracer.ranks": count}
    if across is None:
        return told
    return told | {
        "tracer.answer": ranks_verdict(across),
        "tracer.integrity": across.integrity_status,
        "tracer.notes": _notes(across.notes),
    }


def _notes(notes: Sequence[Note]) -> pb.Value | None:
    return [f"{note.rule}: {note.message}" for note in notes] or None


def _breakdown(analysis: Analysis) -> Values:
    if not analysis.accounted:
        return {"tracer.breakdown": f"none: {analysis.breakdown_reason}"}
    level = window_level(analysis)
    sums = {group: level.group_ns(group) for group in GROUPS}
    return {
        **{f"tracer.{group}_ns": ns for group, ns in sums.items()},
        **{f"tracer.{group}_ratio": level.ratio(ns) for group, ns in sums.items()},
    }


class StepFacts:
    """What the report says of steps. Columns are read once, since a run can have thousands."""

    def __init__(self, analysis: Analysis) -> None:
        steps = analysis.steps
        self._texts = {
            name: steps[name].astype(str).tolist() for name in ("name", "source", "phase")
        }
        numbers = ("wall_ns", "busy_ns", "batch", "tokens", "warmup")
        self._numbers = {name: steps[name].to_numpy() for name in numbers}
        self._sums = step_sums(analysis) if analysis.accounted else None

    def phase(self, step: int) -> str:
        return self._texts["phase"][step]

    def values(self, first: int, count: int) -> Values:
        """Attributes of a span that stands for `count` steps from `first` on."""
        rows = {name: column[first : first + count] for name, column in self._numbers.items()}
        batch, walls = set(rows["batch"].tolist()), rows["wall_ns"].tolist()
        return {
            "tracer.step": first,
            "tracer.step.name": self._texts["name"][first] or None,
            "tracer.step.source": self._texts["source"][first] or None,
            "tracer.step.warmup": bool(rows["warmup"].any()),
            "tracer.step.batch": min(batch) if len(batch) == 1 and min(batch) >= 0 else None,
            "tracer.step.tokens": _sum_of_known(rows["tokens"]),
            "tracer.wall_ns": sum(walls),
            "tracer.busy_ns": _sum_of_known(rows["busy_ns"]),
            "tracer.count": count,
            **_range_values(first, walls),
            **self._breakdown(first, count),
        }

    def _breakdown(self, first: int, count: int) -> Values:
        if self._sums is None:
            return {}
        sums = self._sums[first : first + count].sum(axis=0).tolist()
        return {f"tracer.{group}_ns": ns for group, ns in zip(GROUPS, sums, strict=True)}


def _sum_of_known(numbers: NDArray[np.int64]) -> int | None:
    """The sum, where none is unknown (negative)."""
    return int(numbers.sum()) if bool((numbers >= 0).all()) else None


def _range_values(first: int, walls_ns: list[int]) -> Values:
    """Of several steps: the last, and the slowest, which is the one to look at."""
    if len(walls_ns) < 2:
        return {}
    longest = max(walls_ns)
    return {
        "tracer.step.last": first + len(walls_ns) - 1,
        "tracer.step.slowest": first + walls_ns.index(longest),
        "tracer.longest_ns": longest,
    }


def bucket_values(code: int) -> Values:
    """Group and part."""
    group, part = BUCKETS[code]
    return {"tracer.group": group, "tracer.part": part}


class KernelFacts:
    """What the report says of each kernel name."""

    def __init__(self, analysis: Analysis, cells: Cells) -> None:
        rows = analysis.kernels
        columns = [rows[c].tolist() for c in ("name", "bucket", "how", "library", "confidence")]
        self._known = {
            (str(name), int(bucket), str(how)): (str(library), float(confidence))
            for name, bucket, how, library, confidence in zip(*columns, strict=True)
        }
        self._analysis, self._cells = analysis, cells
        self._paths = [str(path) for path in analysis.modules["path"].tolist()]
        devices = analysis.trace.table("devices")
        # Of one device the resource tells; of several each kernel has to.
        several = len(np.unique(cells.kinds.device)) > 1
        named = zip(devices["device"].tolist(), devices["name"].astype(str), strict=True)
        self._devices = {
            device: device_attributes(name, device_uuid(analysis, device))
            for device, name in named
            if several and name
        }

    def of_kind(self, kind: int, *, with_module: bool) -> tuple[str, Values]:
        """Name and constant attributes of a kernel's span."""
        kinds = self._cells.kinds
        name = self._analysis.trace.names[int(kinds.name[kind])]
        bucket, how = int(kinds.bucket[kind]), self._cells.how_names[int(kinds.how[kind])]
        library, confidence = self._known.get((name, bucket, how), ("", None))
        stream = int(kinds.stream[kind])
        module = int(kinds.module[kind]) if with_module else -1
        return short_kernel_name(name), {
            "tracer.kernel.name": name,
            **bucket_values(bucket),
            "tracer.how": how,
            "tracer.confidence": confidence,
            "tracer.library": library or None,
            "tracer.device": None if self._analysis.cpu_only else int(kinds.device[kind]),
            "tracer.stream": stream if stream >= 0 else None,
            **self._devices.get(int(kinds.device[kind]), {}),
            "tracer.module": (self._paths[module] or "(model)") if module >= 0 else None,
        }


def fact(value: Any) -> pb.Value | None:
    """A value as an attribute; what has parts goes as JSON."""
    cleaned = plain(value)
    if cleaned is None or isinstance(cleaned, (str, bool, int, float)):
        return cleaned
    return json.dumps(cleaned, ensure_ascii=False, sort_keys=True)


def finding_events(analysis: Analysis) -> tuple[list[bytes], int]:
    """The findings as events, the costliest first, and how many found no room: a receiver takes
    the run span whole or not at all."""
    return _with_room(
        finding_event(finding, _evidence_ns(finding, analysis)) for finding in analysis.findings
    )


def across_events(across: RankAnalysis, time_ns: int) -> tuple[list[bytes], int]:
    """The same of what was found across ranks. A finding there has no time of its own."""
    return _with_room(finding_event(finding, time_ns) for finding in across.findings)


def _with_room(events: Iterable[bytes]) -> tuple[list[bytes], int]:
    made = list(events)
    kept = sum(size <= _MAX_EVENT_BYTES for size in accumulate(map(len, made)))
    return made[:kept], len(made) - kept


def _evidence_ns(finding: Finding, analysis: Analysis) -> int:
    """When its costliest evidence began."""
    starts = analysis.trace.start_ns
    row = next((row for row in finding.events if 0 <= row < len(starts)), None)
    return analysis.window.start_ns if row is None else int(starts[row])


def finding_event(finding: Finding, time_ns: int) -> bytes:
    """A finding as an event."""
    values: Values = {
        "tracer.finding.severity": finding.severity,
        "tracer.finding.title": finding.title,
        "tracer.finding.count": finding.count,
        "tracer.finding.cost_ns": finding.cost_ns,
        "tracer.finding.ratio": finding.ratio,
        "tracer.finding.gain_ns": finding.gain_ns,
        "tracer.finding.advice": finding.advice or None,
        "tracer.finding.steps": finding.steps[:_MAX_LISTED] or None,
        "tracer.finding.step_count": len(finding.steps) or None,
        **where_values(finding.where),
        **{f"tracer.finding.detail.{key}": fact(value) for key, value in finding.detail.items()},
    }
    return pb.event(finding.rule, time_ns, values)


def where_values(where: Where) -> Values:
    """The place of a finding."""
    return {
        "code.file.path": where.file,
        "code.line.number": where.line,
        "code.function.name": where.function,
        "tracer.module": where.module,
        "tracer.operator": where.operator,
    }


def pause_name(finding: Finding) -> str:
    """The rule of a pause, and what takes it where that is known: one of few, as names of spans
    are."""
    who = finding.detail.get("call") or finding.where.function
    return f"{finding.rule}: {who}" if who else finding.rule
