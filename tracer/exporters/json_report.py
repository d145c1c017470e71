"""The report as JSON: schema `tracer.report/1`, described by `report.schema.json` beside this."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKETS, GROUPS, PARTS, Analysis, Phase
from tracer.events import Note
from tracer.exporters.absent import FACTS, all_checks
from tracer.exporters.levels import IDLE_PARTS, Level, step_sums, window_level
from tracer.exporters.sentence import verdict
from tracer.exporters.traced import period_ns, traced_block
from tracer.exporters.what_if import what_if
from tracer.findings import Check, Finding
from tracer.rank_analysis import bus_factor
from tracer.version import VERSION

SCHEMA = "tracer.report/1"


def to_report(analysis: Analysis) -> dict[str, Any]:
    """The report of one analysis, ready for `json.dumps`."""
    level = window_level(analysis)
    return {
        "schema": SCHEMA,
        "tracer": VERSION,
        "answer": verdict(analysis),
        "source": source_json(analysis),
        "integrity": _integrity(analysis),
        "facts": _facts(analysis),
        "window": _window(analysis),
        "block": _block(analysis),
        "breakdown": _breakdown(analysis, level) if analysis.accounted else None,
        "steps": _steps(analysis),
        "idle": _idle(analysis, level) if analysis.accounted else None,
        "phases": {
            phase.name: _phase(phase, level.devices)
            | {"period_ns": period_ns(analysis, phase.name)}
            for phase in analysis.phases
        },
        "modules": _modules(analysis),
        "kernels": _kernels(analysis.kernels),
        "communication": _communication(analysis, level) if analysis.accounted else None,
        "requests": plain(analysis.requests),
        "serving": plain(analysis.serving) or None,
        "roofline": plain(analysis.roofline),
        "memory": _memory(analysis),
        "device_metrics": plain(analysis.device_metrics) or None,
        "what_if": plain(what_if(analysis)),
        "findings": [finding_json(finding) for finding in analysis.findings],
        "checks": [check_json(check) for check in all_checks(analysis)],
        "observer": _observer(analysis),
    }


def report_text(report: Mapping[str, Any]) -> str:
    """The document as text: one line of ASCII, so that any terminal and any locale carries it."""
    return json.dumps(report, allow_nan=False, separators=(",", ":")) + "\n"


def plain(value: Any) -> Any:
    """The value with nothing in it that JSON does not have; a number that is none becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def source_json(analysis: Analysis) -> dict[str, Any]:
    """What was recorded, where."""
    meta = analysis.trace.meta
    return {
        "kind": meta.source_kind,
        "path": meta.path,
        "framework": meta.framework,
        "device": device_name(analysis),
        "device_count": analysis.window.devices,
        "rank": meta.rank,
        "world_size": meta.world_size,
    }


def device_name(analysis: Analysis) -> str | None:
    """The name of the devices that worked; several different names joined, None when unknown."""
    devices = analysis.trace.table("devices")
    names = dict(zip(devices["device"].tolist(), map(str, devices["name"].tolist()), strict=True))
    if analysis.window.devices:
        worked = set(analysis.work["device"].unique().tolist()) & set(names)
        names = {device: name for device, name in names.items() if device in worked} or names
    return ", ".join(dict.fromkeys(name for name in names.values() if name)) or None


def _integrity(analysis: Analysis) -> dict[str, Any]:
    return {
        "status": analysis.integrity_status,
        "notes": [note_json(note) for note in all_notes(analysis)],
    }


def all_notes(analysis: Analysis) -> tuple[Note, ...]:
    """The notes of the analysis; a breakdown that is missing is always among them."""
    reason = analysis.breakdown_reason
    if analysis.accounted or any(reason in note.message for note in analysis.notes):
        return analysis.notes
    return (*analysis.notes, Note("trace.no_device_events", reason))


def note_json(note: Note) -> dict[str, Any]:
    """A note as the report writes it."""
    fields = {"rule": note.rule, "message": note.message, "count": note.count}
    return fields | {key: plain(value) for key, value in note.detail.items() if key not in fields}


def _facts(analysis: Analysis) -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(FACTS)
    facts["versions"] = {}
    facts.update(plain(analysis.facts))
    return facts


def _window(analysis: Analysis) -> dict[str, Any]:
    window = analysis.window
    return {
        "start_ns": window.start_ns,
        "wall_ns": window.wall_ns,
        "busy_ns": window.busy_ns,
        "idle_ns": window.idle_ns,
        "between_steps_ns": window.between_steps_ns,
        "devices": window.devices,
        "streams": window.streams,
        "kernels": window.kernels,
        "launches": window.launches,
    }


