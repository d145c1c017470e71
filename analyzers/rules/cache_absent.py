"""Rule cache.absent: text that is generated without a KV cache, all of it computed again each time.

Which calls do so is told by `growing_runs`; here, what it costs and who asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracer.analysis import Analysis, RuleResult
from tracer.analyzers.accounting import steps_at
from tracer.analyzers.context import Context
from tracer.analyzers.facts.callers import Asked, asked_from
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.estimates import BANDWIDTH_RATIO, SHORTEST_NS, device_limits
from tracer.analyzers.rules.judging import (
    counted,
    is_of_transformers,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.rules.measured_calls import measure_calls
from tracer.analyzers.steps.growing_calls import Run, asked_by, growing_runs
from tracer.findings import Check, Finding

RULE = "cache.absent"
# Shares of the window and of the calls themselves below which a cache would hardly help.
_NOTABLE, _SPARED = 0.03, 0.1
# On a CPU an operator of one token takes about so long, and weights come from memory so fast.
_CPU_OPERATOR_NS, _CPU_BYTES_PER_S = 10_000, 10e9


def judge_absent_cache(context: Context, analysis: Analysis) -> RuleResult:
    """By the lengths of the calls of each model."""
    table = analysis.trace.table("root_calls")
    if not (len(table) and (table["tokens"] > 0).any()):
        reason = "how many tokens the calls of a model take is recorded live only"
        return RuleResult(checks=(Check(RULE, "not_checked", reason),))
    groups: dict[str, list[Run]] = {}
    for run in growing_runs(table):
        groups.setdefault(asked_by(table, run.rows), []).append(run)
    findings = tuple(_finding(context, analysis, table, runs) for runs in groups.values())
    return RuleResult(findings, (verdict(RULE, findings),))


@dataclass(frozen=True)
class _Cost:
    """What calls take, and about how much of it a cache would spare; over all devices."""

    wall_ns: int
    spared_ns: int
    basis: str


def _finding(context: Context, analysis: Analysis, table: pd.DataFrame, runs: list[Run]) -> Finding:
    again = table.loc[[row for run in runs for row in run.rows[1:]]]
    needed = np.concatenate([np.full(len(run.rows) - 1, run.added) for run in runs])
    cost = _cost(context, analysis, again, needed) if analysis.accounted else None
    spared = cost.spared_ns if cost else None
    asked = asked_from(again["callers"].astype(str), ())
    helps = cost is not None and cost.spared_ns >= _SPARED * cost.wall_ns
    severity = severity_of(spared, analysis, _NOTABLE) if helps else "info"
    tokens = again["tokens"].to_numpy()
    return Finding(
        rule=RULE,
        severity=severity,
        title=_title(again, needed),
        count=len(again),
        cost_ns=spared,
        ratio=ratio_of(spared, analysis),
        steps=_steps_of(analysis, again),
        where=asked.where,
        detail={
            "sequences": len(runs),
            "batch": int(again["batch"].iloc[0]),
            "tokens": [int(tokens.min()), int(tokens.max())],
            "tokens_again": int((again["batch"].to_numpy() * (tokens - needed)).sum()),
            "calls_ns": cost.wall_ns if cost else None,
            "cache_returned": bool((again["fills"] == 1).any()),
            "gain_basis": cost.basis if cost else None,
        },
        advice=" ".join(_advice(analysis, again, asked, helps=helps, known=cost is not None)),
        gain_ns=spared,
    )


def _title(again: pd.DataFrame, needed: Longs) -> str:
    least, most = int(again["tokens"].min()), int(again["tokens"].max())
    each = f"for each {counted(int(needed[0]), 'token')}" if needed[0] > 1 else "for each token"
    calls = counted(len(again), "call")
    return (
        f"generation without a KV cache: {calls} of {again['type'].iloc[0]} compute the whole "
        f"sequence again {each}, {least:,} to {most:,} tokens at a time"
    )


def _advice(
    analysis: Analysis, again: pd.DataFrame, asked: Asked, *, helps: bool, known: bool
) -> Iterator[str]:
    if not known:
        yield "What this costs was not recorded: detail 'modules' tells."
    elif not helps:
        yield (
            "It costs little here: the calls would hardly be shorter with fewer tokens, since the "
            "host, or reading the weights, takes most of them. It grows with longer sequences."
        )
    generates = (again["generation"] >= 0).all()
    if (again["fills"] == 1).any() and not generates:
        yield (
            "Pass the cache on: each call returns one (past_key_values), and nobody gives it to "
            "the next, which then takes the new tokens alone."
        )
    elif generates or is_of_transformers(analysis, str(again["type"].iloc[0])):
        yield (
            "Turn the cache on: use_cache=True in the call and in the model's config, without "
            "gradient checkpointing in training mode, which switches it off."
        )
        if not generates:
            yield (
                "Then give past_key_values to the next call with the new tokens alone, or let "
                "model.generate() do that."
            )
    else:
        yield (
            "Keep the keys and values of each layer from call to call, in buffers that are "
            "allocated once, and call the model with the new tokens alone."
        )


def _cost(context: Context, analysis: Analysis, again: pd.DataFrame, needed: Longs) -> _Cost:
    """What each call takes, against what would be left with its new tokens alone."""
    pieces = _Pieces.of(context, analysis, again)
    share = needed / again["tokens"].to_numpy()
    held = np.flatnonzero(pieces.call != NONE)
    call, own = pieces.call[held], pieces.own_ns[held]
    floor = np.minimum(own, pieces.shortest_ns)
    left = np.bincount(call, np.maximum(own * share[call], floor), minlength=len(again))
    left = np.maximum(left, _weights_ns(context, again))
    busy = np.bincount(call, own, minlength=len(again))
    rest = np.maximum(pieces.wall_ns - busy, 0) if context.work.cpu_only else 0
    left = np.maximum(left + rest, 0 if context.work.cpu_only else pieces.host_ns)
    spared = int(np.maximum(pieces.wall_ns - left, 0).sum())
    devices = max(analysis.window.devices, 1)
    return _Cost(int(pieces.wall_ns.sum()) * devices, spared * devices, _basis(context))


def _basis(context: Context) -> str:
    fixed = "what the host takes" if not context.work.cpu_only else "what lies between operators"
    return (
        "estimate: the work of each call shrunk to its new tokens, but no kernel or operator below "
        f"what the smallest take, nor all of it below reading the weights, nor below {fixed}"
    )


@dataclass(frozen=True)
class _Pieces:
    """Calls as measured, and the work in each: its call and its own time."""

    wall_ns: Longs
    host_ns: Longs  # what the host takes without its waits
    call: Longs
    own_ns: Longs
    shortest_ns: int

    @classmethod
    def of(cls, context: Context, analysis: Analysis, calls: pd.DataFrame) -> _Pieces:
        """The calls in order of time, with the work that each launched."""
        host, host_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        order = np.argsort(host, kind="stable")
        measured = measure_calls(context, calls)
        waited = np.empty(order.size, dtype=np.int64)
        waited[order] = _waits_ns(context, host[order], host_end[order])
        shortest = _CPU_OPERATOR_NS if context.work.cpu_only else SHORTEST_NS
        own = analysis.work["charged_ns"].to_numpy()
        wall, spent = measured.end_ns - measured.start_ns, np.maximum(host_end - host - waited, 0)
        return cls(wall, spent, measured.of, own, shortest)


def _waits_ns(context: Context, start: Longs, end: Longs) -> Longs:
    """How long the host waits for the device in each of these times."""
    trace, calls = context.work.trace, context.work.calls
    rows = np.flatnonzero(calls.synchronize | calls.blocking_copy)
    at = steps_at(trace.start_ns[rows], start, end)
    inside = at != NONE
    out = np.zeros(start.size, dtype=np.int64)
    np.add.at(out, at[inside], (trace.end_ns[rows] - trace.start_ns[rows])[inside])
    return out


def _weights_ns(context: Context, calls: pd.DataFrame) -> int:
    """How long reading the weights of a model takes at least; 0 where that is not known."""
    table = context.work.trace.table("model_modules")
    root = str(calls["root"].iloc[0])
    paths = table["path"].astype(str)
    mine = paths.str.startswith(f"{root}.") | (paths == root) if root else paths != ""
    # One token reads one row of an embedding.
    mine &= table["type"].astype(str) != "Embedding"
    size = int(table["parameter_bytes"][mine].sum())
    limits = device_limits(context.work.trace)
    if context.work.cpu_only:
        return round(size / _CPU_BYTES_PER_S * 1e9)
    if limits is None:
        return 0
    return round(size / (limits.bandwidth_bytes_per_s * BANDWIDTH_RATIO) * 1e9)


def _steps_of(analysis: Analysis, calls: pd.DataFrame) -> tuple[int, ...]:
    steps = analysis.steps
    announced, end = steps["announced_ns"].to_numpy(), steps["host_end_ns"].to_numpy() + 1
    at = steps_at(calls["start_ns"].to_numpy(), announced, end)
    return tuple(np.unique(at[at != NONE]).tolist())
