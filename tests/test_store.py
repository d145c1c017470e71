"""Saved runs: exact, whole or not at all, and refused when they are not what they should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.make_kineto import decode_loop, kineto_file
from tests.test_kineto_reference import CHECKED, names
from tracer import store
from tracer.collectors.kineto.trace import read_kineto
from tracer.errors import RunFormatError, TracerError
from tracer.events import SIDE_TABLES, Note, Trace, make_table, text_column
from tracer.sources import find_sources
from tracer.store import FORMAT, is_run, load_run, read_run_meta, save_run, what_gives_way

SAMPLES = [path for path in CHECKED if path.stat().st_size > 20_000][::4]


@pytest.fixture(name="trace")
def _trace(tmp_path: Path) -> Trace:
    return read_kineto(kineto_file(tmp_path, decode_loop()))


def assert_same(one: Trace, other: Trace) -> None:
    """Equal to the last code of the last text."""
    assert list(one.tables) == list(other.tables)
    assert_same_table(one.events, other.events)
    for name, table in one.tables.items():
        assert_same_table(table, other.tables[name])
    assert one.meta == other.meta
    assert one.notes == other.notes


def assert_same_table(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Texts with the same codes and the same order, in whichever type pandas keeps them."""
    assert list(one.columns) == list(other.columns)
    for name in one.columns:
        left, right = one[name], other[name]
        if isinstance(left.dtype, pd.CategoricalDtype):
            assert list(left.cat.categories) == list(right.cat.categories)
            left, right = left.cat.codes, right.cat.codes
        pd.testing.assert_series_equal(left, right)


@pytest.mark.parametrize("path", names(SAMPLES))
def test_a_run_comes_back_exactly(tmp_path: Path, path: Path) -> None:
    trace = read_kineto(path)
    assert_same(load_run(save_run(trace, tmp_path / "run")), trace)


def test_every_table_of_the_schema_comes_back(tmp_path: Path, trace: Trace) -> None:
    draw = np.random.default_rng(0)
    tables = {}
    for name, columns in SIDE_TABLES.items():
        values: dict[str, Any] = {}
        for column, form in columns.items():
            if form == "text":
                values[column] = ["", "\u00e9\U0001f600", "a\nb"]
            elif form == "float64":
                values[column] = [0.1, float("inf"), -0.0]
            else:
                values[column] = draw.integers(-(2**31), 2**31 - 1, 3)
        tables[name] = make_table(columns, values)
    whole = replace(trace, tables=tables)
    assert_same(load_run(save_run(whole, tmp_path / "run")), whole)


def test_meta_and_notes_come_back(tmp_path: Path, trace: Trace) -> None:
    note = Note(
        "trace.truncated", "cut", 5, {"categories": {"x": 1}, "parts": [1, 2]}, partial=True
    )
    meta = replace(
        trace.meta,
        source_kind="live",
        rank=3,
        process_groups=({"pg_name": "0", "ranks": [0, 1]},),
        facts={"dtypes": ["bf16"], "versions": {"torch": "2.13"}},
        extra={"n": 1.5, "none": None},
    )
    whole = replace(trace, meta=meta, notes=(note,))
    assert_same(load_run(save_run(whole, tmp_path / "run")), whole)


def test_values_that_json_has_no_form_for(tmp_path: Path, trace: Trace) -> None:
    found = {1: (1, 2), "set": {"b", "a"}, "number": np.int64(4), "path": Path("x")}
    facts: Any = MappingProxyType(found)
    saved = save_run(replace(trace, meta=replace(trace.meta, facts=facts)), tmp_path / "run")
    assert load_run(saved).meta.facts == {"1": [1, 2], "set": ["a", "b"], "number": 4, "path": "x"}


def test_an_empty_trace(tmp_path: Path, trace: Trace) -> None:
    empty = Trace(trace.events.iloc[:0])
    loaded = load_run(save_run(empty, tmp_path / "run"))
    assert len(loaded.events) == 0
    assert loaded.meta == empty.meta


def test_lone_surrogates_are_stored_as_what_can_be(tmp_path: Path, trace: Trace) -> None:
    file = text_column(np.array([0]), ["/tmp/\udcff.py"])
    site = make_table(SIDE_TABLES["host_sites"], {"file": file})
    saved = save_run(replace(trace, tables={"host_sites": site}), tmp_path / "run")
    assert load_run(saved).table("host_sites")["file"].tolist() == ["/tmp/?.py"]


