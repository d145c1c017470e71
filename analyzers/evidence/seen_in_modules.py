"""What ran in modules themselves and gives away what they are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.role_places import Seen
from tracer.analyzers.evidence.rung_operator import operator_buckets
from tracer.analyzers.facts.work import Work
from tracer.analyzers.facts.written_softmax import (
    BATCHED_PRODUCTS,
    VECTOR_PRODUCTS,
    written_softmaxes,
)
from tracer.analyzers.intervals import NONE, Longs, take

Flags = NDArray[np.bool_]
# In no attention whose softmax is written out, between its products.
_APART = ("TOPK", "ROUTER", "MOE", "NORM", "NORM_ADD", "CORE", "SCAN", "ACT", "GLU", "COMM", "LOSS")

# Several cores in one call are keys taken in blocks, unless so many products go with each.
_SEVERAL = 2
_PRODUCTS_A_CORE = 2


def seen_in_modules(work: Work) -> Seen:
    """What ran in modules themselves: attention cores, by operator, by kernel, or as a softmax
    between two products that the module itself computed; and what tells a module without others
    in it."""
    if not work.tree.paths or not work.names:
        return Seen()
    core = _of_token(work, ("CORE",)) | (operator_buckets(work) == BUCKET_CODE["attention", "core"])
    product = _of_token(work, ("GEMM",))
    batched = product & _of_operator(work, BATCHED_PRODUCTS)
    softmax = _of_token(work, ("SOFTMAX",))
    softmaxes = _counts(work, softmax)
    # A router's softmax has one product, of a linear layer.
    chooses = _counts(work, _of_token(work, ("TOPK", "ROUTER"))) > 0
    products = np.where(chooses, _operators(work, batched), _operators(work, product))
    unfused = (softmaxes > 0) & (products >= 2 * softmaxes)
    linear = product & (~batched | _of_operator(work, VECTOR_PRODUCTS))
    several = _holding_layers(work, core, linear)
    cores = {
        **_with_written_softmax(work, batched, product & ~batched),
        **_first_of(work, softmax, np.flatnonzero(unfused)),
        **_first_of(work, core, np.unique(work.module[core & (work.module != NONE)])),
    }
    inside = work.module != NONE
    convolved = _counts(work, _of_token(work, ("CONV",)))
    return Seen(
        {row: event for row, event in sorted(cores.items()) if row not in several},
        {row: role for row, role in _alone(work, linear).items() if row not in several},
        frozenset(np.flatnonzero(_counts(work, linear)).tolist()),
        frozenset(np.flatnonzero(convolved).tolist()),
        {
            **{module: event + 0.5 for module, event in work.compiled.silent.items()},
            **_first_of(work, inside, np.unique(work.module[inside])),
        },
    )


def _holding_layers(work: Work, core: Flags, linear: Flags) -> frozenset[int]:
    """Modules that compute whole layers themselves, as the pieces of a compiled model do: an
    attention core and experts, or in a call several cores and with each the products of a layer.
    What such a module holds is told by the place in the layer's pattern."""
    cores, products = _most_in_a_call(work, core), _most_in_a_call(work, linear)
    experts = _counts(work, _of_token(work, ("MOE",))) > 0
    layers = (cores >= _SEVERAL) & (products >= _PRODUCTS_A_CORE * cores)
    return frozenset(np.flatnonzero((experts & (cores > 0)) | layers).tolist())


def _most_in_a_call(work: Work, mask: Flags) -> Longs:
    """The most of this work that each module did itself in one of its calls, or in one replay."""
    rows = np.flatnonzero(mask & (work.module != NONE) & (work.forward == NONE))
    call = work.module_event[rows].astype(np.int64)
    rows, call = rows[call != NONE], call[call != NONE]  # a backward pass may lie in no call
    replay = np.where(work.replayed[rows], work.launch[rows], NONE)
    keys = np.stack([work.module[rows], call, replay], axis=1)
    calls, counts = np.unique(keys, axis=0, return_counts=True)
    most = np.zeros(work.tree.parent.size, dtype=np.int64)
    np.maximum.at(most, calls[:, 0], counts)
    return most


def _first_of(work: Work, mask: Flags, modules: Longs) -> dict[int, int]:
    """Each of these modules with the host event of its first work of this kind."""
    rows = np.flatnonzero(mask)[::-1]  # the last one said of a module is its first
    said = dict(zip(work.module[rows].tolist(), _site(work)[rows].tolist(), strict=True))
    return {module: said[module] for module in modules.tolist()}


def _site(work: Work) -> Longs:
    site: Longs = np.where(work.site == NONE, work.event, work.site)
    return site


def _alone(work: Work, product: Flags) -> dict[int, str]:
    """Module -> role, of those whose own work tells one: a linear layer has a product, a norm the
    root of a mean, a rotary table has sines, an activation none of these."""

    def has(*tokens: str) -> Flags:
        return _counts(work, _of_token(work, tokens)) > 0

    multiplies = _counts(work, product) > 0
    norms = (has("RSQRT") & has("MEAN", "RED")) | has("NORM", "NORM_ADD")
    roles = np.full(multiplies.size, "", dtype=object)
    roles[has("ACT")] = "activation"
    roles[norms] = "norm"
    roles[multiplies] = "linear"
    roles[has("TRIG")] = "rope"
    roles[has("SOFTMAX", "TOPK", "ROUTER", "SORT", "CONV", "MOE", "EMB")] = ""
    return {int(row): str(roles[row]) for row in np.flatnonzero(roles != "").tolist()}


def _of_operator(work: Work, names: Iterable[str]) -> Flags:
    wanted = frozenset(names)
    named = work.trace.names_matching(lambda name: name in wanted)
    operator = take(work.trace.name_codes.astype(np.int64), work.operator)
    found: Flags = (operator != NONE) & named[np.maximum(operator, 0)]
    return found


def _of_token(work: Work, tokens: Iterable[str]) -> Flags:
    wanted = frozenset(tokens)
    named: Flags = np.array([name.token in wanted for name in work.names], dtype=bool)
    return named[work.name_code]


def _counts(work: Work, mask: Flags) -> Longs:
    """How much of this work each module did itself."""
    size = work.tree.parent.size + 1  # the last place is for work in no module
    return np.bincount(work.module[mask] % size, minlength=size)[:-1]


def _operators(work: Work, mask: Flags) -> Longs:
    """How many operators of each module did this work: one product may take several kernels."""
    rows = np.flatnonzero(mask & (work.module != NONE))
    operator = np.where(work.operator == NONE, _site(work), work.operator)[rows]
    of_operator = np.unique(np.stack([work.module[rows], operator]), axis=1)
    return np.bincount(of_operator[0], minlength=work.tree.parent.size)


def _with_written_softmax(work: Work, product: Flags, other: Flags) -> dict[int, int]:
    """Modules that compute both products of an attention and between them the parts of a softmax,
    with the event of the first exponents. other: products of linear layers."""
    if not product.any():
        return {}
    site = _site(work)
    order = np.argsort(work.trace.start_ns[site], kind="stable")
    found = written_softmaxes(work, order, product, _of_token(work, _APART) | other)
    out: dict[int, int] = {}
    for one in found:
        rows = order[[one.first, one.exponents, one.last]]
        module = int(work.module[rows[0]])
        if module != NONE and (work.module[rows] == module).all():
            out.setdefault(module, int(site[rows[1]]))
    return out
