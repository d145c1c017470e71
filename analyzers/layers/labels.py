"""Group and part of each kernel of a block, once it is known which block it belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from tracer.analyzers.layers.blocks import (
    EXPERT_SIGNS,
    LEFT,
    NORMS,
    Blocks,
    Cluster,
    Span,
    Units,
    label,
    layers_end,
    weighed_until,
)

_NORM = label("other", "norm")
_RESIDUAL = label("other", "residual")
_EMBEDDING = label("other", "embedding")
_LM_HEAD = label("other", "lm_head")
_SAMPLING = label("other", "sampling")
_LOSS = label("other", "loss")
_ROPE = label("attention", "rope")
_CORE = label("attention", "core")
_KV = label("attention", "kv_cache")
_PROJECTION = label("attention", "projection")
_ATTENTION_NORM = label("attention", "norm")
_MIXER = label("attention", "mixer")
_FFN_PROJECTION = label("ffn", "projection")
_ACTIVATION = label("ffn", "activation")
_ROUTER = label("ffn", "router")
_EXPERTS = label("ffn", "experts")
_DEQUANTIZE = label("ffn", "dequantize")
_ATTENTION_DEQUANTIZE = label("attention", "dequantize")

# What a block gives is weighed for each residual stream, and a product mixes these; the one that
# makes the next block's weights can come before its norm.
_TO_STREAMS = re.compile(rb"(?:(?<=[GgDMy])c*m[cm]*G?c*)?(?:D+c*[Gg]+c*)?$")
# Angles are a product of positions, cast or not, doubled, laid out anew, or beside ones as complex
# numbers.
_ANGLES = re.compile(rb"c?(?:[Gm][Gglm]*(?:(?<=G)z|c)?|l)?t")
_SINES_ADDED = re.compile(rb"m+c?t[cmzlt]*D")
_TABLE = re.compile(rb"c?[Gm][Gglmzc]*t[tmcl]*")
_BEFORE_ADDED_NORM = re.compile(rb"D(?=[NU]D)")
_SCALED = re.compile(rb"mm?(?=D)")
_GEMM = b"Ggb"
_DEQUANTIZING = b"Qq"
_ROTATING = b"m-tDoe"
_ROUTING = b"RTx"


class Painter:
    """Labels of units in the making; `kernels` spreads them over the kernels of each unit."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.labels = bytearray([LEFT]) * len(units.letters)

    def kernels(self) -> bytes:
        """The label of each kernel."""
        start = self.units.start
        pieces = (
            bytes([mark]) * (end - begin)
            for mark, begin, end in zip(self.labels, start, start[1:], strict=False)
        )
        return b"".join(pieces)

    def each(self, first: int, last: int, choose: Callable[[int, int], int]) -> None:
        """Give units `first` to `last` what `choose(place, letter)` says."""
        for place in range(max(first, 0), min(last, len(self.labels) - 1) + 1):
            self.labels[place] = choose(place, self.units.letters[place])

    def bound(self, cluster: Cluster) -> None:
        """Norms and residual sums between blocks."""
        self.each(
            cluster.first,
            cluster.last,
            lambda place, letter: _NORM if letter in NORMS or letter in b"AG" else _RESIDUAL,
        )

    def weighing(self, bound: Cluster) -> None:
        """Where the block after a bound weighs residual streams first: the norm that opens it, and
        what comes before it from the end of the block before."""
        opening = weighed_until(self.units, bound)
        if opening is None:
            return
        given = _TO_STREAMS.search(self.units.letters, 0, bound.first)
        self.each(given.start() if given else bound.first, opening - 1, lambda *_: _RESIDUAL)
        self.labels[opening] = _NORM

    def after_core(self, first: int, last: int, *, mixer: bool) -> None:
        """The end of an attention block: output projection and what surrounds it."""
        rest = _MIXER if mixer else _CORE
        self.each(first, last, lambda place, letter: _attention(letter, rest))

    def before_core(self, first: int, last: int, *, mixer: bool) -> None:
        """The beginning of an attention block: projections, rotation, cache."""
        letters = self.units.letters
        looked_up = self._looked_up(max(first, 0), last)

        def choose(place: int, letter: int) -> int:
            if mixer:
                return _attention(letter, _MIXER)
            if letter in b"li":
                return _ROPE if letters[place - 1 : place] == b"-" else _KV
            if letter == ord("E"):
                return _ROPE if place in looked_up else LEFT
            return _attention(letter, _ROPE if letter in _ROTATING else _CORE)

        self.each(first, last, choose)

    def _looked_up(self, first: int, last: int) -> frozenset[int]:
        """Gathers between the projections and the core, of sines or of what is added for the
        distance of two tokens; before the last norm or the first product one is of a vocabulary."""
        letters = self.units.letters[: last + 1]
        norm = max(letters.rfind(bytes([letter]), first) for letter in NORMS)
        start = letters.find(b"G", max(norm, first))
        places = range(start, last + 1) if start >= 0 else range(0)
        return frozenset(place for place in places if letters[place] == ord("E"))

    def ffn(self, first: int, last: int) -> None:
        """An FFN, dense or of experts, and after it what it adds to the residual stream."""
        letters = self.units.letters[first : last + 1]
        routed = min((letters.find(bytes([c])) for c in _ROUTING if c in letters), default=-1)
        if routed < 0 and b"M" not in letters:
            self.each(first, last, lambda place, letter: _dense(letter))
            return
        gate = letters.rfind(b"G", 0, max(routed, 0))
        work = letters.find(b"M")
        work = work if work >= 0 else letters.find(b"G", routed)

        def choose(place: int, letter: int) -> int:
            if letter in b"A":
                return _ACTIVATION
            if place - first == gate or letter in _ROUTING or gate < place - first < work:
                return _ROUTER if letter in b"GRTxgcyYe?Azi" else _EXPERTS
            return _FFN_PROJECTION if letter in b"Gg" else _EXPERTS

        self.each(first, last, choose)


