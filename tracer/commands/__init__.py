"""The commands of the command line, one file each."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Protocol, cast

# In the order of the help. Each is a module of this package; none loads torch before it runs.
COMMANDS: tuple[str, ...] = (
    "demo",
    "run",
    "report",
    "diff",
    "ranks",
    "open",
    "export",
    "watch",
    "doctor",
    "plan",
)


class Command(Protocol):
    """What the module of a command holds.

    A module with `TRANSPARENT = True` runs somebody else's program: exceptions of that pass.
    """

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def load_command(name: str) -> Command:
    """The module of a command."""
    return cast(Command, import_module(f"tracer.commands.{name}"))
