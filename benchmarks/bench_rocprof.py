"""How fast and in how much memory the files of rocprofv3 are read, its JSON and its CSV.

Makes files of 200 MB, each launch a call and a kernel, and reads them in processes of their own.
Speeds are MB of text a second of processor time; memory is what the process needed at its peak
beyond one that read a tiny file, in bytes for each byte of text.

    python -m benchmarks.bench_rocprof [--megabytes 200] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.bench_reader import MEGABYTE, measure
from tests.make_rocprof import (
    Record,
    agent_row,
    call,
    call_row,
    csv_file,
    csv_text,
    json_text,
    kernel,
    kernel_row,
    process,
)

READ = """
from tracer.sources import open_source
def read(path): return open_source(path)
"""
_AT, _STEP_NS = 5_000_000_000_000, 20_000
_ADD = "at::native::CUDAFunctor_add<float>"
_NAMES = (
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1",
    f"void at::native::vectorized_elementwise_kernel<4, {_ADD}, std::array<char*, 3ul> >(int)",
    "__amd_rocclr_copyBuffer",
)
_MADE_AT_ONCE = 10_000


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("JSON", _json), ("CSV", _csv)):
            tiny, large = Path(folder) / f"tiny{name}", Path(folder) / f"large{name}"
            base = measure(READ, make(tiny, 10)[0], 1)["peak"]
            path, size = make(large, options.megabytes * MEGABYTE // _bytes_a_launch(make, tiny))
            _report(name, path, size, base, options.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _report(name: str, path: Path, size: int, base: int, rounds: int) -> None:
    speed, peak = measure(READ, path, rounds), measure(READ, path, 1)["peak"] - base
    print(
        f"rocprofv3 {name:5s} {size / MEGABYTE:5.0f} MB"
        f" {size / speed['cpu'] / MEGABYTE:7.0f} MB/s of processor time"
        f" {size / speed['clock'] / MEGABYTE:7.0f} MB/s of clock"
        f" {peak / size:6.2f} bytes a byte"
    )


Make = Callable[[Path, int], tuple[Path, int]]


def _bytes_a_launch(make: Make, folder: Path) -> int:
    few, many = (make(folder, count)[1] for count in (_MADE_AT_ONCE, 2 * _MADE_AT_ONCE))
    return (many - few) // _MADE_AT_ONCE


def _json(folder: Path, launches: int) -> tuple[Path, int]:
    """A file of so many launches, and its size."""
    folder.mkdir(exist_ok=True)
    head, _, tail = json_text(process(hip_api=[], kernel_dispatch=[])).partition(b'"hip_api":[]')
    path = folder / "7_results.json"
    with path.open("wb") as file:
        file.write(head + b'"hip_api":[')
        for piece in _joined(_hip_call, launches):
            file.write(piece)
        before, _, after = tail.partition(b'"kernel_dispatch":[]')
        file.write(b"]" + before + b'"kernel_dispatch":[')
        for piece in _joined(_dispatch, launches):
            file.write(piece)
        file.write(b"]" + after)
    return path, path.stat().st_size


def _joined(make: Callable[[int], Record], launches: int) -> Iterator[bytes]:
    for row in range(launches):
        separator = "," if row else ""
        yield (separator + json.dumps(make(row), separators=(",", ":"))).encode()


def _hip_call(row: int) -> Record:
    return call("hipLaunchKernel", _AT + _STEP_NS * row, 4_000, row + 1)


def _dispatch(row: int) -> Record:
    return kernel(1 + row % 3, _AT + _STEP_NS * row + 6_000, 9_000, row + 1)


def _csv(folder: Path, launches: int) -> tuple[Path, int]:
    """The tables of so many launches, and their size together."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"7_{name}_trace.csv" for name in ("kernel", "hip_api")]
    for path, make in zip(paths, (_kernel_row, _call_row), strict=True):
        with path.open("w") as file:
            for begin in range(0, launches, _MADE_AT_ONCE):
                end = min(begin + _MADE_AT_ONCE, launches)
                text = csv_text([make(row) for row in range(begin, end)])
                file.write(text if not begin else text.partition("\n")[2])
    csv_file(folder / "7_agent_info.csv", [agent_row(4, "GPU", "MI300X")])
    return paths[0], sum(path.stat().st_size for path in paths)


def _kernel_row(row: int) -> Record:
    return kernel_row(_NAMES[row % 3], _AT + _STEP_NS * row + 6_000, 9_000, row + 1)


def _call_row(row: int) -> Record:
    return call_row("hipLaunchKernel", _AT + _STEP_NS * row, 4_000, row + 1)


if __name__ == "__main__":
    main()
