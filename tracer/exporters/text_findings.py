"""Text sections on what was found and on what can be trusted: findings, checks, notes, facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from tracer.analysis import Analysis
from tracer.exporters.absent import all_checks
from tracer.exporters.costs import Cost, gain_text
from tracer.exporters.counters import counter_items
from tracer.exporters.format import UNKNOWN, counted, duration_text, percent_text
from tracer.exporters.json_report import all_notes, device_name
from tracer.exporters.layout import Column, Page, heading, pad, paragraph, table, titled
from tracer.exporters.merged import reported_costs
from tracer.exporters.names import inert, where_text
from tracer.exporters.traced import block_text
from tracer.findings import Check

# How severe a finding is, before its rule.
MARKS = {"critical": "!!", "warning": "!", "info": "i"}
_INDENT = 5
_MOST_NAMED = 3


def finding_lines(page: Page, analysis: Analysis) -> list[Text]:
    """The findings, the costliest first, each with its place and what to do."""
    costs = reported_costs(analysis)
    if not costs:
        return titled(page, "FINDINGS", f"none{_unchecked_clause(analysis)}")
    columns = [Column(title) for title in ("cost a step", "share", "gain", "steps")]
    titles, *numbers = table(page, columns, [_finding_row(cost) for cost in costs])
    lines = [_beside(page, heading("FINDINGS"), titles)]
    for cost, row in zip(costs, numbers, strict=True):
        finding = cost.finding
        name = pad(f"  {MARKS[finding.severity]}", _INDENT) + finding.rule
        lines.append(_beside(page, Text(name, style="bold"), row))
        lines += _finding_details(page, cost)
    said = "Cost: mean of the steps of its phase. Gains do not add up: each is computed alone."
    return [*lines, *paragraph(page, said, indent=2, style="dim")]


def _unchecked_clause(analysis: Analysis) -> str:
    unlooked = sum(check.status in ("not_checked", "partial") for check in all_checks(analysis))
    return f"; {counted(unlooked, 'check')} could not be made in full" if unlooked else ""


def _beside(page: Page, left: Text, right: Text) -> Text:
    """Two texts at the two ends of a line."""
    blanks = " " * max(page.width - left.cell_len - right.cell_len, 1)
    return Text.assemble(left, blanks, right)


def _finding_row(cost: Cost) -> list[str]:
    finding = cost.finding
    return [
        duration_text(cost.cost_ns) if cost.of_steps else _in_window(cost),
        percent_text(finding.ratio),
        gain_text(cost),
        f"{len(finding.steps)}/{cost.of_steps}" if cost.of_steps else UNKNOWN,
    ]


def _in_window(cost: Cost) -> str:
    return UNKNOWN if cost.cost_ns is None else f"{duration_text(cost.cost_ns)} in all"


def _finding_details(page: Page, cost: Cost) -> list[Text]:
    finding = cost.finding
    lines = paragraph(page, inert(finding.title), indent=_INDENT)
    place = where_text(finding.where)
    if place:
        lines += paragraph(page, f"where: {place}", indent=_INDENT)
    if finding.advice:
        lines += paragraph(page, f"do: {inert(finding.advice)}", indent=_INDENT)
    return lines


def check_lines(page: Page, analysis: Analysis) -> list[Text]:
    """How many checks were made, what came of them, and why the rest was not."""
    checks = all_checks(analysis)
    count = Counter(check.status for check in checks)
    made = len(checks) - count["not_checked"]
    said = (
        f"{made} of {len(checks)} made: {count['found']} found, {count['clear']} clear, "
        f"{count['partial']} partial."
    )
    lines = titled(page, "CHECKS", said)
    unmade = [check for check in checks if check.status == "not_checked"]
    groups = {
        "In part": _grouped([check for check in checks if check.status == "partial"]),
        "Not made": _grouped([check for check in unmade if not _is_capture(check)]),
        "Not recorded": ", ".join(_value_name(check) for check in unmade if _is_capture(check)),
    }
    for title, listed in groups.items():
        if listed:
            lines += paragraph(page, f"{title}: {listed}.", indent=2, style="dim")
    return lines


def _is_capture(check: Check) -> bool:
    return check.rule.startswith("capture.")


def _value_name(check: Check) -> str:
    return check.rule.removeprefix("capture.").replace("_", " ")


def _grouped(checks: Sequence[Check]) -> str:
    """Rules by reason: `rule, rule (reason); 9 rules (another reason)`."""
    rules: dict[str, list[str]] = {}
    for check in checks:
        rules.setdefault(check.reason or "no reason given", []).append(check.rule)
    return "; ".join(
        f"{', '.join(names) if len(names) <= _MOST_NAMED else counted(len(names), 'rule')} "
        f"({inert(reason)})"
        for reason, names in rules.items()
    )


def note_lines(page: Page, analysis: Analysis) -> list[Text]:
    """What a reader must know about the recording, one note each."""
    notes = all_notes(analysis)
    if not notes:
        return titled(page, "INTEGRITY", f"{analysis.integrity_status}")
    lines = titled(page, "INTEGRITY", f"{analysis.integrity_status}, {counted(len(notes), 'note')}")
    for note in notes:
        lines += _hanging(page, f"{note.rule}: {inert(note.message)}")
    return lines


def _hanging(page: Page, text: str) -> list[Text]:
    first, *rest = paragraph(page, text, indent=4)
    return [Text(first.plain[2:]), *rest]


def source_lines(page: Page, analysis: Analysis) -> list[Text]:
    """What was recorded: path, framework, device, model facts; of a live run what it could use."""
    lines = paragraph(page, page_separator(page).join(head_items(analysis)), style="dim")
    joined = page_separator(page).join
    live, counters = joined(live_items(analysis)), joined(counter_items(analysis))
    for said in (live, counters, block_text(analysis)):
        lines += paragraph(page, said, style="dim") if said else []
    return lines


def page_separator(page: Page) -> str:
    """What stands between facts."""
    return ", " if page.ascii else " · "


def head_items(analysis: Analysis) -> Iterator[str]:
    """The facts of the head line, without those that the line of a live run tells in full."""
    told = {"attention_implementation", "dtypes"} if _is_live(analysis) else set()
    yield from _source_items(analysis, told)


def source_items(analysis: Analysis) -> Iterator[str]:
    """The facts of the head line."""
    yield from _source_items(analysis, set())


def live_items(analysis: Analysis) -> Iterator[str]:
    """What a live run could use: attention as asked for and as resolved, what this machine offers,
    types of weights. Nothing for a recording of somebody else's."""
    if not _is_live(analysis):
        return
    facts = analysis.facts
    yield inert(_attention_words(facts))
    yield f"offered here: {inert(_flat(facts.get('attention_backends') or UNKNOWN))}"
    yield f"weights {inert(_dtype_words(facts.get('dtypes')))}"
    if facts.get("fp32_products"):
        yield "fp32 products in TF32" if facts["fp32_products"] == "tf32" else "TF32 off"


