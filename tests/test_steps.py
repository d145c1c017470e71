"""Steps and phases from each source of DESIGN 4."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make_traces import MAIN_THREAD, TraceMaker
from tests.recordings import analysis_of
from tests.test_accounting import check_sums
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.names.engine_names import EngineStep, parse_engine_range
from tracer.exporters.traced import period_text


def steps(analysis: Analysis) -> list[tuple[str, str, int, int]]:
    table = analysis.steps
    return list(
        zip(
            table["source"].astype(str),
            table["phase"].astype(str),
            table["batch"].tolist(),
            table["tokens"].tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", EngineStep("prefill", 1, 888)),
        ("execute_context_0(0)_generation_4(4)", EngineStep("decode", 4, 4)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq1sqsk2)_generation_37(sq37sk5sqsq1sqsk2)",
            EngineStep("mixed", 46, 8192),
        ),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk5)", EngineStep("decode", 32, 32)),
        ("execute_new_3_cached_5", EngineStep("", -1, -1)),
        ("step[DECODE bs=32]", EngineStep("decode", 32, 32)),
        ("step[EXTEND bs=15 toks=15360]", EngineStep("prefill", 15, 15360)),
        ("step[MIXED bs=4 toks=70]", EngineStep("mixed", 4, 70)),
        ("step", None),
        ("execute_query", None),
    ],
)
def test_engine_ranges(name: str, expected: EngineStep | None) -> None:
    assert parse_engine_range(name) == expected


@pytest.mark.parametrize(
    ("recording", "expected"),
    [
        ("vllm-gptoss-fullgraph-decode-mi300x", [("engine", "decode", 32, 32)]),
        ("sglang-qwen3-8b-prefill-mi300x", [("engine", "prefill", 15, 15360)]),
        ("vllm-gptoss-piecewise-graph-mi300x", [("engine", "mixed", 46, 8192)]),
    ],
)
def test_steps_of_serving_engines(
    shared: Path, recording: str, expected: list[tuple[str, str, int, int]]
) -> None:
    """Case 30: nested ranges of one step count once."""
    assert steps(analysis_of(shared / "traces" / f"{recording}.json.gz")) == expected


def test_repeated_user_ranges_are_steps_and_others_are_not() -> None:
    maker = TraceMaker()
    maker.annotation("whole run", 0, 1000)
    maker.annotation("load", 1, 5)
    for row in range(3):
        maker.annotation(f"iteration {row}", 10 + 100 * row, 80)
        maker.annotation("nccl:all_reduce", 20 + 100 * row, 10)
        maker.launch("k", start=15 + 100 * row, run=(16 + 100 * row, 18 + 100 * row))
    assert steps(analyze(maker.build())) == [("annotation", "", -1, -1)] * 3


def test_ranges_that_take_turns_make_one_step() -> None:
    maker = TraceMaker()
    for row in range(4):
        for place, name in enumerate(("load", "forward", "apply")):
            maker.annotation(name, 100 * row + 20 * place, 15)
            at = 100 * row + 20 * place + 2
            maker.launch("k", start=at, run=(at + 1, at + 3))
    analysis = analyze(maker.build())
    assert analysis.steps["announced_ns"].tolist() == [0, 100_000, 200_000, 300_000]
    assert analysis.steps["host_end_ns"].tolist() == [55_000, 155_000, 255_000, 355_000]


def test_calls_of_the_root_module_are_steps_except_under_capture() -> None:
    maker = TraceMaker()
    for row in range(3):
        at = 100 * row
        if row == 0:
            maker.host("runtime", "cudaStreamBeginCapture", at + 1, 1)
            maker.host("runtime", "cudaStreamEndCapture", at + 60, 1)
        maker.module("", "Net", at + 5, 50)
        maker.module("layers.0", "Layer", at + 10, 20)
        maker.launch("k", start=at + 12, run=(at + 14, at + 20), operator="aten::mm")
        maker.operator("aten::argmax", at + 70, 10)
    analysis = analyze(maker.build())
    assert [source for source, *_ in steps(analysis)] == ["root_call", "root_call"]
    assert analysis.steps["announced_ns"].tolist() == [105_000, 205_000]
    assert analysis.steps["host_end_ns"].tolist() == [155_000, 255_000]


@pytest.mark.parametrize("device", [True, False])
def test_what_runs_between_calls_is_in_no_step(device: bool) -> None:
    """A prefill is not as long as the sampling after it, with and without a device."""
    maker = TraceMaker()
    for row in range(3):
        at = 100 * row
        maker.module("", "Net", at, 50)
        if device:
            maker.launch("gemm", start=at + 10, run=(at + 20, at + 60), operator="aten::mm")
            maker.launch("argmax", start=at + 70, run=(at + 72, at + 90), operator="aten::argmax")
        else:
            maker.operator("aten::mm", at + 10, 30)
            maker.operator("aten::argmax", at + 70, 20)
    analysis = analyze(maker.build())
    check_sums(analysis)
    wall = 60_000 if device else 50_000
    assert analysis.steps["wall_ns"].tolist() == [wall] * 3
    assert analysis.window.between_steps_ns == 2 * (100_000 - wall)
    sampled = analysis.work["step"].to_numpy()[1::2].tolist()
    assert sampled == [-1] * 3
    assert "what runs between the calls" in period_text(analysis)


def test_a_call_that_learns_lasts_until_the_next_and_no_other_does() -> None:
    """Without an optimizer's range: the backward pass and a hand-written update belong to it."""
    maker = TraceMaker()
    for row in range(4):
        at = 100 * row
        maker.module("", "Net", at, 30)
        maker.operator("aten::mm", at + 10, 10)
        if row < 3:
            maker.operator("autograd::engine::evaluate_function: MmBackward0", at + 35, 20)
            maker.operator("aten::sub_", at + 60, 10)
        else:
            maker.operator("aten::argmax", at + 60, 10)
    analysis = analyze(maker.build())
    check_sums(analysis)
    assert analysis.steps["wall_ns"].tolist() == [70_000] * 3 + [30_000]
    assert [str(phase) for phase in analysis.steps["phase"]] == ["training"] * 3 + [""]
    assert "with the backward pass and optimizer after it" in period_text(analysis)


