"""Many ranks as one self-contained page: a bar for each rank, then the report as text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tracer.exporters.format import duration_text
from tracer.exporters.html_style import CSS, POLICY
from tracer.exporters.names import inert
from tracer.exporters.ranks_text import render_ranks
from tracer.rank_analysis import RankAnalysis, RankResult

_MOST_BARS = 256
_WIDTH, _HEIGHT, _LABEL = 1000, 16, 90
_PARTS = (("other", "work"), ("communication", "on the wire"), ("overhead", "waiting, idle"))


def ranks_page(analysis: RankAnalysis) -> str:
    """The page."""
    body = escape(inert_lines(render_ranks(analysis, width=120, ascii=False)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{POLICY}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>tracer: {len(analysis.ranks)} ranks</title><style>{CSS}</style></head>"
        f'<body class="tracer-report">{_bars(analysis)}<pre>{body}</pre></body></html>\n'
    )


def inert_lines(text: str) -> str:
    """The text line by line without what could act on a reader."""
    return "\n".join(map(inert, text.split("\n")))


def _bars(analysis: RankAnalysis) -> str:
    """Where the window of each rank went, on one scale."""
    ranks = [rank for rank in analysis.ranks if rank.summary.busy_ns is not None][:_MOST_BARS]
    longest = max((rank.summary.capacity_ns for rank in ranks), default=0)
    if not longest:
        return ""
    rows = "".join(_bar(rank, place, longest) for place, rank in enumerate(ranks))
    keys = "".join(
        f'<svg class="key" viewBox="0 0 1 1"><rect class="g-{group}" width="1" height="1"/></svg>'
        f"{name}"
        for group, name in _PARTS
    )
    height = len(ranks) * _HEIGHT
    return (
        f"<h2>Where the time of each rank went</h2><svg viewBox='0 0 {_WIDTH} {height}' "
        f"role='img' aria-label='time of each rank'>{rows}</svg><p class='dim'>{keys}</p>"
    )


def _bar(rank: RankResult, place: int, longest: int) -> str:
    left: float = _LABEL
    drawn: list[str] = []
    for (group, name), ns in zip(_PARTS, _times(rank), strict=True):
        width = (_WIDTH - _LABEL) * ns / longest
        drawn.append(
            f'<rect class="g-{group}" x="{left:.1f}" y="{place * _HEIGHT + 2}" '
            f'width="{width:.1f}" height="{_HEIGHT - 4}">'
            f"<title>rank {rank.summary.rank}: {name} {duration_text(ns)}</title></rect>"
        )
        left += width
    label = f'<text x="4" y="{place * _HEIGHT + 12}">rank {rank.summary.rank}</text>'
    return label + "".join(drawn)


def _times(rank: RankResult) -> Sequence[int]:
    """Work, communication on the wire, and time with nothing to do, which waiting is too."""
    summary = rank.summary
    busy, exposed = summary.busy_ns or 0, summary.exposed_ns or 0
    wire = max(exposed - rank.exposed_wait_ns, 0)
    work = max(busy - exposed, 0)
    return work, wire, max(summary.capacity_ns - work - wire, 0)
