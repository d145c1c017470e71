"""Plots of the page as inline SVG: bars of phases, a column for each step, the module tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from tracer.analysis import GROUPS, Analysis
from tracer.exporters.format import duration_text, percent_text
from tracer.exporters.levels import Level, has_steps, step_sums
from tracer.exporters.module_tree import Node
from tracer.exporters.names import inert
from tracer.exporters.text_times import segments

_WIDTH = 1000
_STEP_HEIGHT = 160
_MOST_COLUMNS = 250
_BAR_HEIGHT = 26
_ROW_HEIGHT = 22
_LEAST_CELL = 1.5
_CHARACTER = 6.6
_OTHER_ROLES = frozenset(("norm", "residual", "embedding", "lm_head"))
_STACK = ("attention", "ffn", "communication", "other", "overhead")


def text(value: object) -> str:
    """Text of a recording, safe inside a page."""
    return escape(inert(str(value)))


def _rectangle(group: str, box: tuple[float, float, float, float], title: str) -> str:
    x, y, width, height = box
    return (
        f'<rect class="g-{group}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" '
        f'height="{height:.2f}"><title>{title}</title></rect>'
    )


def _svg(height: float, parts: Iterable[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}" style="height:{height:g}px">{"".join(parts)}</svg>'
    )


def level_bar(level: Level, label: str) -> str:
    """One bar: what a level went to."""
    parts: list[str] = []
    x = 0.0
    for group, part, ns in segments(level):
        width = _WIDTH * level.ratio(ns)
        time = duration_text(level.per_step(ns))
        name = f"{group}.{part}" if part else group
        title = f"{name}: {time}, {percent_text(level.ratio(ns))}"
        parts.append(_rectangle(group, (x, 0, width, _BAR_HEIGHT), text(title)))
        parts.append(_label(part or group, group, (x, width, _BAR_HEIGHT)))
        x += width
    return _svg(_BAR_HEIGHT, parts, label)


def _label(label: str, group: str, place: tuple[float, float, float]) -> str:
    """The text on a cell of a group, left out when it does not fit."""
    x, width, bottom = place
    shown = inert(label)
    if len(shown) * _CHARACTER > width - 6:
        return ""
    at = f'x="{x + 4:.1f}" y="{bottom - 8:g}"'
    return f'<text class="on-{group}" {at}>{escape(shown)}</text>'


def step_columns(analysis: Analysis) -> str:
    """A column for each step, as high as it was long, cut by group; empty without steps."""
    if not analysis.accounted or not has_steps(analysis):
        return ""
    walls = analysis.steps["wall_ns"].to_numpy()
    shown = _slowest_of_bins(walls.tolist(), _MOST_COLUMNS)
    sums = step_sums(analysis) / max(analysis.window.devices, 1)
    top = float(walls.max()) or 1.0
    width = _WIDTH / len(shown)
    parts: list[str] = []
    for column, step in enumerate(shown):
        parts += _column(analysis, step, sums[step].tolist(), (column * width, width, top))
    return _svg(_STEP_HEIGHT, parts, f"time of {len(walls)} steps")


def _column(
    analysis: Analysis, step: int, sums: Sequence[float], place: tuple[float, float, float]
) -> list[str]:
    x, width, top = place
    row = analysis.steps.iloc[step]
    name = f"step {step} {row['name']} {row['phase']}{' warm-up' if row['warmup'] else ''}"
    y = float(_STEP_HEIGHT)
    parts: list[str] = []
    for group in _STACK:
        ns = sums[GROUPS.index(group)]
        height = _STEP_HEIGHT * ns / top
        y -= height
        title = text(f"{name}: {duration_text(int(row['wall_ns']))}, {group} {duration_text(ns)}")
        if height > 0:
            parts.append(_rectangle(group, (x, y, width * 0.9, height), title))
    return parts


def _slowest_of_bins(walls: Sequence[int], most: int) -> list[int]:
    """Which steps to draw: all, or the slowest of each of `most` bins."""
    if len(walls) <= most:
        return list(range(len(walls)))
    edges = np.linspace(0, len(walls), most + 1).astype(int)
    times = np.asarray(walls)
    bins = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [first + int(times[first:last].argmax()) for first, last in bins]


def module_icicle(roots: Sequence[Node]) -> str:
    """The folded module tree: a row for each depth, cells as wide as their time."""
    total = sum(node.device_ns for node in roots)
    if not total:
        return ""
    parts: list[str] = []
    depth = _cells(roots, (0.0, _WIDTH / total), (0, "other"), parts)
    return _svg(depth * _ROW_HEIGHT, parts, "device time by module")


def _cells(
    nodes: Sequence[Node],
    place: tuple[float, float],
    above: tuple[int, str],
    parts: list[str],
) -> int:
    """Add the cells of these nodes and of what is under them; returns the number of rows."""
    x, scale = place
    depth, group = above
    rows = depth
    for node in nodes:
        width = node.device_ns * scale
        if width >= _LEAST_CELL:
            own = role_group(node.role, group)
            parts.append(_cell(node, own, (x, depth * _ROW_HEIGHT, width)))
            below = _cells(node.children, (x, scale), (depth + 1, own), parts)
            rows = max(rows, depth + 1, below)
        x += width
    return rows


def role_group(role: str, above: str) -> str:
    """The colour of a module: its own role's, or that of the module around it."""
    if role in GROUPS:
        return role
    return "other" if role in _OTHER_ROLES else above


def _cell(node: Node, group: str, place: tuple[float, float, float]) -> str:
    x, y, width = place
    times = f" x {node.modules}" if node.modules > 1 else ""
    title = text(f"{node.path}{times} ({node.type}): {duration_text(node.device_ns)}")
    cell = _rectangle(group, (x, y, width, _ROW_HEIGHT - 1), title)
    label = (node.label or node.type) + times
    return cell + _label(label, group, (x, width, y + _ROW_HEIGHT))