def test_a_call_that_captures_a_graph_on_its_way_is_a_step() -> None:
    """Compiled code does so at its second call, and then runs what it captured."""
    maker = TraceMaker()
    for row in range(3):
        at = 100 * row
        maker.module("", "Net", at + 5, 80)
        if row == 1:
            maker.host("runtime", "cudaStreamBeginCapture", at + 10, 1)
            maker.host("runtime", "cudaStreamEndCapture", at + 40, 1)
        maker.launch("k", start=at + 62, run=(at + 64, at + 70), operator="aten::mm")
    assert steps(analyze(maker.build())) == [("root_call", "", -1, -1)] * 3


def test_one_prefill_and_decodes_from_shapes() -> None:
    maker = TraceMaker()
    for row, (queries, keys) in enumerate(((8, 8), (1, 9), (1, 10))):
        at = 100 * row
        maker.annotation(f"ProfilerStep#{row}", at, 90)
        embed = maker.operator("aten::embedding", at + 1, 5)
        maker.side("shapes", embed, input_shapes=f"[[100, 16], [2, {queries}]]")
        core = maker.operator("aten::scaled_dot_product_attention", at + 10, 20)
        maker.side(
            "shapes",
            core,
            input_shapes=f"[[2, 4, {queries}, 16], [2, 4, {keys}, 16], [2, 4, {keys}, 16]]",
            concrete_inputs=f'["", "", "", "", "0.", "{queries > 1}"]',
        )
    phases = [("profiler_step", "prefill", 2, 16)] + [("profiler_step", "decode", 2, 2)] * 2
    assert steps(analyze(maker.build())) == phases


def written_out(*sizes: tuple[int, int]) -> Analysis:
    """Steps whose attention is written out: queries and keys of each; a softmax of experts before,
    one of the vocabulary behind it."""
    maker = TraceMaker()
    for row, (queries, keys) in enumerate(sizes):
        at = 100 * row
        maker.annotation(f"ProfilerStep#{row}", at, 90)
        embed = maker.operator("aten::embedding", at + 1, 5)
        maker.side("shapes", embed, input_shapes=f"[[100, 16], [2, {queries}]]")
        shapes = (f"[2, {8 * queries}]", f"[2, 4, {queries}, {keys}]", "[2, 100]")
        for place, shape in enumerate(shapes):
            softmax = maker.operator("aten::_softmax", at + 10 + 20 * place, 10)
            maker.side("shapes", softmax, input_shapes=f"[{shape}, [], []]")
    return analyze(maker.build())


def test_attention_that_is_written_out_tells_phases_too() -> None:
    phases = [("profiler_step", "prefill", 2, 16)] + [("profiler_step", "decode", 2, 2)] * 2
    assert steps(written_out((8, 8), (1, 9), (1, 10))) == phases
    assert steps(written_out((4, 12))) == [("profiler_step", "prefill", 2, 8)]


def test_as_many_keys_as_queries_tell_no_phase_where_nothing_decodes() -> None:
    """An encoder's attention looks like that as well."""
    assert steps(written_out((8, 8), (8, 8))) == [("profiler_step", "", 2, 16)] * 2


