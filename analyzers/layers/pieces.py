"""Pieces of a launch sequence with the group and part of each kernel: from core to core, and where
a pass through the model begins and ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracer.analyzers.layers.blocks import (
    LEFT,
    NORMS,
    Blocks,
    Cluster,
    Span,
    Units,
    cut_units,
    divide,
    divide_end,
    early_layers,
    label,
    layers_end,
    shape_of,
)
from tracer.analyzers.layers.labels import (
    Painter,
    paint_blocks,
    paint_interval,
    paint_layer_end,
    paint_model_begin,
    paint_model_end,
    paint_table,
)

_SURE_ENOUGH = 0.7
_LIKE_A_LAYER = 4  # kernels after a layer's end that repeat the next layer's first
_CORE = label("attention", "core")
_AROUND_CORE = {
    ord("S"): label("attention", "mixer"),
    ord("s"): label("attention", "mixer"),
    ord("o"): label("attention", "rope"),
    ord("w"): label("attention", "kv_cache"),
}


@dataclass(frozen=True)
class Painted:
    """An understood piece. kinds: the layers that end in it; opens: a pass through the model begins
    in it; repeats: it is one of several alike."""

    labels: bytes
    confidence: float
    kinds: tuple[str, ...] = ()
    opens: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Template:
    """A piece between two cores that shows how the others go. end: the kernel after what bounds its
    last block; begin: the first kernel of the norm that opens the next attention."""

    text: bytes
    before: str
    after: str
    painted: Painted
    end: int
    begin: int
    projections: int  # GEMMs from there to the next core
    ffn_shape: bytes  # of its first FFN


def make_template(
    text: bytes, before: str, after: str, count: int, *, unfed: bool = False
) -> Template | None:
    """The template that a piece is, when norms part its blocks for sure. `unfed`: the others show
    no FFN."""
    units = cut_units(text)
    mixes = {"mixes_before": before == "mixer", "mixes_after": after == "mixer"}
    blocks = divide(units, **mixes, unfed=unfed)
    if not blocks.bounds or blocks.confidence < _SURE_ENOUGH:
        return None
    bound = blocks.bounds[-1]
    norm = _opening_norm(units, bound)
    painted = replace(_paint_whole(units, blocks, before, after), repeats=count > 1)
    return Template(
        text,
        before,
        after,
        painted,
        units.start[bound.last + 1],
        units.start[norm],
        sum(place > bound.last for place in units.heavy),
        shape_of(units, blocks.ffns[0]) if blocks.ffns else b"",
    )


def _opening_norm(units: Units, bound: Cluster) -> int:
    """The norm before a block's first GEMM; where sums come last there is none."""
    last = bound.last
    return last if units.letters[last] in NORMS else last + 1


def _paint_whole(units: Units, blocks: Blocks, before: str, after: str) -> Painted:
    labels = paint_interval(
        units, blocks, mixer_before=before == "mixer", mixer_after=after == "mixer"
    )
    return Painted(labels, blocks.confidence, _kinds(before, units, blocks))


def _kinds(core: str, units: Units, blocks: Blocks) -> tuple[str, ...]:
    """The layer whose core came before, and those without a core of their own."""
    feeds = [_feed(units, span) for span in blocks.ffns] or [""]
    return (core + feeds[0], *("mixer" + feed for feed in feeds[1:]))


def _feed(units: Units, span: Span) -> str:
    return "+moe" if shape_of(units, span) == b"experts" else "+ffn"


def paint_core(text: bytes) -> Painted:
    """An attention core or a scan, and what lies within it."""
    rest = _AROUND_CORE[ord("S")] if b"S" in text else _CORE
    return Painted(bytes(_AROUND_CORE.get(letter, rest) for letter in text), 0.95)


