"""Several ranks beside each other: the heat map, its reasons, the comparison that feeds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tui.driving import driven
from tests.tui.samples import rank_trace
from tracer import cli
from tracer.analyzers import analyze
from tracer.commands.open_ranks import compare_open, ranks_of
from tracer.errors import NotATraceError
from tracer.rank_analysis import Alignment, Clock, RankAnalysis
from tracer.sources import open_source
from tracer.tui.look import Look
from tracer.tui.model.communication import build_collectives
from tracer.tui.model.lanes import build_lanes
from tracer.tui.model.other_ranks import on_clock, other_ranks
from tracer.tui.model.overview import facts_of, lay_out
from tracer.tui.model.places import Moment
from tracer.tui.model.ranks import build_ranks, rank_lines
from tracer.tui.model.scene import draw_lanes
from tracer.tui.model.timeline import open_timeline
from tracer.tui.session import Comparison, Recording, Session, Source

LATE = Path(__file__).parents[1] / "recordings" / "ranks" / "late"


def never(report: object) -> None:
    raise AssertionError("it is read already")


def session_of(*ranks: int, world: int = 6) -> Session:
    """A session in which these ranks are read."""
    found = []
    for rank in ranks:
        analysis = analyze(rank_trace(rank, world))
        found.append(Recording(Source(f"run/rank{rank}.json", never), analysis))  # type: ignore[arg-type]
    return Session(found)


def text_of(session: Session, width: int = 100) -> str:
    lines = rank_lines(Look(), build_ranks(session), width)
    assert all(line.text.cell_len <= width for line in lines)
    return "\n".join(line.text.plain for line in lines)


def compared(session: Session, waits: dict[int, list[int]], residual: int = 1500) -> Session:
    """The session with waits of each step, as a comparison gives them."""
    clocks = {rank: Clock() for rank in waits}
    references = dict.fromkeys(waits, 0)
    alignment = Alignment(clocks, references, residual, {}, "96 shared collectives")
    numbers = {rank: number for number, rank in enumerate(waits)}
    arrays = {rank: np.array(values, dtype=np.int64) for rank, values in waits.items()}
    analysis = RankAnalysis(ranks=(), alignment=alignment)
    session.comparison = Comparison(analysis, arrays, numbers)
    return session


def test_every_rank_has_a_row_and_a_missing_one_says_so() -> None:
    text = text_of(session_of(0, 1, 3))
    rows = [line.split()[:2] for line in text.splitlines() if " rank " in line and "|" not in line]
    assert rows[:6] == [["rank", str(rank)] for rank in (0, 1, 3, 2, 4, 5)]
    assert text.count("? no recording of it") == 3
    assert "not compared" in text and "exposed communication" in text


def test_nobody_is_missing_while_recordings_are_read() -> None:
    session = session_of(0, 1)
    session.recordings.append(Recording(Source("run/rank2.json", never)))  # type: ignore[arg-type]
    text = text_of(session)
    assert "no recording of it" not in text
    assert "? reading" in text and "compared when all are read" in text


def test_a_recording_that_failed_shows_why() -> None:
    session = session_of(0, 1)
    broken = Recording(Source("run/rank2.json", never))  # type: ignore[arg-type]
    broken.error = NotATraceError("rank2.json: an empty file")
    session.recordings.append(broken)
    assert "? rank2.json: an empty file" in text_of(session)


def test_waits_become_tenths_of_each_step() -> None:
    session = session_of(0, 1, world=2)
    analysis = session.recordings[0].analysis
    assert analysis is not None
    walls = analysis.steps["wall_ns"].to_numpy()
    waits = [0, int(walls[1] * 0.35), int(walls[2] * 2)]
    ranks = build_ranks(compared(session, {0: waits, 1: [0, 0, 0]}))
    assert [row.tenths.tolist() for row in ranks.rows] == [[0, 3, 9], [0, 0, 0]]
    assert "1.50 us" in ranks.caveat and "waiting for other ranks" in ranks.meaning


def test_other_ranks_become_lanes_on_the_clock_of_the_shown_one() -> None:
    session = compared(session_of(0, 1, world=2), {0: [0, 0, 0], 1: [0, 0, 0]})
    lanes = replace(build_lanes(session.recordings[0].analysis), others=other_ranks(session))  # type: ignore[arg-type]
    timeline = open_timeline(lanes, Moment(step=0), 80, True)
    rows = draw_lanes(lanes, Look(), timeline.viewport, 80, timeline.keys, timeline.lane)
    assert [row.label.split()[:2] for row in rows][-1] == ["rank", "1"]
    assert rows[-1].cells.plain.strip()
    assert timeline.chosen(timeline.keys[-1]).selection is None


def test_times_move_from_one_clock_to_another_and_back() -> None:
    first, second = Clock(5_000, 1e-6, 1_000_000), Clock(-7_000, 2e-6, 0)
    times = np.array([1_000_000, 2_000_000, 900_000_000], dtype=np.int64)
    there = on_clock(times, first, second)
    back = on_clock(there, second, first)
    assert np.abs(back - times).max() <= 2
    assert np.abs(second.aligned(there) - first.aligned(times)).max() <= 2


def test_ranks_of_one_run_are_recognised(tmp_path: Path) -> None:
    assert ranks_of(Session([])) == {}
    session = session_of(0)
    session.recordings[0] = replace(session.recordings[0], source=Source(str(tmp_path), never))  # type: ignore[arg-type]
    assert ranks_of(session) == {}


def recorded(shared: Path, names: list[str]) -> Session:
    found = []
    for name in names:
        path = str(shared / "h200x2" / name)
        found.append(Recording(Source(path, never), analyze(open_source(path))))  # type: ignore[arg-type]
    return Session(found)


@pytest.fixture(scope="module")
def straggling(shared: Path) -> Session:
    """Two ranks of which one is late, compared."""
    names = [f"tp_straggler_host_rank{rank}.json.gz" for rank in (0, 1)]
    session = recorded(shared, names)
    session.comparison = compare_open(session)
    return session


def test_the_late_rank_of_a_real_run_is_marked_and_the_other_waits(straggling: Session) -> None:
    comparison = straggling.comparison
    assert comparison is not None and comparison.numbers == {0: 0, 1: 1}
    ranks = build_ranks(straggling)
    assert [row.late for row in ranks.rows] == [False, True]
    text = text_of(straggling)
    assert "* rank 1" in text and "comm.straggler" in text
    assert int(comparison.step_waits_ns[1].sum()) == 0
    result = comparison.ranks.ranks[0]
    waited = int(comparison.step_waits_ns[0].sum())
    assert result.wait_ns is not None and 0.5 * result.wait_ns < waited <= result.wait_ns


def test_waits_reach_the_table_of_collectives(straggling: Session) -> None:
    index = build_collectives(straggling)
    assert index.compared
    assert all(item["wait_ns"] is not None for item in index.sums)
    alone = build_collectives(Session(straggling.recordings[:1]))
    assert not alone.compared and all(item["wait_ns"] is None for item in alone.sums)


@pytest.mark.asyncio
async def test_the_comparison_arrives_when_all_ranks_are_read(straggling: Session) -> None:
    analyses = [recording.analysis for recording in straggling.recordings]
    comparison = straggling.comparison
    async with driven(*analyses, compare=lambda session: comparison, keys=["7"]) as driver:  # type: ignore[arg-type]
        for _ in range(200):
            if driver.explorer.session.comparison is not None:
                break
            await driver.pilot.pause(0.01)
        await driver.settle()
        assert "clocks aligned" in driver.text and "* rank 1" in driver.text
        await driver.press("2", "enter")
        assert "rank 1    load" in driver.text


def late_session() -> Session:
    """Both ranks of a recording in which rank 1 sleeps in each step, compared."""
    found = []
    for path in sorted(LATE.iterdir()):
        source = Source(str(path), never)  # type: ignore[arg-type]
        found.append(Recording(source, analyze(open_source(path))))
    session = Session(found)
    session.comparison = compare_open(session)
    return session


def test_the_first_screen_leads_with_the_answer_of_all_ranks() -> None:
    session = late_session()
    answers = []
    for session.shown in (0, 1):
        facts = facts_of(session)
        answers.append(facts.verdict)
        lines = lay_out(facts, Look(), 80, 24, 0).draw(Look(), None)
        assert lines[0].plain.strip().startswith("The others wait for rank 1: last in 276 of 287")
    across = [answer.partition(" Rank ")[0] for answer in answers]
    assert across[0] == across[1]
    assert "two_ranks.py:114 Model.forward" in across[0]
    assert "Rank 0 alone: Communication takes most of a step" in answers[0]
    assert "Rank 1 alone: Each step waits for the host" in answers[1]


def test_a_rank_that_is_not_compared_speaks_for_itself() -> None:
    session = late_session()
    session.comparison = None
    assert facts_of(session).verdict.startswith("Communication takes most of a step")


def test_plain_lines_begin_with_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["open", "--text", str(LATE)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The others wait for rank 1")
    assert out.index("out of the step or to another thread") < out.index("late/rank0")
