"""Kernels: one row for each name, role and evidence, and how the durations of one are spread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from tracer.analysis import BUCKETS, GROUPS, HOW, Analysis
from tracer.analyzers.intervals import NONE, Longs
from tracer.exporters.format import UNKNOWN, duration_text, percent_text, table_scale
from tracer.exporters.module_tree import folded_paths
from tracer.exporters.names import short_kernel
from tracer.tui.look import Look
from tracer.tui.model.lines import BOLD, DIM, Line, Target, heading, labelled, plain, wrapped
from tracer.tui.model.places import ModulePath, Moment
from tracer.tui.model.signs import group_styles, load_signs, share_bar
from tracer.tui.model.table import Column, Table, cut

_BINS = 16
# Beyond this many times the spread between the quartiles a duration is an outlier (Tukey).
_FENCE = 3.0
_MOST_MODULES = 8


@dataclass(frozen=True)
class KernelIndex:
    """The rows of `kernels`, each with the rows of `work` that it sums, the longest first."""

    analysis: Analysis
    durations_ns: Longs  # of each row of `work`
    ordered: Longs  # rows of `work`, grouped by kernel row
    bounds: Longs  # where each kernel row begins in `ordered`

    def works(self, row: int) -> Longs:
        """The rows of `work` of a kernel row, the longest first."""
        found = self.ordered[int(self.bounds[row]) : int(self.bounds[row + 1])]
        return found[np.argsort(-self.durations_ns[found], kind="stable")]

    @cached_property
    def costs(self) -> NDArray[np.int64]:
        return self.analysis.kernels["total_ns"].to_numpy()


def build_kernels(analysis: Analysis) -> KernelIndex:
    """Find the work of each row of `kernels`."""
    trace, work, kernels = analysis.trace, analysis.work, analysis.kernels
    events = work["event"].to_numpy()
    durations = trace.events["duration_ns"].to_numpy()[events]
    of_name = {name: code for code, name in enumerate(trace.names)}
    names = np.array([of_name.get(str(n), NONE) for n in kernels["name"].tolist()], dtype=np.int64)
    row_keys = _keys(names, kernels["bucket"].to_numpy(), _how(kernels["how"]))
    work_keys = _keys(trace.name_codes[events], work["bucket"].to_numpy(), _how(work["how"]))
    order = np.argsort(row_keys, kind="stable")
    at = np.searchsorted(row_keys[order], work_keys)
    hit = (at < order.size) & (row_keys[order[np.minimum(at, order.size - 1)]] == work_keys) \
        if order.size else np.zeros(work_keys.size, dtype=bool)  # fmt: skip
    row_of_work = np.full(events.size, len(kernels), dtype=np.int64)
    row_of_work[hit] = order[at[hit]]
    ordered = np.argsort(row_of_work, kind="stable").astype(np.int64)
    bounds = np.searchsorted(row_of_work[ordered], np.arange(len(kernels) + 1))
    return KernelIndex(analysis, durations, ordered, bounds.astype(np.int64))


def _how(column: object) -> NDArray[np.int64]:
    codes = column.cat.set_categories(list(HOW)).cat.codes  # type: ignore[attr-defined]
    return np.asarray(codes, dtype=np.int64)


def _keys(name: object, bucket: object, how: NDArray[np.int64]) -> Longs:
    names = np.asarray(name, dtype=np.int64)
    return (names * len(BUCKETS) + np.asarray(bucket, dtype=np.int64)) * (len(HOW) + 1) + how


def kernels_table(look: Look, index: KernelIndex) -> Table:
    """The table; rows that nothing attributed stay last."""
    kernels = index.analysis.kernels
    total, count = kernels["total_ns"].to_numpy(), kernels["count"].to_numpy()
    mean = np.divide(total, count, out=np.zeros(total.size), where=count > 0)
    scale = table_scale(float(total.max(initial=0)))
    names = kernels["name"].astype(str).tolist()
    how = kernels["how"].astype(str).tolist()
    library = kernels["library"].astype(str).tolist()
    ratio = kernels["ratio"].to_numpy()
    buckets = kernels["bucket"].tolist()
    styles = group_styles(look.light)
    roles = [".".join(BUCKETS[code]) for code in buckets]
    columns = (
        Column("role", "role", roles, None, "left",
               styles=[styles[GROUPS.index(BUCKETS[code][0])] for code in buckets]),
        Column("name", "name", [look.name(short_kernel(n)) for n in names], None, "left",
               flexible=True),
        Column("library", "library", [look.name(n) or UNKNOWN for n in library], None, "left",
               rank=4),
        Column("how", "how", how, None, "left", rank=2),
        Column("calls", "calls", [f"{n:,}" for n in count.tolist()], count, rank=1),
        Column("mean", "mean", [duration_text(n) for n in mean.tolist()], mean, rank=3),
        Column("total", f"total {scale.unit}", [scale.text(n) for n in total.tolist()], total),
        Column("share", "share", [percent_text(n) for n in ratio.tolist()], ratio),
    )  # fmt: skip
    return Table(
        columns,
        names,
        lambda row: _longest(index, row),
        np.array([name == "none" for name in how], dtype=bool),
        "how",
        "no kernel, copy or set was recorded",
    )


def _longest(index: KernelIndex, row: int) -> Target | None:
    works = index.works(row)
    return Target("timeline", Moment(work=int(works[0]))) if works.size else None


def kernel_lines(look: Look, index: KernelIndex, row: int, width: int) -> list[Line]:
    """One kernel: its full name, how long its calls took, the modules it works for."""
    analysis = index.analysis
    name = str(analysis.kernels["name"].iloc[row])
    bucket = BUCKETS[int(analysis.kernels["bucket"].iloc[row])]
    how = str(analysis.kernels["how"].iloc[row])
    confidence = float(analysis.kernels["confidence"].iloc[row])
    lines = [Line(text.text, None, name) for text in wrapped(look.name(name), width, most=12)]
    lines += labelled("role", ".".join(bucket), width)
    lines += labelled("how", f"{how}, confidence {confidence:.2f}", width)
    works = index.works(row)
    lines += _histogram_lines(look, index.durations_ns[works], width)
    lines += _module_lines(look, analysis, works, index.durations_ns, width)
    return lines


@dataclass(frozen=True)
class Histogram:
    """Durations in equal bins between the least and the greatest that is no outlier."""

    counts: NDArray[np.int64]
    low_ns: int
    high_ns: int
    outliers: int


def histogram(durations: Longs, bins: int = _BINS) -> Histogram:
    """How durations are spread; what lies far beyond the rest is counted apart."""
    first, third = np.percentile(durations, [25, 75])
    fence = third + _FENCE * max(third - first, 0.02 * third, 1.0)
    kept = durations[durations <= fence]
    low, high = int(kept.min()), int(kept.max())
    counts, _ = np.histogram(kept, bins, (low, max(high, low + 1)))
    return Histogram(counts.astype(np.int64), low, high, int(durations.size - kept.size))


def _histogram_lines(look: Look, durations: Longs, width: int) -> list[Line]:
    if not durations.size:
        return [plain("   durations: none in the window", DIM)]
    shape = histogram(durations)
    signs = load_signs(look, shape.counts / max(int(shape.counts.max()), 1))
    middle = duration_text(float(np.median(durations)))
    edge, end = look.sign("▕", "|"), look.sign("▏", "|")
    line = Text(f"   {edge}").append(signs, BOLD).append(end)
    text = f"{duration_text(shape.low_ns)} to {duration_text(shape.high_ns)}, median {middle}, "
    text += f"longest {duration_text(int(durations.max()))}"
    if shape.outliers:
        text += f"; {shape.outliers:,} outlier{'s' if shape.outliers > 1 else ''} beyond the bars"
    title = heading("DURATIONS", f"{durations.size:,} calls, {_BINS} bars", width)
    return [plain(), title, Line(line), *wrapped(text, width)]


def _module_lines(
    look: Look, analysis: Analysis, works: Longs, durations: Longs, width: int
) -> list[Line]:
    modules = analysis.work["module"].to_numpy()[works]
    known = modules >= 0
    if not bool(known.any()):
        return [plain(), plain("   module: none recorded", DIM)]
    sums = np.bincount(modules[known], weights=durations[works][known])
    paths = folded_paths(analysis.modules)
    folded: Counter[str] = Counter()
    for module in np.flatnonzero(sums).tolist():
        folded[paths[module]] += round(float(sums[module]))
    many = int((sums > 0).sum())
    lines = [plain(), heading("MODULES", f"{many:,} in all" if many > 1 else "", width)]
    for path, total_ns in folded.most_common(_MOST_MODULES):
        time = duration_text(total_ns)
        room = max(width - 5 - len(time), 8)
        label = cut(look.name(path), room)
        text = Text(f"   {label}{' ' * (room - Text(label).cell_len)} {time}")
        lines.append(Line(text, Target("modules", ModulePath(path)), path))
    return lines


def share_cell(look: Look, ratio: float) -> str:
    """A share as a bar of eight steps."""
    return share_bar(look, ratio, 1)
