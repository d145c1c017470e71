"""Jaeger 2.x as far as the export meets it: OTLP in, `/api/v3` out, for machines without one.

Ports apart it is the default configuration ("all in one", memory) as its public sources have it at
2.20: the limits of the receivers, the JSON of the query interface (OTLP's own: ids in hexadecimal,
whole numbers of 64 bits as text, enums as numbers), and what Jaeger changes in the spans it keeps.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from types import TracebackType
from typing import Any

from tests.otlp_receiver import GrpcReceiver, HttpReceiver, Reply, Store

_json: Any = import_module("google.protobuf.json_format")
_traces: Any = import_module("opentelemetry.proto.trace.v1.trace_pb2")

MAX_GRPC_BYTES = 4 << 20  # of a message: what gRPC for Go takes where nothing else is said
MAX_HTTP_BYTES = 20 << 20  # of a body, unpacked: the collector's default
WARNINGS = "@jaeger@warnings"
_IDS = ("traceId", "spanId", "parentSpanId")


def as_jaeger_keeps(span: Any) -> Any:
    """The span as Jaeger hands it out: attributes and events by name, no span without length."""
    kept = _traces.Span.FromString(span.SerializeToString())
    if kept.end_time_unix_nano <= kept.start_time_unix_nano:
        kept.end_time_unix_nano = kept.start_time_unix_nano + 1
        warning = kept.attributes.add(key=WARNINGS)
        warning.value.array_value.values.add(string_value="Negative duration detected")
    kept.attributes.sort(key=lambda item: item.key)
    kept.events.sort(key=lambda event: event.name)
    for event in kept.events:
        event.attributes.sort(key=lambda item: item.key)
    return kept


def to_otlp_json(traces: Any) -> dict[str, Any]:
    """OTLP's JSON: that of protobuf, but for the ids."""
    made = _json.MessageToDict(traces, use_integers_for_enums=True)
    return dict(_with_ids(made, lambda text: base64.b64decode(text).hex()))


def from_otlp_json(found: Mapping[str, Any]) -> Any:
    """The messages that such JSON stands for."""
    plain = _with_ids(found, lambda text: base64.b64encode(bytes.fromhex(text)).decode())
    return _json.ParseDict(plain, _traces.TracesData(), ignore_unknown_fields=True)


def _with_ids(value: Any, change: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: change(inner) if key in _IDS else _with_ids(inner, change)
            for key, inner in value.items()
        }
    return [_with_ids(inner, change) for inner in value] if isinstance(value, list) else value


class JaegerStandIn:
    """Two receivers, and a server for queries."""

    def __init__(self) -> None:
        self.grpc = GrpcReceiver(max_message_bytes=MAX_GRPC_BYTES)
        self.http = HttpReceiver(_refuse_large)
        self._query = ThreadingHTTPServer(("127.0.0.1", 0), _query_handler(self))
        self._thread = threading.Thread(target=self._query.serve_forever, args=(0.02,))

    @property
    def receivers(self) -> tuple[Store, Store]:
        return self.grpc, self.http

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self._query.server_address[1]}"

    def trace(self, trace_id: str) -> Any:
        """What is stored of a trace: a resource for each request, no span twice."""
        found, seen = _traces.TracesData(), set[bytes]()
        for store in self.receivers:
            for resource in (r for request in store.requests for r in request.resource_spans):
                kept = found.resource_spans.add(resource=resource.resource)
                for scope in resource.scope_spans:
                    spans = [
                        as_jaeger_keeps(s) for s in scope.spans if s.trace_id.hex() == trace_id
                    ]
                    news = [s for s in spans if s.SerializeToString() not in seen]
                    seen |= {span.SerializeToString() for span in news}
                    kept.scope_spans.add(scope=scope.scope, spans=news)
        return found if seen else None

    def services(self) -> list[str]:
        resources = [r for s in self.receivers for q in s.requests for r in q.resource_spans]
        named = [a for r in resources for a in r.resource.attributes if a.key == "service.name"]
        return sorted({attribute.value.string_value for attribute in named})

    def __enter__(self) -> JaegerStandIn:
        self.grpc.__enter__()
        self.http.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._query.shutdown()
        self._query.server_close()
        self._thread.join()
        self.http.__exit__(kind, error, trace)
        self.grpc.__exit__(kind, error, trace)


def _refuse_large(store: Store, _count: int) -> Reply:
    return Reply(status=400) if store.sizes[-1] > MAX_HTTP_BYTES else Reply()


def _query_handler(jaeger: JaegerStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/api/v3/services":
                self._answer(200, {"services": jaeger.services()})
                return
            trace = jaeger.trace(self.path.removeprefix("/api/v3/traces/"))
            if trace is None:
                self._answer(404, {"error": {"httpCode": 404, "message": "No traces found"}})
            else:
                self._answer(200, {"result": to_otlp_json(trace)})

        def _answer(self, status: int, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
