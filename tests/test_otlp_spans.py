"""The tree of spans: levels, times, totals, ids, folding, joining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.make_analysis import Step, make_analysis
from tests.make_traces import TraceMaker
from tests.otlp_receiver import HttpReceiver
from tests.otlp_samples import BASE_NS, attributes_of, kernel_analysis, kernel_trace
from tests.rank_samples import late_rank_calls, rank_trace
from tests.sample_analyses import decode_analysis, hostile_analysis, unusable_analysis
from tracer.analysis import GROUPS, Analysis
from tracer.analyzers import analyze
from tracer.collectors.kineto.trace import read_kineto
from tracer.exporters.json_report import to_report
from tracer.exporters.levels import step_sums
from tracer.exporters.otlp import current_context, describe, export_otlp
from tracer.exporters.otlp.export import Content, plan_recordings
from tracer.exporters.otlp.names import short_kernel_name
from tracer.exporters.otlp.resource import resource_attributes
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.exporters.text import render_text
from tracer.findings import Finding, Where
from tracer.rank_analysis import RankAnalysis
from tracer.ranks.among import compare_all

_trace: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def spans_of(
    analyses: Analysis | Sequence[Analysis], across: RankAnalysis | None = None, **content: Any
) -> list[Any]:
    """Spans as a receiver reads them."""
    listed = [analyses] if isinstance(analyses, Analysis) else list(analyses)
    return [
        span
        for recording in plan_recordings(listed, Content(**content), {}, across)
        for batch in recording.batches()
        for span in _parsed(batch.message())
    ]


def _parsed(message: bytes) -> Iterator[Any]:
    request = _trace.ExportTraceServiceRequest.FromString(message)
    yield from request.resource_spans[0].scope_spans[0].spans


def level(spans: Sequence[Any], name: str) -> list[Any]:
    return [span for span in spans if attributes_of(span)["tracer.level"] == name]


def total(spans: Sequence[Any], key: str) -> int:
    return sum(attributes_of(span).get(key, 0) for span in spans)


def assert_tree(spans: Sequence[Any]) -> None:
    """One root, each other span below one that exists, no id twice."""
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids)
    assert len({span.trace_id for span in spans}) == 1
    orphans = [s for s in spans if s.parent_span_id and s.parent_span_id not in set(ids)]
    assert orphans == []
    assert sum(not span.parent_span_id for span in spans) == 1


def assert_totals(analysis: Analysis, spans: Sequence[Any]) -> None:
    """Kernels by name and groups by nanosecond are those of the JSON report."""
    report = to_report(analysis)
    kernels: Counter[tuple[str, ...]] = Counter()
    counts: Counter[tuple[str, ...]] = Counter()
    groups: Counter[str] = Counter(dict.fromkeys(GROUPS, 0))
    for span in [*level(spans, "kernels"), *level(spans, "idle")]:
        found = attributes_of(span)
        groups[found["tracer.group"]] += found["tracer.charged_ns"]
        if "tracer.kernel.name" in found:
            key = tuple(found[f"tracer.{k}"] for k in ("kernel.name", "group", "part", "how"))
            kernels[key] += found["tracer.total_ns"]
            counts[key] += found["tracer.count"]
    rows = {tuple(k[x] for x in ("name", "group", "part", "how")): k for k in report["kernels"]}
    assert kernels == {key: row["total_ns"] for key, row in rows.items()}
    assert counts == {key: row["count"] for key, row in rows.items()}
    assert groups == {group: report["breakdown"][group]["ns"] for group in GROUPS}
    run = attributes_of(level(spans, "run")[0])
    assert {g: run[f"tracer.{g}_ns"] for g in GROUPS} == groups
    steps = sorted(map(attributes_of, level(spans, "step")), key=lambda step: step["tracer.step"])
    if len(steps) == len(report["steps"]):
        assert [{g: s[f"tracer.{g}_ns"] for g in GROUPS} for s in steps] == [
            step["breakdown"] for step in report["steps"]
        ]


def layered(steps: int, layers: int, kernels: int = 4) -> Analysis:
    """Steps of a model whose layers have attention and mlp."""
    maker = TraceMaker(base_ns=BASE_NS)
    at = 0.0
    for step in range(steps):
        width = layers * 2 * (kernels * 10 + 10) + 50
        maker.annotation(f"ProfilerStep#{step}", at, width)
        maker.module("", "Model", at + 1, width - 2)
        place = at + 5
        for layer in range(layers):
            for name, kind in (("self_attn", "Attention"), ("mlp", "MLP")):
                maker.module(f"layers.{layer}.{name}", kind, place, kernels * 10 + 5)
                for kernel in range(kernels):
                    start = place + 1 + kernel * 10
                    maker.launch(f"{name}_{kernel}", start=start, run=(start + 4, start + 9))
                place += kernels * 10 + 10
        at += width + 10
    return analyze(maker.build())


def test_a_small_run_shows_each_layer() -> None:
    analysis = layered(2, 3)
    spans = spans_of(analysis)
    assert_tree(spans)
    assert_totals(analysis, spans)
    blocks = Counter(span.name for span in level(spans, "block"))
    assert blocks == {f"layers.{i}.{n}": 2 for i in range(3) for n in ("self_attn", "mlp")}
    by_id = {span.span_id: span for span in spans}
    kernel = next(s for s in level(spans, "kernels") if s.name == "mlp_2")
    above = []
    while kernel.parent_span_id:
        kernel = by_id[kernel.parent_span_id]
        above.append(attributes_of(kernel)["tracer.level"])
    assert above == ["block", "step", "run"]


def test_times_are_the_recordings_own_nanoseconds() -> None:
    analysis = layered(1, 1)
    spans = spans_of(analysis, detail="kernels")
    trace, work = analysis.trace, analysis.work["event"].tolist()
    wanted = Counter((int(trace.start_ns[e]), int(trace.end_ns[e])) for e in work)
    kernels = level(spans, "kernel")
    assert Counter((s.start_time_unix_nano, s.end_time_unix_nano) for s in kernels) == wanted
    assert all(
        attributes_of(s)["tracer.duration_ns"] == s.end_time_unix_nano - s.start_time_unix_nano
        for s in spans
    )
    step = level(spans, "step")[0]
    assert step.start_time_unix_nano == analysis.steps["start_ns"].iloc[0]
    run = level(spans, "run")[0]
    assert run.start_time_unix_nano == analysis.window.start_ns
    assert run.end_time_unix_nano == analysis.window.end_ns


def test_a_kernel_span_says_what_the_report_says() -> None:
    analysis = layered(1, 1)
    span = next(
        s for s in level(spans_of(analysis, detail="kernels"), "kernel") if s.name == "mlp_0"
    )
    found = attributes_of(span)
    assert found["tracer.kernel.name"] == "mlp_0"
    assert (found["tracer.module"], found["tracer.device"], found["tracer.stream"]) == (
        "layers.0.mlp", 0, 7,
    )  # fmt: skip
    assert {"tracer.group", "tracer.part", "tracer.how", "tracer.confidence"} <= set(found)
    assert found["tracer.correlation"] > 0 and found["tracer.step"] == 0
    assert not any(key.startswith("gen_ai.") for key in found)


@pytest.mark.parametrize(
    ("max_spans", "wanted"),
    [(4000, "layers"), (420, "blocks"), (300, "steps"), (250, "run"), (200, "ranges")],
)
def test_less_room_means_less_detail_and_the_same_totals(max_spans: int, wanted: str) -> None:
    steps = {"layers": 10, "ranges": 400}.get(wanted, 25)
    analysis = layered(steps, 6) if wanted != "ranges" else kernel_analysis(steps, 5, names=5)
    if wanted == "run":
        analysis = kernel_analysis(190, 5, names=5)
    spans = spans_of(analysis, max_spans=max_spans)
    run = attributes_of(level(spans, "run")[0])
    assert run["tracer.detail"] == wanted
    assert len(spans) <= max_spans and run["tracer.spans"] == len(spans)
    assert_tree(spans)
    assert_totals(analysis, spans)
    covered = sum(attributes_of(span)["tracer.count"] for span in level(spans, "step"))
    assert covered == steps if wanted != "run" else covered == 190
    assert run["tracer.folded.how"]


@pytest.mark.parametrize(
    "name",
    ["h200/decode_llama8b_modules", "h200/train_lora_4layer", "h200x2/tp_decode_rank0",
     "h200/graph_llama8b_capture_and_replay"],
)  # fmt: skip
def test_totals_of_real_recordings(shared: Path, name: str) -> None:
    analysis = analyze(read_kineto(shared / f"{name}.json.gz"))
    spans = spans_of(analysis)
    assert len(spans) <= 4000
    assert_tree(spans)
    assert_totals(analysis, spans)


def test_case_38_a_trace_of_100_000_kernels_is_folded() -> None:
    analysis = kernel_analysis(20, 5000)
    spans = spans_of(analysis)
    assert len(spans) <= 5000
    assert len(level(spans, "step")) == 20
    assert len(level(spans, "block")) >= 20
    assert_tree(spans)
    assert_totals(analysis, spans)
    run = attributes_of(level(spans, "run")[0])
    whole = level(spans, "kernel")
    assert run["tracer.folded.kernels"] == 100_000 - len(whole)
    assert run["tracer.folded.into"] == len(level(spans, "kernels"))
    assert len(spans_of(analysis, detail="kernels")) > 100_000


def test_the_longest_kernels_are_kept_whole_below_their_folded_span() -> None:
    analysis = kernel_analysis(2, 200, names=2)
    durations = analysis.trace.events["duration_ns"].to_numpy().copy()
    longest = analysis.work["event"].to_numpy()[[7, 250]]
    durations[longest] = 900
    analysis = analyze(
        replace(analysis.trace, events=analysis.trace.events.assign(duration_ns=durations))
    )
    spans = spans_of(analysis)
    by_id = {span.span_id: span for span in spans}
    whole = level(spans, "kernel")
    lengths = sorted(attributes_of(s)["tracer.duration_ns"] for s in whole)
    assert lengths[-2:] == [900, 900]
    assert all(attributes_of(by_id[s.parent_span_id])["tracer.level"] == "kernels" for s in whole)
    assert_totals(analysis, spans)


@pytest.mark.parametrize(("steps", "max_spans", "above"), [(6, 4000, "outside"), (260, 200, "run")])
def test_each_pause_that_a_finding_names_is_a_span_with_its_line(
    steps: int, max_spans: int, above: str
) -> None:
    """What a loop does between its steps, on a CPU: one span of idle, the pauses below it."""
    maker = TraceMaker(base_ns=BASE_NS)
    for step in range(steps):
        at = 30_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 10_000)
        maker.operator("aten::mm", at, 10_000)
        if step % 2 == 0:
            maker.host("frame", "train.py(40): save", at + 10_100, 19_000)
    analysis = analyze(maker.build())
    (save,) = (f for f in analysis.findings if f.where.function == "save")
    spans = spans_of(analysis, max_spans=max_spans)
    assert_tree(spans)
    assert_totals(analysis, spans)
    by_id = {span.span_id: span for span in spans}
    pauses = [s for s in level(spans, "pause") if s.name == "gap.host: save"]
    assert len(pauses) == min(steps // 2, 50) and len(spans) <= max_spans
    for span in pauses:
        found, idle = attributes_of(span), by_id[span.parent_span_id]
        assert span.end_time_unix_nano - span.start_time_unix_nano == 20_000_000
        assert found["tracer.duration_ns"] == 20_000_000
        assert (found["code.file.path"], found["code.line.number"]) == ("train.py", 40)
        assert found["tracer.part"] == "host" and found["tracer.finding.title"] == save.title
        assert idle.name == "idle: host" and "tracer.step" not in found
        assert attributes_of(by_id[idle.parent_span_id])["tracer.level"] == above
        assert idle.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= idle.end_time_unix_nano


def test_many_kernel_names_are_bounded_too() -> None:
    analysis = kernel_analysis(3, 3000, names=3000)
    spans = spans_of(analysis, max_spans=300)
    assert len(spans) <= 300
    others = [s for s in level(spans, "kernels") if s.name == "other kernels"]
    assert sum(attributes_of(s)["tracer.names"] for s in others) > 2000
    assert total(level(spans, "kernels"), "tracer.total_ns") == 3 * 3000 * 700


def test_what_steps_share_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time for a run grew with the square of its steps."""
    sums: list[Analysis] = []

    def counted(analysis: Analysis) -> Any:
        sums.append(analysis)
        return step_sums(analysis)

    monkeypatch.setattr(describe, "step_sums", counted)
    analysis = kernel_analysis(300, 3)
    (recording,) = plan_recordings([analysis], Content(detail="kernels"), {})
    blocks = list(recording.blocks())
    assert sum(map(len, blocks)) == recording.spans > 300 * 5
    assert sum(len(block.templates) for block in blocks) < 300 + 30
    assert len(sums) == 1


