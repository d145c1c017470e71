"""What a rank did before it arrived: its idle by cause, its work by part, its longest blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers.facts.calls import MAKES_INPUT
from tracer.analyzers.facts.host import HOST_KINDS
from tracer.analyzers.facts.modules import split_range_name
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.facts.samples import Samples
from tracer.analyzers.gaps import CAUSES, PAUSES
from tracer.analyzers.intervals import NONE, Longs, covered, union
from tracer.analyzers.names.kernel_table import describe
from tracer.findings import Where
from tracer.rank_analysis import IN_LOADER, Block, Doings, Interval

_MOST_BLOCKS = 8
# Of a host alone more, by the operators around them: most of them the other rank has as well.
_MOST_PAUSES = 32
# Pieces of one kind that are looked at.
_MOST_ALIKE = 4096
_MODULE = "module::"


def describe_doings(
    analysis: Analysis, intervals: Sequence[Interval], places: Places | None = None
) -> Doings:
    """How these intervals were spent. Parts are charged time, so that they add up to what of the
    intervals lies in the window; blocks are whole, also where they began before an interval."""
    starts, ends = union(
        np.array([interval.start_ns for interval in intervals], dtype=np.int64),
        np.array([interval.end_ns for interval in intervals], dtype=np.int64),
    )
    slices = analysis.slices
    inside = covered(slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy(), starts, ends)
    length = (slices["end_ns"] - slices["start_ns"]).to_numpy()
    charged = slices["charged_ns"].to_numpy() * inside // np.maximum(length, 1)
    parts = np.zeros(len(BUCKETS), dtype=np.int64)
    np.add.at(parts, slices["bucket"].to_numpy(), charged)
    named = {".".join(BUCKETS[code]): int(ns) for code, ns in enumerate(parts.tolist()) if ns}
    return Doings(
        int((ends - starts).sum()),
        named,
        _longest(
            _idle_blocks(analysis, starts, ends, places),
            _work_blocks(analysis, inside),
            alone=analysis.cpu_only,
        ),
    )


def _longest(*kinds: Sequence[Block], alone: bool) -> tuple[Block, ...]:
    """The longest blocks of each kind, together by length."""

    def by_length(blocks: Sequence[Block]) -> list[Block]:
        return sorted(blocks, key=lambda block: (-block.ns, block.what, block.name))

    most = _MOST_PAUSES if alone else _MOST_BLOCKS
    return tuple(by_length([b for blocks in kinds for b in by_length(blocks)[:most]]))


def _idle_blocks(
    analysis: Analysis, starts: Longs, ends: Longs, places: Places | None
) -> list[Block]:
    """The longest single pieces of idle that reach into the intervals, those alike as one; of a
    host alone those that take most together."""
    gaps = _joined_gaps(analysis)
    begin, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    inside = np.flatnonzero(covered(begin, end, starts, ends) > 0)
    length = end - begin
    kind, kinds = _kinds(analysis, gaps.iloc[inside])
    alike = _usual_pauses if analysis.cpu_only else _about_as_long
    rows, kind = alike(inside, length, kind)
    seen = _sampled(analysis, begin[rows], end[rows], kind)
    groups: dict[tuple[int, str], list[int]] = {}
    for row, code, event, sample in zip(
        rows.tolist(), kind.tolist(), gaps["event"].to_numpy()[rows].tolist(), seen, strict=True
    ):
        place = _place(places, event) or _words_of(sample)
        groups.setdefault((code, place), []).append(int(length[row]))
    return [
        Block(*kinds[code], max(lengths), len(lengths), place)
        for (code, place), lengths in groups.items()
    ]


def _kinds(analysis: Analysis, gaps: pd.DataFrame) -> tuple[Longs, list[tuple[str, str]]]:
    """Pieces are of one kind by their cause and what the host was in, layers folded, or, of a host
    alone, between which operators it was: the kind of each, and those that there are."""
    causes = gaps["cause"].astype(str).tolist()
    words = _between_words(analysis, gaps) if analysis.cpu_only else _event_words(analysis, gaps)
    numbers: dict[tuple[str, str], int] = {}
    kind = [
        numbers.setdefault((f"overhead.{cause}", text), len(numbers))
        for cause, text in zip(causes, words, strict=True)
    ]
    return np.array(kind, dtype=np.int64), list(numbers)


def _event_words(analysis: Analysis, gaps: pd.DataFrame) -> list[str]:
    """What the host was in."""
    names = analysis.trace.name_codes[np.maximum(gaps["event"].to_numpy(), 0)]
    named = np.where(gaps["event"].to_numpy() == NONE, NONE, names).tolist()
    words = {code: _range_words(analysis, code) for code in set(named)}
    return [words[code] for code in named]


def _between_words(analysis: Analysis, gaps: pd.DataFrame) -> list[str]:
    """The operators around each piece, and whether a loader has the host meanwhile."""
    trace, event = analysis.trace, analysis.work["event"].to_numpy()
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    rows = np.flatnonzero(trace.named(MAKES_INPUT.match, *HOST_KINDS))
    fetches = union(trace.start_ns[rows], trace.end_ns[rows])
    fetching = 2 * covered(start, end, *fetches) > end - start
    sides = [
        ["" if row == NONE else str(trace.names[trace.name_codes[event[row]]]) for row in column]
        for column in (gaps["before"].tolist(), gaps["after"].tolist())
    ]
    return [
        IN_LOADER * bool(fetched) + (f"between {last} and {first}" if last and first else "")
        for fetched, last, first in zip(fetching.tolist(), *sides, strict=True)
    ]


def _range_words(analysis: Analysis, name: int) -> str:
    """The name of a host event, of a module its path, layers folded."""
    text = "" if name == NONE else str(analysis.trace.names[name])
    if not text.startswith(_MODULE):
        return text
    path, of_class = split_range_name(text)
    return folded(path) or of_class


def _about_as_long(rows: Longs, length: Longs, kind: Longs) -> tuple[Longs, Longs]:
    """Of the kinds that have the longest pieces those at least half as long as their longest, the
    longest first, and the kind of each."""
    order = np.argsort(-length[rows], kind="stable")
    rows, kind = rows[order], kind[order]
    longest = dict.fromkeys(kind.tolist())
    kept = [
        np.flatnonzero((kind == code) & (2 * length[rows] >= length[rows[kind == code][0]]))
        for code in list(longest)[:_MOST_BLOCKS]
    ]
    chosen = np.sort(np.concatenate([k[:_MOST_ALIKE] for k in kept])) if kept else kind[:0]
    return rows[chosen], kind[chosen]


def _usual_pauses(rows: Longs, length: Longs, kind: Longs) -> tuple[Longs, Longs]:
    """Of the kinds that take most together the pieces about as long as most of their kind: one that
    lost its processor tells nothing. The kind of each."""
    if not rows.size:
        return rows, kind
    largest = np.argsort(-np.bincount(kind, weights=length[rows]), kind="stable")[:_MOST_PAUSES]
    usual = np.zeros(int(kind.max()) + 1)
    for code in largest.tolist():
        usual[code] = np.median(length[rows[kind == code]])
    times = length[rows] / np.maximum(usual[kind], 1.0)
    kept = np.isin(kind, largest) & (times >= 0.5) & (times <= 2.0)
    return rows[kept], kind[kept]


def _sampled(analysis: Analysis, begin: Longs, end: Longs, alike: Longs) -> list[Where]:
    """What samples of the stacks saw in these pieces of idle, or in most of those alike."""
    gaps = analysis.gaps[analysis.gaps["cause"].isin([CAUSES[code] for code in PAUSES])]
    samples = Samples(analysis.trace, gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy())
    order = np.argsort(begin, kind="stable")
    seen = samples.explain(begin[order], end[order], alike[order])
    out = [Where()] * order.size
    for at, place in zip(order.tolist(), seen, strict=True):
        out[at] = Where() if place is None else place.where
    return out


def _place(places: Places | None, event: int) -> str:
    """File, line and function of a host event, as far as they are recorded."""
    return "" if places is None or event == NONE else _words_of(places.of(event))


def _words_of(where: Where) -> str:
    line = f":{where.line}" if where.line is not None else ""
    return f"{where.file}{line} {where.function or ''}".strip() if where.file else ""


def _joined_gaps(analysis: Analysis) -> pd.DataFrame:
    """Pieces of idle that follow each other with one cause, as one, with the event of the longest:
    what the host is in may change between, or a step begin."""
    gaps = analysis.gaps
    if not len(gaps):
        return gaps
    device, cause = gaps["device"].to_numpy(), gaps["cause"].cat.codes.to_numpy()
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    new = np.ones(len(gaps), dtype=bool)
    new[1:] = (start[1:] != end[:-1]) | (device[1:] != device[:-1]) | (cause[1:] != cause[:-1])
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:] - 1, [len(gaps) - 1]])
    by_length = np.lexsort((start - end, np.cumsum(new)))
    joined = gaps.iloc[first].copy()
    joined["end_ns"] = end[last]
    joined["event"] = gaps["event"].to_numpy()[by_length[first]]
    return joined


def _work_blocks(analysis: Analysis, inside: Longs) -> list[Block]:
    """Work in the intervals, summed by name and part; collectives are what it waits in."""
    slices = analysis.slices
    work, bucket = slices["work"].to_numpy(), slices["bucket"].to_numpy()
    rows = np.flatnonzero((inside > 0) & (work != NONE))
    rows = rows[[BUCKETS[code][0] != "communication" for code in bucket[rows].tolist()]]
    if not rows.size:
        return []
    name = analysis.trace.name_codes[analysis.work["event"].to_numpy()[work[rows]]]
    keys = np.stack([name.astype(np.int64), bucket[rows].astype(np.int64)])
    distinct, of = np.unique(keys, axis=1, return_inverse=True)
    spent, calls = np.zeros(distinct.shape[1], np.int64), np.zeros(distinct.shape[1], np.int64)
    np.add.at(spent, of.reshape(-1), inside[rows])
    pairs = np.unique(np.stack([of.reshape(-1), work[rows]]), axis=1)
    np.add.at(calls, pairs[0], 1)
    return [
        Block(".".join(BUCKETS[code]), describe(analysis.trace.names[text]).short, ns, count)
        for (text, code), ns, count in zip(
            distinct.T.tolist(), spent.tolist(), calls.tolist(), strict=True
        )
    ]


def excess(late: Doings, other: Doings | None) -> Mapping[str, int]:
    """By how much each part took the late rank longer, the largest first."""
    beside = other.parts_ns if other is not None else {}
    parts = {part: ns - beside.get(part, 0) for part, ns in late.parts_ns.items()}
    longer = {part: ns for part, ns in parts.items() if ns > 0 and not part.startswith("comm")}
    return dict(sorted(longer.items(), key=lambda item: -item[1]))
