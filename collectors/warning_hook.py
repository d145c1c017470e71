"""The one place that looks at warnings before they are shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple, TextIO


class Warned(NamedTuple):
    """A warning about to be shown."""

    text: str
    category: type[Warning]
    filename: str


def listen(takes: Callable[[Warned], bool]) -> Callable[[], None]:
    """Show `takes` every warning of the process from now on: what it takes is shown to nobody
    else. Returns what undoes it; where somebody has put a hook over ours since, theirs stays."""
    show = warnings.showwarning

    def showwarning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not takes(Warned(str(message), category, filename)):
            show(message, category, filename, lineno, file, line)

    def undo() -> None:
        if warnings.showwarning is showwarning:
            warnings.showwarning = show

    warnings.showwarning = showwarning
    return undo