def test_no_steps_is_one_window_and_said() -> None:
    maker = TraceMaker()
    maker.launch("k", start=0, run=(5, 9))
    analysis = analyze(maker.build())
    assert steps(analysis) == [("window", "", -1, -1)]
    assert any(note.rule == "trace.no_steps" for note in analysis.notes)


def test_a_range_that_trains_has_the_tokens_of_the_calls_in_it_that_learn() -> None:
    """Two that accumulate gradients, and a reference that is asked."""
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation("train_step", at, 900)
        maker.operator("aten::mm", at + 10, 800)
        for begins, graded in ((10, 1), (300, 1), (600, 0), (950, 1)):
            times = {"start_ns": 1000 * (at + begins), "end_ns": 1000 * (at + begins + 40)}
            facts = {"batch": 4, "tokens": 8, "graded": graded, "thread": MAIN_THREAD}
            maker.side("root_calls", root="", type="Model", **times, **facts)
    steps = analyze(maker.build(detail="modules", source_kind="live")).steps
    assert steps["phase"].tolist() == ["training"] * 3
    assert steps[["batch", "tokens"]].to_numpy().tolist() == [[8, 64]] * 3


def loop_of_ranges(steps: int, launches: int, with_rows: int) -> TraceMaker:
    """Engine steps of four sequences, a launch every 10 us. with_rows: launches of the last step
    whose work was recorded."""
    maker = TraceMaker()
    for step in range(steps):
        at = 1000 * step
        maker.annotation("execute_context_0(0)_generation_4(4)", at, 900)
        for i in range(launches if step + 1 < steps else with_rows):
            maker.launch("k", start=at + 10 * i, run=(at + 10 * i + 5, at + 10 * i + 9))
        for i in range(with_rows, launches if step + 1 == steps else 0):
            maker.host("runtime", "cudaLaunchKernel", at + 10 * i, 2, correlation=90_000 + i)
    return maker


def cut_off(analysis: Analysis) -> int:
    return sum(note.count or 0 for note in analysis.notes if note.rule == "trace.step_cut_off")


@pytest.mark.parametrize(("with_rows", "whole"), [(40, 4), (37, 4), (20, 3), (1, 3)])
def test_a_step_whose_work_had_not_run_when_the_recording_ended(with_rows: int, whole: int) -> None:
    analysis = analyze(loop_of_ranges(4, 40, with_rows).build())
    assert (len(analysis.steps), cut_off(analysis)) == (whole, 4 - whole)
    assert analysis.phases[0].tokens_per_second == pytest.approx(4 / 900e-6, rel=0.01)
    check_sums(analysis)


def test_a_range_that_the_recording_ended_in_is_no_step() -> None:
    maker = loop_of_ranges(3, 40, 40)
    last = maker.annotation("execute_context_0(0)_generation_4(4)", 3000, 200)
    maker.side("unfinished", last, finished="false")
    analysis = analyze(maker.build())
    assert (len(analysis.steps), cut_off(analysis)) == (3, 1)
    # What was left open long before says nothing of the steps that others follow.
    maker = loop_of_ranges(3, 40, 40)
    maker.side("unfinished", maker.annotation("epoch", 100, 3000), finished="false")
    assert len(analyze(maker.build()).steps) == 3


def test_of_one_step_that_was_cut_off_no_tokens_a_second_are_told() -> None:
    maker = TraceMaker()
    step = maker.annotation("execute_context_0(0)_generation_4(4)", 0, 200)
    maker.side("unfinished", step, finished="false")
    maker.launch("k", start=10, run=(15, 20))
    analysis = analyze(maker.build())
    assert steps(analysis) == [("engine", "decode", 4, -1)] and cut_off(analysis) == 1
    assert analysis.phases[0].tokens_per_second is None


def test_tokens_of_a_step_that_learns_from_several_passes() -> None:
    """Of the embedding that each pass begins with; not of another table, nor of one looked up
    again in the same pass."""
    maker = TraceMaker()
    for step in range(2):
        maker.annotation(f"ProfilerStep#{step}", 10_000 * step, 9_000)
        for start, name, table in (
            (0, "aten::embedding", [100, 8]),
            (100, "aten::embedding", [64, 8]),
            (200, "aten::embedding", [100, 8]),
            (300, "autograd::engine::evaluate_function: MmBackward0", None),
            (400, "aten::embedding", [64, 8]),
            (1000, "aten::embedding", [100, 8]),
            (1300, "autograd::engine::evaluate_function: MmBackward0", None),
        ):
            row = maker.operator(name, 10_000 * step + 10 + start, 50)
            if table is not None:
                shapes = str([table, [2, 16]])
                maker.side("shapes", row, input_shapes=shapes)
    assert steps(analyze(maker.build())) == [("profiler_step", "training", 4, 64)] * 2
