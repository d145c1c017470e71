"""`tracer watch` against a server that plays pages: what is printed where, and the exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.serving_pages import PlayedServer, Reply, page, vllm_page
from tracer import cli
from tracer.collectors.serving.http import Server, ServerError, ask, parse_url
from tracer.collectors.serving.polling import Clock, watch_metrics
from tracer.errors import UsageError
from tracer.exporters import watch_json
from tracer.serving import Engine, Reading

Capture = pytest.CaptureFixture[str]
Pages = dict[str, Sequence[Reply | str]]
SCHEMA = Path(watch_json.__file__).with_name("watch.schema.json")
NOT_FOUND = Reply('{"detail":"Not Found"}', 404, "application/json")
BUSY = [
    vllm_page(running=30, waiting=14, cache=0.97),
    vllm_page(
        running=30,
        waiting=14,
        cache=0.98,
        preemptions=9,
        tokens=900,
        prompt=4000,
        ended=20,
        steps=40,
        times={"queue": 1.2, "prefill": 0.7},
    ),
]


def watch(url: str, *options: str) -> int:
    """Two readings, one interval apart, as fast as it goes."""
    return cli.main(["watch", url, "--seconds", "0.02", "--interval", "0.02", *options])


def metrics(*replies: Reply | str) -> PlayedServer:
    return PlayedServer({"/metrics": replies})


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/v1", "/v1/"])
def test_the_report_is_on_stdout_and_progress_on_stderr(path: str, capsys: Capture) -> None:
    with metrics(*BUSY) as server:
        assert watch(server.url + path, "--width", "100") == 0
    out, err = capsys.readouterr()
    assert out.startswith("Requests wait: 63 % of the time to first token is the queue")
    assert "serving.kv_cache" in out
    assert "--gpu-memory-utilization" in out
    assert f"{server.url}/metrics · vLLM · org/model" in out
    assert all(line.startswith("tracer: ") for line in err.splitlines())
    assert "30 run, 14 wait, KV cache 98 %" in err


def test_json_is_one_document_of_the_schema(capsys: Capture) -> None:
    with metrics(*BUSY) as server:
        assert watch(server.url, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    check(document)
    serving = document["serving"]
    assert serving["kv_cache_usage_ratio"]["max"] == 0.98
    assert serving["preemptions"] == 9
    assert serving["generated_tokens"] == 900
    request = serving["request"]
    assert sum(v for k, v in request.items() if k.endswith("_ns")) == 2 * request["total_ns"]
    assert serving["time_to_first_token"]["p95_bucket_ns"] == [1_000_000_000, 2_500_000_000]
    assert serving["inter_token_latency"] is None
    assert "inter_token_latency" in serving["absent"]
    assert document["findings"][0]["rule"] == "serving.kv_cache"
    assert document["integrity"] == {"status": "complete", "notes": []}


def check(document: dict[str, Any]) -> None:
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)


ENGINES = {
    "vLLM": vllm_page(),
    "SGLang": page({"sglang:num_running_reqs": 1, "sglang:token_usage": 0.5}),
    "TensorRT-LLM": page({"trtllm_num_requests_running": 1}),
    "TGI": page({"tgi_queue_size": 1, "tgi_batch_current_size": 3}),
    "llama.cpp": page({"llamacpp:requests_processing": 1, "llamacpp:prompt_seconds_total": 3}),
    "LMDeploy": page({"lmdeploy:num_requests_running": 1}),
    "Triton": page({"nv_inference_pending_request_count": 1}),
    "MLC-LLM": page({"engine_prefill_time_sum": 1.5, "prompt_tokens_sum": 7}),
}


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_has_a_report_and_a_document(name: str, capsys: Capture) -> None:
    with metrics(ENGINES[name]) as server:
        assert watch(server.url, "--width", "100") == 0
        assert f"· {name} ·" in capsys.readouterr().out
        assert watch(server.url, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    check(document)
    assert document["source"]["engine"] == name


def test_tensorrt_metrics_are_found_without_draining_its_records(capsys: Capture) -> None:
    pages: Pages = {"/prometheus/metrics": [ENGINES["TensorRT-LLM"]], "/metrics": [Reply("[]")]}
    with PlayedServer(pages) as server:
        assert watch(server.url) == 0
        assert {path for _, path, _ in server.asked} == {"/prometheus/metrics"}


def one_line(capsys: Capture) -> str:
    """What stderr says last; stdout is empty."""
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()[-1]


HTML = Reply("<!doctype html><title>Hi</title>", 200, "text/html")
REFUSALS = [
    (NOT_FOUND, "HTTP 404 Not Found: .*start llama.cpp with --metrics, SGLang with "),
    (Reply('{"error":"not supported"}', 501, "application/json"), "HTTP 501 .*--metrics"),
    (Reply("<h1>gone</h1>", 404, "text/html"), "HTTP 404 Not Found: start llama.cpp"),
    (HTML, "it answers a web page, no Prometheus metrics.*--enable-metrics"),
    (Reply("{}", 200, "application/json"), "it answers JSON"),
    (Reply("", 200), "no Prometheus metric in its answer"),
    (page({"node_load1": 2}), "metrics of no known engine .*python_info|node_load1"),
    (Reply("", 401), "HTTP 401 Unauthorized: give its key, for example --header"),
    (Reply("", 500), "HTTP 500 Internal Server Error$"),
]


@pytest.mark.parametrize(("reply", "said"), REFUSALS)
def test_a_server_without_metrics_is_one_line(
    reply: Reply | str, said: str, capsys: Capture
) -> None:
    with metrics(reply) as server:
        assert watch(server.url) == 3
    line = one_line(capsys)
    assert re.search(said, line)
    assert f"{server.url}/metrics" in line


def test_nobody_listens(capsys: Capture) -> None:
    with metrics("") as server:
        url = server.url
    assert watch(url) == 3
    assert one_line(capsys).endswith(
        f"{url}: no server listens there: does the engine run, and is this its port?"
    )


def test_a_slow_server(capsys: Capture) -> None:
    with metrics(Reply(BUSY[0], after_s=0.6)) as server:
        assert watch(f"{server.url}/metrics", "--timeout", "0.1") == 3
    assert one_line(capsys).endswith(": no answer in time (--timeout gives it longer)")


def test_another_host_is_not_followed(capsys: Capture) -> None:
    elsewhere = Reply("", 302, headers={"Location": "http://example.invalid/metrics"})
    with metrics(elsewhere) as server:
        assert watch(f"{server.url}/metrics") == 3
    assert "it sends to http://example.invalid/metrics, which is not followed" in one_line(capsys)


def test_the_same_host_is_followed(capsys: Capture) -> None:
    pages: Pages = {
        "/metrics": [Reply("", 307, headers={"Location": "/metrics/"})],
        "/metrics/": BUSY,
    }
    with PlayedServer(pages) as server:
        assert watch(server.url) == 0
    assert "serving.kv_cache" in capsys.readouterr().out


def test_a_failed_poll_and_a_damaged_line_make_a_partial_report(capsys: Capture) -> None:
    damaged = BUSY[1].replace("# TYPE vllm:num_requests_running untyped\n", "vllm:x{y= 3\n")
    with metrics(BUSY[0], Reply("busy", 503), damaged) as server:
        options = ("--seconds", "0.06", "--interval", "0.02", "--json")
        assert cli.main(["watch", f"{server.url}/metrics", *options]) == 4
    document = json.loads(capsys.readouterr().out)
    check(document)
    assert document["integrity"]["status"] == "partial"
    assert document["window"]["missed"] == 1
    assert any("503 Service Unavailable: busy" in note for note in document["integrity"]["notes"])
    assert document["window"]["damaged_lines"] >= 1


def test_headers_are_sent(capsys: Capture) -> None:
    with metrics(*BUSY) as server:
        assert watch(server.url, "--header", "Authorization: Bearer key") == 0
    assert all(seen["Authorization"] == "Bearer key" for seen in server.seen_headers)


def test_this_machine_is_reached_past_a_proxy(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with metrics(*BUSY) as server:
        assert watch(server.url) == 0


@pytest.mark.parametrize(
    "options",
    [
        ("ftp://host/metrics",),
        ("http://",),
        ("http://host:99999",),
        ("http://user:secret@host",),
        ("http://host", "--seconds", "0"),
        ("http://host", "--interval", "-1"),
        ("http://host", "--timeout", "nan"),
        ("http://host", "--header", "no colon"),
    ],
)
def test_wrong_usage(options: Sequence[str], capsys: Capture) -> None:
    assert cli.main(["watch", *options]) == 2
    assert len(one_line(capsys)) < 200


def test_urls() -> None:
    assert parse_url("host:8000") == Server("http://host:8000")
    assert parse_url("https://host/llm/v1") == Server("https://host/llm")
    assert parse_url("http://host/llm/metrics") == Server("http://host/llm", "/metrics")
    with pytest.raises(UsageError, match="give the URL of a server"):
        parse_url("http://[::1")


class FakeTime:
    """A clock that moves when somebody sleeps; the third sleep is interrupted, if asked."""

    def __init__(self, interrupt: bool = False) -> None:
        self.now_ns, self.sleeps, self.interrupt = 0, 0, interrupt

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.interrupt and self.sleeps == 3:
            raise KeyboardInterrupt
        self.now_ns += round(seconds * 1e9)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now_ns, lambda: 7, self.sleep)


@pytest.mark.parametrize(
    ("seconds", "interval_s", "at_s"),
    [(10, 4, [0, 4, 8, 10]), (4, 2, [0, 2, 4]), (1, 5, [0, 1])],
)
def test_readings_are_an_interval_apart_and_end_with_the_window(
    seconds: float, interval_s: float, at_s: list[int]
) -> None:
    heard: list[tuple[Engine, Reading | None]] = []
    with metrics(*BUSY) as server:
        read = watch_metrics(
            parse_url(server.url),
            seconds,
            interval_s,
            5,
            lambda engine, reading: heard.append((engine, reading)),
            FakeTime().clock,
        )
    assert [reading.at_ns // 10**9 for reading in read.readings] == at_s
    assert [reading for _, reading in heard] == list(read.readings)


def test_an_interruption_ends_the_window_early() -> None:
    with metrics(*BUSY) as server:
        read = watch_metrics(parse_url(server.url), 100, 1, 5, clock=FakeTime(True).clock)
    assert (len(read.readings), read.interrupted) == (3, True)


def test_too_much_is_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.collectors.serving.http.MOST_BYTES", 1000)
    with metrics("a 1\n" * 500) as server, pytest.raises(ServerError, match="more than"):
        ask(parse_url(server.url), "/metrics", 5)