def test_what_meta_json_says(tmp_path: Path, trace: Trace) -> None:
    saved = save_run(
        trace, tmp_path / "run", extra_meta={"command": "tracer run", "format": "mine"}
    )
    meta = read_run_meta(saved)
    assert (meta["format"], meta["command"]) == (FORMAT, "tracer run")
    assert meta["tables"]["events"] == len(trace.events)
    assert sorted(path.name for path in saved.iterdir()) == sorted(
        ["meta.json", *(f"{name}.parquet" for name in meta["tables"])]
    )


def test_other_tools_read_the_tables(tmp_path: Path, trace: Trace) -> None:
    saved = save_run(trace, tmp_path / "run")
    table = pd.read_parquet(saved / "events.parquet")
    assert table["name"].astype(str).tolist() == trace.events["name"].astype(str).tolist()
    assert table["start_ns"].tolist() == trace.events["start_ns"].tolist()


# What is there already


def test_a_run_that_gives_way_is_kept_once(tmp_path: Path, trace: Trace) -> None:
    target = tmp_path / "runs" / "r"
    first, second = (replace(trace, notes=(Note("n", name),)) for name in ("first", "second"))
    assert what_gives_way(target) == ""
    save_run(first, target)
    kept = target.parent / ".old" / "r"
    assert what_gives_way(target) == f"the run that was there is kept as {kept}"
    save_run(second, target)
    assert (load_run(target).notes, load_run(kept).notes) == (second.notes, first.notes)
    assert what_gives_way(target).endswith(f"{kept}, in place of an older one")
    save_run(trace, target)
    assert_same(load_run(target), trace)
    assert load_run(kept).notes == second.notes
    assert find_sources(target.parent) == [target]
    assert sorted(path.name for path in target.parent.rglob("*") if path.is_dir()) == [
        ".old", "r", "r",
    ]  # fmt: skip


def test_a_run_that_is_not_to_be_kept_leaves_what_is(tmp_path: Path, trace: Trace) -> None:
    first, second = (replace(trace, notes=(Note("n", name),)) for name in ("first", "second"))
    for run in (first, second):
        save_run(run, tmp_path / "r")
    save_run(trace, tmp_path / "r", keep=False)
    assert_same(load_run(tmp_path / "r"), trace)
    assert load_run(tmp_path / ".old" / "r").notes == first.notes


def test_what_is_no_run_gives_way_to_none(tmp_path: Path, trace: Trace) -> None:
    save_run(trace, tmp_path / "r")
    (tmp_path / ".old" / "r").mkdir(parents=True)
    (tmp_path / ".old" / "r" / "mine").touch()
    with pytest.raises(RunFormatError, match=r"\.old/r: exists and is no saved run"):
        save_run(replace(trace, tables={}), tmp_path / "r")
    assert_same(load_run(tmp_path / "r"), trace)
    assert (tmp_path / ".old" / "r" / "mine").is_file()


def test_an_empty_directory_is_taken(tmp_path: Path, trace: Trace) -> None:
    target = tmp_path / "r"
    target.mkdir()
    assert_same(load_run(save_run(trace, target)), trace)


@pytest.mark.parametrize("content", ["notes.txt", "meta.json"])
def test_other_directories_are_left_alone(tmp_path: Path, trace: Trace, content: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / content).write_text("{}")
    with pytest.raises(RunFormatError, match="is no saved run"):
        save_run(trace, tmp_path / "mine")
    assert (tmp_path / "mine" / content).read_text() == "{}"


def test_files_and_links_are_left_alone(tmp_path: Path, trace: Trace) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(RunFormatError, match="exists and is no directory"):
            save_run(trace, tmp_path / name)


def test_a_failed_save_changes_nothing(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = save_run(trace, tmp_path / "r")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_write_table", full)
    with pytest.raises(TracerError, match=r"cannot be written \(No space left") as caught:
        save_run(replace(trace, tables={}), target)
    assert caught.value.exit_code == 3
    assert_same(load_run(target), trace)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "t.json"]