def _block(analysis: Analysis) -> dict[str, int] | None:
    block = traced_block(analysis)
    return None if block is None else asdict(block)


def _breakdown(analysis: Analysis, level: Level) -> dict[str, Any]:
    counts = _kernels_by_group(analysis.kernels)
    breakdown: dict[str, Any] = {}
    for group in GROUPS:
        ns = level.group_ns(group)
        breakdown[group] = {
            "ns": ns,
            "ratio": level.ratio(ns),
            "kernels": counts[group],
            "parts": level.parts(group),
        }
    breakdown["communication"]["overlapped_ns"] = analysis.overlapped_ns
    return breakdown


def _kernels_by_group(kernels: pd.DataFrame) -> dict[str, int]:
    counts = dict.fromkeys(GROUPS, 0)
    for bucket, count in zip(kernels["bucket"].tolist(), kernels["count"].tolist(), strict=True):
        counts[BUCKETS[bucket][0]] += count
    return counts


def _steps(analysis: Analysis) -> list[dict[str, Any]]:
    steps = analysis.steps
    measured = analysis.accounted
    sums = step_sums(analysis).tolist() if measured else [None] * len(steps)
    columns = ("name", "phase", "start_ns", "wall_ns", "busy_ns", "warmup", "batch", "tokens")
    rows = zip(*(steps[name].tolist() for name in (*columns, "kept")), strict=True)
    listed: list[dict[str, Any]] = []
    for index, (row, groups) in enumerate(zip(rows, sums, strict=True)):
        step: dict[str, Any] = {"index": index, **dict(zip(columns, row, strict=False))}
        step["phase"] = step["phase"] or None
        step["busy_ns"] = step["busy_ns"] if measured else None
        step["batch"] = _known(step["batch"])
        step["tokens"] = _known(step["tokens"])
        step["kept_tokens"] = _known(row[-1])
        step["breakdown"] = dict(zip(GROUPS, groups, strict=True)) if groups else None
        listed.append(step)
    return listed


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _idle(analysis: Analysis, level: Level) -> list[dict[str, Any]]:
    counts = _gap_counts(analysis.gaps)
    return [
        {"cause": part, "ns": ns, "count": counts.get(part)}
        for part in IDLE_PARTS
        if (ns := level.part_ns("overhead", part)) > 0
    ]


def _gap_counts(gaps: pd.DataFrame) -> dict[str, int]:
    """In how many gaps each cause has a part. Gaps are numbered from 0, so no sort is needed."""
    if not len(gaps):
        return {}
    causes = gaps["cause"].cat
    numbers, devices = gaps["gap"].to_numpy(), gaps["device"].to_numpy()
    whole = devices.astype(np.int64) * (int(numbers.max()) + 1) + numbers
    seen = np.zeros((len(causes.categories), int(whole.max()) + 1), dtype=bool)
    seen[causes.codes.to_numpy(), whole] = True
    counts = zip(causes.categories, seen.sum(axis=1).tolist(), strict=True)
    return {str(cause): count for cause, count in counts if count}


def _phase(phase: Phase, devices: int) -> dict[str, Any]:
    whole = phase.wall_ns * max(devices, 1)
    groups = phase.groups
    return {
        "steps": phase.steps,
        "warmup_steps": phase.warmup_steps,
        "median_ns": phase.median_ns,
        "min_ns": phase.min_ns,
        "p95_ns": phase.p95_ns,
        "p99_ns": phase.p99_ns,
        "wall_ns": phase.wall_ns,
        "breakdown": None
        if groups is None
        else {
            group: {"ns": groups.get(group, 0), "ratio": _ratio(groups.get(group, 0), whole)}
            for group in GROUPS
        },
        "tokens_per_second": plain(phase.tokens_per_second),
        **({"part_of": phase.part_of} if phase.part_of else {}),
    }


def _ratio(ns: int, whole: int) -> float:
    return ns / whole if whole else 0.0


def _modules(analysis: Analysis) -> list[dict[str, Any]]:
    modules = analysis.modules
    texts = ("path", "type", "role")
    numbers = ("device_ns", "self_device_ns", "host_ns", "calls", "kernels")
    rows = zip(*(modules[name].tolist() for name in texts + numbers), strict=True)
    return [_module(row, analysis.accounted) for row in rows]


def _module(row: tuple[Any, ...], accounted: bool) -> dict[str, Any]:
    path, kind, role, device_ns, self_ns, host_ns, calls, kernels = row
    return {
        "path": path,
        "type": kind or None,
        "role": role or None,
        "device_ns": _known(device_ns) if accounted else None,
        "self_device_ns": _known(self_ns) if accounted else None,
        "host_ns": _known(host_ns),
        "calls": _known(calls),
        "kernels": _known(kernels) if accounted else None,
    }


