"""Whether the answer is the planted one: small recordings whose right reading is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_kineto import Event, call, event, kernel, kineto_file, operator
from tests.make_traces import TraceMaker, steps_held_up_by
from tests.test_accounting import charged, check_sums
from tests.test_idle import found
from tracer.analyzers import analyze
from tracer.collectors.kineto.trace import read_kineto
from tracer.exporters.sentence import verdict

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_what_a_loader_does_is_one_finding_whatever_operators_it_calls() -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 20_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 20_000)
        maker.annotation(LOADER, at + 10, 10_000)
        for row in range(5):
            maker.operator(f"aten::sort{row}", at + 20 + 2000 * row, 1900)
        maker.launch("k", start=at + 10_100, run=(at + 10_110, at + 20_000))
    analysis = analyze(maker.build())
    check_sums(analysis)
    (loader,) = found(analysis, "gap.input")
    assert (loader.count, loader.steps) == (4, (0, 1, 2, 3))
    assert "num_workers above 0" in loader.advice


def steps_of_2021(steps: int = 3) -> list[Event]:
    """A file of 2021: ranges of the framework have the category of operators."""
    events = []
    for step in range(steps):
        at = 1000.0 * step
        events.append(event("Operator", f"ProfilerStep#{step}", at, 1000))
        events.append(event("Operator", LOADER, at + 5, 500))
        events.append(event("Operator", "aten::mm", at + 600, 50))
        events.append(event("Runtime", "cudaLaunchKernel", at + 610, 5, correlation=step + 1))
        events.append(event("Kernel", "gemm", at + 620, 300, correlation=step + 1, stream=7))
    return events


def test_ranges_that_old_files_call_operators(tmp_path: Path) -> None:
    analysis = analyze(read_kineto(kineto_file(tmp_path, steps_of_2021())))
    assert list(analysis.steps["source"]) == ["profiler_step"] * 3
    (loader,) = found(analysis, "gap.input")
    assert loader.where.operator is None


def test_a_value_read_inside_a_users_function_is_a_scalar_read() -> None:
    """An autograd function stands in the recording as an operator of that name."""
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        maker.operator("MyFunction", at + 5, 500)
        maker.launch("k", start=at + 10, run=(at + 20, at + 200), operator="aten::mul")
        maker.operator("aten::item", at + 30, 220)
        maker.operator("aten::_local_scalar_dense", at + 31, 218)
        maker.copy("device_to_host", 4, start=at + 35, run=(at + 200, at + 201))
        maker.host("runtime", "cudaStreamSynchronize", at + 45, 160)
        maker.launch("k", start=at + 600, run=(at + 605, at + 990), operator="aten::mm")
    (wait,) = found(analyze(maker.build()), "sync.hidden")
    assert wait.detail["cause"] == "scalar-read"
    assert wait.where.operator == "MyFunction"


def behind_unseen_work() -> TraceMaker:
    """The first kernel is launched at once and starts 90 ms later, with nothing recorded before."""
    maker = TraceMaker()
    maker.annotation("step[DECODE bs=8]", 0, 900)
    for row in range(40):
        free = 90_000 + 100 * row
        maker.launch("k", start=10 + 20 * row, run=(free, free + 100), operator="aten::mm")
    return maker


def test_work_from_before_the_recording_may_have_kept_the_device_busy() -> None:
    analysis = analyze(behind_unseen_work().build())
    check_sums(analysis)
    assert charged(analysis)["device"] > 85_000_000
    assert "trace.unrecorded_work" in [note.rule for note in analysis.notes]
    assert "before the recording" in verdict(analysis)
    assert "idle" not in verdict(analysis)


def test_work_in_most_of_the_time_beside_what_has_no_rows() -> None:
    """What takes most is known; the rest is not called idle."""
    maker = TraceMaker()
    maker.annotation("step[DECODE bs=8]", 0, 900)
    for row in range(40):
        free = 30_000 + 2_000 * row
        maker.launch("k", start=10 + 20 * row, run=(free, free + 2_000), operator="aten::embedding")
    said = verdict(analyze(maker.build()))
    assert said.startswith("Embedding takes most of")
    assert "nothing recorded runs on the GPU for 27 % of the time" in said
    assert "idle" not in said


def test_work_whose_launch_is_not_recorded_waited_for_what_is_not() -> None:
    """DESIGN 4: such work was launched before the recording, so its host was in time."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 50_000)
    maker.launch("k", start=5, run=(10, 20), operator="aten::mm")
    for row in range(9):
        maker.device_row("k", 5_000 + 5_000 * row, 10, correlation=100 + row)
    maker.launch("k", start=49_000, run=(49_010, 49_100), operator="aten::mm")
    analysis = analyze(maker.build())
    check_sums(analysis)
    parts = charged(analysis)
    assert "unexplained" not in parts
    assert parts["device"] > 40_000_000
    (note,) = [note for note in analysis.notes if note.rule == "trace.unrecorded_work"]
    assert note.detail["idle_ns"] > 40_000_000
    assert "is not recorded" in verdict(analysis).split(". ")[0]
    assert "fewer and larger kernels" not in verdict(analysis)


