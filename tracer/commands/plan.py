"""`tracer plan`: does the model fit, and how fast can it be, before anything runs."""

from __future__ import annotations

import argparse
import re

from tracer.sizing.gpus import gpu_table
from tracer.sizing.memory import CACHE_BYTES, PRECISIONS
from tracer.sizing.training import OPTIMIZER_BYTES

NAME = "plan"
HELP = "memory arithmetic and the speed limit of a model on a GPU"

_SCALES = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALES.update({"KI": 2.0**10, "MI": 2.0**20, "GI": 2.0**30, "TI": 2.0**40, "B": 1e9})


def quantity(text: str) -> float:
    """`8e9`, `8B`, `24GB`, `24GiB`, `3.35TB/s`, `989TFLOPS`."""
    match = re.fullmatch(
        r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kmgtp]i?|b)?(?:b|bytes|flops?)?(?:/s)?\s*", text.lower()
    )
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number such as 8e9, 24GB, 3.35TB/s")
    return float(match[1]) * _SCALES[(match[2] or "").upper()]


def size_in_bytes(text: str) -> int:
    """`24GB`, `24GiB`, or a number of bytes."""
    return int(quantity(re.sub(r"(?i)(?<=\d)\s*b$", "", text)))


def whole(text: str) -> int:
    """`8e9`, `8B`, `4096`."""
    return int(quantity(text))


def positive(text: str) -> int:
    """A whole number of at least one."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return value


def share(text: str) -> float:
    """A share of the memory between 0 and 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a share between 0 and 1, such as 0.9")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tracer plan`."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="a Hugging Face config.json, or its folder"
    )
    _add_numbers(parser)
    _add_gpu(parser)
    _add_load(parser)
    _add_training(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--explain", action="store_true", help="every figure with its formula")
    out.add_argument("--json", action="store_true", help="JSON on stdout")
    out.add_argument(
        "--basis",
        choices=("auto", "formula", "transformers"),
        default="auto",
        help="count parameters by formula, or by transformers on the meta device (default: "
        "formula, and transformers for what no formula covers)",
    )
    out.add_argument(
        "--confirm", action="store_true", help="count with transformers too (about 4 s)"
    )


_EPILOG = """\
examples:
  tracer plan llama/config.json                       the GPUs of the table side by side
  tracer plan llama/config.json --gpu 4090            one of them in full
  tracer plan llama/config.json --gpu H100 --tp 4     split over four
  tracer plan llama/config.json --measure --explain   this machine, with formulas
  tracer plan --params 8e9 --layers 32 --kv-heads 8 --head-dim 128 --gpu-memory 24GB
"""


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a model without a config")
    for option, metavar, text in (
        ("--params", "N", "parameters, such as 8e9 or 8B"),
        ("--active-params", "N", "of them active a token, in a mixture of experts"),
        ("--layers", "N", "layers"),
        ("--hidden", "N", "width of the residual stream"),
        ("--heads", "N", "attention heads"),
        ("--kv-heads", "N", "key-value heads"),
        ("--head-dim", "N", "width of a head"),
        ("--intermediate", "N", "width of the feed-forward"),
        ("--vocab", "N", "vocabulary"),
        ("--experts", "N", "routed experts a layer"),
        ("--experts-per-token", "N", "of them active"),
    ):
        group.add_argument(option, metavar=metavar, type=positive, help=text)


def _add_gpu(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the GPU")
    known = ", ".join(gpu.name for gpu in gpu_table())
    group.add_argument("--gpu", action="append", metavar="NAME", help=f"one of: {known}")
    group.add_argument("--measure", action="store_true", help="measure the device here")
    group.add_argument("--gpu-memory", type=size_in_bytes, metavar="SIZE", help="such as 24GB")
    group.add_argument("--bandwidth", type=quantity, metavar="RATE", help="such as 3.35TB/s")
    group.add_argument("--flops", type=quantity, metavar="RATE", help="bf16 peak, as 989TFLOPS")
    group.add_argument(
        "--utilization", type=share, default=0.9, metavar="SHARE", help="of memory (0.9)"
    )
    group.add_argument(
        "--overhead",
        type=size_in_bytes,
        metavar="SIZE",
        help="context, kernels and workspaces of a process (0.9GB); working memory is added",
    )
    group.add_argument("--gpus", type=positive, metavar="N", help="splits over N GPUs")
    group.add_argument("--tp", type=positive, metavar="N", help="tensor parallel over N GPUs")
    group.add_argument("--pp", type=positive, metavar="N", help="pipeline of N stages")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inference")
    group.add_argument(
        "--weights", choices=tuple(PRECISIONS), help="precision (default: the config's)"
    )
    group.add_argument(
        "--kv-dtype", choices=tuple(CACHE_BYTES), default="bf16", help="of the cache"
    )
    group.add_argument("--batch", type=positive, default=1, metavar="N", help="sequences (1)")
    group.add_argument(
        "--context", type=positive, default=4096, metavar="N", help="tokens of each (4096)"
    )
    group.add_argument(
        "--prompt", type=positive, default=2048, metavar="N", help="tokens of a prefill (2048)"
    )
    group.add_argument(
        "--source", type=positive, metavar="N", help="tokens an encoder reads (the prompt's)"
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--optimizer", choices=tuple(OPTIMIZER_BYTES), default="adamw")
    group.add_argument("--no-master", action="store_true", help="no fp32 copy of the weights")
    group.add_argument("--lora-rank", type=positive, default=16, metavar="N")
    group.add_argument("--lora-targets", choices=("all-linear", "attention"), default="all-linear")
    group.add_argument("--micro-batch", type=positive, default=1, metavar="N")
    group.add_argument("--sequence", type=positive, default=2048, metavar="N")
    group.add_argument("--no-checkpointing", action="store_true", help="keep all activations")


def run(args: argparse.Namespace) -> int:
    """Print the plan. 0: made; whether the model fits is in it."""
    from tracer.commands.plan_making import print_plan

    return print_plan(args)
