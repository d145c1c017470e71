"""What lies between two attention cores: the end of one layer's attention, its FFN, and the
beginning of the next layer's attention. Pure functions over letters (`layer_letters`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

from tracer.analysis import BUCKETS

# A label is the byte of a bucket; LEFT says nothing.
LEFT = 0xFF
_CODE = {bucket: code for code, bucket in enumerate(BUCKETS)}

NORMS = b"NBFU"  # U: a norm made of several kernels
_HEAVY = b"GM"
_ANCHORS = b"AMR"
EXPERT_SIGNS = b"MRTx"  # their work, and how tokens are routed to them
# Norms written out in element-wise kernels, around the mean of a square. A cast may come first: one
# only, or the rotary table before the first norm would be eaten. The weight follows, cast or not.
_UNFUSED_NORM = re.compile(
    rb"cNc|aN"
    rb"|c?v[eD][pm]z?[vy][aeD]{0,3}(?:rm|e[em])(?:c?a?mc?D?)?c?"
    rb"|c?[pm]z?[vy][ae]{0,2}(?:rm|(?<=a)e[em])(?:c?amc?|cm|mc?)?"
)
_UNIT = re.compile(rb"(?P<norm>" + _UNFUSED_NORM.pattern + rb")|Q(?:DQ)+|.", re.S)
_UNIT_WITH_CAST = re.compile(rb"(?P<norm>(?:" + _UNFUSED_NORM.pattern + rb")c)|Q(?:DQ)+|.", re.S)
# Norms with nothing heavy between them, and the residual sums that touch them; what leaves a
# projection can be scaled before it is added. A norm with the sum in it needs none before it. An
# activation and a product before a norm, with no product before them, make what it is modulated by.
_CLUSTER = re.compile(
    rb"(?:(?:(?<=[Gg])mm?D+|(?<!m)Dc{1,3}|D+)(?:AG)?(?=[NU])|(?<=[GgM])m(?=B))?"
    rb"[NBFU](?:[^GMRAKS]*(?:AG)?[NBFU])*D*"
)
# Residual streams are weighed and summed before a block: one product makes the weights, activations
# bound them. No product follows before the norm, as it would in an FFN.
_WEIGHING = re.compile(rb"c*[Gg]*[^GMNBFUKS]*A[^GMNBFUKS]*myc*(?=[NBFU])")
_ADDED = re.compile(rb"D(?:AG|c{1,3})?[NU]|[NU]D|[BF]")
_SUM = re.compile(rb"(?<=[GgM])D+\??|(?<=[GgMR][cmX])D+\??")
_REDUCED = re.compile(rb"(?<=[GgM])X|(?<=[GgM]c)X")
_COMPILED = re.compile(rb"(?<=[GgM])y")  # a compiled reduction whose name lists no operator
# The norms of a library never seen. One such kernel between two cores can be anything.
_UNKNOWN = re.compile(rb"(?<=[GgMXm])D+\?|(?<=[GgMX])\?|(?<=MR)\?")
_VAGUE = re.compile(rb"(?<=[GgM])[?e]")
# What parts blocks, the surest first, and how many of it are needed to believe it.
_PARTING = (
    *((_CLUSTER, 1), (_SUM, 2), (_UNKNOWN, 2), (_SUM, 1)),
    *((_REDUCED, 1), (_COMPILED, 1), (_VAGUE, 1)),
)


def label(group: str, part: str) -> int:
    """The byte that stands for a bucket."""
    return _CODE[group, part]


@dataclass(frozen=True)
class Units:
    """A text cut into units: single kernels, and norms or dequantizers made of several."""

    letters: bytes
    start: tuple[int, ...]  # of each unit in the text, and the length of the text at the end

    @cached_property
    def heavy(self) -> tuple[int, ...]:
        """Places of GEMMs and expert kernels."""
        return tuple(i for i, letter in enumerate(self.letters) if letter in _HEAVY)


def cut_units(text: bytes) -> Units:
    """Cut a text of letters into units."""
    letters, start = bytearray(), []
    for match in _unit_pattern(text).finditer(text):
        letters += b"U" if match["norm"] else match.group()[:1]
        start.append(match.start())
    return Units(bytes(letters), (*start, len(text)))


def _unit_pattern(text: bytes) -> re.Pattern[bytes]:
    """A cast that follows every norm belongs to it; one that follows some, to what comes next."""
    ends = [match.end() for match in _UNFUSED_NORM.finditer(text)]
    cast = len(ends) > 1 and all(text[end : end + 1] == b"c" for end in ends)
    return _UNIT_WITH_CAST if cast else _UNIT


@dataclass(frozen=True)
class Cluster:
    """Norms and residual sums that can bound two blocks: units `first` to `last`."""

    first: int
    last: int
    added: bool  # a residual sum is seen at it


def find_clusters(units: Units, *, open_end: bool = False) -> list[Cluster]:
    """The clusters with something heavy before and, unless `open_end`, after them. Where no norm
    is known by its name, the sums that follow a product part the blocks, its all-reduce, what else
    reduces there or a kernel never seen."""
    if not units.heavy:
        return []
    first, last = units.heavy[0], units.heavy[-1]
    for pattern, least in _PARTING:
        found = [
            Cluster(match.start(), match.end() - 1, _ADDED.search(match.group()) is not None)
            for match in pattern.finditer(units.letters)
        ]
        inside = [c for c in found if first < c.first and (open_end or c.last < last)]
        if len(inside) >= least:
            return inside
    return []


Span = tuple[int, int]  # first and last unit


@dataclass(frozen=True)
class Blocks:
    """How units divide. bounds: the clusters that part blocks, of which the last one opens the next
    layer's attention; mixers: blocks that mix tokens without a core of their own."""

    ffns: tuple[Span, ...]
    bounds: tuple[Cluster, ...]
    confidence: float
    mixers: tuple[Span, ...] = ()