def _kernels(kernels: pd.DataFrame) -> list[dict[str, Any]]:
    columns = ("name", "bucket", "library", "how", "confidence", "count", "total_ns", "ratio")
    rows = zip(*(kernels[column].tolist() for column in columns), strict=True)
    listed = [
        {
            "name": name,
            "group": BUCKETS[bucket][0],
            "part": BUCKETS[bucket][1],
            "library": library or None,
            "count": count,
            "total_ns": total_ns,
            "mean_ns": round(total_ns / count) if count else None,
            "ratio": plain(ratio),
            "how": how,
            "confidence": plain(confidence),
        }
        for name, bucket, library, how, confidence, count, total_ns, ratio in rows
    ]
    for column in ("modules", "operators"):  # what a kernel of compiled code was made from
        for row, told in zip(listed, kernels[column].tolist(), strict=True):
            if told:
                row[column] = json.loads(told)
    return listed


def _communication(analysis: Analysis, level: Level) -> dict[str, Any]:
    return {
        "exposed_ns": level.group_ns("communication"),
        "overlapped_ns": analysis.overlapped_ns,
        "collectives": summed_collectives(analysis),
    }


def summed_collectives(analysis: Analysis) -> list[dict[str, Any]]:
    """The collectives of the window, summed by operation and process group."""
    collectives = analysis.collectives[analysis.collectives_in_window]
    # One launched before the recording counts as unattributed, and in no operation.
    known = collectives[collectives["op"].isin(PARTS["communication"])]
    kinds: Iterable[tuple[Any, pd.DataFrame]] = known.groupby(
        ["op", "group"], observed=True, sort=False
    )
    return [_collective(str(op), str(name), rows) for (op, name), rows in kinds]


def _collective(op: str, group: str, rows: pd.DataFrame) -> dict[str, Any]:
    sizes = rows["bytes"].to_numpy()
    wires = rows["wire_ns"].to_numpy()
    size, on_wire = _sum_if_known(sizes), _sum_if_known(wires)
    # A rank alone cannot tell sending from waiting: a bandwidth of both would be the network's.
    algorithm = None if on_wire is None else _bandwidth(size, on_wire)
    members = int(rows["group_size"].max())
    return {
        "op": op,
        "group": group or None,
        "count": len(rows),
        "bytes": size,
        "algbw_bytes_per_s": algorithm,
        "busbw_bytes_per_s": None
        if algorithm is None or members < 1
        else algorithm * bus_factor(op, members),
        "exposed_ns": int(rows["exposed_ns"].sum()),
        "overlapped_ns": int(rows["overlapped_ns"].sum()),
        "wait_ns": _sum_if_known(rows["wait_ns"].to_numpy()),
        "wire_ns": _sum_if_known(wires),
    }


def _sum_if_known(values: NDArray[np.int64]) -> int | None:
    return int(values.sum()) if bool((values >= 0).all()) else None


def _bandwidth(size: int | None, duration_ns: int) -> float | None:
    return None if size is None or duration_ns <= 0 else size * 1e9 / duration_ns


def _memory(analysis: Analysis) -> dict[str, Any]:
    known = ("peak_allocated_bytes", "peak_reserved_bytes", "fragmentation_ratio")
    memory: dict[str, Any] = dict.fromkeys(known)
    memory.update(plain(analysis.memory))
    return memory


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as the report writes it."""
    where = finding.where
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "title": finding.title,
        "count": plain(finding.count),
        "cost_ns": plain(finding.cost_ns),
        "ratio": plain(finding.ratio),
        "steps": _whole_numbers(finding.steps),
        "where": {
            "file": where.file,
            "line": where.line,
            "function": where.function,
            "module": where.module,
            "operator": where.operator,
        },
        "detail": plain(finding.detail),
        "advice": finding.advice,
        "gain_ns": plain(finding.gain_ns),
    }


def _whole_numbers(values: Iterable[int]) -> list[int]:
    return [int(value) for value in values]


def check_json(check: Check) -> dict[str, Any]:
    """A check as the report writes it."""
    return {"rule": check.rule, "status": check.status, "reason": check.reason}


def _observer(analysis: Analysis) -> dict[str, Any] | None:
    observer = analysis.observer
    if observer is None:
        return None
    return {
        "profiled_step_ns": observer.profiled_step_ns,
        "unprofiled_step_ns": observer.unprofiled_step_ns,
        "inflation_ratio": observer.inflation_ratio,
        "basis": observer.basis,
    }
