"""The rung `compiled`: kernels that a compiler generated or called, by the modules that they serve.

A fused kernel can serve several. It counts for the group and part that most of them give it, and
its time is shared among them in the table of modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS, UNATTRIBUTED
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.evidence.rung_module import (
    AFTER_CORE,
    AFTER_NEGATION,
    decide,
    signature_of,
    written_in_layers,
)
from tracer.analyzers.facts.compiled import CallSource
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, distinct, take
from tracer.analyzers.names.kernel_table import KernelName, describe

Key = TypeVar("Key", int, str)

_OPEN = -1
_CORE = re.compile(r"scaled_dot_product|flash_attention|flash_attn|_softmax|flex_attention")
# What a template is made for.
_HEART = re.compile(rf"\b(_scaled_mm|mm|addmm|bmm|baddbmm|\w*convolution)\b|{_CORE.pattern}")
_CONFIDENCE = {"provenance": 1.0, "source nodes": 0.95, "parameters": 0.9}
# What a compiled graph copies before it is replayed: the inputs, into memory of its own.
_COPIES = ("aten::_foreach_copy_", "aten::copy_")
# Operators that only describe memory.
_DESCRIBING = frozenset(
    ("view", "_unsafe_view", "slice", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze")
)
_BACKWARD = 2  # direction
_LOSS = BUCKET_CODE["other", "loss"]
_ACTIVATION = BUCKET_CODE["ffn", "activation"]
_ANY = describe("")


def by_compiled(work: Work, roles: Roles, out: Attribution) -> None:
    """Fill what the calls of compiled graphs tell."""
    rows = np.flatnonzero(work.call != NONE)
    if rows.size:
        reader = _Calls(work, roles)
        keys = (work.compiled.case[rows], work.call[rows], work.name_code[rows])
        first, place = distinct(*keys)
        each = zip(*(key[first].tolist() for key in keys), strict=True)
        decided = np.array([reader.bucket(*key) for key in each], dtype=np.int16)
        buckets, confidence = decided[place], reader.confidence[work.call[rows]]
        for value in np.unique(confidence):
            sure = confidence == value
            out.fill(rows[sure], buckets[sure], "compiled", float(value))
    _copied_inputs(work, out)


def _copied_inputs(work: Work, out: Attribution) -> None:
    """They serve no module: no optimizer either, whatever their kernel is called."""
    copying = work.trace.names_matching(lambda name: name in _COPIES)
    operator = take(work.trace.name_codes.astype(np.int64), work.operator)
    mine = (work.compiled.region != NONE) & (work.call == NONE) & (operator != NONE)
    mine &= copying[np.maximum(operator, 0)] & (out.direction < _BACKWARD)
    rows = np.flatnonzero(mine)
    out.fill(rows, np.full(rows.size, UNATTRIBUTED, dtype=np.int16), "none", 0.0)


class _Calls:
    """Decides for each call of the compiled graphs of a recording."""

    def __init__(self, work: Work, roles: Roles) -> None:
        self.work, self.roles = work, roles
        self.cases = work.compiled.cases
        calls = work.trace.table("compiled_calls")
        self.graph = calls["graph"].to_numpy()
        self.order = calls["call"].to_numpy()
        self.kernel = calls["kernel"].astype(str).tolist()

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """How sure the modules of each call are."""
        graphs = self.work.trace.table("compiled_graphs")
        bases = zip(graphs["graph"], graphs["basis"].astype(str), strict=True)
        sure = {graph: _CONFIDENCE.get(basis, 0.8) for graph, basis in bases}
        return np.array([sure[graph] for graph in self.graph.tolist()])

    def bucket(self, case: int, call: int, name: int) -> int:
        """The bucket that most modules of the call agree on; -1 where none has one."""
        kernel = self.work.names[name]
        if _makes_loss(kernel.fused_ops):
            return _LOSS
        votes = Counter(
            bucket
            for source in _at_heart(self.cases[case], kernel)
            if (bucket := self._of_source(source, call, kernel)) != _OPEN
        )
        return _winner(votes, kernel) if votes else _OPEN

    def _of_source(self, source: CallSource, call: int, kernel: KernelName) -> int:
        """The bucket of what the call does for one module. What a generated kernel does is told by
        its operators; in its name stand also those that it was moved beside."""
        if kernel.category == "activation" and source.module in self._with_ffn:
            return _ACTIVATION
        signature = signature_of(self.roles, source.module)
        operators = source.operators or self._named(call, kernel)
        if kernel.fused_ops and not _is_template(kernel):
            kernel = _ANY
            operators = tuple(o for o in operators if not _CORE.search(o)) or operators
        place = AFTER_NEGATION if "neg" in map(_short, operators) else 0
        place |= AFTER_CORE if self._after_core(source.module, call) else 0
        votes = Counter(
            bucket
            for operator in operators or ("",)
            if (bucket := decide(signature, _qualified(operator), kernel, place)) != _OPEN
        )
        return votes.most_common(1)[0][0] if votes else _OPEN

    @cached_property
    def _with_ffn(self) -> frozenset[int]:
        """Layers that hold the linear layers of their FFN themselves. An activation that such a
        layer calls is the FFN's, whatever sums and products the compiler makes of it."""
        tree = self.work.tree
        parts = written_in_layers(tree, self.roles)
        ours = (row for row in parts if self.roles.own[row] == "ffn")
        return frozenset(int(tree.parent[row]) for row in ours)

    def _named(self, call: int, kernel: KernelName) -> tuple[str, ...]:
        """Operators in the name of a generated kernel, or the one that is called."""
        if kernel.fused_ops:
            told = tuple(o for o in kernel.fused_ops if o not in _DESCRIBING)
            return told or kernel.fused_ops
        words = self.kernel[call].split(".")
        return (words[-2] if words[-1] == "default" else words[-1],)

    def _after_core(self, module: int, call: int) -> bool:
        """Whether the attention core of the module's block is called before this call."""
        block = self.roles.block[module]
        first = self._first_core.get((int(self.graph[call]), block))
        return block != NONE and first is not None and int(self.order[call]) >= first

    @cached_property
    def _first_core(self) -> dict[tuple[int, int], int]:
        """Graph and attention block -> the first of its calls that is an attention core."""
        first: dict[tuple[int, int], int] = {}
        for case, call in self._distinct_cases():
            if not _CORE.search(self.kernel[call]):
                continue
            for source in self.cases[case]:
                key = int(self.graph[call]), self.roles.block[source.module]
                first[key] = min(first.get(key, int(self.order[call])), int(self.order[call]))
        return first

    def _distinct_cases(self) -> list[tuple[int, int]]:
        case, call = self.work.compiled.case, self.work.call
        first, _ = distinct(case, call)
        pairs = zip(case[first].tolist(), call[first].tolist(), strict=True)
        return [pair for pair in pairs if pair[1] != NONE]


