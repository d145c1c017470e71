"""Families of models whose blocks own the norms and residual sums beside them.

Elsewhere what lies between two blocks is nobody's, though the same kernels run in the same order: a
family is told by what comes before its first block or in it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKETS
from tracer.analyzers.layers.blocks import LEFT, label

# Encoders of the BERT family end their blocks with a sum and its norm. Three embeddings (words,
# positions, kinds of token) are summed and normalised once before the first product; in training
# their dropout comes after the norm. Decoders that sum as many codebooks have more. Or two are
# summed, and all layers share what attention adds for distances, looked up behind the norm, or
# what is padded is masked there.
_EMBEDDED = re.compile(
    rb"(?:^|[GNKMYL])[^GNKMYLEBFr]*"
    rb"E[^GNKEBFrd]*E[^GNKEBFrd]*"
    rb"(?:E[^GNKEBFrd]*N(?P<dropped>d*)|N(?P<early>d*)[^GNKEBFrAMR]*(?P<distances>E)"
    rb"|N(?P<masked>c?md?)(?=mG))"
    rb"[^GNKEBFrAMR]*G"
)
_CLOSED = re.compile(rb"(?<=[Gg])d?(D+)c?(N)")
# T5's begin with the norm, written out, and end with the sum. The first attention sorts distances
# into buckets and looks up what it adds for each, before the core: the words of another step, which
# are looked up behind a mask too, are normalised first.
_LOOKED_UP = re.compile(rb"rm[^GKExo]*G(?P<sorted>[^KExoAYT]*)E[^KxENBv]*[Kx]")
_MASKED = re.compile(rb"z.{6,}f[^G]*$", re.S)

_RESIDUAL, _NORM = label("other", "residual"), label("other", "norm")
_CORE, _OWN_NORM = label("attention", "core"), label("attention", "norm")
_ROPE = label("attention", "rope")
_FEEDING = label("ffn", "activation")
_EMBEDDING = label("other", "embedding")
_GROUP = np.full(LEFT + 1, "", dtype=object)
_GROUP[: len(BUCKETS)] = [group for group, _ in BUCKETS]

Labels = NDArray[np.uint8]


def give_norms(text: bytes, labels: Labels) -> None:
    """Give the sums and norms between blocks to the blocks whose they are, in place."""
    opened = list(_EMBEDDED.finditer(text))
    if opened:
        for match in opened:
            labels[slice(*match.span("dropped"))] = _EMBEDDING
            labels[slice(*match.span("early"))] = _EMBEDDING
            labels[slice(*match.span("masked"))] = _EMBEDDING
            labels[slice(*match.span("distances"))] = _ROPE
        _close_blocks(text, labels)
    elif any(_MASKED.search(match["sorted"]) for match in _LOOKED_UP.finditer(text)):
        _frame_blocks(labels)


def _close_blocks(text: bytes, labels: Labels) -> None:
    """The sum and the norm behind attention are its own; the sum behind an FFN is the FFN's."""
    for match in _CLOSED.finditer(text):
        before = labels[match.start() - 1]
        sums = slice(*match.span(1))
        if before == LEFT or not (labels[sums] == _RESIDUAL).all():
            continue
        if _GROUP[before] == "attention":
            labels[sums], labels[match.start(2)] = _CORE, _OWN_NORM
        elif _GROUP[before] == "ffn":
            labels[sums] = _FEEDING


def _frame_blocks(labels: Labels) -> None:
    """The norm before attention and the sum behind it are its own; the sum behind an FFN is the
    FFN's."""
    between = np.isin(labels, (_RESIDUAL, _NORM))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], between, [False]])))
    group = _GROUP[np.concatenate([[LEFT], labels, [LEFT]])]
    for start, stop in edges.reshape(-1, 2).tolist():
        run, before, after = labels[start:stop], group[start], group[stop + 1]
        if before in ("attention", "ffn"):
            run[run == _RESIDUAL] = _CORE if before == "attention" else _FEEDING
        if after == "attention":
            run[run == _NORM] = _OWN_NORM
