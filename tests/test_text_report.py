"""The report for a terminal: what it says, that it adds up, that names cannot break it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from tests.golden_files import check_golden
from tests.make_analysis import Step, make_analysis
from tests.make_traces import TraceMaker
from tests.sample_analyses import (
    HOSTILE_NAMES,
    decode_analysis,
    decode_step,
    hostile_analysis,
    plan_finding,
    unusable_analysis,
)
from tracer.analysis import GROUPS, PARTS, Analysis, Observer
from tracer.events import Note
from tracer.exporters.advice import cpu_advice
from tracer.exporters.change import instruction
from tracer.exporters.format import counted, duration_text, percent_text, shares
from tracer.exporters.html import to_html
from tracer.exporters.json_report import to_report
from tracer.exporters.layout import wrap
from tracer.exporters.levels import phase_levels
from tracer.exporters.module_tree import fold_modules, visible_rows
from tracer.exporters.names import cut_middle, fit_names, inert, short_kernel
from tracer.exporters.sentence import verdict
from tracer.exporters.spread import usual_level
from tracer.exporters.text import render_text, render_texts
from tracer.exporters.text_index import place_names
from tracer.findings import Finding, Where

_SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [80, 120])
def test_golden_text(width: int) -> None:
    text = render_text(decode_analysis(), width=width, ascii=False)
    check_golden(f"decode_{width}.txt", text)


def test_golden_ascii() -> None:
    text = render_text(decode_analysis(), width=80, ascii=True)
    assert text.isascii()
    check_golden("decode_ascii.txt", text)


def test_golden_unusable() -> None:
    check_golden("unusable.txt", render_text(unusable_analysis(), width=80, ascii=False))


def test_colour_changes_nothing_but_colour() -> None:
    plain = render_text(decode_analysis(), width=100, ascii=False)
    colored = render_text(decode_analysis(), width=100, color=True, ascii=False)
    assert "\x1b[" not in plain
    assert colored != plain
    assert [line.rstrip() for line in _SGR.sub("", colored).splitlines()] == plain.splitlines()


@pytest.mark.parametrize("make", [decode_analysis, hostile_analysis, unusable_analysis])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("width", [80, 99, 100, 160])
def test_no_line_is_wider_than_the_page(make: Any, ascii: bool, width: int) -> None:
    for line in render_text(make(), width=width, ascii=ascii).splitlines():
        assert cell_len(line) <= width, line


def test_names_of_a_trace_are_inert() -> None:
    text = render_text(hostile_analysis(), width=120, ascii=False)
    text.encode("utf-8")
    controls = {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160} - {"\n"}
    assert controls == set()
    assert not set(text) & set("\u202e\u2066\ufeff\u2028\ud800")
    assert "[red]bold[/red]" in text
    assert "核函数" in text
    assert "גרעין" in text
    assert render_text(hostile_analysis(), width=120, ascii=True).isascii()


def test_numbers_stay_on_the_page_beside_long_names() -> None:
    lines = render_text(hostile_analysis(), width=80, ascii=False).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("KERNELS"))
    rows = lines[first + 2 : first + 2 + len(HOSTILE_NAMES)]
    assert all(re.search(r" 10 +1\.00 +5\.0 %$", row) for row in rows), rows


def _breakdown(text: str) -> dict[str, list[float]]:
    """Rows of the breakdown: label with its indent -> the numbers beside it."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("WHERE THE TIME"))
    rows: dict[str, list[float]] = {}
    group = ""
    for line in lines[first + 2 :]:
        label = line[:20].strip()
        if not label or not line.startswith("  "):
            break
        group = label if not line.startswith("    ") else group
        key = label if label == group else f"{group}.{label}"
        numbers = re.findall(r"<?[\d,.]+", line[20:])
        rows[key] = [0.0 if n.startswith("<") else float(n.replace(",", "")) for n in numbers]
        if label == "sum":
            break
    return rows


def _check_sums(text: str) -> None:
    rows = _breakdown(text)
    columns = len(rows["sum"])
    for column in range(columns):
        total = sum(rows[group][column] for group in GROUPS)
        assert total == pytest.approx(rows["sum"][column], abs=1e-9)
        for group in GROUPS:
            parts = [v[column] for k, v in rows.items() if k.startswith(f"{group}.")]
            assert not parts or sum(parts) == pytest.approx(rows[group][column], abs=1e-9)
        if column % 2:
            assert rows["sum"][column] == 100.0