def layers_end(blocks: Blocks) -> int:
    """The unit after the last bound and FFN."""
    ends = [cluster.last for cluster in blocks.bounds] + [last for _, last in blocks.ffns]
    return max(ends, default=-1) + 1


def divide(
    units: Units, *, mixes_before: bool = False, mixes_after: bool = False, unfed: bool = False
) -> Blocks:
    """Find the FFN between two cores. `mixes_*`: the one before or after is a scan, whose block has
    activations of its own; `unfed`: no sign of an FFN was found between any two cores."""
    clusters = find_clusters(units)
    bounds = _choose(clusters)
    if not bounds:
        return Blocks((), (), 0.75) if mixes_before or mixes_after else _undivided(units)
    if not mixes_after:
        bounds += _closing_norm(units, clusters, bounds)
    sure = 0.95 if bounds[0].added else 0.85
    middle = _gaps(bounds)
    anchored = [i for i, span in enumerate(middle) if _has(units, span, _ANCHORS)]
    if anchored:
        fed = middle[: _closed(units, middle, anchored[-1]) + 1]
        blocks = _alternate(units, fed) or Blocks((_joined(fed),), (), 0.0)
        return replace(blocks, bounds=bounds[: len(fed) + 1], confidence=sure)
    beside = None if mixes_before else _parallel(units, bounds[0], clusters, unfed=unfed)
    if beside:
        return replace(beside, confidence=sure - 0.1)
    if middle:
        return _unanchored(units, bounds, middle)
    early = None if mixes_after else _before_attention(units, bounds[-1])
    if early:
        return Blocks((early,), bounds, 0.65)
    return Blocks((), bounds, sure - 0.05)


def divide_end(units: Units, *, mixes_before: bool = False) -> Blocks:
    """The same after the last core of a pass: what makes the logits follows the last bound."""
    clusters = find_clusters(units, open_end=True)
    bounds = _choose(clusters)
    if not bounds:
        return _undivided(units)
    middle = _gaps(bounds)
    anchored = [i for i, span in enumerate(middle) if _has(units, span, _ANCHORS)]
    if anchored:
        return _last_layers(units, bounds, middle, anchored)
    beside = None if mixes_before else _parallel(units, bounds[0], clusters)
    if beside:
        return replace(beside, confidence=0.75)
    open_end = (bounds[-1].last + 1, len(units.letters) - 1)
    if _has(units, open_end, _ANCHORS):
        return _to_the_next(units, bounds, clusters, open_end)
    if middle:
        return _unanchored(units, bounds[:2], middle[:1])
    return Blocks((), bounds[:1], 0.65)


