"""How fast spans leave: ours beside OpenTelemetry's BatchSpanProcessor, in one run.

Both send the same spans (100,000, or the number given) to the same receiver, a gRPC server in a
process of its own that decodes and counts. The sender is bound to one core. Rounds alternate; the
median counts. Printed: spans a second of ours (wall and processor time), losses of both, peak
memory, the ratio, and what gzip and HTTP cost.

    python -m benchmarks.bench_otlp [spans] [rounds]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tests.otlp_samples import kernel_analysis
from tracer.analysis import Analysis
from tracer.exporters.otlp.export import export_otlp

RECEIVER = r"""
import sys, json
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
import gzip, grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
received = [0]
def take(body):
    request = pb.ExportTraceServiceRequest.FromString(body)
    received[0] += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
def export(body, context):
    take(body)
    return b""
handler = grpc.method_handlers_generic_handler(
    "opentelemetry.proto.collector.trace.v1.TraceService",
    {"Export": grpc.unary_unary_rpc_method_handler(export)},
)
class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def log_message(self, *args): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.max_receive_message_length", 64 << 20)])
server.add_generic_rpc_handlers((handler,))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
web = ThreadingHTTPServer(("127.0.0.1", 0), Http)
Thread(target=web.serve_forever, daemon=True).start()
print(json.dumps([port, web.server_address[1]]), flush=True)
for line in sys.stdin:
    print(received[0], flush=True)
    received[0] = 0
server.stop(0)
"""


@dataclass
class Receiver:
    """The receiver's process."""

    process: subprocess.Popen[str]
    grpc_port: int
    http_port: int

    def counted(self) -> int:
        """Spans since the last question."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def start_receiver(same_core: bool = False) -> Receiver:
    """Start it, on another core than ours where there is one, or on the same."""
    process = subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(process.pid, {cores[0] if same_core else cores[-1]})
    assert process.stdout is not None
    grpc_port, http_port = json.loads(process.stdout.readline())
    return Receiver(process, grpc_port, http_port)


@dataclass(frozen=True)
class Round:
    """One delivery."""

    produced: int
    received: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.received / self.wall_s


def measure(receiver: Receiver, send: Callable[[], int]) -> Round:
    """Time a delivery to its end."""
    receiver.counted()
    wall, cpu = time.perf_counter(), time.process_time()
    produced = send()
    ended, used = time.perf_counter() - wall, time.process_time() - cpu
    return Round(produced, receiver.counted(), ended, used)


def send_ours(analysis: Analysis, receiver: Receiver, **more: Any) -> int:
    """Ours, from the analysis on: planning, encoding, delivery."""
    http = more.get("protocol") == "http/protobuf"
    port = receiver.http_port if http else receiver.grpc_port
    settings = {"protocol": "grpc", "detail": "kernels", "deadline": 120.0, "environ": {}} | more
    return export_otlp(analysis, endpoint=f"http://127.0.0.1:{port}", **settings).produced


def send_theirs(spans: int, receiver: Receiver, queue: int, batch: int) -> int:
    """The SDK: as many spans with as many attributes."""
    sdk: Any = import_module("opentelemetry.sdk.trace")
    export: Any = import_module("opentelemetry.sdk.trace.export")
    grpc_exporter: Any = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
    exporter = grpc_exporter.OTLPSpanExporter(f"http://127.0.0.1:{receiver.grpc_port}")
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        export.BatchSpanProcessor(exporter, max_queue_size=queue, max_export_batch_size=batch)
    )
    tracer = provider.get_tracer("bench")
    for i in range(spans):
        span = tracer.start_span(
            f"kernel_{i % 12}",
            start_time=1_700_000_000_000_000_000 + i * 1000,
            attributes={
                "tracer.level": "kernel",
                "tracer.kernel.name": f"void ns::kernel_{i % 12}<float, {i % 12}>(float*, int)",
                "tracer.group": "other",
                "tracer.part": "unattributed",
                "tracer.how": "none",
                "tracer.confidence": 0.0,
                "tracer.device": 0,
                "tracer.stream": 7,
                "tracer.duration_ns": 700,
                "tracer.charged_ns": 700,
                "tracer.correlation": i,
                "tracer.step": i // 5000,
            },
        )
        span.end(1_700_000_000_000_000_000 + i * 1000 + 700)
    provider.force_flush(120_000)
    provider.shutdown()
    return spans


def show(name: str, rounds: list[Round]) -> float:
    """Print the median; the rate."""
    rate = statistics.median(r.rate for r in rounds)
    cpu = statistics.median(r.received / r.cpu_s for r in rounds)
    lost = sum(r.produced - r.received for r in rounds) / sum(r.produced for r in rounds)
    print(f"{name:36} {rate:>10,.0f} spans/s  {cpu:>10,.0f} a CPU second  lost {lost:.1%}")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("spans", type=int, nargs="?", default=100_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    args = parser.parse_args()
    logging.getLogger("tracer.otlp").setLevel(logging.ERROR)  # that a viewer opens so many slowly
    receiver, near = start_receiver(), start_receiver(same_core=True)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    analysis = kernel_analysis(max(args.spans // 5000, 1), 5000)
    ways: dict[str, Callable[[], int]] = {
        "tracer, gRPC": lambda: send_ours(analysis, receiver),
        "tracer, gRPC, receiver on our core": lambda: send_ours(analysis, near),
        "tracer, HTTP": lambda: send_ours(analysis, receiver, protocol="http/protobuf"),
        "tracer, gRPC, gzip": lambda: send_ours(analysis, receiver, compression="gzip"),
        "tracer, HTTP, gzip": lambda: send_ours(
            analysis, receiver, protocol="http/protobuf", compression="gzip"
        ),
        "BatchSpanProcessor, defaults": lambda: send_theirs(args.spans, receiver, 2048, 512),
        "BatchSpanProcessor, queue = spans": lambda: send_theirs(
            args.spans, receiver, args.spans + 1, 4096
        ),
    }
    measure(receiver, lambda: send_ours(analysis, receiver))  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measure(receiver, lambda: send_ours(analysis, receiver))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rounds: dict[str, list[Round]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, send in ways.items():
            rounds[name].append(measure(near if "our core" in name else receiver, send))
    rates = {name: show(name, made) for name, made in rounds.items()}
    ours, theirs = rates["tracer, gRPC"], rates["BatchSpanProcessor, queue = spans"]
    print(f"ratio to BatchSpanProcessor without loss: {ours / theirs:.1f}")
    print(f"ratio to its defaults: {ours / rates['BatchSpanProcessor, defaults']:.1f}")
    print(f"peak memory grown by a second delivery: {grown / 1024:.1f} MiB")
    for started in (receiver, near):
        if started.process.stdin is not None:
            started.process.stdin.close()
        started.process.wait(10)


if __name__ == "__main__":
    main()
