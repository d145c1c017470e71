"""Causes of idle: by hand for each way a gap can come about, and on the recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of, kineto_files
from tests.test_accounting import charged, check_sums
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.errors import TracerError
from tracer.findings import Finding


def found(analysis: Analysis, rule: str) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.rule == rule]


def status(analysis: Analysis, rule: str) -> str:
    return next(check.status for check in analysis.checks if check.rule == rule)


def two_kernels(maker: TraceMaker, second_launch: float) -> None:
    """Work until 20, then the next launch at this time and its kernel 5 later."""
    maker.annotation("ProfilerStep#0", 0, second_launch + 20)
    maker.launch("first", start=0, run=(5, 20), operator="aten::mm")
    maker.launch(
        "second",
        start=second_launch,
        run=(second_launch + 5, second_launch + 20),
        operator="aten::mm",
    )


def test_work_that_was_launched_in_time_waited_for_the_device() -> None:
    maker = TraceMaker()
    two_kernels(maker, 10)
    maker.rows[-1]["start_ns"] = 30_000
    maker.rows[-1]["duration_ns"] = 0
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert charged(analysis)["device"] == 10_000


def test_what_the_recording_itself_does_is_its_own_cost() -> None:
    """It names modules from 30 to 90, while the device waits for the next launch."""
    maker = TraceMaker()
    two_kernels(maker, 100)
    maker.add("overhead", "tracer::names of modules", 30, 60)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert charged(analysis)["profiler"] == 60_000
    assert found(analysis, "gap.host") == []


def test_a_late_launch_splits_into_dispatch_python_and_latency() -> None:
    """From the end of work at 20: Python until 40, an operator until its launch at 60, then the
    latency of the launch, 5."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 80)
    maker.launch("first", start=0, run=(5, 20), operator="aten::mm")
    maker.operator("aten::linear", 40, 30)
    maker.launch("second", start=60, run=(65, 80), operator="aten::mm")
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert charged(analysis)["host"] == 20_000
    assert charged(analysis)["launch"] == 5_000 + 20_000 + 5_000  # before, dispatch, latency


def test_where_calls_are_missing_the_hosts_part_is_not_known() -> None:
    """Work without a launch was launched by a call that is missing, if calls before it are there:
    what the host did until the next call that is there may have been launching."""
    maker = TraceMaker(next_correlation=2)
    maker.launch("first", start=0, run=(5, 20))
    maker.device_row("early", 20, 10, correlation=1)
    maker.device_row("untold", 50, 10, correlation=3)
    maker.next_correlation = 4
    maker.launch("last", start=100, run=(105, 120))
    analysis = analyze(maker.build(recorded={"every_launch": False}))
    check_sums(analysis)
    assert charged(analysis)["unexplained"] == 20_000 + 40_000
    assert charged(analysis)["launch"] == 5_000 + 5_000
    assert analysis.work["step"].tolist() == [0, -1, 0, 0]
    assert status(analysis, "gap.host") == "not_checked"
    assert status(analysis, "sync.explicit") == "partial"
    assert analyze(maker.build()).work["step"].tolist() == [0, -1, -1, 0]


def test_idle_after_a_wait_is_the_waits_up_to_what_it_held() -> None:
    """Case 05 B: the wait held the host 9 ms; the next kernel starts 2 ms after it."""
    maker = TraceMaker()
    for step in range(3):
        at = 12_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 12_000)
        maker.launch("long", start=at + 1000, run=(at + 1005, at + 11_000))
        maker.host("runtime", "cudaEventSynchronize", at + 1010, 9990)
    analysis = analyze(maker.build())
    check_sums(analysis)
    waits = found(analysis, "sync.explicit")
    assert [w.count for w in waits] == [3]
    assert waits[0].severity in ("warning", "critical")
    assert waits[0].detail["blocked_ns"] == 3 * 9_990_000
    # Two waits had work after them: two milliseconds of idle each.
    assert waits[0].cost_ns == pytest.approx(4_000_000, rel=0.02)


