"""`tracer demo`: trace a small transformer here, print the report, say what to try next."""

from __future__ import annotations

import argparse
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from tracer.commands.output import Progress, say, wants_color, write_report

if TYPE_CHECKING:
    import torch

    from tracer.analysis import Analysis

NAME = "demo"
HELP = "trace a small transformer on this machine and print the report (nothing is downloaded)"

PROMPT_TOKENS = 128
NEW_TOKENS = 16
RECORDING = "decode_llama8b_modules.json.gz"
RECORDING_SAYS = "a recording of an 8B model in eager mode on an H200: 4 decode steps"

_NEXT = """\
What to try next:
  tracer run your_script.py            trace your own program, unchanged
  tracer report trace.json.gz          report a trace that torch.profiler wrote
  tracer report runs/a --html a.html   the same as a page with plots
  tracer diff runs/a runs/b            what a change did, measured before and after it
  with tracer.trace() as t: ...        in your own code; then print(t.report)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer demo`."""
    parser.add_argument("--width", type=int, metavar="N", help="cells of a line, 80 to 160")
    parser.add_argument(
        "--live-only", action="store_true", help="leave out the second example, a recording"
    )


def run(args: argparse.Namespace) -> int:
    """Print the report of a live run, then that of a recording."""
    device = _device()
    write_report(f"1. Live: a small transformer with random weights on {_device_words(device)}\n\n")
    _write(_trace_live(device), args.width)
    if not args.live_only:
        _report_recording(args.width)
    write_report(f"\n{_NEXT}")
    return 0


def _device() -> torch.device:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _device_words(device: torch.device) -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "the CPU (no CUDA GPU here)"


def _trace_live(device: torch.device) -> Analysis:
    import torch

    from tracer.commands.demo_model import generate, make_demo_model
    from tracer.recorder import trace

    with Progress("demo") as progress:
        progress.stage("making the model")
        model = make_demo_model(device)
        prompt = torch.randint(0, model.shape.vocabulary, (1, PROMPT_TOKENS), device=device)
        generate(model, prompt, 2)  # first-use work of libraries stays out of the recording
        progress.stage("tracing")
        with trace(model) as recording:
            generate(model, prompt, NEW_TOKENS)
        progress.stage("accounting")
        return recording.analysis


def _write(analysis: Analysis, width: int | None) -> None:
    from tracer.exporters.text import render_text

    write_report(render_text(analysis, width=width, color=wants_color()))


def _report_recording(width: int | None) -> None:
    from tracer.analyzers import analyze
    from tracer.sources import open_source

    recording = files("tracer.recordings") / RECORDING
    if not recording.is_file():
        say("the second example is not installed here")
        return
    write_report(f"\n2. From a file: {RECORDING_SAYS}\n\n")
    with as_file(recording) as path, Progress(f"reading {RECORDING}") as progress:
        analysis = analyze(open_source(path, progress))
    _write(analysis, width)
