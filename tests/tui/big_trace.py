"""A recording of any size in a second: steps of layers, each layer the same row of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.events import EVENTS, SIDE_TABLES, Trace, TraceMeta, make_table, text_column

KERNELS_A_LAYER = 15
LAYERS = 32
EVENTS_A_LAYER = KERNELS_A_LAYER * 5 + 3
_PERIOD_NS = 12_000
_BETWEEN_NS = 400_000
Longs = NDArray[np.int64]


def big_trace(steps: int) -> Trace:
    """About `steps` x 2,500 events: 400 steps are a million."""
    step, layer, place, start = _kernel_times(steps)
    kernel = layer * KERNELS_A_LAYER + place
    rows = [
        _host_rows("operator", kernel * 0 + 1 + place, start, 10_000),
        _host_rows("operator", kernel * 0 + 40 + place, start + 1_000, 8_000),
        _host_rows("operator", kernel * 0 + 80 + place, start + 2_000, 6_000),
        _host_rows("runtime", kernel * 0, start + 3_000, 3_000, np.arange(start.size)),
        _kernel_rows(kernel + 200, start + 7_000, step, np.arange(start.size)),
        *_module_rows(start, place),
        _step_rows(start, step, steps),
    ]
    joined = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    order = np.lexsort((-joined["duration_ns"], joined["start_ns"]))
    columns: dict[str, Any] = {name: values[order] for name, values in joined.items()}
    columns["name"] = text_column(columns["name"], _names(steps))
    threads = make_table(SIDE_TABLES["threads"], {"pid": [1], "tid": [1], "name": ["main"]})
    meta = TraceMeta(path="big.json", framework="synthetic")
    return Trace(make_table(EVENTS, columns), {"threads": threads}, meta)


def _kernel_times(steps: int) -> tuple[Longs, Longs, Longs, Longs]:
    number = np.arange(steps * LAYERS * KERNELS_A_LAYER, dtype=np.int64)
    step, rest = np.divmod(number, LAYERS * KERNELS_A_LAYER)
    layer, place = np.divmod(rest, KERNELS_A_LAYER)
    return step, layer, place, number * _PERIOD_NS + step * _BETWEEN_NS


def _names(steps: int) -> list[str]:
    names = ["cudaLaunchKernel"]
    names += [f"aten::op_{n}" for n in range(199)]
    names += [f"triton_poi_fused_{n}_kernel" for n in range(LAYERS * KERNELS_A_LAYER)]
    names += [
        f"module::model.layers.{layer}{part}::{kind}"
        for layer in range(LAYERS)
        for part, kind in (("", "Layer"), (".self_attn", "Attention"), (".mlp", "MLP"))
    ]
    return names + [f"ProfilerStep#{n}" for n in range(steps)]


_MODULES = 200 + LAYERS * KERNELS_A_LAYER
_STEPS = _MODULES + 3 * LAYERS


def _row(kind: str, size: int, **columns: Any) -> dict[str, Any]:
    from tracer.events import KIND_CODE

    defaults: dict[str, Any] = dict.fromkeys(EVENTS, -1) | {"kind": KIND_CODE[kind]}
    return {
        name: np.broadcast_to(np.asarray(columns.get(name, defaults[name])), size)
        for name in EVENTS
    }


def _host_rows(
    kind: str, name: Longs, start: Longs, length: int, correlation: Longs | None = None
) -> dict[str, Any]:
    links = -1 if correlation is None else correlation
    return _row(kind, start.size, name=name, start_ns=start, duration_ns=length, thread=0,
                correlation=links)  # fmt: skip


def _kernel_rows(name: Longs, start: Longs, step: Longs, correlation: Longs) -> dict[str, Any]:
    length = 2_000 + (name * 37 + step * 11) % 4_000
    return _row("kernel", start.size, name=name, start_ns=start, duration_ns=length, device=0,
                stream=7, correlation=correlation)  # fmt: skip


def _module_rows(start: Longs, place: Longs) -> list[dict[str, Any]]:
    rows = []
    for part, (first, kernels) in enumerate(((0, 15), (0, 7), (7, 8))):
        begin = start[place == first] - 3 + part
        layer = np.arange(begin.size) % LAYERS
        length = kernels * _PERIOD_NS - 1_000
        name = _MODULES + layer * 3 + part
        rows.append(_row("module", begin.size, name=name, start_ns=begin, duration_ns=length,
                         thread=0))  # fmt: skip
    return rows


def _step_rows(start: Longs, step: Longs, steps: int) -> dict[str, Any]:
    first = np.searchsorted(step, np.arange(steps))
    length = LAYERS * KERNELS_A_LAYER * _PERIOD_NS + 1_000
    return _row("annotation", steps, name=_STEPS + np.arange(steps), start_ns=start[first] - 10,
                duration_ns=length, thread=0)  # fmt: skip
