"""Every span is counted once, whatever the receiver does, and the time limit holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.otlp_receiver import (
    Certificates,
    GrpcReceiver,
    HttpReceiver,
    Planner,
    Reply,
    SilentServer,
    Store,
    closed_port,
    in_turn,
    make_certificates,
)
from tests.otlp_samples import kernel_analysis
from tracer.analysis import Analysis
from tracer.errors import UsageError
from tracer.exporters.otlp import DeliveryReport, export_otlp
from tracer.exporters.otlp.export import Delivery, default_deadline_s, send_file
from tracer.exporters.otlp.live import LiveExport
from tracer.exporters.otlp.options import Arguments
from tracer.exporters.otlp.undelivered import is_otlp_file, read_batches

PROTOCOLS = ("grpc", "http/protobuf")
RECEIVERS: dict[str, type[GrpcReceiver] | type[HttpReceiver]] = {
    "grpc": GrpcReceiver,
    "http/protobuf": HttpReceiver,
}
both = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """3,000 kernels in 3 steps."""
    return kernel_analysis(3, 1000)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def send(analysis: Analysis, tmp_path: Path) -> Iterator[Callable[..., DeliveryReport]]:
    def call(receiver: Any, protocol: str, **arguments: Any) -> DeliveryReport:
        endpoint = receiver if isinstance(receiver, str) else receiver.endpoint
        settings: dict[str, Any] = {
            "detail": "kernels",
            "keep": tmp_path / "left.otlp",
            "environ": {},
        }
        return export_otlp(analysis, endpoint=endpoint, protocol=protocol, **(settings | arguments))

    yield call


def assert_exact(report: DeliveryReport) -> None:
    assert report.produced == report.accepted + report.rejected + report.dropped
    kept = report.undelivered
    spans = 0 if kept is None else sum(batch.count for batch in read_batches(kept))
    assert spans >= report.dropped


def started(protocol: str, plan: Planner, **more: Any) -> GrpcReceiver | HttpReceiver:
    return RECEIVERS[protocol](plan, **more)


@both
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_all_arrives_over_tls_with_a_header(
    send: Callable[..., DeliveryReport],
    certificates: Certificates,
    protocol: str,
    compression: str,
) -> None:
    with RECEIVERS[protocol](certificates=certificates) as receiver:
        report = send(
            receiver,
            protocol,
            certificate=certificates.certificate,
            compression=compression,
            headers={"Authorization": "Bearer t"},
        )
    assert report.complete and report.undelivered is None
    assert receiver.received == report.produced == report.accepted > 3000
    assert all(headers["authorization"] == "Bearer t" for headers in receiver.headers)
    assert "Bearer" not in report.text()
    assert f"{report.produced:,} of {report.produced:,} spans delivered" in report.text()


@both
def test_an_unknown_certificate_is_refused_at_once(
    send: Callable[..., DeliveryReport], certificates: Certificates, protocol: str
) -> None:
    with RECEIVERS[protocol](certificates=certificates) as receiver:
        report = send(receiver, protocol)
    assert report.accepted == receiver.received == 0
    assert report.dropped == report.produced
    assert "TLS" in report.reasons[0] and report.requests == 1
    assert_exact(report)


@both
def test_a_receiver_that_asks_for_a_client_certificate(
    send: Callable[..., DeliveryReport], certificates: Certificates, protocol: str
) -> None:
    with RECEIVERS[protocol](certificates=certificates, asks_client=True) as receiver:
        trusted = {"certificate": certificates.certificate}
        own = {"client_certificate": certificates.certificate, "client_key": certificates.key}
        without = send(receiver, protocol, deadline=1.0, **trusted)
        report = send(receiver, protocol, **trusted, **own)
    assert without.accepted == 0 and without.dropped == without.produced
    assert report.complete and receiver.received == report.produced


def test_a_proxy_of_the_environment_is_used_and_not_for_this_machine(
    send: Callable[..., DeliveryReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpReceiver() as proxy, HttpReceiver() as near:
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        monkeypatch.setenv("no_proxy", "")
        far = send("http://collector.example:4318", "http/protobuf")
        here = send(near, "http/protobuf")
    assert far.complete and proxy.received == far.produced
    assert set(proxy.paths) == {"http://collector.example:4318/v1/traces"}
    assert here.complete and near.received == here.produced


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "/v1/traces"), (401, "headers"), (403, "headers"), (500, "500")]
)
def test_an_http_refusal_ends_the_delivery(
    send: Callable[..., DeliveryReport], status: int, hint: str
) -> None:
    with HttpReceiver(in_turn(Reply(status=status))) as receiver:
        report = send(receiver, "http/protobuf")
    assert (report.accepted, report.dropped, report.requests) == (0, report.produced, 1)
    assert str(status) in report.reasons[0] and hint in report.reasons[0]
    assert receiver.endpoint in report.text() and "not delivered" in report.text()
    assert_exact(report)


@pytest.mark.parametrize(
    ("code", "hint"),
    [("UNAUTHENTICATED", "headers"), ("UNIMPLEMENTED", "OTLP"), ("RESOURCE_EXHAUSTED", "quota")],
)
def test_a_grpc_refusal_ends_the_delivery(
    send: Callable[..., DeliveryReport], code: str, hint: str
) -> None:
    with GrpcReceiver(in_turn(Reply(code=code, details="quota used up"))) as receiver:
        report = send(receiver, "grpc")
    assert (report.accepted, report.dropped, report.requests) == (0, report.produced, 1)
    assert code in report.reasons[0] and hint in report.reasons[0]
    assert_exact(report)


@both
def test_a_receiver_with_a_small_limit_gets_smaller_batches(
    send: Callable[..., DeliveryReport], protocol: str
) -> None:
    """413 over HTTP; RESOURCE_EXHAUSTED by a gRPC server itself."""

    def plan(store: Store, _count: int) -> Reply:
        return Reply(status=413) if store.sizes[-1] > 40_000 else Reply()

    if protocol == "grpc":
        receiver: GrpcReceiver | HttpReceiver = GrpcReceiver(max_message_bytes=40_000)
    else:
        receiver = HttpReceiver(plan)
    with receiver:
        report = send(receiver, protocol)
    assert report.complete and receiver.received == report.produced
    assert report.requests > len(receiver.requests)


def test_one_span_that_is_too_large_is_rejected_and_the_rest_goes_on(
    send: Callable[..., DeliveryReport],
) -> None:
    def plan(store: Store, _count: int) -> Reply:
        names = [s.name for r in store_request(store) for s in r]
        return Reply(status=413) if "run" in names else Reply()

    seen: list[Any] = []

    def store_request(_store: Store) -> list[Any]:
        return [
            [span for rs in seen[-1].resource_spans for ss in rs.scope_spans for span in ss.spans]
        ]

    receiver = HttpReceiver(plan)
    take = receiver.take

    def watched(request: Any, size: int, headers: dict[str, str]) -> Reply:
        seen.append(request)
        return take(request, size, headers)

    receiver.take = watched  # type: ignore[method-assign]
    with receiver:
        report = send(receiver, "http/protobuf")
    assert (report.rejected, report.dropped) == (1, 0)
    assert receiver.received == report.accepted == report.produced - 1
    assert_exact(report)


@both
def test_a_partial_success_is_read(send: Callable[..., DeliveryReport], protocol: str) -> None:
    replies = in_turn(Reply(), Reply(rejected=5, message="too\nold"), Reply(message="watch out"))
    with started(protocol, replies) as receiver:
        report = send(receiver, protocol)
    assert (report.rejected, report.dropped) == (5, 0)
    assert report.accepted == receiver.received == report.produced - 5
    assert not report.complete
    assert report.reasons == ("too old (5 spans)",)
    assert report.warnings == ("watch out",)


@both
def test_throttling_is_waited_out(send: Callable[..., DeliveryReport], protocol: str) -> None:
    busy = Reply(status=429, code="RESOURCE_EXHAUSTED", details="later", retry_after_s=0.05)
    with started(protocol, in_turn(Reply(), busy, busy, Reply())) as receiver:
        report = send(receiver, protocol)
    assert report.complete and receiver.received == report.produced


@both
def test_a_pause_longer_than_the_time_left_ends_at_once(
    send: Callable[..., DeliveryReport], protocol: str
) -> None:
    busy = Reply(status=503, code="UNAVAILABLE", details="full", retry_after_s=3600)
    with started(protocol, in_turn(busy)) as receiver:
        report = send(receiver, protocol)
    assert (report.accepted, report.requests, receiver.received) == (0, 1, 0)
    assert report.elapsed_s < report.deadline_s
    assert_exact(report)


@both
def test_a_receiver_that_is_down_is_given_up_at_the_deadline(
    send: Callable[..., DeliveryReport], protocol: str
) -> None:
    endpoint = f"http://localhost:{closed_port()}"
    report = send(endpoint, protocol, deadline=0.6)
    assert report.dropped == report.produced and report.requests >= 2
    assert report.unconfirmed == 0
    assert endpoint in report.text()
    assert "connection refused (does a receiver listen there?)" in report.reasons[0]
    assert_exact(report)


@both
def test_a_receiver_that_appears_later_gets_everything(
    send: Callable[..., DeliveryReport], protocol: str
) -> None:
    port = closed_port()
    receivers: list[GrpcReceiver | HttpReceiver] = []

    def appear() -> None:
        receivers.append(RECEIVERS[protocol](port=port).__enter__())

    timer = threading.Timer(3, appear)
    timer.start()
    try:
        report = send(f"http://localhost:{port}", protocol)
    finally:
        timer.join()
        receivers[0].__exit__(None, None, None)
    assert report.complete and receivers[0].received == report.produced


@both
def test_a_receiver_that_never_answers_is_given_up(
    send: Callable[..., DeliveryReport], protocol: str
) -> None:
    with SilentServer() as server:
        report = send(f"http://localhost:{server.port}", protocol, deadline=0.5)
    assert report.accepted == 0 and report.dropped == report.produced
    assert "no answer within" in report.reasons[0]
    assert report.unconfirmed == 64  # the first batch: nobody knows what became of it
    assert "without an answer" in report.text()
    assert_exact(report)


def test_an_answer_that_trickles_cannot_outlast_the_deadline(
    send: Callable[..., DeliveryReport],
) -> None:
    """A socket's own timeout starts anew with every byte."""

    class Trickle(SilentServer):
        def _accept(self) -> None:
            try:
                connection, _ = self._socket.accept()
                self._open.append(connection)
                while True:
                    connection.sendall(b"H")
                    time.sleep(0.02)
            except OSError:
                return

    with Trickle() as server:
        report = send(f"http://127.0.0.1:{server.port}", "http/protobuf", deadline=0.5)
    assert report.dropped == report.produced
    assert report.elapsed_s < 3