def test_a_wait_on_an_idle_device_costs_what_it_held() -> None:
    """Nothing was queued: without the wait the next launch comes so much earlier, and no more."""
    maker = TraceMaker()
    for step in range(3):
        at = 1_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1_000)
        for row in range(6):
            begin = at + 5 + 60 * row
            maker.launch("k", start=begin, run=(begin + 4, begin + 10), operator="aten::mm")
        maker.host("runtime", "cudaEventSynchronize", at + 400, 3)
        maker.launch("k", start=at + 460, run=(at + 464, at + 990), operator="aten::mm")
    analysis = analyze(maker.build())
    check_sums(analysis)
    (wait,) = found(analysis, "sync.explicit")
    assert (wait.cost_ns, wait.detail["blocked_ns"]) == (3 * 3_000, 3 * 3_000)


def test_waits_without_a_launch_between_lost_the_host_their_time_together() -> None:
    """A copy to pageable memory holds the host itself; what waits after it returns at once."""
    maker = TraceMaker()
    for step in range(3):
        at = 1_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1_000)
        maker.launch("k", start=at + 1, run=(at + 5, at + 300), operator="aten::mm")
        maker.operator("aten::to", at + 10, 310)
        maker.operator("aten::copy_", at + 11, 308)
        maker.copy("device_to_host", 8, start=at + 12, run=(at + 300, at + 302), call_us=300)
        maker.host("runtime", "cudaStreamSynchronize", at + 313, 4)
        maker.launch("k", start=at + 400, run=(at + 405, at + 990), operator="aten::mm")
    (wait,) = found(analyze(maker.build()), "sync.hidden")
    assert wait.cost_ns is not None
    assert wait.cost_ns > 3 * 20_000


@pytest.mark.parametrize(("direction", "waits"), [("device_to_device", 0), ("device_to_host", 1)])
def test_a_copy_between_devices_holds_no_host(direction: str, waits: int) -> None:
    """However long its call takes, and though the copy ends meanwhile."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1_000)
    maker.launch("k", start=1, run=(5, 300), operator="aten::mm")
    maker.operator("aten::copy_", 309, 60)
    maker.copy(direction, 8, start=310, run=(350, 351), call_us=46)
    maker.launch("k", start=500, run=(505, 990), operator="aten::mm")
    assert len(found(analyze(maker.build()), "sync.hidden")) == waits


def test_a_wait_that_cost_no_idle_is_information() -> None:
    """Case 05 A: kernels run through the wait, the next starts 4 us after it."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 20_000)
    maker.launch("long", start=0, run=(5, 9010))
    maker.host("runtime", "cudaEventSynchronize", 10, 9000)
    maker.launch("next", start=9012, run=(9014, 20_000), call_us=1)
    waits = found(analyze(maker.build()), "sync.explicit")
    assert [(w.severity, w.count) for w in waits] == [("info", 1)]
    assert (waits[0].cost_ns or 0) <= 4_000


def test_waits_between_streams_are_no_waits_of_the_host() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    maker.host("runtime", "cudaStreamWaitEvent", 5, 50)
    maker.device_row("Stream Wait Event", 5, 50, kind="device_wait")
    maker.launch("k", start=60, run=(62, 100))
    analysis = analyze(maker.build())
    assert not found(analysis, "sync.explicit")
    assert not found(analysis, "sync.hidden")


def test_the_wait_that_ends_the_measurement_is_no_finding() -> None:
    maker = TraceMaker()
    for step in range(2):
        maker.annotation("my step", 100 * step, 90)
        maker.launch("k", start=100 * step, run=(100 * step + 5, 100 * step + 60))
    maker.host("runtime", "cudaDeviceSynchronize", 195, 300)
    analysis = analyze(maker.build())
    assert not found(analysis, "sync.explicit")
    assert status(analysis, "sync.explicit") == "clear"


