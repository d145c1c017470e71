"""Time in equals time out: small cases by hand, and every recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of, kineto_files
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze
from tracer.errors import TracerError


def charged(analysis: Analysis, column: int = 1) -> dict[str, int]:
    """Nanoseconds by part (or by group) of the window."""
    out: dict[str, int] = {}
    buckets = analysis.charges["bucket"].tolist()
    for bucket, ns in zip(buckets, analysis.charges["ns"].tolist(), strict=True):
        name = BUCKETS[bucket][column]
        out[name] = out.get(name, 0) + ns
    return {name: ns for name, ns in out.items() if ns}


def check_sums(analysis: Analysis) -> None:
    """What DESIGN 2 promises of sums."""
    window, charges, steps = analysis.window, analysis.charges, analysis.steps
    assert int(steps["wall_ns"].sum()) + window.between_steps_ns == window.wall_ns
    assert window.between_steps_ns >= 0
    if not analysis.accounted:
        assert window.busy_ns is None
        return
    assert window.busy_ns is not None
    assert window.idle_ns is not None
    assert window.busy_ns + window.idle_ns == window.capacity_ns
    assert (charges["ns"] >= 0).all()
    assert int(charges["ns"].sum()) == window.capacity_ns
    for step, wall in enumerate(steps["wall_ns"].tolist()):
        mine = charges["ns"][charges["step"] == step]
        assert int(mine.sum()) == wall * max(window.devices, 1)
    assert int(analysis.work["charged_ns"].sum()) == window.busy_ns


@pytest.mark.parametrize("path", kineto_files("h200", "h200x2", "traces"), ids=lambda p: p.name)
def test_every_recording_adds_up(path: Path) -> None:
    try:
        analysis = analysis_of(path)
    except TracerError as error:
        assert path.name in str(error)
        return
    check_sums(analysis)


def test_overlapping_kernels_on_one_stream_count_once() -> None:
    """Case 15: programmatic dependent launch is no error, and annotations are no work."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 30)
    maker.launch("a_kernel", start=0, run=(0, 10), call_us=1)
    maker.launch("b_kernel", start=2, run=(7, 20), call_us=1)
    maker.device_row("covering", 0, 20, kind="device_annotation")
    maker.device_row("waiting", 0, 20, kind="device_wait")
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert analysis.window.busy_ns == 20_000
    assert analysis.window.idle_ns == 10_000
    assert analysis.window.kernels == 2


def test_a_shared_slice_is_split_and_odd_nanoseconds_go_to_the_first() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1)
    for stream in (9, 8, 7):
        maker.launch(f"k{stream}", start=0, run=(0, 0.1), stream=stream, call_us=0.01)
    analysis = analyze(maker.build())
    check_sums(analysis)
    by_stream = dict(
        zip(
            analysis.trace.events["stream"].to_numpy()[analysis.work["event"]].tolist(),
            analysis.work["charged_ns"].tolist(),
            strict=True,
        )
    )
    assert by_stream == {7: 34, 8: 33, 9: 33}


@pytest.mark.parametrize(
    ("collective_stream", "exposed", "overlapped", "idle"), [(20, 40, 40, 0), (7, 80, 0, 0)]
)
def test_exposed_communication(
    collective_stream: int, exposed: int, overlapped: int, idle: int
) -> None:
    """Case 25 A and B: a collective under compute is hidden, on the compute stream it is not."""
    start = 60 if collective_stream == 20 else 100
    resume = 140 if collective_stream == 20 else 180
    end = 200 if collective_stream == 20 else 240
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, end)
    maker.launch("compute_a", start=0, run=(0, 100), call_us=0.5)
    maker.launch(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        start=1,
        run=(start, start + 80),
        stream=collective_stream,
        call_us=0.5,
    )
    maker.launch("compute_b", start=2, run=(resume, end), call_us=0.5)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert charged(analysis, 0).get("communication") == exposed * 1000
    assert analysis.overlapped_ns == overlapped * 1000
    assert analysis.window.idle_ns == idle
    assert analysis.collectives["exposed_ns"].tolist() == [exposed * 1000]


