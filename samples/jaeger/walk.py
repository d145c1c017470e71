"""Trace a small decode loop inside a request's span, export it, and say where to look.

python samples/jaeger/walk.py                                  to http://localhost:4317
python samples/jaeger/walk.py --endpoint http://localhost:4318 over HTTP
python samples/jaeger/walk.py --rows                           also print the rows of the viewer
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch

from tracer import trace
from tracer.analysis import Analysis
from tracer.commands.demo_model import generate, make_demo_model
from tracer.exporters.otlp.export import Content, plan_recordings

PROMPT_TOKENS, NEW_TOKENS = 64, 8


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--endpoint", default="http://localhost:4317")
    parser.add_argument("--ui", default="http://localhost:16686", help="address of Jaeger's UI")
    parser.add_argument("--detail", choices=("folded", "kernels"), default="folded")
    parser.add_argument("--rows", action="store_true", help="print what the viewer lists")
    args = parser.parse_args(argv)
    recording = traced_request(args.endpoint)
    report = recording.export_otlp(
        args.endpoint, detail=args.detail, service_name="tracer-walk", metrics=False
    )
    print(report.text())
    if args.rows:
        print("\n".join(rows(recording.analysis, args.detail)))
    if report.complete:
        print(f"open {args.ui}/trace/{report.trace_ids[0]}")
    return 0 if report.complete else 1


def traced_request(endpoint: str) -> Any:
    """A request of a service that OpenTelemetry traces; inside it the model runs under `trace()`,
    so that the run becomes a child of the request."""
    tracer, finish = request_tracer(endpoint)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_demo_model(device)
    prompt = torch.randint(0, model.shape.vocabulary, (1, PROMPT_TOKENS), device=device)
    generate(model, prompt, 2)  # first-use work of libraries stays out of the recording
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "demo"}
    request = tracer.start_as_current_span("chat demo", attributes=attributes)
    with request, trace(model) as recording:
        generate(model, prompt, NEW_TOKENS)
    finish()
    return recording


def request_tracer(endpoint: str) -> tuple[Any, Any]:
    """OpenTelemetry as a service sets it up, and a function that sends what it has."""
    sdk: Any = import_module("opentelemetry.sdk.trace")
    export: Any = import_module("opentelemetry.sdk.trace.export")
    resources: Any = import_module("opentelemetry.sdk.resources")
    kind = "http" if ":4318" in endpoint else "grpc"
    exporter: Any = import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter")
    address = f"{endpoint}/v1/traces" if kind == "http" else endpoint
    sender = exporter.OTLPSpanExporter(endpoint=address, timeout=2)
    resource = resources.Resource({"service.name": "chat-service"})
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(sender))
    return provider.get_tracer("walk"), provider.shutdown


def rows(analysis: Analysis, detail: Any = "folded") -> Iterator[str]:
    """The rows as Jaeger lists them: by start, whole microseconds, below their parents."""
    spans = {span.span_id: span for span in spans_of(analysis, detail)}
    below: dict[bytes, list[Any]] = {}
    for span in sorted(
        spans.values(), key=lambda s: (s.start_time_unix_nano, -s.end_time_unix_nano)
    ):
        below.setdefault(span.parent_span_id if span.parent_span_id in spans else b"", []).append(
            span
        )
    first = min(span.start_time_unix_nano for span in spans.values())

    def listed(parent: bytes, depth: int) -> Iterator[str]:
        for span in below.get(parent, []):
            start_us = (span.start_time_unix_nano - first) // 1000
            length_us = (span.end_time_unix_nano - span.start_time_unix_nano) // 1000
            known = {item.key: item.value for item in span.attributes}
            count = known["tracer.count"].int_value if "tracer.count" in known else 1
            total = known.get("tracer.total_ns", known["tracer.duration_ns"]).int_value
            name = "  " * depth + span.name
            yield f"{name[:60]:60} {start_us:>9} us {length_us:>9} us  x{count:<6} {total} ns"
            yield from listed(span.span_id, depth + 1)

    yield f"{'name':60} {'start':>12} {'length':>12}  count   total"
    yield from listed(b"", 0)


def spans_of(analysis: Analysis, detail: Any) -> Iterator[Any]:
    messages: Any = import_module("opentelemetry.proto.trace.v1.trace_pb2")
    for recording in plan_recordings([analysis], Content(detail=detail)):
        for batch in recording.batches():
            data = messages.TracesData.FromString(batch.message())
            yield from data.resource_spans[0].scope_spans[0].spans


if __name__ == "__main__":
    raise SystemExit(main())
