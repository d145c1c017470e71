"""A parser of arguments that says what was meant by a word that it does not know."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from tracer.near import hint

_CHOICE = re.compile(r"invalid choice: '?([^' ]*)'? .*\(choose from (.*)\)", re.S)


class Parser(argparse.ArgumentParser):
    """A parser that says which of the choices was meant."""

    def error(self, message: str) -> NoReturn:
        """End with the usage, the message and the choice that is near."""
        found = _CHOICE.search(message)
        near = hint(found[1], re.findall(r"[\w./-]+", found[2])) if found else ""
        super().error(message + near)
