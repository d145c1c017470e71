"""Which attention ran where: fused kernels, PyTorch's math path, chains written by hand."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.attribution import Work
from tracer.analyzers.intervals import NONE, Longs, lookup, take

MATH, UNFUSED = "math", "unfused"
_SDPA = re.compile(r"aten::scaled_dot_product_attention$")
_MATH = re.compile(r"aten::_scaled_dot_product_attention_math")
_FUSED = {
    "flash": re.compile(r"aten::_scaled_dot_product_flash_attention|aten::_flash_attention"),
    "efficient": re.compile(r"aten::_scaled_dot_product_efficient|aten::_efficient_attention"),
    "cudnn": re.compile(r"aten::_scaled_dot_product_cudnn|aten::_cudnn_attention"),
    "flex": re.compile(r"flex_attention"),
}
_BATCHED_PRODUCT = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
# Elementwise work that may stand between the products and the softmax of one attention: scale,
# mask, cast, dropout; and reductions of a softmax that is itself written out.
_REACH = 10


@dataclass(frozen=True)
class AttentionCall:
    """One attention that took a slow path. rows: its work; operator: the call that asked for it,
    -1 for a chain without one; after: -1, or the row of work it begins with."""

    backend: str
    operator: int
    rows: Longs


def math_calls(work: Work) -> list[AttentionCall]:
    """Calls of scaled_dot_product_attention that ran the math path, forward and backward apart."""
    trace, host = work.trace, work.host
    named = trace.names_matching(lambda name: _MATH.match(name) is not None)[trace.name_codes]
    around = host.outermost(named & host.of_kind("operator"))
    site = take(around, np.where(work.site == NONE, work.operator, work.site))
    rows = np.flatnonzero(site != NONE)
    order = rows[np.argsort(site[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(site[order])) + 1
    parts = np.split(order, bounds) if order.size else []
    return [AttentionCall(MATH, int(site[part[0]]), part) for part in parts]


def unfused_calls(work: Work, excluded: NDArray[np.bool_]) -> list[AttentionCall]:
    """Chains of product, softmax, product in the order of launch: attention written by hand."""
    order = _launch_order(work)
    product, softmax, selects = _letters(work)
    chains = []
    sequence = order[~excluded[order]]
    for place in np.flatnonzero(softmax[sequence]).tolist():
        first = _product_before(sequence, place, product)
        last = _product_after(sequence, place, product, selects)
        if first is None or last is None:
            continue
        if _shapes_agree(work, sequence[[first, place, last]]):
            rows = sequence[first : last + 1]
            chains.append(AttentionCall(UNFUSED, int(work.operator[sequence[place]]), rows))
    return chains


def _launch_order(work: Work) -> Longs:
    site = np.where(work.site == NONE, work.event, work.site)
    device = work.trace.events["device"].to_numpy()[work.event]
    keys = (work.trace.start_ns[work.event], work.trace.start_ns[site], device)
    forward = np.flatnonzero(take(work.host.backward_node, site) == NONE)
    ordered: Longs = forward[np.lexsort(tuple(key[forward] for key in keys))]
    return ordered


def _letters(work: Work) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each piece of work is a product that can belong to attention, a softmax, a choice of
    the largest. With operators recorded a product must be batched."""
    trace = work.trace
    tokens = np.array([name.token for name in work.names], dtype=object)[work.name_code]
    operators = take(trace.name_codes.astype(np.int64), work.operator)
    known = operators != NONE
    batched = trace.names_matching(lambda name: name in _BATCHED_PRODUCT)
    product = (tokens == "GEMM") & (~known | batched[np.maximum(operators, 0)])
    named_softmax = trace.names_matching(lambda n: n in ("aten::_softmax", "aten::softmax"))
    softmax = (tokens == "SOFTMAX") | (known & named_softmax[np.maximum(operators, 0)])
    if work.cpu_only:
        product = known & batched[np.maximum(operators, 0)]
    return product, softmax, tokens == "TOPK"


def _product_before(sequence: Longs, place: int, product: NDArray[np.bool_]) -> int | None:
    for at in range(place - 1, max(place - _REACH, -1), -1):
        if product[sequence[at]]:
            return at
    return None


def _product_after(
    sequence: Longs, place: int, product: NDArray[np.bool_], selects: NDArray[np.bool_]
) -> int | None:
    """A router's softmax is followed by a choice of experts, attention's by a product."""
    for at in range(place + 1, min(place + _REACH, sequence.size)):
        if selects[sequence[at]]:
            return None
        if product[sequence[at]]:
            return at
    return None


