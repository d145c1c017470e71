"""Signs and colours of what is drawn: every colour has a letter or a texture beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.style import Style

from tracer.analysis import GROUPS
from tracer.exporters.layout import CAUSE_LETTERS, Page
from tracer.tui.look import Look

GROUP_LETTERS: Mapping[str, str] = {
    "attention": "A",
    "ffn": "F",
    "communication": "C",
    "other": "O",
}
SEVERITY_MARKS: Mapping[str, str] = {"critical": "!!", "warning": "!", "info": "i"}
# Nine signs, from no work in a cell to nothing but work.
_LOADS = " ▁▂▃▄▅▆▇█"
_ASCII_LOADS = " ..::==##"
_SHARES = " ▏▎▍▌▋▊▉█"


def page_of(look: Look, width: int) -> Page:
    """The page that the exporters draw on."""
    return Page(width, look.ascii, look.light)


@lru_cache(maxsize=8)
def group_styles(light: bool) -> tuple[Style, ...]:
    """The colour of each group, in the order of GROUPS."""
    page = Page(1, light=light)
    return tuple(Style.parse(page.style(group)) for group in GROUPS)


def load_levels(ratios: NDArray[np.float64]) -> NDArray[np.int64]:
    """Shares of a cell's time as levels 0 to 8: 0 only where there is nothing."""
    levels = np.clip(np.rint(ratios * 8), 1, 8).astype(np.int64)
    return np.where(ratios > 0, levels, 0)


def load_signs(look: Look, ratios: NDArray[np.float64]) -> str:
    """A sign for each share of a cell's time, as high as the share."""
    signs = _ASCII_LOADS if look.ascii else _LOADS
    return "".join(signs[level] for level in load_levels(ratios).tolist())


def share_bar(look: Look, ratio: float, width: int) -> str:
    """A bar that grows to the right, in eighths of a cell."""
    eighths = min(max(round(ratio * width * 8), 1 if ratio > 0 else 0), width * 8)
    if look.ascii:
        return ("#" * max(round(eighths / 8), 1 if eighths else 0)).ljust(width)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_SHARES[rest] if rest else "")).ljust(width)


def cause_letter(cause: str) -> str:
    """The letter of a cause of idle."""
    return CAUSE_LETTERS.get(cause, "?")
