"""Work that makes wide numbers of narrow ones, by the types of its operators."""

from __future__ import annotations

import re
from functools import partial
from math import prod

import numpy as np

from tracer.analyzers.facts.arguments import Arguments
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take

_NARROW = re.compile(r"signed char|unsigned char|[Ff]loat8|c10::Float8|int8|uint8|Byte|Char")
_WIDE = re.compile(r"BFloat16|Half|float$|double$")
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
_ARITHMETIC = ("aten::mul", "aten::mul_", "aten::sub", "aten::add", "aten::div")


def widened_elements(work: Work) -> Longs:
    """How many numbers of 8 bits each piece of work makes wide ones of; 0 for all other work."""
    out = np.zeros(work.event.size, dtype=np.int64)
    arguments = Arguments(work.trace)
    named = (*_COPIES, *_ARITHMETIC)
    events = np.flatnonzero(work.trace.named(lambda name: name in named, "operator"))
    at = arguments.rows(events)
    elements = np.zeros(len(work.trace.events), dtype=np.int64)
    for narrow, names in ((1, named), (0, _ARITHMETIC)):
        fits = arguments.passing(partial(_is_narrow, narrow), at)
        fits &= work.trace.named(names.__contains__, "operator")[events]
        elements[events[fits]] = [prod(arguments.shapes(row)[narrow]) for row in at[fits].tolist()]
    own = work.operator != NONE
    out[own] = elements[work.operator[own]]
    if work.cpu_only:  # an operator that is taken as a whole holds the copy that it makes
        inner = np.flatnonzero(elements)
        holder = take(_leaf_around(work), inner)
        np.maximum.at(out, holder[holder != NONE], elements[inner[holder != NONE]])
    return out


def _leaf_around(work: Work) -> Longs:
    """For each event the piece of work that holds it; -1 for none."""
    mine = np.zeros(len(work.trace.events), dtype=bool)
    mine[work.event] = True
    place = np.full(mine.size, NONE, dtype=np.int64)
    place[work.event] = np.arange(work.event.size)
    return take(place, work.host.nearest(mine))


def is_wide(kind: str) -> bool:
    """Whether a type is one that products are computed in."""
    return bool(_WIDE.search(kind))


def _is_narrow(narrow: int, types: tuple[str, ...]) -> bool:
    """Whether this one of the first two operands is narrow and the other wide:
    `copy_(target, source)`, `mul(a, b)`."""
    if len(types) < 2:
        return False
    return bool(_NARROW.search(types[narrow])) and is_wide(types[1 - narrow])