def test_shown_parts_add_up() -> None:
    random = np.random.default_rng(7)
    names = [f"{group}.{part}" for group in GROUPS for part in PARTS[group]]
    for _ in range(40):
        chosen = random.choice(names, size=int(random.integers(1, 20)), replace=False)
        scale = 10.0 ** random.integers(0, 6)
        steps = [
            Step(phase, {str(n): float(random.exponential(scale)) for n in chosen})
            for phase in ("prefill", "decode", "decode", "decode")
        ]
        _check_sums(render_text(make_analysis(steps), width=100, ascii=False))


def test_what_was_not_measured_is_a_dash() -> None:
    text = render_text(unusable_analysis(), width=80, ascii=False)
    assert "WHERE THE TIME GOES  - not known: 200 launches recorded, 0 device events" in text
    assert "0.0 %" not in text
    assert "tok/s" in text
    row = next(line for line in text.splitlines() if line.startswith("  decode"))
    assert row.split()[-1] == "-"


def test_a_time_too_small_to_show_is_not_zero() -> None:
    steps = [Step("decode", {"ffn.projection": 100_000.0, "other.sampling": 1.0})]
    text = render_text(make_analysis(steps), width=80, ascii=False)
    row = next(line for line in text.splitlines() if line.strip().startswith("sampling"))
    assert row.split() == ["sampling", "<0.1", "<0.1", "%"]


def test_bars_show_idle_as_letters() -> None:
    text = render_text(decode_analysis(), width=100, ascii=False)
    bar = next(line for line in text.splitlines() if line.startswith("  decode"))
    inside = bar[bar.index("▕") + 1 : bar.index("▏")]
    assert set(inside) == set("█▓▒lc")
    share = inside.count("c") / len(inside)
    assert share == pytest.approx(35_000 / 59_750, abs=0.03)


def _at(analysis: Analysis, path: str) -> Analysis:
    trace = analysis.trace
    return replace(analysis, trace=replace(trace, meta=replace(trace.meta, path=path)))


def test_several_reports_stand_below_an_index_of_them() -> None:
    one = _at(decode_analysis(), "runs/a.json")
    two = _at(unusable_analysis(), "runs/old/b.json")
    text = render_texts([one, two], width=80, ascii=False)
    index, *reports = re.split(r"\n══ \d of 2: .*\n", text)
    assert reports[0] == render_text(one, width=80, ascii=False)
    assert reports[1] == render_text(two, width=80, ascii=False)
    title, columns, first, answer, second, _ = index.splitlines()
    assert title == "RECORDINGS  2 in runs, as their reports follow"
    assert columns.split() == ["recording", "steps", "median", "costliest", "finding", "share"]
    assert first.split() == ["1", "a.json", "decode", "59.8", "ms", "gap.compile", "55", "%"]
    assert second.split()[:2] == ["2", "old/b.json"]
    assert answer.strip().rstrip(" …") in " ".join(verdict(one).split())
    assert text.count("══ 2 of 2: old/b.json ═") == 1


def test_one_report_has_no_index() -> None:
    one = decode_analysis()
    assert render_texts([one], width=80) == render_text(one, width=80)


@pytest.mark.parametrize(
    ("places", "folder", "names"),
    [
        (("/r/a.json", "/r/b.json"), "/r", ["a.json", "b.json"]),
        (("/r/a.json", "/s/b.json"), "/", ["r/a.json", "s/b.json"]),
        (("a.json", "r/b.json"), "", ["a.json", "r/b.json"]),
        (("r/a.json", "/r/b.json"), "", ["r/a.json", "/r/b.json"]),
    ],
)
def test_recordings_are_named_in_the_folder_that_holds_them(
    places: tuple[str, str], folder: str, names: list[str]
) -> None:
    assert place_names([_at(decode_analysis(), place) for place in places]) == (folder, names)


def _decode(**parts: float) -> list[Step]:
    return [Step("decode", {name.replace("__", "."): us for name, us in parts.items()})] * 4