def test_training_steps_have_phases() -> None:
    maker = TraceMaker(base_ns=BASE_NS)
    maker.annotation("ProfilerStep#0", 0, 100)
    maker.launch("forward_kernel", start=5, run=(10, 20), operator="aten::mm")
    maker.launch("backward_kernel", start=40, run=(45, 60), operator="aten::mm")
    analysis = analyze(maker.build())
    work = analysis.work.copy()
    work["direction"] = work["direction"].astype(str).replace("", "x").astype("category")
    work["direction"] = ["forward", "backward"]
    work["direction"] = work["direction"].astype("category")
    spans = spans_of(replace(analysis, work=work))
    assert_tree(spans)
    by_id = {span.span_id: span for span in spans}
    phases = level(spans, "phase")
    assert sorted(s.name for s in phases) == ["backward", "forward"]
    kernel = next(s for s in level(spans, "kernels") if s.name == "backward_kernel")
    block = by_id[kernel.parent_span_id]
    assert by_id[block.parent_span_id].name == "backward"


def test_the_same_run_has_the_same_ids_and_another_run_others() -> None:
    first = spans_of(layered(2, 2))
    again = spans_of(layered(2, 2))
    assert [s.SerializeToString() for s in first] == [s.SerializeToString() for s in again]
    other = spans_of(layered(2, 3))
    assert first[0].trace_id != other[0].trace_id
    full = spans_of(layered(2, 2), detail="kernels")
    assert level(full, "run")[0].span_id == level(first, "run")[0].span_id
    assert [s.span_id for s in level(full, "step")] == [s.span_id for s in level(first, "step")]