def _attention(letter: int, rest: int) -> int:
    if letter in _GEMM:
        return _PROJECTION
    if letter in _DEQUANTIZING:
        return _ATTENTION_DEQUANTIZE
    if letter in NORMS:
        return _ATTENTION_NORM
    if letter in b"Kkx":
        return _CORE
    if letter in b"Ss":
        return _MIXER
    return {ord("o"): _ROPE, ord("w"): _KV}.get(letter, rest)


def _dense(letter: int) -> int:
    if letter in _DEQUANTIZING:
        return _DEQUANTIZE
    if letter in _GEMM:
        return _FFN_PROJECTION
    return _NORM if letter in NORMS else _ACTIVATION


def paint_interval(units: Units, blocks: Blocks, *, mixer_before: bool, mixer_after: bool) -> bytes:
    """Labels of the kernels between two cores of one pass through the model."""
    painter = Painter(units)
    paint_layer_end(painter, blocks, mixer=mixer_before)
    painter.before_core(layers_end(blocks), len(units.letters) - 1, mixer=mixer_after)
    for cluster in blocks.bounds[-1:]:
        painter.weighing(cluster)
    return painter.kernels()


def paint_layer_end(painter: Painter, blocks: Blocks, *, mixer: bool) -> None:
    """From a core to the last bound: output projection, bounds, FFN, and whole layers after it."""
    stop = blocks.bounds[0].first if blocks.bounds else len(painter.labels)
    painter.after_core(0, stop - 1, mixer=mixer)
    paint_blocks(painter, blocks, mixer=mixer)


def paint_blocks(painter: Painter, blocks: Blocks, *, mixer: bool) -> None:
    """The blocks themselves; what lies between bounds and is neither FFN nor mixer is attention."""
    for before, after in pairwise(blocks.bounds):
        painter.before_core(before.last + 1, after.first - 1, mixer=mixer)
    for span in blocks.mixers:
        painter.before_core(*span, mixer=True)
    for span in blocks.ffns:
        painter.ffn(*span)
    for cluster in blocks.bounds:
        painter.bound(cluster)
        painter.weighing(cluster)
    for span in blocks.ffns:
        bounds = [cluster for cluster in blocks.bounds if cluster.last < span[0]]
        _around_experts(painter, span, bounds[-1] if bounds else None)


def _around_experts(painter: Painter, span: Span, before: Cluster | None) -> None:
    """Of the sums after experts only the last is the residual: those before add the shared experts,
    or one by one what the chosen ones gave, weighted. Beside an attention, whose sum comes with
    theirs, the last two are; of one before a norm that is added, none is. Where what attention
    gives is scaled before it is added, what experts give is too. `before`: the bound before them.
    """
    first, last = span
    letters = painter.units.letters
    if not any(letter in EXPERT_SIGNS for letter in letters[first : last + 1]):
        return
    place = last + 1 + letters.startswith(b"mDD", last + 1)
    residual = b"D" if before else b"DD"
    while letters.startswith(b"D" + residual, place):
        place += 1
    place += _BEFORE_ADDED_NORM.match(letters, place) is not None
    for inside in range(last + 1, place):
        painter.labels[inside] = _EXPERTS
    scaled = _SCALED.match(letters, before.first) if before else None
    if scaled and letters.endswith(scaled.group(), first, last + 1):
        painter.each(last + 1 - len(scaled.group()), last, lambda *_: _RESIDUAL)


def paint_model_end(painter: Painter, first: int) -> None:
    """What follows the last layer's bound: the head that makes logits, a loss, sampling."""
    letters = painter.units.letters
    heads = [i for i in painter.units.heavy if i >= first]
    if not heads:
        return
    last = _past_cast(letters, heads[-1])
    chosen = any(letter in b"YxTu" for letter in letters[last + 1 :])

    def choose(place: int, letter: int) -> int:
        if letter == ord("L"):
            return _LOSS
        if place <= last:
            return _NORM if letter in NORMS else _LM_HEAD
        return _SAMPLING if chosen else LEFT

    painter.each(first, len(letters) - 1, choose)


def _past_cast(letters: bytes, place: int) -> int:
    while letters[place + 1 : place + 2] in (b"g", b"c"):
        place += 1
    return place


def paint_model_begin(painter: Painter, last: int) -> None:
    """What comes before the first layer's norm: embedding and the rotary table."""
    letters = painter.units.letters[: last + 1]
    table = _rotary_start(letters)
    opened = min((i for i, letter in enumerate(letters) if letter in b"EV"), default=last + 1)

    def choose(place: int, letter: int) -> int:
        if letter in NORMS:
            return _NORM
        if place >= table:
            return _ROPE
        return _EMBEDDING if place >= opened and letter in b"EVGgDmlAt" else LEFT

    painter.each(0, last, choose)


def _rotary_start(letters: bytes) -> int:
    """Where the angles of the rotary table begin, whose sines and cosines are taken; what is added
    to words at once is no table."""
    angles = _ANGLES.search(letters)
    if not angles or _SINES_ADDED.match(letters, angles.start()):
        return len(letters)
    return angles.start()


def paint_table(letters: bytes) -> bytes:
    """Labels of a rotary table, made of a product, and of nothing else."""
    labels = bytearray([LEFT]) * len(letters)
    start = _rotary_start(letters)
    table = _TABLE.match(letters, start)
    if table:
        labels[start : table.end()] = bytes([_ROPE]) * (table.end() - start)
    return bytes(labels)