def test_verdict_of_a_host_bound_step_with_a_finding() -> None:
    said = verdict(make_analysis([decode_step()] * 4, findings=(plan_finding(range(4)),)))
    assert said == (
        "Decode waits for the host: the GPU works 6.3 of 59.5 ms a step (11 %). "
        "cuDNN plan built for each new KV length at llama.py:241 (costs 35.0 ms a step). "
        "Use flash attention, or a KV cache of fixed length. "
        "Without it a decode step takes 24.5 ms (-35.0 ms)."
    )


def test_verdict_of_idle_without_a_cause_claims_none() -> None:
    said = verdict(make_analysis(_decode(ffn__projection=6_000, overhead__unexplained=54_000)))
    assert said == "The GPU is mostly idle in decode: it works 6.0 of 60.0 ms a step (10 %)."


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (
            {"attention__core": 8_000, "ffn__projection": 2_000},
            (
                "Attention takes most of decode: 8.0 of 10.0 ms a step (80 %), all of it core; "
                "the GPU is never idle."
            ),
        ),
        (
            {"attention__core": 3_500, "ffn__projection": 4_000, "overhead__device": 2_500},
            (
                "FFN takes the largest share of decode: 4.0 of 10.0 ms a step (40 %), all of it "
                "projection; attention takes 35 %; the GPU is idle 25 % of the time."
            ),
        ),
        (
            {"communication__all_reduce": 9_000, "ffn__projection": 1_000},
            (
                "Communication takes most of decode: 9.0 of 10.0 ms a step (90 %), all of it all "
                "reduce; the GPU is never idle."
            ),
        ),
        (
            {"overhead__transfer": 9_000, "ffn__projection": 1_000},
            (
                "Copying between host and GPU takes most of decode: 9.0 of 10.0 ms a step (90 %); "
                "the GPU is never idle."
            ),
        ),
        (
            {"other__optimizer": 6_000, "other__loss": 3_000, "ffn__projection": 1_000},
            "The optimizer takes most of decode: 6.0 of 10.0 ms a step (60 %); the GPU is ",
        ),
        (
            {"other__unattributed": 9_000, "ffn__projection": 1_000},
            (
                "The GPU works 10.0 of 10.0 ms a step; 90 % of that is in kernels whose role this "
                "recording does not tell."
            ),
        ),
        (
            {"attention__core": 2_500, "ffn__projection": 2_600, "overhead__launch": 2_400}
            | {"other__norm": 2_500},
            (
                "Nothing dominates decode, 10.0 ms a step: FFN 26 %, attention 25 %, norm 25 %, "
                "idle 24 %."
            ),
        ),
    ],
)
def test_verdict_says_what_dominates(parts: dict[str, float], wanted: str) -> None:
    assert verdict(make_analysis(_decode(**parts))).startswith(wanted)


def test_verdict_without_a_gpu() -> None:
    steps = _decode(ffn__projection=6_000, attention__core=3_000, overhead__host=1_000)
    assert verdict(make_analysis(steps, devices=0, cpu_only=True)) == (
        "No GPU in this recording: on the CPU a decode step takes 10.0 ms: FFN 60 %, "
        "attention 30 %, outside operators 10 %. On a CPU torch.compile or a lower precision "
        "may cut it, and a GPU most."
    )


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"dtypes": {"float32": 2}}, "On a CPU torch.compile or a lower precision may cut it"),
        ({"dtypes": {"bfloat16": 2}}, "On a CPU torch.compile may cut it"),
        ({"compile_mode": "default"}, "On a CPU a lower precision may cut it"),
        (
            {"compile_mode": "default", "dtypes": {"bfloat16": 2}},
            "Compiled and in a lower precision, a GPU cuts it most",
        ),
    ],
)
def test_advice_for_a_cpu_leaves_out_what_is_done(facts: dict[str, Any], wanted: str) -> None:
    assert cpu_advice(facts).startswith(wanted)


def test_verdict_where_nothing_was_measured() -> None:
    assert verdict(unusable_analysis()) == (
        "Nothing can be said of the GPU: 200 launches recorded, 0 device events. "
        "On the host a decode step takes 2.00 ms."
    )