def test_ranks_of_one_run_are_one_trace() -> None:
    ranks = [kernel_analysis(1, 20, rank=r, world_size=2) for r in (0, 1)]
    spans = spans_of(ranks)
    assert_tree(spans)
    root = level(spans, "ranks")[0]
    runs = level(spans, "run")
    assert root.name == "run of 2 ranks"
    assert [s.parent_span_id for s in runs] == [root.span_id] * 2
    assert [attributes_of(s)["tracer.rank"] for s in runs] == [0, 1]
    assert spans_of(ranks[::-1])[0].trace_id == root.trace_id


def test_ranks_that_export_on_their_own_share_the_trace_of_their_job() -> None:
    traces = [kernel_trace(1, 20, rank=r, world_size=2, extra={"job": "j-1"}) for r in (0, 1)]
    alone = [spans_of(analyze(trace)) for trace in traces]
    assert alone[0][0].trace_id == alone[1][0].trace_id
    assert not {s.span_id for s in alone[0]} & {s.span_id for s in alone[1]}


def test_recordings_that_do_not_belong_together_are_traces_of_their_own() -> None:
    spans = spans_of([kernel_analysis(1, 20), kernel_analysis(1, 30)])
    assert len({span.trace_id for span in spans}) == 2


def test_a_run_joins_the_request_that_caused_it() -> None:
    spans = spans_of(layered(1, 1), traceparent={"traceparent": PARENT, "tracestate": "a=b"})
    run = level(spans, "run")[0]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert (run.parent_span_id.hex(), run.trace_state, run.flags) == (SPAN, "a=b", 0x301)
    assert all(span.flags == 0x101 for span in spans if span is not run)