@pytest.mark.parametrize(
    ("outer", "inner", "direction", "cause"),
    [
        ("aten::item", "aten::_local_scalar_dense", "device_to_host", "scalar-read"),
        ("aten::is_nonzero", "aten::_local_scalar_dense", "device_to_host", "scalar-read"),
        ("aten::index", "aten::nonzero", "device_to_host", "data-dependent-shape"),
        ("aten::masked_select", "aten::masked_select", "device_to_host", "data-dependent-shape"),
        (
            "aten::repeat_interleave",
            "aten::_local_scalar_dense",
            "device_to_host",
            "data-dependent-shape",
        ),
        ("aten::to", "aten::copy_", "device_to_host", "device-to-host-copy"),
        ("aten::to", "aten::copy_", "host_to_device", "pageable-copy"),
    ],
)
def test_hidden_waits_by_cause(outer: str, inner: str, direction: str, cause: str) -> None:
    """Cases 01 to 03, without Python frames: operator and module are named, the line is not."""
    maker = TraceMaker()
    for step in range(20):
        at = 100 * step
        maker.annotation(f"ProfilerStep#{step}", at, 100)
        maker.module("head", "Head", at + 1, 80)
        maker.launch("k", start=at + 2, run=(at + 4, at + 20), operator="aten::mm")
        maker.operator(outer, at + 8, 50)
        if inner != outer:
            maker.operator(inner, at + 9, 48)
        maker.copy(direction, 8, start=at + 10, run=(at + 20, at + 22))
        maker.host("runtime", "cudaStreamSynchronize", at + 13, 12)
        maker.launch("k", start=at + 70, run=(at + 75, at + 90), operator="aten::mm")
    analysis = analyze(maker.build())
    check_sums(analysis)
    (wait,) = found(analysis, "sync.hidden")
    assert (wait.detail["cause"], wait.count) == (cause, 20)
    assert wait.where.operator == outer
    assert wait.where.module == "head"
    assert wait.where.line is None
    assert wait.detail["line_recorded"] is False
    assert wait.steps == tuple(range(20))


def test_pinned_copies_do_not_wait() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    event = maker.copy("host_to_device", 64, start=5, run=(5.5, 6), call_us=3)
    maker.side_rows["copies"][-1].update(source="pinned", target="device")
    assert event
    maker.launch("k", start=10, run=(12, 100))
    assert not found(analyze(maker.build()), "sync.hidden")


def test_memory_asked_of_the_driver_inside_the_loop() -> None:
    """Case 04: 12 frees and 5 allocations in one step, 40 ms in all."""
    maker = TraceMaker()
    for step in range(4):
        at = 100_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 100_000)
        maker.launch("k", start=at + 10, run=(at + 20, at + 30_000), operator="aten::mm")
        if step == 2:
            maker.operator("aten::empty", at + 31_000, 42_000)
            for call in range(17):
                name = "cudaFree" if call < 12 else "cudaMalloc"
                maker.host("runtime", name, at + 31_100 + call * 2400, 2353)
        maker.launch("k", start=at + 75_000, run=(at + 75_010, at + 99_000), operator="aten::mm")
    analysis = analyze(maker.build())
    check_sums(analysis)
    (driver,) = found(analysis, "sync.allocator")
    assert (driver.count, driver.steps) == (17, (2,))
    assert (driver.detail["allocations"], driver.detail["frees"]) == (5, 12)
    assert driver.detail["cause"] == "memory-pressure"
    assert driver.detail["blocked_ns"] == 17 * 2_353_000


def test_growth_of_an_empty_cache_is_warm_up() -> None:
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        if step == 0:
            maker.host("runtime", "cudaMalloc", at + 10, 200)
        maker.launch("k", start=at + 300, run=(at + 310, at + 900))
    assert not found(analyze(maker.build()), "sync.allocator")


@pytest.mark.parametrize(("kernel_us", "bound"), [(3, True), (30, False)])
def test_launch_bound(kernel_us: int, bound: bool) -> None:
    """Case 26: 400 kernels of 3 us, one launch every 12 us; and the same launches with 30 us."""
    maker = TraceMaker()
    free = 0.0
    for row in range(400):
        begin = max(12 * row + 4.0, free)
        free = begin + kernel_us
        maker.launch("k", start=12 * row, run=(begin, free), call_us=3)
    analysis = analyze(maker.build())
    check_sums(analysis)
    findings = found(analysis, "gap.launch_bound")
    assert bool(findings) is bound
    if bound:
        detail = findings[0].detail
        assert detail["explained_ratio"] > 0.98
        assert detail["mean_gap_ns"] == pytest.approx(9000, rel=0.02)
        assert detail["device_busy_ns"] / detail["host_issue_ns"] == pytest.approx(0.25, abs=0.01)


def test_a_data_loader_that_starves_the_device() -> None:
    """Case 27, from the range that the framework writes."""
    maker = TraceMaker()
    for step in range(5):
        at = 40_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 40_000)
        maker.annotation(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, 30_000
        )
        maker.host("frame", "train.py(12): tokenize", at + 20, 29_000)
        maker.launch("k", start=at + 30_100, run=(at + 30_110, at + 40_000))
    analysis = analyze(maker.build())
    check_sums(analysis)
    named = [f for f in found(analysis, "gap.input") if f.where.function == "tokenize"]
    assert [f.steps for f in named] == [tuple(range(5))]
    total = sum(f.cost_ns or 0 for f in found(analysis, "gap.input"))
    assert total / 5 == pytest.approx(30_000_000, rel=0.02)