def _light(steps: list[Step], **fields: Any) -> Any:
    reason = "detail 'light' times steps and records no kernels"
    trace = TraceMaker().build(detail="light")
    return make_analysis(
        steps, devices=0, accounted=False, breakdown_reason=reason, trace=trace, **fields
    )


def test_verdict_of_step_times_alone() -> None:
    steps = [Step("decode", {"overhead.host": 2_000.0})] * 4
    assert verdict(_light(steps, between={"overhead.host": 24_000})).startswith(
        "75 % of the 32.0 ms lie between the steps; a decode step takes 2.00 ms (median of 4)"
    )
    said = verdict(_light([Step("prefill", {"overhead.host": 5_000.0}), *steps]))
    assert said.startswith("A decode step takes 2.00 ms (median of 4). Of the time in steps")
    assert "decode 62 %, prefill 38 %; the longest is the prefill step with 5.00 ms." in said
    assert "GPU" not in said and "detail 'modules'" in said
    said = verdict(_light(steps, between={"overhead.host": 2_000}))
    assert "; 80 % of the 10.0 ms lie in the steps, 20 % between them." in said


@pytest.mark.parametrize("warm_us", [90_000, 200])
def test_verdict_where_warm_up_is_most_of_a_recording(warm_us: int) -> None:
    """Long warm-up is the answer; a short one is left out as ever. What lies in it alone is paid
    with it: it is not what to change in a step."""
    steps = [
        Step("decode", {"overhead.compile": float(warm_us)}, warmup=True),
        *_decode(attention__core=100)[:3],
    ]
    once = Finding("warmup.first_use", "info", "compiling forward takes 60 ms", 1, 60_000_000)
    collected = Finding(
        "gap.gc", "critical", "the collector stops the host", 1, 30_000_000, 0.3, (0,)
    )
    said = verdict(make_analysis(steps, findings=(once, replace(collected, gain_ns=30_000_000))))
    assert "collector" not in said
    if warm_us > 1_000:
        start = "Warm-up, 1 of 4 steps, takes 90.0 ms of the recording's 90.3 ms; compiling forward"
        assert said.startswith(f"{start} takes 60 ms. After it, attention takes most of decode")
    else:
        assert said.startswith("Attention takes most of decode")


def test_verdict_of_a_damaged_recording() -> None:
    note = Note("trace.truncated", "the file ends after 1,234 events", partial=True)
    said = verdict(make_analysis(_decode(attention__core=100), notes=(note,)))
    assert said.startswith("As far as recorded, attention takes most of decode")
    assert said.endswith("Partial: the file ends after 1,234 events.")


def test_verdict_is_uncertain_where_the_profiler_made_the_idle() -> None:
    steps = _decode(ffn__projection=4_000, overhead__launch=6_000)
    observer = Observer(10_000_000, 5_000_000, 2.0, "4 steps")
    said = verdict(make_analysis(steps, observer=observer))
    assert said.endswith(
        "Without the profiler a step takes 5.00 ms, with it 2.00 times that, so that the idle is "
        "mostly the profiler's: uncertain."
    )


def test_what_the_profiler_costs_is_no_idle_of_the_program() -> None:
    parts = {"attention.core": 3_300.0, "ffn.projection": 3_000.0, "overhead.profiler": 3_700.0}
    said = verdict(make_analysis([Step("decode", parts)] * 4))
    assert said.startswith("Attention takes the largest share of decode: 3.3 of 10.0 ms a step")
    assert said.endswith(
        "3.7 of 10.0 ms a step are the recording's own cost: unprofiled it is shorter."
    )


def test_verdict_of_two_phases_and_two_devices() -> None:
    steps = [Step("prefill", {"ffn.projection": 9000.0}), *_decode(attention__core=4000)]
    said = verdict(make_analysis(steps))
    assert "Prefill, 36 %" not in said
    assert "The prefill step, 36 % of the recording, is 100 % FFN." in said
    doubled = verdict(
        make_analysis(_decode(overhead__sync=9_000, ffn__projection=1_000), devices=2)
    )
    assert doubled.startswith("Decode waits for the host: the 2 GPUs work 1.0 of 10.0 ms a step")


