"""Real receivers: rotel and oteltap from PyPI."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.otlp_receiver import (
    Certificates,
    GrpcReceiver,
    closed_port,
    make_certificates,
)
from tests.otlp_samples import kernel_analysis
from tests.test_otlp_spans import spans_of
from tracer.analysis import Analysis
from tracer.exporters.otlp import export_otlp
from tracer.exporters.otlp.report import DeliveryReport

pytestmark = [pytest.mark.network, pytest.mark.slow]
WAIT_S = 30.0


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Poll, since a receiver of its own process says nothing when it is ready."""
    ends = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < ends, f"{what}: not within {WAIT_S:.0f} s"
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def process(
    command: list[str], log: Path, environ: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs while the block does."""
    with log.open("wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        try:
            yield started
        finally:
            started.terminate()
            started.wait(WAIT_S)


class Relay:
    """TLS in front of a receiver that speaks none: bytes go through as they are."""

    def __init__(self, certificates: Certificates, to_port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._context.set_alpn_protocols(["h2", "http/1.1"])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._to_port, self._open = to_port, list[socket.socket]()
        self.port = int(self._socket.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._socket.accept()
                near = self._context.wrap_socket(plain, server_side=True)
                far = socket.create_connection(("127.0.0.1", self._to_port))
                self._open += [near, far]
                self._threads += [
                    threading.Thread(target=self._pump, args=pair)
                    for pair in ((near, far), (far, near))
                ]
                for thread in self._threads[-2:]:
                    thread.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while data := source.recv(65536):
                target.sendall(data)

    def close(self) -> None:
        for opened in (self._socket, *self._open):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for thread in self._threads:
            thread.join(WAIT_S)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextmanager
def rotel(folder: Path, next_port: int) -> Iterator[dict[str, int]]:
    """The collector, listening on loopback and passing on to `next_port`; its ports."""
    found = find_spec("rotel")
    if found is None or found.origin is None:
        pytest.skip("rotel is not installed (it has wheels for Linux on x86-64 only)")
    agent = Path(found.origin).parent / "rotel-agent"
    ports = {"grpc": closed_port(), "http/protobuf": closed_port()}
    command = [
        str(agent), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}",
        "--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}", "--exporter", "otlp",
        "--otlp-exporter-endpoint", f"http://127.0.0.1:{next_port}",
        "--pid-file", str(folder / "pid"), "--log-file", str(folder / "rotel.log"),
    ]  # fmt: skip
    with process(command, folder / "out.log"):
        wait_until(lambda: all(map(listens, ports.values())), "rotel listens")
        yield ports


def assert_same_spans(received: list[Any], analysis: Analysis, **content: Any) -> None:
    """Every field of every span is what was made."""
    wanted = {span.span_id: span for span in spans_of(analysis, **content)}
    assert len(received) == len(wanted)
    for span in received:
        made = wanted[span.span_id]
        for name in ("trace_id", "parent_span_id", "name", "kind", "flags", "trace_state",
                     "start_time_unix_nano", "end_time_unix_nano"):  # fmt: skip
            assert getattr(span, name) == getattr(made, name), name
        for name in ("attributes", "events", "links"):
            assert sorted(map(str, getattr(span, name))) == sorted(map(str, getattr(made, name)))


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_real_collector_receives_and_passes_on_every_field(
    tmp_path: Path, certificates: Certificates, protocol: str, secure: bool
) -> None:
    """Through rotel, which decodes all and encodes it anew, to our receiver; with gzip and an
    authorization header."""
    analysis = kernel_analysis(5, 4000)
    with GrpcReceiver() as receiver, rotel(tmp_path, receiver.port) as ports:
        relay = Relay(certificates, ports[protocol]) if secure else None
        try:
            endpoint = f"http://127.0.0.1:{ports[protocol]}"
            if relay is not None:
                endpoint = f"https://localhost:{relay.port}"
            report = export_otlp(
                analysis, endpoint=endpoint, protocol=protocol, detail="kernels",
                compression="gzip", headers={"authorization": "Bearer t"}, environ={},
                certificate=certificates.certificate if secure else None,
            )  # fmt: skip
        finally:
            if relay is not None:
                relay.close()
        assert report.complete, report.text()
        wait_until(lambda: receiver.received >= report.produced, "rotel passes on")
    assert receiver.received == report.produced
    assert_same_spans(receiver.spans, analysis, detail="kernels")


def test_another_receiver_takes_the_folded_default() -> None:
    if find_spec("oteltap") is None:
        pytest.skip("oteltap is not installed (it has wheels for Linux on x86-64 only)")
    analysis = kernel_analysis(3, 400)
    report, received = asyncio.run(_through_oteltap(analysis))
    assert report.complete and len(received) == report.produced
    assert_same_spans(received, analysis)


async def _through_oteltap(analysis: Analysis) -> tuple[DeliveryReport, list[Any]]:
    oteltap: Any = import_module("oteltap")
    port = closed_port()
    settings = oteltap.OtelTapHttpProtobufReceiverSettings(http_port=port)
    async with oteltap.OtelTapHttpProtobufReceiver(settings) as receiver:
        received: list[Any] = []
        listening = asyncio.create_task(_collect(receiver, received))
        await asyncio.sleep(0)  # only who listens before a span comes is told of it
        report = await asyncio.to_thread(
            lambda: export_otlp(
                analysis, endpoint=f"http://127.0.0.1:{port}", protocol="http/protobuf", environ={}
            )
        )
        await asyncio.to_thread(
            wait_until, lambda: len(received) >= report.produced, "oteltap hands over"
        )
        listening.cancel()
    return report, received


async def _collect(receiver: Any, received: list[Any]) -> None:
    async for span in receiver.stream_traces():
        received.append(span)
