"""Ranks beside each other: clocks, waiting against sending, late ranks, who is which."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.rank_samples import (
    BASE_NS,
    Call,
    bucket_rank,
    compared,
    hosts_run_ahead,
    late_rank_calls,
    moved,
    pausing_ranks,
    rank_trace,
    ranks_run,
    save_ranks,
    straggler,
)
from tracer import cli
from tracer.analyzers import analyze
from tracer.analyzers.ranks.straggler import signed_rank_tail
from tracer.errors import TracerError
from tracer.events import Trace
from tracer.exporters import json_report
from tracer.exporters.ranks_json import ranks_document, ranks_parts
from tracer.exporters.ranks_text import render_ranks
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.rank_analysis import RankAnalysis
from tracer.ranks.among import compare_all
from tracer.ranks.identity import are_ranks_of_one_run, rank_in_name
from tracer.store import save_run

Capture = pytest.CaptureFixture[str]
SECOND = 1_000_000_000


def waits(analysis: RankAnalysis) -> list[tuple[int | None, int | None]]:
    """Waiting and sending of each rank, microseconds."""

    def us(ns: int | None) -> int | None:
        return None if ns is None else round(ns / 1000)

    return [(us(rank.wait_ns), us(rank.wire_ns)) for rank in analysis.ranks]


# --- one late rank (cases 23 and 24) -------------------------------------------------------------


def test_one_late_rank_makes_the_others_wait(tmp_path: Path) -> None:
    analysis = compared(save_ranks(tmp_path, late_rank_calls(), 4))
    assert straggler(analysis) == (2, 20, 20)
    early = (20 * 3900, 20 * 100)
    assert waits(analysis) == [early, early, (0, 2000), early]
    kinds = [rank.kinds[0] for rank in analysis.ranks]
    size = (1 << 20) * 2
    assert [kind.busbw_bytes_per_s for kind in kinds] == [size * 1.5 / 100e-6] * 4
    (finding,) = analysis.findings
    assert finding.cost_ns == 20 * 3_900_000
    assert analysis.alignment is not None
    assert set(analysis.alignment.clocks) == {0, 1, 2, 3}


def shift_two(offset_ns: int = 2 * SECOND, drift: float = 20e-6) -> Callable[[int, Trace], Trace]:
    """Clocks of ranks 2 and 3 ahead, and too fast."""
    return lambda rank, trace: moved(trace, offset_ns, drift) if rank in (2, 3) else trace


def test_waits_beside_each_other_and_beside_compute_count_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        save_run(bucket_rank(rank, late=0, stop_us=50_000), tmp_path / f"rank{rank}")
    analysis = compared(tmp_path)
    assert straggler(analysis) == (0, 40, 40)
    (finding,) = analysis.findings
    early = analysis.ranks[1]
    exposed = early.summary.exposed_ns
    assert exposed is not None
    # Of 100 ms in the two calls of each step 50 are lost: one waits under compute at first.
    assert 0.9 * SECOND < (early.wait_ns or 0) <= exposed < 1.2 * SECOND
    assert finding.cost_ns == pytest.approx(SECOND, rel=0.05)
    assert finding.detail["before"]["longer_ns"] == {
        "overhead.host": pytest.approx(SECOND, rel=0.05)
    }
    assert finding.gain_ns == finding.cost_ns
    assert "That would gain the others up to " in ranks_verdict(analysis)
    text = render_ranks(analysis)
    assert "sums of calls, some exposed at once" in text
    assert "of single ranks, communication without waiting" in text


@pytest.mark.parametrize(("pause_us", "noise"), [(1000, 0.03), (1000, 0.1), (5000, 0.1)])
def test_a_pause_of_one_rank_on_a_cpu_is_named_by_its_place(pause_us: float, noise: float) -> None:
    """However much the work of both ranks scatters beside it."""
    ranks = pausing_ranks(pause_us, noise, seed=0, fetch=True)
    (found,) = compare_all({rank: analyze(trace) for rank, trace in ranks.items()}).findings
    assert (found.detail["rank"], found.detail["cause"]) == (1, "overhead.host")
    between = "in the data loader between aten::stack and aten::embedding"
    assert f"host work outside operators ({between}), " in found.title
    assert f" times up to {pause_us / 1000:.0f}." in found.title


def test_work_that_scatters_makes_no_rank_slow() -> None:
    """One of two equal ranks comes last in 26 of 40 steps."""
    ranks = pausing_ranks(0, 0.1, seed=19)
    analysis = compare_all({rank: analyze(trace) for rank, trace in ranks.items()})
    (found,) = analysis.findings
    assert found.severity == "info"
    assert "near the scatter of the steps" in found.advice
    assert ranks_verdict(analysis).startswith("No rank holds up the others for long")


def test_clocks_that_disagree_give_the_same_answer(tmp_path: Path) -> None:
    analysis = compared(save_ranks(tmp_path, late_rank_calls(), 4, change=shift_two()))
    assert straggler(analysis) == (2, 20, 20)
    for wait, wire in waits(analysis)[:2]:
        assert wait == pytest.approx(20 * 3900, abs=20)
        assert wire == pytest.approx(2000, abs=20)
    assert waits(analysis)[2][0] == 0
    alignment = analysis.alignment
    assert alignment is not None
    assert alignment.residual_ns is not None
    assert alignment.residual_ns < 20_000
    for rank in (0, 1):
        assert abs(alignment.clocks[rank].offset_ns) <= alignment.residual_ns
    for rank in (2, 3):
        clock = alignment.clocks[rank]
        true = 2 * SECOND + 20e-6 * (clock.at_ns - BASE_NS - 2 * SECOND)
        assert clock.offset_ns == pytest.approx(true, abs=alignment.residual_ns)
        assert clock.drift == pytest.approx(20e-6, rel=0.1)


def test_no_claim_below_the_residual(tmp_path: Path) -> None:
    """Rank 1 enters 3 us late each time; the ends jitter by more."""
    rng = np.random.default_rng(5)
    calls = [
        Call({0: 1000.0 + 1000 * k, 1: 1003.0 + 1000 * k}, 1100.0 + 1000 * k) for k in range(40)
    ]

    def jittered(rank: int, trace: Trace) -> Trace:
        if rank == 0:
            return trace
        events = trace.events
        kernels = (events["kind"] == "kernel").to_numpy()
        jitter = np.where(kernels, rng.integers(-9000, 9000, len(events)), 0)
        return Trace(
            events.assign(duration_ns=events["duration_ns"] + jitter),
            trace.tables,
            trace.meta,
            trace.notes,
        )

    analysis = compared(save_ranks(tmp_path, calls, 2, change=jittered))
    assert analysis.alignment is not None
    assert (analysis.alignment.residual_ns or 0) > 3000
    assert straggler(analysis) is None
    assert [wait for wait, _ in waits(analysis)] == [0, 0]


def test_ranks_without_a_common_collective_stay_apart(tmp_path: Path) -> None:
    calls = [
        Call({rank: 1000.0 * k + 10}, 1000.0 * k + 100, group=str(rank), members=(rank, rank + 4))
        for k in range(1, 10)
        for rank in range(4)
    ]
    analysis = compared(save_ranks(tmp_path, calls, 4))
    assert analysis.alignment is None
    assert straggler(analysis) is None
    status = {check.rule: check.status for check in analysis.checks}
    assert status["ranks.not_aligned"] == "found"
    assert status["comm.straggler"] == "not_checked"
    assert "ranks.not_aligned" in {note.rule for note in analysis.notes}
    assert all(rank.wait_ns is None for rank in analysis.ranks)


# --- what makes no straggler ---------------------------------------------------------------------


def test_the_first_call_and_one_long_wait_name_nobody(tmp_path: Path) -> None:
    calls = []
    for k in range(30):
        begin = 1_000_000.0 + 2000 * k
        enters = {rank: begin + 3 * ((rank + k) % 4) for rank in range(4)}
        if k == 0:
            enters[1] = begin - 400_000  # the ranks had not begun together
        if k == 12:
            enters = {rank: begin - (0 if rank == 3 else 1500) for rank in range(4)}
        calls.append(Call(enters, begin + 200))
    analysis = compared(save_ranks(tmp_path, calls, 4))
    assert straggler(analysis) is None
    assert "ranks.window_start" in {note.rule for note in analysis.notes}
    check = next(c for c in analysis.checks if c.rule == "comm.straggler")
    assert check.status == "clear"


def test_ranks_late_by_turns_name_nobody(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    calls = []
    for k in range(40):
        begin = 1000.0 + 2000 * k
        late = int(rng.integers(0, 4))
        enters = {rank: begin + (800 if rank == late else 0) for rank in range(4)}
        calls.append(Call(enters, begin + 1000))
    analysis = compared(save_ranks(tmp_path, calls, 4))
    assert straggler(analysis) is None
    assert sum(rank.last for rank in analysis.ranks) == 40


def test_a_rank_that_is_late_in_one_step_alone_is_not_steadily_late(tmp_path: Path) -> None:
    calls = []
    steps = [(20_000.0 * step, 20_000.0 * step + 19_900) for step in range(4)]
    for step in range(4):
        for k in range(10):
            begin = 20_000.0 * step + 1000 + 1500 * k
            late = 1 if step == 2 else (k + step) % 2
            amount = 900 if step == 2 else 50
            calls.append(Call({0: begin, 1: begin, late: begin + amount}, begin + 1000))
    assert straggler(compared(save_ranks(tmp_path, calls, 2, steps=steps))) is None


def test_a_rank_that_begins_its_steps_late_is_named(tmp_path: Path) -> None:
    """It sleeps before each step and keeps up in between: few calls wait, but all for it."""
    calls = []
    steps = [(50_000.0 * step, 50_000.0 * step + 49_000) for step in range(4)]
    for step in range(4):
        begin = 50_000.0 * step + 100
        calls.append(Call({0: begin, 1: begin + 8000}, begin + 8100))
        for k in range(30):
            at = begin + 8200 + 500 * k
            calls.append(Call({0: at, 1: at}, at + 100))
    found = straggler(compared(save_ranks(tmp_path, calls, 2, steps=steps)))
    assert found is not None
    assert found[0] == 1


@pytest.mark.parametrize(("exception_us", "named"), [(4000, True), (30_000, False)])
def test_one_exception_is_weighed_by_its_length(
    tmp_path: Path, exception_us: float, named: bool
) -> None:
    """Late in seven of eight steps, by about 10 ms: no proof by its number alone."""
    calls, steps = [], []
    for step in range(8):
        begin = 50_000.0 * step + 100
        late, amount = (0, exception_us) if step == 3 else (1, 10_000.0 + 10 * step)
        enters = {late: begin + amount, 1 - late: begin}
        calls.append(Call(enters, begin + amount + 100))
        steps.append((begin - 100, begin + 40_000))
    found = straggler(compared(save_ranks(tmp_path, calls, 2, steps=steps)))
    assert (found is not None and found[0] == 1) is named


def test_signed_ranks_of_margins() -> None:
    margin = np.array([9, 5, 7, 8, 1, 6, 4, 3], dtype=np.int64)
    assert signed_rank_tail(margin > 0, margin) == 1 / 2**8
    assert signed_rank_tail(margin > 1, margin) == 2 / 2**8
    assert signed_rank_tail(margin > 3, margin) == 5 / 2**8  # {}, {1}, {2}, {3}, {1, 2}
    assert signed_rank_tail(np.zeros(8, dtype=bool), margin) == 1.0


def test_a_rank_that_stops_once_in_each_step_is_named(tmp_path: Path) -> None:
    """It sleeps between two layers; in all other calls one or the other comes a little later."""
    rng = np.random.default_rng(8)
    calls, at = [], 1000.0
    steps = []
    for _ in range(12):
        begin = at
        for layer in range(24):
            at += 400
            late = int(rng.integers(0, 2))
            enters = {late: at + float(rng.uniform(5, 80)), 1 - late: at}
            if layer == 12:
                enters = {0: at, 1: at + 2000}
            at = max(enters.values()) + 20
            calls.append(Call(enters, at))
        steps.append((begin, at + 50))
        at += 100
    analysis = compared(save_ranks(tmp_path, calls, 2, steps=steps))
    assert straggler(analysis) == (1, 12, 12)
    (finding,) = analysis.findings
    assert finding.cost_ns == pytest.approx(12 * 2_000_000, rel=0.01)
    assert len(finding.steps) == 12


def test_long_waits_in_one_step_of_many_name_nobody(tmp_path: Path) -> None:
    calls, steps = [], []
    for step in range(10):
        begin = 20_000.0 * step + 1000
        for k in range(8):
            enters = {0: begin + 1500 * k, 1: begin + 1500 * k}
            if step == 4:
                enters[1] += 1200
            calls.append(Call(enters, begin + 1500 * k + 1300))
        steps.append((begin - 500, begin + 13_000))
    assert straggler(compared(save_ranks(tmp_path, calls, 2, steps=steps))) is None


def test_who_waits_itself_is_not_to_blame(tmp_path: Path) -> None:
    """Rank 0 is late in its tensor-parallel pair; its partner, whom it held up, is then late in the
    group of the second copies."""
    calls = []
    for k in range(20):
        at = 10_000.0 * k
        calls.append(Call({0: at + 5000, 1: at}, at + 5100, group="tp0", members=(0, 1)))
        calls.append(Call({2: at, 3: at}, at + 100, group="tp1", members=(2, 3)))
        calls.append(Call({0: at + 5200, 2: at + 200}, at + 5300, group="dp0", members=(0, 2)))
        calls.append(Call({1: at + 5200, 3: at + 200}, at + 5300, group="dp1", members=(1, 3)))
    analysis = compared(save_ranks(tmp_path, calls, 4))
    assert straggler(analysis) is not None
    assert {f.detail["rank"] for f in analysis.findings} == {0}


@pytest.mark.parametrize(
    ("tokens", "said", "advised", "gains"),
    [
        ((500, 1000), "2.00 times the tokens of rank 0, 1,000 beside 500", "Batch by length", 0.5),
        ((500, 500), "as many tokens, 500 beside 500", "Its share of the work is no larger", 1.0),
        ((0, 0), "", "whether its share of the work is larger", 1.0),
    ],
)
def test_a_rank_that_computes_longer_is_told_beside_its_tokens(
    tmp_path: Path, tokens: tuple[int, int], said: str, advised: str, gains: float
) -> None:
    steps = [(5000.0 * k, 5000.0 * k + 4900) for k in range(20)]
    calls = [Call({0: at + 1000, 1: at + 2000}, at + 2100) for at, _ in steps]
    for rank in (0, 1):
        trace = rank_trace(
            rank, 2, calls, busy={0: "gemm", 1: "gemm"}, steps=steps, tokens=tokens[rank]
        )
        save_run(trace, tmp_path / f"rank{rank}")
    (finding,) = compared(tmp_path).findings
    assert finding.detail["rank"] == 1
    assert said in finding.title
    assert ("tokens" in finding.title) == bool(said)
    assert advised in (finding.advice or "")
    assert finding.gain_ns == round(gains * (finding.cost_ns or 0))


# --- slower, or only behind ----------------------------------------------------------------------


def test_who_began_later_and_is_as_fast_is_only_behind(tmp_path: Path) -> None:
    """Both wait for their hosts; rank 1 is behind by 2 ms all the time, and last in every call."""
    analysis = compared(hosts_run_ahead(tmp_path, {0: 0, 1: 2000}, {0: 500, 1: 505}))
    late = analysis.ranks[1]
    assert (late.last, late.compared) == (39, 39)
    assert straggler(analysis) is None
    check = next(c for c in analysis.checks if c.rule == "comm.straggler")
    assert check.status == "clear"
    assert "behind, not slower" in check.reason
    assert analysis.behind == (1,)
    assert ranks_verdict(analysis).startswith(
        "No rank holds up the others: rank 1 comes last in 39"
    )


def test_a_slower_host_costs_what_it_takes_longer(tmp_path: Path) -> None:
    """Not what the others wait: they would wait for their own host."""
    analysis = compared(hosts_run_ahead(tmp_path, {0: 0, 1: 600}, {0: 500, 1: 800}))
    (finding,) = analysis.findings
    assert finding.cost_ns == pytest.approx(39 * 300_000, rel=0.05)
    assert finding.detail["late_ns"] > 1.5 * (finding.cost_ns or 0)
    assert "1.60 times as long" in finding.title
    # For a few milliseconds any host may be slow.
    assert finding.severity == "info"
    assert "perhaps by chance" in ranks_verdict(analysis)


def test_a_full_queue_hides_no_pace(tmp_path: Path) -> None:
    """Once it is full the launches of rank 0 wait until a collective has run: both hosts issue at
    one pace then."""
    analysis = compared(hosts_run_ahead(tmp_path, {0: 0, 1: 600}, {0: 500, 1: 800}, queue=4))
    (finding,) = analysis.findings
    assert finding.cost_ns == pytest.approx(39 * 300_000, rel=0.1)


def test_a_host_that_is_slower_for_long_is_no_chance(tmp_path: Path) -> None:
    paces = {0: 20_000.0, 1: 32_000.0}
    (finding,) = compared(hosts_run_ahead(tmp_path, {0: 0, 1: 600}, paces)).findings
    assert finding.severity == "critical"
    assert "cores" in finding.advice


def test_one_host_in_a_pipeline_of_waits_is_as_late_as_it_makes_the_others(tmp_path: Path) -> None:
    """Whose host waits for each collective shows no pace: all that it waits is the late rank's."""
    analysis = compared(save_ranks(tmp_path, late_rank_calls(), 4))
    (finding,) = analysis.findings
    assert finding.cost_ns == finding.detail["late_ns"] == 20 * 3_900_000


