"""Layers that mix tokens by no kernel that is known for it: recurrences and attentions written out
in element-wise work, products and sums.

Between the residual sums of such layers two kinds of pieces take turns. One is an FFN, by its
products and the activation between them; the other, the longer one, then mixes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tracer.analyzers.layers.blocks import cut_units, find_clusters

_FEEDS = re.compile(rb"G+AG+A?")
# A convolution mixes by itself, in networks that are no transformers too.
_TOLD_OTHERWISE = re.compile(rb"[EV]")
_HEAVY_OR_ACTIVE = re.compile(rb"[^GVAMK]")
# What a scan can stand for, as it stands between the first and the last product of a piece.
_LIGHT = re.compile(rb"[^GVMNBFUAREYLO]")
_LEAST_TURNS = 3


def with_unnamed_mixers(text: bytes, cores: int) -> bytes:
    """The text with a scan in each piece that mixes. `cores`: attention cores and scans that are
    known; where there are enough of them the text stays as it is."""
    found = Counter(before for before, after in pairwise(_pieces(text)) if _mixes(before, after))
    turns = sum(text.count(piece) for piece in found)  # the first one follows no sum
    if 2 * cores >= turns or turns < _LEAST_TURNS:
        return text
    letters = bytearray(text)
    for piece in found:
        at = _middle(piece)
        for match in re.finditer(re.escape(piece), text) if at >= 0 else ():
            letters[match.start() + at] = ord("S")
    return bytes(letters)


def _pieces(text: bytes) -> Iterator[bytes]:
    """What lies between two residual sums, in order."""
    units = cut_units(text)
    bounds = [cluster for cluster in find_clusters(units, open_end=True) if cluster.added]
    for before, after in pairwise(bounds):
        yield text[units.start[before.last + 1] : units.start[after.first]]


def _mixes(piece: bytes, after: bytes) -> bool:
    heavy = _HEAVY_OR_ACTIVE.sub(b"", after)
    feeds = _FEEDS.fullmatch(heavy) is not None and len(piece) > len(after)
    return feeds and _TOLD_OTHERWISE.search(piece) is None


def _middle(piece: bytes) -> int:
    """Where something light stands between products; -1 for nowhere."""
    products = [place for place, letter in enumerate(piece) if letter in b"G"]
    if len(products) < 2:
        return -1
    light = _LIGHT.search(piece, products[0], products[-1])
    return light.start() if light else -1
