"""Damaged files: each costs what is damaged and no more, and the trace says so (cases 13, 14)."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from tests.make_kineto import decode_loop, kernel, operator, text_of, write
from tests.test_kineto import same
from tracer.collectors.kineto.trace import read_kineto
from tracer.errors import EmptyTraceError, InputError, TracerError
from tracer.events import Note, Trace

EVENTS = decode_loop(60)
TEXT = text_of(EVENTS, traceName="x")


def note_of(trace: Trace, rule: str) -> Note:
    (note,) = [note for note in trace.notes if note.rule == rule]
    return note


def test_the_files_here_are_whole_before_they_are_damaged(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path / "t.json", TEXT))
    assert len(trace.events) == len(EVENTS)
    assert [note.rule for note in trace.notes] == ["trace.no_rank"]


# Case 13: cut while it was written


def test_closing_brackets_missing(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path / "t.json", TEXT[: TEXT.rindex("]")]))
    assert len(trace.events) == len(EVENTS)
    note = note_of(trace, "trace.truncated")
    assert (note.count, note.partial) == (len(EVENTS), True)
    assert f"{len(EVENTS)} events were read" in note.message
    assert "trace.invalid_event" not in [each.rule for each in trace.notes]


def test_cut_in_the_middle_of_an_event(tmp_path: Path) -> None:
    whole = TEXT.index('"name": "gemm"', len(TEXT) // 2)
    trace = read_kineto(write(tmp_path / "t.json.tmp", TEXT[:whole]))
    assert len(trace.events) == TEXT[:whole].count('"dur"')
    assert note_of(trace, "trace.truncated").count == len(trace.events)


def test_gzip_cut_at_sixty_percent(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT.encode())
    trace = read_kineto(write(tmp_path / "t.json", packed[: len(packed) * 6 // 10]))
    assert 0 < len(trace.events) < len(EVENTS)
    assert note_of(trace, "trace.truncated").count == len(trace.events)


def test_gzip_with_a_wrong_byte_in_the_middle(tmp_path: Path) -> None:
    packed = bytearray(
        gzip.compress(TEXT.encode() + random.Random(0).randbytes(1 << 16).hex().encode())
    )
    packed[len(packed) // 2 :] = b"\xff" * 40
    trace = read_kineto(write(tmp_path / "t.json", bytes(packed)))
    assert len(trace.events) > 0
    assert "trace.truncated" in [note.rule for note in trace.notes]


def test_every_cut_gives_a_trace_or_one_line(tmp_path: Path) -> None:
    text = text_of(EVENTS[:2], traceName="x")
    events = []
    for length in range(0, len(text), 2):
        try:
            trace = read_kineto(write(tmp_path / "t.json", text[:length]))
        except TracerError as error:
            assert "\n" not in str(error) and "t.json" in str(error)
            events.append(0)
        else:
            assert any(note.partial for note in trace.notes) or length >= len(text) - 30
            events.append(len(trace.events))
    assert events == sorted(events)
    assert events[-1] == 2


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0)])
def test_nothing_in_it(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "nothing.json", content)
    with pytest.raises(EmptyTraceError, match=r"nothing\.json: the file is empty") as caught:
        read_kineto(path)
    assert caught.value.rule == "trace.empty"


# Case 14: not quite JSON


@pytest.mark.parametrize(
    ("damaged", "read"),
    [
        (rb'say "hello" twice', 'say "hello" twice'),
        (rb"C:\dir\Xfile", r"C:\dir\Xfile"),
        (b"beep\x01beep", "beep beep"),
        (b"bad \xff\xfe bytes", "bad \ufffd\ufffd bytes"),
        (rb"lone \ud800 half", "lone \ufffd half"),
    ],
)
@pytest.mark.parametrize("compact", [False, True])
def test_a_damaged_name_is_repaired_and_counted(
    tmp_path: Path, damaged: bytes, read: str, compact: bool
) -> None:
    events = [*EVENTS[:40], operator("NAME", 3000, 1), *EVENTS[40:]]
    text = json.dumps({"traceEvents": events}) if compact else text_of(events)
    raw = text.encode().replace(b"NAME", damaged)
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert len(trace.events) == len(events)
    assert (trace.events["name"] == read).sum() == 1
    note = note_of(trace, "trace.invalid_event")
    assert (note.count, note.partial) == (1, True)
    event = raw.rindex(b"{", 0, raw.rindex(b'"cpu_op"', 0, raw.index(damaged)))
    assert note.detail == {"repaired": 1, "lost": 0, "first_offset": event}
    assert f"byte {event:,}" in note.message


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"ts": ', '"ts" ', 1),
        lambda text: text.replace('"ts": 1', '"ts": x1', 1),
        lambda text: text.replace('"pid": 10', '"pid" 10', 1),
    ],
)
def test_an_event_beyond_repair_costs_only_itself(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    trace = read_kineto(write(tmp_path / "t.json", damage(TEXT)))
    assert len(trace.events) == len(EVENTS) - 1
    note = note_of(trace, "trace.invalid_event")
    assert (note.count, note.detail["lost"]) == (1, 1)


def test_one_stray_quote_does_not_spoil_the_rest(tmp_path: Path) -> None:
    """One quote too many turns inside and outside of all texts behind it."""
    raw = TEXT.replace('"aten::mm"', '"aten"::mm"', 1)
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert len(trace.events) == len(EVENTS)
    assert note_of(trace, "trace.invalid_event").count == 1


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    events = [kernel("k", n, 1, n, occupancy="NAN") for n in range(50)]
    raw = text_of(events).replace('"NAN"', "nan").replace("nan", "-Infinity", 3)
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert len(trace.events) == 50
    assert "trace.invalid_event" not in [note.rule for note in trace.notes]


def test_a_value_that_json_has_not_in_a_kept_field(tmp_path: Path) -> None:
    raw = text_of([kernel("k", 1, 1, 9, shared_memory="NAN")]).replace('"NAN"', "NaN")
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert trace.table("geometry")["shared_memory_bytes"].tolist() == [-1]


def test_threads_as_text_and_keys_twice(tmp_path: Path) -> None:
    raw = TEXT.replace('"tid": 11', '"tid": "11"').replace('"pid": 10', '"pid": 3, "pid": 10')
    whole = read_kineto(write(tmp_path / "whole.json", TEXT))
    same(read_kineto(write(tmp_path / "t.json", raw)), whole)


def test_events_that_are_no_objects(tmp_path: Path) -> None:
    raw = '{"traceEvents": [null, 5, "x", [], ' + json.dumps(EVENTS[0]) + "]}"
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert len(trace.events) == 1
    assert note_of(trace, "trace.invalid_event").detail["repaired"] == 1


def test_an_event_without_a_time_is_left_out(tmp_path: Path) -> None:
    event = {key: value for key, value in EVENTS[0].items() if key != "ts"}
    raw = json.dumps({"traceEvents": [event, EVENTS[1], {**EVENTS[2], "ts": 1e300}]})
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert len(trace.events) == 1
    assert note_of(trace, "trace.invalid_event").detail["lost"] == 2


@pytest.mark.parametrize("number", ["1e999999999", "9" * 5000, "1e-999999999", "-1e400"])
def test_numbers_that_would_fill_memory(tmp_path: Path, number: str) -> None:
    text = text_of([kernel("k", 5, 1, 9), operator("a", 7, 1)])
    text = text.replace('"correlation": 9', f'"correlation": {number}')
    trace = read_kineto(write(tmp_path / "t.json", text.replace('"ts": 7.000', f'"ts": {number}')))
    assert "k" in trace.events["name"].tolist()


def test_a_negative_duration_becomes_none(tmp_path: Path) -> None:
    raw = json.dumps({"traceEvents": [{**EVENTS[0], "dur": -5}]})
    assert read_kineto(write(tmp_path / "t.json", raw)).events["duration_ns"].tolist() == [0]


def test_nothing_but_damage_is_an_error(tmp_path: Path) -> None:
    raw = '{"traceEvents": [{"ph": "X", "ts" 5}, {"ph": "X", "ts" 6}]}'
    with pytest.raises(InputError, match=r"none of its 2 events is valid JSON"):
        read_kineto(write(tmp_path / "t.json", raw))


def test_deep_nesting_is_no_crash(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    raw = TEXT.replace('"args": {', f'"args": {{"x": {deep}, ', 1)
    trace = read_kineto(write(tmp_path / "t.json", raw))
    assert len(trace.events) >= len(EVENTS) - 1


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_costs_little_and_is_said(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        raw = bytearray(TEXT.encode())
        start = TEXT.index('"ph"')
        for _ in range(draw.choice((1, 2, 5))):
            raw[draw.randrange(start, len(raw))] = draw.choice(b'"\\{}[],:\x01\xff 0a')
        trace = read_kineto(write(tmp_path / "t.json", bytes(raw)))
        assert len(EVENTS) - len(trace.events) <= 10
        if len(trace.events) < len(EVENTS):
            assert len(trace.notes) > 1