def test_compilation_sets_steps_apart() -> None:
    """Case 28: step 0 and step 5 compile; the rest is the steady state."""
    maker = TraceMaker()
    at = 0
    for step in range(10):
        compiles = {0: 29_000, 5: 19_000}.get(step, 0)
        maker.annotation(f"ProfilerStep#{step}", at, compiles + 1000)
        if compiles:
            maker.operator("entire_frame_compile (dynamo_timed)", at + 10, compiles)
        maker.launch("k", start=at + compiles + 50, run=(at + compiles + 60, at + compiles + 1000))
        at += compiles + 1000
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert [i for i, warm in enumerate(analysis.steps["warmup"]) if warm] == [0, 5]
    (phase,) = analysis.phases
    assert (phase.steps, phase.warmup_steps, phase.median_ns) == (8, 2, 1_000_000)
    (first,) = found(analysis, "warmup.first_use")
    assert first.steps == (0, 5)
    assert first.detail["kind"] == "compile"


def test_a_compilation_is_one_finding_with_its_parts() -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 100_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 100_000)
        if step == 0:
            maker.operator("entire_frame_compile (dynamo_timed)", at + 10, 60_000)
            maker.operator("bytecode_tracing (dynamo_timed)", at + 20, 30_000)
            maker.operator("Scheduler.codegen: name=x (dynamo_timed)", at + 31_000, 20_000)
        maker.launch("k", start=at + 61_000, run=(at + 61_010, at + 99_000))
    (first,) = found(analyze(maker.build()), "warmup.first_use")
    assert list(first.detail["parts"]) == [
        "bytecode_tracing", "Scheduler.codegen", "entire_frame_compile"
    ]  # fmt: skip
    assert sum(first.detail["parts"].values()) == first.cost_ns
    assert "bytecode_tracing 30 ms, Scheduler.codegen 20 ms" in first.title
    assert "name=x" not in first.title


def a_long_first_call_of_each_step(operator: str, *, launch_first: bool) -> Analysis:
    """Sixteen calls a step, the first 15 ms longer than its like before or after its launch."""
    maker = TraceMaker()
    for step in range(4):
        at = 20_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 20_000)
        for layer in range(16):
            slow = 15_000 if layer == 0 else 0
            begin = at + (0 if layer == 0 else 15_000) + 100 * layer
            launch = begin + (20 if launch_first else slow + 30)
            maker.operator(operator, begin, slow + 60)
            maker.launch("k", start=launch, run=(launch + 10, launch + 40))
    analysis = analyze(maker.build())
    check_sums(analysis)
    return analysis


def test_a_plan_built_in_every_step_is_a_finding_and_no_warm_up() -> None:
    analysis = a_long_first_call_of_each_step("lib::attend", launch_first=False)
    (plan,) = found(analysis, "gap.compile")
    assert (plan.count, plan.steps, plan.detail["kind"]) == (4, (0, 1, 2, 3), "library-plan")
    assert plan.detail["operator"] == "lib::attend"
    assert not analysis.steps["warmup"].any()


def test_what_comes_after_the_launches_of_an_operator_prepares_none() -> None:
    """As where a call of NCCL waits for the lock of its watchdog, its kernel launched."""
    analysis = a_long_first_call_of_each_step("record_param_comms", launch_first=True)
    assert found(analysis, "gap.compile") == found(analysis, "warmup.first_use") == []
    assert charged(analysis)["launch"] > 4 * 14_000_000


def test_without_compile_rows_a_long_pause_is_the_hosts() -> None:
    maker = TraceMaker()
    at = 0
    for step in range(10):
        pause = 20_000 if step == 5 else 0
        maker.annotation(f"ProfilerStep#{step}", at, pause + 1000)
        for place in range(10):
            begin = at + pause + 5 + 80 * place
            maker.launch("k", start=begin, run=(begin + 5, begin + 75), operator="aten::mm")
        at += pause + 1000
    analysis = analyze(maker.build())
    (host,) = found(analysis, "gap.host")
    assert host.steps == (4, 5)  # it begins with the end of the work of step 4
    assert host.detail["cause_recorded"] is False
    assert not found(analysis, "gap.compile")
    assert not found(analysis, "gap.gc")
    assert status(analysis, "gap.gc") == "not_checked"


