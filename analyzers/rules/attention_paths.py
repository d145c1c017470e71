"""Which attention ran where: fused kernels, PyTorch's math path, chains written by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.places import folded
from tracer.analyzers.facts.work import Work
from tracer.analyzers.facts.written_softmax import BATCHED_PRODUCTS, written_softmaxes
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.kernel_table import KernelName

MATH, UNFUSED = "math", "unfused"
_SDPA = re.compile(r"aten::scaled_dot_product_attention$")
_MATH = re.compile(r"aten::_scaled_dot_product_attention_math")
_FUSED = {
    "flash": re.compile(r"aten::_scaled_dot_product_flash_attention|aten::_flash_attention"),
    "efficient": re.compile(r"aten::_scaled_dot_product_efficient|aten::_efficient_attention"),
    "cudnn": re.compile(r"aten::_scaled_dot_product_cudnn|aten::_cudnn_attention"),
    "flex": re.compile(r"flex_attention"),
}
_SOFTMAX = ("aten::_softmax", "aten::softmax", "aten::_masked_softmax", "aten::_safe_softmax")
# Elementwise work that may stand between the products and the softmax of one attention: scale,
# mask, cast, dropout.
_REACH = 10
# Without a device views and allocations stand between them too.
_REACH_ON_CPU = 24


@dataclass(frozen=True)
class AttentionCall:
    """One attention that took a slow path. rows: its work, the forward first; operator: the call
    that asked for it, -1 for a chain without one."""

    backend: str
    operator: int
    rows: Longs


def math_calls(work: Work) -> list[AttentionCall]:
    """Calls of scaled_dot_product_attention that ran the math path, each with its backward."""
    around = work.host.outermost(work.trace.named(_MATH.match, "operator"))
    site = take(around, np.where(work.site == NONE, work.operator, work.site))
    site = np.where(site == NONE, take(around, work.forward), site)
    rows = np.flatnonzero(site != NONE)
    order = rows[np.argsort(site[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(site[order])) + 1
    parts = np.split(order, bounds) if order.size else []
    return [AttentionCall(MATH, int(site[part[0]]), part) for part in parts]


def unfused_calls(work: Work, excluded: NDArray[np.bool_]) -> list[AttentionCall]:
    """Chains of product, softmax, product in the order of launch: attention written by hand, each
    with its backward."""
    order = _launch_order(work)
    letters, arguments = _letters(work), Arguments(work.trace)
    chains = []
    sequence = order[~excluded[order]]
    for place in np.flatnonzero(letters.softmax[sequence]).tolist():
        first = _product_before(sequence, place, letters)
        last = _product_after(sequence, place, letters)
        if first is None or last is None or not _in_one_block(work, sequence[[first, last]]):
            continue
        if _shapes_agree(work, arguments, sequence[[first, place, last]]):
            rows = sequence[first : _end_of_product(work, sequence, last)]
            chains.append(AttentionCall(UNFUSED, int(work.operator[sequence[place]]), rows))
    return _with_backward(work, chains + _written_chains(work, sequence, letters, arguments))


def _written_chains(
    work: Work, sequence: Longs, letters: _Letters, arguments: Arguments
) -> list[AttentionCall]:
    """Chains without a softmax of the framework's. Nothing but its parts tells of one, so both
    products must be known to be batched, and no other lies between."""
    known = letters.product & (work.operator != NONE)
    stops = letters.ends | letters.softmax | (letters.multiplies & ~known)
    chains = []
    for found in written_softmaxes(work, sequence, known, stops):
        rows = sequence[[found.first, found.exponents, found.last]]
        if _in_one_block(work, rows[[0, 2]]) and _shapes_agree(work, arguments, rows):
            end = max(found.end, _end_of_product(work, sequence, found.last))
            operator = int(work.operator[rows[1]])
            chains.append(AttentionCall(UNFUSED, operator, sequence[found.first : end]))
    return chains


def _with_backward(work: Work, chains: list[AttentionCall]) -> list[AttentionCall]:
    """The chains with the work that computes the gradients of their operators."""
    behind = np.flatnonzero(work.forward != NONE)
    if not behind.size or not chains:
        return chains
    outer = work.host.outer_operator
    chain_of = np.full(outer.size, NONE, dtype=np.int64)
    asked = take(outer, np.where(work.forward == NONE, work.operator, NONE))
    total = np.bincount(asked[asked != NONE], minlength=outer.size)
    for number, chain in enumerate(chains):
        own, counts = np.unique(asked[chain.rows], return_counts=True)
        # An operator that holds more than the chain, such as compiled code, tells nothing.
        whole = own[(own != NONE) & (counts == total[np.maximum(own, 0)])]
        chain_of[whole] = number
    mine = take(chain_of, take(outer, work.forward[behind]))
    return [
        replace(chain, rows=np.concatenate([chain.rows, behind[mine == number]]))
        for number, chain in enumerate(chains)
    ]


def _in_one_block(work: Work, products: Longs) -> bool:
    """Whether two products ran in one module, or in children of one; true where none is known."""
    first, last = work.module[products].tolist()
    if NONE in (first, last):
        return True
    return bool(set(work.tree.ancestors(first)[:2]) & set(work.tree.ancestors(last)[:2]))


def _launch_order(work: Work) -> Longs:
    site = np.where(work.site == NONE, work.event, work.site)
    device = work.trace.events["device"].to_numpy()[work.event]
    keys = (work.trace.start_ns[work.event], work.trace.start_ns[site], device)
    forward = np.flatnonzero(take(work.host.backward_node, site) == NONE)
    ordered: Longs = forward[np.lexsort(tuple(key[forward] for key in keys))]
    return ordered


@dataclass(frozen=True)
class _Letters:
    """What each piece of work can be in a chain."""

    product: NDArray[np.bool_]
    multiplies: NDArray[np.bool_]  # a product of any kind
    softmax: NDArray[np.bool_]
    breaks: NDArray[np.bool_]  # stands in no chain
    ends: NDArray[np.bool_]  # nor after its softmax
    reach: int  # how far a product may stand from the softmax


# A router's or a sampler's softmax is followed by a choice, and layers are apart by their norms.
_BREAKING = frozenset(
    {
        "TOPK", "ROUTER", "MOE", "NORM", "NORM_ADD", "RSQRT", "CORE", "SCAN", "GLU", "ACT", "COMM",
        "LOSS", "OPT", "SAMPLE", "ARGMAX", "SORT", "CONV",
    }
)  # fmt: skip
# The position bias of a T5 is looked up between the first product and the softmax.
_ENDING = _BREAKING | {"EMB"}


def _letters(work: Work) -> _Letters:
    """Products, softmaxes and what cannot lie between. With operators recorded a product must be
    batched."""
    trace = work.trace
    tokens = np.array([_token(name) for name in work.names], dtype=object)
    operators = take(trace.name_codes.astype(np.int64), work.operator)
    known = operators != NONE
    batched = trace.names_matching(lambda name: name in BATCHED_PRODUCTS)
    multiplies = (tokens == "GEMM")[work.name_code]
    product = multiplies & (~known | batched[np.maximum(operators, 0)])
    named_softmax = trace.names_matching(lambda name: name in _SOFTMAX)
    softmax = (tokens == "SOFTMAX")[work.name_code] | (
        known & named_softmax[np.maximum(operators, 0)]
    )
    if work.cpu_only:
        product = known & batched[np.maximum(operators, 0)]
    breaks, ends = (
        np.array([token in refused for token in tokens], dtype=bool)[work.name_code]
        for refused in (_BREAKING, _ENDING)
    )
    reach = _REACH_ON_CPU if work.cpu_only else _REACH
    return _Letters(product, multiplies, softmax, breaks & ~softmax, ends & ~softmax, reach)


def _token(name: KernelName) -> str:
    """The token of a kernel. A generated one that caps its scores first is a softmax still, and
    what caps them is no activation of an FFN."""
    if name.name == "aten::tanh":
        return ""
    capped = name.token == "ACT" and not {"_softmax", "_safe_softmax"}.isdisjoint(name.fused_ops)
    return "SOFTMAX" if capped else name.token


def _product_before(sequence: Longs, place: int, letters: _Letters) -> int | None:
    for at in range(place - 1, max(place - letters.reach, -1), -1):
        if letters.product[sequence[at]]:
            return at
        if letters.breaks[sequence[at]]:
            return None
    return None


def _product_after(sequence: Longs, place: int, letters: _Letters) -> int | None:
    for at in range(place + 1, min(place + letters.reach, sequence.size)):
        if letters.product[sequence[at]]:
            return at
        if letters.ends[sequence[at]]:
            return None
    return None


def _end_of_product(work: Work, sequence: Longs, last: int) -> int:
    """Behind the last product and what its operator launched after it."""
    end, operator = last + 1, int(work.operator[sequence[last]])
    while operator != NONE and end < sequence.size and work.operator[sequence[end]] == operator:
        end += 1
    return end


def _shapes_agree(work: Work, arguments: Arguments, rows: Longs) -> bool:
    """Where shapes are recorded: the softmax runs over what the first product made, and the second
    takes what the softmax made. Without shapes nothing speaks against it."""
    first, softmax, last = (
        tuple(filter(None, arguments.shapes(row)))
        for row in arguments.rows(work.operator[rows]).tolist()
    )
    if len(first) < 2 or not softmax or len(last) < 2:
        return True
    made, scores, weights = first[-2:], softmax[0], last[-2]
    if any(len(shape) < 2 for shape in (*made, scores, weights)):
        return True
    return (made[0][-2], made[1][-1]) == scores[-2:] and weights[-1] == scores[-1]


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
    # What a compiler only tries on tensors without data has not run.
    around = host.nearest(trace.named(_SDPA.match, "operator") & ~host.compiling)
    out = {}
    for backend, pattern in _FUSED.items():
        calls = np.unique(around[trace.named(pattern.match, "operator")])
        if (calls != NONE).any():
            out[backend] = calls[calls != NONE]
    return out


def backends_by_site(work: Work) -> dict[str, dict[str, int]]:
    """Which backend of scaled_dot_product_attention ran where: backend -> module (layers folded,
    "" outside modules) -> calls. Chains written by hand are none of these."""
    ran = work.trace.named(_MATH.match, "operator") & ~work.host.compiling
    math = work.host.outermost(ran)
    calls = {**work.once(fused_backends), MATH: np.unique(math[math != NONE])}
    return {backend: _by_site(work, events) for backend, events in calls.items() if events.size}


def _by_site(work: Work, events: Longs) -> dict[str, int]:
    sites: dict[str, int] = {}
    modules = work.tree.of_event[events] if work.tree.paths else np.full(events.size, NONE)
    for module, count in zip(*np.unique(modules, return_counts=True), strict=True):
        path = "" if module == NONE else folded(work.tree.paths[module] or work.tree.types[module])
        sites[path] = sites.get(path, 0) + int(count)
    return sites
