"""What Jaeger gives back is what was sent: a stand-in everywhere, Jaeger where JAEGER_BIN is."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jaeger_stand_in import (
    MAX_GRPC_BYTES,
    WARNINGS,
    JaegerStandIn,
    as_jaeger_keeps,
    from_otlp_json,
)
from tests.otlp_samples import attributes_of, kernel_trace
from tests.test_otlp_collectors import WAIT_S, listens, process, wait_until
from tests.test_otlp_spans import PARENT, spans_of
from tracer.analysis import GROUPS, Analysis
from tracer.analyzers import analyze
from tracer.exporters.json_report import to_report
from tracer.exporters.otlp import export_otlp
from tracer.findings import Finding, Where

WAYS = [
    (protocol, detail) for protocol in ("grpc", "http/protobuf") for detail in ("folded", "kernels")
]


@pytest.fixture(autouse=True)
def folder_for_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that fails keeps its spans in the working directory."""
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Jaeger:
    """Where it takes OTLP, and where it answers."""

    endpoints: Mapping[str, str]
    ui: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.ui}{path}", timeout=WAIT_S) as answer:
            return json.load(answer)

    def spans(self, trace_id: str) -> list[Any]:
        """The spans that it has of a trace."""
        try:
            found = from_otlp_json(self.get(f"/api/v3/traces/{trace_id}")["result"])
        except urllib.error.HTTPError as error:
            assert error.code == 404
            return []
        scopes = [scope for resource in found.resource_spans for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]


@contextmanager
def stand_in() -> Iterator[tuple[Jaeger, JaegerStandIn]]:
    with JaegerStandIn() as made:
        endpoints = {"grpc": made.grpc.endpoint, "http/protobuf": made.http.endpoint}
        yield Jaeger(endpoints, made.ui), made


@contextmanager
def installed(folder: Path) -> Iterator[Jaeger]:
    """Jaeger 2.x with its default configuration, on its default ports."""
    binary = os.environ.get("JAEGER_BIN")
    if not binary:
        pytest.skip("not run: JAEGER_BIN names no Jaeger 2.x binary")
    ports = (4317, 4318, 16686)
    if any(map(listens, ports)):
        pytest.skip(f"not run: one of Jaeger's ports {ports} is in use")
    log = folder / "jaeger.log"
    variables = {k: v for k, v in os.environ.items() if k != "JAEGER_LISTEN_HOST"}
    with process([binary], log, variables) as started:

        def is_up() -> bool:
            assert started.poll() is None, log.read_text(errors="replace")[-3000:]
            return all(map(listens, ports))

        wait_until(is_up, "Jaeger listens")
        endpoints = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}
        yield Jaeger(endpoints, "http://localhost:16686")


@pytest.mark.parametrize(("protocol", "detail"), WAYS)
def test_a_stand_in_gives_back_what_was_sent(protocol: str, detail: Any) -> None:
    with stand_in() as (jaeger, _):
        assert jaeger.spans("0" * 31 + "1") == []
        assert_given_back(jaeger, protocol, detail, sample(4))


@pytest.mark.network
@pytest.mark.slow
def test_jaeger_gives_back_what_was_sent(tmp_path: Path) -> None:
    """One test for all ways, since its ports are one machine's."""
    with installed(tmp_path) as jaeger:
        for steps, (protocol, detail) in enumerate(WAYS, start=4):
            assert_given_back(jaeger, protocol, detail, sample(steps))


def sample(steps: int) -> Analysis:
    """Steps of 300 kernels, one of no length, and a finding with a line."""
    trace = kernel_trace(steps, 300, names=13)
    duration = trace.events["duration_ns"].to_numpy().copy()
    duration[np.flatnonzero(trace.events["kind"] == "kernel")[5]] = 0
    events = trace.events.assign(duration_ns=duration)
    found = Finding(
        rule="sync.item", severity="warning", title="a wait", count=2, cost_ns=10,
        where=Where(file="train.py", line=7), events=(3,), steps=(0, 1), advice="do not",
    )  # fmt: skip
    return replace(analyze(replace(trace, events=events)), findings=(found,))


def assert_given_back(jaeger: Jaeger, protocol: str, detail: Any, analysis: Analysis) -> None:
    """Every field of every span, and the totals by group, read back through its queries."""
    content: dict[str, Any] = {"detail": detail, "links": [PARENT], "service_name": protocol}
    endpoint = jaeger.endpoints[protocol]
    report = export_otlp(analysis, endpoint, protocol=protocol, environ={}, deadline=60, **content)
    assert report.complete, report.text()
    (trace_id,) = report.trace_ids
    wait_until(lambda: len(jaeger.spans(trace_id)) >= report.produced, "Jaeger stores")
    assert protocol in jaeger.get("/api/v3/services")["services"]
    found = {span.span_id: as_jaeger_keeps(span) for span in jaeger.spans(trace_id)}
    wanted = {span.span_id: as_jaeger_keeps(span) for span in spans_of(analysis, **content)}
    assert len(found) == len(wanted) == report.produced
    for span_id, span in found.items():
        assert warned(span) == warned(wanted[span_id])
        assert str(span) == str(wanted[span_id])
    if detail == "kernels":
        assert kernels_of(found.values()) == kernels_recorded(analysis)
    assert groups_of(found.values(), detail) == {
        group: to_report(analysis)["breakdown"][group]["ns"] for group in GROUPS
    }