def test_a_stream_that_waits_for_recorded_work_is_no_such_case() -> None:
    maker = TraceMaker()
    maker.annotation("step[DECODE bs=8]", 0, 900)
    maker.launch("k", start=5, run=(10, 90_000), operator="aten::mm", stream=7)
    maker.launch("k", start=20, run=(90_010, 99_000), operator="aten::mm", stream=8)
    analysis = analyze(maker.build())
    assert "trace.unrecorded_work" not in [note.rule for note in analysis.notes]


@pytest.mark.parametrize(("frees", "pressure"), [(1, False), (6, True)])
def test_set_up_of_a_library_is_no_memory_pressure(frees: int, pressure: bool) -> None:
    """One step alone: a handle that is made frees once and allocates; pressure frees as often."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 60_000)
    maker.operator("aten::linear", 5, 40_000)
    for row in range(frees):
        maker.host("runtime", "cudaFree", 10 + 1000 * row, 900)
    for row in range(6):
        maker.host("runtime", "cudaMalloc", 10_010 + 1000 * row, 900)
    maker.launch("k", start=39_000, run=(39_010, 59_000))
    assert bool(found(analyze(maker.build()), "sync.allocator")) is pressure


@pytest.mark.parametrize(("name", "cache"), [("decode", True), ("train", False)])
def test_advice_on_launches_fits_the_phase(name: str, cache: bool) -> None:
    maker = TraceMaker()
    for row in range(400):
        maker.annotation(f"{name}", 12 * row, 12) if row % 100 == 0 else None
        maker.launch("k", start=12 * row, run=(12 * row + 4, 12 * row + 7), call_us=3)
    (bound,) = found(analyze(maker.build()), "gap.launch_bound")
    assert ("KV cache" in bound.advice) is cache


def test_operators_on_tensors_of_the_host_are_named_as_such(tmp_path: Path) -> None:
    """A product of host tensors in each step launches nothing and holds the device up."""
    events = []
    for step in range(4):
        at = 10_000.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, 10_000))
        events.append(operator("aten::mul", at + 100, 8000))
        events.append(operator("aten::mm", at + 8200, 100))
        events.append(call("cudaLaunchKernel", at + 8210, 5, step + 1))
        events.append(kernel("gemm", at + 8220, 1700, step + 1))
    host, *_ = found(analyze(read_kineto(kineto_file(tmp_path, events))), "gap.host")
    assert host.where.operator == "aten::mul"
    assert host.cost_ns == 4 * 8_000_000
    assert "on the device" in host.advice
    assert "Python" not in host.advice


def test_a_short_wait_of_a_first_kernel_is_no_unrecorded_work() -> None:
    """Graph replays alone: there is no other launch to compare with."""
    maker = TraceMaker()
    for step in range(4):
        at = 1000 * step
        maker.annotation("decode", at, 990)
        maker.host("runtime", "cudaGraphLaunch", at + 10, 50, correlation=step + 1)
        for node in range(60):
            start = at + 70 + 10 * node
            maker.device_row(f"k{node % 5}", start, 9, correlation=step + 1)
    analysis = analyze(maker.build())
    assert "trace.unrecorded_work" not in [note.rule for note in analysis.notes]


def test_kernels_without_duration_claim_no_launch_bound_step() -> None:
    maker = TraceMaker()
    for step in range(4):
        maker.annotation(f"ProfilerStep#{step}", 400 * step, 390)
        for row in range(10):
            at = 400 * step + 38 * row
            maker.launch("k", start=at + 10, run=(at + 20, at + 20))
    assert not found(analyze(maker.build()), "gap.launch_bound")


def test_copies_beside_unknown_kernels_are_what_to_change() -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 10_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 9990)
        maker.copy("host_to_device", 1 << 20, start=at + 10, run=(at + 20, at + 4000))
        maker.launch("some_kernel", start=at + 15, run=(at + 4000, at + 9900))
    assert "pinned memory" in verdict(analyze(maker.build()))


def test_host_work_between_steps_counts_once_a_pause() -> None:
    maker = TraceMaker()
    for step in range(6):
        at = 20_000 * step
        maker.annotation("train_step", at, 9000)
        for row in range(20):
            begin = at + 10 + 400 * row
            maker.launch("k", start=begin, run=(begin + 10, begin + 400), operator="aten::mm")
    (host,) = found(analyze(maker.build()), "gap.host")
    assert host.count == 5  # one behind each step but the last


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("<built-in method poll of select.poll object>", True),
        ("<built-in function sleep>", False),  # a pause of its own: to leave it out gains
        ("", False),
    ],
)
def test_a_host_that_waits_for_another_process_is_told_from_one_that_works(
    call: str, waits: bool
) -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 20_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 19_900)
        maker.launch("gemm", start=at + 10, run=(at + 15, at + 1_000), operator="aten::mm")
        maker.host("frame", "lib/queue.py(15): take", at + 1_100, 17_000)
        if call:
            maker.host("frame", call, at + 1_200, 16_000)
        maker.launch("gemm", start=at + 18_200, run=(at + 18_210, at + 19_800), operator="aten::mm")
    places = found(analyze(maker.build()), "gap.host")
    (finding,) = [place for place in places if place.where.function == "take"]
    assert finding.title.startswith("the host waits in take") is waits
    assert (finding.gain_ns is None) is waits


def test_waits_that_begin_captures_are_no_fault_of_the_loop() -> None:
    """PyTorch waits, sets the random state with two launches, and captures."""
    maker = TraceMaker()
    for graph in range(5):
        at = 10_000 * graph
        maker.host("runtime", "cudaDeviceSynchronize", at + 10, 5_000)
        for fill in range(2):
            begin = at + 5_100 + 20 * fill
            maker.launch("fill", start=begin, run=(begin + 10, begin + 15))
        maker.host("runtime", "cudaStreamBeginCapture", at + 5_200, 1)
    (wait,) = found(analyze(maker.build()), "sync.explicit")
    assert (wait.severity, wait.gain_ns) == ("info", None)
    assert "capture" in wait.title


@pytest.mark.parametrize("often", [True, False])
def test_memory_asked_between_steps_counts_where_it_comes_again(often: bool) -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 20_000 * step
        maker.annotation("my step", at, 9_000)
        maker.launch("k", start=at + 10, run=(at + 20, at + 8_900))
        if often or step == 0:
            maker.host("runtime", "cudaFree", at + 10_000, 4_000)
    assert bool(found(analyze(maker.build()), "sync.allocator")) is often


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_code_is_not_told_to_compile(compiled: bool) -> None:
    maker = TraceMaker()
    if compiled:
        maker.operator("Torch-Compiled Region: 0/0", 0, 4800)
    for row in range(400):
        maker.launch("k", start=12 * row, run=(12 * row + 4, 12 * row + 7), call_us=3)
    (bound,) = found(analyze(maker.build()), "gap.launch_bound")
    assert ("Fuse kernels" in bound.advice) is not compiled


def test_memory_that_the_cache_asks_for_at_first_is_paid_once() -> None:
    """No finding of pressure: then the advice tells of none either."""
    maker = TraceMaker()
    maker.operator("aten::empty", 5, 9_000)
    maker.host("runtime", "cudaMalloc", 10, 8_900)
    maker.launch("k", start=9_100, run=(9_110, 10_000), operator="aten::mm")
    analysis = analyze(maker.build())
    assert not found(analysis, "sync.allocator")
    said = verdict(analysis)
    assert "paid once. Record after a warm-up step" in said
    assert "empty_cache" not in said


@pytest.mark.parametrize(
    ("range_name", "told"),
    [("Optimizer.step#AdamW.step", "fused"), ("Optimizer.zero_grad#AdamW.zero_grad", "trained")],
)
def test_python_of_an_optimizer_has_advice_of_its_own(range_name: str, told: str) -> None:
    maker = steps_held_up_by("annotation", range_name)
    (host,) = [f for f in found(analyze(maker.build()), "gap.host") if f.where.operator]
    assert told in host.advice
    assert "not recorded" not in host.title


@pytest.mark.parametrize("steps", [1, 3])
def test_what_one_step_alone_shows_is_not_said_to_be_paid_once(steps: int) -> None:
    maker = TraceMaker()
    for step in range(steps):
        at = 100_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 100_000)
        for row in range(10):
            begin = at + 5 + 100 * row
            maker.launch("k", start=begin, run=(begin + 5, begin + 90), operator="aten::mm")
        if step == 0:
            maker.operator("aten::conv2d", at + 2_000, 50_000)
            maker.launch("k", start=at + 51_000, run=(at + 51_010, at + 51_900))
        maker.launch("k", start=at + 60_000, run=(at + 60_010, at + 99_000), operator="aten::mm")
    (first,) = found(analyze(maker.build()), "warmup.first_use")
    assert ("Paid once" in first.advice) is (steps > 1)
    assert first.title.endswith(f"in 1 of {steps} steps")


@pytest.mark.parametrize(("kernels", "one"), [(1, True), (200, False)])
def test_a_part_of_one_long_kernel_is_not_said_to_be_many_small_ones(
    kernels: int, one: bool
) -> None:
    maker = TraceMaker()
    for step in range(4):
        at, length = 20_000 * step, 16_000 / kernels
        maker.annotation(f"ProfilerStep#{step}", at, 20_000)
        maker.host("module", "module::patches.embeddings::Embeddings", at + 10, 19_000)
        for row in range(kernels):
            begin = at + 500 + length * row
            name = "upsample_bicubic2d_out_frame"
            maker.launch(name, start=at + 20 + row, run=(begin, begin + length - 2))
    said = verdict(analyze(maker.build()))
    assert "Embedding takes most" in said
    assert ("upsample_bicubic2d_out_frame, 16" in said) is one
    assert ("many small kernels" in said) is not one
