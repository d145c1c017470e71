"""Many ranks for a terminal: who waits for whom, and what each rank did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.text import Text

from tracer.events import Note
from tracer.exporters.format import (
    UNKNOWN,
    bytes_text,
    count_text,
    counted,
    duration_text,
    numbers_text,
    percent_text,
    table_scale,
)
from tracer.exporters.layout import Column, Page, heading, paragraph, table, titled
from tracer.exporters.names import inert, where_text
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.exporters.text import page_of, shown
from tracer.exporters.text_findings import MARKS
from tracer.findings import Finding
from tracer.rank_analysis import Alignment, KindSums, RankAnalysis, RankResult

_MOST_RANKS, _MOST_GROUPS, _MOST_KINDS, _MOST_RULES = 16, 8, 8, 8
_INDENT = 5
# Findings of ranks from which waiting for other ranks is taken out.
_COMMUNICATION = frozenset(("comm.exposed", "comm.same_stream"))
# Imbalance that is worth a word.
_NOTABLE_IMBALANCE = 1.05
# So many times as much compute beside collectives as on another rank explains that it takes longer.
_MORE_BESIDE = 1.25
# Collectives of fewer bytes take as long as those of none: 6 us for 8 KiB between two GPUs.
_SMALL_BYTES = 1 << 18


def render_ranks(
    analysis: RankAnalysis,
    *,
    width: int | None = None,
    color: bool = False,
    ascii: bool | None = None,
) -> str:
    """The report of many ranks as text; arguments as for one rank."""
    page = page_of(width, ascii)
    lines = paragraph(page, ranks_verdict(analysis), style="bold")
    lines += paragraph(page, _sources(analysis, page), style="dim")
    for section in _SECTIONS:
        made = section(page, analysis)
        if made:
            lines += [Text(), *made]
    return shown(page, lines, color)


def _sources(analysis: RankAnalysis, page: Page) -> str:
    separator = ", " if page.ascii else " · "
    return separator.join(source_items(analysis)) or "no recordings"


def source_items(analysis: RankAnalysis) -> Iterator[str]:
    """What was recorded: ranks, devices, hosts, framework, time."""
    summaries = [rank.summary for rank in analysis.ranks]
    if not summaries:
        return
    world = max((summary.world_size or 0 for summary in summaries), default=0)
    yield f"{counted(len(summaries), 'rank')}" + (f" of {world}" if world else "")
    devices = Counter(summary.device for summary in summaries if summary.device)
    if devices:
        yield ", ".join(f"{count} x {inert(name)}" for name, count in devices.most_common(3))
    elif all(summary.cpu_only for summary in summaries):
        yield "CPU only"
    hosts = {summary.host for summary in summaries if summary.host}
    if hosts:
        yield counted(len(hosts), "host")
    frameworks = {summary.framework for summary in summaries if summary.framework}
    yield from sorted(map(inert, frameworks))[:1]
    yield f"{duration_text(max(summary.wall_ns for summary in summaries))} recorded"


# --- ranks ---------------------------------------------------------------------------------------


def _rank_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    if not analysis.ranks:
        return []
    chosen, rest = _chosen_ranks(analysis)
    titles = ("window", "step", "busy", "exposed", "wait", "wire", "last")
    columns = [Column("rank", "right"), *map(Column, titles)]
    rows = [_rank_row(rank) for rank in chosen]
    note = "exposed: communication with no compute beside it; wait: for later ranks"
    lines = [heading("RANKS", note), *table(page, columns, rows)]
    if rest:
        said = f"{counted(rest, 'more rank')} between these; all are in the JSON report."
        lines += paragraph(page, said, indent=2, style="dim")
    return lines


def _chosen_ranks(analysis: RankAnalysis) -> tuple[list[RankResult], int]:
    """All ranks, or the late ones and the ends of the order by waiting."""
    ranks = list(analysis.ranks)
    if len(ranks) <= _MOST_RANKS:
        return ranks, 0
    named = {f.detail.get("rank") for f in analysis.findings if f.detail.get("rank") is not None}
    late = [rank for rank in ranks if rank.summary.rank in named][:_MOST_RANKS]
    by_wait = sorted(ranks, key=lambda rank: (-rank.last, rank.wait_ns or 0, rank.summary.rank))
    half = max((_MOST_RANKS - len(late)) // 2, 1)
    chosen = {rank.summary.rank: rank for rank in (*late, *by_wait[:half], *by_wait[-half:])}
    return [chosen[rank] for rank in sorted(chosen)], len(ranks) - len(chosen)


def _rank_row(rank: RankResult) -> list[str]:
    summary = rank.summary
    capacity = summary.capacity_ns
    busy = None if summary.busy_ns is None or not capacity else summary.busy_ns / capacity
    return [
        str(summary.rank),
        duration_text(summary.wall_ns),
        duration_text(summary.median_step_ns) if summary.steps else UNKNOWN,
        percent_text(busy),
        duration_text(summary.exposed_ns),
        duration_text(rank.wait_ns),
        duration_text(rank.wire_ns),
        f"{rank.last}/{rank.compared}" if rank.compared else UNKNOWN,
    ]


def _alignment_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    alignment = analysis.alignment
    if len(analysis.ranks) < 2:
        return []
    if alignment is None:
        return titled(page, "CLOCKS", "not aligned: no collective is shared")
    return titled(page, "CLOCKS", f"{_clock_words(alignment)}; {alignment.basis}")


def _clock_words(alignment: Alignment) -> str:
    residual = duration_text(alignment.residual_ns)
    offsets = [clock.offset_ns for clock in alignment.clocks.values()]
    drifts = [abs(clock.drift) for clock in alignment.clocks.values()]
    text = f"residual {residual}, nothing smaller is claimed"
    if any(offsets):
        spread = max(offsets) - min(offsets)
        text += f"; offsets span {duration_text(spread)}"
    if any(drifts):
        text += f", drift up to {max(drifts) * 1e6:.1f} us per second"
    return text


def _group_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    if not analysis.groups:
        return []
    columns = [Column("", "left"), Column("kind", "left"), Column("ranks", "left", flexible=True)]
    columns += [Column("calls"), Column("operations", "left")]
    rows = [
        [
            page.name(group.name or "(unnamed)"),
            group.kind or UNKNOWN,
            numbers_text(group.members),
            count_text(group.count),
            ", ".join(group.ops),
        ]
        for group in analysis.groups[:_MOST_GROUPS]
    ]
    rest = len(analysis.groups) - len(rows)
    note = f"{counted(rest, 'more group')} in the JSON report" if rest else ""
    return [heading("PROCESS GROUPS", note), *table(page, columns, rows)]


def _kind_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    """Collectives by operation and group, as means over the ranks."""
    by_kind: dict[tuple[str, str], list[KindSums]] = {}
    for rank in analysis.ranks:
        for kind in rank.kinds:
            by_kind.setdefault((kind.op, kind.group), []).append(kind)
    if not by_kind:
        return []
    ranked = sorted(by_kind.items(), key=lambda item: -sum(k.exposed_ns for k in item[1]))
    titles = ("calls", "bytes each", "wire each", "bus", "wait a rank", "exposed")
    columns = [Column("", "left"), Column("group", "left", flexible=True), *map(Column, titles)]
    rows = [_kind_row(page, *item) for item in ranked[:_MOST_KINDS]]
    note = "wire: the median; bus: bandwidth on the wire"
    if any(_is_small(kind) for kinds in by_kind.values() for kind in kinds):
        note += ", of few bytes latency"
    if any(_sums_more(rank) for rank in analysis.ranks):
        note += "; sums of calls, some exposed at once"
    return [heading("COLLECTIVES", note), *table(page, columns, rows)]


def _sums_more(rank: RankResult) -> bool:
    """Whether its calls are exposed beside each other, and the clock counts that once."""
    exposed = rank.summary.exposed_ns
    return exposed is not None and sum(kind.exposed_ns for kind in rank.kinds) > exposed


def _is_small(kind: KindSums) -> bool:
    """Whether its calls carry so little that no link is filled."""
    return kind.bytes is not None and 0 < kind.bytes < _SMALL_BYTES * kind.count


def _kind_row(page: Page, key: tuple[str, str], kinds: Sequence[KindSums]) -> list[str]:
    count = sum(kind.count for kind in kinds)
    wires = [kind.median_wire_ns for kind in kinds if kind.median_wire_ns is not None]
    waits = [kind.wait_ns for kind in kinds if kind.wait_ns is not None]
    sizes = [kind.bytes for kind in kinds if kind.bytes is not None]
    buses = [found for kind in kinds if (found := kind.busbw_bytes_per_s) is not None]
    whole = len(sizes) == len(kinds) and count
    return [
        key[0],
        page.name(key[1] or UNKNOWN),
        f"{round(count / len(kinds)):,}",
        bytes_text(round(sum(sizes) / count)) if whole else UNKNOWN,
        duration_text(float(np.median(wires))) if wires else UNKNOWN,
        f"{bytes_text(int(np.median(buses)))}/s" if buses else UNKNOWN,
        duration_text(sum(waits) / len(waits)) if waits else UNKNOWN,
        duration_text(sum(kind.exposed_ns for kind in kinds) / len(kinds)),
    ]


# --- findings ------------------------------------------------------------------------------------


def _finding_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    if not analysis.findings:
        return titled(page, "FINDINGS ACROSS RANKS", "none")
    lines = [heading("FINDINGS ACROSS RANKS")]
    for finding in analysis.findings:
        mark = f"  {MARKS[finding.severity]}".ljust(_INDENT)
        lines.append(Text(f"{mark}{finding.rule}{_cost_words(finding)}", style="bold"))
        lines += paragraph(page, inert(finding.title), indent=_INDENT)
        place = where_text(finding.where)
        if place:
            lines += paragraph(page, f"where: {place}", indent=_INDENT)
        if finding.advice:
            lines += paragraph(page, f"do: {inert(finding.advice)}", indent=_INDENT)
    return lines


def _cost_words(finding: Finding) -> str:
    if finding.cost_ns is None:
        return ""
    share = "" if finding.ratio is None else f", {percent_text(finding.ratio)} of the window"
    return f"  {duration_text(finding.cost_ns)}{share}"


def _single_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    """What each rank's own report finds, by rule."""
    by_rule: dict[str, list[tuple[int, int]]] = {}
    for rank in analysis.ranks:
        for finding in rank.findings:
            if finding.severity != "info":
                cost = (finding.cost_ns or 0, rank.summary.rank)
                by_rule.setdefault(finding.rule, []).append(cost)
    if not by_rule:
        return []
    ranked = sorted(by_rule.items(), key=lambda item: (-max(item[1])[0], item[0]))[:_MOST_RULES]
    scale = table_scale(max(max(costs)[0] for _, costs in ranked))
    columns = [Column("", "left"), Column("ranks", "left", flexible=True)]
    columns += [Column(f"most {scale.unit}"), Column("on rank")]
    rows = [
        [
            rule,
            numbers_text(sorted({rank for _, rank in costs})),
            scale.text(max(costs)[0]),
            str(max(costs)[1]),
        ]
        for rule, costs in ranked
    ]
    waits = any(rank.wait_ns is not None for rank in analysis.ranks)
    wire = ", communication without waiting" if waits and _COMMUNICATION & by_rule.keys() else ""
    note = f"of single ranks{wire}: `tracer report FILE` tells more"
    return [heading("FINDINGS ON RANKS", note), *table(page, columns, rows)]


