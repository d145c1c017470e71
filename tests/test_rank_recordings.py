"""Recordings of the programs of tests/gpu/two_ranks.py, made on two devices and read here."""

from __future__ import annotations

import re
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
from tracer import cli
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.exporters.json_report import to_report
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.store import load_run, save_run

FOLDER = Path(__file__).parent / "recordings" / "ranks"
LAYERS, STEPS, LATE_STEPS = 12, 6, 12
# Six layers of 2 x 4096 x 8192 weights, in two bytes each.
TRAINED_BYTES = 6 * 2 * 4096 * 8192 * 2
SLEEP_LINE = 114


def ranks_of(program: str) -> list[Analysis]:
    return [analyze(load_run(path)) for path in sorted((FOLDER / program).iterdir())]


# In the last two, made later, no device row names its operator.
@pytest.mark.parametrize(
    "program", ["graph", "late", "compiled", "replayed", "decode", "symmetric"]
)
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
    assert "Model.forward, 12 times up to 20.3 ms" in found.title


def test_a_late_rank_without_samples_names_no_line(tmp_path: Path) -> None:
    for path in sorted((FOLDER / "late").iterdir()):
        trace = load_run(path)
        tables = {n: t for n, t in trace.tables.items() if n != "stack_samples"}
        save_run(replace(trace, tables=tables), tmp_path / path.name)
    (found,) = compared(tmp_path).findings
    assert (found.detail["rank"], found.where.file) == (1, None)
    assert "host work outside operators (Model), 12 times up to 20.3 ms" in found.title


def test_the_answer_leads_with_who_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """In both reports alike."""
    answers = []
    for command in ("ranks", "report"):
        assert cli.main([command, str(FOLDER / "late")]) == 0
        answers.append(" ".join(capsys.readouterr().out.partition("\n2 ranks of 2")[0].split()))
    assert answers[0] == answers[1]
    assert answers[0].startswith("The others wait for rank 1: last in 276 of 287 collectives")
    assert f"two_ranks.py:{SLEEP_LINE} Model.forward, 12 times up to 20.3 ms" in answers[0]
    done, _, gain = answers[0].partition(" That would gain the others up to ")
    assert done.endswith("move it out of the step or to another thread.")
    assert re.fullmatch(r"1\d(\.\d)? ms a step, \d\d % of the time\.", gain)


def test_the_late_rank_costs_what_it_sleeps() -> None:
    """Twelve times 20 ms less what its own steps are faster; not all that the others wait, who
    would wait for their own hosts."""
    (found,) = compared(FOLDER / "late").findings
    assert found.detail["late_ns"] > 340e6
    assert found.cost_ns == pytest.approx(12 * 20.2e6, rel=0.2)


@pytest.mark.parametrize("program", ["graph", "replayed", "fsdp", "ddp", "compiled"])
def test_no_program_without_a_planted_sleep_holds_up_the_others(program: str) -> None:
    analysis = compared(FOLDER / program)
    assert [f.rule for f in analysis.findings if f.severity != "info"] == []
    assert ranks_verdict(analysis).startswith("No rank holds up the others")


def test_calls_before_the_window_count_nowhere() -> None:
    """A warm-up and a capture come before the replays."""
    for rank in compared(FOLDER / "graph").ranks:
        assert [kind.count for kind in rank.kinds] == [2 * LAYERS * STEPS]
        assert (rank.wait_ns or 0) - rank.entry_wait_ns < rank.summary.wall_ns / 10
        assert (rank.wait_ns or 0) + (rank.wire_ns or 0) < rank.summary.wall_ns


def test_the_first_replay_in_the_window_was_entered_apart() -> None:
    """Each rank captured by itself before; the other waited for it as the steps began."""
    first, _ = ranks_of("graph")
    (note,) = [note for note in first.notes if note.rule == "comm.window_start"]
    assert note.detail["longest_ns"] > 6e6
    (shared,) = [f for f in first.findings if f.rule == "comm.same_stream"]
    assert (shared.cost_ns or 0) < 1.5e6
    (summed,) = to_report(first)["communication"]["collectives"]
    assert summed["count"] == 2 * LAYERS * STEPS


def test_compute_that_waiting_makes_long_is_no_larger_share_of_the_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The matrix products of the rank that waits run beside its collectives."""
    assert cli.main(["ranks", str(FOLDER / "fsdp")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the busiest rank computes" in said
    assert "more of it runs beside collectives, which slow it" in said
