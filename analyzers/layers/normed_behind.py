"""Encoders whose blocks end with their residual sum and norm: those of the BERT family.

A layer that normalises before its blocks launches the same kernels in the same order, and what lies
between two of its blocks is nobody's. Three embeddings (words, positions, kinds of token), summed
and normalised once before the first product, tell the family, in which the sum and norm behind the
attention are parts of its module, and the sum behind the FFN of that; in training their dropout
comes after the norm. Decoders that sum as many codebooks have more.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS
from tracer.analyzers.layers.blocks import LEFT, label

_EMBEDDED = re.compile(
    rb"(?:^|[GNKMYL])[^GNKMYLEBFr]*" + 3 * rb"E[^GNKEBFrd]*" + rb"N(d*)[^GNKEBFrAMR]*G"
)
_CLOSED = re.compile(rb"(?<=[Gg])d?(D+)c?(N)")
_RESIDUAL = label("other", "residual")
_CORE, _OWN_NORM = label("attention", "core"), label("attention", "norm")
_FEEDING = label("ffn", "activation")
_EMBEDDING = label("other", "embedding")
_GROUP = np.array([group for group, _ in BUCKETS], dtype=object)


def close_blocks(text: bytes, labels: NDArray[np.uint8]) -> None:
    """Give the sums and norms between blocks to the blocks that they end, in place."""
    opened = list(_EMBEDDED.finditer(text))
    if not opened:
        return
    for match in opened:
        labels[slice(*match.span(1))] = _EMBEDDING
    for match in _CLOSED.finditer(text):
        before = labels[match.start() - 1]
        sums = slice(*match.span(1))
        if before == LEFT or not (labels[sums] == _RESIDUAL).all():
            continue
        if _GROUP[before] == "attention":
            labels[sums], labels[match.start(2)] = _CORE, _OWN_NORM
        elif _GROUP[before] == "ffn":
            labels[sums] = _FEEDING