def test_a_reset_connection_is_tried_again(send: Callable[..., DeliveryReport]) -> None:
    with HttpReceiver(in_turn(Reply(), Reply(reset=True), Reply())) as receiver:
        report = send(receiver, "http/protobuf")
    assert report.complete and receiver.received == report.produced


@both
def test_a_slow_receiver_loses_nothing_uncounted(
    send: Callable[..., DeliveryReport], protocol: str
) -> None:
    """100 spans a second: the limit is kept, and what was taken is what we say was taken."""

    def plan(_store: Store, count: int) -> Reply:
        return Reply(hang_s=count / 100)

    with started(protocol, plan) as receiver:
        report = send(receiver, protocol, deadline=3)
    assert 0 < report.accepted < report.produced
    assert receiver.received == report.accepted
    assert report.unconfirmed == 0
    assert not report.complete and "time limit" in report.reasons[0]
    assert f"{report.dropped:,} dropped" in report.text()
    assert_exact(report)


@pytest.mark.parametrize(
    ("spoken", "server"), [("http/protobuf", "grpc"), ("grpc", "http/protobuf")]
)
def test_the_wrong_protocol_is_named(
    send: Callable[..., DeliveryReport], spoken: str, server: str
) -> None:
    with RECEIVERS[server]() as receiver:
        report = send(receiver, spoken, deadline=1.0)
    assert report.accepted == receiver.received == 0
    wanted = "--protocol grpc" if server == "grpc" else "--protocol http/protobuf"
    assert wanted in report.reasons[0]
    assert_exact(report)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"<html>hello</html>", content_type="text/html"),
        Reply(body=b"\xff\xff\xff", content_type="application/x-protobuf"),
        Reply(body=b"[]", content_type="application/json"),
    ],
)
def test_a_web_page_that_says_200_is_no_receiver(
    send: Callable[..., DeliveryReport], reply: Reply
) -> None:
    with HttpReceiver(in_turn(reply)) as receiver:
        report = send(receiver, "http/protobuf")
    assert report.accepted == 0 and "no OTLP receiver" in report.reasons[0]