def test_the_median_step_leads_where_steps_differ() -> None:
    slow = Step("decode", {"ffn.projection": 1_000.0, "overhead.gc": 49_000.0})
    usual = [Step("decode", {"ffn.projection": us}) for us in (1_000.0, 1_010.0, 1_020.0)]
    said = verdict(make_analysis([*usual, slow]))
    assert said.startswith(
        "FFN takes most of decode: 1.02 of 1.02 ms in the median step (100 %), all of it "
        "projection; the GPU is never idle. One of 4 decode steps takes 49.3 times the median, "
        "50.0 ms (94 % of their time): 100 % of what they take longer is Python's garbage "
        "collector."
    )


def test_a_gain_is_no_new_step_time_where_steps_differ() -> None:
    slow = decode_step(300_000)
    finding = plan_finding(range(5))
    said = verdict(make_analysis([slow, *[decode_step()] * 4], findings=(finding,)))
    assert "6.3 of 59.5 ms in the median step" in said
    assert "The first of 5 decode steps takes 5.74 times the median, 342 ms" in said
    assert "Without it" not in said and "That would gain 35.0 ms a step." in said


@pytest.mark.parametrize("missing", [(), (Note("trace.kernels_missing", "9 of 10 kernels"),)])
def test_idle_that_nothing_tells_of_says_what_would(missing: tuple[Note, ...]) -> None:
    steps = _decode(ffn__projection=6_000, overhead__unexplained=54_000)
    analysis = make_analysis(steps, notes=(Note("trace.no_launches", "device alone"), *missing))
    source = replace(analysis.trace.meta, source_kind="rocprof")
    said = verdict(replace(analysis, trace=replace(analysis.trace, meta=source)))
    told = "Why the GPU had nothing to do is not recorded: rocprofv3 --hip-trace tells." in said
    assert told is not bool(missing)


def test_a_mean_cost_above_the_median_step_is_told_of_the_mean_step() -> None:
    slow, usual = Step("decode", {"ffn.projection": 60_000.0}), {"ffn.projection": 20_000.0}
    finding = Finding("cache.absent", "critical", "no cache", 5, 140_000_000, 0.9, (0, 1, 2, 3, 4))
    finding = replace(finding, advice="Turn the cache on.", gain_ns=140_000_000)
    steps = [slow, slow, *[Step("decode", usual)] * 3]
    analysis = make_analysis(steps, findings=(finding,))
    said = verdict(analysis)
    assert "No cache (costs 28.0 of 36.0 ms of the mean step)." in said
    assert said.endswith("That would gain 28.0 of 36.0 ms of the mean step.")
    (row,) = to_report(analysis)["what_if"]
    assert row["gain_ns"] == pytest.approx(20_000_000 * 28 / 36, abs=1)
    assert row["step_ns"] + row["gain_ns"] == 20_000_000


def test_slow_steps_of_more_tokens() -> None:
    steps = [Step("forward", {"ffn.projection": 10.0 * n}, tokens=n) for n in (8, 8, 8, 64, 64)]
    said = verdict(make_analysis(steps))
    assert "2 of 5 forward passes take up to 8 times the median" in said
    assert "): of 64 tokens where others have 8." in said


def test_slow_steps_without_a_device_and_those_that_are_many() -> None:
    steps = [
        Step("forward", {"other.norm": us}) for us in (1_000.0, 4_000.0, 4_100.0, 300.0, 310.0)
    ]
    pause = Finding("gap.gc", "warning", "a collection", 2, 6_000_000, 0.5, (1, 2))
    said = verdict(make_analysis(steps, devices=0, cpu_only=True, findings=(pause,)))
    assert "2 of 5 forward passes take up to 4.1 times the median, 4.10 ms" in said
    assert "): they hold Python's garbage collector." in said
    steps = [Step("forward", {"other.norm": us}) for us in (4_000.0, 4_000.0, 10.0, 10.0, 4_000.0)]
    said = verdict(make_analysis(steps, devices=0, cpu_only=True))
    assert "Steps differ: a forward pass takes 10.0 us to 4.00 ms." in said