def test_guards_of_compiled_code_are_named() -> None:
    maker = TraceMaker()
    for step in range(8):
        at = 3000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 2900)
        maker.operator("TorchDynamo Cache Lookup", at + 5, 1900)
        for place in range(10):
            begin = at + 2000 + 80 * place
            maker.launch("k", start=begin, run=(begin + 5, begin + 75), operator="aten::mm")
    host = max(found(analyze(maker.build()), "gap.host"), key=lambda f: f.cost_ns or 0)
    assert "guards" in host.title
    assert "guard_filter_fn" in host.advice
    assert host.count >= 7


def test_collections_that_were_recorded_are_named() -> None:
    """Case 29."""
    maker = TraceMaker()
    for step in range(6):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        busy = 100 if step == 3 else 900
        maker.launch("k", start=at + 5, run=(at + 10, at + busy))
    maker.side("collections", start_ns=3_150_000, end_ns=3_900_000, generation=2)
    analysis = analyze(maker.build(detail="modules"))
    check_sums(analysis)
    (pause,) = found(analysis, "gap.gc")
    assert (pause.count, pause.steps, pause.cost_ns) == (1, (3,), 750_000)
    assert pause.detail["generations"] == [2]


def test_a_clock_error_makes_no_finding() -> None:
    """Case 16."""
    maker = TraceMaker()
    for row in range(10):
        early = 2 * (row + 1) if row < 3 else -5
        maker.launch(
            "k", start=row * 100 + 50, run=(row * 100 + 50 - early, row * 100 + 150 - early)
        )
    rules = {finding.rule for finding in analyze(maker.build()).findings}
    assert not rules & {"sync.hidden", "sync.explicit", "gap.host", "gap.launch_bound"}


def test_a_recording_of_the_cpu_says_what_would_wait() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    maker.operator("aten::item", 10, 5)
    maker.operator("aten::_local_scalar_dense", 11, 3)
    (wait,) = found(analyze(maker.build()), "sync.hidden")
    assert (wait.severity, wait.count, wait.cost_ns) == ("info", 1, None)
    assert wait.detail["would_wait"] is True


def in_order(maker: TraceMaker, *names: str, start: float = 1) -> None:
    """Operators one after another; what reads a value does so inside."""
    for place, name in enumerate(names):
        maker.operator(name, start + 3 * place, 2)
        if name == "aten::item":
            maker.operator("aten::_local_scalar_dense", start + 3 * place + 0.5, 1)