def test_a_json_success_is_read(send: Callable[..., DeliveryReport]) -> None:
    partial = b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "no"}}'
    some = Reply(body=partial, content_type="application/json", rejected=2)
    with HttpReceiver(in_turn(some, Reply(body=b""))) as receiver:
        report = send(receiver, "http/protobuf")
    assert (report.rejected, report.accepted) == (2, receiver.received)


@both
def test_what_was_not_delivered_is_kept_and_can_be_sent_later(
    send: Callable[..., DeliveryReport], protocol: str, tmp_path: Path
) -> None:
    refuse = Reply(status=401, code="UNAUTHENTICATED")
    with started(protocol, in_turn(Reply(), Reply(), refuse)) as first:
        report = send(first, protocol)
    kept = report.undelivered
    assert kept == tmp_path / "left.otlp" and is_otlp_file(kept)
    with started(protocol, lambda _s, _c: Reply()) as second:
        arguments = Arguments(endpoint=second.endpoint, protocol=protocol)
        again = send_file(kept, arguments, Delivery())
    assert again.complete and again.produced == report.dropped
    ids = {span.span_id for store in (first, second) for span in store.spans}
    assert len(ids) == report.produced == first.received + second.received
    sample = second.requests[0].resource_spans[0]
    assert sample.resource == first.requests[0].resource_spans[0].resource
    assert sample.scope_spans[0].scope.name == "llm-stack-tracer"


