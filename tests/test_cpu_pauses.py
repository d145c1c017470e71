"""On a recording of the CPU alone: where time passes outside of operators."""

from __future__ import annotations

from typing import Any

import pytest

from tests.make_traces import TraceMaker
from tests.test_accounting import charged, check_sums
from tests.test_idle import found, status
from tracer.analyzers import analyze
from tracer.events import Note
from tracer.exporters.merged import reported_costs
from tracer.exporters.sentence import verdict


def paused(frame: str | None = None, fetch: bool = False) -> TraceMaker:
    """Six steps of 30 ms: 10 of operators, then 20 outside of them."""
    maker = TraceMaker()
    for step in range(6):
        at = 30_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 30_000)
        maker.operator("aten::mm", at + 10, 9_980)
        if frame:
            maker.host("frame", frame, at + 10_100, 19_700)
        if fetch:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            maker.annotation(name, at + 10_050, 19_900)
        maker.operator("aten::add", at + 29_980, 10)
    return maker


def test_a_pause_is_named_by_the_operators_around_it() -> None:
    analysis = analyze(paused().build())
    (pause,) = found(analysis, "gap.host")
    assert (pause.count, pause.steps) == (6, tuple(range(6)))
    assert pause.detail["after_operator"] == "aten::mm"
    assert pause.detail["before_operator"] == "aten::add"
    assert pause.cost_ns == pytest.approx(6 * 19_990_000, rel=0.01)
    assert charged(analysis)["host"] >= (pause.cost_ns or 0)


def test_a_pause_is_named_by_its_function() -> None:
    (pause,) = found(analyze(paused("lib/filters.py(15): rank").build()), "gap.host")
    assert (pause.where.file, pause.where.function) == ("lib/filters.py", "rank")


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("<built-in function sched_yield>", True),
        ("<built-in method acquire of _thread.lock object at 0x7f00>", False),  # short, and free
        ("<built-in method join of str object at 0x7f00>", False),
    ],
)
def test_a_function_that_asks_for_its_work_again_and_again_only_waits(
    call: str, waits: bool
) -> None:
    maker = paused("lib/queue.py(15): take")
    for step in range(6):
        for turn in range(390):
            maker.host("frame", call, 30_000 * step + 10_110 + 50 * turn, 10)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert ("waits in take for another thread or process" in pause.title) is waits
    assert (pause.gain_ns is None) is waits and pause.cost_ns is not None
    assert ("make it cheaper" in pause.advice) is not waits


def test_the_time_of_a_process_without_operators_is_that_of_its_host() -> None:
    maker = TraceMaker()
    maker.host("frame", "lib/loop.py(4): serve", 0, 10_000)
    maker.host("frame", "<built-in method poll of select.epoll object>", 100, 9_800)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert charged(analysis)["host"] == analysis.window.wall_ns == 10_000_000
    assert verdict(analysis).startswith(
        "No GPU and no operator of PyTorch is in this recording of 10.0 ms. The host waits in "
        "serve for another thread or process, 10 ms at lib/loop.py:4 (costs 10.0 ms)."
    )


def test_a_pause_follows_the_last_line_seen() -> None:
    maker = paused()
    for step in range(6):
        time_ns = (30_000 * step + 9_990) * 1000
        maker.side("host_sites", time_ns=time_ns, file="a.py", line=7, function="f")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.detail["last_line"] == "a.py:7 in f"
    assert "a.py:7 in f" in pause.title


def test_a_data_loader_is_told_from_other_pauses() -> None:
    analysis = analyze(paused(fetch=True).build())
    assert [f.count for f in found(analysis, "gap.input")] == [6]
    assert not found(analysis, "gap.host")


def test_what_a_generation_calls_for_each_token_is_no_loader() -> None:
    """A stopping criterion that tokenizes what was generated so far."""
    maker = paused("rules.py(15): tokenize")
    (loader,) = found(analyze(maker.build()), "gap.input")
    assert loader.where.function == "tokenize"
    maker.host("frame", "transformers/generation/utils.py(2345): generate", 0, 180_000)
    analysis = analyze(maker.build())
    (pause,) = found(analysis, "gap.host")
    assert pause.where.function == "tokenize"
    assert not found(analysis, "gap.input")


FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_what_stands_beside_a_fetch_in_one_pause_is_told_apart() -> None:
    """A checkpoint is saved, and the next batch is fetched right after."""
    maker = TraceMaker()
    for step in range(6):
        at = 30_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 30_000)
        maker.operator("aten::mm", at + 10, 9_980)
        maker.host("frame", "train.py(40): save", at + 10_100, 5_900)
        maker.annotation(FETCH, at + 16_000, 13_900)
        maker.operator("aten::add", at + 29_980, 10)
    analysis = analyze(maker.build())
    (loader,), (save,) = found(analysis, "gap.input"), found(analysis, "gap.host")
    assert loader.cost_ns == pytest.approx(6 * 13_900_000, rel=0.01)
    assert save.cost_ns == pytest.approx(6 * 6_090_000, rel=0.02)
    assert save.where.function == "save"


def test_many_short_fetches_are_a_slow_loader() -> None:
    """Each is a hundredth of its step."""
    maker = TraceMaker()
    for step in range(4):
        at = 100_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 100_000)
        for micro in range(10):
            begin = at + 10_000 * micro
            maker.operator("aten::mm", begin, 9_000)
            maker.annotation(FETCH, begin + 9_000, 990)
            maker.operator("aten::add", begin + 9_995, 4)
    analysis = analyze(maker.build())
    (loader,) = found(analysis, "gap.input")
    assert loader.count == 40
    assert loader.ratio == pytest.approx(0.099, rel=0.01)


def test_operators_one_after_another_are_clear() -> None:
    maker = TraceMaker()
    for step in range(4):
        for row in range(10):
            maker.operator("aten::mm", 1000 * step + 100 * row, 99)
        maker.annotation(f"ProfilerStep#{step}", 1000 * step, 1000)
    analysis = analyze(maker.build())
    assert status(analysis, "gap.host") == "clear"


def test_a_file_cut_before_its_device_rows_says_nothing_of_the_device() -> None:
    maker = paused()
    maker.side("devices", device=0, name="Some GPU", major=9, minor=0)
    analysis = analyze(maker.build(Note("trace.truncated", "the end is missing", partial=True)))
    assert not analysis.cpu_only
    assert not analysis.accounted
    assert "cut off before its device rows" in analysis.breakdown_reason


def test_what_the_recording_itself_does_is_no_pause_of_the_program() -> None:
    maker = paused()
    maker.add("overhead", "tracer::names of modules", 10_000, 19_900)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.steps == (1, 2, 3, 4, 5)


def test_compiling_is_no_pause_and_names_its_function() -> None:
    maker = paused()
    times = {"start_ns": 70_100_000, "end_ns": 89_900_000}
    maker.side("compile_events", kind="compile", file="a.py", line=9, function="f", **times)
    analysis = analyze(maker.build())
    (compiled,) = found(analysis, "warmup.first_use")
    assert (compiled.where.file, compiled.where.line) == ("a.py", 9)
    assert compiled.steps == (2,)
    assert compiled.title.startswith("compiling f takes")
    assert [f.count for f in found(analysis, "gap.host")] == [5]


def compiled_in_each(kinds: list[str]) -> TraceMaker:
    """Six steps, the first ones with a compilation of 19.8 ms in each."""
    maker = paused()
    for step, kind in enumerate(kinds):
        times = {"start_ns": 30_000_000 * step + 10_100_000}
        times["end_ns"] = times["start_ns"] + 19_800_000
        maker.side("compile_events", kind=kind, file="a.py", line=9, function="f", **times)
    return maker


@pytest.mark.parametrize("others", ["recompile", "compile"])
def test_the_first_compilation_is_no_gain(others: str) -> None:
    """Whether the compiler takes the others for versions of the first, or was made to forget it."""
    (compiled,) = found(
        analyze(compiled_in_each(["compile"] + 5 * [others]).build()), "gap.compile"
    )
    assert (compiled.cost_ns, compiled.gain_ns) == (6 * 19_800_000, 5 * 19_800_000)
    took = "Compiling again took 99 ms" if others == "recompile" else "99 ms of this"
    assert took in compiled.advice


def test_code_compiled_before_the_recording_is_all_gain() -> None:
    analysis = analyze(compiled_in_each(6 * ["recompile"]).build())
    (compiled,) = found(analysis, "gap.compile")
    (again,) = found(analysis, "fallback.compile")
    assert compiled.gain_ns == compiled.cost_ns == 6 * 19_800_000
    assert again.cost_ns is None


