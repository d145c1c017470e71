"""Saved runs with a file that is missing, empty, cut short or changed, every file in turn: one
clear line, or a report of what is left that says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tracer import cli
from tracer.analyzers import analyze
from tracer.collectors.kineto.trace import read_kineto
from tracer.exporters.text import render_text
from tracer.store import load_run, save_run

RECORDED = Path(__file__).parent / "recordings"
SAMPLE = Path(__file__).parents[1] / "samples/recordings/decode_llama8b_modules.json.gz"
NEEDED = {"events.parquet", "threads.parquet", "meta.json"}
RUNS = [
    "graphs/captured_streams",
    "ranks/compiled/rank0",
    "fallbacks/quantized_weights",
    "fallbacks/offloaded_layers",
]
Damage = Callable[[Path], object]


def change_bytes(file: Path) -> None:
    """As many bytes as before, some of them others."""
    data = bytearray(file.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 40] = bytes(255 - byte for byte in data[middle : middle + 40])
    file.write_bytes(data)


DAMAGES: dict[str, Damage] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "damaged": change_bytes,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_file_of_a_run(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = RECORDED / RUNS[0]
    for name in sorted(file.name for file in source.iterdir()):
        run = tmp_path / name.partition(".")[0]
        shutil.copytree(source, run)
        save_run(load_run(run), run)  # with the checksums that this version writes
        DAMAGES[damage](run / name)
        status = cli.main(["report", str(run), "--width", "160"])
        out, err = capsys.readouterr()
        if name in NEEDED:
            assert (status, out, err.count("\n")) == (3, "", 1), name
            assert str(run) in err and name in err and damage in err and "again" in err
        else:
            assert (status, err) == (4, ""), name
            (said,) = [line for line in out.splitlines() if "run.table_lost" in line]
            assert name in said and damage in said
        assert "arrow" not in (out + err).lower().replace("narrow", "")


@pytest.mark.parametrize("recorded", RUNS)
def test_a_report_without_each_table(tmp_path: Path, recorded: str) -> None:
    for name in sorted(file.name for file in (RECORDED / recorded).iterdir()):
        if name in NEEDED:
            continue
        run = tmp_path / name
        shutil.copytree(RECORDED / recorded, run)
        (run / name).unlink()
        analysis = analyze(load_run(run))
        assert analysis.integrity_status == "partial"
        assert name in render_text(analysis)


def test_tables_that_say_nothing_without_each_other_go_together(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED / RUNS[1], run)
    (run / "compiled_graphs.parquet").unlink()
    loaded = load_run(run)
    assert not {"compiled_graphs", "compiled_calls", "compiled_modules"} & set(loaded.tables)
    assert [note.detail["table"] for note in loaded.notes if note.partial] == ["compiled_graphs"]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99])
def test_a_file_cut_anywhere_accounts_for_the_steps_that_were_read(
    tmp_path: Path, share: float
) -> None:
    """Time of which the device's rows were cut off is no idle time."""
    whole = SAMPLE.read_bytes()
    cut = tmp_path / SAMPLE.name
    cut.write_bytes(whole[: int(share * len(whole))])
    analysis = analyze(read_kineto(cut))
    if not analysis.accounted:
        assert "before its device rows" in analysis.breakdown_reason
        return
    assert analysis.integrity_status == "partial"
    busy = analyze(read_kineto(SAMPLE)).steps["busy_ns"].min()
    assert (analysis.steps["busy_ns"] > 0.9 * busy).all() or len(analysis.steps) == 1
    told = "trace.device_part_cut" in [note.rule for note in analysis.notes]
    assert told or share == 0.99
