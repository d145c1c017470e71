"""Metrics over OTLP: steps, tokens, shares by group, device counters, requests of an engine."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tracer.analysis import GROUPS, Analysis
from tracer.exporters.levels import window_level
from tracer.exporters.otlp.answers import Verdict
from tracer.exporters.otlp.options import Target
from tracer.exporters.otlp.protobuf import Value
from tracer.exporters.otlp.requests import Request, read_requests
from tracer.exporters.otlp.resource import SCOPE, device_uuid
from tracer.exporters.otlp.transports import Transport, open_transport
from tracer.own_thread import OwnThread
from tracer.version import VERSION

# Buckets of the GenAI conventions, in seconds.
REQUEST_BOUNDS = tuple(0.01 * 2**n for n in range(14))
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
STEP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CUMULATIVE = 2


@dataclass(frozen=True)
class Gauge:
    """A value now."""

    name: str
    unit: str
    value: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Counter:
    """A sum since the start."""

    name: str
    unit: str
    value: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


class Distribution:
    """Counts of values between bounds; it grows in place and takes no more room for it."""

    def __init__(self, bounds: tuple[float, ...], values: Iterable[float] = ()) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.lowest, self.highest = math.inf, -math.inf
        for value in values:
            self.add(value)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        """Count one value; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)


@dataclass(frozen=True)
class Histogram:
    """A distribution since the start."""

    name: str
    unit: str
    distribution: Distribution
    attributes: Mapping[str, Value] = field(default_factory=dict)


Point = Gauge | Counter | Histogram


@dataclass(frozen=True)
class Sample:
    """Points that hold from `start_ns` to `time_ns`."""

    start_ns: int
    time_ns: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Sent:
    """What became of metrics."""

    accepted: int
    failure: str = ""


def sample_of(analysis: Analysis) -> Sample:
    """The metrics of a recording."""
    points = [
        *step_points(_step_times(analysis), _token_rates(analysis)),
        *_share_points(analysis),
        *device_points(analysis),
        *request_points(read_requests(analysis.requests)),
    ]
    window = analysis.window
    return Sample(window.start_ns, window.end_ns, tuple(points))


def _step_times(analysis: Analysis) -> dict[str, Distribution]:
    times: dict[str, Distribution] = {}
    steps = analysis.steps
    for phase, wall in zip(steps["phase"].astype(str), steps["wall_ns"].tolist(), strict=True):
        times.setdefault(phase, Distribution(STEP_BOUNDS)).add(wall / 1e9)
    return times


def _token_rates(analysis: Analysis) -> dict[str, float]:
    rates = {phase.name: phase.tokens_per_second for phase in analysis.phases}
    return {name: rate for name, rate in rates.items() if rate is not None}


def step_points(times: Mapping[str, Distribution], rates: Mapping[str, float]) -> list[Point]:
    """Step times and tokens a second by phase: what a capture of detail `light` knows."""
    points: list[Point] = [
        Histogram("tracer.step.duration", "s", distribution, _phase(phase))
        for phase, distribution in times.items()
    ]
    points += [
        Gauge("tracer.token.rate", "{token}/s", rate, _phase(phase))
        for phase, rate in rates.items()
    ]
    return points


def _phase(phase: str) -> dict[str, Value]:
    return {"tracer.phase": phase} if phase else {}


def _share_points(analysis: Analysis) -> list[Point]:
    window = analysis.window
    if not analysis.accounted or not window.capacity_ns:
        return []
    level = window_level(analysis)
    points: list[Point] = [
        Gauge(
            "tracer.group.ratio", "1", level.ratio(level.group_ns(group)), {"tracer.group": group}
        )
        for group in GROUPS
    ]
    if window.devices and window.busy_ns is not None:
        points.append(Gauge("tracer.device.busy", "1", window.busy_ns / window.capacity_ns))
    return points


# Our name of a device counter -> name, unit, factor and whether it is a sum, by the conventions.
HARDWARE: Mapping[str, tuple[str, str, float, bool]] = {
    "gpu_utilization_ratio": ("hw.gpu.utilization", "1", 1.0, False),
    "memory_utilization_ratio": ("hw.gpu.memory.utilization", "1", 1.0, False),
    "memory_used_bytes": ("hw.gpu.memory.usage", "By", 1.0, False),
    "memory_total_bytes": ("hw.gpu.memory.limit", "By", 1.0, False),
    "power_watts": ("hw.power", "W", 1.0, False),
    "energy_joules": ("hw.energy", "J", 1.0, True),
    "temperature_celsius": ("hw.temperature", "Cel", 1.0, False),
}


def device_points(analysis: Analysis) -> list[Point]:
    """The last sample of each device counter."""
    samples = analysis.trace.table("metrics")
    if not len(samples):
        return []
    last = samples.sort_values("time_ns", kind="stable").drop_duplicates(
        ["device", "metric"], keep="last"
    )
    devices = analysis.trace.table("devices")
    names = dict(zip(devices["device"].tolist(), devices["name"].astype(str), strict=True))
    rows = zip(last["device"].tolist(), last["metric"].astype(str), last["value"], strict=True)
    return [
        device_point(device_uuid(analysis, device) or str(device), metric, value, names.get(device))
        for device, metric, value in rows
    ]


def device_point(device: str, metric: str, value: float, device_name: str | None = None) -> Point:
    """A counter of a device under its name in the conventions, or else under ours."""
    attributes: dict[str, Value] = {"hw.id": device, "hw.type": "gpu"}
    if device_name:
        attributes["hw.name"] = device_name
    name, unit, factor, summed = HARDWARE.get(metric, (f"tracer.device.{metric}", "", 1.0, False))
    kind = Counter if summed else Gauge
    return kind(name, unit, float(value) * factor, attributes)


