"""One finding: what it costs, its evidence, its source, what to do, and how far it is known."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from tracer.analysis import Analysis
from tracer.exporters.absent import all_checks
from tracer.exporters.costs import cost_of, gain_text
from tracer.exporters.detail import detail_facts
from tracer.exporters.format import UNKNOWN, count_text, duration_text, percent_text
from tracer.findings import Finding
from tracer.tui.look import Look
from tracer.tui.model.evidence import event_words
from tracer.tui.model.findings import cost_text, steps_text
from tracer.tui.model.lines import BOLD, DIM, Line, Target, heading, labelled, plain, wrapped
from tracer.tui.model.places import Moment
from tracer.tui.model.signs import SEVERITY_MARKS
from tracer.tui.model.source import source_lines
from tracer.tui.model.table import cut

_MOST_EVIDENCE = 40
_SHOWN_STEPS = 12
_LABEL = 18


def finding_lines(
    look: Look, analysis: Analysis, number: int, width: int, around: int = 4
) -> list[Line]:
    """Everything on a finding; its evidence can be selected and leads to the timeline."""
    finding = analysis.findings[number]
    lines = wrapped(f"{SEVERITY_MARKS[finding.severity]} {look.name(finding.rule)}", width, 1, BOLD)
    lines += wrapped(look.name(finding.title), width)
    lines += [plain(), *_number_lines(look, analysis, finding, width)]
    if finding.advice:
        lines += [plain(), heading("DO")]
        advice = wrapped(look.name(finding.advice), width)
        lines += [Line(advice[0].text, None, finding.advice), *advice[1:]]
    lines += [plain(), *_evidence_lines(look, analysis, finding, number, width)]
    lines += [plain(), heading("SOURCE")]
    lines += source_lines(look, finding.where, width, analysis.trace.meta.path or "", around)
    for label, text in (("module", finding.where.module), ("operator", finding.where.operator)):
        lines += labelled(label, look.name(text), width) if text else []
    lines += _limit_lines(look, analysis, finding, width)
    return lines


def _number_lines(look: Look, analysis: Analysis, finding: Finding, width: int) -> list[Line]:
    cost = cost_of(analysis, finding)
    each = " a step" if cost.of_steps else " in the window"
    lines: list[Line] = []
    if finding.cost_ns is not None:
        ratio = percent_text(finding.ratio)
        text = f"{cost_text(cost).removesuffix(' *')}{each}, {ratio} of the window"
        lines += labelled("cost", text, width, _LABEL)
    else:
        lines += labelled("cost", f"{UNKNOWN}  not measurable on this recording", width, _LABEL)
    if finding.gain_ns is not None:
        text = f"{gain_text(cost)}{each}, if this alone is changed"
        lines += labelled("gain", text, width, _LABEL)
    times = "once" if finding.count == 1 else f"{count_text(finding.count)} times"
    seen = f"{times}, steps {steps_text(cost)}"
    lines += labelled("seen", seen, width, _LABEL)
    for label, text in detail_facts(finding.detail):
        lines += labelled(look.name(label), look.name(text), width, _LABEL)
    return lines


def _evidence_lines(
    look: Look, analysis: Analysis, finding: Finding, number: int, width: int
) -> Iterator[Line]:
    known = [event for event in finding.events if 0 <= event < len(analysis.trace.events)]
    if known:
        more = f"the first {_MOST_EVIDENCE} of {len(known):,}; " * (len(known) > _MOST_EVIDENCE)
        yield heading("EVIDENCE", f"{more}Enter opens it on the timeline", width)
        for event in known[:_MOST_EVIDENCE]:
            text = cut(look.name(event_words(analysis, event)), width - 4)
            moment = Moment(event=event, finding=number)
            yield Line(Text(f"   {text}"), Target("timeline", moment), text)
        return
    if not finding.steps:
        yield plain("   no single event is its evidence", DIM)
        return
    yield heading("EVIDENCE", "Enter opens the step on the timeline", width)
    for step in finding.steps[:_SHOWN_STEPS]:
        wall = duration_text(int(analysis.steps["wall_ns"].iloc[step]))
        moment = Moment(step=step, finding=number)
        yield Line(Text(f"   step {step}   {wall}"), Target("timeline", moment), f"step {step}")


def _limit_lines(look: Look, analysis: Analysis, finding: Finding, width: int) -> list[Line]:
    """What the check itself says of how far it could look."""
    checks = [check for check in all_checks(analysis) if check.rule == finding.rule]
    lines: list[Line] = []
    for check in checks:
        text = f"{check.status.replace('_', ' ')}{': ' if check.reason else ''}{check.reason}"
        lines += [plain(), *labelled("check", look.name(text), width)]
    return lines
