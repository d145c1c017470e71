"""The repeating pattern of a launch sequence: layers cut at their attention cores.

A sequence is a text with one letter for each kernel (`layer_letters`). Every distinct piece
between two cores is understood once; equal pieces share the answer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.layers.blocks import LEFT
from tracer.analyzers.layers.owned_norms import give_norms
from tracer.analyzers.layers.pieces import (
    Painted,
    Template,
    common_prefix,
    common_suffix,
    make_template,
    paint_begin,
    paint_between,
    paint_core,
    paint_cut_begin,
    paint_end,
)
from tracer.analyzers.layers.unnamed_mixers import with_unnamed_mixers

# Fewer cores show no repetition; two will do where norm, sum and activation all agree.
_ENOUGH_CORES = 3
_BEYOND_DOUBT = 0.95

# One attention: a core kernel, or product, softmax, product with nothing but element-wise work
# between them; and all that follow with nothing heavy between (split by batch or by keys).
# Relative positions are looked up among the scores.
_UNFUSED = rb"Gg*[mDacfeoqzlAyiE?]*x[cdmfze]*Gg*"
_CORE = re.compile(
    rb"(?:" + _UNFUSED + rb"|[KS])(?:[^GMNBFRAEYLOVr]*[KS]|[mDacdfezly]*" + _UNFUSED + rb")*"
)
# A softmax written out between two products: exponents, and their sum before or right after the
# second product.
_WRITTEN = re.compile(
    rb"(?<=G)g*[mDacfeoqzly?]{0,24}(?P<weights>n[nmDacfezly]{0,24})(?=Gg*(?P<late>[cm]?yc?[me])?)"
)
# A gather of the vocabulary: a norm comes after it, or where norms close blocks, the one product
# that makes logits before it. Not one that follows the choice of experts in the same block, nor
# that of a position bias or of the last token of each sequence.
_GATHER = re.compile(
    rb"[NBFr][^NBFrTRxY]*?(E)(?=.*[NBFr])|[GM].*[NBFr]G[^NBFrTRxYAMG]*?(E)(?=[^NBFr]*$)", re.S
)
# The convolution that a state-space or gated block runs over its projected input: it stands for the
# scan where that is written out in many kernels. Convolutions of images have no product before, and
# the one of an FFN lies with an activation between its two products. One that leads to an attention
# core, with neither activation nor residual sum before it, is of that attention.
_MIXING = re.compile(
    rb"[NBFr][^NBFrGVDKS]*G[^NBFrVDKSx]*(V)(?!c*D?c*A[cd]*Gg*[cd]*[DNBF])(?=[^NBF]*G)"
    rb"(?!(?:(?!Dc{0,3}(?:N|[pm]?z?v))[^AKSxBF])*[Kx])",
    re.S,
)
_UNKNOWN_CORE = re.compile(rb"[ow][^?GMNBFARS]*(\?)(?=[^NBFR]*G)")
# Convolutions that cut an image into patches, whose places are looked up right after.
_PATCHES = re.compile(rb"[zc]*V[^GMNBFRAKSY]*$")
_CHOICE = re.compile(rb".*[YL]", re.S)


@dataclass(frozen=True)
class LayerPattern:
    """The layers found in one pass through the model, most common over all passes.

    kinds: how often each kind of block comes ("attention+ffn", "attention+moe", "mixer+ffn",
    "attention", "mixer"); attention_calls: cores a pass; confidence: share of blocks that repeat.
    """

    layers: int
    attention_calls: int
    kinds: tuple[tuple[str, int], ...]
    passes: int
    confidence: float

    @property
    def facts(self) -> dict[str, Any]:
        """What a report says of the model."""
        return {
            "layers": self.layers,
            "attention_calls": self.attention_calls,
            "layer_kinds": dict(self.kinds),
        }


@dataclass(frozen=True)
class Solution:
    """Of each kernel of a sequence: bucket, LEFT for none, and the confidence in it."""

    labels: NDArray[np.uint8]
    confidence: NDArray[np.float64]
    pattern: LayerPattern | None
    cores: int  # attention cores and scans seen


@dataclass
class Cutter:
    """Where a pass through the model ends inside a piece: at steps, or by what ran there."""

    steps: Sequence[int]  # kernels at which another step begins
    gathers: bool = True  # an embedding gather marks a new pass
    choices: bool = True  # so does a chosen token or a loss
    convolutions: bool = True
    known: dict[bytes, tuple[int, int] | None] = field(default_factory=dict)

    def split(self, text: bytes, at: int) -> tuple[int, int] | None:
        """End of the old pass and begin of the new one, relative to the piece at `at`."""
        first = bisect_left(self.steps, at + 1)
        last = bisect_left(self.steps, at + len(text)) - 1
        if first <= last:
            return self.steps[first] - at, self.steps[last] - at
        return self.soft_split(text)

    def soft_split(self, text: bytes) -> tuple[int, int] | None:
        """The same by what ran, for each text once."""
        if text not in self.known:
            self.known[text] = self._soft_split(text)
        return self.known[text]

    def _soft_split(self, text: bytes) -> tuple[int, int] | None:
        """An embedding gather, a chosen token, a loss, convolutions."""
        chosen = _CHOICE.match(text) if self.choices else None
        start = chosen.end() if chosen else 0
        gather = text.find(b"E", start) if chosen else _gather(text)
        if self.gathers and gather >= 0:
            patches = _PATCHES.search(text, start, gather)
            first = patches.start() if patches else gather
            return first, first
        if chosen:
            return start, start
        if self.convolutions and b"V" in text:
            return text.find(b"V"), text.rfind(b"V") + 1
        return None


def _gather(text: bytes) -> int:
    match = _GATHER.search(text)
    return match.start(match.lastindex or 0) if match else -1


def _with_cores(text: bytes) -> bytes:
    """The text with the attention of a library never seen: what runs between the rotation or the
    write to the cache and the output projection, where no core is known by its name."""
    if any(core in text for core in (b"K", b"S", b"x")):
        return text
    letters = bytearray(text)
    for match in _UNKNOWN_CORE.finditer(text):
        letters[match.start(1)] = ord("K")
    return bytes(letters)


def _with_softmaxes(text: bytes) -> bytes:
    """The text with softmaxes written out as one kernel among element-wise ones; exponents of
    other use are element-wise work, and so is a softmax that goes on to be doubly stochastic."""
    text = _BALANCED.sub(b"e", text)
    if b"n" not in text:
        return text
    letters = bytearray(text)
    for match in _WRITTEN.finditer(text):
        start, stop = match.span("weights")
        if match["late"] or b"y" in match["weights"]:
            letters[start:stop] = b"x" + b"e" * (stop - start - 1)
    return bytes(letters.replace(b"n", b"e"))


def _with_mixers(text: bytes) -> bytes:
    """The text with the convolutions of mixers as scans."""
    if b"V" not in text:
        return text
    letters = bytearray(text)
    found = list(_MIXING.finditer(text))
    # One a pass, among many cores, is that of the image that the next pass begins with.
    if 2 * len(found) >= len(_CORE.findall(text)):
        for match in found:
            letters[match.start(1)] = ord("S")
    return bytes(letters)


@dataclass
class Solver:
    """Understands the pieces of one sequence."""

    text: bytes
    steps: Sequence[int]

    @cached_property
    def cores(self) -> list[tuple[int, int]]:
        """First kernel and end of each attention core or scan."""
        return [match.span() for match in _CORE.finditer(self.text)]

    @cached_property
    def kinds(self) -> list[str]:
        """Of each core: attention or mixer."""
        return ["mixer" if b"S" in self.text[a:b] else "attention" for a, b in self.cores]

    @cached_property
    def between(self) -> list[tuple[int, int]]:
        """Kernels between consecutive cores."""
        return [(a, b) for (_, a), (b, _) in zip(self.cores, self.cores[1:], strict=False)]

    @cached_property
    def cutter(self) -> Cutter:
        """Marks that stand in most pieces belong to the layers and end no pass; nor do convolutions
        in a piece that comes twice in a row."""
        pieces = [self.text[a:b] for a, b in self.between]
        texts = Counter(pieces)
        again = any(b"V" in a and a == b for a, b in pairwise(pieces))
        half = len(self.between) / 2

        def rare(pattern: re.Pattern[bytes]) -> bool:
            return sum(n for text, n in texts.items() if pattern.search(text)) <= half

        return Cutter(self.steps, rare(_GATHER), rare(_CHOSEN), rare(_CONVOLUTION) and not again)

    @cached_property
    def splits(self) -> list[tuple[int, int] | None]:
        """Of each piece between cores: where a pass ends and the next one begins in it."""
        texts = [self.text[a:b] for a, b in self.between]
        splits = [
            self.cutter.split(text, a) for text, (a, _) in zip(texts, self.between, strict=True)
        ]
        grown = find_grown(text for text, split in zip(texts, splits, strict=True) if not split)
        return [split or grown.get(text) for text, split in zip(texts, splits, strict=True)]

    @property
    def shows_layers(self) -> bool:
        """Whether there is a pattern to speak of."""
        if len(self.cores) >= _ENOUGH_CORES:
            return bool(self.templates)
        return any(t.painted.confidence >= _BEYOND_DOUBT for t in self.templates)

    @property
    def all_alike(self) -> bool:
        """Whether there are layers, and one is like the other."""
        return self.shows_layers and len(self.templates) == 1 and self.templates[0].painted.repeats

    @cached_property
    def templates(self) -> list[Template]:
        """Whole pieces that bound blocks, the most frequent first."""
        counts = Counter(
            (self.text[a:b], self.kinds[i], self.kinds[i + 1])
            for i, (a, b) in enumerate(self.between)
            if self.splits[i] is None
        )
        common = counts.most_common(_MOST_TEMPLATES)
        found = _present(make_template(*key, n) for key, n in common)
        if any(template.ffn_shape for template in found):
            return found
        return _present(make_template(*key, n, unfed=True) for key, n in common)


def find_grown(texts: Iterable[bytes]) -> dict[bytes, tuple[int, int]]:
    """Pieces like a more frequent one but for what is between two of its kernels, and is no layer:
    what a pass ends or begins with, where nothing else tells of it. Each with where that begins and
    ends."""
    counts = Counter(texts).most_common(_MOST_TEMPLATES)
    found: dict[bytes, tuple[int, int]] = {}
    for text, count in counts:
        for usual, times in counts:
            if times < 2 * count or len(usual) >= len(text):
                continue
            begin = _begins_again(text, usual)
            more = len(text) - len(usual)
            if begin is not None and _is_no_layer(text[begin : begin + more]):
                found.setdefault(text, (begin, begin + more))
    return found


def _begins_again(text: bytes, usual: bytes) -> int | None:
    """Where a block begins in `usual` such that it is `text` but for something before that."""
    head, tail = common_prefix(text, usual), common_suffix(text, usual)
    places = range(max(len(usual) - tail, 1), min(head, len(usual) - 1) + 1)
    return next((place for place in places if _OPENING.match(usual, place)), None)


def _is_no_layer(text: bytes) -> bool:
    """Convolutions, or products without a norm."""
    return b"V" in text or (not _NORMED.search(text) and _HEAVY.search(text) is not None)


_NORMED, _HEAVY = re.compile(rb"[NBFr]"), re.compile(rb"[GM?]")
_OPENING = re.compile(rb"[NBF]|c?p[cvym]*a?r")  # a norm, in one kernel or written out


def _present(templates: Iterable[Template | None]) -> list[Template]:
    return [template for template in templates if template is not None]


_MOST_TEMPLATES = 64
_CHOSEN = re.compile(rb"[YL]")
_CONVOLUTION = re.compile(rb"V")


# The backward pass of an unfused norm: products around the sum and the power.
_BACKWARD_NORM = re.compile(rb"(?:mc)?mm?y+p?m{2,4}c?m{1,3}D?c?")
_BALANCED = re.compile(rb"x(?=a?(?:yae){2})")  # divided by sums of rows and columns in turn
_BACKWARD_CORES = re.compile(rb"J(?:[^KS]*J)*")
_MASKED = b"h"  # work that bounds nothing


def solve(text: bytes, steps: Sequence[int]) -> Solution:
    """Understand a sequence; `steps` are the kernels at which another step begins or one ends.

    A backward pass in it is the forward pass in reverse order.
    """
    text = _with_softmaxes(text)
    spans = list(_backward_spans(text))
    masked = bytearray(text)
    for start, stop in spans:
        masked[start:stop] = _MASKED * (stop - start)
    forward = _solve_forward(bytes(masked), steps)
    for start, stop in spans:
        backward = _solve_forward(_reversed_pass(text[start:stop]), ())
        forward.labels[start:stop] = backward.labels[::-1]
        forward.confidence[start:stop] = 0.9 * backward.confidence[::-1]
    return forward


def _backward_spans(text: bytes) -> Iterator[tuple[int, int]]:
    """From the loss to the optimizer, around the backward cores."""
    for match in _BACKWARD_CORES.finditer(text):
        before = max(text.rfind(b"K", 0, match.start()), text.rfind(b"S", 0, match.start())) + 1
        loss = text.rfind(b"L", before, match.start()) + 1
        stop = _AFTER_BACKWARD.search(text, match.end())
        yield max(loss, before), stop.start() if stop else len(text)


_AFTER_BACKWARD = re.compile(rb"[OEKS]")


def _reversed_pass(text: bytes) -> bytes:
    """Backward letters as those of a forward pass."""
    letters = bytearray(text.replace(b"J", b"K"))
    for match in _BACKWARD_NORM.finditer(text):
        inside = match.end() - match.start() - 2
        letters[match.start() : match.end()] = b"N" + _MASKED * inside + b"N"
    return bytes(letters[::-1])


def _solve_forward(text: bytes, steps: Sequence[int]) -> Solution:
    solver = _solver(text, steps)
    if not solver.shows_layers and b"V" in text:
        convolved = _solver(_CONVOLVED.sub(_as_product, text), steps)
        solver = convolved if convolved.all_alike else solver
    if not solver.shows_layers:
        left = np.full(len(text), LEFT, dtype=np.uint8)
        return Solution(left, np.zeros(len(text)), None, len(solver.cores))
    pieces = Assembly(solver).pieces()
    labels = np.frombuffer(bytearray().join(piece.labels for piece in pieces), dtype=np.uint8)
    give_norms(solver.text, labels)
    lengths = [len(piece.labels) for piece in pieces]
    confidence = np.repeat([piece.confidence for piece in pieces], lengths)
    return Solution(labels, confidence, _pattern(pieces), len(solver.cores))


def _solver(text: bytes, steps: Sequence[int]) -> Solver:
    text = _with_cores(_with_mixers(text))
    return Solver(with_unnamed_mixers(text, len(_CORE.findall(text))), steps)


# Convolutions of one place are linear layers: where nothing else makes layers, they are taken so.
_CONVOLVED = re.compile(rb"V+D?")


def _as_product(match: re.Match[bytes]) -> bytes:
    return b"G" + b"g" * (match.end() - match.start() - 1)


@dataclass
class Assembly:
    """Paints the pieces of a sequence in order; equal pieces once."""

    solver: Solver
    memo: dict[tuple[str, bytes, str, str], Painted] = field(default_factory=dict)

    def pieces(self) -> list[Painted]:
        """Pieces that cover the sequence."""
        solver, text = self.solver, self.solver.text
        out = [*self.opening(text[: solver.cores[0][0]])]
        for place, (start, stop) in enumerate(solver.cores):
            out.append(self.core(text[start:stop]))
            if place < len(solver.between):
                out += self.gap(place)
        return [*out, *self.closing(text[solver.cores[-1][1] :])]

    def opening(self, text: bytes) -> list[Painted]:
        """What comes before the first core."""
        split = self.solver.cutter.split(text, 0)
        start = split[1] if split else 0
        return [_left(start), self.begin(text[start:], 0)]

    def closing(self, text: bytes) -> list[Painted]:
        """What comes after the last core."""
        split = self.solver.cutter.split(text, len(self.solver.text) - len(text))
        if split is None:
            return [self.end(text, -1)]
        stop, start = split
        begun = paint_cut_begin(text[start:], self.solver.templates)
        return [self.end(text[:stop], -1), _left(start - stop), begun]

    def gap(self, place: int) -> list[Painted]:
        """What lies between two cores: a piece, or the end of a pass and the begin of the next."""
        start, stop = self.solver.between[place]
        text, split = self.solver.text[start:stop], self.solver.splits[place]
        if split is None:
            return [self.whole(text, place)]
        first, second = split
        return [
            self.end(text[:first], place),
            _left(second - first),
            self.begin(text[second:], place + 1),
        ]

    def core(self, text: bytes) -> Painted:
        """A core."""
        return self._once(("core", text, "", ""), lambda: paint_core(text))

    def whole(self, text: bytes, place: int) -> Painted:
        """A piece between two cores of one pass."""
        before, after = self.solver.kinds[place : place + 2]
        key = ("whole", text, before, after)
        return self._once(key, lambda: paint_between(text, before, after, self.solver.templates))

    def end(self, text: bytes, place: int) -> Painted:
        """The end of a pass after the core at `place`."""
        before = self.solver.kinds[place]
        key = ("end", text, before, "")
        return self._once(key, lambda: paint_end(text, before, self.solver.templates))

    def begin(self, text: bytes, place: int) -> Painted:
        """The begin of a pass before the core at `place`."""
        after = self.solver.kinds[place]
        key = ("begin", text, "", after)
        return self._once(key, lambda: paint_begin(text, after, self.solver.templates))

    def _once(self, key: tuple[str, bytes, str, str], paint: Callable[[], Painted]) -> Painted:
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = paint()
        return found


def _left(length: int) -> Painted:
    return Painted(bytes([LEFT]) * length, 0.0)


def _pattern(pieces: Sequence[Painted]) -> LayerPattern:
    """The most common pass; its blocks by kind."""
    passes: list[list[str]] = [[]]
    repeated = blocks = 0
    for piece in pieces:
        if piece.opens and passes[-1]:
            passes.append([])
        passes[-1] += piece.kinds
        blocks += bool(piece.kinds)
        repeated += bool(piece.kinds) and piece.repeats
    common = Counter(tuple(sorted(Counter(found).items())) for found in passes if found)
    kinds = max(common, key=lambda k: (common[k] * sum(n for _, n in k), k))
    calls = sum(n for _, n in kinds)
    fed = sum(n for kind, n in kinds if "+" in kind)
    return LayerPattern(
        layers=fed if 2 * fed >= calls else calls,
        attention_calls=calls,
        kinds=kinds,
        passes=len([found for found in passes if found]),
        confidence=repeated / blocks if blocks else 0.0,
    )