def test_verdict_is_about_the_window_where_most_of_it_lies_between_steps() -> None:
    steps = _decode(ffn__projection=1_000)
    said = verdict(make_analysis(steps, between={"overhead.input": 96_000.0}))
    assert said.startswith("The GPU waits for the host: it works 4.00 ms of 100 ms (4.0 %).")
    assert " 96 % of the recording lies between its steps. 100 %" in said


def test_a_cost_larger_than_its_steps_is_no_cost_a_step() -> None:
    finding = plan_finding(range(4))
    said = verdict(make_analysis(_decode(ffn__projection=1_000), findings=(finding,)))
    assert "cuDNN plan built for each new KV length at llama.py:241 (costs 140 ms)." in said
    assert "Without it" not in said


@pytest.mark.parametrize(
    ("advice", "told"),
    [
        ("It takes 2 ms. Use another kernel. The matrix takes 64 MiB.", "Use another kernel."),
        ("Use flash attention. Then nothing is built again.", "Use flash attention."),
        (
            "It costs 5 ms. torch.compile (mode='x') fuses it",
            "It costs 5 ms. torch.compile (mode='x') fuses it.",
        ),
        ("Paid once: run a warm-up step", "Paid once: run a warm-up step."),
    ],
)
def test_the_sentence_of_an_advice_that_says_what_to_do(advice: str, told: str) -> None:
    assert instruction(advice) == told


def test_the_second_finding_is_named_too() -> None:
    launch = Finding("gap.launch_bound", "critical", "launches", 4, 72_000_000, 0.3, (0, 1, 2, 3))
    said = verdict(make_analysis([decode_step()] * 4, findings=(launch, plan_finding(range(4)))))
    assert said.endswith("Next: launches (costs 18.0 ms a step).")


def test_a_small_finding_comes_after_the_advice() -> None:
    wait = Finding("sync.explicit", "warning", "A wait", 4, 20_000_000, 0.05, (0, 1, 2, 3))
    steps = _decode(ffn__projection=10_000, overhead__launch=90_000)
    said = verdict(make_analysis(steps, findings=(replace(wait, gain_ns=20_000_000),)))
    assert said.index("Launch less") < said.index("A wait (costs 5.00 ms a step).")


def test_a_finding_that_is_worth_little_is_not_the_advice() -> None:
    little = Finding("gap.gc", "warning", "garbage collection", 1, 1_000_000, 0.001, (0,))
    info = Finding("sync.explicit", "info", "a wait", 1, 900_000_000, 0.9, (0,))
    said = verdict(make_analysis(_decode(ffn__projection=500_000), findings=(little, info)))
    assert "garbage" not in said
    assert "a wait" not in said


def test_like_modules_fold() -> None:
    roots = fold_modules(decode_analysis().modules)
    rows = visible_rows(roots, 20)
    shown = [(row.depth, "(self)" if row.own else row.node.label, row.node.modules) for row in rows]
    assert shown == [
        (0, "", 1),
        (1, "layers.*", 4),
        (2, "mlp", 4),
        (2, "self_attn", 4),
        (2, "(self)", 4),
        (1, "lm_head", 1),
        (1, "(self)", 1),
    ]
    assert visible_rows(roots, 3) == visible_rows(roots, 1)


def test_modules_named_by_class_and_order_of_call_fold_where_they_lie_alike() -> None:
    """As frames of Python name them: two layers, each with a norm, and one norm after them."""
    tree = [
        ("Net_0", -1, 9),
        ("Layer_0", 0, 5),
        ("Norm_0", 1, 2),
        ("Layer_1", 0, 3),
        ("Norm_1", 3, 1),
        ("Norm_2", 0, 1),
    ]
    rows = [
        {"path": name, "type": name[:-2], "parent": parent, "calls": 1, "device_ns": ns}
        for name, parent, ns in tree
    ]
    shown = visible_rows(fold_modules(make_analysis([], modules=rows).modules), 20)
    assert [(row.depth, row.node.label, row.node.modules, row.device_ns) for row in shown] == [
        (0, "Net_0", 1, 9),
        (1, "Layer_*", 2, 8),
        (2, "Norm_*", 2, 3),
        (1, "Norm_2", 1, 1),
    ]


