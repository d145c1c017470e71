"""Metrics, and exports from a thread that the program never waits for."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.otlp_receiver import GrpcReceiver, HttpReceiver, SilentServer, closed_port
from tests.otlp_samples import BASE_NS, attributes_of, kernel_analysis
from tests.test_otlp_spans import spans_of
from tracer.analysis import Analysis
from tracer.errors import UsageError
from tracer.events import SIDE_TABLES, make_table
from tracer.exporters.otlp import BackgroundExport, DeliveryReport, export_otlp
from tracer.exporters.otlp.delivery import Clock
from tracer.exporters.otlp.live import LiveExport, Progress, RunningSums
from tracer.exporters.otlp.metrics import (
    STEP_BOUNDS,
    Distribution,
    PeriodicMetrics,
    Sample,
    sample_of,
    step_points,
)
from tracer.exporters.otlp.options import Arguments, resolve
from tracer.exporters.otlp.resource import device_attributes, resource_attributes
from tracer.findings import Finding, Where

STAGES = [
    {"name": "queue", "start_ns": BASE_NS, "duration_ns": 10_000_000},
    {"name": "prefill", "start_ns": BASE_NS + 10_000_000, "duration_ns": 30_000_000},
    {"name": "decode", "start_ns": BASE_NS + 40_000_000, "duration_ns": 100_000_000},
]


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """Two steps, GPU counters and one request."""
    made = kernel_analysis(2, 50)
    metrics = make_table(
        SIDE_TABLES["metrics"],
        {
            "device": [0, 0, 0, 0],
            "metric": ["power_watts", "power_watts", "gpu_utilization_ratio", "novel_thing"],
            "time_ns": [BASE_NS, BASE_NS + 5, BASE_NS, BASE_NS],
            "value": [300.0, 410.5, 0.75, 3.0],
        },
    )
    trace = replace(made.trace, tables={**made.trace.tables, "metrics": metrics})
    request = {"id": "r", "stages": STAGES, "tokens": 11, "model": "m", "operation": "chat"}
    return replace(made, trace=trace, requests=(request,))


def metrics_of(receiver: HttpReceiver | GrpcReceiver) -> dict[str, Any]:
    return {
        metric.name: metric
        for request in receiver.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_metrics_of_a_recording(analysis: Analysis, protocol: str) -> None:
    receiver = GrpcReceiver() if protocol == "grpc" else HttpReceiver()
    with receiver:
        report = export_otlp(
            analysis, endpoint=receiver.endpoint, protocol=protocol, metrics=True, environ={}
        )
    found = metrics_of(receiver)
    assert report.complete and report.metrics_accepted == len(sample_of(analysis).points)
    steps = found["tracer.step.duration"]
    (point,) = steps.histogram.data_points
    walls = analysis.steps["wall_ns"]
    assert steps.unit == "s" and point.count == 2
    assert point.sum == pytest.approx(walls.sum() / 1e9)
    assert (
        sum(point.bucket_counts) == 2 and len(point.bucket_counts) == len(point.explicit_bounds) + 1
    )
    shares = {
        attributes_of(p)["tracer.group"]: p.as_double
        for p in found["tracer.group.ratio"].gauge.data_points
    }
    assert sum(shares.values()) == pytest.approx(1.0)
    window = analysis.window
    (busy,) = found["tracer.device.busy"].gauge.data_points
    assert busy.as_double == pytest.approx((window.busy_ns or 0) / window.capacity_ns)


def test_device_counters_follow_the_conventions(analysis: Analysis) -> None:
    points = {p.name: p for p in sample_of(analysis).points}
    power: Any = points["hw.power"]
    assert (power.unit, power.value) == ("W", 410.5)  # the last sample
    assert power.attributes == {"hw.id": "0", "hw.type": "gpu"}
    assert points["hw.gpu.utilization"].unit == "1"
    assert "tracer.device.novel_thing" in points


def test_request_histograms_follow_the_conventions(analysis: Analysis) -> None:
    points: dict[str, Any] = {p.name: p for p in sample_of(analysis).points}
    seconds = {name: point.distribution.total for name, point in points.items() if "gen_ai" in name}
    assert seconds == {
        "gen_ai.server.request.duration": pytest.approx(0.14),
        "gen_ai.server.time_to_first_token": pytest.approx(0.04),
        "gen_ai.server.time_per_output_token": pytest.approx(0.01),  # 100 ms for ten tokens
    }
    per_token = points["gen_ai.server.time_per_output_token"]
    bounds = per_token.distribution.bounds
    assert bounds[0] == 0.01 and bounds[-1] == 2.5 and per_token.distribution.counts[0] == 1
    assert per_token.attributes["gen_ai.request.model"] == "m"


def conventions() -> set[str]:
    """The names of attributes and metrics that OpenTelemetry's own package has."""
    homes = [import_module(f"opentelemetry.semconv.{name}") for name in _CONVENTIONS]
    modules = [
        import_module(found.name)
        for home in homes
        for found in pkgutil.iter_modules(home.__path__, f"{home.__name__}.")
    ]
    return {
        value
        for module in modules
        for key, value in vars(module).items()
        if key.isupper() and isinstance(value, str)
    }


