"""What changed between recordings of real work: a cause and its clean twin, and each to itself."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.recordings import analysis_of, kineto_files
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.diff.compare import compare
from tracer.diff_analysis import DiffAnalysis
from tracer.errors import TracerError
from tracer.exporters.diff_findings import cost_changes
from tracer.exporters.diff_json import to_diff
from tracer.exporters.diff_text import render_diff
from tracer.exporters.diff_verdict import diff_verdict
from tracer.store import load_run

RECORDED = Path(__file__).parent / "recordings" / "fallbacks"
# Planted causes of the recordings beside these tests, and the rule that finds each.
CAUSES = {
    "attention_by_hand": "fallback.attention",
    "attention_head_size": "fallback.attention",
    "attention_math": "fallback.attention",
    "experts_in_a_loop": "fallback.moe",
    "layer_on_cpu": "device.cpu_tensor",
    "matmul_fp32": "fallback.matmul",
    "matmul_misaligned": "fallback.matmul",
    "offloaded_layers": "transfer.repeated_weights",
    "quantized_weights": "fallback.quantized_matmul",
}


@lru_cache(maxsize=4)
def recorded(name: str) -> Analysis:
    return analyze(load_run(RECORDED / name))


def twin(name: str) -> DiffAnalysis:
    return compare(recorded(name), recorded(f"{name}_clean"))


def of_shared(shared: Path, before: str, after: str) -> DiffAnalysis:
    files = (shared / "h200" / f"{name}.json.gz" for name in (before, after))
    return compare(*map(analysis_of, files))


def said(diff: DiffAnalysis) -> str:
    return diff_verdict(diff, cost_changes(diff))


def _statuses(diff: DiffAnalysis, rule: str) -> set[str]:
    return {change.status for change in diff.findings if change.finding.rule == rule}


def _largest(diff: DiffAnalysis) -> str:
    """The part of the step that changed most."""
    groups = to_diff(diff)["phases"][0]["breakdown"]["groups"]
    parts = {f"{g}.{p}": times for g, row in groups.items() for p, times in row["parts"].items()}
    return max(parts, key=lambda name: abs(parts[name]["change_ns"]))


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_gone_and_comes_back(name: str) -> None:
    there, back = twin(name), compare(recorded(f"{name}_clean"), recorded(name))
    assert _statuses(there, CAUSES[name]) == {"gone"}
    assert _statuses(back, CAUSES[name]) == {"new"}
    assert there.comparable
    assert back.comparable
    measured, reverse = there.phases[0].step, back.phases[0].step
    assert measured.change_ns == -reverse.change_ns


@pytest.mark.parametrize("name", ["attention_math", "matmul_fp32", "matmul_misaligned"])
def test_the_promised_gain_is_the_measured_one(name: str) -> None:
    """Estimates from shapes are held to a third, of steps in which nothing else changed."""
    (promise,) = [
        row.prediction
        for row in cost_changes(twin(name))
        if row.prediction is not None and row.change.finding.rule == CAUSES[name]
    ]
    ratio = promise.measured_gain_ns / promise.predicted_gain_ns
    assert 2 / 3 < ratio < 3 / 2


def test_a_step_that_changed_by_chance_at_most_keeps_no_promise() -> None:
    diff = twin("attention_head_size")
    assert diff.phases[0].step.within_scatter is True
    assert [row.prediction for row in cost_changes(diff) if row.prediction is not None] == []


def test_offloaded_layers_travel_no_more() -> None:
    diff = twin("offloaded_layers")
    assert _largest(diff) == "overhead.transfer"
    assert "copies between host and GPU" in said(diff)
    (copies, *_) = to_diff(diff)["phases"][0]["kernels"]
    assert (copies["name"].startswith("Memcpy HtoD"), copies["status"]) == (True, "gone")


@pytest.mark.parametrize(
    ("before", "after", "rule", "part", "status"),
    [
        ("sync_clean", "sync_item", "gap.compile", "overhead.compile", "gone"),
        ("sync_item", "sync_host_work", "gap.host", "overhead.host", "new"),
        ("fallback_sdpa_math", "fallback_sdpa_flash_attention", "fallback.attention",
         "attention.core", "gone"),
        ("graph_eager_same", "graph_replay_only", "gap.launch_bound", "overhead.launch", "gone"),
        ("compile_default", "compile_reduce_overhead", "gap.launch_bound", "overhead.launch",
         "gone"),
    ],
)  # fmt: skip
def test_pairs_with_a_known_cause(
    before: str, after: str, rule: str, part: str, status: str, shared: Path
) -> None:
    diff = of_shared(shared, before, after)
    assert _statuses(diff, rule) == {status}
    assert _largest(diff) == part
    assert diff.phases[0].step.within_scatter is False
    faster = "faster" if status == "gone" else "slower"
    assert re.search(rf"^(Not like .*\))?\.? ?B is [\d.]+ % {faster} a ", said(diff))


def test_a_loop_replayed_as_a_graph_is_compared_from_start_to_start() -> None:
    graphs = RECORDED.parent / "graphs"
    diff = compare(*(analyze(load_run(graphs / name)) for name in ("eager", "captured")))
    assert diff.comparable
    assert "faster a decode step from start to start" in said(diff)
    groups = to_diff(diff)["phases"][0]["breakdown"]["groups"]
    assert groups["overhead"]["parts"]["launch"]["change_ns"] < -5_000_000
    for group in ("attention", "ffn"):  # the same kernels
        assert abs(groups[group]["change_ns"]) < 0.15 * groups[group]["before_ns"]


def test_kernels_that_did_not_change_are_not_named(shared: Path) -> None:
    """The same decode, with a wait in one of them: its kernels are the same."""
    (phase,) = to_diff(of_shared(shared, "sync_clean", "sync_item"))["phases"]
    told = {kernel["name"]: kernel["status"] for kernel in phase["kernels"]}
    assert [n for n, status in told.items() if status != "still"] == [
        "Memcpy DtoH (Device -> Pinned)"
    ]
    groups = phase["breakdown"]["groups"]
    for group in ("attention", "ffn", "other"):
        assert abs(groups[group]["change_ns"]) < 0.02 * groups[group]["before_ns"]


def test_the_promise_for_the_plan_that_was_built_anew(shared: Path) -> None:
    diff = of_shared(shared, "sync_clean", "sync_item")
    promised = [row.prediction for row in cost_changes(diff) if row.prediction is not None]
    assert [p.predicted_gain_ns for p in promised] == [36_774_513]
    assert promised[0].measured_gain_ns == pytest.approx(36_774_513, rel=0.02)


def test_python_frames_on_one_side_are_said(shared: Path) -> None:
    diff = of_shared(shared, "decode8b_cpu_cuda", "decode8b_stack")
    assert not diff.comparable
    assert "only B was recorded with Python frames" in said(diff)


def test_other_models_are_said_to_be(shared: Path) -> None:
    diff = of_shared(shared, "bare_gpt2_decode", "decode_llama8b_modules")
    assert said(diff) == (
        "A and B cannot be compared (different models: layers 4 in A, 32 in B). A decode step "
        "takes 77.1 ms in A, 93.4 ms in B."
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [("matmul_fp32", "attention_math"), ("quantized_weights_clean", "matmul_misaligned")],
)
def test_other_programs_are_said_to_be(before: str, after: str) -> None:
    answer = said(compare(recorded(before), recorded(after)))
    assert answer.startswith("A and B cannot be compared (two programs: ")


@pytest.mark.parametrize("folder", ["h200", "h200x2", "traces"])
def test_nothing_changes_from_a_recording_to_itself(folder: str, shared: Path) -> None:
    compared = 0
    for path in kineto_files(folder):
        if path.stat().st_size > 2_000_000:
            continue
        try:
            analysis = analysis_of(path)
        except TracerError:
            continue
        diff = compare(analysis, analysis)
        if diff.phases:
            compared += 1
            assert _changed(diff) == [], path.name
            assert "Nothing changed" in said(diff), path.name
        assert not any(d.breaks for d in diff.differences if d.rule != "diff.integrity")
        render_diff(diff, width=80, ascii=True)
    assert compared >= {"h200": 40, "h200x2": 8, "traces": 25}[folder]


def _changed(diff: DiffAnalysis) -> list[Any]:
    document = to_diff(diff)
    found: list[Any] = [f for f in document["findings"] if f["status"] != "still" or f["change_ns"]]
    for phase in document["phases"]:
        found += [phase["step"]] if phase["step"]["change_ns"] else []
        found += [m for m in phase["modules"] if m["device"]["change_ns"]]
        found += [k for k in phase["kernels"] if k["total"]["change_ns"]]
        breakdown = phase["breakdown"]
        if breakdown is None:
            continue
        sums = breakdown["groups"].values()
        found += [group for group in sums if group["change_ns"]]
        assert breakdown["sum"]["before_ns"] == sum(group["before_ns"] for group in sums)
    return found