def left_by_rank(rank: int, kept: Path) -> Path:
    """What a rank of a job of two keeps of an export that is refused."""
    analysis = kernel_analysis(1, 20, rank=rank, world_size=2, extra={"job": "j"})
    with HttpReceiver(in_turn(Reply(status=404))) as receiver:
        given = {"endpoint": receiver.endpoint, "protocol": "http/protobuf", "keep": kept}
        report = LiveExport(given).finish(lambda: analysis).wait(20)
    assert report is not None and report.undelivered is not None
    return report.undelivered


def test_ranks_of_a_job_keep_what_is_left_apart(tmp_path: Path) -> None:
    named = [left_by_rank(rank, tmp_path / "left.otlp").name for rank in (0, 1)]
    assert named == ["left.rank0.otlp", "left.rank1.otlp"]
    unnamed = [left_by_rank(rank, tmp_path) for rank in (0, 1)]
    assert unnamed[0] != unnamed[1] and all(path.is_file() for path in unnamed)


def test_a_disk_that_cannot_keep_them_is_told(
    send: Callable[..., DeliveryReport], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with HttpReceiver(in_turn(Reply(status=404))) as receiver:
        report = send(receiver, "http/protobuf", keep=tmp_path / "file" / "left.otlp")
    assert report.undelivered is None and report.dropped == report.produced
    assert any("cannot write" in warning for warning in report.warnings)


def test_wrong_arguments_are_told_before_anything_is_sent(analysis: Analysis) -> None:
    wrongs: list[dict[str, Any]] = [
        {"deadline": 0},
        {"detail": "all"},
        {"max_spans": 5},
        {"traceparent": "x"},
    ]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            export_otlp(analysis, environ={}, **wrong)


def test_a_long_deadline_is_no_hindrance(send: Callable[..., DeliveryReport]) -> None:
    with HttpReceiver() as receiver:
        report = send(receiver, "http/protobuf", deadline=3600)
    assert report.complete and receiver.received == report.produced


def test_the_deadline_grows_with_the_spans() -> None:
    counts = (0, 100_000, 100_001, 1_000_000)
    assert [default_deadline_s(count) for count in counts] == [10, 10, 20, 100]


def test_the_standard_variables_are_enough(analysis: Analysis) -> None:
    with HttpReceiver() as receiver:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=lab",
        }
        report = export_otlp(analysis, environ=environ)
    assert report.complete and set(receiver.paths) == {"/v1/traces"}
    assert receiver.headers[0]["x-key"] == "a b"
    assert receiver.headers[0]["content-encoding"] == "gzip"
    attributes = {
        a.key: a.value for a in receiver.requests[0].resource_spans[0].resource.attributes
    }
    assert attributes["service.name"].string_value == "mine"
    assert attributes["deployment.environment"].string_value == "lab"
