"""One request to a receiver, over gRPC or HTTP, within a time limit that holds."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import urlsplit

from tracer.errors import UsageError
from tracer.exporters.otlp.answers import (
    Answer,
    Verdict,
    grpc_answer,
    http_answer,
    one_line,
    success,
)
from tracer.exporters.otlp.options import Signal, Target
from tracer.version import VERSION

USER_AGENT = f"llm-stack-tracer/{VERSION}"
_MAX_ANSWER_BYTES = 1 << 20


class Transport(Protocol):
    """Sends one message at a time. `abort` may be called from another thread."""

    def send(self, message: bytes, timeout_s: float) -> Answer: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


def open_transport(target: Target, signal: Signal = "traces") -> Transport:
    """The transport of a target. Nothing is sent, and no connection made, until `send`."""
    if target.protocol == "grpc":
        return GrpcTransport(target, signal)
    return HttpTransport(target, signal)


def _read_file(path: Any) -> bytes | None:
    try:
        return None if path is None else bytes(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


class HttpTransport:
    """OTLP over HTTP with protobuf bodies, on one kept connection."""

    def __init__(self, target: Target, signal: Signal) -> None:
        self._target, self._signal = target, signal
        self._tls = _tls_context(target) if target.secure else None
        self._connection: http.client.HTTPConnection | None = None
        self._aborted = False

    def send(self, message: bytes, timeout_s: float) -> Answer:
        ends_at = time.monotonic() + timeout_s
        # A socket's timeout starts anew with each byte; a receiver that trickles would never end.
        watchdog = threading.Timer(timeout_s, self._cut)
        watchdog.daemon = True
        watchdog.start()
        sent = False
        try:
            connection = self._connected(timeout_s)
            body = _gzip(message) if self._target.compression == "gzip" else message
            sent = True
            return self._exchange(connection, body, max(ends_at - time.monotonic(), 0.001))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            late = time.monotonic() >= ends_at - 0.01
            return _http_failure(error, timeout_s if late else None, sent)
        finally:
            watchdog.cancel()
            watchdog.join()

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            connection = _open_connection(self._target, self._tls, timeout_s)
            self._connection = connection
            connection.connect()
            # Small messages must not wait for an acknowledgement of the one before.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connection

    def _exchange(
        self, connection: http.client.HTTPConnection, body: bytes, timeout_s: float
    ) -> Answer:
        connection.sock.settimeout(timeout_s)
        # A receiver that refuses early answers, and closes, before it has read all.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", _request_target(self._target), body, self._headers())
        response = connection.getresponse()
        answer = http_answer(
            response.status,
            response.reason,
            response.headers.get("Content-Type", ""),
            response.headers.get("Retry-After"),
            response.read(_MAX_ANSWER_BYTES),
            self._signal,
        )
        if response.will_close or not response.isclosed():
            self.close()
        return answer

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": USER_AGENT}
        if self._target.compression == "gzip":
            headers["Content-Encoding"] = "gzip"
        return {**headers, **dict(self._target.headers)}

    def _cut(self) -> None:
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with suppress(OSError):  # it was closed meanwhile: just what is wanted
                sock.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        self._cut()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _gzip(message: bytes) -> bytes:
    """Level 1: span bytes shrink eightfold at it, and higher ones cost three times as much."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(message) + packer.flush()


def _tls_context(target: Target) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=target.certificate)
        if target.client_certificate is not None:
            context.load_cert_chain(target.client_certificate, target.client_key)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"TLS certificate or key: {one_line(str(error))}") from error
    return context


def _proxy_of(target: Target) -> str | None:
    scheme = "https" if target.secure else "http"
    if target.loopback or urllib.request.proxy_bypass(target.netloc):
        return None
    return urllib.request.getproxies().get(scheme)


def _open_connection(
    target: Target, tls: ssl.SSLContext | None, timeout_s: float
) -> http.client.HTTPConnection:
    """An unconnected connection, to the receiver or to the proxy that the environment names."""
    proxy = urlsplit(_proxy_of(target) or "")
    host, port = (
        proxy.hostname or target.host,
        (proxy.port or 80) if proxy.hostname else target.port,
    )
    _check_name(host, port, timeout_s)
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    if proxy.hostname:
        connection.set_tunnel(target.host, target.port)
    return connection


def _request_target(target: Target) -> str:
    if not target.secure and _proxy_of(target):
        return f"http://{target.netloc}{target.path}"
    return target.path


def _check_name(host: str, port: int, timeout_s: float) -> None:
    """Resolve a name within the time limit, which `getaddrinfo` itself does not know."""
    failure: list[OSError] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure.append(error)

    thread = threading.Thread(target=look_up, name="tracer-otlp-name", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"the name {host} was not resolved")
    if failure:
        raise failure[0]


