"""Recordings of the programs of tests/gpu/two_ranks.py, made on two devices and read here."""

from __future__ import annotations

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
from tracer.store import load_run

FOLDER = Path(__file__).parent / "recordings" / "ranks"
LAYERS, STEPS, LATE_STEPS = 12, 6, 12
# Six layers of 2 x 4096 x 8192 weights, in two bytes each.
TRAINED_BYTES = 6 * 2 * 4096 * 8192 * 2


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


def test_the_late_rank_and_its_line() -> None:
    findings = compared(FOLDER / "late").findings
    (found,) = [finding for finding in findings if finding.rule == "comm.straggler"]
    assert (found.detail["rank"], found.detail["cause"]) == (1, "overhead.host")
    assert str(found.where.file).endswith("two_ranks.py")
    assert found.where.function == "Model.forward"