def _is_template(kernel: KernelName) -> bool:
    """Whether it is a product or an attention core into which its neighbours were fused."""
    return "_tem_" in kernel.name


def _at_heart(sources: Sequence[CallSource], kernel: KernelName) -> Sequence[CallSource]:
    """What a call serves. The neighbours in a template cost next to nothing beside its product."""
    if not _is_template(kernel):
        return sources
    return [s for s in sources if any(map(_HEART.search, s.operators))] or sources


@lru_cache(maxsize=4096)
def _makes_loss(operators: tuple[str, ...]) -> bool:
    """Whether a generated kernel holds a loss: whatever else is fused with it, it serves that."""
    return any("loss" in operator for operator in operators)


def _qualified(operator: str) -> str:
    return operator if "::" in operator or not operator else f"aten::{operator}"


def _short(operator: str) -> str:
    return operator.rpartition("::")[2]


def _winner(votes: Counter[int], kernel: KernelName) -> int:
    """The part with most votes in the group with most; among equals that of the module for which
    the call does most, which comes first. A kernel that normalises is a norm, whatever sums it
    makes on the way."""
    groups: Counter[str] = Counter()
    for bucket, count in votes.items():
        groups[BUCKETS[bucket][0]] += count
    best = _first_most(groups, list(groups))
    norm = BUCKET_CODE.get((best, "norm"), _OPEN)
    if kernel.category == "norm" and norm in votes:
        return norm
    return _first_most(votes, [bucket for bucket in votes if BUCKETS[bucket][0] == best])


def _first_most(counts: Counter[Key], keys: Sequence[Key]) -> Key:
    return max(keys, key=lambda key: counts[key])
