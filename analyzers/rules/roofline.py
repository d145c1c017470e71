"""How near the device comes to its limits: what memory and tensor cores would need at the least.

The roofline model of Williams, Waterman and Patterson (2009): a call takes at least its flops over
the peak rate and its bytes over the bandwidth, whichever is longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracer.analysis import BUCKETS, Analysis, RuleResult
from tracer.analyzers.context import Context
from tracer.analyzers.rules.estimates import DeviceLimits, device_limits
from tracer.analyzers.rules.judging import steady_steps, verdict
from tracer.analyzers.rules.moved_bytes import Moved, Size, moved_by
from tracer.findings import Check, Finding

RULE = "roofline.headroom"
# A good kernel reaches more of the limit than this; a part that takes less of a step than that
# is not worth a word.
_GOOD_RATIO, _NOTABLE_RATIO = 0.5, 0.1
# Flops a byte that no GPU of the table falls short of, in whatever precision.
_LITTLE = 8
# Sizes that are known for less of a part are said to be.
_WHOLE_RATIO = 0.95
# The floor of a whole step is told when the sizes of so much of what it computes are known.
_MOST_OF_WORK_RATIO = 0.5
# Where more of a step than this may have gone to work that has no rows, its time is not its work's.
_UNSEEN_RATIO = 0.05


def reach(context: Context, analysis: Analysis) -> tuple[Mapping[str, Any], ...]:
    """A row for each phase and part whose sizes are known, the means of its steady steps, and one
    for the whole step of each phase."""
    limits = device_limits(context.work.trace)
    if limits is None or context.work.cpu_only or not analysis.accounted:
        return ()
    rows: list[Mapping[str, Any]] = []
    for phase, sums in _summed(context, analysis, limits).items():
        steps = _steps_of(analysis, phase)
        parts = [_row(analysis, phase, steps, part, limits) for part in sums.values()]
        parts.sort(key=lambda row: -row["measured_ns"])
        rows += [*_whole(analysis, phase, steps, parts, limits), *parts]
    return tuple(rows)


@dataclass
class _Part:
    """Sums over all calls of one part in one phase."""

    bucket: int
    bytes: int = 0
    flops: int = 0
    floor_ns: float = 0.0
    memory_ns: float = 0.0  # of the floor, where memory is what bounds
    measured_ns: int = 0
    sources: set[str] = field(default_factory=set)

    def add(self, size: Size, limits: DeviceLimits, measured_ns: int) -> None:
        memory = size.bytes / limits.bandwidth_bytes_per_s * 1e9
        rate = limits.rate(size.precision)
        compute = size.flops / rate * 1e9 if rate else 0.0
        self.bytes += size.bytes
        self.flops += size.flops
        self.floor_ns += max(memory, compute)
        self.memory_ns += memory if memory >= compute else 0.0
        self.measured_ns += measured_ns


Sums = dict[str, dict[int, _Part]]


def _summed(context: Context, analysis: Analysis, limits: DeviceLimits) -> Sums:
    steady = set(steady_steps(analysis))
    phases = analysis.steps["phase"].astype(str).tolist()
    out: Sums = defaultdict(dict)
    for moved in moved_by(context):
        for size, step, bucket, measured in _calls(context, analysis, moved):
            if step in steady and measured and _is_bound(size, limits):
                part = out[phases[step]].setdefault(bucket, _Part(bucket))
                part.add(size, limits, measured)
                part.sources.add(moved.source)
    return out


def _is_bound(size: Size, limits: DeviceLimits) -> bool:
    """Whether it is known what bounds a call: where no peak rate is, memory does if it computes
    little with each byte."""
    return limits.rate(size.precision) is not None or size.flops <= _LITTLE * size.bytes


def _calls(
    context: Context, analysis: Analysis, moved: Moved
) -> Iterator[tuple[Size, int, int, int]]:
    """The size of each call, its step, its bucket and the time that was measured."""
    charged = analysis.work["charged_ns"].to_numpy()[moved.rows]
    measured = np.bincount(moved.call, charged, minlength=len(moved.sizes)).astype(np.int64)
    steps = context.plan.work_step[moved.longest].tolist()
    buckets = context.attribution.bucket[moved.longest].tolist()
    return zip(moved.sizes, steps, buckets, measured.tolist(), strict=True)


def _steps_of(analysis: Analysis, phase: str) -> list[int]:
    phases = analysis.steps["phase"].astype(str).tolist()
    return [step for step in steady_steps(analysis) if phases[step] == phase]


def _wall_ns(analysis: Analysis, phase: str) -> int:
    """The median steady step of a phase."""
    return int(np.median(analysis.steps["wall_ns"].to_numpy()[_steps_of(analysis, phase)]))


def _row(
    analysis: Analysis, phase: str, steps: Sequence[int], part: _Part, limits: DeviceLimits
) -> dict[str, Any]:
    count = len(steps)
    floor, measured = round(part.floor_ns / count), round(part.measured_ns / count)
    whole = int(analysis.bucket_ns_of_steps()[list(steps), part.bucket].sum())
    known = part.measured_ns / whole if whole else 1.0
    return {
        "phase": phase or None,
        "part": ".".join(BUCKETS[part.bucket]),
        "bytes": round(part.bytes / count),
        "flops": round(part.flops / count),
        "floor_ns": floor,
        "measured_ns": measured,
        "reached_ratio": floor / measured if measured else None,
        "bound": "memory" if 2 * part.memory_ns >= part.floor_ns else "compute",
        "known_ratio": min(known, 1.0),
        "basis": _basis(sorted(part.sources), count, known, limits),
    }


def _basis(sources: Sequence[str], count: int, known: float, limits: DeviceLimits) -> str:
    peaks = (
        f"{limits.bandwidth_bytes_per_s / 1e9:.0f} GB/s, {limits.bf16_flops_per_s / 1e12:.0f} "
        f"TFLOP/s in bf16 ({limits.name}, datasheet)"
    )
    mean = "one step" if count == 1 else f"mean of {count} steps"
    text = f"{mean}; {' and '.join(sources)}; {peaks}"
    return text if known >= _WHOLE_RATIO else f"{text}; sizes known for {known:.0%} of the part"


def _whole(
    analysis: Analysis,
    phase: str,
    steps: Sequence[int],
    parts: Sequence[Mapping[str, Any]],
    limits: DeviceLimits,
) -> Iterator[dict[str, Any]]:
    """The step as a whole: the floors of its parts, beside its wall time. What the other parts need
    is not in it, so the bound is a low one."""
    known = len(steps) * sum(row["measured_ns"] for row in parts)
    if known < _MOST_OF_WORK_RATIO * _computing_ns(analysis, steps):
        return
    if _unrecorded_ns(analysis, steps) > _UNSEEN_RATIO * _lasting_ns(analysis, steps):
        return
    devices = max(analysis.window.devices, 1)
    floor = sum(row["floor_ns"] for row in parts) // devices
    measured = _wall_ns(analysis, phase)
    memory = sum(row["floor_ns"] for row in parts if row["bound"] == "memory") // devices
    named = ", ".join(str(row["part"]) for row in parts)
    yield {
        "phase": phase or None,
        "part": None,
        "bytes": sum(row["bytes"] for row in parts),
        "flops": sum(row["flops"] for row in parts),
        "floor_ns": floor,
        "measured_ns": measured,
        "reached_ratio": floor / measured if measured else None,
        "bound": "memory" if 2 * memory >= floor else "compute",
        "known_ratio": None,
        "basis": f"the floors of {named} together, beside the median step ({limits.name})",
    }


def _unrecorded_ns(analysis: Analysis, steps: Sequence[int]) -> int:
    """Idle of these steps in which the device may have worked at what has no rows."""
    gaps = analysis.gaps
    unseen = gaps[gaps["unrecorded"].to_numpy() & gaps["step"].isin(steps).to_numpy()]
    return int((unseen["end_ns"] - unseen["start_ns"]).sum())


def _lasting_ns(analysis: Analysis, steps: Sequence[int]) -> int:
    walls = analysis.steps["wall_ns"].to_numpy()[list(steps)]
    return int(walls.sum()) * max(analysis.window.devices, 1)


def _computing_ns(analysis: Analysis, steps: Sequence[int]) -> int:
    """What these steps keep the device busy with, but for communication: that is mostly waiting."""
    busy = int(analysis.steps["busy_ns"].to_numpy()[list(steps)].sum())
    sent = [i for i, (group, _) in enumerate(BUCKETS) if group == "communication"]
    return busy - int(analysis.bucket_ns_of_steps()[np.ix_(list(steps), sent)].sum())


def judge_headroom(context: Context, analysis: Analysis) -> RuleResult:
    """Parts of a step that stay far below what the device allows."""
    rows = [row for row in analysis.roofline if row["part"] is not None]
    if not rows:
        return RuleResult(checks=(Check(RULE, "not_checked", _unknown(context, analysis)),))
    low = [row for row in rows if _is_low(row, _wall_ns(analysis, row["phase"] or ""))]
    findings = tuple(_finding(analysis, row) for row in low)
    return RuleResult(findings, (verdict(RULE, findings),))


def _unknown(context: Context, analysis: Analysis) -> str:
    if context.work.cpu_only:
        return "the limits of this processor are not known"
    if device_limits(context.work.trace) is None:
        return "the limits of this device are not known"
    if not analysis.accounted:
        return analysis.breakdown_reason
    if moved_by(context):
        return "for the precision of its products no peak rate is known"
    return (
        "shapes and types of operands were not recorded, nor weights: `tracer run`, or "
        "record_shapes=True in torch.profiler"
    )


def _is_low(row: Mapping[str, Any], wall_ns: int) -> bool:
    ratio = row["reached_ratio"]
    return (
        ratio is not None
        and ratio < _GOOD_RATIO
        and row["measured_ns"] >= (_NOTABLE_RATIO * wall_ns)
    )


def _finding(analysis: Analysis, row: Mapping[str, Any]) -> Finding:
    phase = row["phase"] or ""
    what = "memory bandwidth" if row["bound"] == "memory" else "rate of the tensor cores"
    steps = tuple(_steps_of(analysis, phase))
    floor, measured = row["floor_ns"] / 1e6, row["measured_ns"] / 1e6
    title = (
        f"{f'{phase}: ' if phase else ''}{row['part']} reaches {row['reached_ratio']:.0%} of the "
        f"{what}: {measured:.3g} ms a step, {floor:.3g} ms at the limit"
    )
    told = ("phase", "part", "bytes", "flops", "floor_ns", "measured_ns", "bound")
    detail = {key: row[key] for key in told}
    return Finding(
        RULE,
        "info",
        title,
        len(steps),
        steps=steps,
        detail={**detail, "basis": row["basis"]},
        advice=_ADVICE[row["bound"]],
    )


_ADVICE = {
    "memory": (
        "Small kernels do not fill the device: give each launch more work (a larger batch), fuse "
        "them (torch.compile, mode='max-autotune'), or read fewer bytes (quantized weights or "
        "cache)."
    ),
    "compute": (
        "Shapes that fill whole tiles (multiples of 128), a larger batch, or "
        "torch.compile(mode='max-autotune') bring products nearer to the limit."
    ),
}