def _balance_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    said = list(_balance_items(analysis))
    return titled(page, "BALANCE", "; ".join(said)) if said else []


def _balance_items(analysis: RankAnalysis) -> Iterator[str]:
    steps = analysis.imbalance.get("steps") or {}
    ratio = steps.get("compute_max_over_mean", 1.0)
    if ratio >= _NOTABLE_IMBALANCE:
        yield (
            f"in the median step the busiest rank computes {ratio:.2f} times the mean, rank "
            f"{steps['largest_rank']} most often ({steps['largest_in_steps']} of {steps['steps']})"
            + _beside_words(analysis, steps["largest_rank"])
        )
    for experts in analysis.imbalance.get("experts", ()):
        if experts["received_max_over_mean"] >= _NOTABLE_IMBALANCE:
            yield (
                f"in all_to_all the rank that receives most gets "
                f"{experts['received_max_over_mean']:.2f} times the mean "
                f"(rank {experts['largest_rank']} over {experts['calls']} calls)"
            )
    bubbles = analysis.imbalance.get("pipeline") or []
    if bubbles:
        worst = max(bubbles, key=lambda bubble: bubble["ratio"])
        yield (
            f"pipeline stages have nothing to do up to {percent_text(worst['ratio'])} of the time "
            f"(rank {worst['rank']})"
        )


