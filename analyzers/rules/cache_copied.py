"""Rule cache.copied: decode steps that join the KV cache and one token's keys and values anew.

Joining writes the whole cache to a new place for each token, in each layer, so it grows with the
context; writing the token in place does not. Attention joins other things too, such as the halves
of rotated queries: what is joined must be much larger than what is new.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, DECODING, Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments, as_shape
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.judging import (
    counted,
    is_of_transformers,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.analyzers.tables import kept_tokens
from tracer.findings import Check, Finding, Where

RULE = "cache.copied"
# Shares of the decode steps from which it is told, and idle of them from which the host, and not
# the device, sets how long they are.
_NOTABLE, _HOST_BOUND = 0.05, 0.3
# What is joined is so many times what is new; where sizes were not recorded, joining it takes so
# many times what an operator on one token takes.
_LARGER, _LONGER = 4, 3
# A cache is joined in each layer and step: without sizes, by so many of all joins at the least.
_OFTEN = 0.25
_CACHE = BUCKET_CODE["attention", "kv_cache"]
_ON_TOKENS = [
    BUCKET_CODE[bucket]
    for bucket in (
        ("other", "residual"),
        ("other", "norm"),
        ("attention", "rope"),
        ("ffn", "activation"),
    )
]
_JOINS = re.compile(r"aten::_?cat$|.*CatArrayBatchedCopy")
_ITEM = re.compile(r".*OpaqueType<(\d+)u?>")


def judge_copied_cache(context: Context, analysis: Analysis) -> RuleResult:
    """By what decode steps join in their attention."""
    if not analysis.accounted:
        return _unjudged(analysis.breakdown_reason)
    phases = analysis.steps["phase"].astype(str)
    if (phases == "").all():
        return _unjudged("which steps decode is not known")
    joins = _joins(context, analysis)
    known = joins.rows.size and joins.told
    if joins.rows.size and not joins.told:
        return _unjudged("how much attention joins is not recorded")
    lasting = int(analysis.steps["wall_ns"][phases.isin(DECODING)].sum())
    notable = known and joins.cost_ns >= _NOTABLE * lasting * max(analysis.window.devices, 1)
    findings = (_finding(context, analysis, joins),) if notable else ()
    return RuleResult(findings, (verdict(RULE, findings),))


def _unjudged(reason: str) -> RuleResult:
    return RuleResult(checks=(Check(RULE, "not_checked", reason),))


@dataclass(frozen=True)
class _Joins:
    """Work of decode steps that joins the cache. told: whether its size could be judged."""

    rows: Longs
    own_ns: Longs
    step: Longs
    small_ns: int | None  # what an operator on one token takes there
    elements: int | None  # of all that is written, by the recorded shapes
    told: bool = True

    @property
    def cost_ns(self) -> int:
        return int(self.own_ns.sum())


def _joins(context: Context, analysis: Analysis) -> _Joins:
    work, table = context.work, analysis.work
    decodes = np.append(analysis.steps["phase"].isin(DECODING).to_numpy(), False)
    inside = decodes[table["step"].to_numpy()]
    bucket, own = table["bucket"].to_numpy(), table["charged_ns"].to_numpy()
    writes = inside & (bucket == _CACHE)
    joining = writes & _joining(context)
    # Where the cache is written in place, attention joins something else.
    in_place = int((writes & ~joining).sum())
    rows = np.flatnonzero(joining) if in_place < joining.sum() / 2 else np.zeros(0, np.int64)
    small = own[inside & np.isin(bucket, _ON_TOKENS) & (own > 0)]
    small_ns = int(np.median(small)) if small.size else None
    found = _sized(context, rows, own, small_ns)
    return (
        replace(found, step=table["step"].to_numpy()[found.rows].astype(np.int64))
        if (work.event.size)
        else found
    )


def _joining(context: Context) -> NDArray[np.bool_]:
    """By the operator, and by the kernel where that is not known."""
    work = context.work
    named = work.trace.names_matching(lambda name: _JOINS.match(name) is not None)
    code = take(work.trace.name_codes.astype(np.int64), work.operator)
    code = np.where(code == NONE, work.name_code, code)
    joins: NDArray[np.bool_] = named[code]
    return joins


def _sized(context: Context, rows: Longs, own: Longs, small_ns: int | None) -> _Joins:
    """Those of the joins that hold a cache: by their shapes, else by what they take."""
    none: Longs = np.zeros(0, dtype=np.int64)
    arguments = Arguments(context.work.trace)
    at = arguments.rows(
        take(np.arange(len(context.work.trace.events)), context.work.operator[rows])
    )
    if rows.size and (at != NONE).all():
        texts = context.work.trace.table("shapes")["input_shapes"].astype(str).to_numpy()[at]
        sizes = [_cache_and_new(text) for text in texts.tolist()]
        holds = np.array([past >= _LARGER * new > 0 for past, new in sizes], dtype=bool)
        elements = sum(past + new for (past, new), held in zip(sizes, holds, strict=True) if held)
        return _Joins(rows[holds], own[rows[holds]], none, small_ns, int(elements))
    if small_ns is None:
        return _Joins(rows, own[rows], none, None, None, told=not rows.size)
    holds = own[rows] >= _LONGER * small_ns
    if holds.sum() < _OFTEN * rows.size:  # a few that lost their processor hold no cache
        holds[:] = False
    return _Joins(rows[holds], own[rows[holds]], none, small_ns, None)


@lru_cache(maxsize=4096)
def _cache_and_new(shapes: str) -> tuple[int, int]:
    """How many numbers the largest of what is joined holds, and all the others together."""
    try:
        parts, *_ = json.loads(shapes)
    except (ValueError, TypeError):
        return 0, 0
    sizes = sorted(prod(shape) for part in parts or () if (shape := as_shape(part)))
    return (sizes[-1], sum(sizes[:-1])) if len(sizes) > 1 else (0, 0)


def _finding(context: Context, analysis: Analysis, joins: _Joins) -> Finding:
    cost, steps = joins.cost_ns, np.unique(joins.step)
    small = None if joins.small_ns is None else min(joins.small_ns * joins.rows.size, cost)
    held_up = _idle_ratio(analysis, steps) >= _HOST_BOUND
    gain = None if small is None or held_up else cost - small
    moved = _bytes(context, analysis, joins)
    return Finding(
        rule=RULE,
        severity="info" if held_up else severity_of(cost, analysis),
        title=_title(analysis, joins, steps, moved),
        count=int(joins.rows.size),
        cost_ns=cost,
        ratio=ratio_of(cost, analysis),
        steps=tuple(steps.tolist()),
        where=_where(context, joins.rows),
        detail={
            "bytes_written": moved,
            "each_ns": cost // joins.rows.size,
            "gain_basis": None
            if gain is None
            else "computed: one token written in place takes what other operators on it take",
        },
        advice=" ".join(_advice(analysis, held_up=held_up)),
        gain_ns=gain,
    )


def _idle_ratio(analysis: Analysis, steps: Longs) -> float:
    if analysis.cpu_only:
        return 0.0
    mine = analysis.steps.iloc[steps]
    wall = int(mine["wall_ns"].sum()) * max(analysis.window.devices, 1)
    return 1 - int(mine["busy_ns"].sum()) / max(wall, 1)


def _title(analysis: Analysis, joins: _Joins, steps: Longs, moved: int | None) -> str:
    lasting = int(analysis.steps["wall_ns"].iloc[steps].sum()) * max(analysis.window.devices, 1)
    times = round(joins.rows.size / steps.size)
    size = "" if moved is None else f", {moved / steps.size / 1e6:,.1f} MB written"
    return (
        f"the KV cache is copied whole for each token: {counted(times, 'join')} of "
        f"{milliseconds(joins.cost_ns // joins.rows.size)} in a decode step{size}, "
        f"{joins.cost_ns / max(lasting, 1):.0%} of its time"
    )


def _where(context: Context, rows: Longs) -> Where:
    """The commonest place, with like layers as one."""
    places = context.work.once(Places)
    operators = context.work.operator[rows]
    found = Counter(
        replace(where, module=folded(where.module) if where.module else None)
        for where in (places.of(row) for row in operators[operators != NONE].tolist())
    )
    return found.most_common(1)[0][0] if found else Where()


def _bytes(context: Context, analysis: Analysis, joins: _Joins) -> int | None:
    """What is written: the kernel or the model tells how large a number is."""
    kernel = context.work.trace.names[int(context.work.name_code[joins.rows[0]])]
    match = _ITEM.match(kernel)
    models = list(analysis.facts.get("models") or [])
    model = models[0] if len(models) == 1 else {}
    item = int(match[1]) if match else _item_bytes(model)
    elements = joins.elements or _elements(analysis, joins, model)
    return None if item is None or not elements else item * elements


def _item_bytes(model: dict[str, int]) -> int | None:
    parameters, size = model.get("parameters"), model.get("parameter_bytes")
    whole = parameters and size and size % parameters == 0
    return size // parameters if whole and size and parameters else None


def _elements(analysis: Analysis, joins: _Joins, model: dict[str, int]) -> int | None:
    """By the heads of the model, and the context since the prompt, where that was recorded."""
    heads, size = model.get("num_key_value_heads"), model.get("head_dim")
    steps = analysis.steps
    phases, batch = steps["phase"].astype(str).to_numpy(), steps["batch"].to_numpy()
    tokens, stay = steps["tokens"].to_numpy(), kept_tokens(steps)
    if not heads or not size or phases[0] != "prefill" or (np.minimum(batch, tokens) <= 0).any():
        return None
    held, kept = np.zeros(tokens.size, dtype=np.int64), 0
    for i, phase in enumerate(phases.tolist()):
        begins = phase == "prefill" and (i == 0 or phases[i - 1] != "prefill")
        kept = int(tokens[i] if stay[i] == NONE else stay[i]) + (0 if begins else kept)
        held[i] = kept
    return int(held[joins.step].sum()) * heads * size


def _advice(analysis: Analysis, *, held_up: bool) -> Iterator[str]:
    if held_up:
        yield "The host holds these steps up: it spares the device, and the step little yet."
    if is_of_transformers(analysis):
        yield (
            'Use a static cache: generate(cache_implementation="static"), or a StaticCache given '
            "as past_key_values, no longer than needed. It is written in place, and the copies, "
            "which grow with the context, go."
        )
        return
    yield (
        "Allocate the cache once, for the longest sequence, and write each token in place "
        "(index_copy_ or a slice), attending to the filled part: the copies, which grow with the "
        "context, go."
    )
