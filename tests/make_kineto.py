"""Small Kineto files, as Kineto prints them and as other programs write them again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000
HEADER: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS}
Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> Event:
    """A complete event on the main thread; keyword `a_b` is the argument "a b"."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 10,
        "tid": 11,
        "ts": ts,
        "dur": dur,
        "args": named,
    }


def operator(name: str, ts: float, dur: float, number: int = 1, **args: Any) -> Event:
    return event("cpu_op", name, ts, dur, **{"External id": number}, **args)


def call(name: str, ts: float, dur: float, correlation: int) -> Event:
    return event("cuda_runtime", name, ts, dur, cbid=211, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, **args: Any) -> Event:
    made = event("kernel", name, ts, dur, device=0, stream=7, correlation=correlation, **args)
    return {**made, "pid": 0, "tid": 7}


def decode_loop(steps: int = 40) -> list[Event]:
    """Operators that launch kernels, with times to the nanosecond."""
    events = []
    for step in range(steps):
        at = 1000.0 + 50 * step
        events += [
            operator("aten::mm", at + 0.125, 20.5, step + 1),
            operator("aten::empty", at + 1.25, 3.875, step + 1000),
            call("cudaLaunchKernel", at + 5.001, 7.999, step + 1),
            kernel("gemm", at + 14.013, 30.207, step + 1, grid=[2, 3, 1], block=[128, 1, 1]),
        ]
    return events


def text_of(events: Sequence[Event], header: dict[str, Any] | None = None, **tail: Any) -> str:
    """A whole file as Kineto prints it: an event on several lines, three decimals of a time."""
    head = json.dumps(HEADER if header is None else header)[:-1]
    comma = "" if head == "{" else ","
    rows = ",\n  ".join(printed(each) for each in events)
    end = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in tail.items())
    return f'{head}{comma}\n  "traceEvents": [\n  {rows}\n  ]{end}\n}}'


def printed(each: Event) -> str:
    """One event as Kineto prints it."""
    fields = {**each, "ts": _Time(each["ts"]), "dur": _Time(each["dur"])} if "dur" in each else each
    args = fields.get("args")
    own = ", ".join(
        f'"{key}": {value if isinstance(value, _Time) else json.dumps(value)}'
        for key, value in fields.items()
        if key != "args"
    )
    inner = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in (args or {}).items())
    arguments = f',\n    "args": {{\n      {inner}\n    }}' if args is not None else ""
    return f"{{\n    {own}{arguments}\n  }}"


class _Time(float):
    """A time with three decimals."""

    def __str__(self) -> str:
        return f"{float(self):.3f}"

    def __format__(self, form: str) -> str:
        return str(self)


def write(path: Path, text: str | bytes) -> Path:
    """Write a file, gzipped when its name says so."""
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)
    return path


def kineto_file(folder: Path, events: Sequence[Event], name: str = "t.json", **more: Any) -> Path:
    """A file with these events."""
    return write(folder / name, text_of(events, **more))
