"""Recordings for tests of exports: a model of layers, any number of steps and kernels."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.events import EVENTS, KIND_CODE, SIDE_TABLES, Trace, TraceMeta, make_table, text_column

BASE_NS = 1_700_000_000_000_000_000
STEP_NS, KERNEL_NS, PAUSE_NS = 40_000_000, 700, 300


def kernel_trace(
    steps: int, kernels: int, *, names: int = 12, rank: int | None = None, **meta: Any
) -> Trace:
    """`steps` profiler steps with `kernels` launches and kernels each, 700 ns and 300 ns apart.

    Each kernel is launched, from the main thread, 50 us before it runs.
    """
    step, place = np.divmod(np.arange(steps * kernels), kernels)
    length = max(STEP_NS, kernels * (KERNEL_NS + PAUSE_NS) + 200_000)
    step_start = BASE_NS + np.arange(steps) * length
    start = step_start[step] + 60_000 + place * (KERNEL_NS + PAUSE_NS)
    code = place % names
    total = len(start)
    columns: dict[str, Any] = {
        "kind": _joined([(steps, "annotation"), (total, "runtime"), (total, "kernel")]),
        "name": np.concatenate(
            [np.arange(steps), np.full(total, steps), steps + 1 + code.astype(np.int64)]
        ),
        "start_ns": np.concatenate([step_start, start - 50_000, start]),
        "duration_ns": np.concatenate(
            [np.full(steps, length - 100), np.full(total, 200), np.full(total, KERNEL_NS)]
        ),
        "thread": np.repeat([0, 0, -1], [steps, total, total]),
        "device": np.repeat([-1, -1, 0], [steps, total, total]),
        "stream": np.repeat([-1, -1, 7], [steps, total, total]),
        "correlation": np.concatenate([np.full(steps, -1), np.arange(total), np.arange(total)]),
    }
    order = np.lexsort((-columns["duration_ns"], columns["start_ns"]))
    columns = {name: values[order] for name, values in columns.items()}
    labels = [f"ProfilerStep#{i}" for i in range(steps)] + ["cudaLaunchKernel"]
    labels += [f"void ns::kernel_{i}<float, {i}>(float*, int)" for i in range(names)]
    columns["name"] = text_column(columns["name"], labels)
    threads = make_table(SIDE_TABLES["threads"], {"pid": [77], "tid": [77], "name": ["main"]})
    return Trace(
        make_table(EVENTS, columns),
        {"threads": threads},
        TraceMeta(rank=rank, framework="torch 2.13.0", **meta),
    )


def _joined(counted: Iterable[tuple[int, str]]) -> Any:
    codes = [np.full(count, KIND_CODE[kind]) for count, kind in counted]
    return np.concatenate(codes).astype(np.int8)


def kernel_analysis(steps: int, kernels: int, **more: Any) -> Analysis:
    """The analysis of `kernel_trace`."""
    return analyze(kernel_trace(steps, kernels, **more))


def value_of(message: Any) -> Any:
    """The Python value of an AnyValue."""
    kind = message.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in message.array_value.values]
    return getattr(message, kind)


def attributes_of(message: Any) -> dict[str, Any]:
    """Attributes of a span, an event or a resource."""
    return {item.key: value_of(item.value) for item in message.attributes}


def write_kineto(trace: Trace, path: Path) -> Path:
    """The trace as a PyTorch profiler's file."""
    events = trace.events
    columns = [events[c].tolist() for c in ("kind", "name", "start_ns", "duration_ns", "stream")]
    correlations = events["correlation"].tolist()
    rows = [
        {
            "ph": "X",
            "cat": _CATEGORY[kind],
            "name": name,
            "pid": 0 if kind == "kernel" else 77,
            "tid": stream if kind == "kernel" else 77,
            "ts": (start - BASE_NS) / 1000,
            "dur": duration / 1000,
            "args": {
                **({} if correlation < 0 else {"correlation": correlation}),
                **({"device": 0, "stream": stream} if kind == "kernel" else {}),
            },
        }
        for kind, name, start, duration, stream, correlation in zip(
            *columns, correlations, strict=True
        )
    ]
    meta = trace.meta
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    head |= {"baseTimeNanoseconds": BASE_NS}
    if meta.rank is not None:
        world = {"backend": "nccl", "rank": meta.rank, "world_size": meta.world_size}
        head["distributedInfo"] = world
    path.write_text(json.dumps(head | {"traceEvents": rows}))
    return path


_CATEGORY = {"annotation": "user_annotation", "runtime": "cuda_runtime", "kernel": "kernel"}
