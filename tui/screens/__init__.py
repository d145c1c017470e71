"""The screens, one file each: a file with a subclass of `View`, and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.tui.widgets.view import View


@dataclass(frozen=True)
class Entry:
    """A screen: its key, where its class is, its name in the header. Without a title it belongs to
    the screen `tab` there."""

    key: str
    home: str
    title: str = ""
    within: str = ""

    @property
    def words(self) -> str:
        """The screen in a sentence."""
        return self.title or self.key.capitalize()

    @property
    def tab(self) -> str:
        return self.within or self.key


SCREENS: tuple[Entry, ...] = (
    Entry("overview", "overview:OverviewView", "Overview"),
    Entry("steps", "steps:StepsView", "Steps"),
    Entry("modules", "modules:ModulesView", "Modules"),
    Entry("kernels", "kernels:KernelsView", "Kernels"),
    Entry("findings", "findings:FindingsView", "Findings"),
    Entry("communication", "communication:CommunicationView", "Comm"),
    Entry("ranks", "ranks:RanksView", "Ranks"),
    Entry("timeline", "timeline:TimelineView", within="steps"),
    Entry("finding", "finding:FindingView", within="findings"),
    Entry("help", "help:HelpView"),
    Entry("palette", "palette:PaletteView"),
)


def tabs() -> list[Entry]:
    """The screens of the header; their places are their numbers."""
    return [entry for entry in SCREENS if entry.title]


def entry(key: str) -> Entry:
    """The screen of that key."""
    return next(entry for entry in SCREENS if entry.key == key)


def load(key: str) -> type[View]:
    """The class of a screen; screens load when they are first opened."""
    module, _, name = entry(key).home.partition(":")
    view: type[View] = getattr(import_module(f"tracer.tui.screens.{module}"), name)
    return view