def test_lists_of_modules_that_are_never_called_leave_the_tree() -> None:
    rows = [
        {"path": "layers", "parent": -1, "calls": 0, "device_ns": 20, "self_device_ns": 0},
        {"path": "layers.0", "parent": 0, "calls": 1, "device_ns": 12, "self_device_ns": 12},
        {"path": "layers.1", "parent": 0, "calls": 1, "device_ns": 8, "self_device_ns": 8},
    ]
    roots = fold_modules(make_analysis([], modules=rows).modules)
    assert [(node.label, node.modules, node.device_ns) for node in roots] == [("layers.*", 2, 20)]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::foo<int, 4>(int, float const*)", "foo<int, 4>"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", None),
        ("(anonymous namespace)::softmax_warp_forward<f>(f*)", "softmax_warp_forward<f>"),
        ("nvjet_tst_64x8", "nvjet_tst_64x8"),
        ("(weird)", "(weird)"),
        (
            (
                "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
                "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}, "
                "std::array<char*, 2ul>, 4>(int, std::array<char*, 2ul>)"
            ),
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda, std::array<char*, 2ul>, 4>",
        ),
        ("", ""),
    ],
)
def test_kernel_names_lose_what_tells_nothing(name: str, short: str | None) -> None:
    wanted = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if short is None else short
    assert short_kernel(name) == wanted


def test_names_are_cut_in_the_middle_and_stay_apart() -> None:
    assert cut_middle("abcdefghij", 7) == "abc…hij"
    assert cell_len(cut_middle("核" * 30, 11)) <= 11
    names = ["a" * 50 + "1" + "b" * 50, "a" * 50 + "2" + "b" * 50, "c"]
    assert (
        fit_names(names, 11) == ["aaaa…bbb#1", "aaaa…bbb#2", "c"]
        or len(set(fit_names(names, 11))) == 3
    )
    assert fit_names([names[0], names[0]], 11)[0] == fit_names([names[0], names[0]], 11)[1]


def test_inert_keeps_what_is_harmless() -> None:
    assert inert("plain") == "plain"
    assert inert("a\tb\x1b\x7f") == "a␉b␛␡"
    assert inert("👩‍🚀") == "👩‍🚀"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.50 us"),
        (61_000_000, "61.0 ms"),
        (814_000_000, "814 ms"),
        (1_250_000_000, "1.25 s"),
    ],
)
def test_durations(ns: int | None, text: str) -> None:
    assert duration_text(ns) == text


def test_small_shares_and_counts() -> None:
    assert [percent_text(r) for r in (0, 0.0001, 0.05, 0.5, 0.9996, 1.0)] == [
        "0.0 %",
        "<0.1 %",
        "5.0 %",
        "50 %",
        "100.0 %",
        "100 %",
    ]
    assert counted(1, "step") == "1 step"
    assert counted(1200, "entry") == "1,200 entries"


def test_largest_remainders_add_up() -> None:
    assert shares([1, 1, 1], 100) == [34, 33, 33]
    assert shares([0, 0], 10) == [0, 0]
    assert sum(shares([7, 11, 13, 10**18], 1000)) == 1000


def test_a_number_stays_on_the_line_of_its_unit() -> None:
    said = "takes 25.0 of 54.5 ms a step aa (46 %); it is 61.0 ms. and 5 steps (-35.0 ms)."
    assert wrap(said, 12) == [
        "takes 25.0",
        "of 54.5 ms a",
        "step aa",
        "(46 %); it",
        "is 61.0 ms.",
        "and 5 steps",
        "(-35.0 ms).",
    ]
    assert wrap("", 10) == [""]
    assert wrap("word", 10, taken=8) == ["", "word"]


def _with_a_slow_first_step(*, warmup: bool = False) -> Analysis:
    """Nine steps of attention, and one before them in which the host does something else."""
    slow = Step("decode", {"attention.core": 900.0, "overhead.host": 90_000.0}, warmup=warmup)
    return make_analysis([slow, *[Step("decode", {"attention.core": 900.0})] * 9])