_CONVENTIONS = ("attributes", "_incubating.attributes", "_incubating.metrics")


def test_names_that_are_not_ours_are_those_of_the_conventions(analysis: Analysis) -> None:
    finding = Finding(
        rule="sync.item", severity="info", title="a wait", count=1, cost_ns=1,
        where=Where("train.py", 17, "loop", "layers.0", "op"),
    )  # fmt: skip
    found = replace(analysis, findings=(finding,))
    spans = spans_of(found)
    points = sample_of(found).points
    named = {
        *resource_attributes(found, environ={}),
        *device_attributes("NVIDIA H200", "GPU-a"),
        *(key for span in spans for key in attributes_of(span)),
        *(key for span in spans for event in span.events for key in attributes_of(event)),
        *(point.name for point in points),
        *(key for point in points for key in point.attributes),
    }
    others = {name for name in named if not name.startswith("tracer.")}
    assert {name.partition(".")[0] for name in others} >= {"gen_ai", "hw", "code", "service"}
    assert others <= conventions()


def test_without_requests_there_are_no_request_metrics() -> None:
    names = {point.name for point in sample_of(kernel_analysis(1, 10)).points}
    assert not any(name.startswith("gen_ai.") for name in names)


def test_a_failure_of_metrics_is_told(analysis: Analysis) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{closed_port()}/v1/metrics",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    with HttpReceiver() as receiver:
        variables["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = receiver.endpoint + "/v1/traces"
        report = export_otlp(analysis, metrics=True, environ=variables)
    assert report.accepted == report.produced and not report.complete
    assert "refused" in report.metrics_failure and "metrics not delivered" in report.text()


def test_periodic_metrics_send_at_an_interval_and_once_more_at_the_end() -> None:
    arrived = threading.Event()
    asked: list[int] = []

    def sample() -> Sample | None:
        asked.append(1)
        if len(asked) == 1:
            return None  # nothing to say yet
        if len(asked) >= 3:
            arrived.set()
        times = {"decode": Distribution(STEP_BOUNDS, [0.001] * len(asked))}
        points = step_points(times, {"decode": 30.0})
        return Sample(BASE_NS, BASE_NS + len(asked), tuple(points))

    with HttpReceiver() as receiver:
        target = resolve(
            Arguments(endpoint=receiver.endpoint, protocol="http/protobuf"), {}, "metrics"
        )
        periodic = PeriodicMetrics(target, sample, {"service.name": "s"}, interval_s=0.01)
        periodic.start()
        assert arrived.wait(20)
        periodic.stop(within_s=20)
    assert periodic.failed == 0 and periodic.sent == len(receiver.metrics) == len(asked) - 1
    counts = [
        r.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points[0].count
        for r in receiver.metrics
    ]
    assert counts == sorted(counts)  # sums since the start


def test_periodic_metrics_to_nobody_are_counted_and_hold_nobody() -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}"
    target = resolve(Arguments(endpoint=endpoint, protocol="http/protobuf"), {}, "metrics")
    sample = Sample(0, 1, tuple(step_points({"": Distribution((1.0,), [5.0])}, {})))
    periodic = PeriodicMetrics(target, lambda: sample, {}, interval_s=60)
    periodic.start()
    periodic.stop(within_s=20)
    assert (periodic.sent, periodic.failed) == (0, 1) and "refused" in periodic.last_failure


def background(analysis: Analysis, endpoint: str, keep: Path) -> BackgroundExport:
    return BackgroundExport(
        lambda on_start: export_otlp(
            analysis, endpoint=endpoint, protocol="http/protobuf", keep=keep, environ={},
            on_start=on_start,
        )
    ).start()  # fmt: skip


