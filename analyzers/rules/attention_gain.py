"""The attention that a case of slow attention is about, and what a fused kernel would give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import Analysis
from tracer.analyzers.context import Context
from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.attention_arguments import AttentionCalls, Signature, reasons_of
from tracer.analyzers.rules.attention_paths import MATH, AttentionCall
from tracer.analyzers.rules.estimates import attention_basis, attention_ns, device_limits
from tracer.findings import Where

# The backward of a fused attention does two and a half times the work of its forward.
_BACKWARD_WORK = 2.5
_NO_PASSES = (
    "measured: the passes over the score matrix between the two products, which a fused kernel "
    "does not make"
)
_TYPES = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}


@dataclass(frozen=True)
class Judged:
    """What the rules of attention look at."""

    context: Context
    analysis: Analysis
    arguments: AttentionCalls

    def charged(self, rows: Longs) -> int:
        """Time in the window that counts for these pieces of work."""
        return int(self.analysis.work["charged_ns"].to_numpy()[rows].sum())


@dataclass(frozen=True)
class Slow:
    """Slow attentions of one backend at one place. Rows: all their work, forward and backward."""

    backend: str
    where: Where
    calls: list[AttentionCall]
    signature: Signature | None

    @property
    def rows(self) -> Longs:
        return np.concatenate([call.rows for call in self.calls])

    @property
    def reasons(self) -> list[str]:
        """What its arguments have against fused kernels."""
        math = self.backend == MATH and self.signature is not None
        return reasons_of(self.signature) if math and self.signature else []


@dataclass(frozen=True)
class Gain:
    """What a change would give back; `basis` says what the number rests on."""

    ns: int | None
    basis: str


def signature_of(judged: Judged, call: AttentionCall) -> Signature | None:
    """The arguments of a call; of a chain, what the shapes of its first product tell."""
    if call.backend == MATH:
        return judged.arguments.signature(call.operator)
    work = judged.context.work
    arguments = Arguments(work.trace)
    row = arguments.row(int(work.operator[call.rows[0]]))
    shapes = [shape for shape in arguments.shapes(row) if len(shape) == 3][-2:]
    if len(shapes) < 2 or shapes[0][-1] != shapes[1][-2]:
        return None
    left, right = shapes
    dtype = next(filter(None, arguments.types(row)), "")
    keys = right[0], right[2], right[1]
    return Signature(left, keys, keys, _TYPES.get(dtype, ""))


def gain_of(judged: Judged, slow: Slow) -> Gain:
    """What fused kernels would give back at one place."""
    limits = device_limits(judged.context.work.trace)
    if limits is None or slow.signature is None or slow.signature.nested:
        return _passes(judged, slow.rows)
    gain = 0
    for call in slow.calls:
        signature = signature_of(judged, call) or slow.signature
        forward = attention_ns(signature.query, signature.key, signature.causal, limits)
        fused = forward * (1 + _BACKWARD_WORK * _has_backward(judged, call))
        gain += max(judged.charged(call.rows) - round(fused), 0)
    return Gain(gain, attention_basis(limits))


def _has_backward(judged: Judged, call: AttentionCall) -> bool:
    return bool((judged.context.work.forward[call.rows] != NONE).any())


def _passes(judged: Judged, rows: Longs) -> Gain:
    """Without shapes: the work between the products is gone, whatever else a fused kernel does."""
    return Gain(judged.charged(rows[~_is_product(judged, rows)]), _NO_PASSES)


def _is_product(judged: Judged, rows: Longs) -> NDArray[np.bool_]:
    work = judged.context.work
    tokens: Sequence[str] = [name.token for name in work.names]
    by_kernel = np.array([token in ("GEMM", "SPLITK") for token in tokens], dtype=bool)
    found: NDArray[np.bool_] = by_kernel[work.name_code[rows]]
    return found
