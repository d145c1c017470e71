"""What the threads that work tell the screen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from textual.message import Message


class Progress(Message):
    """So much of a recording is read."""

    def __init__(self, name: str, stage: str, done: int = 0, total: int = 0) -> None:
        super().__init__()
        self.name, self.stage, self.done, self.total = name, stage, done, total


class Loaded(Message):
    """A recording is understood; `number` is its place among those that are opened."""

    def __init__(self, number: int, analysis: Any) -> None:
        super().__init__()
        self.number, self.analysis = number, analysis


class Failed(Message):
    """A recording could not be read."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__()
        self.number, self.error = number, error


class Prepared(Message):
    """What a view draws is worked out. `ticket` tells an answer that came too late."""

    def __init__(self, view: str, ticket: int, model: Any) -> None:
        super().__init__()
        self.view, self.ticket, self.model = view, ticket, model


class Newest(Message):
    """What a running capture holds by now; None: nothing new, or it has ended."""

    def __init__(self, analysis: Any) -> None:
        super().__init__()
        self.analysis = analysis


class Finished(Message):
    """A capture has ended; this is all of it."""

    def __init__(self, analysis: Any) -> None:
        super().__init__()
        self.analysis = analysis


class Compared(Message):
    """The ranks that are open were compared; None: they are not ranks of one run."""

    def __init__(self, comparison: Any) -> None:
        super().__init__()
        self.comparison = comparison


class Crashed(Message):
    """A thread that worked for the screen failed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True)
class Ask:
    """A line the user fills in: what it is for, and what is there already. Text that is selected
    goes when something is typed."""

    kind: str
    label: str
    text: str = ""
    selected: bool = False

    def with_more(self, text: str) -> Ask:
        """With this typed behind what is there, or in its place."""
        return replace(self, text=text if self.selected else self.text + text, selected=False)

    def with_less(self) -> Ask:
        """Without its last character, or what is selected."""
        return replace(self, text="" if self.selected else self.text[:-1], selected=False)