def _is_live(analysis: Analysis) -> bool:
    """Whether our own recorder made the recording, now or before it was saved."""
    return analysis.trace.meta.detail is not None and "attention_backends" in analysis.facts


def _attention_words(facts: Mapping[str, Any]) -> str:
    resolved, asked = facts.get("attention_implementation"), facts.get("attention_requested")
    ran = f", ran {_flat(facts['attention_ran'])}" if facts.get("attention_ran") else ""
    if not resolved:
        return f"attention: no model with a choice{ran}"
    return f"attention {resolved} (asked for: {asked or UNKNOWN}){ran}"


def _dtype_words(dtypes: Any) -> str:
    """`bfloat16 99 %, float32 1 %`."""
    if not isinstance(dtypes, Mapping) or not dtypes:
        return "of no model seen"
    total = sum(dtypes.values())
    if len(dtypes) == 1 or not total:
        return _flat(dtypes)
    return ", ".join(f"{name} {percent_text(count / total)}" for name, count in dtypes.items())


def _source_items(analysis: Analysis, told: Collection[str]) -> Iterator[str]:
    meta = analysis.trace.meta
    yield inert(meta.path or meta.source_kind)
    if meta.framework:
        yield inert(meta.framework)
    devices = analysis.window.devices
    name = device_name(analysis)
    if devices:
        yield f"{devices} x {inert(name or 'GPU of unknown name')}"
    elif gpus := analysis.facts.get("gpus"):  # none of them has rows: detail light has none
        yield inert(f"{len(gpus)} x {gpus[0]}")
    elif analysis.cpu_only:
        yield "CPU only"
    if meta.rank is not None:
        of = f" of {meta.world_size}" if meta.world_size else ""
        yield f"rank {meta.rank}{of}"
    yield from _fact_items({k: v for k, v in analysis.facts.items() if k not in told})
    yield f"{duration_text(analysis.window.wall_ns)} recorded"


def _fact_items(facts: Mapping[str, Any]) -> Iterator[str]:
    titles = {
        "engine": "",
        "attention_implementation": "attention ",
        "dtypes": "",
        "quantization": "",
        "compile_mode": "compile ",
    }
    for key, title in titles.items():
        value = facts.get(key)
        if value:
            yield title + inert(_flat(value))


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(str(key) for key in value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(str, value))
    return str(value)
