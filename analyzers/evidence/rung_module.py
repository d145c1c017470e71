"""The rung `module`: work in a module's range, by the role of the module and of its block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.attribution import OPEN, Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.evidence.rung_operator import operator_buckets
from tracer.analyzers.facts.modules import ModuleTree
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, distinct, take
from tracer.analyzers.names.kernel_table import KernelName
from tracer.analyzers.names.operator_names import operator_role

# Where work stands in its attention block: bits of `place` in the decisions below.
AFTER_CORE, AFTER_NEGATION = 1, 2
_NEVER = np.iinfo(np.int64).max

_KV_OPERATORS = (
    "aten::index_copy_",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::slice_scatter",
    "aten::scatter_",
)
# These rotate queries and keys before the core; after it, and others, they prepare or finish it.
_ROTATING = (
    "aten::mul",
    "aten::mul_",
    "aten::neg",
    "aten::cat",
    "aten::add",
    "aten::add_",
    "aten::sub",
    "aten::addcmul",
    "aten::sin",
    "aten::cos",
    "aten::view_as_complex",
    "aten::view_as_real",
)
_CORE_OPERATORS = ("aten::softmax", "aten::_softmax", "aten::bmm", "aten::baddbmm", "aten::matmul")


def by_module(work: Work, roles: Roles, out: Attribution) -> None:
    rows = np.flatnonzero((work.module != NONE) & (out.bucket == OPEN))
    if not rows.size:
        return
    side = between_siblings(work, roles)[rows]
    for block in np.unique(side).tolist():
        mine = rows[side == block]
        role = "" if block == NONE else roles.own[block]
        out.fill(mine, module_buckets(work, roles, mine, work.module[mine], role), "module", 1.0)


def between_siblings(work: Work, roles: Roles) -> Longs:
    """For what a layer itself computes between two of its own linear layers of one role, the first
    module of that role: an attention or an FFN whose parts are written side by side in the layer.
    -1 for all other work."""
    tree = work.tree
    none: Longs = np.full(work.event.size, NONE, dtype=np.int64)
    parts = written_in_layers(tree, roles)
    if not parts:
        return none
    own = np.array([role == "layer" for role in roles.own])
    part = np.full(len(roles.own) + 1, NONE)
    part[list(parts)] = list(parts.values())
    site = np.where(work.site == NONE, work.event, work.site)
    asked = np.where(work.forward == NONE, site, work.forward)
    order = np.argsort(work.trace.start_ns[asked], kind="stable")
    module = work.module[order]
    itself = (module != NONE) & own[np.maximum(module, 0)]
    places = np.arange(order.size)
    before = np.maximum.accumulate(np.where(itself, NONE, places))
    after = np.minimum.accumulate(np.where(itself, order.size, places)[::-1])[::-1]
    left, right = take(module, before), take(module, np.where(after == order.size, NONE, after))
    same = itself & (part[left] == part[right]) & (part[left] != NONE)
    same &= take(tree.parent, left) == module
    none[order] = np.where(same, part[left], NONE)
    return none


def written_in_layers(tree: ModuleTree, roles: Roles) -> dict[int, int]:
    """Linear layers that are attention or FFN right in a layer: the first of its role there."""
    first: dict[tuple[int, str], int] = {}
    parts: dict[int, int] = {}
    holding = set(tree.parent.tolist())
    for row, role in enumerate(roles.own):
        layer = int(tree.parent[row])
        if role not in ("attention", "ffn") or row in holding or layer == NONE:
            continue
        if roles.own[layer] == "layer":
            parts[row] = first.setdefault((layer, role), row)
    return parts


def module_buckets(
    work: Work, roles: Roles, rows: Longs, module: Longs, inside: str = ""
) -> NDArray[np.int16]:
    """Buckets of work rows as work of these modules: one decision for each distinct (role of
    module, operator, kernel, place about the core). `inside`: the role of a block that has no
    module of its own."""
    signatures = [
        ("container", inside) if inside else signature_of(roles, row)
        for row in range(len(roles.own))
    ]
    kinds = sorted(set(signatures))
    index = {signature: code for code, signature in enumerate(kinds)}
    signature = np.array([index[s] for s in signatures], dtype=np.int64)[module]
    own_operator = take(work.trace.name_codes.astype(np.int64), decisive_operator(work)[rows])
    after = places_in_block(work)[rows]
    keys = (signature, own_operator, work.name_code[rows], after)
    first, place = distinct(*keys)
    decided = np.array(
        [
            decide(kinds[s], work.trace.names[o] if o != NONE else "", work.names[k], a)
            for s, o, k, a in zip(*(key[first].tolist() for key in keys), strict=True)
        ],
        dtype=np.int16,
    )
    buckets: NDArray[np.int16] = decided[place]
    return buckets


def places_in_block(work: Work) -> Longs:
    """Where each piece of work stands in its attention block: bits of AFTER_CORE and others."""
    return AFTER_CORE * after_core(work) + AFTER_NEGATION * after_negation(work)


def decisive_operator(work: Work) -> Longs:
    return np.where(work.forward == NONE, work.operator, work.forward)


def signature_of(roles: Roles, row: int) -> tuple[str, str]:
    """The role of a module and of the block around it; an adapter is a linear layer to it."""
    block, own = roles.block[row], roles.own[row]
    return "linear" if own == "adapter" else own, roles.own[block] if block != NONE else ""


def after_core(work: Work) -> Longs:
    """1 where the attention core of the same module call began before this work did; for a call
    without one, that of the calls beside it."""
    is_core = np.array(
        [n.category == "attention" or n.token == "SOFTMAX" for n in work.names], dtype=bool
    )
    core = is_core[work.name_code] if is_core.size else np.zeros(work.event.size, dtype=bool)
    core = core | (operator_buckets(work) == BUCKET_CODE["attention", "core"])
    start = work.trace.start_ns[np.where(work.site == NONE, work.event, work.site)]
    around = take(work.tree.range_event, take(work.host.parent, work.module_event))
    own = _first_start(core, work.module_event, start)
    beside = _first_start(core, around, start)
    after: Longs = (start >= np.where(own == _NEVER, beside, own)).astype(np.int64)
    return after


def _first_start(mask: NDArray[np.bool_], call: Longs, start: Longs) -> Longs:
    """When the first work of this kind began in the same call, for each piece of work."""
    first = np.full(int(call.max(initial=NONE)) + 2, _NEVER)
    held = mask & (call != NONE)
    np.minimum.at(first, call[held], start[held])
    return first[call]  # that of no call is the last


def after_negation(work: Work) -> Longs:
    """1 where the work before it, in order of launch, negates: rotating halves joins them so."""
    site = np.where(work.site == NONE, work.event, work.site)
    order = np.argsort(work.trace.start_ns[site], kind="stable")
    negates = work.trace.names_matching(lambda name: name == "aten::neg")
    operator = work.operator[order]
    is_negation = negates[work.trace.name_codes[np.maximum(operator, 0)]] & (operator != NONE)
    out = np.zeros(work.event.size, dtype=np.int64)
    out[order[1:]] = is_negation[:-1]
    return out


def decide(signature: tuple[str, str], operator: str, kernel: KernelName, place: int) -> int:
    own, block = signature
    decide = _BLOCKS.get(block)
    part = decide(own, operator, kernel, place) if decide else _outside(own, operator, kernel)
    return BUCKET_CODE.get(part, OPEN) if part else OPEN


Part = tuple[str, str] | None


def _outside(own: str, operator: str, kernel: KernelName) -> Part:
    """In no block: norms, rotary tables, and what a layer does between its blocks."""
    if own == "norm":
        return "other", "norm"
    if own == "rope":
        return "attention", "rope"
    if own != "layer" or operator_role(operator) is not None:
        return None
    if kernel.category == "norm":
        return "other", "norm"
    if kernel.category == "attention":
        return "attention", "core"
    return ("other", "residual") if operator in _SUMS or kernel.token == "ADD" else None


# What adds to the residual stream; several streams are mixed by a batched product.
_SUMS = ("aten::add", "aten::add_", "aten::copy_", "aten::mul", "aten::addcmul", "aten::bmm")


def _in_attention(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "attention", "dequantize"
    if own in ("norm", "rope", "linear"):
        return "attention", "projection" if own == "linear" else own
    role = operator_role(operator)
    if role is not None and role.group == "attention":
        return "attention", role.part
    by_kernel = {
        "attention": "core",
        "kv_cache_write": "kv_cache",
        "rope": "rope",
        "norm": "norm",
    }.get(kernel.category)
    if by_kernel:
        return "attention", by_kernel
    if operator in _CORE_OPERATORS or kernel.token == "SOFTMAX":
        return "attention", "core"
    if operator in ("aten::addmm", "aten::mm", "aten::linear"):
        return "attention", "projection"
    joins = operator == "aten::cat" and not place & AFTER_NEGATION
    if operator in _KV_OPERATORS or joins:
        return "attention", "kv_cache"
    before = not place & AFTER_CORE
    return "attention", "rope" if operator in _ROTATING and before else "core"


def _in_mixer(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "attention", "dequantize"
    if own == "norm":
        return "attention", "norm"
    return "attention", "projection" if own == "linear" else "mixer"


def _in_ffn(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "ffn", "dequantize"
    if own == "norm" or kernel.category == "norm":
        return "other", "norm"
    if own in ("router", "activation"):
        return "ffn", own
    if own == "experts":
        return "ffn", "experts"
    if own == "linear" or kernel.category == "gemm":
        return "ffn", "projection"
    role = operator_role(operator)
    if role is not None and role.group == "ffn":
        return "ffn", role.part
    if kernel.category == "moe":
        return "ffn", "experts"
    return "ffn", "activation"


def _in_experts(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "ffn", "dequantize"
    return "ffn", "experts"


def _whole(group: str, part: str) -> Callable[[str, str, KernelName, int], Part]:
    return lambda own, operator, kernel, place: (group, part)


_BLOCKS: dict[str, Callable[[str, str, KernelName, int], Part]] = {
    "attention": _in_attention,
    "mixer": _in_mixer,
    "ffn": _in_ffn,
    "experts": _in_experts,
    "router": _whole("ffn", "router"),
    "residual": _whole("other", "residual"),
    "embedding": _whole("other", "embedding"),
    "lm_head": _whole("other", "lm_head"),
    "loss": _whole("other", "loss"),
    "sampling": _whole("other", "sampling"),
}