# --- what the late rank did ----------------------------------------------------------------------


def test_a_slow_kernel_is_named(tmp_path: Path) -> None:
    calls = late_rank_calls(ranks=2, late=1, wait=2000)
    busy = {0: "short_gemm", 1: "long_gemm"}
    (finding,) = compared(save_ranks(tmp_path, calls, 2, busy=busy)).findings
    before = finding.detail["before"]
    assert before["beside_rank"] == 0
    assert before["blocks"][0]["name"] == "long_gemm"
    assert before["blocks"][0]["ns"] == pytest.approx(20 * 2_400_000, rel=0.05)
    assert finding.detail["cause"].split(".")[0] != "overhead"
    assert "clocks" in finding.advice


def test_a_late_host_is_named(tmp_path: Path) -> None:
    calls = late_rank_calls(ranks=2, late=1, wait=2000)
    (finding,) = compared(save_ranks(tmp_path, calls, 2)).findings
    assert finding.detail["cause"].startswith("overhead.")
    assert max(finding.detail["before"]["longer_ns"].values()) > 20 * 1_500_000


# --- matching ------------------------------------------------------------------------------------


def without_calls(trace: Trace, first: int, last: int) -> Trace:
    """The recording without its first and last collectives, as one begun later or cut."""
    events = trace.events
    rows = np.flatnonzero((events["kind"] == "kernel").to_numpy())
    kept = np.ones(len(events), dtype=bool)
    kept[rows[:first]] = False
    kept[rows[len(rows) - last :]] = False
    position = np.cumsum(kept) - 1
    tables = {}
    for name, table in trace.tables.items():
        if "event" in table:
            table = table[kept[table["event"].to_numpy()]]
            table = table.assign(event=position[table["event"].to_numpy()]).reset_index(drop=True)
        tables[name] = table
    return Trace(events[kept].reset_index(drop=True), tables, trace.meta, trace.notes)


