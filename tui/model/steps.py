"""Steps: one row each, whose groups add up to its wall time, and what stands out among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from tracer.analysis import GROUPS, Analysis
from tracer.exporters.format import UNKNOWN, duration_text, shares, table_scale
from tracer.exporters.layout import bar
from tracer.exporters.levels import Level, bucket_sums, step_sums
from tracer.exporters.text_times import segments
from tracer.tui.look import Look
from tracer.tui.model.lines import Target
from tracer.tui.model.places import Moment
from tracer.tui.model.signs import group_styles, page_of
from tracer.tui.model.table import Column, Table

# A step this much longer than the median of its phase stands out.
_OUTLIER_RATIO = 1.25


@dataclass(frozen=True)
class StepMarks:
    """Wall times, a letter for each step (warm-up, outlier, a rarer phase), and words on them."""

    walls_ns: NDArray[np.int64]
    letters: Sequence[str]
    names: Sequence[str]
    counts: str
    slowest: int

    def note(self, step: int) -> str:
        """What there is to say of the chosen step, and the slowest."""
        if not len(self.walls_ns):
            return ""
        text = f"step {step} ({self.names[step]}) {duration_text(int(self.walls_ns[step]))}"
        if step != self.slowest:
            text += f"; slowest: step {self.slowest}, {duration_text(int(self.walls_ns.max()))}"
        elif len(self.walls_ns) > 1:
            text += ", the slowest"
        return text


def mark_steps(analysis: Analysis) -> StepMarks:
    """Find warm-up, outliers and the rarer phases."""
    steps = analysis.steps
    walls = steps["wall_ns"].to_numpy()
    names = steps["name"].astype(str).tolist()
    outliers = outlier_steps(analysis)
    phases = steps["phase"].astype(str)
    usual = phases.mode().iloc[0] if len(phases) else ""
    letters = [
        "w" if warm else "!" if outlier else " " if phase == usual else (phase[:1] or "?")
        for warm, outlier, phase in zip(
            steps["warmup"].tolist(), outliers.tolist(), phases.tolist(), strict=True
        )
    ]
    slowest = int(walls.argmax()) if walls.size else 0
    return StepMarks(walls, letters, names, _counts(analysis, outliers), slowest)


def outlier_steps(analysis: Analysis) -> NDArray[np.bool_]:
    """Steps that took much longer than the median of their phase."""
    steps = analysis.steps
    whole = [phase for phase in analysis.phases if not phase.part_of]
    medians = {phase.name: phase.median_ns or 0 for phase in whole}
    usual = np.array(
        [medians.get(str(name) or "step", 0) for name in steps["phase"].tolist()], dtype=np.float64
    )
    walls = steps["wall_ns"].to_numpy()
    late: NDArray[np.bool_] = (usual > 0) & (walls > _OUTLIER_RATIO * usual)
    warm: NDArray[np.bool_] = steps["warmup"].to_numpy()
    return late & ~warm


def _counts(analysis: Analysis, outliers: NDArray[np.bool_]) -> str:
    steps = analysis.steps
    kinds = steps.loc[~steps["warmup"], "phase"].astype(str).value_counts()
    parts = [f"{count:,} {name or 'of unknown phase'}" for name, count in kinds.items()]
    warm, late = int(steps["warmup"].sum()), int(outliers.sum())
    if warm:
        parts.append(f"{warm:,} warm-up w (left out)")
    if late:
        parts.append(f"{late:,} outlier{'s' if late > 1 else ''} !")
    return ", ".join(parts)


def steps_table(look: Look, analysis: Analysis) -> Table:
    """A row for each step; its groups add up to its wall time on all devices."""
    steps = analysis.steps
    marks = mark_steps(analysis)
    walls = marks.walls_ns
    scale = table_scale(float(walls.max(initial=0)))
    columns = [
        Column("step", "step", [str(n) for n in range(len(steps))], np.arange(len(steps)),
               counts_up=True),
        Column("mark", "", [letter.strip() for letter in marks.letters], None, "left"),
        Column("phase", "phase", [look.name(p) or UNKNOWN for p in _texts(analysis, "phase")],
               None, "left"),
        Column("wall", f"wall {scale.unit}", [scale.text(n) for n in walls.tolist()], walls),
    ]  # fmt: skip
    columns += _group_columns(look, analysis)
    columns += [
        Column("cause", "most idle", _causes(analysis), None, "left", rank=3),
        *_size_columns(analysis),
        Column("name", "name", [look.name(n) for n in marks.names], None, "left", rank=4,
               flexible=True),
    ]  # fmt: skip
    return Table(
        tuple(columns),
        marks.names,
        lambda row: Target("timeline", Moment(step=row)),
        empty="no step was recognised",
    )


def _texts(analysis: Analysis, column: str) -> list[str]:
    return analysis.steps[column].astype(str).tolist()


def _size_columns(analysis: Analysis) -> list[Column]:
    columns: list[Column] = []
    for key in ("batch", "tokens"):
        values = analysis.steps[key].to_numpy()
        if bool((values >= 0).any()):
            cells = [f"{n:,}" if n >= 0 else UNKNOWN for n in values.tolist()]
            columns.append(Column(key, key, cells, values, rank=5))
    return columns


def _group_columns(look: Look, analysis: Analysis) -> list[Column]:
    """Time of each group in the unit of the wall time, rounded so that each row adds up."""
    if not analysis.accounted:
        return []
    sums = step_sums(analysis)
    walls = analysis.steps["wall_ns"].to_numpy() * max(analysis.window.devices, 1)
    scale = table_scale(float(analysis.steps["wall_ns"].max()) if len(walls) else 0)
    wholes = np.rint(walls / scale.quantum_ns).astype(np.int64).tolist()
    quanta = [shares(row, whole) for row, whole in zip(sums.tolist(), wholes, strict=True)]
    styles = group_styles(look.light)
    columns = [
        Column(
            group,
            _TITLES[group],
            [scale.quanta_text(row[at], ns > 0) for row, ns in zip(quanta, column, strict=True)],
            sums[:, at],
            rank=1 if group in ("communication", "other") else 0,
            styles=[styles[at]] * len(quanta),
        )
        for at, (group, column) in enumerate(zip(GROUPS, sums.T.tolist(), strict=True))
    ]
    return [column for column in columns if column.key in _ALWAYS or bool(column.values.any())]  # type: ignore[union-attr]


_TITLES = {
    "attention": "attn",
    "ffn": "ffn",
    "communication": "comm",
    "overhead": "overhead",
    "other": "other",
}
_ALWAYS = ("attention", "ffn", "overhead")


def _causes(analysis: Analysis) -> list[str]:
    """The largest cause of idle of each step."""
    gaps = analysis.gaps
    if not len(gaps):
        return [UNKNOWN] * len(analysis.steps)
    inside = gaps["step"].to_numpy() >= 0
    codes = np.asarray(gaps["cause"].cat.codes, dtype=np.int64)[inside]
    names = [str(name) for name in gaps["cause"].cat.categories]
    sums = np.zeros((len(analysis.steps), len(names)))
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()[inside]
    np.add.at(sums, (gaps["step"].to_numpy()[inside], codes), lengths)
    largest = sums.argmax(axis=1).tolist()
    return [names[at] if sums[row, at] > 0 else UNKNOWN for row, at in enumerate(largest)]


def step_level(analysis: Analysis, step: int) -> Level:
    """What one step went to."""
    chosen = np.zeros(len(analysis.steps), dtype=bool)
    chosen[step] = True
    wall_ns = int(analysis.steps["wall_ns"].iloc[step])
    phase = str(analysis.steps["phase"].iloc[step])
    return Level(phase, 1, wall_ns, analysis.window.devices, bucket_sums(analysis, chosen))


def step_bar(look: Look, level: Level, width: int) -> Text:
    """One step as a bar."""
    return bar(page_of(look, width), segments(level), max(width - 2, 4))


def step_sentence(look: Look, analysis: Analysis, step: int) -> str:
    """`Step 31 of 64 · decode · 61.0 ms, GPU busy 6.4 ms (10 %) · batch 1`."""
    row = analysis.steps.iloc[step]
    words = [f"Step {step} of {len(analysis.steps)}", str(row["phase"]) or "phase unknown"]
    wall_ns, busy_ns = int(row["wall_ns"]), int(row["busy_ns"])
    time = duration_text(wall_ns)
    if analysis.accounted and analysis.window.devices:
        whole = wall_ns * analysis.window.devices
        share = f" ({100 * busy_ns / whole:.0f} %)" if whole else ""
        gpus = "GPU" if analysis.window.devices == 1 else f"{analysis.window.devices} GPUs"
        time += f", {gpus} busy {duration_text(busy_ns)}{share}"
    words.append(time)
    words += [f"{key} {int(row[key]):,}" for key in ("batch", "tokens") if int(row[key]) >= 0]
    words += ["warm-up"] if bool(row["warmup"]) else []
    return look.separator.join(words)