def test_idle_is_the_complement_of_the_union_over_streams() -> None:
    """Case 25 C: two streams idle at opposite halves leave the device busy."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    maker.launch("k1", start=0, run=(0, 50), stream=1, call_us=0.5)
    maker.launch("k2", start=1, run=(50, 100), stream=2, call_us=0.5)
    assert analyze(maker.build()).window.idle_ns == 0


def test_copies_count_only_where_nothing_computes() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 40)
    maker.launch("compute", start=0, run=(0, 20), call_us=0.5)
    maker.copy("host_to_device", 64, start=1, run=(10, 30), stream=8, call_us=0.5)
    maker.copy("device_to_device", 64, start=2, run=(30, 40), call_us=0.5)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert charged(analysis)["transfer"] == 10_000
    assert charged(analysis)["unattributed"] == 30_000


def test_work_launched_before_the_recording_is_apart() -> None:
    """Case 11."""
    maker = TraceMaker()
    for start in (0, 100, 200):
        maker.device_row("early", start, 100, correlation=start // 100 + 1)
    for launch in (300, 410, 520):
        maker.next_correlation = launch // 10
        maker.launch("late", start=launch, run=(launch + 10, launch + 110))
    analysis = analyze(maker.build())
    check_sums(analysis)
    note = next(n for n in analysis.notes if n.rule == "trace.launched_before_window")
    assert note.count == 3
    assert note.detail == {"device_events": 6, "duration_ns": 300_000, "total_ns": 600_000}
    early = analysis.work[:3]
    assert early["step"].tolist() == [-1, -1, -1]
    assert {BUCKETS[b] for b in early["bucket"]} == {("other", "unattributed")}


def test_a_clock_error_is_said_and_links_hold() -> None:
    """Case 16."""
    maker = TraceMaker()
    for row in range(10):
        early = 2 * (row + 1) if row < 3 else -5
        maker.launch("k", start=row * 100 + 50, run=(row * 100 + 50 - early, row * 100 + 90))
    analysis = analyze(maker.build())
    note = next(n for n in analysis.notes if n.rule == "trace.clock_error")
    assert (note.count, note.detail) == (3, {"linked": 10, "worst_ns": 6000})
    assert (analysis.work["launch"] >= 0).all()


def test_launches_without_device_rows_make_no_breakdown() -> None:
    """Case 17 a: idle is not reported as 100 percent."""
    maker = TraceMaker()
    for row in range(200):
        maker.host("runtime", "cudaLaunchKernel", row * 10, 5, correlation=row + 1)
    analysis = analyze(maker.build())
    assert not analysis.accounted
    assert analysis.window.idle_ns is None
    assert analysis.integrity_status == "unusable"
    note = next(n for n in analysis.notes if n.rule == "trace.no_device_events")
    assert note.message.startswith("200 launches recorded, 0 device events")


def test_a_recording_of_the_cpu_alone_counts_its_leaf_operators() -> None:
    """Case 17 b."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    maker.operator("aten::linear", 10, 30)
    maker.operator("aten::addmm", 15, 20)
    maker.operator("aten::relu", 50, 10)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert analysis.cpu_only
    assert analysis.window.devices == 0
    assert charged(analysis)["host"] == 70_000
    assert [analysis.trace.names[c] for c in analysis.trace.name_codes[analysis.work["event"]]] == [
        "aten::addmm",
        "aten::relu",
    ]
    assert any(note.rule == "trace.cpu_only" for note in analysis.notes)


@pytest.mark.parametrize(
    ("name", "inside"),
    [("aten::addmm", ("aten::expand", "aten::copy_")), ("aten::sum", ("aten::sum", "aten::fill_"))],
)
def test_what_prepares_longer_than_it_computes_computes_all_the_same(
    name: str, inside: tuple[str, str]
) -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    for row in range(4):
        maker.operator(name, 20 * row, 10)
        maker.operator(inside[0], 20 * row + 1, 4)
        maker.operator(inside[1], 20 * row + 5, 4)
    analysis = analyze(maker.build())
    names = {analysis.trace.names[c] for c in analysis.trace.name_codes[analysis.work["event"]]}
    assert names == {name}
    assert charged(analysis)["host"] == 60_000


def test_step_wall_is_what_a_user_would_measure() -> None:
    """Device work of a step ends after its range: the next one begins there, and the time after
    the last work of a step until the next announcement lies between steps."""
    maker = TraceMaker()
    maker.annotation("my_step", 0, 10)
    maker.launch("k", start=5, run=(6, 30))
    maker.annotation("my_step", 20, 10)
    maker.launch("k", start=21, run=(30, 40))
    maker.annotation("my_step", 60, 10)
    maker.launch("k", start=61, run=(62, 65))
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert analysis.steps["start_ns"].tolist() == [0, 30_000, 60_000]
    assert analysis.steps["wall_ns"].tolist() == [30_000, 10_000, 10_000]
    assert analysis.window.between_steps_ns == 20_000
    assert analysis.work["step"].tolist() == [0, 1, 2]


def test_graph_replay_is_one_launch_of_many_kernels() -> None:
    """Case 12, synthetic."""
    maker = TraceMaker()
    maker.host("runtime", "cudaGraphLaunch", 0, 5, correlation=7)
    for row in range(40):
        maker.device_row(f"kernel_{row}", 10 + row, 1, correlation=7)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert (analysis.window.launches, analysis.window.kernels) == (1, 40)
    assert len(analysis.kernels) == 40
    assert np.unique(analysis.work["launch"]).size == 1
    assert (analysis.work["operator"] == -1).all()