def _http_failure(error: Exception, timeout_s: float | None, sent: bool) -> Answer:
    """Judge a request that got no answer. `timeout_s` is set when the time limit ended it."""
    if timeout_s is not None or isinstance(error, TimeoutError):
        said = f"no answer within {timeout_s:.1f} s" if timeout_s is not None else str(error)
        return Answer(Verdict.RETRY, said, uncertain=sent, throttled=sent)
    if isinstance(error, ssl.SSLCertVerificationError):
        return Answer(Verdict.REFUSED, f"TLS: {one_line(error.verify_message)}")
    if isinstance(error, ssl.SSLError):
        return Answer(
            Verdict.REFUSED, f"TLS failed (does this port speak TLS?): {one_line(str(error))}"
        )
    if isinstance(error, http.client.RemoteDisconnected):
        return Answer(Verdict.RETRY, "connection closed without an answer", uncertain=sent)
    if isinstance(error, http.client.HTTPException):
        said = "the answer is no HTTP/1.1 (is this a gRPC receiver? use --protocol grpc)"
        return Answer(Verdict.REFUSED, said)
    reason = one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
    return Answer(Verdict.RETRY, _with_hint(reason.lower()), uncertain=sent)


def _with_hint(reason: str) -> str:
    return f"{reason} (does a receiver listen there?)" if "refused" in reason else reason


class GrpcTransport:
    """OTLP over gRPC."""

    def __init__(self, target: Target, signal: Signal) -> None:
        self._grpc: Any = import_module("grpc")
        self._target, self._signal = target, signal
        self._channel = self._open()
        service = "trace" if signal == "traces" else "metrics"
        self._call: Callable[..., Any] = self._channel.unary_unary(
            f"/opentelemetry.proto.collector.{service}.v1.{service.title()}Service/Export"
        )
        self._running: Any = None

    def _open(self) -> Any:
        target = self._target
        options = [
            ("grpc.primary_user_agent", USER_AGENT),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),
            # The channel's own pauses would outlast a receiver that appears a moment later.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.min_reconnect_backoff_ms", 5000),  # in truth the time that connecting may take
        ]
        if target.loopback:
            options.append(("grpc.enable_http_proxy", 0))
        if not target.secure:
            return self._grpc.insecure_channel(target.netloc, options)
        credentials = self._grpc.ssl_channel_credentials(
            _read_file(target.certificate),
            _read_file(target.client_key),
            _read_file(target.client_certificate),
        )
        return self._grpc.secure_channel(target.netloc, credentials, options)

    def send(self, message: bytes, timeout_s: float) -> Answer:
        gzip = self._target.compression == "gzip"
        self._running = self._call.future(  # type: ignore[attr-defined]
            message,
            timeout=timeout_s,
            metadata=self._target.headers,
            compression=self._grpc.Compression.Gzip if gzip else None,
        )
        try:
            return success(self._running.result(), self._signal)
        except self._grpc.FutureCancelledError:
            return Answer(Verdict.RETRY, "cancelled", uncertain=True)
        except self._grpc.RpcError as error:
            return self._failure(error, timeout_s)

    def _failure(self, error: Any, timeout_s: float) -> Answer:
        code, details = error.code().name, error.details() or ""
        if code == "DEADLINE_EXCEEDED":
            said = f"no answer within {timeout_s:.1f} s"
            return Answer(Verdict.RETRY, said, uncertain=True, throttled=True)
        if code == "UNAVAILABLE" and any(word in details for word in _TLS_WORDS):
            return Answer(Verdict.REFUSED, one_line(f"TLS: {details}"))
        sent = not any(words in details.lower() for words in _NOT_SENT_WORDS)
        if not sent and details.endswith("refused"):
            details = _with_hint("connection refused")
        return grpc_answer(code, details, _retry_delay(error), sent)

    def abort(self) -> None:
        running = self._running
        if running is not None:
            running.cancel()

    def close(self) -> None:
        self._channel.close()


_TLS_WORDS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "handshake failed", "Handshake")
_NOT_SENT_WORDS = ("failed to connect", "dns resolution failed", "errors resolving")


def _retry_delay(error: Any) -> float | None:
    """The pause that the receiver asks for in `google.rpc.RetryInfo`."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = import_module("google.rpc.status_pb2").Status.FromString(value)
            retry = import_module("google.rpc.error_details_pb2").RetryInfo()
            for detail in status.details:
                if detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
                    return float(retry.retry_delay.ToTimedelta().total_seconds())
    return None
