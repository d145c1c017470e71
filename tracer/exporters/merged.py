"""Findings as a reader wants them: what costs nothing on this machine, at many places, is one, and
what another finding tells and counts is not told again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracer.analysis import Analysis
from tracer.exporters.costs import Cost, cost_of, ranked_costs
from tracer.exporters.format import counted
from tracer.exporters.names import where_text
from tracer.findings import Finding, Where

_ADVICE = (
    "Nothing on a CPU. Before it runs on a GPU: keep these values on the device, and read them "
    "together after the loop."
)


def reported_costs(analysis: Analysis) -> list[Cost]:
    """The findings in their order, those of waits that only a GPU would make as one."""
    costs = [c for c in ranked_costs(analysis) if "counted_in" not in c.finding.detail]
    apart = [cost for cost in costs if cost.finding.detail.get("would_wait")]
    if len(apart) < 2:
        return costs
    merged = cost_of(analysis, _merged([cost.finding for cost in apart]))
    at = costs.index(apart[0])
    rest = [cost for cost in costs if cost not in apart]
    return [*rest[:at], merged, *rest[at:]]


def _merged(findings: Sequence[Finding]) -> Finding:
    findings = sorted(findings, key=lambda finding: -finding.count)
    places = "; ".join(map(_place, findings))
    return replace(
        findings[0],
        title=f"would wait on a GPU, at {len(findings)} places: {places}",
        count=sum(finding.count for finding in findings),
        steps=tuple(sorted({step for finding in findings for step in finding.steps})),
        where=Where(),
        detail={"would_wait": True},
        advice=_ADVICE,
        events=tuple(event for finding in findings for event in finding.events)[:100],
    )


def _place(finding: Finding) -> str:
    place = where_text(finding.where) or "an unknown place"
    library = finding.detail.get("library")
    through = f" through {library}" if library else ""
    return f"{place}{through} ({counted(finding.count, 'time')})"
