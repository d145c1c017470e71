"""What the terminal can show. Loads before the first frame, so it needs no table of the core."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rich.style import Style

from tracer.exporters.names import ascii_only, inert

_BACKGROUNDS = {"dark": 233, "light": 231}
_FOREGROUNDS = {"dark": 252, "light": 234}


@dataclass(frozen=True)
class Look:
    """ASCII alone or not, colour or none, a light background or a dark one."""

    ascii: bool = False
    color: bool = True
    light: bool = False

    @property
    def theme(self) -> str:
        return "light" if self.light else "dark"

    @cached_property
    def base(self) -> Style:
        """Plain text on the background of the screen."""
        if not self.color:
            return Style()
        back, front = _BACKGROUNDS[self.theme], _FOREGROUNDS[self.theme]
        return Style(color=f"color({front})", bgcolor=f"color({back})")

    def sign(self, unicode: str, plain: str) -> str:
        """One of two signs: what Unicode has, or what ASCII has for it."""
        return plain if self.ascii else unicode

    def name(self, text: str) -> str:
        """Text from a recording, safe on this terminal."""
        return ascii_only(inert(text)) if self.ascii else inert(text)

    @property
    def rule(self) -> str:
        return self.sign("─", "-")

    @property
    def separator(self) -> str:
        return self.sign(" · ", ", ")