def test_regular_calls_are_not_taken_for_their_neighbours(tmp_path: Path) -> None:
    """Calls at one pace, all ends off by nanoseconds: under any shift they would end together."""
    rng = np.random.default_rng(4)

    def jittered(rank: int, trace: Trace) -> Trace:
        trace = moved(trace, 2 * SECOND * (rank % 2), 20e-6)
        kernels = (trace.events["kind"] == "kernel").to_numpy()
        jitter = np.where(kernels, rng.integers(-3, 4, len(kernels)), 0)
        events = trace.events.assign(duration_ns=trace.events["duration_ns"] + jitter)
        return Trace(events, trace.tables, trace.meta, trace.notes)

    analysis = compared(save_ranks(tmp_path, late_rank_calls(calls=40), 4, change=jittered))
    assert straggler(analysis) == (2, 40, 40)
    assert analysis.alignment is not None
    assert analysis.alignment.clocks[1].offset_ns == pytest.approx(2 * SECOND, abs=20_000)


@pytest.mark.parametrize("sequences", [True, False])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 0), (0, 4), (2, 2)])
def test_calls_are_matched_when_windows_differ(
    tmp_path: Path, sequences: bool, first: int, last: int
) -> None:
    rng = np.random.default_rng(1)
    calls, begin = [], 1000.0
    for _ in range(24):
        begin += float(rng.integers(3000, 9000))
        calls.append(Call({0: begin, 1: begin, 2: begin + 1500}, begin + 1600))

    def cut(rank: int, trace: Trace) -> Trace:
        return without_calls(trace, first, last) if rank == 1 else trace

    analysis = compared(save_ranks(tmp_path, calls, 3, change=cut, sequences=sequences))
    assert straggler(analysis) == (2, 24, 24)
    assert waits(analysis)[1] == ((24 - first - last) * 1500, (24 - first - last) * 100)


