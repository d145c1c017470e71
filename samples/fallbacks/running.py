"""What the programs beside this file share: the command line, and steps under a trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from tracer import trace

Step = Callable[[], Any]


def device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype() -> torch.dtype:
    """What a GPU multiplies fast; on a CPU the usual type."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def need_gpu(what: str) -> None:
    """End with one line where there is no GPU."""
    if not torch.cuda.is_available():
        raise SystemExit(f"{what} happens on a GPU alone: run this where torch sees a CUDA device")


def steps_of(step: Step, steps: int = 4, *, detail: Any = "modules") -> Any:
    """A recording of some steps, after two that warm up."""
    with torch.no_grad():
        for _ in range(2):
            step()
        with trace(detail=detail) as t:
            for _ in range(steps):
                with t.step():
                    step()
    return t


def main(words: str | None, traced: Callable[[bool], Any]) -> None:
    """Run one program, as it is or as its clean twin, and print the report."""
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clean", action="store_true", help="the twin without the fallback")
    parser.add_argument("--out", metavar="DIR", help="keep the run there")
    args = parser.parse_args()
    recording = traced(args.clean)
    if args.out:
        recording.save(args.out)
    print(recording.report)
