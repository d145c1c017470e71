"""A file read by two processes is the file read by one."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.make_kineto import HEADER, decode_loop, event, kineto_file, operator, text_of, write
from tests.test_kineto import same
from tracer.collectors.kineto import workers as kineto_workers
from tracer.collectors.kineto.trace import read_kineto
from tracer.collectors.kineto.workers import can_share, read_shared
from tracer.events import Trace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are worth a second process, and torch of other tests does not hinder."""
    monkeypatch.setattr(kineto_workers, "SMALLEST_BYTES", 1000)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def both(path: Path) -> tuple[Trace, Trace]:
    shared = read_shared(path)
    assert shared is not None, "the file was not read by two"
    return read_kineto(path), read_kineto(path, workers=2)


def many_events() -> list[dict[str, object]]:
    """Each half has names, threads and side tables that the other has not."""
    events = decode_loop(150)
    events += [operator(f"aten::late{n}", 9000 + n, 1, Sequence_number=n) for n in range(100)]
    events += [
        {**event("cuda_runtime", "INVALID", 9500 + n, 1, cbid=461), "tid": 99} for n in range(60)
    ]
    return events


def test_the_same_trace(tmp_path: Path) -> None:
    one, two = both(kineto_file(tmp_path, many_events(), traceName="end"))
    same(one, two)
    assert one.meta == two.meta
    assert one.notes == two.notes
    assert two.meta.extra["traceName"] == "end"


def test_damage_in_both_halves_is_counted(tmp_path: Path) -> None:
    text = text_of(many_events())
    text = text.replace('"aten::mm"', '"aten"::mm"', 1).replace('"aten::late7"', '"late\x01"', 1)
    one, two = both(write(tmp_path / "t.json", text[:-3]))
    same(one, two)
    assert one.notes == two.notes
    assert {note.rule for note in two.notes} > {"trace.invalid_event", "trace.truncated"}


def test_a_file_that_cannot_be_shared_is_read_by_one(tmp_path: Path) -> None:
    half = {"cat": "cpu_op", "pid": 1, "tid": 1}
    events = [{"ph": "B", "name": "all of it", "ts": 0, **half}, *decode_loop(100)]
    path = kineto_file(tmp_path, [*events, {"ph": "E", "name": "all of it", "ts": 9999, **half}])
    assert read_shared(path) is None
    trace = read_kineto(path, workers=2)
    assert trace.events["name"].tolist()[0] == "all of it"
    assert trace.events["duration_ns"].max() == 9_999_000


def test_a_child_that_dies_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kineto_workers, "_read_second", fail)
    path = kineto_file(tmp_path, many_events())
    assert read_shared(path) is None
    assert len(read_kineto(path, workers=2).events) == len(many_events())


def test_progress_and_the_limit(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, many_events())
    seen: list[int] = []
    read_kineto(path, workers=2, progress=lambda done, _size: seen.append(done))
    assert seen[-1] == path.stat().st_size
    assert read_kineto(path, workers=2, max_bytes=path.stat().st_size).meta.clock == "unix"


def test_who_may_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kineto_file(tmp_path, decode_loop(), header=HEADER)
    assert can_share(path)
    assert not can_share(path, 10**9)
    assert not can_share(kineto_file(tmp_path, decode_loop(), name="t.json.gz"))
    monkeypatch.setitem(sys.modules, "torch", pd)
    assert not can_share(path)
