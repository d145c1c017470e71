"""Files cut into chunks: wherever they are cut, the same is read, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.make_kineto import HEADER, Event, decode_loop, kineto_file, operator, text_of, write
from tests.test_kineto_reference import CHECKED, assert_same, names
from tracer.collectors.kineto.columns import finish
from tracer.collectors.kineto.reading import Reading, read_file

PEAK = """
import sys
from tracer.collectors.kineto.trace import read_kineto
found = read_kineto(sys.argv[1])
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


def same_reading(one: Reading, other: Reading) -> None:
    assert one.header == other.header
    assert one.cut == other.cut
    assert one.remarks == other.remarks
    left, right = finish(one.columns, 0), finish(other.columns, 0)
    assert_same(left.events.drop(columns="thread"), right.events.drop(columns="thread"))
    assert left.sides.keys() == right.sides.keys()
    for name in left.sides:
        assert_same(left.sides[name], right.sides[name])


@pytest.mark.parametrize("chunk_bytes", [600, 1500, 5000, 40_000])
@pytest.mark.parametrize("form", ["printed", "compact", "list", "names first", "cut"])
def test_wherever_a_text_is_cut(tmp_path: Path, form: str, chunk_bytes: int) -> None:
    named: Event = {"name": "thread_name", "ph": "M", "ts": 1, "pid": 10, "tid": 11}
    named["args"] = {"name": "thread 11 (main)"}
    events = [*decode_loop(30), named, *decode_loop(30), named]
    if form == "names first":
        events = [{"name": each["name"], **each} for each in events]
    text = text_of(events, traceName="x", deviceProperties=[{"id": 0, "name": "G"}])
    if form == "compact":
        text = json.dumps({**HEADER, "traceEvents": events, "after": [{"ph": 1}, {"ph": 2}]})
    elif form == "list":
        text = json.dumps(events, separators=(",", ":"))
    elif form == "cut":
        text = text[: len(text) // 2]
    path = write(tmp_path / "t.json", text)
    same_reading(read_file(path, chunk_bytes=chunk_bytes), read_file(path))


@pytest.mark.parametrize("path", names(CHECKED[::5]))
def test_recordings_cut_often(path: Path) -> None:
    same_reading(read_file(path, chunk_bytes=30_000), read_file(path))


def test_one_event_longer_than_a_chunk(tmp_path: Path) -> None:
    long = operator("x" * 50_000, 5, 1)
    path = kineto_file(tmp_path, [*decode_loop(5), long, *decode_loop(5)])
    same_reading(read_file(path, chunk_bytes=1000), read_file(path))


def test_a_long_header_and_a_long_tail(tmp_path: Path) -> None:
    long = [{"name": f"n{n}", "ph": n} for n in range(3000)]
    header = {**HEADER, "before": long}
    path = kineto_file(tmp_path, decode_loop(20), header=header, after=long)
    found = read_file(path, chunk_bytes=2000)
    assert found.header["before"] == found.header["after"] == long
    same_reading(found, read_file(path))


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_the_peak_of_memory_is_a_fraction_of_the_text(tmp_path: Path, suffix: str) -> None:
    """A text is never held whole, and its events take less room than it does."""
    once = text_of(decode_loop(2000))
    begin, end = once.index("{\n    "), once.rindex("\n  ]")
    turns = [once[begin:end].replace('"ts": ', f'"ts": {turn}') for turn in range(10, 70)]
    text = once[:begin] + ",\n  ".join(turns) + once[end:]
    large = write(tmp_path / f"large.{suffix}", text)
    tiny = kineto_file(tmp_path, decode_loop(50), name="tiny.json")
    assert len(text) > 80_000_000
    assert peak_bytes(large) - peak_bytes(tiny) < 0.8 * len(text)


def peak_bytes(path: Path) -> int:
    """What a process that reads this file needs at its peak."""
    command = [sys.executable, "-c", PEAK, str(path)]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)