def warned(span: Any) -> bool:
    """Whether Jaeger warns of something in the span; its words are left out."""
    kept = [item for item in span.attributes if item.key != WARNINGS]
    found = len(kept) < len(span.attributes)
    del span.attributes[:]
    span.attributes.extend(kept)
    return found


def kernels_of(spans: Iterable[Any]) -> set[tuple[int, int, int]]:
    """Correlation, start and end of each kernel's span."""
    kernels = [
        (span, found) for span in spans if "tracer.correlation" in (found := attributes_of(span))
    ]
    return {
        (found["tracer.correlation"], span.start_time_unix_nano, span.end_time_unix_nano)
        for span, found in kernels
    }


def kernels_recorded(analysis: Analysis) -> set[tuple[int, int, int]]:
    """The same from the recording, one of no length as Jaeger keeps it."""
    trace, rows = analysis.trace, analysis.work["event"].to_numpy()
    start, correlation = trace.start_ns[rows], trace.events["correlation"].to_numpy()[rows]
    end = np.maximum(trace.end_ns[rows], start + 1)
    return set(zip(correlation.tolist(), start.tolist(), end.tolist(), strict=True))


def groups_of(spans: Iterable[Any], detail: str) -> Counter[str]:
    """What is charged to each group, by the attributes of the spans that carry charges."""
    groups: Counter[str] = Counter(dict.fromkeys(GROUPS, 0))
    leaf = "kernels" if detail == "folded" else "kernel"
    for known in map(attributes_of, spans):
        if known["tracer.level"] in (leaf, "idle"):
            groups[known["tracer.group"]] += known["tracer.charged_ns"]
    return groups


def test_the_json_of_the_query_interface_is_read() -> None:
    """As the OTLP specification writes it, by hand: nothing here is made by what reads it."""
    span = {
        "traceId": "000102030405060708090a0b0c0d0e0f",
        "spanId": "00000000000000ff",
        "name": "a",
        "kind": 1,
        "startTimeUnixNano": "1700000000000000001",
        "endTimeUnixNano": "1700000000000000002",
        "attributes": [{"key": "n", "value": {"intValue": "9007199254740993"}}],
        "status": {},
        "notKnownYet": True,
    }
    found = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]}
    (read,) = from_otlp_json(found).resource_spans[0].scope_spans[0].spans
    assert (read.trace_id, read.span_id) == (bytes(range(16)), b"\0" * 7 + b"\xff")
    assert (read.kind, read.end_time_unix_nano) == (1, 1_700_000_000_000_000_002)
    assert attributes_of(read) == {"n": 2**53 + 1}


@pytest.mark.parametrize(("protocol", "detail"), WAYS)
def test_requests_stay_below_the_limits_of_jaegers_receivers(protocol: str, detail: Any) -> None:
    """Whatever the recording: names of kernels of a megabyte, more findings than find room."""
    long = kernel_trace(2, 600, names=600)
    labels = {name: f"{name}<{'int, ' * 4000}>" for name in long.names if "kernel_" in name}
    names = long.events["name"].cat.rename_categories(labels)
    analysis = analyze(replace(long, events=long.events.assign(name=names)))
    wordy = Finding(
        rule="sync.item", severity="warning", title="t" * 10_000, count=1, cost_ns=1,
        steps=tuple(range(50_000)), advice="a" * 10_000, detail={"k": "v" * 10_000},
    )  # fmt: skip
    analysis = replace(analysis, findings=(wordy,) * 400)
    with stand_in() as (jaeger, made):
        report = export_otlp(
            analysis, jaeger.endpoints[protocol], protocol=protocol, environ={}, detail=detail
        )
    store = made.grpc if protocol == "grpc" else made.http
    assert report.complete and report.requests == len(store.requests)
    assert max(store.sizes) <= MAX_GRPC_BYTES // 2 < sum(store.sizes)
    (run,) = [span for span in store.spans if attributes_of(span)["tracer.level"] == "run"]
    assert len(run.events) + run.dropped_events_count == 400 and run.dropped_events_count > 0
    assert len(attributes_of(run.events[0])["tracer.finding.steps"]) == 100
    assert attributes_of(run.events[0])["tracer.finding.step_count"] == 50_000
