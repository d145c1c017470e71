"""What a receiver's answer means, by the OTLP specification and what receivers really send."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any


class Verdict(Enum):
    """What to do after an answer."""

    ACCEPTED = "accepted"  # taken, but for `rejected_spans`
    RETRY = "retry"  # may be taken later
    SPLIT = "split"  # too large: smaller batches may be taken
    BAD_BATCH = "bad batch"  # these spans will never be taken, others may
    REFUSED = "refused"  # nothing sent to this address will be taken


@dataclass(frozen=True)
class Answer:
    """An answer to one request.

    `uncertain`: it may have been taken although no answer came. `throttled`: fewer spans at a
    time may be taken.
    """

    verdict: Verdict
    reason: str = ""
    rejected_spans: int = 0
    retry_after_s: float | None = None
    uncertain: bool = False
    throttled: bool = False


_RETRY_STATUS = frozenset({429, 502, 503, 504})
_BAD_BATCH_STATUS = frozenset({400, 422})
_HTTP_HINTS = {
    401: "check the headers",
    403: "check the headers",
    404: "check the path: OTLP over HTTP listens at /v1/traces",
    405: "check the path: OTLP over HTTP listens at /v1/traces",
    415: "this receiver does not take protobuf",
}
_RETRY_CODES = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_TOO_LARGE_CODES = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE"})
_GRPC_HINTS = {
    "UNAUTHENTICATED": "check the headers",
    "PERMISSION_DENIED": "check the headers",
    "UNIMPLEMENTED": "this address serves gRPC, but no OTLP traces",
}
# Messages of gRPC in C++, Go, Java and Rust for a request over the server's limit.
_TOO_LARGE_TEXT = re.compile(r"(message|length|size|bytes).*(larg|exceed|limit|max)", re.I | re.S)
# Seen when the other side speaks another protocol than the request.
_NO_GRPC_TEXT = re.compile(r"http1|HTTP/1\.|parsing HTTP/2|SETTINGS frame|preface", re.I)
_MAX_REASON = 300


def one_line(text: str) -> str:
    """A receiver's text, safe to print: one line, no control characters, bounded."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:_MAX_REASON]


def http_answer(
    status: int, reason: str, content_type: str, retry_after: str | None, body: bytes, signal: str
) -> Answer:
    """Judge an HTTP answer."""
    said = one_line(f"HTTP {status} {reason}")
    if 200 <= status < 300:
        return _taken(body, content_type, signal)
    detail = _http_detail(body, content_type)
    said = f"{said}: {detail}" if detail else said
    if status == 413:
        return Answer(Verdict.SPLIT, said)
    if status in _RETRY_STATUS:
        pause_s = _seconds(retry_after)
        return Answer(Verdict.RETRY, said, retry_after_s=pause_s, throttled=status == 429)
    if status in _BAD_BATCH_STATUS:
        return Answer(Verdict.BAD_BATCH, said)
    hint = _HTTP_HINTS.get(status)
    return Answer(Verdict.REFUSED, f"{said} ({hint})" if hint else said)


def _http_detail(body: bytes, content_type: str) -> str:
    """The text inside an error answer: a google.rpc.Status, or plain text."""
    if not body:
        return ""
    if "protobuf" in content_type:
        try:
            status = import_module("google.rpc.status_pb2").Status.FromString(body)
        except (ImportError, _decode_error()):
            return ""
        return one_line(status.message)
    if "html" in content_type:
        return ""
    return one_line(body[:2000].decode("utf-8", "replace"))


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(float(retry_after), 0.0) if retry_after is not None else None
    except ValueError:
        return None  # an HTTP date: our own backoff does


def _decode_error() -> type[Exception]:
    error: type[Exception] = import_module("google.protobuf.message").DecodeError
    return error


def _taken(body: bytes, content_type: str, signal: str) -> Answer:
    """A success, if the body is OTLP: a web page answers 200 to anything."""
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return Answer(Verdict.ACCEPTED)
    if kind == "application/json":
        return _json_success(body)
    if kind not in ("", "application/x-protobuf", "application/protobuf"):
        said = f"answered success with {one_line(kind)}, so this is no OTLP receiver"
        return Answer(Verdict.REFUSED, said)
    return success(body, signal)


def success(body: bytes, signal: str) -> Answer:
    """Read an Export…ServiceResponse: even a success can say that spans were rejected."""
    kind = "Trace" if signal == "traces" else "Metrics"
    home = import_module(
        f"opentelemetry.proto.collector.{kind.lower()}.v1.{kind.lower()}_service_pb2"
    )
    try:
        response = getattr(home, f"Export{kind}ServiceResponse").FromString(body)
    except _decode_error():
        return Answer(Verdict.REFUSED, "the answer is no OTLP, so this is no OTLP receiver")
    partial = response.partial_success
    count = partial.rejected_spans if signal == "traces" else partial.rejected_data_points
    return Answer(Verdict.ACCEPTED, one_line(partial.error_message), int(count))


def _json_success(body: bytes) -> Answer:
    try:
        said: Any = json.loads(body)
        partial = said.get("partialSuccess") or {}
        count = partial.get("rejectedSpans") or partial.get("rejectedDataPoints") or 0
        return Answer(Verdict.ACCEPTED, one_line(str(partial.get("errorMessage", ""))), int(count))
    except (ValueError, AttributeError, TypeError):
        return Answer(Verdict.REFUSED, "the answer is no OTLP, so this is no OTLP receiver")


def grpc_answer(code: str, details: str, retry_after_s: float | None, sent: bool) -> Answer:
    """Judge a gRPC status. `sent`: whether the request can have reached the receiver."""
    said = one_line(f"gRPC {code}: {details}" if details else f"gRPC {code}")
    if code in _TOO_LARGE_CODES and _TOO_LARGE_TEXT.search(details):
        return Answer(Verdict.SPLIT, said)
    if code == "RESOURCE_EXHAUSTED" and retry_after_s is not None:
        return Answer(Verdict.RETRY, said, retry_after_s=retry_after_s, throttled=True)
    if code == "UNAVAILABLE" and _NO_GRPC_TEXT.search(details):
        hint = "is this an HTTP receiver? use --protocol http/protobuf"
        return Answer(Verdict.REFUSED, f"{said} ({hint})")
    if code in _RETRY_CODES:
        return Answer(Verdict.RETRY, said, retry_after_s=retry_after_s, uncertain=sent)
    if code == "INVALID_ARGUMENT":
        return Answer(Verdict.BAD_BATCH, said)
    advice = _GRPC_HINTS.get(code)
    return Answer(Verdict.REFUSED, f"{said} ({advice})" if advice else said)
