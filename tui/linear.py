"""The explorer without a screen: one part after another as plain lines, asked for by name.

For screen readers, and for terminals that cannot move a cursor (TERM=dumb).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tracer.tui.look import Look
from tracer.tui.session import Comparison, Recording, Session, Source

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.tui.model.table import Table

Part = Callable[["Analysis", Look, int], Iterator[str]]
_MOST_ROWS = 40
_HELP = "1 overview, 2 steps, 3 modules, 4 kernels, 5 findings, 6 checks, q quit"


def tell(
    sources: Sequence[Source],
    ascii: bool | None = None,
    compare: Callable[[Session], Comparison | None] | None = None,
) -> int:
    """Print the answer of several ranks, the overview of each recording, then whatever part is
    asked for."""
    import os

    from tracer.tui.terminal import look_for

    look = look_for({**os.environ, "NO_COLOR": "1"}, ascii)
    analyses = [source.read(lambda stage, done, total: None) for source in sources]
    if compare is not None and len(sources) > 1:
        read = [Recording(source, one) for source, one in zip(sources, analyses, strict=True)]
        _say(look, _across_ranks(compare(Session(read))))
    for source, analysis in zip(sources, analyses, strict=True):
        _say(look, [source.name, *overview_lines(analysis, look, _width())])
    if sys.stdin.isatty():
        _converse(analyses[0], look)
    return 4 if any(a.integrity_status == "partial" for a in analyses) else 0


def _across_ranks(comparison: Comparison | None) -> list[str]:
    """What is to be said of ranks together."""
    from tracer.exporters.layout import wrap
    from tracer.exporters.ranks_verdict import ranks_verdict

    return [] if comparison is None else [*wrap(ranks_verdict(comparison.ranks), _width()), ""]


def _width() -> int:
    return min(max(shutil.get_terminal_size((80, 24)).columns, 60), 160)


def _converse(analysis: Analysis, look: Look) -> None:
    while True:
        print(f"{_HELP}: ", end="", flush=True)
        answer = sys.stdin.readline()
        if not answer or answer.strip().lower() in ("q", "quit"):
            return
        part = PARTS.get(answer.strip())
        _say(look, part(analysis, look, _width()) if part else [f"no such part: {answer.strip()}"])


def _say(look: Look, lines: Sequence[str] | Iterator[str]) -> None:
    for line in lines:
        print(look.name(line).rstrip())


def overview_lines(analysis: Analysis, look: Look, width: int) -> Iterator[str]:
    """The first screen."""
    from tracer.tui.model.overview import Facts, lay_out

    facts = Facts(analysis)
    sheet = lay_out(facts, look, width, 24, facts.marks.slowest)
    yield from (line.plain for line in sheet.draw(look, None))


def _table_lines(table: Table, look: Look, width: int, sort: str) -> Iterator[str]:
    from tracer.tui.model.table import Arrangement, arrange, fit, row_line, title_line

    if not len(table):
        yield table.empty
        return
    keys = [column.key for column in table.columns]
    arrangement = Arrangement(keys.index(sort) if sort in keys else 0)
    fitted = fit(table, width)
    yield title_line(look, table, fitted, arrangement).plain
    order = arrange(table, arrangement)
    for row in order[:_MOST_ROWS].tolist():
        yield row_line(fitted, row, False, width).plain
    if len(order) > _MOST_ROWS:
        yield f"   and {len(order) - _MOST_ROWS:,} more"


def _steps(analysis: Analysis, look: Look, width: int) -> Iterator[str]:
    from tracer.tui.model.steps import steps_table

    return _table_lines(steps_table(look, analysis), look, width, "step")


def _modules(analysis: Analysis, look: Look, width: int) -> Iterator[str]:
    from tracer.tui.model.modules import build_modules, heaviest_path, modules_table, shown_rows

    index = build_modules(analysis)
    rows = shown_rows(index, heaviest_path(index), frozenset())
    return _table_lines(modules_table(look, index, rows), look, width, "module")


def _kernels(analysis: Analysis, look: Look, width: int) -> Iterator[str]:
    from tracer.tui.model.kernels import build_kernels, kernels_table

    return _table_lines(kernels_table(look, build_kernels(analysis)), look, width, "total")


def _findings(analysis: Analysis, look: Look, width: int) -> Iterator[str]:
    from tracer.tui.model.finding import finding_lines
    from tracer.tui.model.findings import no_findings, ranked_findings

    ranked = ranked_findings(analysis)
    if not ranked:
        yield no_findings(analysis)
    for item in ranked:
        yield from (line.text.plain for line in finding_lines(look, analysis, item.number, width))
        yield ""


def _checks(analysis: Analysis, look: Look, width: int) -> Iterator[str]:
    from tracer.exporters.absent import all_checks
    from tracer.tui.model.findings import checks_table

    return _table_lines(checks_table(look, all_checks(analysis)), look, width, "status")


PARTS: dict[str, Part] = {
    "1": overview_lines,
    "2": _steps,
    "3": _modules,
    "4": _kernels,
    "5": _findings,
    "6": _checks,
}
