"""What changed between two analyses: sums, scatter, what is not like with like, findings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.make_analysis import Step, make_analysis
from tests.make_traces import TraceMaker
from tests.sample_analyses import (
    HOSTILE_NAMES,
    decode_analysis,
    decode_step,
    hostile_analysis,
    module_rows,
    plan_finding,
    unusable_analysis,
)
from tracer.analysis import Analysis, Observer
from tracer.analyzers import analyze
from tracer.analyzers.diff.compare import compare
from tracer.analyzers.diff.scatter import measure
from tracer.diff_analysis import DiffAnalysis
from tracer.exporters import diff_json
from tracer.exporters.costs import cost_of
from tracer.exporters.diff_findings import cost_changes
from tracer.exporters.diff_json import to_diff
from tracer.exporters.diff_promises import Prediction
from tracer.exporters.diff_text import render_diff
from tracer.exporters.diff_verdict import diff_verdict
from tracer.exporters.format import change_percent_text
from tracer.exporters.json_report import report_text
from tracer.findings import Check, Finding, Where

SCHEMA_FILE = Path(diff_json.__file__).with_name("diff.schema.json")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u202a-\u202e\u2066-\u2069\ufeff]")


def said(diff: DiffAnalysis) -> str:
    return diff_verdict(diff, cost_changes(diff))


def steps(*walls_us: float, phase: str = "decode", part: str = "ffn.projection") -> Analysis:
    """Steps that take so long, all of it one part."""
    return make_analysis([Step(phase, {part: us}) for us in walls_us])


def documents(*analyses: Analysis) -> Iterator[dict[str, Any]]:
    for before in analyses:
        for after in analyses:
            yield to_diff(compare(before, after))


def two_devices(odd_us: float = 0.0) -> Analysis:
    parts = {"attention.core": 10.001, "ffn.projection": 7.003 + odd_us, "overhead.sync": 3.002}
    return make_analysis([Step("decode", parts), Step("decode", parts)] * 3, devices=2)


def thirds() -> Analysis:
    """Three steps whose mean has no whole nanoseconds in any group."""
    groups = ("attention.core", "ffn.projection", "other.norm")
    sizes = ((1.001, 1.002, 1.002), (1.002, 1.002, 1.001), (1.002, 1.001, 1.002))
    return make_analysis([Step("decode", dict(zip(groups, us, strict=True))) for us in sizes])


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


# --- scatter -------------------------------------------------------------------------------------


def test_the_scatter_of_times_by_hand() -> None:
    # Four times: the median lies between the first and the last with probability 7 of 8, which are
    # 2 * 1.534 standard errors. Both sides scatter alike: e**0.1 from end to end.
    before = np.array([1_000_000, 1_030_000, 1_060_000, 1_105_171])
    found = measure(before, 2 * before)
    error = 0.1 / (2 * 1.5341) * 2**0.5
    assert found.scatter_ns == pytest.approx(1_045_000 * (np.exp(1.95996 * error) - 1), rel=1e-3)
    assert found.within_scatter is False
    assert measure(2 * before, before).scatter_ns == pytest.approx(
        2_090_000 * (1 - np.exp(-1.95996 * error)), rel=1e-3
    )


def test_alike_programs_rarely_differ_and_other_ones_do() -> None:
    draw = np.random.default_rng(7)
    alike = other = 0
    for _ in range(600):
        before, after = (draw.lognormal(14, 0.2, 12).astype(np.int64) for _ in range(2))
        alike += measure(before, after).within_scatter is True
        other += measure(before, (1.6 * after).astype(np.int64)).within_scatter is False
    assert 0.92 <= alike / 600 <= 0.995
    assert other / 600 >= 0.9


def test_many_steps_are_judged_as_few_are() -> None:
    draw = np.random.default_rng(3)
    errors = []
    for size in (999, 1001):
        times = draw.normal(1e6, 1e4, size).astype(np.int64)
        errors.append(measure(times, times).scatter_ns or 0)
    # The standard error of the median of normal times is 1.2533 sigma / sqrt(n).
    for error in errors:
        assert error == pytest.approx(1.96 * 1.2533 * 1e4 * (2 / 1000) ** 0.5, rel=0.25)


def test_one_step_shows_no_scatter_and_zeros_are_times() -> None:
    one, four = np.array([5]), np.array([5, 6, 7, 8])
    assert measure(one, four).reason == "one step in A shows no scatter"
    assert measure(four, one).reason == "one step in B shows no scatter"
    assert measure(one, one).reason == "one step in each of them shows no scatter"
    assert measure(one, one).within_scatter is True  # no change at all
    assert measure(one, four).within_scatter is None
    zeros = measure(np.array([0, 0, 0, 0]), np.array([9, 10, 10, 11]))
    assert (zeros.before_ns, zeros.change_ratio, zeros.within_scatter) == (0, None, False)


def test_one_slow_step_of_four_does_not_hide_a_change() -> None:
    diff = compare(steps(1_400, 1_600, 1_700, 5_000), steps(140, 141, 142, 150))
    assert diff.phases[0].step.within_scatter is False
    assert said(diff).startswith("B is 91 % faster a decode step: 1.65 ms -> 142 us")


# --- sums ----------------------------------------------------------------------------------------

SAMPLES: tuple[Callable[[], Analysis], ...] = (
    decode_analysis,
    hostile_analysis,
    two_devices,
    lambda: two_devices(0.333),
    unusable_analysis,
    lambda: steps(10, 20, 500, 30, 40),
    lambda: thirds(),
)


def test_parts_add_up_to_groups_and_groups_to_the_step(validator: Any) -> None:
    compared = 0
    for document in documents(*(make() for make in SAMPLES)):
        validator.validate(json.loads(report_text(document)))
        for phase in document["phases"]:
            if phase["breakdown"] is None:
                assert phase["breakdown_reason"]
                continue
            compared += 1
            groups = phase["breakdown"]["groups"].values()
            for key in ("before_ns", "after_ns", "change_ns"):
                assert phase["breakdown"]["sum"][key] == sum(group[key] for group in groups)
                for group in groups:
                    assert group[key] == sum(part[key] for part in group["parts"].values())
    assert compared >= 10


def test_the_sum_is_the_step_of_all_devices() -> None:
    (phase,) = to_diff(compare(two_devices(), two_devices(0.5)))["phases"]
    assert phase["breakdown"]["sum"] == {
        "before_ns": 2 * phase["step"]["before_ns"],
        "after_ns": 2 * phase["step"]["after_ns"],
        "change_ns": 2 * phase["step"]["change_ns"],
    }


@pytest.mark.parametrize("make", SAMPLES)
def test_nothing_changes_from_a_recording_to_itself(make: Callable[[], Analysis]) -> None:
    diff = compare(make(), make())
    assert said(diff).startswith("Nothing changed: ")
    assert diff.comparable
    document = to_diff(diff)
    assert " ".join(said(diff).split()).startswith(document["answer"])
    assert _changes(document) <= {0, None}
    assert {finding["status"] for finding in document["findings"]} <= {"still"}


def _changes(value: Any) -> set[int | None]:
    """Every `change_ns` of a document."""
    if isinstance(value, list):
        return set().union(*map(_changes, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    own = {value["change_ns"]} if "change_ns" in value else set()
    return own.union(*map(_changes, value.values()))


# --- the answer ----------------------------------------------------------------------------------


def test_the_answer_names_the_time_the_part_and_the_cause() -> None:
    finding = plan_finding(range(6))
    before = make_analysis([decode_step(18_000 + i) for i in range(6)], findings=(finding,))
    fast = [replace(s, parts={**s.parts, "overhead.compile": 100.0}) for s in _decode_steps(6)]
    diff = compare(before, make_analysis(fast))
    assert said(diff) == (
        "B is 59 % faster a decode step: 59.5 -> 24.6 ms; compiling and planning -34.9 ms (gone: "
        "cuDNN plan built for each new KV length, at llama.py:241 forward). A's report predicted "
        "24.5 ms a step (-35.0 ms), B measures 24.6 ms (-34.9 ms)."
    )


def _decode_steps(count: int) -> list[Step]:
    return [decode_step(18_000 + i) for i in range(count)]


@pytest.mark.parametrize(
    ("title", "told"),
    [
        ("decode: the host issues 9 kernels", "gone: the host issues 9 kernels)"),
        ("all_reduce of group 0: shares stream 7", "gone: all_reduce of group 0: shares stream 7)"),
        ("the host reads a value from it: aten::item", "gone: the host reads a value from it)"),
    ],
)
def test_a_cause_is_told_without_its_reasons(title: str, told: str) -> None:
    finding = Finding(
        "gap.launch_bound", "warning", title, 1, 9_000_000, detail={"phase": "decode"}
    )
    before = make_analysis([Step("decode", {"overhead.launch": 900.0})] * 3, findings=(finding,))
    assert told in said(compare(before, steps(10, 10, 10)))


def test_percentages_of_changes() -> None:
    ratios = (None, 0.0, 0.0004, -0.0004, 0.042, -0.5, 1.5)
    assert [change_percent_text(ratio) for ratio in ratios] == [
        "-", "0.0 %", "<0.1 %", "<0.1 %", "+4.2 %", "-50 %", "+150 %"
    ]  # fmt: skip


def test_slower_is_said_as_well_and_how_many_times() -> None:
    assert said(compare(steps(100, 101, 102), steps(120, 121, 122))).startswith(
        "B is 20 % slower a decode step: 101 -> 121 us; FFN +20.0 us."
    )
    assert "B is 3.0 times as slow a decode step: 100 -> 300 us" in said(
        compare(steps(100, 100), steps(300, 300))
    )


def test_a_change_within_the_scatter_is_called_that() -> None:
    diff = compare(steps(90, 100, 110, 120), steps(94, 104, 114, 124))
    assert said(diff).startswith(
        "No change beyond the scatter of the steps: a decode step 105 -> 109 us (+3.8 %), where up"
    )
    assert diff.phases[0].step.within_scatter is True


def test_warm_up_and_one_hiccup_move_nothing() -> None:
    calm = [Step("decode", {"ffn.projection": us}) for us in (100.0, 101, 99, 100, 102, 98, 100)]
    warm = Step("decode", {"ffn.projection": 90_000.0}, warmup=True)
    hiccup = Step("decode", {"ffn.projection": 100.0, "overhead.host": 4_000.0})
    diff = compare(make_analysis(calm), make_analysis([warm, *calm, hiccup]))
    (phase,) = diff.phases
    assert (phase.after.steps, phase.after.warmup_steps, phase.middle) == (8, 1, True)
    assert phase.step.within_scatter is True
    groups = to_diff(diff)["phases"][0]["breakdown"]["groups"]
    assert groups["overhead"]["after_ns"] == 0  # the hiccup is not in the middle half
    assert "overhead" not in said(diff)


def test_what_few_steps_alone_make_is_no_change_of_the_step() -> None:
    def loop(usual_us: float, few_us: float) -> Analysis:
        """Of 32 steps that take as long, eight with another share of attention."""
        rows = [usual_us + 0.1 * (i % 5) for i in range(24)] + [few_us] * 8
        return make_analysis(
            [Step("decode", {"attention.core": us, "ffn.projection": 110 - us}) for us in rows]
        )

    diff = compare(loop(10, 11), loop(11, 49))
    groups = to_diff(diff)["phases"][0]["breakdown"]["groups"]
    assert groups["attention"]["change_ns"] == 10_250
    assert groups["attention"]["median"]["within_scatter"] is False
    assert "attention" not in said(diff)
    assert re.search(r"attention .*0\.\d+, few steps\n", render_diff(diff, width=100))


def test_a_part_is_told_after_all_that_changed_beyond_the_scatter_of_their_groups() -> None:
    def loop(host_us: float, ffn_us: float) -> Analysis:
        """The time of launches scatters from step to step, that of the host does not."""
        launches = [40.0 + 20 * (7 * i % 11) for i in range(22)]
        times = [{"overhead.launch": us, "overhead.host": host_us} for us in launches]
        return make_analysis([Step("decode", {"ffn.projection": ffn_us, **t}) for t in times])

    assert said(compare(loop(10, 300), loop(50, 400))).endswith("; FFN +100 us.")
    alone = said(compare(loop(10, 300), loop(290, 300)))
    assert alone.endswith("host work outside operators +280 us.")


def test_each_common_phase_is_told_the_longest_first() -> None:
    both = [Step("prefill", {"ffn.projection": 900.0})] * 3
    before = make_analysis([*both, *[Step("decode", {"ffn.projection": 100.0})] * 40])
    after = make_analysis([*both, *[Step("decode", {"ffn.projection": 90.0})] * 40])
    diff = compare(before, after)
    assert [phase.phase for phase in diff.phases] == ["decode", "prefill"]
    assert said(diff) == (
        "B is 10 % faster a decode step: 100.0 -> 90.0 us; FFN -10.0 us. A prefill step takes 900 "
        "us in both."
    )


def test_one_step_against_another_leads_over_no_change_beyond_its_scatter() -> None:
    def chat(prefill_us: float, decode_us: float, prefills: int = 1) -> Analysis:
        decodes = [Step("decode", {"ffn.projection": decode_us + i % 3}) for i in range(8)]
        return make_analysis([Step("prefill", {"ffn.projection": prefill_us})] * prefills + decodes)

    diff = compare(chat(9_000, 300), chat(7_000, 100))
    assert [phase.phase for phase in diff.phases] == ["decode", "prefill"]
    assert said(diff).startswith("B is 66 % faster a decode step: 301 -> 101 us;")
    # Where the decode steps did not change, or the prefills scatter, the longest leads.
    for pair in ((chat(9_000, 300), chat(7_000, 300)), (chat(9_000, 300, 3), chat(7_000, 100, 3))):
        assert compare(*pair).phases[0].phase == "prefill"


OPERATORS = {"mm": 400.0, "addmm": 300.0, "gelu": 200.0, "softmax": 90.0, "add": 60.0}


def on_cpu(factor: float = 1.0, calls: int = 8, **changed: float) -> Analysis:
    """Calls of a model on a CPU, each operator of which takes so many times as long."""
    maker, at = TraceMaker(), 0.0
    times = {name: us * changed.get(name, factor) for name, us in OPERATORS.items()}
    for _ in range(calls):
        began = at
        for name, us in times.items():
            maker.operator(f"aten::{name}", at, us - 1)
            at += us
        maker.module("", "Model", began, at - began)
        maker.side("root_calls", None, root="", type="Model", start_ns=round(began * 1000),
                   end_ns=round(at * 1000), thread=1, batch=1, tokens=1, cached=1,
                   graded=0, call="forward", generation=-1, part="")  # fmt: skip
        at += 5
    return analyze(maker.build(detail="modules", source_kind="live"))


def test_all_operators_slower_by_one_factor_is_the_machines_doing(validator: Any) -> None:
    text, document = said(compare(on_cpu(), on_cpu(1.7))), to_diff(compare(on_cpu(), on_cpu(1.7)))
    assert list(validator.iter_errors(document)) == []
    assert document["phases"][0]["all_operators_ratio"] == pytest.approx(1.7, rel=0.02)
    assert "but all operators x1.7: the machine was slower or busier in B." in text
    assert "B is" not in text
    assert "x0.59: the machine was slower or busier in A." in said(compare(on_cpu(1.7), on_cpu()))
    # One operator that changed by itself is the answer, and so is a setting.
    for other in (on_cpu(mm=1.7), on_cpu(1.7, mm=1.0)):
        assert "B is" in said(compare(on_cpu(), other))
        assert "all operators" not in said(compare(on_cpu(), other))
    ours, theirs = (
        replace(a, facts={**a.facts, "engine": engine})
        for a, engine in ((on_cpu(), "x"), (on_cpu(1.7), "y"))
    )
    assert "all operators" not in said(compare(ours, theirs))


def test_what_has_no_phase_in_common_is_not_compared() -> None:
    diff = compare(steps(10, 11), steps(20, 21, phase="prefill"))
    assert (diff.phases, diff.only_before, diff.only_after) == ((), ("decode",), ("prefill",))
    assert said(diff) == (
        "A and B cannot be compared: no phase of steps is common to both; phases of steps: only A "
        "has decode, only B has prefill."
    )
    assert to_diff(diff)["comparable"] is False
    text = render_diff(diff, width=80)
    assert "FINDINGS  not compared, as no steps are; `tracer report A`" in text
    assert " gone" not in text
    more = compare(steps(10, 11), make_analysis([Step(p, {"ffn.projection": 10.0})
                   for p in ("decode", "decode", "prefill")]))  # fmt: skip
    assert more.only_after == ("prefill",)
    assert more.comparable  # decode is, like with like


def test_steps_of_a_phase_that_was_not_seen_are_taken_for_those_of_the_other() -> None:
    for open_phase, phase in (("", "decode"), ("", "training"), ("forward", "decode")):
        diff = compare(steps(10, 11, phase=open_phase), steps(20, 21, phase=phase))
        assert [change.phase for change in diff.phases] == [phase]
        assert any("was not recorded: they are taken for it" in d.message for d in diff.differences)
        assert diff.comparable
    assert compare(steps(10, phase="forward"), steps(20, phase="training")).phases == ()


# --- between calls -------------------------------------------------------------------------------


def loop(between_us: float, call_us: float = 500, calls: int = 8, paused_us: float = 0) -> Analysis:
    """Calls of a model on a CPU with something between them, and once a pause."""
    maker = TraceMaker()
    for call in range(calls):
        at = call * (call_us + between_us) + (paused_us if call > calls - 3 else 0)
        maker.module("", "Model", at, call_us)
        maker.operator("aten::mm", at + 1, call_us - 2)
        maker.side("root_calls", None, root="", type="Model", start_ns=round(at * 1000),
                   end_ns=round((at + call_us) * 1000), thread=1, batch=1, tokens=1, cached=1,
                   graded=0, call="forward", generation=-1, part="")  # fmt: skip
    return analyze(maker.build(detail="modules", source_kind="live"))


def test_what_runs_between_calls_is_in_the_answer() -> None:
    before, after = loop(2_000), loop(100)
    assert str(before.steps["source"].iloc[0]) == "root_call"
    text = said(compare(before, after))
    assert "from start to start: 2.50 ms -> 600 us (the step itself 500 -> 500 us)" in text
    assert "between the steps -1.90 ms" in text
    # Where the call itself changes, it is the answer.
    assert "from start to start" not in said(compare(loop(100, 500), loop(100, 700)))


def test_what_lies_between_steps_is_a_mean_of_those_that_are_followed() -> None:
    """A report and the comparison say the same of what runs between the steps."""
    before = loop(20_000)
    (pause,) = (f for f in before.findings if f.rule == "gap.host")
    cost = cost_of(before, pause)
    assert (len(before.steps), cost.of_steps) == (8, 7)
    assert cost.cost_ns == pytest.approx(20_000_000, rel=0.001)
    (promise,) = _promises(compare(before, loop(100)))
    assert promise.predicted_gain_ns == pytest.approx(promise.measured_gain_ns, rel=0.01)


def test_between_the_steps_is_a_median_beside_medians() -> None:
    """One pause is more of a mean step than all that the median one changed by."""
    before, after = loop(2_000, calls=24, paused_us=90_000), loop(1_000, 400, calls=24)
    (change,) = compare(before, after).phases
    text = said(compare(before, after))
    assert "from start to start: 2.50 -> 1.40 ms (the step itself 500 -> 400 us)" in text
    assert "between the steps -1.00 ms" in text
    promises = [p for p in _promises(compare(before, after)) if p.turn]
    assert promises
    assert [p.all_else_ns for p in promises] == [change.step.change_ns] * len(promises)


def _promises(diff: DiffAnalysis) -> list[Prediction]:
    return [row.prediction for row in cost_changes(diff) if row.prediction is not None]


# --- not like with like --------------------------------------------------------------------------


def _with_meta(analysis: Analysis, **meta: Any) -> Analysis:
    trace = replace(analysis.trace, meta=replace(analysis.trace.meta, **meta))
    return replace(analysis, trace=trace)


def _sized(batch: int, tokens: int) -> Analysis:
    return make_analysis([Step("decode", {"ffn.projection": 10.0}, batch=batch, tokens=tokens)] * 3)


def _layers(count: int) -> Analysis:
    return make_analysis([Step("decode", {"ffn.projection": 10.0})], modules=module_rows(count))


def _model(**config: Any) -> Analysis:
    return replace(steps(10, 11), facts={"models": [{"type": "X", "parameters": 8, **config}]})


def _of_kind(source: str) -> Analysis:
    analysis = steps(10, 11)
    return replace(analysis, steps=analysis.steps.assign(source=source))


def _observed(ratio: float) -> Analysis:
    observer = Observer(round(100 * ratio), 100, ratio, "6 steps", "decode")
    return replace(steps(10, 11), observer=observer)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (_sized(1, 1), _sized(8, 8), "decode: 1 sequence a step in A, 8 in B"),
        (_sized(1, 1), _sized(1, 4), "decode: 1 token a step in A, 4 in B"),
        (steps(10), replace(steps(10), cpu_only=True), "A ran on a GPU, B without a GPU"),
        (two_devices(), steps(10, 11), "A ran on 2 devices, B on 1"),
        (
            _with_meta(steps(10), detail="full"),
            _with_meta(steps(10), detail="modules"),
            "A was recorded at detail full, B at modules",
        ),
        (
            _with_meta(steps(10), recorded={"stacks": True}),
            _with_meta(steps(10), recorded={"stacks": False}),
            "only A was recorded with Python frames: that makes its host slower",
        ),
        (
            _observed(1.3),
            _observed(1.05),
            "the profiler made the steps of A 1.30 times as long, those of B 1.05 times",
        ),
        (
            _with_meta(steps(10), rank=0, world_size=2),
            _with_meta(steps(10), rank=1, world_size=2),
            "A is rank 0, B rank 1",
        ),
    ],
)
def test_what_makes_the_comparison_unfair_is_said_first(
    before: Analysis, after: Analysis, message: str
) -> None:
    diff = compare(before, after)
    assert message in " ".join(d.message for d in diff.differences if d.breaks)
    assert not diff.comparable
    assert said(diff).startswith("Not like with like (")
    assert "NOT LIKE WITH LIKE" in render_diff(diff, width=100)
    assert compare(before, before).comparable
    assert compare(after, after).comparable


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (_layers(4), _layers(8), "different models: layers 4 in A, 8 in B"),
        (_model(hidden_size=64), _model(hidden_size=128), "hidden size 64 in A, 128 in B"),
        (_model(), _model(parameters=16), "parameters 8 in A, 16 in B"),
        (_of_kind("profiler_step"), _of_kind("graph"), "the steps of A are ProfilerStep ranges"),
    ],
)
def test_what_cannot_be_compared_is_told_first_and_side_by_side(
    before: Analysis, after: Analysis, message: str
) -> None:
    diff = compare(before, after)
    assert not diff.comparable
    answer = said(diff)
    assert answer.startswith("A and B cannot be compared (")
    assert message in answer.partition(")")[0]
    assert "faster" not in answer
    assert re.search(r"\)\. A decode step takes 10.\d us in A, 10.\d us in B\.$", answer)
    assert compare(before, before).comparable


def test_settings_that_were_changed_are_told_and_stand_not_against_it() -> None:
    before = replace(steps(10, 11), facts={"attention_implementation": "eager"})
    after = replace(steps(8, 9), facts={"attention_implementation": "sdpa"})
    diff = compare(before, after)
    (setting,) = [d for d in diff.differences if d.rule != "diff.sizes"]
    assert setting.message == "attention implementation: eager in A, sdpa in B"
    assert diff.comparable
    assert "ALSO TO KNOW  attention implementation: eager in A, sdpa in B; " in render_diff(diff)


def test_sizes_that_are_alike_or_not_known() -> None:
    assert compare(_sized(8, 1000), _sized(8, 1020)).comparable
    (told,) = compare(_sized(1, 1), steps(10, 11)).differences
    assert (told.rule, told.breaks, told.before, told.after) == ("diff.sizes", False, [1, 1], None)
    assert "not recorded in B, so that they are taken to be as many" in told.message
    assert compare(_sized(1, 1), _sized(1, 1)).differences == ()


def test_layers_of_another_class_may_be_the_change() -> None:
    fused = [{**row, "type": f"Fused{row['type']}"} for row in module_rows(4)]
    other = make_analysis([Step("decode", {"ffn.projection": 10.0})], modules=fused)
    assert not compare(_layers(4), other).comparable
    facts = {"models": [{"parameters": 8}]}
    assert compare(replace(_layers(4), facts=facts), replace(other, facts=facts)).comparable


def test_layers_whose_class_is_not_recorded_are_of_no_other_one() -> None:
    nameless = [{**row, "type": ""} for row in module_rows(4)]
    other = make_analysis([Step("decode", {"ffn.projection": 10.0})], modules=nameless)
    assert compare(_layers(4), other).comparable
    assert compare(other, _layers(4)).comparable


def test_inflation_that_is_known_of_one_side_alone_is_a_note() -> None:
    diff = compare(_observed(1.3), steps(10, 11))
    assert diff.comparable
    (told,) = [d.message for d in diff.differences if d.rule == "diff.inflation"]
    assert told.endswith("1.30 times as long; of B that was not measured")


def test_a_side_without_a_breakdown_is_compared_by_its_steps() -> None:
    unusable = unusable_analysis()
    diff = compare(unusable, decode_analysis())
    (phase,) = to_diff(diff)["phases"]
    assert phase["breakdown"] is None
    assert phase["breakdown_reason"] == unusable.breakdown_reason
    assert phase["step"]["before_ns"] == 2_000_000
    assert "WHERE THE TIME GOES" not in render_diff(diff)


def test_what_one_side_did_not_record_is_neither_gone_nor_new() -> None:
    blind = replace(unusable_analysis(), checks=(Check("sync.hidden", "clear"),))
    seen = replace(traced(BASE), findings=(wait(),))
    diff = compare(seen, blind)
    assert diff.phases[0].kernels == diff.phases[0].modules == ()
    assert [change.status for change in diff.findings] == ["not_checked"]
    assert blind.breakdown_reason in render_diff(diff, width=160)


# --- findings ------------------------------------------------------------------------------------


def wait(line: int | None = 10, cost_us: float = 4.0, **where: Any) -> Finding:
    place = Where("loop.py", line, "step", None, "aten::item")
    return Finding("sync.hidden", "warning", "the host reads a value", 2, round(cost_us * 1000),
                   0.1, (0, 1), replace(place, **where), {"cause": "scalar-read"}, "Keep it.",
                   round(cost_us * 1000))  # fmt: skip


def _found(*findings: Finding, checks: Sequence[Check] = ()) -> Analysis:
    return replace(steps(10, 11), findings=findings, checks=tuple(checks))


def _statuses(before: Analysis, after: Analysis) -> list[str]:
    return [change.status for change in compare(before, after).findings]


@pytest.mark.parametrize(
    "after",
    [
        wait(),
        wait(line=99),
        wait(file=None, line=None, function=None),
        wait(file="copy.py", line=99),
        wait(function="sample", file="sampling.py"),
        replace(wait(), title="the host reads another value", cost_ns=9_000),
    ],
)
def test_the_same_finding_is_still_there(after: Finding) -> None:
    assert _statuses(_found(wait()), _found(after)) == ["still"]


def test_another_cause_or_operator_is_another_finding() -> None:
    other = replace(wait(), detail={"cause": "data-dependent-shape"})
    assert _statuses(_found(wait()), _found(other)) == ["gone", "new"]
    of_another = wait(function="sample", file="sampling.py", operator="aten::nonzero")
    assert _statuses(_found(wait()), _found(of_another)) == ["gone", "new"]
    in_another = wait(function="sample", module="head")
    assert _statuses(_found(wait(module="embed")), _found(in_another)) == ["gone", "new"]


def _lines(before: Analysis, after: Analysis) -> set[tuple[int | None, int | None]]:
    pairs = compare(before, after).findings
    return {(_line(change.before), _line(change.after)) for change in pairs}


def _line(finding: Finding | None) -> int | None:
    return None if finding is None else finding.where.line


def test_lines_inserted_above_move_all_waits_of_a_function() -> None:
    moved = [wait(line, file="/elsewhere/loop.py") for line in (15, 19, 40)]
    ours = [wait(line) for line in (10, 14, 35)]
    assert _lines(_found(*ours), _found(*moved)) == {(10, 15), (14, 19), (35, 40)}
    # Of fewer, the nearest is the same one.
    assert _lines(_found(*ours), _found(moved[2])) == {(10, None), (14, None), (35, 40)}


def test_a_function_in_a_copy_of_its_file_is_the_same_before_another_one() -> None:
    ours = _found(wait(function="load"), wait(function="sample", line=50))
    theirs = _found(wait(function="sample", file="b.py", line=12),
                    wait(function="load", file="b.py", line=52))  # fmt: skip
    assert _lines(ours, theirs) == {(10, 52), (50, 12)}
    assert set(_statuses(ours, theirs)) == {"still"}


def test_the_only_one_left_is_still_there_and_both_places_are_shown() -> None:
    ours, theirs = wait(), wait(function="sample", file="sampling.py", line=7)
    text = render_diff(compare(_found(ours), _found(theirs)), width=160)
    assert "loop.py:10 step, operator aten::item in A; sampling.py:7 sample, operator" in text
    nowhere = wait(file=None, line=None, function=None, operator=None)
    text = render_diff(compare(_found(ours), _found(nowhere)), width=160)
    assert "where: loop.py:10 step, operator aten::item in A; not recorded in B" in text
    # Of two, none is the only one.
    several = _found(theirs, wait(function="beam", file="sampling.py", line=9))
    two = _found(ours, wait(function="greedy", line=30))
    assert sorted(_statuses(two, several)) == ["gone", "gone", "new", "new"]


def pause(title: str, places: int = 1, **where: Any) -> Finding:
    detail = {"places": places}
    return Finding("gap.host", "warning", title, 2, 4_000, 0.1, (0, 1), Where(**where), detail)


def test_a_finding_without_a_place_is_told_by_what_it_says() -> None:
    between = "60.9 us at a time pass outside operators between aten::add and aten::t"
    shorter = "1.02 ms at a time pass outside operators between aten::add and aten::t"
    other = "60.9 us at a time pass outside operators between aten::gelu and aten::t"
    assert _statuses(_found(pause(between)), _found(pause(shorter))) == ["still"]
    assert _statuses(_found(pause(between)), _found(pause(other))) == ["gone", "new"]
    # A sample may hit the function on one side alone.
    named = pause("host work in load, 3 ms at a time", file="a.py", line=3, function="load")
    assert _statuses(_found(named), _found(pause(between))) == ["still"]
    assert _statuses(_found(named), _found(pause("the cause is not recorded"))) == ["still"]
    # What is at many places has another cause than what is at one.
    scattered = pause("3 ms at a time pass outside operators at 7 places", places=7)
    assert _statuses(_found(named), _found(scattered)) == ["gone", "new"]
    assert _statuses(_found(scattered), _found(scattered)) == ["still"]


def test_a_pause_behind_the_same_line_is_the_same_whatever_comes_after_it() -> None:
    def behind(line: int, operator: str) -> Finding:
        title = f"877 us at a time pass outside operators between aten::mm and {operator}"
        last = {"last_line": f"loop.py:{line} in step"}
        return replace(pause(title), detail=last)

    ours, theirs = behind(38, "aten::full"), behind(38, "aten::empty")
    assert _statuses(_found(ours), _found(theirs)) == ["still"]
    assert _statuses(_found(ours), _found(behind(40, "aten::empty"))) == ["gone", "new"]


def test_launching_is_the_same_finding_in_steps_of_another_name() -> None:
    ours, theirs = (
        Finding("gap.launch_bound", "critical", f"{phase}: the host issues 9 kernels", 2, 9)
        for phase in ("forward", "decode")
    )
    assert _statuses(_found(ours), _found(theirs)) == ["still"]


def test_what_the_loop_does_beside_its_steps_is_in_the_answer() -> None:
    def evaluated(ratio: float) -> Analysis:
        title = f"evaluation takes {ratio:.0%} of the time"
        return _found(Finding("loop.evaluation", "warning", title, 2, 4_000, ratio))

    assert "Evaluation takes 18 % of the time in B, 49 % in A." in said(
        compare(evaluated(0.49), evaluated(0.18))
    )
    assert "Evaluation" not in said(compare(evaluated(0.18), evaluated(0.17)))


def test_two_waits_of_one_function_stay_apart() -> None:
    ours = _found(wait(10, 4.0), wait(20, 9.0))
    changes = compare(ours, _found(wait(20, 9.0))).findings
    told = {(c.finding.where.line, c.status) for c in changes}
    assert told == {(10, "gone"), (20, "still")}


def test_what_could_not_be_looked_at_is_not_gone() -> None:
    blind = _found(checks=[Check("sync.hidden", "not_checked", "no runtime calls")])
    assert _statuses(_found(wait()), blind) == ["not_checked"]
    assert _statuses(blind, _found(wait())) == ["not_checked"]
    (row,) = to_diff(compare(_found(wait()), blind))["findings"]
    assert (row["reason"], row["after_cost_ns"]) == ("no runtime calls", None)
    assert row["predicted"] is None
    assert "could not be checked in B: no runtime calls" in render_diff(
        compare(_found(wait()), blind)
    )


def waiting(*sync_us: float, ffn_us: float = 6.0, cost_us: float | None = None) -> Analysis:
    """Steps with a wait in each, and the finding about it where that costs something."""
    made = make_analysis(
        [Step("decode", {"overhead.sync": us, "ffn.projection": ffn_us}) for us in sync_us]
    )
    return made if cost_us is None else replace(made, findings=(wait(cost_us=cost_us),))


def test_predicted_and_measured_stand_side_by_side() -> None:
    before, after = waiting(4, 5, cost_us=9.0), waiting(0.5, 0.6)
    (row,) = to_diff(compare(before, after))["findings"]
    assert row["status"] == "gone"
    assert (row["before_cost_ns"], row["after_cost_ns"], row["change_ns"]) == (4_500, 0, -4_500)
    assert row["predicted"] == {
        "phase": "decode",
        "from_start_to_start": False,
        "before_ns": 10_500,
        "predicted_ns": 6_000,
        "measured_ns": 6_550,
        "predicted_gain_ns": 4_500,
        "measured_gain_ns": 3_950,
        "about": "sync",
        "about_change_ns": -3_950,
        "all_else_ns": 0,
        "else_changed": False,
        "among": 1,
        "basis": "the cost of the finding",
    }
    text = " ".join(render_diff(compare(before, after)).split())
    assert "A's report predicted 6.00 us a step (-4.50 us), B measures 6.55 us (-3.95 us)" in text


def test_a_step_that_changed_for_other_reasons_is_told_apart_from_the_promise() -> None:
    before = waiting(4, 5, cost_us=9.0)
    text = said(compare(before, waiting(0.5, 0.6, ffn_us=90.0)))
    assert "A's report predicted -4.50 us a step; B measures " in text
    assert text.endswith(" -3.95 us, and all else +84.0 us.")
    # Of what the finding is about nothing is recorded: that other things changed is said.
    placeless = replace(before, findings=(replace(wait(cost_us=9.0), rule="memory.retry"),))
    text = said(compare(placeless, waiting(0.5, 0.6, ffn_us=90.0)))
    assert "B measures 90.6 us (+80.0 us), in which other things changed as well." in text


def test_a_finding_that_is_still_there_keeps_a_promise_by_most_of_its_cost() -> None:
    before = waiting(4, 5, cost_us=9.0)
    for cost_us, kept in ((8.0, False), (1.0, True)):
        after = waiting(0.5, 0.6, cost_us=cost_us)
        (row,) = to_diff(compare(before, after))["findings"]
        assert row["status"] == "still"
        assert (row["predicted"] is not None) == kept


def test_no_promise_is_told_of_a_step_that_may_not_have_changed() -> None:
    before = waiting(1, 4, 7, 12, cost_us=9.0)
    assert "predicted" in render_diff(compare(before, waiting(0.1, 0.1, 0.1, 0.1, ffn_us=1.0)))
    within = compare(before, waiting(1, 2, 7, 12))
    assert within.phases[0].step.within_scatter is True
    assert "predicted" not in render_diff(within)
    one = compare(before, waiting(0.1, ffn_us=1.0))  # shows no scatter
    assert "predicted" not in render_diff(one)


def test_what_is_not_like_with_like_keeps_no_promise() -> None:
    assert "predicted" in said(compare(_found(wait()), steps(6, 7)))
    other = replace(steps(6, 7), cpu_only=True)
    assert "predicted" not in said(compare(_found(wait()), other))


def test_advice_to_record_again_is_no_promise() -> None:
    again = replace(wait(), advice="Record again with detail='full' to see the function.")
    (row,) = to_diff(compare(_found(again), steps(6, 7)))["findings"]
    assert (row["status"], row["predicted"]) == ("gone", None)


def test_several_promises_share_what_is_measured() -> None:
    ours = _found(wait(10), wait(20, 2.0, function="sample"))
    rows = to_diff(compare(ours, steps(6, 7)))["findings"]
    assert [row["predicted"]["among"] for row in rows] == [2, 2]
    assert "with 1 more of its findings gone" in said(compare(ours, steps(6, 7)))


# --- modules and kernels -------------------------------------------------------------------------


def traced(kernels: dict[str, tuple[str, float]], steps: int = 3) -> Analysis:
    """Steps of kernels, each launched in the module of its path; `a#2` is a kernel `a`, too."""
    maker = TraceMaker()
    for step in range(steps):
        at = 10_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 9_000)
        maker.module("model", "Model", at + 1, 8_000)
        begin = at + 10.0
        for name, (path, us) in kernels.items():
            kind = "Attention" if "attn" in path else "MLP"
            maker.module(path, kind, begin, 20)
            kernel, run = name.partition("#")[0], (begin + 10, begin + 10 + us)
            maker.launch(kernel, start=begin + 5, run=run)
            begin += us + 50
    return analyze(maker.build(detail="modules"))


BASE = {
    "softmax": ("model.layers.0.attn", 300.0),
    "gemm": ("model.layers.0.mlp", 200.0),
    "gemm_b": ("model.layers.1.mlp", 200.0),
}


def test_kernels_appear_and_go() -> None:
    after = {**BASE, "flash": ("model.layers.0.attn", 100.0)}
    del after["softmax"]
    (phase,) = to_diff(compare(traced(BASE), traced(after, steps=5)))["phases"]
    told = [(k["name"], k["status"], k["total"], k["calls"]) for k in phase["kernels"][:2]]
    assert told == [
        (
            "softmax",
            "gone",
            {"before_ns": 300_000, "after_ns": 0, "change_ns": -300_000},
            {"before": 1.0, "after": 0.0},
        ),
        (
            "flash",
            "new",
            {"before_ns": 0, "after_ns": 100_000, "change_ns": 100_000},
            {"before": 0.0, "after": 1.0},
        ),
    ]
    assert {k["status"] for k in phase["kernels"][2:]} == {"still"}
    assert {k["total"]["change_ns"] for k in phase["kernels"][2:]} == {0}
    few = {**BASE, "gemm": ("model.layers.0.mlp", 210.0)}  # more in all, in more steps
    changed = compare(traced(BASE, steps=9), traced(few, steps=3)).phases[0].kernels
    assert changed[0].name == "gemm"


def test_a_kernel_is_compared_in_each_of_its_roles() -> None:
    """What grows in one is not said of another in which it takes most of its time."""
    before = {**BASE, "gemm#2": ("model.layers.0.attn", 20.0)}
    after = {**BASE, "gemm#2": ("model.layers.0.attn", 150.0)}
    rows = compare(traced(before), traced(after)).phases[0].kernels
    told = [(k.name, k.kind.partition(".")[0], (k.after_ns - k.before_ns) / 3000) for k in rows]
    assert told[0] == ("gemm", "attention", 130.0)
    assert ("gemm", "ffn", 0.0) in told


def test_a_kernel_without_a_role_in_common_is_compared_by_its_name() -> None:
    """One recording tells more of it than the other."""
    after = {**BASE, "gemm": ("model.layers.0.attn", 210.0)}
    rows = compare(traced(BASE), traced(after)).phases[0].kernels
    assert [row.name for row in rows] == ["gemm", "softmax", "gemm_b"]


def test_modules_are_told_by_path_like_layers_as_one() -> None:
    after = {**BASE, "gemm": ("model.layers.0.mlp", 150.0), "gemm_b": ("model.layers.1.mlp", 150.0)}
    diff = compare(traced(BASE), traced(after))
    (phase,) = to_diff(diff)["phases"]
    assert phase["modules_by"] == "path"
    told = {m["path"]: m["device"]["change_ns"] for m in phase["modules"]}
    assert told["model.layers.*.mlp"] == told["model"] == -100_000
    assert told["model.layers.*.attn"] == 0
    assert re.search(r"layers\.\*\.mlp +ffn +400\.0 +300\.0 +-100\.0", render_diff(diff, width=100))


def test_what_a_compiler_puts_into_paths_is_left_out() -> None:
    wrapped = {
        name: (path.replace("model", "model._orig_mod"), us) for name, (path, us) in BASE.items()
    }
    diff = compare(traced(BASE), traced(wrapped))
    assert diff.phases[0].modules_by == "path"
    assert {(m.before_ns - m.after_ns) for m in diff.phases[0].modules} == {0}


def test_other_paths_are_compared_by_role() -> None:
    other = {name: (path.replace("model.layers", "net.h"), us) for name, (path, us) in BASE.items()}
    other["softmax"] = ("net.h.0.attn", 100.0)
    diff = compare(traced(BASE), traced(other))
    (phase,) = to_diff(diff)["phases"]
    assert phase["modules_by"] == "role"
    told = {m["role"]: m["self"]["change_ns"] for m in phase["modules"]}
    assert told["attention"] == -200_000
    assert told["ffn"] == 0
    assert "by role, as the paths are others" in render_diff(diff)


def test_programs_without_a_kernel_in_common_are_asked_about() -> None:
    diff = compare(traced(BASE), traced({"other": ("model.layers.0.mlp", 700.0)}))
    assert any(d.rule == "diff.kernels" and not d.breaks for d in diff.differences)


def _calling(operator: str, kernel: str, called: str = "aten::mm") -> Analysis:
    """Steps of one operator, which calls another one that launches a kernel."""
    maker = TraceMaker()
    for n in range(3):
        maker.annotation(f"ProfilerStep#{n}", 1000 * n, 900)
        maker.operator(operator, 1000 * n + 50, 300)
        maker.launch(kernel, start=1000 * n + 100, run=(1000 * n + 110, 1000 * n + 700),
                     operator=called)  # fmt: skip
    return analyze(maker.build())


def test_other_operators_and_other_kernels_are_another_program() -> None:
    before = _calling("aten::linear", "gemm")
    other = compare(before, _calling("aten::conv2d", "winograd"))
    assert said(other).startswith("A and B cannot be compared (two programs: they call other oper")
    assert [d.rule for d in other.differences if d.breaks] == ["diff.program"]
    for alike in (
        _calling("aten::linear", "gemm_bf16", called="aten::addmm"),  # the program calls the same
        _calling("aten::conv2d", "gemm"),  # the kernel is the same
        _calling("Torch-Compiled Region: 0/0", "triton_mm"),  # as a compiler made it
    ):
        assert compare(before, alike).comparable


def test_recordings_without_steps_are_compared_as_a_whole() -> None:
    def once(us: float) -> Analysis:
        maker = TraceMaker()
        maker.launch("gemm", start=0, run=(5, 5 + us), operator="aten::mm")
        return analyze(maker.build())

    diff = compare(once(100), once(150))
    (phase,) = to_diff(diff)["phases"]
    assert (phase["phase"], phase["basis"]) == (None, "window")
    assert phase["kernels"][0]["total"]["change_ns"] == 50_000
    assert phase["step"]["change_ns"] == phase["breakdown"]["sum"]["change_ns"] == 50_000
    assert said(diff).startswith("B is 47 % slower: 106 -> 156 us (whole recordings)")
    mixed = compare(once(100), steps(10, 11))
    assert not mixed.comparable
    assert "no steps were found in A: the whole recordings are compared" in said(mixed)


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("ascii", [False, True])
def test_names_are_data_in_the_text(width: int, ascii: bool) -> None:
    hostile, plain = hostile_analysis(), decode_analysis()
    hostile = _with_meta(hostile, path="\x1b[31mred\nrun")
    hostile = replace(hostile, facts={"attention_implementation": "\x1b]0;title\x07"})
    plain = replace(plain, facts={"attention_implementation": "sdpa"})
    for before, after in ((hostile, plain), (plain, hostile), (hostile, hostile)):
        text = render_diff(compare(before, after), width=width, ascii=ascii)
        assert CONTROL.sub("", text.replace("\u200e", "")) == text.replace("\u200e", "")
        if ascii:
            assert text.isascii()


def test_names_of_kernels_and_modules_are_data_as_well() -> None:
    sizes = {name: 900.0 - 50 * i for i, name in enumerate(HOSTILE_NAMES)}
    before = traced({name: (f"model.{name}", us) for name, us in sizes.items()}, steps=2)
    text = render_diff(compare(before, traced(BASE, steps=2)), width=120, ascii=False)
    text.encode("utf-8")
    assert {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160} == {"\n"}
    assert not set(text) & set("\u202e\u2066\ufeff\u2028\ud800")
    assert "[red]bold[/red]" in text
    assert "核函数" in text
    json.loads(report_text(to_diff(compare(before, traced(BASE, steps=2)))))


def test_names_of_the_modules_that_changed_are_data() -> None:
    def model(us: float) -> Analysis:
        return traced({name: (f"model.{name}", us) for name in HOSTILE_NAMES[2:]}, steps=2)

    diff = compare(model(300), model(200))
    assert diff.phases[0].modules_by == "path"
    text = render_diff(diff, width=160, ascii=False).partition("MODULES")[2]
    text.encode("utf-8")
    assert "核函数" in text.partition("KERNELS")[0]
    assert {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160} == {"\n"}
    assert not set(text) & set("\u202e\u2066\ufeff\u2028\ud800")


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_the_answer_shows_names_as_data(name: str) -> None:
    title = replace(wait(), title=f"x y z {name} waits here", cost_ns=90_000)
    facts = {"models": [{"parameters": 1, "model_type": name}]}
    text = said(compare(steps(10, 11), replace(_found(title), facts=facts)))
    text += said(compare(_model(model_type="plain"), replace(steps(10, 11), facts=facts)))
    text.encode("utf-8")
    assert not {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160}
    assert not set(text) & set("\u202e\u2066\ufeff\u2028\ud800")
    assert "waits here" in text


def test_a_module_that_is_nothing_but_the_one_in_it_takes_no_line() -> None:
    halved = {name: (path, us / 2) for name, (path, us) in BASE.items()}
    for left_out, told in (
        (None, ["model", "layers.*.mlp", "layers.*.attn"]),
        ("softmax", ["model.layers.*.mlp"]),
    ):
        sides = ({n: row for n, row in one.items() if n != left_out} for one in (BASE, halved))
        text = render_diff(compare(*map(traced, sides)), width=100)
        rows = text.partition("MODULES")[2].partition("\n\n")[0].splitlines()[2:]
        assert [row.split()[0] for row in rows] == told


def test_every_line_fits() -> None:
    from rich.cells import cell_len

    for before in SAMPLES:
        for after in SAMPLES:
            text = render_diff(compare(before(), after()), width=80)
            assert max(map(cell_len, text.splitlines())) <= 80


def test_speeds_are_told_where_there_is_room() -> None:
    phases = (replace(decode_analysis().phases[-1], tokens_per_second=20.0),)
    sample = replace(decode_analysis(), phases=phases)
    assert "20.0 -> 20.0" in render_diff(compare(sample, sample), width=100)
    assert "tok/s" not in render_diff(compare(sample, sample), width=80)
    assert "tok/s" not in render_diff(compare(steps(10), steps(11)), width=100)


def test_colour_changes_no_word() -> None:
    diff = compare(decode_analysis(), decode_analysis())
    colored = render_diff(diff, width=100, color=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in bare.splitlines()] == render_diff(
        diff, width=100
    ).splitlines()