def test_groups_without_a_name_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    calls, at = [], {0: 1000.0, 1: 1000.0}
    for _ in range(30):
        for pair in (0, 1):
            at[pair] += float(rng.integers(2000, 4000))
            first, second = 2 * pair, 2 * pair + 1
            late = 900 if pair == 1 else 0
            enters = {first: at[pair], second: at[pair] + late}
            calls.append(Call(enters, at[pair] + 1000))
    analysis = compared(save_ranks(tmp_path, calls, 4, group=False))
    assert [group.members for group in analysis.groups] == [(0, 1), (2, 3)]
    assert straggler(analysis) == (3, 30, 30)


@pytest.mark.parametrize("late", [0, 2])
def test_a_late_root_of_a_broadcast_is_waited_for_and_a_late_leaf_is_not(
    tmp_path: Path, late: int
) -> None:
    """The root sends and leaves; a rank that comes after that keeps nobody waiting."""
    calls = []
    for k in range(12):
        at = 10_000.0 * k + 100
        enters = {rank: at + (3000 if rank == late else 0) for rank in range(3)}
        ends = at + 3100 if late == 0 else at + 100
        calls.append(Call(enters, max(ends, max(enters.values()) + 20), "Broadcast"))

    def left_early(rank: int, trace: Trace) -> Trace:
        if late == 0 or rank == late:
            return trace
        kernels = (trace.events["kind"] == "kernel").to_numpy()
        length = np.where(kernels, 100_000, trace.events["duration_ns"])
        return Trace(trace.events.assign(duration_ns=length), trace.tables, trace.meta, trace.notes)

    found = straggler(compared(save_ranks(tmp_path, calls, 3, change=left_early)))
    assert found == ((0, 12, 12) if late == 0 else None)