def test_a_run_is_as_readable_as_the_users_other_directories(tmp_path: Path, trace: Trace) -> None:
    (tmp_path / "other").mkdir()
    saved = save_run(trace, tmp_path / "r")
    assert saved.stat().st_mode == (tmp_path / "other").stat().st_mode


# What cannot be read


def refusal(path: Path) -> str:
    with pytest.raises(RunFormatError) as caught:
        load_run(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    assert (caught.value.rule, caught.value.exit_code) == ("run.format", 3)
    return message


def edit_meta(path: Path, **changes: Any) -> None:
    meta = json.loads((path / "meta.json").read_text())
    meta.update(changes)
    (path / "meta.json").write_text(json.dumps(meta))


def test_no_directory_and_no_run(tmp_path: Path) -> None:
    assert "no such directory" in refusal(tmp_path / "nothing")
    assert "no meta.json" in refusal(tmp_path)
    assert not is_run(tmp_path)


def test_an_unknown_version(tmp_path: Path, trace: Trace) -> None:
    saved = save_run(trace, tmp_path / "r")
    edit_meta(saved, format="tracer.run/2")
    message = refusal(saved)
    assert "tracer.run/2" in message and FORMAT in message and "version that saved it" in message
    assert is_run(saved)
    save_run(trace, saved)
    assert_same(load_run(saved), trace)


@pytest.mark.parametrize("table", ["events", "threads"])
def test_a_missing_part(tmp_path: Path, trace: Trace, table: str) -> None:
    saved = save_run(trace, tmp_path / "r")
    (saved / f"{table}.parquet").unlink()
    assert f"{table}.parquet is missing" in refusal(saved)


@pytest.mark.parametrize("damage", ["cut", "noise", "rows"])
def test_a_broken_part(tmp_path: Path, trace: Trace, damage: str) -> None:
    saved = save_run(trace, tmp_path / "r")
    file = saved / "events.parquet"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "noise":
        file.write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1")
    else:
        edit_meta(saved, tables={"events": 3})
    message = refusal(saved)
    assert "events.parquet" in message and "save it again" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"tables": {}},
        {"tables": None},
        {"trace": None},
        {"trace": []},
        {"notes": None},
        {"notes": [{"rule": 1}]},
        {"notes": [5]},
    ],
)
def test_a_broken_meta(tmp_path: Path, trace: Trace, changes: dict[str, Any]) -> None:
    saved = save_run(trace, tmp_path / "r")
    edit_meta(saved, **changes)
    assert "is broken" in refusal(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\udcff"])
def test_a_meta_that_is_no_object(tmp_path: Path, trace: Trace, text: str) -> None:
    saved = save_run(trace, tmp_path / "r")
    (saved / "meta.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refusal(saved)


def test_events_out_of_order_are_refused(tmp_path: Path, trace: Trace) -> None:
    saved = save_run(trace, tmp_path / "r")
    table = pd.read_parquet(saved / "events.parquet")
    table.iloc[::-1].to_parquet(saved / "events.parquet", index=False)
    assert "ordered by start_ns" in refusal(saved)


def test_additions_of_a_later_version_are_passed_over(tmp_path: Path, trace: Trace) -> None:
    saved = save_run(trace, tmp_path / "r")
    meta = json.loads((saved / "meta.json").read_text())
    meta["trace"]["later"] = 1
    meta["tables"]["later_table"] = 7
    meta["notes"] = [{**meta["notes"][0], "later": 2}]
    edit_meta(saved, **meta)
    table = pd.read_parquet(saved / "threads.parquet").assign(later=1)
    table.to_parquet(saved / "threads.parquet", index=False)
    loaded = load_run(saved)
    assert loaded.meta == trace.meta
    assert list(loaded.table("threads").columns) == list(SIDE_TABLES["threads"])


def test_columns_that_an_earlier_version_lacked_get_their_default(
    tmp_path: Path, trace: Trace
) -> None:
    saved = save_run(trace, tmp_path / "r")
    table = pd.read_parquet(saved / "geometry.parquet").drop(columns="shared_memory_bytes")
    table.to_parquet(saved / "geometry.parquet", index=False)
    assert set(load_run(saved).table("geometry")["shared_memory_bytes"]) == {-1}


def test_the_store_loads_no_parquet_before_it_needs_it() -> None:
    code = "import sys, tracer.store; print('pyarrow.parquet' in sys.modules)"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "False"
