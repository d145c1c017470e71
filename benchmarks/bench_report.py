"""From a recording to its report: speed and memory of the whole way, in turn with others.

Prints, all measured in this run:
  file: megabytes of JSON a second of one core's processor time, and peak bytes a byte of JSON,
        beyond those of a report of a tiny file, for plain and gzipped JSON
  live: from the end of `with trace()` to the printed report against `prof.key_averages()`
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("TRACER_SHARED", Path(__file__).resolve().parents[2] / "shared"))
SOURCE = SHARED / "h200" / "long_decode8b_50steps.json.gz"
WANTED_BYTES = 200_000_000
ROUNDS = 3


def grown_trace(source: Path, folder: Path) -> Path:
    """The recording repeated in time until it is large enough."""
    header, _, rest = gzip.decompress(source.read_bytes()).partition(b'"traceEvents"')
    trace = json.loads(header + b'"traceEvents"' + rest)
    events = [e for e in trace["traceEvents"] if "ts" in e]
    first, last = min(e["ts"] for e in events), max(e["ts"] + e.get("dur", 0) for e in events)
    path, copy = folder / "grown.json", 0
    pieces: list[str] = []
    size = 0
    while size < WANTED_BYTES:
        text = ",\n".join(json.dumps(shifted(e, copy, last - first + 1000)) for e in events)
        pieces.append(text)
        size, copy = size + len(text), copy + 1
    trace["traceEvents"] = []
    head = json.dumps(trace)[: -len("]}")].rstrip() if trace["traceEvents"] == [] else ""
    path.write_text(head[: head.rindex("[") + 1] + ",\n".join(pieces) + "]}")
    return path


def shifted(event: dict[str, Any], copy: int, span_us: float) -> dict[str, Any]:
    """The event in another repetition: later, with links of its own."""
    if not copy:
        return event
    args = dict(event.get("args", {}))
    for key in ("correlation", "External id"):
        if key in args:
            args[key] += copy * 100_000_000
    return {**event, "ts": round(event["ts"] + copy * span_us, 3), "args": args}


def usage_of(command: list[str]) -> tuple[float, int]:
    """Processor seconds and peak bytes of a command."""
    pid = os.fork()
    if pid == 0:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        os.execv(command[0], command)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def report_usage(path: Path) -> tuple[float, int]:
    """Median processor seconds and peak of a text report of a file."""
    command = [sys.executable, "-m", "tracer", "report", str(path)]
    runs = [usage_of(command) for _ in range(ROUNDS)]
    return statistics.median(r[0] for r in runs), max(r[1] for r in runs)


def file_figures(folder: Path) -> None:
    """Prints the figures for files."""
    if not SOURCE.is_file():
        print(f"file: no recordings at {SHARED}: set TRACER_SHARED")
        return
    plain = grown_trace(SOURCE, folder)
    packed = folder / "grown.json.gz"
    subprocess.run(["gzip", "-1", "-k", str(plain)], check=True)
    tiny = folder / "tiny.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    tiny.write_text(json.dumps({"traceEvents": [event]}))
    base_seconds, base_bytes = report_usage(tiny)
    size = plain.stat().st_size
    for path in (plain, packed):
        seconds, peak = report_usage(path)
        speed = size / 1e6 / (seconds - base_seconds)
        print(
            f"file: {path.name}: {size / 1e6:.0f} MB of JSON, read and reported at "
            f"{speed:.0f} MB/s of a core, {(peak - base_bytes) / size:.2f} bytes a byte "
            f"(beyond a tiny report: {base_seconds:.2f} s, {base_bytes / 1e6:.0f} MB)"
        )


def live_figures() -> None:
    """Prints the time from the end of the capture to the report, ours and `key_averages`."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from transformers import LlamaConfig, LlamaForCausalLM

    from tracer import trace

    torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1000,
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 1000, (1, 16))

    def decode() -> None:
        model.generate(ids, max_new_tokens=51, do_sample=False, pad_token_id=0, eos_token_id=None)

    decode()
    ratios = []
    for _ in range(ROUNDS):
        with trace() as t:
            decode()
            begin = time.process_time()
        text = str(t.report)
        ours = time.process_time() - begin
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            decode()
            begin = time.process_time()
        table = prof.key_averages().table()
        theirs = time.process_time() - begin
        ratios.append(theirs / ours)
        print(
            f"live: ours {ours:.2f} s ({len(text)} characters), key_averages {theirs:.2f} s "
            f"({len(table)} characters)"
        )
    print(f"live: key_averages takes {statistics.median(ratios):.1f} times as long (wanted: 7)")


def main() -> None:
    """Prints all figures."""
    with tempfile.TemporaryDirectory() as folder:
        file_figures(Path(folder))
    live_figures()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
