"""The report for a terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tracer.analysis import Analysis
from tracer.exporters.layout import Page, paragraph
from tracer.exporters.names import ascii_only
from tracer.exporters.sentence import verdict
from tracer.exporters.text_findings import check_lines, finding_lines, note_lines, source_lines
from tracer.exporters.text_index import index_lines, job_lines, place_names
from tracer.exporters.text_tables import (
    collective_lines,
    kernel_lines,
    module_lines,
    roofline_lines,
)
from tracer.exporters.text_times import breakdown_lines, phase_lines, step_lines
from tracer.rank_analysis import JobAmong

DEFAULT_WIDTH = 100
_NARROWEST = 80
_WIDEST = 160
_SECTIONS = (
    phase_lines,
    breakdown_lines,
    step_lines,
    module_lines,
    kernel_lines,
    roofline_lines,
    collective_lines,
    finding_lines,
    check_lines,
    note_lines,
)


def render_text(
    analysis: Analysis,
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool | None = None,
) -> str:
    """The report as text. `width`: cells of a line, None for the terminal's; `ascii`: None for
    what the standard output can show."""
    page = page_of(width, ascii)
    lines = paragraph(page, _answer(analysis), style="bold")
    lines += source_lines(page, analysis)
    for section in _SECTIONS:
        made = section(page, analysis)
        if made:
            lines += [Text(), *made]
    return shown(page, lines, color)


def _answer(analysis: Analysis) -> str:
    return f"{_rank_words(analysis)}{verdict(analysis)}"


def _rank_words(analysis: Analysis) -> str:
    """Whose report it is, where every rank of a run prints one."""
    meta = analysis.trace.meta
    several = meta.rank is not None and (meta.world_size or 1) > 1
    return f"Rank {meta.rank} of {meta.world_size}: " if several else ""


def render_texts(
    analyses: Sequence[Analysis],
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool | None = None,
    jobs: Sequence[JobAmong] = (),
) -> str:
    """Reports of several recordings, one under the other below an index of them. `jobs`: which of
    them are ranks of one job."""
    texts = [render_text(a, width=width, color=color, ascii=ascii) for a in analyses]
    if len(texts) == 1:
        return texts[0]
    page = page_of(width, ascii)
    _, names = place_names(analyses)
    titles = [f"{n} of {len(names)}: {page.name(name)}" for n, name in enumerate(names, 1)]
    lines = [*job_lines(page, jobs), *index_lines(page, analyses, list(map(_answer, analyses)))]
    index = shown(page, lines, color)
    parts = (
        f"\n{rule_line(page, title)}\n{text}" for title, text in zip(titles, texts, strict=True)
    )
    return index + "".join(parts)


def rule_line(page: Page, title: str) -> str:
    """A title as a line across the page."""
    sign = "=" if page.ascii else "═"
    begun = f"{sign * 2} {title} "
    return begun + sign * max(page.width - cell_len(begun), 0)


def terminal_width() -> int:
    """Cells of a line of the terminal; a usual width when the output is none."""
    usual = (DEFAULT_WIDTH, 24)
    if os.environ.get("COLUMNS") or sys.stdout.isatty():
        return shutil.get_terminal_size(usual).columns
    return DEFAULT_WIDTH


def shows_ascii_alone() -> bool:
    """Whether the standard output can show nothing but ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return not encoding.lower().replace("-", "").startswith("utf")


def page_of(width: int | None, ascii: bool | None) -> Page:
    """The page for a width and what the terminal can show."""
    cells = terminal_width() if width is None else width
    return Page(
        width=min(max(cells, _NARROWEST), _WIDEST),
        ascii=shows_ascii_alone() if ascii is None else ascii,
        light=os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15"),
    )


def shown(page: Page, lines: Sequence[Text], color: bool) -> str:
    """The lines as one string."""
    if not color:
        text = "\n".join(line.plain.rstrip() for line in lines) + "\n"
    else:
        text = _colored(page, lines)
    return ascii_only(text) if page.ascii else text


def _colored(page: Page, lines: Sequence[Text]) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=page.width,
        color_system="256",
        force_terminal=True,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)
    return out.getvalue()