def _shapes_agree(work: Work, rows: Longs) -> bool:
    """Where shapes are recorded: the softmax runs over what the first product made, and the second
    takes what the softmax made. Without shapes nothing speaks against it."""
    first, softmax, last = (_dims_of(work, int(row)) for row in rows)
    if not first or not softmax or not last or len(first) < 2:
        return True
    if len(first[-1]) < 2 or len(softmax[0]) < 2 or len(last) < 2:
        return True
    scores = softmax[0]
    made = first[-2][-2] if len(first[-2]) > 1 else -1, first[-1][-1]
    takes = [operand for operand in last if len(operand) > 1][-2:]
    return made == (scores[-2], scores[-1]) and bool(takes) and takes[0][-1] == scores[-1]


def _dims_of(work: Work, row: int) -> list[list[int]]:
    """Shapes of the operator that launched a piece of work; empty when not recorded."""
    table = work.trace.table("shapes")
    found = int(lookup(table["event"].to_numpy(), work.operator[[row]])[0])
    if found == NONE:
        return []
    try:
        dims = json.loads(str(table["input_shapes"].iloc[found]))
    except ValueError:
        return []
    return [d for d in dims if isinstance(d, list) and d and all(isinstance(n, int) for n in d)]


def slow_rows(work: Work) -> tuple[list[AttentionCall], NDArray[np.bool_]]:
    """All slow attentions of a recording, and a mask of their work."""
    mask = np.zeros(work.event.size, dtype=bool)
    calls = math_calls(work)
    for call in calls:
        mask[call.rows] = True
    chains = unfused_calls(work, mask)
    for call in chains:
        mask[call.rows] = True
    return calls + chains, mask


def fused_backends(work: Work) -> dict[str, Longs]:
    """Calls of scaled_dot_product_attention by the fused backend that ran inside: the events."""
    trace, host = work.trace, work.host
    sdpa = trace.names_matching(lambda name: _SDPA.match(name) is not None)[trace.name_codes]
    around = host.nearest(sdpa & host.of_kind("operator"))
    out = {}
    for backend, pattern in _FUSED.items():
        named = trace.names_matching(lambda name, p=pattern: p.match(name) is not None)
        rows = np.flatnonzero(named[trace.name_codes] & host.of_kind("operator"))
        calls = np.unique(around[rows])
        if (calls != NONE).any():
            out[backend] = calls[calls != NONE]
    return out


@dataclass(frozen=True)
class Signature:
    """Arguments of one call of scaled_dot_product_attention; None: not recorded."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    dtype: str
    masked: bool
    causal: bool
    grouped: bool | None  # enable_gqa

    @property
    def score_elements(self) -> int:
        """Elements of the score matrix: batch x heads x queries x keys."""
        *outer, queries, _ = self.query
        return int(np.prod(outer, dtype=np.int64)) * queries * self.key[-2]


def signature_of(work: Work, event: int) -> Signature | None:
    """The recorded arguments of the attention call around an event."""
    trace, host = work.trace, work.host
    table = trace.table("shapes")
    recorded = table["event"].to_numpy()
    row, found = event, NONE
    while row != NONE and found == NONE:
        if "scaled_dot_product" in trace.names[trace.name_codes[row]]:
            found = int(lookup(recorded, np.array([row]))[0])
        row = int(host.parent[row])
    return None if found == NONE else _parse(dict(table.iloc[found]))


def _parse(row: dict[Any, Any]) -> Signature | None:
    try:
        dims = json.loads(row["input_shapes"])
        types = json.loads(row["input_types"] or "[]")
        values = json.loads(row["concrete_inputs"] or "[]")
        query, key = tuple(map(int, dims[0])), tuple(map(int, dims[1]))
    except (ValueError, TypeError, IndexError):
        return None
    if len(query) < 3 or len(key) < 3:
        return None
    return Signature(
        query,
        key,
        str(types[0]) if types else "",
        len(dims) > 3 and bool(dims[3]),
        len(values) > 5 and str(values[5]).lower() == "true",
        str(values[7]).lower() == "true" if len(values) > 7 else None,
    )


def refusals(signature: Signature) -> list[str]:
    """Why the fused backends refuse these arguments, as far as arguments tell."""
    reasons = []
    if signature.dtype in ("float", "double"):
        reasons.append(f"dtype {'float32' if signature.dtype == 'float' else 'float64'}")
    if signature.query[-1] > 256:
        reasons.append(f"head size {signature.query[-1]} is above 256")
    if len(signature.query) == 4 and signature.query[-3] != signature.key[-3]:
        heads = f"{signature.query[-3]} query heads, {signature.key[-3]} key heads"
        how = "enable_gqa" if signature.grouped else "grouped without enable_gqa"
        reasons.append(f"{heads} ({how})")
    if signature.masked:
        reasons.append("a mask is given (flash takes none)")
    return reasons
