"""Small analyses by hand, for tests of what a user sees."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracer.analysis import BUCKET_CODE, GROUPS, TABLES, Analysis, Phase, Window
from tracer.events import Trace, make_table, text_column
from tracer.exporters.levels import IDLE_PARTS

from .make_traces import TraceMaker, to_ns

START_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Step:
    """One step: microseconds of each `group.part`."""

    phase: str
    parts: Mapping[str, float]
    warmup: bool = False
    batch: int = -1
    tokens: int = -1

    @property
    def total_ns(self) -> int:
        return sum(self.buckets.values())

    @property
    def buckets(self) -> dict[int, int]:
        """Nanoseconds by code of the bucket."""
        return {bucket_code(name): to_ns(us) for name, us in self.parts.items()}


def bucket_code(name: str) -> int:
    """The code of `attention.core`."""
    group, part = name.split(".")
    return BUCKET_CODE[group, part]


def make_analysis(
    steps: Sequence[Step],
    *,
    devices: int = 1,
    between: Mapping[str, float] | None = None,
    kernels: Sequence[Mapping[str, Any]] | None = None,
    modules: Sequence[Mapping[str, Any]] = (),
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    trace: Trace | None = None,
    **fields: Any,
) -> Analysis:
    """An analysis of these steps, one after another. Other `fields` are those of Analysis."""
    rest = Step("", between or {})
    busy_ns = sum(_busy_ns(step) for step in [*steps, rest])
    capacity_ns = sum(step.total_ns for step in steps) + rest.total_ns
    accounted = fields.get("accounted", True)
    window = Window(
        start_ns=START_NS,
        wall_ns=capacity_ns // max(devices, 1),
        busy_ns=busy_ns if accounted else None,
        idle_ns=capacity_ns - busy_ns if accounted else None,
        between_steps_ns=rest.total_ns // max(devices, 1),
        devices=devices,
        streams=devices,
        kernels=100,
        launches=100,
    )
    made: dict[str, Any] = {name: make_table(columns, {}) for name, columns in TABLES.items()}
    made |= {
        "steps": make_table(TABLES["steps"], _steps(steps, devices)),
        "charges": make_table(TABLES["charges"], _charges(steps, rest)),
        "kernels": make_table(TABLES["kernels"], _rows(kernels or _kernels(steps), "kernels")),
        "modules": make_table(TABLES["modules"], _rows(modules, "modules")),
    }
    made |= {n: make_table(TABLES[n], columns) for n, columns in (tables or {}).items()}
    if not accounted:
        made["charges"] = make_table(TABLES["charges"], {})
    phases = fields.pop("phases", None)
    return Analysis(
        trace=TraceMaker().build(path="run.json", framework="torch 2.13.0")
        if trace is None
        else trace,
        window=fields.pop("window", window),
        phases=_phases(steps, devices, accounted) if phases is None else phases,
        **made,
        **fields,
    )


def _busy_ns(step: Step) -> int:
    idle = {BUCKET_CODE["overhead", part] for part in IDLE_PARTS}
    return sum(ns for code, ns in step.buckets.items() if code not in idle)


def _steps(steps: Sequence[Step], devices: int) -> dict[str, Any]:
    walls = [step.total_ns // max(devices, 1) for step in steps]
    starts = START_NS + np.cumsum([0, *walls])[:-1]
    return {
        "name": [f"step {i}" for i in range(len(steps))],
        "phase": [step.phase for step in steps],
        "start_ns": starts[: len(steps)],
        "wall_ns": walls,
        "busy_ns": [_busy_ns(step) for step in steps],
        "warmup": [step.warmup for step in steps],
        "batch": [step.batch for step in steps],
        "tokens": [step.tokens for step in steps],
        "source": ["announced"] * len(steps),
    }


def _charges(steps: Sequence[Step], rest: Step) -> dict[str, Any]:
    rows = [(i, code, ns) for i, step in enumerate(steps) for code, ns in step.buckets.items()]
    rows += [(-1, code, ns) for code, ns in rest.buckets.items()]
    return {
        "step": [row[0] for row in rows],
        "bucket": [row[1] for row in rows],
        "ns": [row[2] for row in rows],
    }


def _kernels(steps: Sequence[Step]) -> list[dict[str, Any]]:
    idle = {BUCKET_CODE["overhead", part] for part in IDLE_PARTS}
    whole = sum(step.total_ns for step in steps)
    sums: dict[str, int] = {}
    for step in steps:
        for name, us in step.parts.items():
            if bucket_code(name) not in idle:
                sums[name] = sums.get(name, 0) + to_ns(us)
    return [
        {
            "name": f"{name.replace('.', '_')}_kernel",
            "bucket": bucket_code(name),
            "library": "cuBLAS",
            "how": "module",
            "confidence": 1.0,
            "count": len(steps),
            "total_ns": ns,
            "ratio": ns / whole if whole else 0.0,
        }
        for name, ns in sorted(sums.items(), key=lambda item: -item[1])
    ]


def _rows(rows: Sequence[Mapping[str, Any]], table: str) -> dict[str, Any]:
    if not rows:
        return {}
    kinds = TABLES[table]
    columns = {name: [row.get(name, _default(kinds[name])) for row in rows] for name in kinds}
    return {n: _texts(values) if kinds[n] == "text" else values for n, values in columns.items()}


def _texts(values: Sequence[str]) -> Any:
    """A text column as readers make it: pandas looks at no text, so that any text is possible."""
    distinct = list(dict.fromkeys(values))
    return text_column(np.array([distinct.index(value) for value in values]), distinct)


def _default(kind: str) -> Any:
    return "" if kind == "text" else -1


def _phases(steps: Sequence[Step], devices: int, accounted: bool) -> tuple[Phase, ...]:
    names = dict.fromkeys(step.phase for step in steps if step.phase)
    return tuple(
        _phase(name, [s for s in steps if s.phase == name], devices, accounted) for name in names
    )


def _phase(name: str, steps: Sequence[Step], devices: int, accounted: bool) -> Phase:
    steady = [step for step in steps if not step.warmup]
    walls = sorted(step.total_ns // max(devices, 1) for step in steady)
    groups = dict.fromkeys(GROUPS, 0)
    for step in steady:
        for part, us in step.parts.items():
            groups[part.split(".")[0]] += to_ns(us)
    return Phase(
        name=name,
        steps=len(steady),
        median_ns=round(statistics.median(walls)) if walls else None,
        min_ns=walls[0] if walls else None,
        p95_ns=walls[-1] if walls else None,
        p99_ns=walls[-1] if walls else None,
        groups=groups if accounted else None,
        wall_ns=sum(walls),
        tokens_per_second=None,
        warmup_steps=len(steps) - len(steady),
    )
