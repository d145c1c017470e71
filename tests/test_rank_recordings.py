"""Recordings of the programs of tests/gpu/two_ranks.py, made on two devices and read here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rank_samples import compared
from tests.two_rank_checks import (
    all_in_replays,
    all_reduces_of_layers,
    gathers_and_scatters,
    sums_of_gradients,
)
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.store import load_run, save_run

FOLDER = Path(__file__).parent / "recordings" / "ranks"
LAYERS, STEPS, LATE_STEPS = 12, 6, 12
# Six layers of 2 x 4096 x 8192 weights, in two bytes each.
TRAINED_BYTES = 6 * 2 * 4096 * 8192 * 2
SLEEP_LINE = 114


def ranks_of(program: str) -> list[Analysis]:
    return [analyze(load_run(path)) for path in sorted((FOLDER / program).iterdir())]


@pytest.mark.parametrize("program", ["graph", "late", "compiled", "replayed"])
def test_two_all_reduces_a_layer_in_their_modules(program: str) -> None:
    all_reduces_of_layers(ranks_of(program), LAYERS, LATE_STEPS if program == "late" else STEPS)


@pytest.mark.parametrize("program", ["graph", "replayed"])
def test_collectives_inside_graphs(program: str) -> None:
    all_in_replays(ranks_of(program))


def test_gradients_of_ddp() -> None:
    sums_of_gradients(ranks_of("ddp"), STEPS * TRAINED_BYTES)


def test_gathers_and_scatters_of_fsdp() -> None:
    gathers_and_scatters(ranks_of("fsdp"), STEPS, STEPS * TRAINED_BYTES)


@pytest.mark.parametrize(("every", "first"), [(1, 0), (2, 0), (2, 1), (4, 1), (4, 2)])
def test_the_late_rank_and_its_line(tmp_path: Path, every: int, first: int) -> None:
    """Also where stacks are looked at more seldom: every 14 ms or 60, for sleeps of 20 ms."""
    for path in sorted((FOLDER / "late").iterdir()):
        trace = load_run(path)
        samples = trace.table("stack_samples").iloc[first::every].reset_index(drop=True)
        tables = {**trace.tables, "stack_samples": samples}
        save_run(replace(trace, tables=tables), tmp_path / path.name)
    findings = compared(tmp_path).findings
    (found,) = [finding for finding in findings if finding.rule == "comm.straggler"]
    assert (found.detail["rank"], found.detail["cause"]) == (1, "overhead.host")
    assert str(found.where.file).endswith("two_ranks.py")
    assert (found.where.line, found.where.function) == (SLEEP_LINE, "Model.forward")
    assert "20.3 ms, 12 times about so long" in found.title


def test_a_late_rank_without_samples_names_no_line(tmp_path: Path) -> None:
    for path in sorted((FOLDER / "late").iterdir()):
        trace = load_run(path)
        tables = {n: t for n, t in trace.tables.items() if n != "stack_samples"}
        save_run(replace(trace, tables=tables), tmp_path / path.name)
    (found,) = compared(tmp_path).findings
    assert (found.detail["rank"], found.where.file) == (1, None)
    assert "host work outside operators (Model) 20.3 ms" in found.title
