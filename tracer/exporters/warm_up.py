"""Where warm-up is most of a recording, that is the answer to where its time went."""

from __future__ import annotations

from tracer.analysis import Analysis
from tracer.exporters.format import counted, duration_text
from tracer.exporters.names import inert

# Warm-up leads the report from this share of the window on.
_MOST = 0.5
_RULE = "warmup.first_use"


def warm_up_sentence(analysis: Analysis) -> str:
    """What warm-up took and most of it was; "" where it is the smaller part, or all there is."""
    steps = analysis.steps
    warm = steps["warmup"].to_numpy()
    took = int(steps["wall_ns"].to_numpy()[warm].sum())
    if warm.all() or took < _MOST * max(analysis.window.wall_ns, 1):
        return ""
    count = f"{int(warm.sum())} of {counted(len(steps), 'step')}"
    text = f"Warm-up, {count}, takes {duration_text(took)} of the recording's "
    text += duration_text(analysis.window.wall_ns)
    return f"{text}{_mostly(analysis)}."


def _mostly(analysis: Analysis) -> str:
    found = [finding for finding in analysis.findings if finding.rule == _RULE]
    first = max(found, key=lambda finding: finding.cost_ns or 0, default=None)
    return "" if first is None else f"; {inert(first.title)}"