def paint_between(text: bytes, before: str, after: str, templates: Sequence[Template]) -> Painted:
    """A piece from core to core within one pass. Where its own structure leaves doubt, what it
    shares with the ends of a repeated piece decides."""
    for template in templates:
        if (template.text, template.before, template.after) == (text, before, after):
            return template.painted
    units = cut_units(text)
    blocks = divide(units, mixes_before=before == "mixer", mixes_after=after == "mixer")
    own = _paint_whole(units, blocks, before, after)
    if blocks.bounds and blocks.confidence >= _SURE_ENOUGH:
        return replace(own, confidence=min(own.confidence, 0.8))
    return _by_shared_ends(own, text, before, after, templates)


def _by_shared_ends(
    own: Painted, text: bytes, before: str, after: str, templates: Sequence[Template]
) -> Painted:
    fitting = [t for t in templates if t.before == before and t.after == after]
    if not fitting:
        return own
    best = max(fitting, key=lambda t: common_prefix(text, t.text) + common_suffix(text, t.text))
    head, tail = common_prefix(text, best.text), common_suffix(text, best.text)
    if head + tail < len(text) // 2:
        return own
    head = min(head, len(text) - tail)
    marks = best.painted.labels
    middle = bytes([LEFT]) * (len(text) - head - tail)
    if own.confidence >= _SURE_ENOUGH and not any(
        letter in b"GM" for letter in text[head:][: len(middle)]
    ):
        middle = own.labels[head : head + len(middle)]  # small work is of the block around it
    return Painted(marks[:head] + middle + marks[len(marks) - tail :], 0.7, best.painted.kinds)


def common_prefix(a: bytes, b: bytes) -> int:
    """How many letters two texts begin with in common."""
    same, most = 0, min(len(a), len(b))
    while same < most:
        half = (same + most + 1) // 2
        same, most = (half, most) if a[:half] == b[:half] else (same, half - 1)
    return same


def common_suffix(a: bytes, b: bytes) -> int:
    """How many they end with."""
    return common_prefix(a[::-1], b[::-1])


def paint_end(text: bytes, before: str, templates: Sequence[Template]) -> Painted:
    """After the last core of a pass: the end of its layer, then what makes logits and tokens."""
    fitting = [t for t in templates if t.before == before]
    cut = [t for t in fitting if t.text.startswith(text)]
    if any(_goes_on(text, t) for t in cut):
        return _cut_like(text, cut)
    whole = [t for t in fitting if text.startswith(t.text[: t.end])]
    units = cut_units(text)
    if whole:
        best = max(whole, key=lambda t: t.end)
        if best.ffn_shape or not _fed_otherwise(fitting, text[best.end :]):
            return _end_like(units, best, best.end)
    if cut:
        return _cut_like(text, cut)
    unnormed = [t for t in fitting if t.ffn_shape and text.startswith(t.text[: t.begin])]
    if unnormed and not whole:
        best = max(unnormed, key=lambda t: t.begin)
        return _end_like(units, best, best.begin)
    blocks = divide_end(units, mixes_before=before == "mixer")
    painter = Painter(units)
    paint_layer_end(painter, blocks, mixer=before == "mixer")
    if blocks.bounds:
        paint_model_end(painter, layers_end(blocks))
    return Painted(painter.kernels(), blocks.confidence, _kinds(before, units, blocks))


def _goes_on(text: bytes, template: Template) -> bool:
    """The recording was cut in the next layer: what makes logits is one product, not this."""
    rest = text[template.end :]
    return len(rest) >= _LIKE_A_LAYER or sum(rest.count(heavy) for heavy in (b"G", b"M")) > 1


def _cut_like(text: bytes, cut: Sequence[Template]) -> Painted:
    return Painted(cut[0].painted.labels[: len(text)], 0.85, cut[0].painted.kinds)


def _fed_otherwise(fitting: Sequence[Template], rest: bytes) -> bool:
    """An FFN may follow: others after such a core have one, and activations come."""
    return any(t.ffn_shape for t in fitting) and any(letter in b"AMR" for letter in rest)