def _choose(clusters: Sequence[Cluster]) -> tuple[Cluster, ...]:
    """Where residual sums are seen at all, a cluster without one parts nothing."""
    return tuple(c for c in clusters if c.added) or tuple(clusters)


def _closing_norm(
    units: Units, clusters: Sequence[Cluster], bounds: Sequence[Cluster]
) -> tuple[Cluster, ...]:
    """The norm after an FFN that no known bound closes, where the sum cannot be seen."""
    last = bounds[-1]
    for cluster in clusters:
        if cluster.first > last.last and _has(units, (last.last, cluster.first), _ANCHORS):
            return () if weighed_until(units, last) == cluster.first else (cluster,)
    return ()


def weighed_until(units: Units, bound: Cluster) -> int | None:
    """The norm that opens a block whose input is weighed from several residual streams first, after
    the bound before it; None where it is not."""
    match = _WEIGHING.match(units.letters, bound.last + 1)
    return match.end() if match else None


def _gaps(bounds: Sequence[Cluster]) -> list[Span]:
    """Units between consecutive bounds."""
    return [(a.last + 1, b.first - 1) for a, b in pairwise(bounds)]


def _joined(spans: Sequence[Span]) -> Span:
    return spans[0][0], spans[-1][1]


def _has(units: Units, span: Span, letters: bytes) -> bool:
    return any(letter in letters for letter in units.letters[span[0] : span[1] + 1])


def _closed(units: Units, spans: Sequence[Span], last: int) -> int:
    """The span in which an FFN ends that has its last activation in span `last`: a product follows
    the activation, if need be after a norm."""
    first, end = spans[last]
    letters = units.letters[first : end + 1]
    tail = letters[max(letters.rfind(b"A"), 0) :]
    open_end = tail.startswith(b"A") and not any(letter in _HEAVY for letter in tail)
    return last + 1 if open_end and last + 1 < len(spans) else last


def _undivided(units: Units) -> Blocks:
    """No norm parts anything: projections between two cores of one layer, or nothing known."""
    unsure = _has(units, (0, len(units.letters)), _ANCHORS)
    return Blocks((), (), 0.4 if unsure else 0.75)


def _last_layers(
    units: Units, bounds: tuple[Cluster, ...], middle: Sequence[Span], anchored: Sequence[int]
) -> Blocks:
    """What makes the logits can have an activation too, so only the first block is sure to be the
    layer's, unless those after it show more layers."""
    for last in range(len(middle) - 1, 1, -1):
        blocks = _alternate(units, middle[: last + 1])
        if blocks:
            return replace(blocks, bounds=bounds[: last + 2], confidence=0.7)
    last = _closed(units, middle, anchored[0])
    return Blocks((_joined(middle[: last + 1]),), bounds[: last + 2], 0.8)


def _to_the_next(
    units: Units, bounds: tuple[Cluster, ...], clusters: Sequence[Cluster], open_end: Span
) -> Blocks:
    """An FFN that ends at a norm without a sum, or with the recording."""
    for cluster in clusters:
        span = (open_end[0], cluster.first - 1)
        if cluster.first > open_end[0] and _has(units, span, _ANCHORS):
            return Blocks((span,), (*bounds, cluster), 0.75)
    return Blocks((open_end,), bounds, 0.6)


def shape_of(units: Units, span: Span) -> bytes:
    """What makes one FFN like another: experts, or the order of its products and activations."""
    letters = units.letters[span[0] : span[1] + 1]
    if any(letter in EXPERT_SIGNS for letter in letters):
        return b"experts"
    return bytes(letter for letter in letters if letter in b"GAm")


def _alternate(units: Units, spans: Sequence[Span]) -> Blocks | None:
    """FFN, mixer, FFN and so on: whole layers between two cores, whose mixers have no kernel that
    is known as a core. Only when all FFNs are alike, and no mixer is like them."""
    shapes = [shape_of(units, span) for span in spans]
    runs = [list(run) for _, run in groupby(range(len(spans)), lambda i: shapes[i] == shapes[0])]
    feeds, mixers = runs[::2], runs[1::2]
    if len(runs) % 2 == 0 or not mixers or any(len(run) > 1 for run in feeds):
        return None
    joined = tuple(_joined([spans[i] for i in run]) for run in mixers)
    return Blocks(tuple(spans[run[0]] for run in feeds), (), 0.0, joined)