def _beside_words(analysis: RankAnalysis, largest: int) -> str:
    """Whether more of its compute than of any other's runs beside collectives: then waiting for
    others makes it long."""
    hidden = {rank.summary.rank: rank.summary.overlapped_ns for rank in analysis.ranks}
    others = max((ns for rank, ns in hidden.items() if rank != largest), default=0)
    if hidden.get(largest, 0) <= _MORE_BESIDE * others:
        return ""
    return "; more of it runs beside collectives, which slow it, than on the others"


def _check_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    said = "; ".join(
        f"{check.rule} {check.status.replace('_', ' ')}"
        + (f" ({inert(check.reason)})" if check.reason else "")
        for check in analysis.checks
    )
    return titled(page, "CHECKS", said) if said else []


def _note_lines(page: Page, analysis: RankAnalysis) -> list[Text]:
    status = analysis.integrity_status
    notes = [*analysis.notes, *_notes_of_ranks(analysis)]
    if not notes:
        return titled(page, "INTEGRITY", status)
    lines = titled(page, "INTEGRITY", f"{status}, {counted(len(notes), 'note')}")
    for note in notes:
        first, *rest = paragraph(page, f"{note.rule}: {inert(note.message)}", indent=4)
        lines += [Text(first.plain[2:]), *rest]
    return lines


def _notes_of_ranks(analysis: RankAnalysis) -> list[Note]:
    """Notes of single ranks that mean a loss, by rule."""
    lossy: dict[str, list[int]] = {}
    for rank in analysis.ranks:
        for note in rank.summary.notes:
            if note.partial:
                lossy.setdefault(note.rule, []).append(rank.summary.rank)
    return [
        Note(rule, f"on {'rank' if len(ranks) == 1 else 'ranks'} {numbers_text(ranks)}", len(ranks))
        for rule, ranks in lossy.items()
    ]


_SECTIONS: tuple[Callable[[Page, RankAnalysis], list[Text]], ...] = (
    _rank_lines,
    _alignment_lines,
    _group_lines,
    _kind_lines,
    _finding_lines,
    _single_lines,
    _balance_lines,
    _check_lines,
    _note_lines,
)