def test_a_run_joins_what_its_recording_or_the_environment_names() -> None:
    recorded = kernel_trace(1, 5, extra={"traceparent": PARENT})
    assert spans_of(analyze(recorded))[0].trace_id.hex() == TRACE
    (planned,) = plan_recordings([kernel_analysis(1, 5)], Content(), {"TRACEPARENT": PARENT})
    assert planned.trace_id.hex() == TRACE


def test_inside_an_active_span_the_run_becomes_its_child() -> None:
    sdk: Any = import_module("opentelemetry.sdk.trace")
    tracer = sdk.TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("request") as span:
        found = current_context({})
        spans = spans_of(layered(1, 1))
    context = span.get_span_context()
    assert found is not None and found.span_id == context.span_id.to_bytes(8, "big")
    assert spans[0].trace_id == context.trace_id.to_bytes(16, "big")
    assert level(spans, "run")[0].parent_span_id == context.span_id.to_bytes(8, "big")
    assert current_context({}) is None


def test_links_to_requests_stand_on_run_and_steps() -> None:
    spans = spans_of(layered(2, 1), links=[PARENT])
    for span in [*level(spans, "run"), *level(spans, "step")]:
        assert [(x.trace_id.hex(), x.span_id.hex()) for x in span.links] == [(TRACE, SPAN)]


