"""One line of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warning", "error", "not_checked"]
STATUSES: tuple[Status, ...] = ("error", "warning", "not_checked", "ok")


@dataclass(frozen=True)
class Row:
    """What was looked at, what was found, and what to do about it. `rule` is a stable dotted
    name; `remedy` is empty where nothing is to be done."""

    rule: str
    subject: str
    status: Status
    found: str
    remedy: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def ok(rule: str, subject: str, found: str, **detail: Any) -> Row:
    return Row(rule, subject, "ok", found, detail=detail)


def warning(rule: str, subject: str, found: str, remedy: str, **detail: Any) -> Row:
    return Row(rule, subject, "warning", found, remedy, detail)


def error(rule: str, subject: str, found: str, remedy: str, **detail: Any) -> Row:
    return Row(rule, subject, "error", found, remedy, detail)


def not_checked(rule: str, subject: str, reason: str, remedy: str = "", **detail: Any) -> Row:
    return Row(rule, subject, "not_checked", reason, remedy, detail)
