"""The detail of a finding in words, one fact a line: what documents hold as keys and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tracer.exporters.format import bytes_text, duration_text, percent_text

# How a key ends -> how its number is said; the first that fits.
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_bytes_per_s", lambda size: f"{bytes_text(round(size))}/s"),
    ("_ns_per_step", lambda ns: f"{duration_text(ns)} a step"),
    ("bytes_per_step", lambda size: f"{bytes_text(round(size))} a step"),
    ("_ns", duration_text),
    ("_ms", lambda ms: duration_text(ms * 1e6)),
    ("_ratio", percent_text),
    ("bytes", lambda size: bytes_text(round(size))),
)
# What a key alone does not say well.
_LABELS = {
    "each_ns": "each time",
    "like_ns": "its like takes",
    "blocked_ns": "host waited",
    "idle_ns": "device idle",
    "idle_after_ns": "idle after it",
    "gain_basis": "gain known by",
    "bytes": "size",
    "score_bytes": "scores take",
}
# Texts of a list that are longer stand on lines of their own.
_SHORT = 24

Unit = Callable[[float], str] | None


def detail_facts(detail: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Label and text of each fact; a further line of the same fact has no label. What was not
    recorded is left out."""
    for key, value in detail.items():
        label = _label(str(key))
        for text in _lines(value, _unit(str(key))):
            yield label, text
            label = ""


def _label(key: str) -> str:
    known = _LABELS.get(key)
    if known is not None:
        return known
    ending = next((ending for ending, _ in _UNITS if ending[0] == "_" and key.endswith(ending)), "")
    return key.removesuffix(ending).replace("_", " ")


def _unit(key: str) -> Unit:
    return next((said for ending, said in _UNITS if key.endswith(ending)), None)


def _lines(value: object, unit: Unit) -> Iterator[str]:
    """A line for each entry of what holds several facts, one for a plain value."""
    if isinstance(value, Mapping):
        yield from (text for key, item in value.items() if (text := _entry(key, item, unit, ": ")))
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = [text for item in value if (text := _said(item, unit))]
        nested = any(isinstance(item, Mapping) for item in value)
        long = nested or any(len(text) > _SHORT for text in items)
        yield from items if long else ([", ".join(items)] if items else [])
    elif value is not None and (text := _said(value, unit)):
        yield text


def _entry(key: object, value: object, unit: Unit, between: str) -> str:
    text = _said(value, _unit(str(key)) or unit)
    return f"{_label(str(key))}{between}{text}" if text else ""


def _said(value: object, unit: Unit) -> str:
    """A value on one line; "" for what was not recorded."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(text for k, v in value.items() if (text := _entry(k, v, unit, " ")))
    if isinstance(value, (list, tuple, set, frozenset)):
        return "; ".join(text for item in value if (text := _said(item, unit)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return unit(value) if unit is not None else f"{value:,}"
    return str(value)