def request_points(requests: Sequence[Request]) -> list[Point]:
    """`gen_ai.server.*` histograms of requests, by model."""
    points: list[Point] = []
    for key in dict.fromkeys((r.operation, r.provider, r.model) for r in requests):
        alike = [r for r in requests if (r.operation, r.provider, r.model) == key]
        labels = dict(zip(_REQUEST_LABELS, key, strict=True))
        attributes: dict[str, Value] = {k: v for k, v in labels.items() if v is not None}
        for name, bounds, seconds in _request_values(alike):
            if seconds:
                made = Distribution(bounds, seconds)
                points.append(Histogram(f"gen_ai.server.{name}", "s", made, attributes))
    return points


_REQUEST_LABELS = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")


def _request_values(
    requests: Sequence[Request],
) -> list[tuple[str, tuple[float, ...], list[float]]]:
    first = [r.first_token_ns for r in requests]
    gaps = [r.token_gap_ns for r in requests]
    return [
        ("request.duration", REQUEST_BOUNDS, [(r.end_ns - r.start_ns) / 1e9 for r in requests]),
        ("time_to_first_token", FIRST_TOKEN_BOUNDS, [ns / 1e9 for ns in first if ns is not None]),
        ("time_per_output_token", TOKEN_BOUNDS, [ns / 1e9 for ns in gaps if ns is not None]),
    ]


# messages -------------------------------------------------------------------------------------


def encode_metrics(sample: Sample, resource: Mapping[str, Value | None]) -> bytes:
    """An `ExportMetricsServiceRequest`."""
    home: Any = import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    request = home.ExportMetricsServiceRequest()
    outer = request.resource_metrics.add()
    _add_attributes(outer.resource.attributes, resource)
    scope = outer.scope_metrics.add()
    scope.scope.name, scope.scope.version = SCOPE, VERSION
    by_name: dict[str, Any] = {}
    for point in sample.points:
        if point.name not in by_name:
            by_name[point.name] = scope.metrics.add(name=point.name, unit=point.unit)
        _add_point(by_name[point.name], point, sample)
    return bytes(request.SerializeToString())


def _add_point(metric: Any, point: Point, sample: Sample) -> None:
    times = {"start_time_unix_nano": sample.start_ns, "time_unix_nano": sample.time_ns}
    if isinstance(point, Histogram):
        metric.histogram.aggregation_temporality = _CUMULATIVE
        added = metric.histogram.data_points.add(**times, **_distribution(point.distribution))
    elif isinstance(point, Counter):
        metric.sum.aggregation_temporality, metric.sum.is_monotonic = _CUMULATIVE, True
        added = metric.sum.data_points.add(**times, as_double=point.value)
    else:
        added = metric.gauge.data_points.add(time_unix_nano=sample.time_ns, as_double=point.value)
    _add_attributes(added.attributes, point.attributes)


def _distribution(made: Distribution) -> dict[str, Any]:
    return {
        "count": made.count,
        "sum": made.total,
        "bucket_counts": made.counts,
        "explicit_bounds": made.bounds,
        "min": made.lowest,
        "max": made.highest,
    }


def _add_attributes(target: Any, attributes: Mapping[str, Value | None]) -> None:
    for key, value in attributes.items():
        if isinstance(value, bool):
            target.add(key=key).value.bool_value = value
        elif isinstance(value, int):
            target.add(key=key).value.int_value = value
        elif isinstance(value, float):
            target.add(key=key).value.double_value = value
        elif value is not None:
            target.add(key=key).value.string_value = str(value)


def send_metrics(
    target: Target, sample: Sample, resource: Mapping[str, Value | None], limit_s: float
) -> Sent:
    """Send the points once, within the limit."""
    transport = open_transport(target, "metrics")
    try:
        return _send(transport, sample, resource, min(limit_s, target.timeout_s))
    finally:
        transport.close()


def _send(
    transport: Transport, sample: Sample, resource: Mapping[str, Value | None], limit_s: float
) -> Sent:
    answer = transport.send(encode_metrics(sample, resource), limit_s)
    if answer.verdict is not Verdict.ACCEPTED:
        return Sent(0, answer.reason)
    failure = answer.reason if answer.rejected_spans else ""
    return Sent(len(sample.points) - answer.rejected_spans, failure)


class PeriodicMetrics:
    """Sends what `sample` says, at a fixed interval, from a thread of its own.

    The program never waits for it: a sample that cannot be sent is counted and the next one, which
    holds the same sums, takes its place. `sample` returns None while there is nothing to say.
    """

    def __init__(
        self,
        target: Target,
        sample: Callable[[], Sample | None],
        resource: Mapping[str, Value | None],
        interval_s: float = 10.0,
    ) -> None:
        self.sent = 0
        self.failed = 0
        self.last_failure = ""
        self._target, self._sample, self._resource = target, sample, resource
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = OwnThread(self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float = 1.0) -> None:
        """Send once more and end; waits no longer than `within_s`."""
        self._stop.set()
        self._thread.join(within_s)

    def _work(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            self._send_one()
            due = max(due + self._interval_s, time.monotonic())
        self._send_one()

    def _send_one(self) -> None:
        sample = self._sample()
        if sample is None or not sample.points:
            return
        sent = send_metrics(self._target, sample, self._resource, self._target.timeout_s)
        if sent.failure:
            self.failed += 1
            self.last_failure = sent.failure
        else:
            self.sent += 1