def request(name: str, start_us: float, end_us: float, **more: Any) -> dict[str, Any]:
    start, end = BASE_NS + int(start_us * 1000), BASE_NS + int(end_us * 1000)
    middle = (start + end) // 2
    return {
        "id": name,
        "stages": [
            {"name": "prefill", "start_ns": start, "duration_ns": middle - start},
            {"name": "decode", "start_ns": middle, "duration_ns": end - middle},
        ],
        **more,
    }


def test_a_step_of_one_request_is_its_child_and_of_several_is_linked_to_them() -> None:
    analysis = kernel_analysis(2, 20)
    served = [
        request("a", 10, 70_000, operation="chat", model="m", provider="vllm",
                tokens={"input": 5, "output": 9}),
        request("b", 50_000, 70_000, traceparent=PARENT),
    ]  # fmt: skip
    spans = spans_of(analysis, requests=served)
    assert_tree(spans)
    first, second = level(spans, "request")
    assert (first.name, second.name) == ("chat m", "request")
    found = attributes_of(first)
    assert found["gen_ai.usage.input_tokens"] == 5 and found["gen_ai.usage.output_tokens"] == 9
    assert found["gen_ai.operation.name"] == "chat" and found["tracer.request.id"] == "a"
    steps = level(spans, "step")
    run = level(spans, "run")[0]
    assert steps[0].parent_span_id == first.span_id and not steps[0].links
    assert steps[1].parent_span_id == run.span_id
    links = [(link.trace_id, link.span_id.hex()) for link in steps[1].links]
    assert links == [(run.trace_id, first.span_id.hex()), (bytes.fromhex(TRACE), SPAN)]
    stages = level(spans, "stage")
    assert [s.name for s in stages] == ["prefill", "decode"] * 2
    genai = [s for s in spans if any(k.startswith("gen_ai.") for k in attributes_of(s))]
    assert genai == [first, second]


def test_a_finding_is_an_event_with_its_line() -> None:
    analysis = layered(1, 1)
    row = int(analysis.work["event"].iloc[2])
    finding = Finding(
        rule="sync.hidden", severity="critical", title="waits for a scalar", count=3,
        cost_ns=1234, ratio=0.5, steps=(0,), where=Where("train.py", 17, "loop", "layers.0", "op"),
        detail={"cause": "scalar-read", "calls": [1, 2]}, advice="read it later", events=(row,),
    )  # fmt: skip
    run = level(spans_of(replace(analysis, findings=(finding,))), "run")[0]
    (event,) = run.events
    found = attributes_of(event)
    assert event.name == "sync.hidden"
    assert event.time_unix_nano == analysis.trace.start_ns[row]
    assert found["code.file.path"] == "train.py" and found["code.line.number"] == 17
    assert found["code.function.name"] == "loop"
    assert found["tracer.finding.cost_ns"] == 1234 and found["tracer.finding.steps"] == [0]
    assert found["tracer.finding.detail.cause"] == "scalar-read"
    assert "tracer.finding.gain_ns" not in found


@pytest.mark.parametrize("make", [decode_analysis, hostile_analysis, unusable_analysis])
def test_the_run_says_what_the_report_begins_with(make: Callable[[], Analysis]) -> None:
    analysis = make()
    run = level(spans_of(analysis), "run")[0]
    assert not run.parent_span_id
    answer = attributes_of(run)["tracer.answer"]
    assert answer == to_report(analysis)["answer"]
    text = " ".join(render_text(analysis, width=100, ascii=False).split())
    assert text.startswith(answer)


def test_the_span_over_ranks_says_who_is_late() -> None:
    calls = late_rank_calls(ranks=3, late=1)
    ranks = {rank: analyze(rank_trace(rank, 3, calls, busy={1: "gemm"})) for rank in (0, 1)}
    across = compare_all(ranks)
    spans = spans_of(list(ranks.values()), across)
    root = level(spans, "ranks")[0]
    found = attributes_of(root)
    assert not root.parent_span_id
    assert found["tracer.answer"] == ranks_verdict(across)
    assert found["tracer.answer"].startswith("The others wait for rank 1: last in 20 of 20")
    assert found["tracer.integrity"] == "partial"
    assert "ranks.missing: rank 2 missing, 2 of 3" in found["tracer.notes"]
    (event,) = root.events
    assert event.name == "comm.straggler"
    assert event.time_unix_nano == root.start_time_unix_nano
    assert attributes_of(event)["tracer.finding.detail.rank"] == 1
    answers = [attributes_of(run)["tracer.answer"] for run in level(spans, "run")]
    assert answers == [to_report(analysis)["answer"] for analysis in ranks.values()]


