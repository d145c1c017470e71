"""Rule training.recompute: activations that a backward pass computes again (checkpointing).

It buys memory with time, as somebody wanted; where the memory is not needed it buys nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.judging import milliseconds, ratio_of, verdict
from tracer.findings import Check, Finding

RULE = "training.recompute"
# Share of the window from which it is told.
_NOTABLE = 0.03
# A device of which less was ever reserved has room for activations.
_ROOMY = 0.5
_MOST_MODULES, _MOST_EVENTS = 8, 100
_GB = 1e9


def judge_recompute(context: Context, analysis: Analysis) -> RuleResult:
    """By the work that repeats a forward pass within the backward pass."""
    if not analysis.accounted:
        return RuleResult(checks=(Check(RULE, "not_checked", analysis.breakdown_reason),))
    again = (analysis.work["direction"] == "recompute").to_numpy()
    charged = np.where(again, analysis.work["charged_ns"].to_numpy(), 0)
    told = (ratio_of(int(charged.sum()), analysis) or 0.0) >= _NOTABLE
    findings = (_finding(context, analysis, charged),) if told else ()
    return RuleResult(findings, (verdict(RULE, findings),))


def _finding(context: Context, analysis: Analysis, charged: Longs) -> Finding:
    cost = int(charged.sum())
    order = np.argsort(-charged, kind="stable")
    rows = order[: int(np.count_nonzero(charged))]
    steps = np.unique(analysis.work["step"].to_numpy()[rows])
    of_step = steps[steps != NONE].tolist()
    filled = _filled(analysis)
    roomy = filled is not None and filled[0] < _ROOMY * filled[1]
    share = ratio_of(cost, analysis) or 0.0
    return Finding(
        rule=RULE,
        severity="warning" if roomy else "info",
        title=(
            "checkpointed activations are computed again in the backward pass: "
            f"{milliseconds(cost // max(len(of_step), 1))} a step, {share:.0%} of the time"
        ),
        count=len(rows),
        cost_ns=cost,
        ratio=share,
        steps=tuple(of_step),
        where=replace(context.work.once(Places).of_work(int(rows[0])), operator=None),
        detail={
            "modules": _modules(context, charged),
            "peak_reserved_bytes": filled[0] if filled else None,
            "capacity_bytes": filled[1] if filled else None,
            "gain_basis": "computed: the work that is done again",
        },
        advice=" ".join(_advice(filled, roomy=roomy)),
        gain_ns=cost,
        events=tuple(context.work.event[rows[:_MOST_EVENTS]].tolist()),
    )


def _modules(context: Context, charged: Longs) -> list[dict[str, object]]:
    """The modules that are computed again, like ones together."""
    tree = context.work.tree
    sums: dict[str, int] = {}
    rows = np.flatnonzero((charged > 0) & (context.work.module != NONE))
    for module, ns in zip(context.work.module[rows].tolist(), charged[rows].tolist(), strict=True):
        path = folded(tree.paths[module])
        sums[path] = sums.get(path, 0) + ns
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    return [{"module": path, "ns": ns} for path, ns in ranked[:_MOST_MODULES]]


def _filled(analysis: Analysis) -> tuple[int, int] | None:
    """Bytes reserved at most and of all, of the fullest device; None where one is not known."""
    devices = analysis.memory.get("devices", ())
    known = [
        (int(device["peak_reserved_bytes"]), int(device["capacity_bytes"]))
        for device in devices
        if device.get("capacity_bytes") and device.get("peak_reserved_bytes") is not None
    ]
    return max(known, key=lambda pair: pair[0] / pair[1]) if known else None


def _advice(filled: tuple[int, int] | None, *, roomy: bool) -> Iterator[str]:
    if filled is None:
        room = "How much memory is free was not recorded: if activations fit"
    else:
        reserved, capacity = (size / _GB for size in filled)
        room = f"At most {reserved:.1f} of {capacity:.0f} GB were reserved: "
        room += "if the activations fit beside" if roomy else "if a smaller batch is no loss"
    yield (
        f"{room}, switch checkpointing off (gradient_checkpointing=False, "
        "model.gradient_checkpointing_disable())."
    )
    yield (
        "Half of the gain for half of the memory: checkpoint every second layer, or only what is "
        "cheap to compute again (selective checkpointing, context_fn of torch.utils.checkpoint)."
    )