def _end_like(units: Units, template: Template, end: int) -> Painted:
    """The template's layer up to a kernel, and then the end of the model."""
    painter = Painter(units)
    first = next((i for i, s in enumerate(units.start) if s >= end), len(units.letters))
    paint_model_end(painter, first)
    labels = template.painted.labels[:end] + painter.kernels()[end:]
    return Painted(labels, 0.92, template.painted.kinds, repeats=True)


def paint_begin(text: bytes, after: str, templates: Sequence[Template]) -> Painted:
    """Before the first core of a pass: embedding, rotary table, the first layer's projections."""
    fitting = [t for t in templates if t.after == after]
    like = [t for t in fitting if text.endswith(t.text[t.begin :])]
    best = max(like, key=lambda t: len(t.text) - t.begin, default=None)
    inside = best or next((t for t in fitting if t.text.endswith(text)), None)
    if inside:
        shared = common_suffix(text, inside.text)
        own = min(len(inside.text) - inside.begin, len(text))
        if (shared > own or shared == len(text)) and b"E" not in text[: len(text) - own]:
            return _begin_inside(text, inside, shared)
    units = cut_units(text)
    if best:
        opening = len(text) - (len(best.text) - best.begin)
        start = next(i for i, place in enumerate(units.start) if place >= opening)
        return _begin_at(units, start, after, best, 0.92)
    return _begin_alone(units, after, fitting)


def _begin_inside(text: bytes, template: Template, shared: int) -> Painted:
    """The recording begins inside a layer like the template's; or the pass before it, where a
    rotary table comes first."""
    marks = template.painted.labels[len(template.text) - shared :]
    return Painted(paint_table(text[: len(text) - shared]) + marks, 0.85, opens=True)


# The norm that opens the first block; what weighs residual streams for it can come before.
_FIRST_BOUND = re.compile(rb"[Gg]*[NBFU]?D*$")


def _begin_at(
    units: Units, start: int, after: str, template: Template | None, confidence: float
) -> Painted:
    """The norm at unit `start` opens the attention of the first core."""
    painter = Painter(units)
    layers = early_layers(units, start, template.ffn_shape) if template else None
    kinds: tuple[str, ...] = ()
    if layers:
        paint_blocks(painter, layers, mixer=True)
        kinds = tuple("mixer" + _feed(units, span) for span in layers.ffns)
        confidence = min(confidence, layers.confidence)
        paint_model_begin(painter, layers.mixers[0][0] - 1)
    else:
        paint_model_begin(painter, start)
    opened = start if units.letters[start] in NORMS else start - 1
    painter.before_core(opened + 1, len(units.letters) - 1, mixer=after == "mixer")
    bound = _FIRST_BOUND.search(units.letters, 0, opened + 1)
    painter.weighing(Cluster(bound.start() if bound else opened, opened, added=False))
    return Painted(painter.kernels(), confidence, kinds, opens=True)


def _begin_alone(units: Units, after: str, fitting: Sequence[Template]) -> Painted:
    """The norm before as many GEMMs as other layers have there begins the attention."""
    usual = fitting[0].projections if fitting else len(units.heavy)
    first = units.heavy[-usual] if 0 < usual <= len(units.heavy) else 0
    norms = [i for i, letter in enumerate(units.letters) if letter in NORMS]
    before = [i for i in norms if i < first] or norms[:1]
    template = fitting[0] if fitting else None
    if before:
        return _begin_at(units, before[-1], after, template, 0.7)
    gather = units.letters.rfind(b"E")
    return _begin_at(units, max(gather + 1, first), after, template, 0.6)


def paint_cut_begin(text: bytes, templates: Sequence[Template]) -> Painted:
    """A pass that the end of the recording cut before its first core."""
    units = cut_units(text)
    norms = [i for i, letter in enumerate(units.letters) if letter in NORMS]
    last = norms[-1] if norms else len(units.letters) - 1
    painter = Painter(units)
    paint_model_begin(painter, last)
    rest = text[units.start[last] :]
    if any(t.text[t.begin :].startswith(rest) for t in templates):
        painter.before_core(last + 1, len(units.letters) - 1, mixer=False)
    return Painted(painter.kernels(), 0.75)