def test_the_table_tells_what_the_verdict_tells_where_steps_differ() -> None:
    """A slow step that is not marked as warm-up would fill the mean step with its own cause."""
    analysis = _with_a_slow_first_step()
    text = render_text(analysis, width=100, ascii=False)
    assert "900 of 900 us in the median step" in verdict(analysis)
    assert "WHERE THE TIME GOES       decode, median" in text
    assert re.search(r"^  attention +900.0 +100.0 %", text, re.MULTILINE)
    assert re.search(r"^  overhead +0.0 +0.0 %", text, re.MULTILINE)
    assert "decode: the median of 10 is shown, the mean is 9.90 ms because of step 0." in text
    assert "one bar = its median step" in text
    assert "median decode step" in to_html(analysis)


def test_the_table_shows_the_mean_where_steps_are_alike() -> None:
    text = render_text(_with_a_slow_first_step(warmup=True), width=100, ascii=False)
    assert "decode, mean" in text and "one bar = the time of its steps" in text
    assert "is shown" not in text


def test_a_cost_of_slow_steps_is_not_told_of_each() -> None:
    """The mean of 10 ms a step is no cost of a step that is idle for none."""
    finding = replace(
        plan_finding(range(1)), rule="gap.host", cost_ns=90_000_000, gain_ns=90_000_000
    )
    said = verdict(replace(_with_a_slow_first_step(), findings=(finding,)))
    assert "(costs 90.0 ms in 10 steps)" in said
    assert "That would gain 90.0 ms in 10 steps." in said


def _reads(*counts: int) -> Analysis:
    """A recording of the CPU with a read at each of so many lines."""
    findings = [
        Finding(
            "sync.hidden",
            "info",
            "would wait on a GPU: the host reads a value from the device: aten::item",
            count,
            steps=tuple(range(number + 1)),
            where=Where(f"loop{number}.py", 3, "pick", None, "aten::item"),
            detail={"would_wait": True, "library": "transformers" if number else None},
            advice="Keep the value on the device.",
        )
        for number, count in enumerate(counts)
    ]
    steps = [Step("decode", {"other.norm": 900.0})] * 4
    return make_analysis(steps, devices=0, findings=tuple(findings))


def test_waits_that_only_a_gpu_would_make_are_one_entry_with_their_places() -> None:
    analysis = _reads(4, 9, 1)
    text = " ".join(render_text(analysis, width=100, ascii=False).split())
    assert text.count("would wait on a GPU") == 1
    assert (
        "would wait on a GPU, at 3 places: loop1.py:3 pick, operator aten::item through "
        "transformers (9 times); loop0.py:3 pick, operator aten::item (4 times); loop2.py:3 pick"
    ) in text
    assert "3/4" in text and "Nothing on a CPU." in text
    assert to_html(analysis).count("would wait on a GPU") == 1
    assert len(to_report(analysis)["findings"]) == 3


def test_one_wait_that_only_a_gpu_would_make_keeps_its_own_words() -> None:
    text = " ".join(render_text(_reads(4), width=100, ascii=False).split())
    assert "would wait on a GPU: the host reads a value" in text
    assert "do: Keep the value on the device." in text


def test_the_median_step_of_an_even_number_is_their_median() -> None:
    walls = (1_000.0, 2_000.0, 4_000.0, 50_000.0)
    analysis = make_analysis([Step("decode", {"ffn.projection": us}) for us in walls])
    (phase,) = analysis.phases
    level = usual_level(analysis, phase_levels(analysis)[0])
    assert level.per_step(level.total_ns) == phase.median_ns == 3_000_000


def test_a_cost_between_the_steps_is_none_of_slow_ones() -> None:
    finding = replace(
        plan_finding(range(10)),
        rule="gap.host",
        cost_ns=20_000_000,
        gain_ns=20_000_000,
        detail={"between_steps_ns": 20_000_000},
    )
    said = verdict(replace(_with_a_slow_first_step(), findings=(finding,)))
    assert "(costs 2.00 ms a step, between the steps)" in said


def test_titles_of_the_table_stand_above_their_columns() -> None:
    steps = [Step(phase, {"ffn.projection": 900.0}) for phase in ("forward", "training") * 3]
    lines = render_text(make_analysis(steps), width=120, ascii=False).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("WHERE"))
    ends = [match.end() for match in re.finditer(r"(mean|recording)\b", lines[at])]
    assert ends == [match.end() for match in re.finditer("share", lines[at + 1])]
