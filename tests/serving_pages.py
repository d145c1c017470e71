"""Pages of metrics as engines show them, and a server that plays them one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TypeVar

_Played = TypeVar("_Played", bound="PlayedServer")
VLLM_LABELS = '{engine="0",model_name="org/model"}'
BOUNDS_S = ("0.1", "0.5", "1.0", "2.5", "5.0", "+Inf")


def histogram(name: str, labels: str, counts: Sequence[int], sum_s: float) -> list[str]:
    """The lines of a histogram with so many values in each bucket of `BOUNDS_S`."""
    inner = labels.strip("{}")
    lines, below = [f"# TYPE {name} histogram"], 0
    for bound, count in zip(BOUNDS_S, counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{inner}{"," if inner else ""}le="{bound}"}} {float(below)}')
    return [*lines, f"{name}_sum{labels} {sum_s}", f"{name}_count{labels} {float(below)}"]


def page(
    values: Mapping[str, float],
    histograms: Mapping[str, tuple[Sequence[int], float]] | None = None,
    labels: str = "",
) -> str:
    """A page with these metrics, all under the same labels unless a name brings its own."""
    lines = ["# HELP python_info Python platform information", "# TYPE python_info gauge"]
    for name, value in values.items():
        lines += [f"# TYPE {name.partition('{')[0]} untyped"]
        lines.append(f"{name}{'' if '{' in name else labels} {value}")
    for name, (counts, sum_s) in (histograms or {}).items():
        lines += histogram(name, labels, counts, sum_s)
    return "\n".join(lines) + "\n"


def vllm_page(
    *,
    running: float = 2,
    waiting: float = 0,
    cache: float = 0.3,
    preemptions: float = 0,
    tokens: float = 0,
    prompt: float = 0,
    ended: int = 0,
    steps: float = 0,
    times: Mapping[str, float] | None = None,
    extra: Mapping[str, float] | None = None,
) -> str:
    """A page of vLLM after `ended` requests, each of which took so long in each stage (seconds)."""
    took = {"queue": 0.01, "prefill": 0.2, "decode": 4.0, **(times or {})}
    whole = {
        "request_queue_time_seconds": took["queue"],
        "request_prefill_time_seconds": took["prefill"],
        "request_decode_time_seconds": took["decode"],
        "time_to_first_token_seconds": took["queue"] + took["prefill"],
        "e2e_request_latency_seconds": sum(took.values()),
    }
    values = {
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": waiting,
        "vllm:kv_cache_usage_perc": cache,
        "vllm:num_preemptions_total": preemptions,
        "vllm:prompt_tokens_total": prompt,
        "vllm:generation_tokens_total": tokens,
        "vllm:iteration_tokens_total_count": steps,
        'vllm:request_success_total{engine="0",finished_reason="stop"}': ended,
        'vllm:request_success_total{engine="0",finished_reason="abort"}': 0,
        **(extra or {}),
    }
    named = {f"vllm:{name}": (_all_in(s, ended), s * ended) for name, s in whole.items()}
    return page(values, named, VLLM_LABELS)


def _all_in(value_s: float, count: int) -> list[int]:
    """All values in the bucket of this one."""
    at = next(i for i, bound in enumerate(BOUNDS_S) if value_s <= float(bound))
    return [count if i == at else 0 for i in range(len(BOUNDS_S))]


@dataclass
class Reply:
    """What is answered to one request; `after_s` later, for a server that is slow."""

    text: str
    status: int = 200
    content_type: str = "text/plain; version=0.0.4"
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0


class PlayedServer:
    """Answers each path with its replies in turn, the last one again and again; others with 404."""

    def __init__(self, replies: Mapping[str, Sequence[Reply | str]]) -> None:
        self.replies = {path: list(listed) for path, listed in replies.items()}
        self.asked: list[tuple[str, str, bytes]] = []
        self.seen_headers: list[Mapping[str, str]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self: _Played) -> _Played:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, method: str, path: str, body: bytes) -> Reply:
        """The reply that is next for a path."""
        with self._lock:
            self.asked.append((method, path, body))
            listed = self.replies.get(path)
            if not listed:
                return Reply('{"detail":"Not Found"}', 404, "application/json")
            reply = listed.pop(0) if len(listed) > 1 else listed[0]
        return Reply(reply) if isinstance(reply, str) else reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        played = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                played.seen_headers.append(dict(self.headers.items()))
                reply = played.take(self.command, self.path, body)
                time.sleep(reply.after_s)
                data = reply.text.encode()
                self.send_response(reply.status)
                headers = {"Content-Type": reply.content_type, **reply.headers}
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                with suppress(ConnectionError):  # who asked may have gone
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_POST = _answer

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on stderr."""

        return Handler
