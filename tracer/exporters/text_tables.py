"""Text sections with names: modules, kernels, collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from tracer.analysis import BUCKETS, Analysis
from tracer.exporters.format import (
    UNKNOWN,
    bytes_text,
    count_text,
    counted,
    duration_text,
    percent_text,
    table_scale,
)
from tracer.exporters.json_report import summed_collectives
from tracer.exporters.layout import Column, Page, heading, table, titled
from tracer.exporters.module_tree import TreeRow, fold_modules, visible_rows
from tracer.exporters.names import short_kernel
from tracer.exporters.words import limit_words

_MOST_MODULES = 14
_MOST_LIMITS = 8
_MOST_KERNELS = 12
_WIDE = 100


def module_lines(page: Page, analysis: Analysis) -> list[Text]:
    """The module tree, like nodes folded, opened where the time is."""
    if not len(analysis.modules):
        said = (
            "none: no module ranges in this recording (`tracer run` and `with trace()` record them)"
        )
        return titled(page, "MODULES", said)
    rows = visible_rows(fold_modules(analysis.modules), _MOST_MODULES)
    if not analysis.accounted or not rows:
        return titled(page, "MODULES", "- no time of them was measured")
    scale = table_scale(max(row.device_ns for row in rows))
    columns = [
        Column("", "left", flexible=True),
        Column("role", "left"),
        Column("calls"),
        Column(scale.unit),
        Column("share"),
    ]
    whole = analysis.window.capacity_ns
    cells = [
        [
            _module_label(page, row),
            "" if row.own else page.name(row.node.role),
            "" if row.own else count_text(row.node.calls),
            scale.text(row.device_ns),
            _share(row.device_ns, whole),
        ]
        for row in rows
    ]
    kind = "operator time" if analysis.window.devices == 0 else "device time"
    return [heading("MODULES", f"{kind} in the whole recording"), *table(page, columns, cells)]


def _module_label(page: Page, row: TreeRow) -> str:
    indent = "  " * row.depth
    if row.own:
        return f"{indent}(self)"
    node = row.node
    label = indent + page.name(node.label or node.type)
    return f"{label} {page.times} {node.modules}" if node.modules > 1 else label


def _share(ns: int, whole: int) -> str:
    if not whole:
        return UNKNOWN
    percent = 100 * ns / whole
    return "<0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def kernel_lines(page: Page, analysis: Analysis) -> list[Text]:
    """The kernels that ran longest, each with what it is for."""
    kernels = analysis.kernels
    if not len(kernels):
        return titled(page, "KERNELS", "- none recorded")
    longest = kernels.sort_values("total_ns", ascending=False, kind="stable").head(_MOST_KERNELS)
    scale = table_scale(int(longest["total_ns"].max()))
    wide = page.width >= _WIDE
    columns = [
        Column("role", "left"),
        Column("name", "left", flexible=True),
        *([Column("how", "left"), Column("mean")] if wide else []),
        Column("calls"),
        Column(scale.unit),
        Column("share"),
    ]
    names = ("name", "bucket", "how", "count", "total_ns", "ratio")
    cells = [
        [
            ".".join(BUCKETS[bucket]),
            page.name(short_kernel(name)),
            *([how, duration_text(total / count if count else None)] if wide else []),
            f"{count:,}",
            scale.text(total),
            _share(total, analysis.window.capacity_ns),
        ]
        for name, bucket, how, count, total, _ in zip(
            *(longest[column].tolist() for column in names), strict=True
        )
    ]
    title = "OPERATORS" if analysis.window.devices == 0 else "KERNELS"
    lines = table(page, columns, cells, identities=longest["name"].tolist())
    return [heading(title, _kernel_note(analysis, len(cells))), *lines]


def _kernel_note(analysis: Analysis, shown: int) -> str:
    rest = len(analysis.kernels) - shown
    note = "sums of their durations"
    return f"{note}; {counted(rest, 'more row')} in the JSON report" if rest > 0 else note


def roofline_lines(page: Page, analysis: Analysis) -> list[Text]:
    """How near parts of a step come to the device's limits; nothing where no size is known."""
    rows = analysis.roofline
    if not rows:
        return []
    titles = ("bytes", "floor", "takes", "reached")
    columns = [Column("", "left", flexible=True), *(Column(title) for title in titles)]
    columns.append(Column("bound by", "left"))
    cells = [
        [
            page.name(f"{row['phase'] or 'step'}  {limit_words(row)}"),
            bytes_text(row["bytes"]),
            duration_text(row["floor_ns"]),
            duration_text(row["measured_ns"]),
            percent_text(row["reached_ratio"]),
            row["bound"],
        ]
        for row in rows[:_MOST_LIMITS]
    ]
    note = "a step; floor: its bytes or flops at the rates of the datasheet"
    return [heading("SPEED LIMIT", note), *table(page, columns, cells)]


def collective_lines(page: Page, analysis: Analysis) -> list[Text]:
    """Collectives by operation and process group; nothing when none ran."""
    if not len(analysis.collectives) or not analysis.accounted:
        return []
    sums = summed_collectives(analysis)
    columns = [Column("", "left"), Column("group", "left", flexible=True)]
    columns += [Column(title) for title in ("calls", "bytes", "bus", "exposed", "hidden")]
    cells = [
        [
            str(item["op"]),
            page.name(str(item["group"] or UNKNOWN)),
            count_text(item["count"]),
            _bytes(item["bytes"], ""),
            _bytes(item["busbw_bytes_per_s"], "/s"),
            duration_text(item["exposed_ns"]),
            duration_text(item["overlapped_ns"]),
        ]
        for item in sums
    ]
    return [heading("COLLECTIVES", _at_once(analysis, sums)), *table(page, columns, cells)]


def _at_once(analysis: Analysis, sums: Sequence[Mapping[str, Any]]) -> str:
    """Why these sums are more than the time that communication takes."""
    charges = analysis.charges
    codes = [code for code, bucket in enumerate(BUCKETS) if bucket[0] == "communication"]
    charged = int(charges["ns"][charges["bucket"].isin(codes)].sum())
    if sum(item["exposed_ns"] for item in sums) <= charged:
        return ""
    return f"sums of calls, some exposed at once: {duration_text(charged)} of time in all"


def _bytes(size: float | None, unit: str) -> str:
    return UNKNOWN if size is None else bytes_text(int(size)) + unit


def joined(parts: Sequence[str]) -> str:
    """The parts that are not empty, with commas."""
    return ", ".join(part for part in parts if part)
