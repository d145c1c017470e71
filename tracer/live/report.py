"""The report of a live run, as text, page or document."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracer.errors import UsageError

if TYPE_CHECKING:
    from tracer.analysis import Analysis


class Report:
    """`str()` is the text, a notebook shows the page, `json()` the document of the schema."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    def text(self, width: int | None = None, *, color: bool = False) -> str:
        """The report for a terminal."""
        from tracer.exporters.text import render_text

        return render_text(self.analysis, width=width, color=color)

    def json(self) -> dict[str, Any]:
        """The report as `tracer report --json` writes it."""
        from tracer.exporters.json_report import to_report

        return to_report(self.analysis)

    def html(self) -> str:
        """One self-contained page."""
        from tracer.exporters.html import to_html

        return to_html(self.analysis)

    def __getitem__(self, field: str) -> Any:
        return self.json()[field]

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from tracer.exporters.html import to_fragment

        return to_fragment(self.analysis)


def optional_function(module: str, name: str) -> Callable[..., Any]:
    """A function of a part that may be left out of an installation."""
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{module}.{name} is not installed here: {error}") from error
    return function
