"""A parser of arguments that says what was meant by a word that it does not know."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from shlex import quote
from typing import NoReturn

from tracer.near import hint

_CHOICE = re.compile(r"invalid choice: (?:'([^']*)'|(\S*)).*\(choose from (.*)\)", re.S)


class Parser(argparse.ArgumentParser):
    """A parser that says which of the choices was meant."""

    def error(self, message: str) -> NoReturn:
        """End with the usage, the message and the choice that is near."""
        found = _CHOICE.search(message)
        if found is None:
            super().error(message)
        word, known = found[1] or found[2] or "", re.findall(r"[\w./-]+", found[3])
        super().error(message + (_report_of(word, known) or hint(word, known)))


def _report_of(word: str, known: list[str]) -> str:
    """What to write where a recording stands in the place of a command."""
    if "report" not in known or not word or not Path(word).exists():
        return ""
    return f" (did you mean tracer report {quote(word)}?)"
