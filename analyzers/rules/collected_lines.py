"""The line of the program in which Python's garbage collector runs for most of its time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd

from tracer.analyzers.facts.samples import Samples
from tracer.analyzers.intervals import Longs, covered, union
from tracer.findings import Finding, Where

_MOST = 0.5
# No other thread runs while it collects: one that is to look does so as soon as it is done, or the
# call behind it, as long as that is nothing beside the collection.
_SOON_NS = 20_000_000


def with_collected_line(
    finding: Finding, collections: pd.DataFrame, samples: Samples, starts: Longs, ends: Longs
) -> Finding:
    """The finding with the place in which most of the time of the collections in these pauses lies:
    what makes so many objects there, or asks for it, is the cause."""
    begin, end = union(*(collections[f"{edge}_ns"].to_numpy() for edge in ("start", "end")))
    inside = covered(begin, end, *union(starts, ends)) > 0
    begin, end = begin[inside], end[inside]
    until = np.minimum(end + np.minimum(end - begin, _SOON_NS), samples.next_look(end) + 1)
    until = np.minimum(until, np.append(begin[1:], until[-1:]))
    where = _most(samples, begin, until, end - begin)
    if where is None or where.function is None:
        return finding
    at = f"{where.file}:{where.line}"
    call = samples.called(begin, until, where)
    if call is not None and call.name == "gc.collect":
        told, advice = f"which {where.function} asks for", f"{at} calls gc.collect(): less often."
    else:
        told = f"while {where.function} makes many objects"
        advice = f"{at} makes many objects: make them once and keep them. {finding.advice}"
    title = f"{finding.title}, most of it {told}"
    return replace(finding, title=title, advice=advice, where=where)


def _most(samples: Samples, begin: Longs, until: Longs, length_ns: Longs) -> Where | None:
    """Where samples saw the threads in most of the time of these collections; None where no one
    function has so much of it."""
    spent: Counter[tuple[str | None, str | None]] = Counter()
    places: dict[tuple[str | None, str | None], Where] = {}
    each = np.arange(begin.size, dtype=np.int64)
    seen = samples.explain(begin, until, each)
    for place, length in zip(seen, length_ns.tolist(), strict=True):
        if place is not None and not samples.waits(begin, until, place.where):
            key = place.where.file, place.where.function
            spent[key] += length
            places[key] = place.where
    for key, most in spent.most_common(1):
        if most > _MOST * int(length_ns.sum()):
            return places[key]
    return None
