"""`tracer doctor` as text and JSON: the answer first, then what is wrong, then everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from tracer.commands.console import shows_unicode, wrapped
from tracer.environment.diagnosis import Diagnosis
from tracer.environment.rows import STATUSES, Row, Status
from tracer.version import VERSION

SCHEMA = "tracer.doctor/1"

_STYLES: dict[Status, str] = {
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
    "not_checked": "dim",
}
_MARKS: dict[Status, str] = {"ok": "ok", "warning": "warning", "error": "ERROR", "not_checked": "-"}
_SUBJECT = 18  # cells of the subject's column


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON: `schema`, `tracer`, `verdict`, `status` (ok, warning, error),
    `counts` by status, and `rows`: `family`, `rule` (a stable dotted name), `subject`, `status`
    (ok, warning, error, not_checked), `found`, `remedy` (null where there is nothing to do),
    `detail` (the parts of `found` that a program may want)."""
    return {
        "schema": SCHEMA,
        "tracer": VERSION,
        "verdict": verdict(diagnosis),
        "status": diagnosis.worst,
        "counts": {status: diagnosis.count(status) for status in STATUSES},
        "rows": [
            _row_json(family, row) for family, rows in diagnosis.families.items() for row in rows
        ],
    }


def _row_json(family: str, row: Row) -> dict[str, Any]:
    return {
        "family": family,
        "rule": row.rule,
        "subject": row.subject,
        "status": row.status,
        "found": row.found,
        "remedy": row.remedy or None,
        "detail": dict(row.detail),
    }


def verdict(diagnosis: Diagnosis) -> str:
    """The answer in a sentence: sound, or the errors with their remedies."""
    errors, warnings = diagnosis.with_status("error"), diagnosis.with_status("warning")
    if errors:
        return f"{_counted(len(errors), 'error')}: {_told(errors)}"
    if warnings:
        return (
            f"This environment is sound, with {_counted(len(warnings), 'warning')}: "
            f"{_named(warnings)}."
        )
    return "This environment is sound."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _told(errors: Sequence[Row]) -> str:
    """The first in full, the others by name; the table has all."""
    first = f"{errors[0].found}: {errors[0].remedy}"
    return f"{first}; also: {_named(errors[1:])}" if len(errors) > 1 else f"{first}."


def _named(rows: Sequence[Row]) -> str:
    subjects = list(dict.fromkeys(row.subject for row in rows))
    return ", ".join(subjects[:4]) + (" and others" if len(subjects) > 4 else "")


def doctor_lines(diagnosis: Diagnosis, width: int, *, problems_only: bool = False) -> list[Text]:
    """The table: first what is wrong, then everything by family."""
    lines = wrapped(verdict(diagnosis), width, style="bold")
    wrong = [*diagnosis.with_status("error"), *diagnosis.with_status("warning")]
    if wrong:
        lines.append(Text())
        for row in wrong:
            lines += _row_lines(row, width)
    shown: tuple[Status, ...] = ("not_checked",) if problems_only else ("ok", "not_checked")
    for family, rows in diagnosis.families.items():
        rest = [row for row in rows if row.status in shown]
        if rest:
            lines += [Text(), Text(family, style="bold")]
            for row in _gathered(rest):
                lines += _row_lines(row, width)
    return lines


def _gathered(rows: Sequence[Row]) -> list[Row]:
    """The private interfaces that are there as one row: nobody has to do anything about them."""
    found = [row for row in rows if row.rule == "interfaces" and row.status == "ok"]
    if len(found) < 2:
        return list(rows)
    text = f"{len(found)} that tracer uses are in this torch (--json lists them)"
    return [*(row for row in rows if row not in found), replace(found[0], found=text)]


def _row_lines(row: Row, width: int) -> list[Text]:
    """Mark and subject, what was found, and the remedy under it."""
    mark, subject = _MARKS[row.status], row.subject
    start = f"{mark:7}  {subject:{_SUBJECT}}  "
    indent = len(f"{'':7}  {'':{_SUBJECT}}  ")
    if len(subject) > _SUBJECT:
        lines = [Text(start.rstrip())]
        lines += wrapped(row.found, width, indent=indent)
    else:
        lines = wrapped(start + row.found, width, hanging=indent)
    lines[0].stylize(_STYLES[row.status], 0, len(mark))
    if row.remedy:
        arrow = "→" if shows_unicode() else "->"
        text = f"{arrow} {row.remedy}"
        lines += wrapped(text, width, indent=indent, hanging=indent + len(arrow) + 1)
    return lines
