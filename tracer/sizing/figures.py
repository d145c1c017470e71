"""A number with the formula it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast


@dataclass(frozen=True)
class Figure:
    """A value and how it was computed, numbers filled in."""

    value: int | float
    formula: str


def number(value: float) -> str:
    """A number for a formula: whole ones with thousands apart, others short."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"


def to_plain(value: Any) -> Any:
    """Dataclasses and figures as JSON holds them."""
    if isinstance(value, Figure):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in cast("list[Any]", value)]
    return value


def walk_figures(value: Any, path: str = "") -> Iterator[tuple[str, Figure]]:
    """Every figure in a result with its path, in order."""
    if isinstance(value, Figure):
        yield path, value
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from walk_figures(getattr(value, item.name), _join(path, item.name))
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from walk_figures(item, _join(path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from walk_figures(item, f"{path}[{index}]")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
