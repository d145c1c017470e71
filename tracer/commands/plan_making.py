"""What `tracer plan` does once its arguments are read: model, GPUs, load; then the output."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracer.commands.console import line_width, render
from tracer.commands.output import wants_color, write_report
from tracer.commands.plan_text import plan_lines
from tracer.errors import UsageError
from tracer.sizing.config import read_config
from tracer.sizing.figures import to_plain, walk_figures
from tracer.sizing.gpus import Gpu, gpu_table, match_gpu, named_gpu
from tracer.sizing.measure import measure_device
from tracer.sizing.planning import make_plan
from tracer.sizing.results import Choice, Plan
from tracer.sizing.shape import ModelShape
from tracer.sizing.sources import (
    Numbers,
    confirmed,
    published_precision,
    shape_from_numbers,
    shape_of,
)
from tracer.sizing.training import TrainingChoice
from tracer.version import VERSION

SCHEMA = "tracer.plan/1"


def print_plan(args: argparse.Namespace) -> int:
    """Make the plan and print it."""
    shape, name, precision = _shape(args)
    choice = _choice(args, precision, shape)
    asked = _asked_splits(args)
    splits = asked or [(n, 1) for n in (2, 4, 8)]
    plan = make_plan(shape, _gpus(args), choice, name=name, splits=splits)
    if args.json:
        write_report(json.dumps(plan_json(plan, explain=args.explain), indent=1) + "\n")
    else:
        width = line_width()
        lines = plan_lines(plan, width, asked_splits=bool(asked), explain=args.explain)
        write_report(render(lines, width=width, color=wants_color()))
    return 0


def plan_json(plan: Plan, *, explain: bool = False) -> dict[str, Any]:
    """The plan as JSON holds it: see `tracer.sizing.results`."""
    document = {"schema": SCHEMA, "tracer": VERSION, **to_plain(plan)}
    if explain:
        document["formulas"] = {path: figure.formula for path, figure in walk_figures(plan)}
    return document


def _shape(args: argparse.Namespace) -> tuple[ModelShape, str | None, str]:
    told = Numbers(
        parameters=args.params,
        layers=args.layers,
        hidden=args.hidden,
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        intermediate=args.intermediate,
        vocabulary=args.vocab,
        experts=args.experts,
        experts_per_token=args.experts_per_token,
        active_parameters=args.active_params,
    )
    if args.config is None:
        return shape_from_numbers(told), "the model", "bf16"
    if told != Numbers():
        raise UsageError("give a config.json or the model's numbers, not both")
    config = read_config(Path(args.config))
    shape = shape_of(config, basis=args.basis)
    if args.confirm and shape.basis == "formula":
        shape = confirmed(shape, config)
    return shape, config.name, published_precision(config)


def _choice(args: argparse.Namespace, precision: str, shape: ModelShape) -> Choice:
    defaults = Choice()
    weights = args.weights or precision
    if args.weights is None and weights == "fp32":
        weights = "bf16"  # old configs name the training precision; nobody serves that
    return Choice(
        weights=weights,
        cache=args.kv_dtype,
        utilization=args.utilization,
        context=min(args.context, shape.longest or args.context),
        batch=args.batch,
        prompt=min(args.prompt, shape.longest or args.prompt),
        source_tokens=(args.source or args.prompt) if shape.encoder_layers else 0,
        fixed_overhead_bytes=defaults.fixed_overhead_bytes
        if args.overhead is None
        else args.overhead,
        training=TrainingChoice(
            optimizer=args.optimizer,
            master_weights=not args.no_master,
            lora_rank=args.lora_rank,
            lora_targets=args.lora_targets,
            batch=args.micro_batch,
            sequence=args.sequence,
            checkpointing=not args.no_checkpointing,
        ),
    )


def _asked_splits(args: argparse.Namespace) -> list[tuple[int, int]]:
    if args.tp is not None or args.pp is not None:
        tensor, pipeline = args.tp or 1, args.pp or 1
        if args.gpus is not None and args.gpus != tensor * pipeline:
            raise UsageError(f"--gpus {args.gpus} is not --tp {tensor} x --pp {pipeline}")
        return [(tensor, pipeline)]
    if args.gpus is None:
        return []
    return [(n, args.gpus // n) for n in range(args.gpus, 0, -1) if args.gpus % n == 0]


def _gpus(args: argparse.Namespace) -> Sequence[Gpu]:
    told = (args.gpu_memory, args.bandwidth, args.flops)
    if args.measure and (args.gpu or any(told)):
        raise UsageError("--measure takes the device here: leave out --gpu and its numbers")
    if args.measure:
        return [measure_device()]
    if args.gpu:
        return [_with_numbers(named_gpu(name), args) for name in args.gpu]
    if any(told):
        return [_with_numbers(Gpu("given", None, None, basis="as given"), args)]
    here = gpu_here()
    return [here] if here is not None else gpu_table()


def _with_numbers(gpu: Gpu, args: argparse.Namespace) -> Gpu:
    """A GPU with the numbers of the command line in place of the table's."""
    if not any((args.gpu_memory, args.bandwidth, args.flops)):
        return gpu
    return Gpu(
        name=gpu.name,
        memory_bytes=args.gpu_memory or gpu.memory_bytes,
        bandwidth_bytes_per_s=args.bandwidth or gpu.bandwidth_bytes_per_s,
        bf16_flops_per_s=args.flops or gpu.bf16_flops_per_s,
        fp8_flops_per_s=gpu.fp8_flops_per_s if not args.flops else None,
        basis="as given",
    )


def gpu_here(root: Path = Path("/")) -> Gpu | None:
    """The GPU of the table that the driver names on this machine; None without a driver."""
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", information.read_text("utf-8", "replace"), re.M)
        if model is not None:
            return match_gpu(model[1])
    return None
