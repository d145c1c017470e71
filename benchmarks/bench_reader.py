"""How fast and in how much memory a Kineto file is read, beside `json.load` and pandas.

Builds a file of 200 MB by repeating a recording in time, then reads it in processes of their own.
Speeds are MB of JSON a second of processor time; memory is what the process needed at its peak
beyond one that read a tiny file, in bytes for each byte of JSON.

    python -m benchmarks.bench_reader [--source TRACE] [--megabytes 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("TRACER_SHARED", Path(__file__).resolve().parents[2] / "shared"))
SOURCE = SHARED / "h200" / "long_decode8b_50steps.json.gz"
MEGABYTE = 1_000_000

_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_SHIFTED = re.compile(rb'("(?:ts|correlation|External id|id)": ?)(\d+)')
_ID_SHIFT, _TS_SHIFT_US = 100_000_000, 60_000_000

READ_OURS = """
from tracer.collectors.kineto.trace import read_kineto
def read(path): return read_kineto(path, workers={workers})
"""
READ_PLAINLY = """
import gzip, json
import pandas as pd
def read(path):
    opened = gzip.open(path, "rt") if path.endswith("gz") else open(path)
    with opened as file:
        return pd.DataFrame(json.load(file)["traceEvents"])
"""
MEASURE = """
import json, resource, sys, time
def peak():
    # Not the peak of getrusage, which a process inherits from the one that started it.
    try:
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
path, rounds = sys.argv[1], int(sys.argv[2])
cpu, clock = [], []
for _ in range(rounds):
    cpu_begin, begin = time.process_time(), time.perf_counter()
    found = read(path)
    cpu.append(time.process_time() - cpu_begin)
    clock.append(time.perf_counter() - begin)
    del found
print(json.dumps({"cpu": min(cpu), "clock": min(clock), "peak": peak()}))
"""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        size = _build(_source_text(options.source), plain, options.megabytes * MEGABYTE)
        packed = _pack(plain)
        tiny = Path(folder) / "tiny.json"
        _build(_source_text(options.source), tiny, MEGABYTE // 50)
        print(
            f"{size / MEGABYTE:.0f} MB of JSON, {packed.stat().st_size / MEGABYTE:.1f} MB gzipped"
        )
        _report(plain, packed, tiny, size, options.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _report(plain: Path, packed: Path, tiny: Path, size: int, rounds: int) -> None:
    ours, plainly = READ_OURS.format(workers=1), READ_PLAINLY
    base = {code: measure(code, tiny, 1)["peak"] for code in (ours, plainly)}
    rows = [
        ("tracer", ours, plain, rounds),
        ("tracer, gzip", ours, packed, rounds),
        ("json.load + pandas", plainly, plain, 1),
    ]
    measured = {}
    for name, code, path, count in rows:
        speed = measure(code, path, count)
        peak = measure(code, path, 1)["peak"] - base[code]
        measured[name] = speed["cpu"]
        print(
            f"{name:20s} {size / speed['cpu'] / MEGABYTE:7.0f} MB/s of processor time"
            f" {size / speed['clock'] / MEGABYTE:7.0f} MB/s of clock"
            f" {peak / size:6.2f} bytes a byte"
        )
    two = measure(READ_OURS.format(workers=2), plain, rounds)
    print(
        f"{'tracer, 2 processes':20s} {'':28s} {size / two['clock'] / MEGABYTE:7.0f} MB/s of clock"
    )
    ratio = measured["json.load + pandas"] / measured["tracer"]
    print(f"json.load + pandas takes {ratio:.1f} times the processor time of tracer")


def measure(code: str, path: Path, rounds: int) -> dict[str, Any]:
    """Seconds (`cpu`, `clock`: the least of the rounds) and bytes (`peak`) of a process that calls
    the `read` of the code with a path."""
    command = [sys.executable, "-c", code + MEASURE, str(path), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _source_text(source: Path) -> bytes:
    """The recording, or events made up in its layout where there is none."""
    if not source.exists():
        return b'{"baseTimeNanoseconds": 1700000000000000000, "traceEvents": [' + _made_up() + b"]}"
    raw = source.read_bytes()
    return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw


def _made_up(launches: int = 20_000) -> bytes:
    rows = []
    for n in range(launches):
        at, link = 5_000_000_000 + 40 * n, f'"External id": {n}'
        host, device = '"pid": 10, "tid": 10', '"pid": 0, "tid": 7'
        work = f'"device": 0, "stream": 7, "correlation": {n}, "grid": [1, 1, 1]'
        rows += [
            _event("cpu_op", "aten::linear", host, at, 30.125, link),
            _event("cpu_op", "aten::addmm", host, at + 2, 25.5, link),
            _event("cuda_runtime", "cudaLaunchKernel", host, at + 9, 4, f'"correlation": {n}'),
            _event("kernel", "void gemm<float>(float const*)", device, at + 20, 11.25, work),
        ]
    return ",\n  ".join(rows).encode()


def _event(cat: str, name: str, track: str, at: float, length: float, args: str) -> str:
    return (
        f'{{\n    "ph": "X", "cat": "{cat}", "name": "{name}", {track},\n'
        f'    "ts": {at:.3f}, "dur": {length:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _build(source: bytes, path: Path, size: int) -> int:
    """Write a trace of about that size: the events of the source, again and again, each time later
    and with identifiers of their own."""
    begin = source.index(b"[", source.index(b'"traceEvents"')) + 1
    events = (
        source[begin : source.rindex(b'"ph": "M"')] if b'"ph": "M"' in source else source[begin:]
    )
    events = events[: events.rindex(b"},")] + b"}"
    with path.open("wb") as file:
        file.write(source[:begin])
        for piece in _repeated(events, size - begin):
            file.write(piece)
        file.write(b"\n  ]\n}\n")
    return path.stat().st_size


def _repeated(events: bytes, size: int) -> Iterator[bytes]:
    written = turn = 0
    while written < size:
        part = events if size - written >= len(events) else _first(events, size - written)
        yield b"," + _shifted(part, turn) if turn else part
        written, turn = written + len(part), turn + 1


def _first(events: bytes, size: int) -> bytes:
    """Whole events from the beginning, of about that size."""
    end = _BETWEEN.search(events, min(size, len(events) - 1))
    return events if end is None else events[: end.start() + 1]


def _shifted(events: bytes, turn: int) -> bytes:
    def shift(found: re.Match[bytes]) -> bytes:
        by = _TS_SHIFT_US if b"ts" in found.group(1) else _ID_SHIFT
        return found.group(1) + b"%d" % (int(found.group(2)) + by * turn)

    return _SHIFTED.sub(shift, events)


def _pack(plain: Path) -> Path:
    packed = plain.with_suffix(".json.gz")
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
        while piece := source.read(1 << 24):
            target.write(piece)
    return packed


if __name__ == "__main__":
    main()