def test_what_was_not_measured_is_absent_with_the_reason() -> None:
    analysis = make_analysis(
        [Step("decode", {"overhead.unexplained": 10})],
        accounted=False,
        breakdown_reason="no device row was recorded",
    )
    spans = spans_of(analysis)
    found = attributes_of(level(spans, "run")[0])
    assert found["tracer.breakdown"] == "none: no device row was recorded"
    assert not any(key.endswith("attention_ns") for key in found)
    assert "tracer.busy_ns" not in found and found["tracer.integrity"] == "unusable"


def test_a_recording_without_steps_or_work_is_one_span_or_two() -> None:
    empty = TraceMaker(base_ns=BASE_NS)
    empty.operator("aten::add", 0, 5)
    assert_tree(spans_of(analyze(empty.build())))


def test_resource_attributes_name_service_process_and_gpu() -> None:
    analysis = layered(1, 1)
    with HttpReceiver() as receiver:
        export_otlp(
            analysis, endpoint=receiver.endpoint, protocol="http/protobuf", environ={},
            service_name="svc", resource={"team": "x"},
        )  # fmt: skip
    found = attributes_of(receiver.requests[0].resource_spans[0].resource)
    assert found["service.name"] == "svc" and found["team"] == "x"
    assert found["telemetry.sdk.language"] == "python"
    assert "host.name" not in found  # a file does not tell on which host it was made


def on_devices(count: int) -> Analysis:
    """One kernel on each device; names and UUIDs are known."""
    maker = TraceMaker(base_ns=BASE_NS)
    maker.annotation("ProfilerStep#0", 0, 100)
    for device in range(count):
        maker.launch("k", start=5 + device, run=(10, 20), device=device)
        maker.side("devices", device=device, name="NVIDIA H200")
    return analyze(maker.build(facts={"device_uuids": {"0": "GPU-a", "1": "GPU-b"}}))


def test_the_gpu_stands_on_the_resource_or_with_several_on_their_kernels() -> None:
    wanted = {"hw.name": "NVIDIA H200", "hw.vendor": "NVIDIA", "hw.model": "H200", "hw.type": "gpu"}
    one = resource_attributes(on_devices(1), environ={})
    assert {k: one[k] for k in wanted} == wanted and one["hw.id"] == "GPU-a"
    two = on_devices(2)
    assert resource_attributes(two, environ={})["hw.id"] is None
    kernels = [attributes_of(span) for span in level(spans_of(two), "kernels")]
    assert [k["hw.id"] for k in kernels] == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::F<x>>(int)",
         "vectorized_elementwise_kernel"),
        ("void elementwise_kernel<128, gpu_kernel_impl<BinaryFunctor<float, MulFunctor<float>",
         "elementwise_kernel: Mul"),
        ("void at::native::vectorized_elementwise_kernel<4, at::CUDAFunctorOnSelf_add<long>>(int)",
         "vectorized_elementwise_kernel: add"),
        ("void elementwise_kernel<2, (anonymous namespace)::launch_clamp_scalar(at::X&)::{lambda",
         "elementwise_kernel: clamp_scalar"),
        ("void reduce_kernel<512, 1, ReduceOp<float, func_wrapper_t<float, sum_functor<float>>>(x)",
         "reduce_kernel: sum"),
        ("void unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::T&)",
         "unrolled_elementwise_kernel: direct_copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::GeluCUDAKernelImpl(at::T&)>",
         "vectorized_elementwise_kernel: Gelu"),
        ("void cutlass::Kernel2<cutlass_80_gemm_bf16>(P)", "Kernel2: cutlass_80_gemm_bf16"),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_NNT", "nvjet_tst_64x8_64x16_1x4_h_bz_NNT"),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("<lambda>", "<lambda>"),
        ("", "(no name)"),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert short_kernel_name(name) == short
