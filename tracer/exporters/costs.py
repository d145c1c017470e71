"""What findings cost a step, and which of them are worth most."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis import Analysis
from tracer.exporters.format import UNKNOWN, duration_text
from tracer.exporters.levels import Level
from tracer.exporters.traced import turns_ns
from tracer.findings import Finding

# Rules on what a loop does beside its steps: such a cost is told as a whole.
_OF_THE_LOOP = ("loop.",)
# A step is not shorter without what lies between steps, which counts from this share of a cost on.
NOTABLE_BETWEEN_RATIO = 0.1


@dataclass(frozen=True)
class Cost:
    """A finding, as a mean over the `of_steps` steps of the phases it touches.

    `of_steps` is 0 when the finding belongs to no step, to the loop or to warm-up alone, or costs
    more than its steps last: then the times are those of the window.
    """

    finding: Finding
    of_steps: int
    phases: frozenset[str]
    in_warmup: bool = False  # it lies in warm-up steps alone, and there are others

    @property
    def cost_ns(self) -> float | None:
        return self._mean(self.finding.cost_ns)

    @property
    def gain_ns(self) -> float | None:
        return self._mean(self.finding.gain_ns)

    def _mean(self, ns: int | None) -> float | None:
        return None if ns is None else ns / max(self.of_steps, 1)

    @property
    def between_ratio(self) -> float:
        """How much of it lies between the steps, and not in them."""
        between = int(self.finding.detail.get("between_steps_ns") or 0)
        return between / self.finding.cost_ns if self.finding.cost_ns else 0.0

    @property
    def worth_ns(self) -> int:
        """By what findings are ranked: the gain where it is known, else the cost."""
        finding = self.finding
        return (finding.gain_ns if finding.gain_ns is not None else finding.cost_ns) or 0


def cost_of(analysis: Analysis, finding: Finding) -> Cost:
    """The finding with the number of steps it is a mean of."""
    phases = analysis.steps["phase"].array
    touched = [step for step in finding.steps if 0 <= step < len(phases)]
    codes = np.unique(phases.codes[touched])
    names = frozenset(str(phases.categories[code]) for code in codes.tolist())
    alike = np.isin(phases.codes, codes)
    warmup = analysis.steps["warmup"].to_numpy()
    if touched and warmup[touched].all() and not warmup.all():
        return Cost(finding, 0, names, in_warmup=True)
    if finding.rule.startswith(_OF_THE_LOOP):
        return Cost(finding, 0, names)
    steady = alike & ~warmup
    chosen = steady if bool(steady[touched].all()) else alike
    lasting = int(turns_ns(analysis)[chosen].sum())
    inside = (finding.cost_ns or 0) <= lasting * max(analysis.window.devices, 1)
    cost = Cost(finding, int(chosen.sum()) if inside else 0, names)
    last_is_apart = chosen[-1] and len(chosen) - 1 not in touched
    return _of_followed(cost) if last_is_apart else cost


def _of_followed(cost: Cost) -> Cost:
    """What lies between steps is a mean of those that another follows: nothing is behind the last
    of a recording."""
    if cost.of_steps < 2 or cost.between_ratio <= NOTABLE_BETWEEN_RATIO:
        return cost
    return replace(cost, of_steps=cost.of_steps - 1)


def ranked_costs(analysis: Analysis) -> list[Cost]:
    """All findings in their order, the costliest first."""
    return [cost_of(analysis, finding) for finding in analysis.findings]


def gain_text(cost: Cost) -> str:
    """`-35.0 ms`: what a change would give back a step."""
    if cost.gain_ns is None:
        return UNKNOWN
    return f"-{duration_text(cost.gain_ns)}" if cost.gain_ns else "0"


def largest_gain(
    analysis: Analysis, smallest_ratio: float, besides: Cost | None = None
) -> Cost | None:
    """The finding that is worth most, besides one; None when it is worth less than this share of
    the window."""
    costs = [
        cost
        for cost in ranked_costs(analysis)
        if cost.finding.severity != "info"
        and not cost.in_warmup
        and (besides is None or cost.finding is not besides.finding)
    ]
    best = max(costs, key=lambda cost: cost.worth_ns, default=None)
    if best is None or best.worth_ns < smallest_ratio * analysis.window.capacity_ns:
        return None
    return best


def is_about(cost: Cost, level: Level) -> bool:
    """Whether the finding lies in the steps of this level alone."""
    return level.phase is not None and cost.of_steps > 0 and cost.phases == {level.phase}