def test_compiling_again_and_again_is_told_and_counted_once() -> None:
    analysis = analyze(compiled_in_each(["compile"] + 5 * ["recompile"]).build())
    (compiled,) = found(analysis, "gap.compile")
    assert "in 6 of 6 steps; it is compiled again 5 times" in compiled.title
    assert sum(f.cost_ns or 0 for f in analysis.findings if "compile" in f.rule) == 6 * 19_800_000
    assert [c.finding.rule for c in reported_costs(analysis)].count("fallback.compile") == 0
    assert verdict(analysis).count("compiled again") == 1


def test_what_compiles_again_in_few_steps_is_no_first_use() -> None:
    analysis = analyze(compiled_in_each(["compile", "recompile", "recompile"]).build())
    (first,), (again,) = found(analysis, "warmup.first_use"), found(analysis, "fallback.compile")
    assert (first.cost_ns, again.cost_ns) == (19_800_000, 2 * 19_800_000)
    assert first.ratio == pytest.approx((again.ratio or 0) / 2)
    assert "39.6 ms of it is counted in fallback.compile" in first.title


def stopped(by_chance: bool) -> TraceMaker:
    """Six steps of six operators, with a pause behind one of them in each step, or behind all."""
    maker = TraceMaker()
    for step in range(6):
        at = 60_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 60_000)
        for place in range(6):
            ends = place == step if by_chance else True
            maker.operator(f"aten::op{place}", at + 10_000 * place, 4_000 if ends else 10_000)
    return maker


def test_pauses_all_over_the_program_are_one_finding() -> None:
    """Whatever the program does, it stops: another thread has the interpreter."""
    (pause,) = found(analyze(stopped(by_chance=True).build()), "gap.host")
    assert pause.count == 6
    assert "thread" in pause.advice


def test_pauses_at_the_same_places_in_each_step_are_the_programs() -> None:
    pauses = found(analyze(stopped(by_chance=False).build()), "gap.host")
    assert len(pauses) >= 6
    assert not any("thread" in pause.advice for pause in pauses)


def test_a_library_operator_that_calls_others_on_the_way_is_work() -> None:
    """A product of a library reads a scalar first; the rest of it is no pause."""
    maker = TraceMaker()
    for step in range(4):
        at = 10_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 10_000)
        maker.operator("lib::product", at, 9_900)
        maker.operator("aten::item", at + 10, 20)
    analysis = analyze(maker.build())
    assert not found(analysis, "gap.host")
    assert charged(analysis)["host"] == 4 * 100_000


def test_python_inside_an_operator_is_not_its_own_work() -> None:
    maker = TraceMaker()
    for step in range(4):
        at = 10_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 10_000)
        maker.operator("lib::custom", at, 9_900)
        maker.host("frame", "user.py(3): custom", at + 5, 9_800)
        maker.operator("aten::mm", at + 10, 1_000)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where.function == "custom"


def read_loop(reads: int, steps: int, turn: float) -> TraceMaker:
    """Steps of a product of 2 ms and so many reads in turn at one line, each after operators of
    3 us that begin 20 us apart."""
    maker = TraceMaker()
    length = 2_000 + turn * reads
    for step in range(steps):
        at = step * length
        maker.annotation(f"ProfilerStep#{step}", at, length)
        maker.operator("aten::mm", at, 2_000)
        for read in range(reads):
            begin = at + 2_000 + turn * read
            for operator in range(int(turn // 20) - 1):
                maker.operator("aten::select", begin + 20 * operator, 3)
            maker.operator("aten::item", begin + turn - 20, 3)
            time_ns = int(1_000 * (begin + turn - 21))
            when: dict[str, Any] = {"time_ns": time_ns, "thread": 1, "cause": "called"}
            maker.side("host_sites", file="loop.py", line=7, function="penalize", **when)
    return maker


def test_a_loop_that_reads_values_is_named_without_samples() -> None:
    (loop,) = found(analyze(read_loop(100, steps=4, turn=40).build()), "gap.host")
    assert (loop.where.file, loop.where.line, loop.where.function) == ("loop.py", 7, "penalize")
    assert "in penalize" in loop.title
    assert loop.detail["reads"] == 4 * 99
    # Between two reads of a turn: 34 us without an operator.
    assert loop.cost_ns == pytest.approx(4 * 99 * 34_000, rel=0.03)


def test_two_reads_a_step_are_no_loop() -> None:
    assert not found(analyze(read_loop(2, steps=40, turn=320).build()), "gap.host")
