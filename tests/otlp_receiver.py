"""An OTLP receiver on the official protobuf and gRPC packages, with planned misbehaviour.

with HttpReceiver() as receiver:
    export_otlp(analysis, endpoint=receiver.endpoint, protocol="http/protobuf")
receiver.spans      # every accepted span with its resource
"""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

grpc: Any = import_module("grpc")
_trace: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
_metrics: Any = import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
_trace_grpc: Any = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")
_metrics_grpc: Any = import_module(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc"
)


@dataclass(frozen=True)
class Reply:
    """How to answer one request. The default takes everything."""

    status: int = 200  # HTTP; other than 200: nothing is taken
    code: str = "OK"  # gRPC
    details: str = ""
    rejected: int = 0  # spans that a partial success rejects
    message: str = ""
    retry_after_s: float | None = None
    hang_s: float = 0.0  # before answering
    take: bool = True  # whether the spans count as received, when the answer is a success
    reset: bool = False  # close the connection without an answer
    body: bytes | None = None  # instead of OTLP
    content_type: str = "application/x-protobuf"


Planner = Callable[["Store", int], Reply]  # the store, and how many spans the request has


@dataclass
class Store:
    """What was received, and how to answer the next request."""

    plan: Planner = lambda _store, _count: Reply()
    requests: list[Any] = field(default_factory=list)  # accepted trace requests
    metrics: list[Any] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)  # spans of each request, accepted or not
    sizes: list[int] = field(default_factory=list)  # bytes of each request, uncompressed
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    rejected: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spans(self) -> list[Any]:
        """Every span that was taken."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def received(self) -> int:
        """Spans taken, those that a partial success rejected left out."""
        return len(self.spans) - self.rejected

    def take(self, request: Any, size: int, headers: dict[str, str]) -> Reply:
        """Note a request and decide on the answer."""
        count = sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
        with self.lock:
            self.calls.append(count)
            self.sizes.append(size)
            self.headers.append(headers)
            reply = self.plan(self, count)
        if reply.hang_s:
            time.sleep(reply.hang_s)
        success = reply.status == 200 and reply.code == "OK" and not reply.reset
        if success and reply.take:
            with self.lock:
                self.requests.append(request)
                self.rejected += reply.rejected
        return reply


def in_turn(*replies: Reply) -> Planner:
    """The replies in turn, the last one for ever."""

    def plan(store: Store, _count: int) -> Reply:
        return replies[min(len(store.calls), len(replies)) - 1]

    return plan


def _response(reply: Reply) -> Any:
    partial = _trace.ExportTracePartialSuccess(
        rejected_spans=reply.rejected, error_message=reply.message
    )
    has = reply.rejected or reply.message
    return _trace.ExportTraceServiceResponse(partial_success=partial if has else None)


@dataclass(frozen=True)
class Certificates:
    """A certificate authority of one: certificate and key of `localhost`."""

    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A self-signed certificate for localhost, valid for two days."""
    made = Certificates(folder / "cert.pem", folder / "key.pem")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    options = ["-subj", "/CN=localhost", "-addext", names, "-days", "2", "-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *options]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made


class HttpReceiver(Store):
    """OTLP over HTTP at `/v1/traces` and `/v1/metrics`."""

    def __init__(
        self,
        plan: Planner = lambda _store, _count: Reply(),
        certificates: Certificates | None = None,
        port: int = 0,
        asks_client: bool = False,
    ) -> None:
        super().__init__(plan)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler_of(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.certificate, certificates.key)
            if asks_client:
                context.load_verify_locations(certificates.certificate)
                context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://localhost:{self.port}"

    def __enter__(self) -> HttpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_of(store: Store) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            headers = {key.lower(): value for key, value in self.headers.items()}
            store.paths.append(self.path)
            if self.path.endswith("/v1/metrics"):
                store.metrics.append(_metrics.ExportMetricsServiceRequest.FromString(body))
                self._answer(Reply(body=b""))
                return
            request = _trace.ExportTraceServiceRequest.FromString(body)
            self._answer(store.take(request, len(body), headers))

        def _answer(self, reply: Reply) -> None:
            if reply.reset:
                self._reset()
                return
            body = reply.body
            if body is None:
                body = _response(reply).SerializeToString() if reply.status == 200 else b""
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(body)))
            if reply.retry_after_s is not None:
                self.send_header("Retry-After", str(reply.retry_after_s))
            self.end_headers()
            self.wfile.write(body)

        def _reset(self) -> None:
            """End the connection with RST, as a crashing receiver does."""
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True

    return Handler


class GrpcReceiver(Store):
    """OTLP over gRPC."""

    def __init__(
        self,
        plan: Planner = lambda _store, _count: Reply(),
        certificates: Certificates | None = None,
        port: int = 0,
        max_message_bytes: int | None = None,
        asks_client: bool = False,
    ) -> None:
        super().__init__(plan)
        self._pool = ThreadPoolExecutor(2)
        options = [("grpc.so_reuseport", 0)]
        if max_message_bytes is not None:
            options.append(("grpc.max_receive_message_length", max_message_bytes))
        self._server = grpc.server(self._pool, options=options)
        _trace_grpc.add_TraceServiceServicer_to_server(_TraceService(self), self._server)
        _metrics_grpc.add_MetricsServiceServicer_to_server(_MetricsService(self), self._server)
        address, self._scheme = f"localhost:{port}", "http"
        if certificates is None:
            self.port = int(self._server.add_insecure_port(address))
        else:
            pair = (certificates.key.read_bytes(), certificates.certificate.read_bytes())
            root = pair[1] if asks_client else None
            credentials = grpc.ssl_server_credentials([pair], root, asks_client)
            self.port = int(self._server.add_secure_port(address, credentials))
            self._scheme = "https"

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://localhost:{self.port}"

    def __enter__(self) -> GrpcReceiver:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()


class _TraceService(_trace_grpc.TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, store: Store) -> None:
        self._store = store

    def Export(self, request: Any, context: Any) -> Any:
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        reply = self._store.take(request, request.ByteSize(), headers)
        if reply.code != "OK":
            if reply.retry_after_s is not None:
                context.set_trailing_metadata((_retry_info(reply),))
            context.abort(getattr(grpc.StatusCode, reply.code), reply.details)
        return _response(reply)


class _MetricsService(_metrics_grpc.MetricsServiceServicer):  # type: ignore[misc]
    def __init__(self, store: Store) -> None:
        self._store = store

    def Export(self, request: Any, context: Any) -> Any:
        self._store.metrics.append(request)
        return _metrics.ExportMetricsServiceResponse()


def _retry_info(reply: Reply) -> tuple[str, bytes]:
    """The pause that a server asks for, as gRPC carries it."""
    details: Any = import_module("google.rpc.error_details_pb2")
    status: Any = import_module("google.rpc.status_pb2")
    info = details.RetryInfo()
    info.retry_delay.FromMilliseconds(int((reply.retry_after_s or 0) * 1000))
    code = getattr(grpc.StatusCode, reply.code).value[0]
    made = status.Status(code=code, message=reply.details)
    made.details.add().Pack(info)
    return "grpc-status-details-bin", made.SerializeToString()


def closed_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SilentServer:
    """Accepts connections, reads, and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> SilentServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._socket.accept()
                self._open.append(connection)
        except OSError:
            return