def test_what_lives_on_the_host_anyway_would_not_wait() -> None:
    """The counters of an optimizer, a number that the host draws, the work of a data loader."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    in_order(maker, "aten::empty", "aten::random_", "aten::item")
    in_order(maker, "aten::rand", "aten::lt", "aten::item", start=20)
    maker.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 40, 20)
    in_order(maker, "aten::sum", "aten::item", start=41)
    in_order(maker, "aten::sum", start=61)  # the loss: what comes after does not read it
    maker.annotation("Optimizer.step#Adam.step", 70, 40)
    in_order(maker, "aten::add_", "aten::lerp_", "aten::item", "aten::addcdiv_", start=71)
    in_order(maker, "aten::add_", "aten::lerp_", "aten::item", "aten::addcdiv_", start=85)
    analysis = analyze(maker.build())
    assert not found(analysis, "sync.hidden")
    assert status(analysis, "sync.hidden") == "partial"
    assert status(analysis, "sync.explicit") == "not_checked"


def test_an_operator_for_cpus_alone_would_not_wait_on_a_gpu() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    for start, name in ((10, "lib::onednn_mm"), (40, "lib::paged_mm")):
        maker.operator(name, start, 20)
        maker.operator("aten::_local_scalar_dense", start + 5, 1)
    assert [w.where.operator for w in found(analyze(maker.build()), "sync.hidden")] == [
        "lib::paged_mm"
    ]


@pytest.mark.parametrize("before", ["aten::dot", "aten::mse_loss", "aten::linalg_vector_norm"])
def test_what_an_optimizer_makes_of_its_data_would_wait(before: str) -> None:
    maker = TraceMaker()
    maker.annotation("Optimizer.step#LBFGS.step", 0, 100)
    in_order(maker, before, "aten::gt", "aten::item")
    assert [wait.count for wait in found(analyze(maker.build()), "sync.hidden")] == [1]


def test_a_value_that_was_only_compared_would_wait() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 100)
    in_order(maker, "aten::rand", "aten::mm", "aten::lt", "aten::item")
    assert [wait.count for wait in found(analyze(maker.build()), "sync.hidden")] == [1]


# --- the recordings with known answers -----------------------------------------------------------


def planted(shared: Path) -> dict[str, dict[str, object]]:
    import json

    answers: dict[str, dict[str, object]] = json.loads(
        (shared / "h200" / "expected.json").read_text()
    )["syncs"]
    return answers


def test_planted_waits_are_found_with_cause_and_function(shared: Path) -> None:
    for name, answer in planted(shared).items():
        analysis = analysis_of(shared / "h200" / f"{name}.json.gz")
        rules: dict[str, object] = dict(answer["rules"])  # type: ignore[call-overload]
        for rule in ("sync.hidden", "sync.explicit", "sync.allocator"):
            findings = [f for f in found(analysis, rule) if f.severity != "info"]
            assert sum(f.count for f in findings) == rules.get(rule, 0), (name, rule)
            for finding in findings:
                assert finding.where.function == answer["function"], name
                if rule == "sync.hidden":
                    assert finding.detail["cause"] == answer["cause"], name
                if rule == "sync.explicit":
                    caller = str(finding.detail["called_from"]).split()[-1]
                    assert caller == answer["called_from"], name


def test_planted_host_work_is_named(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "sync_host_work.json.gz")
    (host,) = [f for f in found(analysis, "gap.host") if f.where.function == "host_work"]
    assert host.cost_ns is not None
    assert host.cost_ns / 4 == pytest.approx(4_000_000, rel=0.05)


def test_launch_bound_decode_and_the_plan_of_each_step(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "decode8b_cpu_cuda.json.gz")
    (bound,) = found(analysis, "gap.launch_bound")
    assert bound.detail["overhead_ratio"] >= 0.9
    (plan,) = found(analysis, "gap.compile")
    assert (plan.count, plan.detail["kind"]) == (4, "library-plan")
    assert 35_000_000 <= plan.detail["each_ns"] <= 42_000_000
    assert plan.detail["like_ns"] < 1_000_000
    assert not found(analysis, "warmup.first_use")


def test_kernels_beside_a_graph_are_told_apart_from_those_in_it() -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 1_000 * step
        maker.annotation(f"decode {step}", at, 990)
        maker.host("runtime", "cudaGraphLaunch", at + 5, 10, correlation=9_000 + step)
        for node in range(20):
            maker.device_row("node", at + 20 + 2 * node, 2, correlation=9_000 + step)
        for row in range(30):
            begin = at + 100 + 20 * row
            maker.launch("k", start=begin, run=(begin + 8, begin + 10))
    (bound,) = found(analyze(maker.build()), "gap.launch_bound")
    assert "CUDA graphs replay 20 of the 50 kernels; 30 are still launched" in bound.advice


def test_prefill_is_not_launch_bound(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "prefill8b_2048.json.gz")
    assert status(analysis, "gap.launch_bound") == "clear"


def test_idle_before_a_replay_is_the_profilers(shared: Path) -> None:
    analysis = analysis_of(shared / "h200" / "graph_replay_only.json.gz")
    parts = charged(analysis)
    replayed = {part: parts[part] for part in ("profiler", "graph_launch")}
    assert replayed["profiler"] > 0.9 * sum(replayed.values())
    assert replayed["profiler"] / 3 == pytest.approx(2_850_000, rel=0.1)


@pytest.mark.parametrize("path", kineto_files("h200", "h200x2", "traces"), ids=lambda p: p.name)
def test_idle_is_explained(path: Path) -> None:
    """Every recording that has host rows."""
    try:
        analysis = analysis_of(path)
    except TracerError:
        return
    if analysis.accounted and (analysis.trace.events["thread"].to_numpy() >= 0).any():
        unexplained = charged(analysis).get("unexplained", 0)
        assert unexplained <= 0.02 * analysis.window.capacity_ns