def test_experts_and_process_groups(tmp_path: Path) -> None:
    calls = []
    for k in range(12):
        at = 5000.0 * k
        enters = dict.fromkeys(range(4), at + 10)
        received = {0: 100, 1: 100, 2: 500, 3: 100}
        calls.append(Call(enters, at + 100, "all_to_all", "ep", received=received))
    analysis = compared(save_ranks(tmp_path, calls, 4))
    (experts,) = analysis.imbalance["experts"]
    assert experts["received_max_over_mean"] == 2.5
    assert experts["largest_rank"] == 2
    assert [(group.kind, group.members) for group in analysis.groups] == [("EP", (0, 1, 2, 3))]
    assert "2.50 times" in render_ranks(analysis, width=120)


# --- who is which (case 18) ----------------------------------------------------------------------


def kineto_file(path: Path, rank: int | None, world: int = 2) -> Path:
    """A file of the profiler with two all-reduces."""
    info = {"backend": "nccl", "world_size": world} | ({} if rank is None else {"rank": rank})
    events = []
    for k in range(2):
        at = 1000.0 * (k + 1)
        events.append(
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"}
            | {"pid": 0, "tid": 7, "ts": at, "dur": 100}
            | {"args": {"device": 0, "stream": 7, "correlation": k + 1}}
        )
    document = {"distributedInfo": info, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_two_files_of_one_rank_are_refused(tmp_path: Path, capsys: Capture) -> None:
    kineto_file(tmp_path / "a.json.gz", 0)
    kineto_file(tmp_path / "b.json.gz", 0)
    assert cli.main(["ranks", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    for word in ("a.json.gz", "b.json.gz", "rank 0", "--rank a.json.gz=N"):
        assert word in err
    with pytest.raises(TracerError) as raised:
        compared(tmp_path)
    assert raised.value.rule == "ranks.conflict"
    assert cli.main(["ranks", str(tmp_path), "--rank", "b.json.gz=1"]) == 0


def test_names_are_a_stated_fallback(tmp_path: Path) -> None:
    kineto_file(tmp_path / "x_rank0.json.gz", None)
    kineto_file(tmp_path / "x_rank1.json.gz", None)
    analysis = compared(tmp_path)
    assert [rank.summary.rank for rank in analysis.ranks] == [0, 1]
    (note,) = [note for note in analysis.notes if note.rule == "ranks.from_names"]
    assert "file name" in note.message
    assert are_ranks_of_one_run([str(tmp_path)])


def test_a_missing_rank_is_said_and_the_rest_reported(tmp_path: Path, capsys: Capture) -> None:
    save_ranks(tmp_path, late_rank_calls(late=1), 4)
    shutil.rmtree(tmp_path / "rank2")
    assert cli.main(["ranks", str(tmp_path)]) == 4
    out = capsys.readouterr().out
    assert "rank 2 missing, 3 of 4" in out
    assert "wait for rank 1" in out
    analysis = compared(tmp_path)
    assert analysis.integrity_status == "partial"
    assert straggler(analysis) == (1, 20, 20)


def test_a_rank_twice_is_left_out_and_the_rest_reported(tmp_path: Path) -> None:
    save_ranks(tmp_path, late_rank_calls(late=1), 4)
    shutil.copytree(tmp_path / "rank3", tmp_path / "again")
    analysis = compared(tmp_path)
    assert [rank.summary.rank for rank in analysis.ranks] == [0, 1, 2]
    assert straggler(analysis) == (1, 20, 20)
    (note,) = [note for note in analysis.notes if note.rule == "ranks.conflict"]
    assert str(tmp_path / "rank3") in note.message
    assert str(tmp_path / "again") in note.message


def test_a_damaged_and_a_cut_rank(tmp_path: Path, shared: Path) -> None:
    for rank in range(8):
        name = f"dlrm-nccl-8rank-v100.rank{rank}.json.gz"
        content = (shared / "traces" / name).read_bytes()
        if rank == 5:
            content = content[: int(0.6 * len(content))]
        (tmp_path / name).write_bytes(b"" if rank == 6 else content)
    analysis = compared(tmp_path)
    assert [rank.summary.rank for rank in analysis.ranks] == [0, 1, 2, 3, 4, 5, 7]
    rules = {note.rule for note in analysis.notes}
    assert {"trace.empty", "ranks.missing"} <= rules
    assert next(r for r in analysis.ranks if r.summary.rank == 5).summary.status == "partial"
    assert "trace.truncated" in render_ranks(analysis, width=100)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace_rank12.json.gz", 12),
        ("rank-34.Jul_15.pt.trace.json.gz", 34),
        ("worker7_step_12.1694.json", 7),
        ("1782.5-TP-3-DECODE.trace.json.gz", 3),
        ("run.r5.json", 5),
        ("trace.json", None),
        ("qwen3-8b.json", None),
    ],
)
def test_ranks_in_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


# --- the recordings ------------------------------------------------------------------------------


@pytest.fixture
def pair(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The two ranks of a recording in a directory of their own."""

    def copied(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for rank in (0, 1):
            shutil.copy(shared / "h200x2" / f"{name}_rank{rank}.json.gz", folder)
        return folder

    return copied


def shifted_file(path: Path, offset_us: float, drift: float) -> None:
    """The same recording by a clock that is ahead and runs faster."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    first = min(event["ts"] for event in document["traceEvents"] if "ts" in event)
    for event in document["traceEvents"]:
        if "ts" in event:
            event["ts"] += offset_us + (event["ts"] - first) * drift
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize(
    ("name", "steps", "size", "wire_us", "bus"),
    [
        ("tp_decode", 3, 64 << 10, 7, None),
        ("tp_prefill", 2, 16 << 20, 75, 220e9),
        ("tp_straggler_host", 3, 64 << 10, 7, None),
    ],
)
def test_tensor_parallel_pairs(
    pair: Callable[[str], Path],
    name: str,
    steps: int,
    size: int,
    wire_us: float,
    bus: float | None,
    shift: bool,
) -> None:
    folder = pair(name)
    if shift:
        shifted_file(folder / f"{name}_rank1.json.gz", 2e6, 20e-6)
    analysis = compared(folder)
    found = straggler(analysis)
    assert found is not None
    assert found[0] == 1
    assert found[1] >= 0.95 * found[2] >= 0.95 * (32 * steps - 1)
    for rank in analysis.ranks:
        (kind,) = rank.kinds
        assert (kind.op, kind.count, kind.bytes) == ("all_reduce", 32 * steps, 32 * steps * size)
        assert kind.median_wire_ns == pytest.approx(wire_us * 1000, rel=0.07)
        if bus is not None:
            assert kind.busbw_bytes_per_s == pytest.approx(bus, rel=0.05)
    early, late = analysis.ranks
    assert late.wait_ns == 0
    # What the early rank spends in collectives is waiting, not a slow network.
    assert early.exposed_wait_ns >= 0.85 * (early.summary.exposed_ns or 0)
    exposed = [f for f in early.findings if f.rule in ("comm.exposed", "comm.same_stream")]
    assert all((f.cost_ns or 0) <= 1.1 * (early.wire_ns or 0) for f in exposed)
    alignment = analysis.alignment
    assert alignment is not None
    assert alignment.residual_ns is not None
    assert alignment.residual_ns < 10_000
    if shift:
        assert alignment.clocks[1].offset_ns == pytest.approx(2 * SECOND, abs=30_000)


def test_the_planted_sleep_is_named(pair: Callable[[str], Path]) -> None:
    (finding,) = compared(pair("tp_straggler_host")).findings
    assert finding.detail["rank"] == 1
    block = finding.detail["before"]["blocks"][0]
    assert (block["what"], round(block["ns"] / 1e6)) == ("overhead.host", 8)
    assert f"{block['count']} times up to 8.29 ms" in finding.title
    assert "host work outside operators" in finding.title


@pytest.mark.parametrize("shift", [False, True])
def test_data_parallel_pair_names_nobody(pair: Callable[[str], Path], shift: bool) -> None:
    folder = pair("train_ddp")
    if shift:
        shifted_file(folder / "train_ddp_rank0.json.gz", -3e6, -5e-6)
    analysis = compared(folder)
    assert straggler(analysis) is None
    for rank in analysis.ranks:
        (kind,) = rank.kinds
        assert kind.count == 12
        assert kind.exposed_ns > 0
        assert kind.overlapped_ns > kind.exposed_ns
    assert [group.kind for group in analysis.groups] == ["DP"]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(Path(json_report.__file__).with_name("report.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)


def test_eight_ranks_of_somebody_else(shared: Path, validator: Any) -> None:
    files = sorted((shared / "traces").glob("dlrm-nccl-8rank-v100.rank*.json.gz"))
    with ranks_run(*files, with_reports=True) as run:
        document = ranks_document(run.analysis, run.report)
        assert json.loads("".join(ranks_parts(run.analysis, run.report))) == document
    validator.validate(document)
    assert [report["source"]["rank"] for report in document["ranks"]] == list(range(8))
    assert 0 < document["alignment"]["residual_ns"] < 10_000
    for report in document["ranks"]:
        for item in report["communication"]["collectives"]:
            assert item["wait_ns"] is not None
            assert item["busbw_bytes_per_s"] > 0
    for rank in run.analysis.ranks:
        assert all(kind.compared == kind.count for kind in rank.kinds)
        total = sum((kind.wait_ns or 0) + (kind.wire_ns or 0) for kind in rank.kinds)
        assert total == (rank.wait_ns or 0) + (rank.wire_ns or 0)
    assert "8 ranks of 8" in render_ranks(run.analysis, width=100)


def test_waiting_and_sending_add_up(pair: Callable[[str], Path], validator: Any) -> None:
    with ranks_run(pair("tp_prefill"), with_reports=True) as run:
        document = ranks_document(run.analysis, run.report)
    validator.validate(document)
    for report in document["ranks"]:
        (item,) = report["communication"]["collectives"]
        assert item["wait_ns"] + item["wire_ns"] == item["exposed_ns"] + item["overlapped_ns"]
        assert sum(g["ns"] for g in report["breakdown"].values()) == report["window"]["wall_ns"]


# --- the command ---------------------------------------------------------------------------------


def test_report_of_a_directory_of_ranks(tmp_path: Path, capsys: Capture) -> None:
    save_ranks(tmp_path, late_rank_calls(), 4)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "wait for rank 2" in capsys.readouterr().out
    assert cli.main(["report", str(tmp_path), "--fail-on", "comm.straggler"]) == 1
    page = tmp_path.parent / "page.html"
    assert cli.main(["ranks", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path), "--html", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")


def test_recordings_of_several_runs_are_told_apart(shared: Path, capsys: Capture) -> None:
    assert cli.main(["ranks", str(shared / "h200x2")]) == 3
    err = capsys.readouterr().err
    assert "4 runs" in err
    assert "train_ddp_rank0.json.gz" in err
    assert not are_ranks_of_one_run([str(shared / "h200x2")])


def test_wrong_use(tmp_path: Path, capsys: Capture) -> None:
    save_ranks(tmp_path, late_rank_calls(calls=2), 2)
    for arguments in (["--rank", "x"], ["--rank", "none.json=0"], ["--workers", "0"]):
        assert cli.main(["ranks", str(tmp_path), *arguments]) == 2
    assert cli.main(["ranks", str(tmp_path), "--address", "ray://x"]) == 2
    assert cli.main(["ranks", str(tmp_path / "absent")]) == 3
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_find_the_same(tmp_path: Path) -> None:
    save_ranks(tmp_path, late_rank_calls(calls=6), 4)
    alone = compared(tmp_path)
    together = compared(tmp_path, workers=2)
    assert render_ranks(together, width=100) == render_ranks(alone, width=100)


def test_urls(tmp_path: Path) -> None:
    save_ranks(tmp_path, late_rank_calls(), 4)
    analysis = compared(f"file://{tmp_path}")
    assert straggler(analysis) == (2, 20, 20)
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/ranks", recursive=True)
    try:
        assert straggler(compared("memory://ranks")) == (2, 20, 20)
    finally:
        memory.rm("/ranks", recursive=True)


def test_one_rank_alone(tmp_path: Path, capsys: Capture) -> None:
    save_run(rank_trace(0, 2, late_rank_calls(ranks=2, late=1)), tmp_path / "rank0")
    assert cli.main(["ranks", str(tmp_path)]) == 4
    assert "rank 1 missing, 1 of 2" in capsys.readouterr().out


def test_one_recording_that_is_no_rank_has_nothing_beside_it(
    tmp_path: Path, capsys: Capture
) -> None:
    trace = rank_trace(0, 1, late_rank_calls(ranks=2, late=1))
    nameless = replace(trace, meta=replace(trace.meta, rank=None, world_size=None))
    save_run(nameless, tmp_path / "after")
    assert cli.main(["ranks", str(tmp_path / "after")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("There is one recording and nothing to compare it with: `tracer report ")
    assert "cannot be compared" not in said and "ranks.from_names" not in said
