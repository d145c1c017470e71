"""An empty word on the command line, as a shell variable that is not set leaves it."""

from __future__ import annotations

import argparse

from tracer.errors import UsageError

_RULE = "RULE"
# What stands in the usage for what may not be empty. Python takes the path "" for the directory
# that it runs in.
_NAMED = frozenset((_RULE, "PATH", "FILE", "DIR", "A", "B", "CONFIG", "script.py", "module"))


def expect_no_blank(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse a blank path, program or rule."""
    for action in parser._actions:
        if action.metavar in _NAMED and any(not word.strip() for word in _words(action, args)):
            name = action.option_strings[0] if action.option_strings else action.metavar
            what = "rule" if action.metavar == _RULE else "name"
            raise UsageError(f"{name}: the {what} given is empty; is a shell variable not set?")


def _words(action: argparse.Action, args: argparse.Namespace) -> list[str]:
    """What was given for the argument, without the words of a program that is run."""
    given: str | list[str] | None = getattr(args, action.dest, None)
    words = [given] if isinstance(given, str) else given or []
    if action.nargs != argparse.PARSER:
        return words
    return [word for word in words[:2] if word != "--"][:1]