def test_a_background_export_reports(analysis: Analysis, tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        under_way = background(analysis, receiver.endpoint, tmp_path / "k.otlp")
        report = under_way.wait(20)
        under_way.finish()
    assert report is not None and report.complete and receiver.received == report.produced


def test_a_program_that_ends_is_not_held_by_a_silent_collector(
    analysis: Analysis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The export is ended long before its deadline, and what it had is kept."""
    with SilentServer() as server:
        endpoint = f"http://127.0.0.1:{server.port}"
        under_way = background(analysis, endpoint, tmp_path / "k.otlp")
        under_way.finish(grace_s=0.3)
        under_way.wait(20)
    report = under_way.report
    assert report is not None and report.dropped == report.produced
    assert report.undelivered == tmp_path / "k.otlp"
    assert "not delivered" in caplog.text


def test_a_program_that_ends_waits_until_its_recording_is_analysed(
    analysis: Analysis, tmp_path: Path
) -> None:
    """Else an export of a large recording was gone without a word."""
    analysed = threading.Event()

    def deliver(on_start: Callable[[Clock], None]) -> DeliveryReport:
        assert analysed.wait(20)
        return export_otlp(
            analysis, receiver.endpoint, protocol="http/protobuf", environ={},
            on_start=on_start, keep=tmp_path / "k.otlp",
        )  # fmt: skip

    with HttpReceiver() as receiver:
        under_way = BackgroundExport(deliver).start()
        ending = threading.Thread(target=under_way.finish, args=(0.01,))
        ending.start()
        ending.join(0.3)
        waits = ending.is_alive()
        analysed.set()
        ending.join()
        report = under_way.wait(20)
    assert waits and report is not None
    assert report.accepted + report.dropped == report.produced


def test_an_export_that_the_program_outran_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    analysed = threading.Event()

    def deliver(_on_start: Callable[[Clock], None]) -> DeliveryReport:
        analysed.wait(20)
        raise UsageError("too late")

    monkeypatch.setattr("tracer.exporters.otlp.background.ANALYSIS_GRACE_S", 0.01)
    under_way = BackgroundExport(deliver).start()
    under_way.finish(grace_s=0.01)
    assert "the program ended before the export did" in caplog.text
    analysed.set()
    under_way.wait(20)


def test_a_wrong_argument_in_the_background_is_told(
    analysis: Analysis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    under_way = background(analysis, "ftp://nowhere", tmp_path / "k.otlp")
    under_way.wait(20)
    under_way.finish()
    assert under_way.report is None and "ftp://nowhere" in str(under_way.error)
    assert "ftp://nowhere" in caplog.text


def test_sums_of_a_run_that_goes_on_grow() -> None:
    told = iter(
        [
            Progress(),
            Progress(
                [("decode", 1_000_000)] * 3, tokens=3, counters=[("GPU-1", "power_watts", 300.0)]
            ),
            Progress([("decode", 2_000_000)], tokens=1),
        ]
    )
    sums = RunningSums(lambda: next(told))
    assert sums.sample() is None
    counts: list[int] = []
    for _ in range(2):
        sample = sums.sample()
        assert sample is not None
        points: dict[str, Any] = {point.name: point for point in sample.points}
        counts.append(points["tracer.step.duration"].distribution.count)
        assert points["tracer.tokens"].value == counts[-1]
    assert counts == [3, 4] and "hw.power" not in points


def test_arguments_of_a_live_export_are_checked_at_once() -> None:
    for wrong in ({"endpoint": "ftp://x"}, {"nonsense": 1}, {"interval": -1}, {"deadline": 0}):
        with pytest.raises(UsageError):
            LiveExport(wrong)
    with pytest.raises(UsageError, match="otlp=5"):
        LiveExport(5)  # type: ignore[arg-type]


def test_a_live_export_sends_metrics_and_at_the_end_the_spans(
    analysis: Analysis, tmp_path: Path
) -> None:
    with HttpReceiver() as receiver:
        live = LiveExport(
            {"endpoint": receiver.endpoint, "protocol": "http/protobuf", "interval": 60}
        )
        live.send_metrics_of(lambda: Progress([("", 5_000_000)]))
        under_way = live.finish(lambda: analysis, beside=tmp_path)
        report = under_way.wait(20)
        under_way.finish(grace_s=20)
    assert report is not None and report.complete
    assert receiver.received == report.produced
    assert "tracer.step.duration" in metrics_of(receiver)