def early_layers(units: Units, last: int, ffn_shape: bytes) -> Blocks | None:
    """Layers before the first core, up to unit `last`: mixer and FFN in turn, the FFNs of a known
    shape."""
    clusters = [c for c in find_clusters(units, open_end=True) if c.added and c.first <= last]
    norm = next((i for i, letter in enumerate(units.letters) if letter in NORMS), None)
    if not clusters or norm is None:
        return None
    spans = [(norm + 1, clusters[0].first - 1), *_gaps(clusters)]
    if len(spans) % 2 or any(shape_of(units, span) != ffn_shape for span in spans[1::2]):
        return None
    return Blocks(tuple(spans[1::2]), tuple(clusters), 0.7, tuple(spans[::2]))


def _parallel(
    units: Units, bound: Cluster, clusters: Sequence[Cluster], *, unfed: bool = False
) -> Blocks | None:
    """An FFN beside the attention, in the same residual step: after the output projection, which
    is the first GEMM, or what stands before a norm of the FFN's own."""
    heavy = [i for i in units.heavy if i < bound.first]
    anchors = [i for i in range(heavy[0] + 1, bound.first) if units.letters[i] in _ANCHORS]
    if not anchors:
        summed = unfed or units.letters.startswith(b"DD", bound.first)
        return _parallel_unseen(units, bound, clusters, heavy) if summed else None
    expert = any(units.letters[i] in b"MR" for i in anchors)
    if not expert and (len(heavy) < 3 or anchors[0] < heavy[1]):
        return None
    own = [c for c in clusters if c.last < anchors[0]]
    if own:
        return Blocks(((own[0].last + 1, bound.first - 1),), (own[0], bound), 0.0)
    before = [i for i in heavy if i < anchors[0]]
    start = before[-1] if expert and len(before) > 1 else before[0] + 1
    return Blocks(((_past_epilogue(units, start), bound.first - 1),), (bound,), 0.0)


def _parallel_unseen(
    units: Units, bound: Cluster, clusters: Sequence[Cluster], heavy: Sequence[int]
) -> Blocks | None:
    """With no activation to be seen. Attention and FFN are added to the residual in two sums, or
    no layer has an FFN elsewhere."""
    if len(heavy) < 3:
        return None
    own = [c for c in clusters if c.last < heavy[1]]
    start = own[0].last + 1 if own else _past_epilogue(units, heavy[0] + 1)
    return Blocks(((start, bound.first - 1),), (*own[:1], bound), 0.0)


def _past_epilogue(units: Units, start: int) -> int:
    while start < len(units.letters) and units.letters[start] in b"g":
        start += 1
    return start


def _unanchored(units: Units, bounds: tuple[Cluster, ...], middle: Sequence[Span]) -> Blocks:
    """No activation is seen: it is fused into a GEMM, or into experts of an unknown name. One GEMM
    alone is a mixer's projection."""
    last = len(middle) - 1 if bounds[0].added else int(_two_halves(units, bounds, middle))
    span = _joined(middle[: last + 1])
    if sum(letter in b"GM?" for letter in units.letters[span[0] : span[1] + 1]) < 2:
        return Blocks((), bounds, 0.6)
    return Blocks((span,), bounds[: last + 2], 0.75)


def _two_halves(units: Units, bounds: Sequence[Cluster], middle: Sequence[Span]) -> bool:
    """Whether the second of three kernels never seen is an activation: one product on each side."""
    unknown = all(units.letters[c.first : c.last + 1] == b"?" for c in bounds[:3])
    counts = [sum(a <= i <= b for i in units.heavy) for a, b in middle[:2]]
    return unknown and counts == [1, 1]


def _before_attention(units: Units, bound: Cluster) -> Span | None:
    """An FFN that runs before the attention it stands beside: to the GEMM after its activation."""
    after = [i for i in units.heavy if i > bound.last]
    anchors = [i for i in range(bound.last, len(units.letters)) if units.letters[i] in _ANCHORS]
    if not anchors or anchors[0] < after[0]:
        return None
    closing = [i for i in after if i > anchors[-1]]
    if not closing:
        return bound.last + 1, len(units.letters) - 1
    return (bound.last + 1, _past_epilogue(units, closing[0] + 1) - 1) if closing[1:] else None
